//! How long is a cell away when its node is killed? From SIGKILL to the first answer of another node,
//! for a client that asks there without pause.
//!
//! The least possible is what is left of the lease: between two thirds of the TTL and all of it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use celld_bench::args::Args;
use celld_bench::http::{ask, ask_text};
use celld_bench::report::{Report, Unit};
use celld_bench::server::Server;

/// A cell that is away for longer is lost for this bench.
const LIMIT: Duration = Duration::from_secs(60);
/// How many cells are asked for.
const CELLS: u32 = 8;

fn main() -> Result<()> {
    let args = Args::read();
    let ttl = args.size(Duration::from_secs(10), Duration::from_secs(2));
    let mut report = Report::new("takeover", format!("leases of {ttl:?}, {CELLS} cells"));
    for _ in 0..args.runs() {
        let [mut owner, other] = Server::start_two(&args.celld, &args.dir, ttl)?;
        for cell in 0..CELLS {
            ask_text(owner.addr, "POST", &path(cell), Duration::from_secs(30))?;
            first_answer(&other, cell, Instant::now())?;
        }
        owner.kill()?;
        let killed = Instant::now();
        let first = first_answer(&other, 0, killed)?;
        let mut last = first;
        for cell in 1..CELLS {
            last = first_answer(&other, cell, killed)?;
        }
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        report.add("SIGKILL to an answer", "first cell", Unit::Micros, micros(first));
        report.add("SIGKILL to an answer", "all cells", Unit::Micros, micros(last));
        report.add("SIGKILL to an answer", "of it TTL", Unit::Micros, micros(ttl));
    }
    report.print()
}

fn path(cell: u32) -> String {
    format!("/counter/t{cell}")
}

/// Asks until the cell answers with what was acknowledged.
fn first_answer(node: &Server, cell: u32, since: Instant) -> Result<Duration> {
    loop {
        if let Ok(answer) = ask(node.addr, "GET", &path(cell), LIMIT)
            && answer.status == 200
        {
            let text = String::from_utf8_lossy(&answer.body).trim().to_owned();
            ensure!(text == "1", "{}: {text:?} instead of 1", path(cell));
            return Ok(since.elapsed());
        }
        ensure!(since.elapsed() < LIMIT, "{} does not come back", path(cell));
        std::thread::sleep(Duration::from_millis(5));
    }
}
