//! Whole fleets: their leases, claims, routes, proofs, gates, alarms and drains, over a network and
//! a bucket with faults. One writer, nothing that was seen is ever lost, every cell is served again
//! and every armed alarm runs. Every broken variant of the protocol must be noticed.
//!
//! `SEEDS=n` plays more seeds, `SEED=n` one of them and prints what happened.

mod fleet;

use std::sync::atomic::{AtomicU64, Ordering};

use fleet::{Broken, Ending, Met, run};

/// Seeds that a broken variant has until it must have been noticed.
const PATIENCE: u64 = 2_000;

/// What many seeds together must have met.
const MET: [&str; 24] = [
    "released",
    "forwarded",
    "late segments",
    "alarms run",
    "alarms begun",
    "expired",
    "replaced",
    "missing",
    "occupied",
    "drained",
    "cells cut off",
    "moved",
    "purged",
    "crashed",
    "paused",
    "frozen",
    "clocks stood",
    "clocks set",
    "partitions",
    "twins",
    "disks wiped",
    "disks swapped",
    "nodes renamed",
    "happenings",
];

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number of seeds"))
}

/// Plays `seeds` on all cores, in no particular order; `each` is told of every ending.
fn play(seeds: std::ops::Range<u64>, each: impl Fn(u64, Ending) + Sync) {
    let next = AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let seed = next.fetch_add(1, Ordering::Relaxed)
                    && seed < seeds.end
                {
                    each(seed, run(seed, Broken::Not, variable("SEED").is_some()));
                }
            });
        }
    });
}

#[test]
fn one_writer_nothing_lost_all_served_and_all_alarms_run() {
    let seeds = match variable("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("SEEDS").unwrap_or(1_000),
    };
    let count = seeds.end - seeds.start;
    let met = std::sync::Mutex::new(Met::default());
    play(seeds, |seed, ending| {
        print!("{}", ending.trace);
        if let Some(violation) = ending.violation {
            println!("SEED={seed} cargo test --release -p celld-core --test sim_fleet");
            panic!("seed {seed}: {violation}");
        }
        met.lock().expect("nobody panics with it").add(&ending.met);
    });
    let met = met.into_inner().expect("nobody panics with it");
    println!("{count} seeds:{met}");
    let missed: Vec<_> = MET.into_iter().filter(|what| met.of(what) == 0).collect();
    assert!(missed.is_empty() || count < 500, "never happens: {missed:?}");
    assert!(met.of("released") > 20 * count, "little was checked:{met}");
    assert!(met.of("hints left") < 5 * count, "the index grows:{met}");
}

#[test]
fn a_seed_plays_the_same_each_time() {
    for seed in [3, 4] {
        let (first, second) = (run(seed, Broken::Not, true), run(seed, Broken::Not, true));
        assert!(first.trace.len() > 100_000, "{} bytes", first.trace.len());
        assert!(first.trace == second.trace, "seed {seed}");
    }
}

/// The first seed on which the checker notices, and what it says.
fn noticed(broken: Broken) -> (u64, String) {
    let first = (0..PATIENCE).find_map(|seed| Some((seed, run(seed, broken, false).violation?)));
    first.unwrap_or_else(|| panic!("{broken:?} passes {PATIENCE} seeds"))
}

macro_rules! broken {
    ($($name:ident: $variant:ident says $($says:literal)|+;)+) => {$(
        #[test]
        fn $name() {
            let (seed, violation) = noticed(Broken::$variant);
            println!("{:?}: seed {seed}: {violation}", Broken::$variant);
            assert!([$($says),+].iter().any(|says| violation.contains(says)), "{violation}");
        }
    )+};
}

broken! {
    a_right_that_counts_from_the_answer_is_noticed: LeaseFromAnswer says "after the right ended";
    a_renewal_that_is_hoped_for_is_noticed: LeaseUnknownApplied says "after the right ended";
    a_forgotten_expiry_is_noticed: ExpiryForgotten says "after the right ended";
    a_live_twin_that_is_replaced_is_noticed: TwinReplaced says "was seen before it began";
    a_lease_judged_by_wall_clocks_is_noticed: JudgedByWall says "was seen before it began";
    a_lease_judged_without_a_read_is_noticed: JudgedUnread says "was seen before it began";
    a_lease_given_up_before_the_cells_is_noticed: RetiredEarly says "after the right ended";
    a_claim_that_is_hoped_for_is_noticed: ClaimUnknownApplied says "two writers" | "the files end at";
    a_read_back_without_a_nonce_is_noticed: NonceIgnored says "two writers" | "two owners";
    a_claim_without_a_guard_is_noticed: GuardForgotten says "after epoch" | "two owners";
    a_base_that_is_never_moved_is_noticed: RebaseSkipped says "late segment" | "rolled back";
    a_base_that_is_ignored_is_noticed: BaseIgnored says "late segment" | "the files end at" | "was seen";
    an_epoch_that_is_used_again_is_noticed: EpochReused says "two activations";
    a_read_that_began_too_early_is_noticed: ReadTooEarly says "was seen" | "successor lacks";
    a_proof_without_a_read_is_noticed: ReadSkipped says "was seen" | "successor lacks";
    a_gate_that_opens_at_the_commit_is_noticed: GateAtCommit says "was seen" | "successor lacks";
    a_release_before_the_proof_is_noticed: ReleaseUnproven says "commits are missing";
    a_cell_that_is_served_after_its_release_is_noticed: ReleasedServed says "was seen";
    a_cell_that_is_served_while_it_moves_is_noticed: MovedServed says "was seen" | "never ran";
    a_purge_that_deletes_what_came_after_it_is_noticed: PurgedLater says "was seen" | "missing" | "the files end at";
    a_route_without_a_deadline_is_noticed: RouteWithoutDeadline says "never served" | "never ran";
    a_request_that_runs_twice_is_noticed: Replayed says "committed twice" | "is back";
    an_alarm_that_is_shown_before_its_entry_is_noticed: EntryUnawaited says "never ran";
    an_entry_that_is_given_away_too_early_is_noticed: EntryGivenAway says "never ran";
    entries_that_share_a_name_are_noticed: EntryNameReused says "never ran";
    an_entry_of_an_earlier_owner_that_is_relied_upon_is_noticed: EntryInherited says "never ran";
    an_alarm_that_is_forgotten_when_it_runs_is_noticed: AlarmForgottenAtRun says "never ran";
    an_index_that_nobody_scans_is_noticed: ScanForgotten says "never ran";
}
