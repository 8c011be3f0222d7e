//! What does it cost to ask a node that does not have the cell? Reads of one warm cell through its
//! owner and through another node, alternating; one connection and 32.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use celld_bench::args::Args;
use celld_bench::http::{ask, ask_text, request};
use celld_bench::load::{Pace, Plan, run};
use celld_bench::report::Report;
use celld_bench::server::Server;

const TTL: Duration = Duration::from_secs(10);
/// The nodes have seen each other's leases by then.
const MEETING: Duration = Duration::from_secs(20);
const CELL: &str = "/counter/forwarded";

fn main() -> Result<()> {
    let args = Args::read();
    let mut report = Report::new("forward", format!("{:?} each, TLS on loopback", args.time()));
    for _ in 0..args.runs() {
        let [owner, other] = Server::start_two(&args.celld, &args.dir, TTL)?;
        ask_text(owner.addr, "POST", CELL, Duration::from_secs(30))?;
        meet(&other)?;
        for connections in [1, 32] {
            for (what, server) in [("at the owner", &owner), ("at another node", &other)] {
                let plan = Plan {
                    addr: server.addr,
                    connections,
                    requests: vec![request("GET", CELL)],
                    pace: Pace::Closed,
                    warm_up: args.time() / 4,
                    time: args.time(),
                };
                let plural = if connections == 1 { "" } else { "s" };
                let row = format!("cell read {what}, {connections} connection{plural}");
                report.add_outcome(&row, &run(&plan)?);
            }
        }
    }
    report.print()
}

/// Waits until a node reaches the owner.
fn meet(node: &Server) -> Result<()> {
    let begin = Instant::now();
    loop {
        let answer = ask(node.addr, "GET", CELL, Duration::from_secs(30));
        if answer.is_ok_and(|answer| answer.status == 200) {
            return Ok(());
        }
        ensure!(begin.elapsed() < MEETING, "the nodes do not find each other");
        std::thread::sleep(Duration::from_millis(50));
    }
}
