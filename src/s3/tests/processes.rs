//! The file dialect between processes: this program starts itself again, several times at once, on
//! one bucket, and kills some of them at random instants.
//!
//! Each process keeps a ledger: a line *before* a conditional write with its nonce, and a line with
//! the outcome after it. A process that is killed between the two leaves a write of which nobody
//! knows whether it applied; all others are known exactly. The objects themselves carry the chain
//! of all nonces, so that every applied write can be found in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use bytes::Bytes;
use celld_s3::{Bucket, CasOutcome, Guard, Object};

const PROCESSES: usize = 8;
const COUNTERS: usize = 3;
const RUN: Duration = Duration::from_secs(3);
/// A slow machine runs until this much stands in the ledgers, so that the run is worth something.
const LEDGER_BYTES_MIN: u64 = 40_000;
const RUN_MAX: Duration = Duration::from_secs(60);
/// One of the processes is killed, and another one started, this often on average.
const KILL_EVERY: Duration = Duration::from_millis(60);
/// Long enough that a torn object would show.
const PADDING: usize = 20_000;

fn main() {
    let args: Vec<_> = std::env::args().collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "sound", directory, name] => work(Path::new(directory), name, Way::Sound),
        [_, "careless", directory, name] => work(Path::new(directory), name, Way::Careless),
        _ => {
            processes_that_are_killed_agree_on_every_outcome();
            the_check_sees_what_a_careless_store_does();
            println!("processes: ok");
        }
    }
}

/// How a process writes.
#[derive(Clone, Copy)]
enum Way {
    /// By `put_if`.
    Sound,
    /// By a read, a comparison and a plain write: what the lock of a key is there to prevent.
    Careless,
}

fn processes_that_are_killed_agree_on_every_outcome() {
    let directory = tempfile::tempdir().expect("a directory");
    let kills = run(directory.path(), "sound", RUN);
    check(directory.path(), kills);
}

fn the_check_sees_what_a_careless_store_does() {
    let directory = tempfile::tempdir().expect("a directory");
    let kills = run(directory.path(), "careless", RUN / 4);
    println!("processes: a complaint follows, and it is wanted");
    let result = std::panic::catch_unwind(|| check(directory.path(), kills));
    let complaint = result.expect_err("lost writes went unseen");
    let complaint = complaint.downcast_ref::<String>().expect("a complaint with its reason");
    assert!(complaint.contains("is lost"), "{complaint}");
}

/// Runs the processes for `time` and returns how many were killed before its end.
fn run(path: &Path, way: &str, time: Duration) -> usize {
    fs::create_dir(path.join("ledgers")).expect("a directory");
    let mut random = Random(0x5eed);
    let mut started = 0;
    let mut start = || {
        started += 1;
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.arg(way).arg(path).arg(format!("p{started}"));
        command.spawn().expect("a process")
    };
    let mut running: Vec<Child> = (0..PROCESSES).map(|_| start()).collect();
    let (begin, mut kills) = (Instant::now(), 0);
    while begin.elapsed() < time
        || begin.elapsed() < RUN_MAX && ledger_bytes(path) < LEDGER_BYTES_MIN
    {
        std::thread::sleep(KILL_EVERY.mul_f64(random.below(2_000) as f64 / 1_000.0));
        let victim = random.below(PROCESSES as u64) as usize;
        let mut victim = std::mem::replace(&mut running[victim], start());
        victim.kill().expect("a kill");
        let status = victim.wait().expect("its end");
        assert!(status.code().is_none(), "a process ended by itself: {status}");
        kills += 1;
    }
    for child in &mut running {
        child.kill().expect("a kill");
        child.wait().expect("its end");
    }
    kills
}

// ---- what each process does -------------------------------------------------------------------

fn work(directory: &Path, name: &str, way: Way) {
    let bucket = Bucket::open_dir(&bucket_of(directory)).expect("the bucket");
    let ledger = directory.join("ledgers").join(name);
    let ledger = OpenOptions::new().create_new(true).append(true).open(ledger);
    let mut ledger = ledger.expect("a ledger");
    let mut random = Random(name.bytes().fold(17, |hash, b| hash * 31 + u64::from(b)));
    celld_rt::block_on(async {
        for n in 0.. {
            let nonce = format!("{name}.{n}");
            if n % 4 == 0 {
                create(&bucket, &mut ledger, &nonce, way).await;
            } else {
                let key = format!("counters/{}", random.below(COUNTERS as u64));
                increment(&bucket, &mut ledger, &key, &nonce, way).await;
            }
        }
    });
}

/// All processes run after the same next object, so that they meet.
async fn create(bucket: &Bucket, ledger: &mut File, nonce: &str, way: Way) {
    let now = bucket.list("created/", None).await.expect("a page");
    assert!(!now.more, "the run is too long for this way to find the next one");
    let key = format!("created/{:04}/x", now.entries.len());
    let body = record(1, nonce);
    write(bucket, ledger, &key, nonce, (Guard::Absent, body), way).await;
}

async fn increment(bucket: &Bucket, ledger: &mut File, key: &str, nonce: &str, way: Way) {
    let (guard, count, nonces) = match bucket.get(key).await.expect("a read") {
        None => (Guard::Absent, 0, String::new()),
        Some(object) => {
            let (count, nonces) = parse(key, &object);
            (Guard::Match(object.etag), count, nonces + " ")
        }
    };
    let body = record(count + 1, &format!("{nonces}{nonce}"));
    write(bucket, ledger, key, nonce, (guard, body), way).await;
}

