//! Every order in which things can happen to a small fleet: two nodes, one cell. No promise is
//! broken in any of them, and every broken variant of the protocol is noticed, on a shortest way.
//!
//! `MORE="faults writes"` raises the bounds that it names by one each.

mod small;

use small::{Bounds, Broken, World, search};

/// Nothing but time, and writes to a cell that is served.
const CALM: Bounds = Bounds {
    steps: 2,
    wakes: 1,
    writes: 1,
    faults: 0,
    crashes: 0,
    starts: 0,
    leaves: 0,
    stands: 0,
};

/// Searches all that follows from `start`; each of `met` must be met on the way.
fn keeps_its_promises(start: fn(Bounds, Broken) -> World, bounds: Bounds, met: &[&str]) {
    let more = std::env::var("MORE").unwrap_or_default();
    let bounds = more.split_whitespace().fold(bounds, Bounds::more);
    let found = search(start(bounds, Broken::Not));
    println!("{} states, {} actions deep: {:?}", found.states, found.depth, found.deeds);
    if let Some((violation, way)) = found.violation {
        panic!("{violation}\n{}", way.join("\n"));
    }
    let missed: Vec<_> = met.iter().filter(|what| !found.deeds.contains_key(**what)).collect();
    assert!(missed.is_empty(), "never happens: {missed:?}");
}

#[test]
fn a_cell_outlives_a_lost_answer_and_a_late_write() {
    let bounds = Bounds { steps: 3, wakes: 2, faults: 1, ..CALM };
    keeps_its_promises(World::serving, bounds, &["acks", "expired", "forwards", "failures"]);
}

#[test]
fn a_cell_outlives_a_crash_at_any_point() {
    let bounds = Bounds { steps: 3, wakes: 2, crashes: 1, starts: 1, ..CALM };
    keeps_its_promises(World::serving, bounds, &["acks", "expired", "writes abandoned"]);
}

#[test]
fn a_cell_is_given_back_and_taken_while_others_write() {
    let bounds = Bounds { steps: 3, wakes: 2, leaves: 1, ..CALM };
    keeps_its_promises(World::serving, bounds, &["acks", "expired", "forwards"]);
}

#[test]
fn nothing_is_lost_when_clocks_stand_still() {
    let bounds = Bounds { wakes: 2, writes: 2, stands: 2, ..CALM };
    keeps_its_promises(World::serving, bounds, &["acks", "expired", "forwards"]);
}

#[test]
fn one_of_two_creates_a_new_cell() {
    let bounds = Bounds { wakes: 2, faults: 1, ..CALM };
    keeps_its_promises(World::new, bounds, &["acks", "expired", "forwards"]);
}

macro_rules! broken {
    ($($name:ident: $variant:ident within { $($bounds:tt)* } says $says:literal;)+) => {$(
        #[test]
        fn $name() {
            let bounds = Bounds { $($bounds)* ..CALM };
            let found = search(World::serving(bounds, Broken::$variant));
            let (violation, way) = found.violation.expect("it is noticed");
            println!("{:?}, {} states:\n{}", Broken::$variant, found.states, way.join("\n"));
            assert!(violation.contains($says), "{violation}");
        }
    )+};
}

broken! {
    a_right_that_counts_from_the_answer_is_noticed: LeaseFromAnswer
        within { crashes: 1, starts: 1, faults: 1, } says "after its right ended";
    a_renewal_that_is_hoped_for_is_noticed: LeaseUnknownApplied
        within { faults: 1, } says "after its right ended";
    a_forgotten_expiry_is_noticed: ExpiryForgotten
        within {} says "after its right ended";
    a_lease_judged_without_a_read_is_noticed: JudgedUnread
        within { faults: 1, } says "two nodes act";
    a_claim_that_is_hoped_for_is_noticed: ClaimUnknownApplied
        within { wakes: 2, faults: 1, leaves: 1, } says "is served after epoch";
    a_read_back_without_a_nonce_is_noticed: NonceIgnored
        within { wakes: 2, leaves: 1, } says "epoch 2";
    a_claim_without_a_guard_is_noticed: GuardForgotten
        within { wakes: 2, leaves: 1, } says "two owners";
    a_base_that_is_never_moved_is_noticed: RebaseSkipped
        within { wakes: 2, writes: 4, leaves: 1, } says "was acknowledged";
    a_base_that_is_ignored_is_noticed: BaseIgnored
        within { wakes: 2, leaves: 1, } says "the files end at";
    a_route_without_a_deadline_is_noticed: RouteWithoutDeadline
        within { crashes: 1, } says "never served again";
    an_epoch_that_is_used_again_is_noticed: EpochReused
        within { leaves: 1, } says "is served after epoch";
    a_read_that_began_too_early_is_noticed: ReadTooEarly
        within { stands: 1, } says "was acknowledged";
    a_proof_without_a_read_is_noticed: ReadSkipped
        within { stands: 1, } says "was acknowledged";
    a_gate_that_opens_at_the_commit_is_noticed: GateAtCommit
        within {} says "was acknowledged";
    a_release_before_the_proof_is_noticed: ReleaseUnproven
        within { leaves: 1, } says "commits are missing";
    a_cell_that_is_served_after_its_release_is_noticed: ReleasedServed
        within { leaves: 1, } says "two nodes act";
}
