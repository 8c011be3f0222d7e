//! The proxy that makes a good store misbehave. What it can do stands at the top of `badstore.py`.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::ask;
use crate::installed::{Program, skip};
use crate::process::Process;
use crate::store::{self, ACCESS_KEY, Kind, SECRET_KEY, Store, azure};

const START_LIMIT: Duration = Duration::from_secs(60);

/// A store behind the proxy. With no fault set it changes nothing.
#[derive(Debug)]
pub struct Faulty {
    kind: Kind,
    url: String,
    port: u16,
    control: u16,
    process: Process,
}

/// How a store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Connections break at once.
    Cut,
    /// Nobody listens.
    Refuse,
    /// No answer until its end, and then a broken connection.
    Hang,
    /// Each request is answered with 503.
    Unavailable,
}

/// One request as the proxy saw it.
#[derive(Clone, Debug, Deserialize)]
pub struct Request {
    /// When its head came, in seconds of the wall clock.
    pub t: f64,
    /// Its method.
    pub method: String,
    /// Its path, decoded. A late write has none.
    #[serde(default)]
    pub path: String,
    /// Its query, as sent.
    #[serde(default)]
    pub query: String,
    /// What the proxy answered, or would have; 0: nothing.
    #[serde(default)]
    pub status: u16,
    /// The faults that it met.
    #[serde(default)]
    pub faults: Vec<String>,
    /// It was applied after the client's connection was cut.
    #[serde(default)]
    pub late: bool,
}

impl Faulty {
    /// A proxy before `store`, with a log. `None`: it is not installed, and the user was told.
    ///
    /// # Panics
    /// It does not start.
    pub fn before(store: &Store) -> Option<Self> {
        if let Err(why) = Program::Badstore.command() {
            skip(Program::Badstore, &why);
            return None;
        }
        Some(Self::start(store).unwrap_or_else(|why| panic!("the proxy: {why:#}")))
    }

    fn start(store: &Store) -> Result<Self> {
        let mut command = Program::Badstore.command()?;
        let dir = Process::directory()?;
        let (access, secret) = match store.kind() {
            Kind::Seaweed | Kind::Ministack | Kind::Gcsxml => (ACCESS_KEY, SECRET_KEY),
            Kind::Azurite => (azure::ACCOUNT, azure::KEY),
        };
        command.args(["--listen", "0", "--control", "0", "--log", "requests"]);
        command.args(["--access-key", access, "--secret-key", secret]);
        command.args(["--store", &format!("http://127.0.0.1:{}", store.port())]);
        let mut process = Process::start("badstore", command, dir)?;
        let (port, control) = process.wait_until(START_LIMIT, |process| {
            // badstore: 127.0.0.1:9100 -> 127.0.0.1:8333 control 9101
            let said = process.said();
            let (line, _) = said.split_once('\n')?;
            let (_, rest) = line.split_once("badstore: 127.0.0.1:")?;
            let (port, rest) = rest.split_once(' ')?;
            let (_, control) = rest.split_once(" control ")?;
            Some((port.parse().ok()?, control.parse().ok()?))
        })?;
        Ok(Self { kind: store.kind(), url: store.url(""), port, control, process })
    }

    /// What the client takes as `--endpoint`.
    pub fn endpoint(&self) -> String {
        store::endpoint(self.kind, self.port)
    }

    /// The URL of the bucket below `prefix`.
    pub fn url(&self, prefix: &str) -> String {
        format!("{}{prefix}", self.url)
    }

    /// Changes settings: the options' names with underscores; `null` ends a fault.
    ///
    /// # Panics
    /// It knows no such setting.
    #[expect(clippy::needless_pass_by_value, reason = "callers write json!({...})")]
    pub fn set(&self, settings: Value) {
        self.tell("/set", &settings).unwrap_or_else(|why| panic!("{settings}: {why:#}"));
    }

    /// Ends all faults but outages.
    pub fn heal(&self) {
        self.set(json!({
            "ignore_conditions": null, "racy_conditions": null, "wrong_error": null,
            "latency_ms": null, "throttle": null, "throttle_status": 503, "error": null,
            "lose_response": 0, "late_write": null, "cut": 0, "stale_read": 0, "stale_list": 0,
            "bad_range": null, "bad_range_p": 1, "latency_p": 1, "methods": null, "match": null, "count": null,
        }));
    }

    /// From now on the store is away for `length`.
    ///
    /// # Panics
    /// The proxy is gone.
    pub fn outage(&self, length: Duration, mode: Outage) {
        let mode = match mode {
            Outage::Cut => "cut",
            Outage::Refuse => "refuse",
            Outage::Hang => "hang",
            Outage::Unavailable => "503",
        };
        let settings = json!({"length": length.as_secs_f64(), "mode": mode});
        self.tell("/outage", &settings).expect("an outage");
    }

    /// All requests that have ended so far, in that order.
    ///
    /// # Panics
    /// The log cannot be read.
    pub fn requests(&self) -> Vec<Request> {
        // It is written every 50 ms.
        std::thread::sleep(Duration::from_millis(150));
        let text = fs::read_to_string(self.process.path().join("requests")).expect("a log");
        // A line may be half written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let read = |line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{line}: {why}"));
        whole.lines().map(read).collect()
    }

    /// How many of the requests so far met this fault.
    pub fn met(&self, fault: &str) -> usize {
        self.requests().iter().filter(|request| request.faults.iter().any(|f| f == fault)).count()
    }

    fn tell(&self, target: &str, settings: &Value) -> Result<()> {
        let answer = ask(self.control, "POST", target, &[], &settings.to_string())?;
        ensure!(answer.status == 200, "{}", answer.text);
        Ok(())
    }
}

/// The most requests that began within one second.
///
/// # Panics
/// A time is not a number.
pub fn busiest_second(requests: &[Request]) -> usize {
    let mut times: Vec<f64> = requests.iter().filter(|r| !r.late).map(|r| r.t).collect();
    times.sort_by(f64::total_cmp);
    let mut first = 0;
    let mut most = 0;
    for (last, time) in times.iter().enumerate() {
        while time - times[first] > 1.0 {
            first += 1;
        }
        most = most.max(last - first + 1);
    }
    most
}
