//! What does a resident cell cost? Memory and file descriptors for 1,000 and 10,000 counters.
//!
//! Each cell has been written once and is resident: the first one is the base, the others are what
//! is counted. Memory that the allocator keeps free is part of the number, as on a real machine.

use std::time::Duration;

use anyhow::{Result, ensure};
use celld_bench::args::Args;
use celld_bench::http::{ask_text, request};
use celld_bench::load::{Pace, Plan, run};
use celld_bench::report::{Report, Unit};
use celld_bench::server::{Server, kinds};

/// Let timers and writes end before memory is read.
const SETTLE: Duration = Duration::from_secs(1);

fn main() -> Result<()> {
    let args = Args::read();
    let mut report = Report::new("memory", "counter cells, each written once");
    let sizes = args.size([1_000_u32, 10_000], [50, 200]);
    for _ in 0..args.runs() {
        for kind in kinds(&args)? {
            for cells in sizes {
                let server = Server::start(&kind, &args.dir)?;
                measure(&mut report, &server, &format!("{}, cells {cells}", kind.name()), cells)?;
            }
        }
    }
    report.print()
}

fn measure(report: &mut Report, server: &Server, row: &str, cells: u32) -> Result<()> {
    // The same load on one cell first, so that code, connections and pools are there already.
    let one = vec![request("POST", "/counter/base")];
    let warm = Plan {
        addr: server.addr,
        connections: 16,
        requests: one,
        pace: Pace::Closed,
        warm_up: Duration::ZERO,
        time: Duration::from_millis(500),
    };
    run(&warm)?;
    std::thread::sleep(SETTLE);
    let before = server.usage()?;
    touch(server, cells)?;
    std::thread::sleep(SETTLE);
    let after = server.usage()?;
    let each = |before: f64, after: f64| (after - before) / f64::from(cells);
    let rss = each(before.rss as f64, after.rss as f64);
    report.add(row, "each", Unit::Bytes, rss);
    report.add(row, "fds each", Unit::Count, each(before.fds as f64, after.fds as f64));
    report.add(row, "base", Unit::Bytes, before.rss as f64);
    report.add(row, "all", Unit::Bytes, after.rss as f64);
    Ok(())
}

/// Writes each cell once, from a few clients at once.
fn touch(server: &Server, cells: u32) -> Result<()> {
    const CLIENTS: u32 = 8;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn(move || {
                    for n in (client..cells).step_by(CLIENTS as usize) {
                        let path = format!("/counter/m{n}");
                        let value = ask_text(server.addr, "POST", &path, Duration::from_secs(30))?;
                        ensure!(value == "1", "{path}: {value:?} instead of 1");
                    }
                    Ok(())
                })
            })
            .collect();
        clients.into_iter().try_for_each(|client| match client.join() {
            Ok(result) => result,
            Err(_) => anyhow::bail!("a client failed"),
        })
    })
}
