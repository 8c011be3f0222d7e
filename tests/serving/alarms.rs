//! Alarms on real processes: they run at their time whatever happens to the cell and its node, and
//! nobody is told of one that would be forgotten.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::support::hold::Hold;
use super::support::node::{Node, Plan, Site};
use super::support::wait_for;

/// An alarm that nobody has in memory waits for the scan, which comes every five seconds; the rest
/// is for a machine that is busy with other tests.
const FIRES_WITHIN: Duration = Duration::from_secs(40);
/// How late an alarm may be that its node knows of, on a machine that is busy with other tests.
const LATE_MS: u64 = 10_000;
/// Long enough for what should not come.
const SILENCE: Duration = Duration::from_millis(1_500);

/// What a run has said.
#[derive(Clone, Debug)]
struct Run {
    cell: String,
    retry: u32,
    scheduled_ms: u64,
    heard_ms: u64,
}

/// Hears the alarms: a server that every run asks.
struct Ear {
    url: String,
    heard: Arc<Mutex<Vec<Run>>>,
}

impl Ear {
    fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ear = Self { url, heard: heard.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let heard = heard.clone();
                std::thread::spawn(move || {
                    let Ok(stream) = stream else { return };
                    let mut reader = BufReader::new(stream);
                    // Keep-alive: several runs may come on one connection.
                    loop {
                        let mut first = String::new();
                        if reader.read_line(&mut first).unwrap_or(0) == 0 {
                            return;
                        }
                        let mut line = String::new();
                        while reader.read_line(&mut line).unwrap_or(0) > 2 {
                            line.clear();
                        }
                        heard.lock().expect("no panic").push(run_of(&first));
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                        if reader.get_mut().write_all(answer).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        ear
    }

    /// All runs so far.
    fn runs(&self) -> Vec<Run> {
        self.heard.lock().expect("no panic").clone()
    }

    /// Waits for so many runs.
    fn wait_for(&self, count: usize) -> Vec<Run> {
        wait_for("alarms", FIRES_WITHIN, || {
            let runs = self.runs();
            (runs.len() >= count).then_some(runs)
        })
    }
}

fn run_of(first_line: &str) -> Run {
    let query = first_line.split(['?', ' ']).nth(2).expect("a query");
    let parts: BTreeMap<_, _> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
    let number = |name: &str| parts[name].parse().expect("a number");
    let heard_ms = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis();
    Run {
        cell: parts["cell"].to_owned(),
        retry: u32::try_from(number("retry")).expect("small"),
        scheduled_ms: number("scheduled"),
        heard_ms: u64::try_from(heard_ms).expect("an instant of this age"),
    }
}

fn plan(site: &Site) -> Plan {
    site.node("n").variable("CELLD_TTL_MS", "3000")
}

fn set(node: &Node, ear: &Ear, cell: &str, in_ms: u64, mode: &str) -> u64 {
    let path = format!("/{cell}/set?in={in_ms}&tell={}&mode={mode}", ear.url);
    let time = node.ask("POST", &path).good();
    String::from_utf8(time).expect("text").parse().expect("a time")
}

fn asked(node: &Node, path: &str) -> String {
    String::from_utf8(node.ask("GET", path).good()).expect("text")
}

/// All entries of the wake index.
fn entries(site: &Site) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![site.bucket().join("wake@")];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.path().is_dir() { open.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found
}

/// Waits until nobody has any cell in memory.
fn wait_until_released(bucket: &Path) {
    wait_for("the release of all cells", Duration::from_secs(30), || {
        let cells = std::fs::read_dir(bucket.join("cells@/alarms.Cell@")).ok()?;
        let owned = cells.flatten().filter(|cell| {
            let record = std::fs::read(cell.path().join("own.json")).unwrap_or_default();
            let record: serde_json::Value = serde_json::from_slice(&record).unwrap_or_default();
            record["node"].as_str().is_some_and(|node| !node.is_empty())
        });
        (owned.count() == 0).then_some(())
    });
}

#[test]
fn an_alarm_runs_at_its_time_and_leaves_nothing_behind() {
    let (site, ear) = (Site::of("alarms"), Ear::open());
    let node = plan(&site).start();
    let time = set(&node, &ear, "a", 1_000, "once");
    assert_eq!(asked(&node, "/a/alarm"), time.to_string());
    assert_eq!(entries(&site).len(), 1);
    let run = ear.wait_for(1)[0].clone();
    assert_eq!((run.cell.as_str(), run.retry, run.scheduled_ms), ("a", 0, time));
    assert!((time..time + LATE_MS).contains(&run.heard_ms), "{run:?}");
    wait_for("the end of the run", FIRES_WITHIN, || (asked(&node, "/a/runs") == "1").then_some(()));
    assert_eq!(asked(&node, "/a/alarm"), "null");
    // The scan finds the entry due, hears that nobody needs it, and deletes it.
    wait_for("an empty index", FIRES_WITHIN, || entries(&site).is_empty().then_some(()));
    assert_eq!(ear.runs().len(), 1);
}

#[test]
fn an_alarm_of_a_cell_that_left_memory_runs_in_time() {
    let (site, ear) = (Site::of("alarms"), Ear::open());
    let node = plan(&site).flag("--idle-evict-ms", "300").start();
    let time = set(&node, &ear, "a", 12_000, "again");
    let deleted = set(&node, &ear, "b", 12_000, "once");
    node.ask("POST", "/b/delete").good();
    assert!(deleted >= time);
    wait_until_released(site.bucket());
    assert!(ear.runs().is_empty(), "the cells had left in time: {:?}", ear.runs());
    let run = ear.wait_for(1)[0].clone();
    assert_eq!((run.cell.as_str(), run.scheduled_ms), ("a", time));
    assert!((time..time + LATE_MS).contains(&run.heard_ms), "{run:?}");
    // It has set another one, and goes to rest with it.
    wait_until_released(site.bucket());
    assert!(asked(&node, "/a/alarm").parse::<u64>().expect("a time") > time + 60_000);
    assert_eq!(ear.runs().len(), 1);
}

#[test]
fn alarms_that_were_armed_when_the_node_was_killed_run_in_its_next_life() {
    let (site, ear) = (Site::of("alarms"), Ear::open());
    let mut plan = plan(&site).flag("--idle-evict-ms", "300");
    let node = plan.start();
    let count = 40;
    let path =
        |cell: &str, in_ms: u64| format!("/{cell}/sets?in={in_ms}&count={count}&tell={}", ear.url);
    // Some rest when the node dies, some do not; and one is far away.
    node.ask("POST", &path("resting", 6_000)).good();
    wait_until_released(site.bucket());
    node.ask("POST", &path("awake", 1_000)).good();
    set(&node, &ear, "later", 3_600_000, "once");
    let before = ear.runs().len();
    node.kill();
    let node = plan.start();
    let started = Instant::now();
    // Nobody calls a cell from here on.
    wait_for("every alarm", FIRES_WITHIN, || {
        let cells: std::collections::BTreeSet<_> =
            ear.runs().into_iter().map(|run| run.cell).collect();
        (cells.len() == 2 * count).then_some(())
    });
    println!("{} ran before the kill, all {:?} after the start", before, started.elapsed());
    assert!(ear.runs().iter().all(|run| run.heard_ms >= run.scheduled_ms), "{:?}", ear.runs());
    assert!(ear.runs().iter().all(|run| run.cell != "later"));
    // What is done leaves the index; what is to come stays in it.
    wait_for("an index without what is done", FIRES_WITHIN, || {
        (entries(&site).len() == 1).then_some(())
    });
    drop(node);
}

#[test]
fn failures_are_counted_across_lives_of_cell_and_node() {
    let (site, ear) = (Site::of("alarms"), Ear::open());
    let mut plan = plan(&site).flag("--idle-evict-ms", "200");
    let node = plan.start();
    set(&node, &ear, "a", 100, "throw");
    ear.wait_for(2);
    // The third run is four seconds away: the cell leaves memory meanwhile, then the node ends.
    wait_until_released(site.bucket());
    node.kill();
    let _node = plan.start();
    let retries: Vec<u32> = ear.wait_for(3).iter().map(|run| run.retry).collect();
    assert_eq!(retries[..3], [0, 1, 2]);
    let runs = ear.runs();
    assert!(runs[1].heard_ms >= runs[0].heard_ms + 2_000, "{runs:?}");
    assert!(runs[2].heard_ms >= runs[1].heard_ms + 4_000, "{runs:?}");
}

#[test]
fn a_run_that_resets_its_cell_counts_as_a_failure() {
    let (site, ear) = (Site::of("alarms"), Ear::open());
    let node = plan(&site).start();
    set(&node, &ear, "a", 100, "spin");
    let retries: Vec<u32> = ear.wait_for(2).iter().map(|run| run.retry).collect();
    assert_eq!(retries[..2], [0, 1]);
    node.ask("POST", "/a/delete").good();
    assert_eq!(asked(&node, "/a/alarm"), "null");
}

#[test]
fn an_alarm_that_the_constructor_sets_runs() {
    let (site, ear) = (Site::of("alarms"), Ear::open());
    let node = plan(&site).start();
    for (count, cell) in ["born", "born-later"].into_iter().enumerate() {
        node.ask("POST", &format!("/{cell}/tell?tell={}", ear.url)).good();
        assert_eq!(ear.wait_for(count + 1)[count].cell, cell);
    }
}

#[test]
fn a_constructor_that_fails_takes_the_run_of_an_alarm_that_is_due() {
    let (site, ear) = (Site::of("alarms"), Ear::open());
    let node = plan(&site).start();
    let time = set(&node, &ear, "a", 1_000, "broken");
    assert_eq!(node.ask("POST", "/a/abort").status, 500);
    // It starts for its alarm, and waits after each failure. The scan may make it start as well.
    let run = ear.wait_for(1)[0].clone();
    assert!((1..=2).contains(&run.retry) && run.scheduled_ms == time, "{run:?}");
    assert!(run.heard_ms >= time + 2_000, "{run:?}");
}

#[test]
fn nobody_is_told_of_an_alarm_before_the_index_has_it() {
    let (site, ear) = (Site::of("alarms"), Ear::open());
    let hold = Hold::build(site.path());
    let mut plan = hold.load_into(plan(&site), "/wake@/");
    let node = plan.start();
    hold.begin();
    let mut setter = node.client();
    let path = format!("/a/set?in=600000&tell={}", ear.url);
    setter.send("POST", &path).expect("a request");
    hold.wait_until_one_is_held();
    // Nor does a reader see it, nor the answer of another request to the cell leave.
    let mut reader = node.client();
    reader.send("GET", "/a/alarm").expect("a request");
    assert!(!reader.hears_within(SILENCE).expect("an open connection"), "the read was not held");
    assert!(!setter.hears_within(SILENCE).expect("an open connection"), "the answer was not held");
    // The same of a method of the cell.
    let mut caller = node.client();
    caller.send("POST", &format!("/c/set?rpc&in=600000&tell={}", ear.url)).expect("a request");
    let mut other = node.client();
    other.send("GET", "/a/alarm?rpc").expect("a request");
    assert!(!caller.hears_within(SILENCE).expect("an open connection"), "the answer was not held");
    assert!(!other.hears_within(SILENCE).expect("an open connection"), "the read was not held");
    // An alarm's own request to the world waits as well.
    let mut again = node.client();
    let path = format!("/b/set?in=1&tell={}&mode=again", ear.url);
    again.send("POST", &path).expect("a request");
    assert!(!again.hears_within(SILENCE).expect("an open connection"), "the answer was not held");
    assert!(ear.runs().is_empty(), "an alarm was heard: {:?}", ear.runs());
    hold.end();
    let set = setter.receive().expect("an answer").text();
    assert_eq!(reader.receive().expect("an answer").text(), set);
    assert_eq!(other.receive().expect("an answer").text(), set);
    let set = caller.receive().expect("an answer").text();
    assert_eq!(asked(&node, "/c/alarm?rpc"), set);
    again.receive().expect("an answer").good();
    ear.wait_for(1);
}

#[test]
fn what_was_not_in_the_index_when_the_node_died_was_told_to_nobody() {
    let (site, ear) = (Site::of("alarms"), Ear::open());
    let hold = Hold::build(site.path());
    let mut plan = hold.load_into(plan(&site), "/wake@/");
    let node = plan.start();
    set(&node, &ear, "a", 600_000, "once");
    node.ask("POST", "/a/delete").good();
    hold.begin();
    let mut setter = node.client();
    let path = format!("/a/set?in=100&tell={}", ear.url);
    setter.send("POST", &path).expect("a request");
    hold.wait_until_one_is_held();
    node.kill();
    assert!(setter.receive().is_err(), "an answer came out of a dead node");
    hold.end();
}
