//! What does it cost to ask a node that does not have the cell? Reads of warm cells through their
//! owner and through another node, alternating: of one cell by one connection and by 32, and of many
//! cells, so that every core of the owner works, by 128.

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
const CELLS: usize = 64;
/// Connections, and the cells that they read.
const LOADS: [(usize, usize); 3] = [(1, 1), (32, 1), (128, CELLS)];

fn main() -> Result<()> {
    let args = Args::read();
    let mut report = Report::new("forward", format!("{:?} each, TLS on loopback", args.time()));
    for _ in 0..args.runs() {
        let [owner, other] = Server::start_two(&args.celld, &args.dir, TTL)?;
        for cell in 0..CELLS {
            ask_text(owner.addr, "POST", &path(cell), Duration::from_secs(30))?;
        }
        for cell in 0..CELLS {
            meet(&other, cell)?;
        }
        for (connections, cells) in LOADS {
            for (what, server) in [("at the owner", &owner), ("at another node", &other)] {
                let plan = Plan {
                    addr: server.addr,
                    connections,
                    requests: (0..cells).map(|cell| request("GET", &path(cell))).collect(),
                    pace: Pace::Closed,
                    warm_up: args.time() / 4,
                    time: args.time(),
                };
                let plural = |count| if count == 1 { "" } else { "s" };
                let row = format!(
                    "read {what}, {connections} connection{}, {cells} cell{}",
                    plural(connections),
                    plural(cells)
                );
                report.add_outcome(&row, &run(&plan)?);
            }
        }
    }
    report.print()
}

fn path(cell: usize) -> String {
    format!("/counter/forwarded-{cell}")
}

/// Waits until a node reaches the owner of a cell.
fn meet(node: &Server, cell: usize) -> Result<()> {
    let begin = Instant::now();
    loop {
        let answer = ask(node.addr, "GET", &path(cell), Duration::from_secs(30));
        if answer.is_ok_and(|answer| answer.status == 200) {
            return Ok(());
        }
        ensure!(begin.elapsed() < MEETING, "the nodes do not find each other");
        std::thread::sleep(Duration::from_millis(50));
    }
}
