//! What does our client add to a bare request, in time and in CPU? Plain and conditional writes, by
//! our client, by hyper alone, and (with the feature `object_store`) by the crate of that name.
//!
//! The clients take turns several times a second, so that they meet the same noise. Each worker
//! writes an object of its own, one request after the other. CPU is that of this process, which
//! does nothing else; the stores are processes of their own.

#[path = "store/bare.rs"]
mod bare;
#[cfg(feature = "object_store")]
#[path = "store/peer.rs"]
mod peer;
#[path = "store/sink.rs"]
mod sink;
#[path = "store/target.rs"]
mod target;

use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use celld_bench::args::Args;
use celld_bench::report::{Report, Unit};
use celld_bench::{histogram, record};
use celld_stores::Kind;
use futures_util::future::join_all;
use hdrhistogram::Histogram;

use bare::Bare;
use target::{Celld, Client, Target, Verb};

/// What one small commit of a cell is.
const BODY_BYTES: usize = 1_024;
/// Turns of each client in one measurement.
const TURNS: u32 = 8;

fn main() -> Result<()> {
    sink::serve_if_asked()?;
    let args = Args::read();
    let mut targets = vec![Target::sink()?];
    if !args.small {
        for (name, kind) in [("seaweedfs", Kind::Seaweed), ("ministack", Kind::Ministack)] {
            match Target::store(name, kind) {
                Ok(target) => targets.push(target),
                Err(error) => eprintln!("left out: {error:#}"),
            }
        }
    }
    let mut report = Report::new("store", format!("{BODY_BYTES} B bodies"));
    for _ in 0..args.runs() {
        for target in &targets {
            for in_flight in args.size([1, 16, 64], [1, 4, 16]) {
                celld_rt::block_on(measure(&mut report, target, in_flight, args.time()))?;
            }
        }
    }
    report.print()
}

/// One client's numbers.
struct Taken {
    latency: Histogram<u64>,
    time: Duration,
    cpu: Duration,
}

async fn measure(
    report: &mut Report,
    target: &Target,
    in_flight: usize,
    time: Duration,
) -> Result<()> {
    let mut floor = Vec::new();
    for worker in 0..in_flight {
        floor.push(Bare::open(target, worker).await?);
    }
    let bucket = Celld::bucket(target)?;
    let mut ours: Vec<_> = (0..in_flight).map(|worker| Celld::new(&bucket, worker)).collect();
    #[cfg(feature = "object_store")]
    let (tokio, mut peers) = peers(target, in_flight)?;
    let mut numbers = 0;
    for verb in [Verb::Put, Verb::Swap] {
        let mut taken = [(); 3].map(|()| Taken::new());
        // The first turn opens connections and warms caches; it is not counted.
        for turn in 0..=TURNS {
            let span = time / TURNS;
            let mut turns = [
                turn_of(&mut floor, verb, span, &mut numbers).await?,
                turn_of(&mut ours, verb, span, &mut numbers).await?,
                Taken::new(),
            ];
            #[cfg(feature = "object_store")]
            {
                turns[2] = tokio.block_on(turn_of(&mut peers, verb, span, &mut numbers))?;
            }
            if turn > 0 {
                for (all, one) in taken.iter_mut().zip(&mut turns) {
                    all.add(one)?;
                }
            }
        }
        let verb = match verb {
            Verb::Put => "put",
            Verb::Swap => "swap",
        };
        for (client, taken) in ["bare", "celld", "object_store"].iter().zip(&taken) {
            taken.report(
                report,
                &format!("{} {verb}, {in_flight} in flight, {client}", target.name),
            );
        }
    }
    Ok(())
}

#[cfg(feature = "object_store")]
fn peers(
    target: &Target,
    in_flight: usize,
) -> Result<(tokio::runtime::Runtime, Vec<peer::ObjectStore>)> {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let store = peer::ObjectStore::bucket(target)?;
    let workers = (0..in_flight).map(|worker| peer::ObjectStore::new(&store, worker)).collect();
    Ok((tokio, workers))
}

/// All workers of one client write for a while.
async fn turn_of<C: Client>(
    workers: &mut [C],
    verb: Verb,
    span: Duration,
    numbers: &mut u64,
) -> Result<Taken> {
    let (begin, cpu) = (Instant::now(), cpu_time());
    let end = begin + span;
    let count = workers.len() as u64;
    let first = *numbers;
    let work = workers.iter_mut().zip(first..).map(async |(worker, mut number)| {
        let mut latency = histogram();
        while Instant::now() < end || latency.is_empty() {
            // What is swapped must differ, or its version would not.
            let mut body = vec![7; BODY_BYTES];
            body[..8].copy_from_slice(&number.to_be_bytes());
            number += count;
            let begin = Instant::now();
            worker.write(verb, Bytes::from(body)).await?;
            record(&mut latency, begin.elapsed());
        }
        Ok((latency, number))
    });
    let done: Result<Vec<_>> = join_all(work).await.into_iter().collect();
    let mut taken = Taken::new();
    for (latency, number) in done? {
        taken.latency.add(latency)?;
        *numbers = (*numbers).max(number);
    }
    (taken.time, taken.cpu) = (begin.elapsed(), cpu_time().saturating_sub(cpu));
    Ok(taken)
}

impl Taken {
    fn new() -> Self {
        Self { latency: histogram(), time: Duration::ZERO, cpu: Duration::ZERO }
    }

    fn add(&mut self, other: &Self) -> Result<()> {
        self.latency.add(&other.latency)?;
        self.time += other.time;
        self.cpu += other.cpu;
        Ok(())
    }

    fn report(&self, report: &mut Report, row: &str) {
        if self.latency.is_empty() {
            return;
        }
        let requests = self.latency.len() as f64;
        report.add(row, "rate", Unit::PerSecond, requests / self.time.as_secs_f64());
        report.add_latency(row, &self.latency);
        report.add(row, "cpu each", Unit::Micros, self.cpu.as_secs_f64() * 1e6 / requests);
    }
}

/// Of this process so far, in its own code and in the kernel.
fn cpu_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills `usage`, of which all zeros are a value too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    [usage.ru_utime, usage.ru_stime]
        .iter()
        .map(|time| {
            let micros = time.tv_sec * 1_000_000 + time.tv_usec;
            Duration::from_micros(u64::try_from(micros).unwrap_or(0))
        })
        .sum()
}
