//! Several nodes, their leases, claims, proofs and gates, over one bucket with faults: one writer,
//! and nothing that was seen is ever lost. Every broken variant of the protocol must be noticed.
//!
//! `SEEDS=n` plays more seeds, `SEED=n` one of them and prints what happened.

mod sim;

use sim::{Broken, Met, run};

/// Seeds that a broken variant has until it must have been noticed.
const PATIENCE: u64 = 2_000;

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number of seeds"))
}

#[test]
fn nothing_that_was_seen_is_ever_lost_and_every_cell_is_served_again() {
    let seeds = match variable("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("SEEDS").unwrap_or(100),
    };
    let (is_traced, count) = (variable("SEED").is_some(), seeds.end - seeds.start);
    let mut met = Met::default();
    for seed in seeds {
        let outcome = run(seed, Broken::Not, is_traced);
        print!("{}", outcome.trace);
        if let Some(violation) = outcome.violation {
            panic!("{violation}\nSEED={seed} cargo test -p celld-core --test sim_cells");
        }
        met.released += outcome.met.released;
        met.late += outcome.met.late;
        met.expired += outcome.met.expired;
        met.replaced += outcome.met.replaced;
        met.missing += outcome.met.missing;
    }
    println!("{count} seeds: {met:?}");
    assert!(met.released > 50 * count, "nothing was checked: {met:?}");
    let losses = [met.expired, met.replaced, met.missing];
    let all = met.late > 0 && losses.iter().all(|n| *n > 0);
    assert!(all || count < 50, "something never happens: {met:?}");
}

#[test]
fn a_seed_plays_the_same_each_time() {
    for seed in [3, 4] {
        let (first, second) = (run(seed, Broken::Not, true), run(seed, Broken::Not, true));
        assert!(first.trace.len() > 10_000, "{} bytes", first.trace.len());
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
            println!("seed {seed}: {violation}");
            assert!([$($says),+].iter().any(|says| violation.contains(says)), "{violation}");
        }
    )+};
}

broken! {
    a_right_that_counts_from_the_answer_is_noticed: LeaseFromAnswer says "after the right ended";
    a_renewal_that_is_hoped_for_is_noticed: LeaseUnknownApplied says "after the right ended";
    a_forgotten_expiry_is_noticed: ExpiryForgotten says "after the right ended";
    a_claim_that_is_hoped_for_is_noticed: ClaimUnknownApplied says "two writers" | "the files end at";
    a_read_back_without_a_nonce_is_noticed: NonceIgnored says "two writers" | "two owners";
    a_claim_without_a_guard_is_noticed: GuardForgotten says "after epoch" | "two owners";
    a_base_that_is_never_moved_is_noticed: RebaseSkipped says "late segment" | "rolled back";
    a_base_that_is_ignored_is_noticed: BaseIgnored says "late segment" | "the files end at";
    an_epoch_that_is_used_again_is_noticed: EpochReused says "two activations";
    a_read_that_began_too_early_is_noticed: ReadTooEarly says "was seen" | "successor lacks";
    a_proof_without_a_read_is_noticed: ReadSkipped says "was seen" | "successor lacks";
    a_gate_that_opens_at_the_commit_is_noticed: GateAtCommit says "was seen" | "successor lacks";
    a_release_before_the_proof_is_noticed: ReleaseUnproven says "commits are missing";
}
