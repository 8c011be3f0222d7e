//! How fast is a warm request? Stateless, and a read of a cell; one connection and 32.
//!
//! The maximum comes from a closed loop. The latency under load comes from an open loop at half of
//! it, so that a stall is charged to all that it kept waiting.

use anyhow::Result;
use celld_bench::args::Args;
use celld_bench::http::{ask_text, request};
use celld_bench::load::{Pace, Plan, run};
use celld_bench::report::Report;
use celld_bench::server::{Server, kinds};
use std::time::Duration;

fn main() -> Result<()> {
    let args = Args::read();
    let mut report = Report::new("warm_request", format!("{:?} each", args.time()));
    for _ in 0..args.runs() {
        for kind in kinds(&args)? {
            let server = Server::start(&kind, &args.dir)?;
            ask_text(server.addr, "POST", "/counter/warm", Duration::from_secs(30))?;
            let what =
                [("hello", "/hello"), ("cell read", "/counter/warm"), ("cell call", "/call/warm")];
            for (what, path) in what {
                measure(&mut report, &args, &server, &format!("{} {what}", kind.name()), path)?;
            }
        }
    }
    report.print()
}

fn measure(report: &mut Report, args: &Args, server: &Server, row: &str, path: &str) -> Result<()> {
    let mut plan = Plan {
        addr: server.addr,
        connections: 1,
        requests: vec![request("GET", path)],
        pace: Pace::Closed,
        warm_up: args.time() / 4,
        time: args.time(),
    };
    report.add_outcome(&format!("{row}, 1 connection"), &run(&plan)?);
    plan.connections = 32;
    let most = run(&plan)?;
    report.add_outcome(&format!("{row}, 32 connections"), &most);
    plan.pace = Pace::Open((most.per_second / 2.0).max(1.0));
    report.add_outcome(&format!("{row}, 32, half of that offered"), &run(&plan)?);
    Ok(())
}
