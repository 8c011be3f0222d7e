//! The wall clock of one node steps by an hour while it serves. Nobody notices: no clock of another
//! machine counts for anything.
//!
//! The clock of the machine is not touched. A library that is loaded into the process before its own
//! answers what the process asks the C library for, which is where Rust, V8 and SQLite ask.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::fleet::{cells, meet, write};
use super::load::Load;
use super::network::{Network, TTL};
use super::partition::{check, fill};
use super::support::node::{Plan, start_all};
use super::support::rng::Rng;
use super::support::skew::library;

const HOUR_S: i64 = 3_600;

/// The wall clock of a node.
struct WallClock {
    step: PathBuf,
    library: PathBuf,
}

impl WallClock {
    /// `None`: there is no compiler here, and the user has been told.
    fn build(dir: &Path) -> Option<Self> {
        let clock = Self { step: dir.join("step"), library: library(dir)? };
        clock.step(0);
        Some(clock)
    }

    fn load_into(&self, plan: Plan) -> Plan {
        plan.variable("LD_PRELOAD", &self.library).variable("SKEW_FILE", &self.step)
    }

    /// From now on it is so many seconds ahead of the machine's.
    fn step(&self, seconds: i64) {
        let fresh = self.step.with_extension("new");
        fs::write(&fresh, seconds.to_string()).expect("a file");
        // At once, so that no clock reads half a number.
        fs::rename(&fresh, &self.step).expect("it was written");
    }
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_secs()).expect("before the end of time")
}

#[test]
fn a_node_whose_wall_clock_steps_by_an_hour_keeps_its_cells_and_takes_no_others() {
    let _machine = super::shared();
    let rng = Rng::from_environment("the wall clock");
    let Some(network) = Network::new() else { return };
    let Some(clock) = WallClock::build(network.site().path()) else { return };
    let mut plan = clock.load_into(network.plan("stepping"));
    let [stepping, other] = start_all([&mut plan, &mut network.plan("other")]);
    let (own, others) = (cells("w", 3), cells("x", 3));
    fill(&stepping, &own);
    fill(&other, &others);
    own.iter().for_each(|cell| meet(&other, cell));
    others.iter().for_each(|cell| meet(&stepping, cell));
    let clock_of = |cell: &str| {
        let text = stepping.ask("GET", &format!("/{cell}/now")).good();
        let ms: i64 = String::from_utf8_lossy(&text).trim().parse().expect("milliseconds");
        ms / 1_000
    };
    for step in [HOUR_S, -HOUR_S] {
        let all: Vec<_> = own.iter().chain(&others).cloned().collect();
        let load = Load::start(stepping.door(), &all, 4, 2, &rng.fork(step.unsigned_abs()));
        clock.step(step);
        // The cells of this node see it, so that the step is a step.
        let ahead = clock_of(&own[0].name) - seconds(SystemTime::now());
        assert!((ahead - step).abs() <= 30, "{ahead} s ahead instead of {step}");
        // Every lease is renewed, and looked at by the others, more than once.
        std::thread::sleep(TTL + TTL / 5);
        let refusals = load.end();
        assert!(refusals.is_empty(), "{refusals:#?}");
        check(&stepping, &own);
        check(&other, &own);
        check(&stepping, &others);
        check(&other, &others);
    }
    for node in [&stepping, &other] {
        assert!(!node.log().contains("SELF-FENCE"), "{}", node.log());
    }
    // A node that starts with such a clock: its certificates and signatures are good.
    clock.step(HOUR_S);
    drop(stepping);
    let stepping = plan.start();
    [&stepping, &other].iter().for_each(|node| own.iter().for_each(|cell| meet(node, cell)));
    check(&other, &own);
    check(&stepping, &own);
    write(&mut stepping.client(), &others[0]);
}
