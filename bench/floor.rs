//! What can this machine do at best? A loopback round trip, a flush of the disk, and what the
//! bucket in a directory adds to them.
//!
//! The ways to write alternate operation by operation, so that they meet the same noise.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use celld_bench::args::Args;
use celld_bench::report::Report;
use celld_bench::{histogram, record};
use celld_s3::{Bucket, CasOutcome, Guard};

/// What one small commit of a cell is: an LTX segment with a page or two.
const BODY_BYTES: usize = 1_024;
/// One block; direct writes are aligned to it.
const BLOCK: usize = 4_096;
const SPOOL_BYTES: u64 = 8 << 20;

fn main() -> Result<()> {
    let args = Args::read();
    std::fs::create_dir_all(&args.dir)?;
    let dir = args.dir.join("floor");
    let mut report =
        Report::new("floor", format!("{BODY_BYTES} B bodies on {}", args.dir.display()));
    for run in 0..args.runs() {
        round_trips(&mut report, args.time())?;
        if dir.exists() {
            std::fs::remove_dir_all(&dir)?;
        }
        std::fs::create_dir(&dir)?;
        celld_rt::block_on(writes(&mut report, args.time() * 2, &dir, run))?;
        std::fs::remove_dir_all(&dir)?;
    }
    report.print()
}

fn round_trips(report: &mut Report, time: Duration) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let echo = std::thread::spawn(move || -> std::io::Result<()> {
        let mut bytes = [0; 100];
        while server.read_exact(&mut bytes).is_ok() {
            server.write_all(&bytes)?;
        }
        Ok(())
    });
    let (mut latency, end) = (histogram(), Instant::now() + time);
    let mut bytes = [0; 100];
    while Instant::now() < end {
        let begin = Instant::now();
        client.write_all(&bytes)?;
        client.read_exact(&mut bytes)?;
        record(&mut latency, begin.elapsed());
    }
    drop(client);
    report.add_latency("loopback round trip, 100 B", &latency);
    match echo.join() {
        Ok(result) => result.context("echo"),
        Err(_) => bail!("the echo failed"),
    }
}

async fn writes(report: &mut Report, time: Duration, dir: &Path, run: usize) -> Result<()> {
    let bucket = Bucket::open_dir(&dir.join("bucket"))?;
    let raw = dir.join("raw");
    std::fs::create_dir(&raw)?;
    let mut spool = Spool::new(&dir.join("spool"))?;
    let body = Bytes::from(vec![7; BODY_BYTES]);
    let own = "cells/bench/own.json";
    let mut etag = bucket.put(own, body.clone()).await?;
    let mut all = [(); 6].map(|()| histogram());
    let end = Instant::now() + time;
    for n in 0.. {
        if Instant::now() >= end {
            break;
        }
        let mut begin = Instant::now();
        let mut lap = |at: usize| {
            record(&mut all[at], begin.elapsed());
            begin = Instant::now();
        };
        spool.append(n)?;
        lap(0);
        create_file(&raw, n, &body, Flushes::One)?;
        lap(1);
        create_file(&raw, n, &body, Flushes::Two)?;
        lap(2);
        bucket.put(&format!("cells/bench/ltx/{n:016x}"), body.clone()).await?;
        lap(3);
        bucket.get(own).await?.context("the record is gone")?;
        lap(4);
        let next = Bytes::from([format!("{run} {n}").as_bytes(), &body].concat());
        match bucket.put_if(own, Guard::Match(etag), next).await? {
            CasOutcome::Applied(new) => etag = new,
            CasOutcome::Refused | CasOutcome::Unknown => bail!("the swap did not apply"),
        }
        lap(5);
    }
    let names = [
        "spool: direct write + fdatasync, 4 KiB",
        "new file: write + fdatasync",
        "new file: write + fdatasync + rename + fsync of the directory",
        "bucket: put of a new object",
        "bucket: get of a small object",
        "bucket: swap",
    ];
    for (name, latency) in names.iter().zip(&all) {
        report.add_latency(name, latency);
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Flushes {
    /// The file only: its name may be lost.
    One,
    /// The file, and then its name: what POSIX asks of a durable write.
    Two,
}

fn create_file(dir: &Path, n: u64, body: &[u8], flushes: Flushes) -> Result<()> {
    let name = match flushes {
        Flushes::One => dir.join(format!("one-{n}")),
        Flushes::Two => dir.join(format!("draft-{n}")),
    };
    let mut file = OpenOptions::new().write(true).create_new(true).open(&name)?;
    file.write_all(body)?;
    file.sync_data()?;
    match flushes {
        Flushes::One => {}
        Flushes::Two => {
            std::fs::rename(&name, dir.join(format!("two-{n}")))?;
            File::open(dir)?.sync_all()?;
        }
    }
    Ok(())
}

/// A preallocated, zero-filled file that is written around, as a log is.
struct Spool {
    file: File,
    block: Box<Block>,
}

#[repr(align(4096))]
struct Block([u8; BLOCK]);

impl Spool {
    fn new(path: &Path) -> Result<Self> {
        let mut file = File::create(path)?;
        file.write_all(&vec![0; SPOOL_BYTES as usize])?;
        file.sync_all()?;
        let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path);
        // A file system in memory knows no direct writes.
        let file = direct.or_else(|_| OpenOptions::new().write(true).open(path))?;
        Ok(Self { file, block: Box::new(Block([7; BLOCK])) })
    }

    fn append(&mut self, n: u64) -> Result<()> {
        let at = n * BLOCK as u64 % SPOOL_BYTES;
        self.file.write_all_at(&self.block.0, at)?;
        self.file.sync_data()?;
        Ok(())
    }
}