async fn write(
    bucket: &Bucket,
    ledger: &mut File,
    key: &str,
    nonce: &str,
    (guard, body): (Guard, Bytes),
    way: Way,
) {
    // One write each, so a kill leaves whole lines.
    ledger.write_all(format!("try {key} {nonce}\n").as_bytes()).expect("a line");
    let outcome = match way {
        Way::Sound => bucket.put_if(key, guard, body).await.expect("an answer"),
        Way::Careless => {
            let now = bucket.get(key).await.expect("a read").map(|object| object.etag);
            let holds = match guard {
                Guard::Absent => now.is_none(),
                Guard::Match(etag) => now == Some(etag),
            };
            if holds {
                CasOutcome::Applied(bucket.put(key, body).await.expect("a write"))
            } else {
                CasOutcome::Refused
            }
        }
    };
    let end = match outcome {
        CasOutcome::Applied(_) => "applied",
        CasOutcome::Refused => "refused",
        CasOutcome::Unknown => panic!("this disk is sound, so each write has a known end"),
    };
    ledger.write_all(format!("{end} {key} {nonce}\n").as_bytes()).expect("a line");
}

/// `<count>;<nonces>;<padding>`, the padding as long as the count says.
fn record(count: usize, nonces: &str) -> Bytes {
    let fill = char::from(b'a' + (count % 26) as u8);
    let padding: String = std::iter::repeat_n(fill, PADDING + count).collect();
    Bytes::from(format!("{count};{nonces};{padding}"))
}

fn parse(key: &str, object: &Object) -> (usize, String) {
    let text = std::str::from_utf8(&object.body).expect("a record");
    let mut parts = text.split(';');
    let count = parts.next().and_then(|n| n.parse().ok()).expect("a count");
    let nonces = parts.next().expect("nonces").to_owned();
    assert!(object.body == record(count, &nonces), "{key}: a torn object");
    assert_eq!(nonces.split(' ').count(), count, "{key}: a write was lost");
    (count, nonces)
}

// ---- what must be true in the end -------------------------------------------------------------

fn check(directory: &Path, kills: usize) {
    // By nonce: the key, and the outcome if it is known.
    let mut ledger: BTreeMap<String, (String, Option<String>)> = BTreeMap::new();
    for file in fs::read_dir(directory.join("ledgers")).expect("ledgers") {
        let text = fs::read_to_string(file.expect("a ledger").path()).expect("a ledger");
        for line in text.lines() {
            let [what, key, nonce] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("a broken line: {line:?}");
            };
            let outcome = (what != "try").then(|| what.to_owned());
            ledger.insert(nonce.to_owned(), (key.to_owned(), outcome));
        }
    }
    let bucket = Bucket::open_dir(&bucket_of(directory)).expect("the bucket");
    let mut stand = BTreeSet::new();
    let (mut created, mut counted) = (0, 0);
    celld_rt::block_on(async {
        let page = bucket.list("", None).await.expect("a page");
        assert!(!page.more);
        for entry in page.entries {
            let object = bucket.get(&entry.key).await.expect("a read").expect("an object");
            assert_eq!(object.body.len() as u64, entry.size);
            let (count, nonces) = parse(&entry.key, &object);
            if entry.key.starts_with("created/") {
                assert_eq!(
                    entry.key,
                    format!("created/{created:04}/x"),
                    "something else is listed"
                );
                assert_eq!(count, 1, "{}: two creates applied", entry.key);
                created += 1;
            } else {
                assert!(entry.key.starts_with("counters/"), "{} is listed", entry.key);
                counted += count;
            }
            for nonce in nonces.split(' ') {
                let (key, _) = ledger.get(nonce).expect("no write that nobody made");
                assert_eq!(*key, entry.key);
                assert!(stand.insert(nonce.to_owned()), "{nonce} applied twice");
            }
        }
    });
    let (mut applied, mut refused, mut unknown) = (0, 0, 0);
    for (nonce, (key, outcome)) in &ledger {
        match outcome.as_deref() {
            Some("applied") => {
                applied += 1;
                assert!(stand.contains(nonce), "{key}: the applied write {nonce} is lost");
            }
            Some("refused") => {
                refused += 1;
                assert!(!stand.contains(nonce), "{key}: the refused write {nonce} applied");
            }
            _ => unknown += 1,
        }
    }
    println!(
        "processes: {kills} kills, {created} created, {counted} counted; \
         {applied} applied, {refused} refused, {unknown} unknown"
    );
    // The run is worth nothing when they did not meet, or nobody died inside a write.
    assert!(created > 20 && counted > 100 && refused > 20 && unknown > 5);
    // What the dead left was swept by those who came later; the last ones by this opening.
    let drafts = bucket_of(directory).join(".celld=/drafts");
    assert_eq!(
        fs::read_dir(drafts).expect("a directory").count(),
        1,
        "drafts of the dead are left"
    );
}

fn ledger_bytes(directory: &Path) -> u64 {
    let ledgers = fs::read_dir(directory.join("ledgers")).expect("ledgers");
    ledgers.map(|file| file.and_then(|file| file.metadata()).expect("a ledger").len()).sum()
}

fn bucket_of(directory: &Path) -> PathBuf {
    directory.join("bucket")
}

/// xorshift64*, so that a run needs no crate and prints the same choices.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}
