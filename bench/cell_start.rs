//! How long does the first request of a cold cell take? A small cell, and one of 100 MB.
//!
//! The server is stopped and started on its state before each measurement, so that no cell is in
//! its memory. A target that runs already cannot be stopped: there, only new cells are measured.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use celld_bench::args::Args;
use celld_bench::http::ask_text;
use celld_bench::report::{Report, Unit};
use celld_bench::server::{Server, kinds};
use celld_bench::{histogram, record};

/// A hundred megabytes are written and restored within this, or something is wrong.
const PATIENCE: Duration = Duration::from_secs(300);
/// One write each: together they are the large cell.
const PIECE_MB: usize = 10;

fn main() -> Result<()> {
    let args = Args::read();
    let (cells, large_mb) = (args.size(200, 10), args.size(100, PIECE_MB));
    let conditions = format!("{cells} small cells, one of {large_mb} MB, one at a time");
    let mut report = Report::new("cell_start", conditions);
    for kind in kinds(&args)? {
        let mut server = Server::start(&kind, &args.dir)?;
        let name = kind.name();
        for n in 0..cells {
            ask_text(server.addr, "POST", &format!("/counter/s{n}"), PATIENCE)?;
        }
        for _ in 0..if server.is_ours() { large_mb / PIECE_MB } else { 0 } {
            ask_text(server.addr, "POST", &format!("/blob/large?mb={PIECE_MB}"), PATIENCE)?;
        }
        for run in 0..args.runs() {
            let new = first_requests(server.addr, cells, |n| format!("/counter/n{run}-{n}"), "0")?;
            report.add_latency(&format!("{name}, new cell"), &new);
            if !server.is_ours() {
                continue;
            }
            server.stop()?;
            let start = server.resume()?;
            report.add(&format!("{name}, the server"), "start", Unit::Micros, micros(start));
            let cold = first_requests(server.addr, cells, |n| format!("/counter/s{n}"), "1")?;
            report.add_latency(&format!("{name}, small cell"), &cold);
            let begin = Instant::now();
            let size = ask_text(server.addr, "GET", "/blob/large", PATIENCE)?;
            let row = format!("{name}, cell of {large_mb} MB");
            report.add(&row, "first read", Unit::Micros, micros(begin.elapsed()));
            let begin = Instant::now();
            ask_text(server.addr, "GET", "/blob/large", PATIENCE)?;
            report.add(&row, "second read", Unit::Micros, micros(begin.elapsed()));
            ensure!(size == (large_mb << 20).to_string(), "the large cell came back as {size}");
        }
    }
    report.print()
}

/// One request to each cell; each must answer `value`.
fn first_requests(
    addr: SocketAddr,
    cells: usize,
    path: impl Fn(usize) -> String,
    value: &str,
) -> Result<hdrhistogram::Histogram<u64>> {
    let mut latency = histogram();
    for n in 0..cells {
        let begin = Instant::now();
        let seen = ask_text(addr, "GET", &path(n), PATIENCE)?;
        record(&mut latency, begin.elapsed());
        ensure!(seen == value, "{}: {seen:?} instead of {value:?}", path(n));
    }
    Ok(latency)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
