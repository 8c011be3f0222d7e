//! How long does a durable write take? 1, 8 and 64 clients; one cell and 1,000.
//!
//! A client is a connection with one write under way. Compare with `floor` on the same disk.

use anyhow::Result;
use celld_bench::args::Args;
use celld_bench::http::{ask_text, request};
use celld_bench::load::{Pace, Plan, run};
use celld_bench::report::Report;
use celld_bench::server::{Server, kinds};
use std::time::Duration;

fn main() -> Result<()> {
    let args = Args::read();
    let cells = args.size(1_000, 20);
    let conditions = format!("counter += 1, {:?} each, on {}", args.time(), args.dir.display());
    let mut report = Report::new("durable_write", conditions);
    for _ in 0..args.runs() {
        for kind in kinds(&args)? {
            let server = Server::start(&kind, &args.dir)?;
            for cells in [1, cells] {
                let paths = (0..cells).map(|n| format!("/counter/w{n}"));
                for path in paths.clone() {
                    ask_text(server.addr, "POST", &path, Duration::from_secs(30))?;
                }
                let requests: Vec<_> = paths.map(|path| request("POST", &path)).collect();
                measure(&mut report, &args, &server, requests, kind.name())?;
            }
        }
    }
    report.print()
}

fn measure(
    report: &mut Report,
    args: &Args,
    server: &Server,
    requests: Vec<Vec<u8>>,
    name: &str,
) -> Result<()> {
    let cells = requests.len();
    let mut plan = Plan {
        addr: server.addr,
        connections: 1,
        requests,
        pace: Pace::Closed,
        warm_up: args.time() / 4,
        time: args.time(),
    };
    for clients in [1, 8, 64] {
        plan.connections = clients;
        let row = format!("{name}, clients {clients}, cells {cells}");
        let outcome = run(&plan)?;
        report.add_outcome(&row, &outcome);
        if clients == 64 {
            plan.pace = Pace::Open((outcome.per_second / 2.0).max(1.0));
            report.add_outcome(&format!("{row}, half of that offered"), &run(&plan)?);
        }
    }
    Ok(())
}
