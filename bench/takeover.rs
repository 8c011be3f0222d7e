//! How long is a cell away when its node is killed? From SIGKILL to the first answer of another node,
//! for a client that asks there without pause.
//!
//! The phases are read off the ownership record of the first cell: the other node waits until the
//! lease is over, claims the cell, restores it, and answers. The least possible is what is left of
//! the lease: between two thirds of the TTL and all of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
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
        let mut record = PathBuf::new();
        let [mut owner, other] = Server::start_two(&args.celld, &args.dir, ttl)?;
        for cell in 0..CELLS {
            ask_text(owner.addr, "POST", &path(cell), Duration::from_secs(30))?;
            first_answer(&other, cell, Instant::now())?;
            if cell == 0 {
                record = only_record(&owner.bucket())?;
            }
        }
        owner.kill()?;
        let killed = Instant::now();
        let is_over = Arc::new(AtomicBool::new(false));
        let (watched, stop) = (record.clone(), is_over.clone());
        let watch = std::thread::spawn(move || watch(&watched, killed, &stop));
        let first = first_answer(&other, 0, killed)?;
        is_over.store(true, Ordering::Relaxed);
        let Phases { claimed, restored } = watch.join().expect("a watch does not panic");
        let mut last = first;
        for cell in 1..CELLS {
            last = first_answer(&other, cell, killed)?;
        }
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        report.add("SIGKILL to an answer", "first cell", Unit::Micros, micros(first));
        report.add("SIGKILL to an answer", "all cells", Unit::Micros, micros(last));
        report.add("SIGKILL to an answer", "of it TTL", Unit::Micros, micros(ttl));
        let mut begin = Duration::ZERO;
        for (phase, end) in [("waited", claimed), ("restored", restored), ("answered", first)] {
            report.add(
                "phases, first cell",
                phase,
                Unit::Micros,
                micros(end.saturating_sub(begin)),
            );
            begin = end;
        }
    }
    report.print()
}

/// Ends of phases, since the kill.
struct Phases {
    claimed: Duration,
    restored: Duration,
}

/// The ownership record of the only cell that there is.
fn only_record(bucket: &Path) -> Result<PathBuf> {
    let mut dir = bucket.join("cells@");
    for _ in 0..2 {
        let mut below = fs::read_dir(&dir).with_context(|| dir.display().to_string())?;
        dir = below.next().context("no cell in the bucket")??.path();
        ensure!(below.next().is_none(), "more than one cell in the bucket");
    }
    Ok(dir.join("own.json"))
}

/// Reads the record until another node has claimed and restored the cell, or all is over.
fn watch(record: &Path, killed: Instant, stop: &AtomicBool) -> Phases {
    let read = || {
        let record = fs::read(record).ok()?;
        let record: serde_json::Value = serde_json::from_slice(&record).ok()?;
        let is_claimed = record["node"] != "first";
        Some((is_claimed, is_claimed && record["base"]["epoch"] == record["epoch"]))
    };
    let (mut claimed, mut restored) = (None, None);
    while restored.is_none() {
        let is_over = stop.load(Ordering::Relaxed);
        let (is_claimed, is_restored) = read().unwrap_or_default();
        let now = killed.elapsed();
        if is_claimed || is_over {
            claimed.get_or_insert(now);
        }
        if is_restored || is_over {
            restored.get_or_insert(now);
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Phases { claimed: claimed.unwrap_or_default(), restored: restored.unwrap_or_default() }
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
