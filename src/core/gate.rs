//! The output gate of one cell: what anybody could observe waits here until the writes that it
//! depends on are proven.
//!
//! Invariant: an ack leaves in the order in which it was held, and not before its position is
//! proven. Once broken, nothing leaves any more.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::txid::Txid;

/// Holds acks of any kind. The caller bounds how many, by [`Gate::len`].
#[derive(Clone, Debug, Hash)]
pub struct Gate<A> {
    held: VecDeque<(Txid, A)>,
    proven: Txid,
    /// Not even what was restored may be shown yet.
    is_closed: bool,
    is_broken: bool,
}

/// What becomes of an ack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<A> {
    /// Let it go.
    Release(A),
    /// It must not be seen; its waiter gets an error.
    Drop(A),
}

impl<A> Gate<A> {
    /// A gate of a cell whose history is proven up to `proven`.
    pub fn new(proven: Txid) -> Self {
        Self { held: VecDeque::new(), proven, is_closed: false, is_broken: false }
    }
    /// The same, but nothing leaves before [`Gate::durable`] is told for the first time: the cell
    /// may have an alarm, whose entry in the wake index is still to be written.
    pub fn closed(proven: Txid) -> Self {
        Self { is_closed: true, ..Self::new(proven) }
    }
    /// Holds `ack`, which saw the writes up to `at`. It goes at once when those are proven and
    /// nothing held earlier waits.
    pub fn hold(&mut self, at: Txid, ack: A, effects: &mut Vec<Effect<A>>) {
        if self.is_broken {
            effects.push(Effect::Drop(ack));
        } else if self.held.is_empty() && at <= self.proven && !self.is_closed {
            effects.push(Effect::Release(ack));
        } else {
            self.held.push_back((at, ack));
        }
    }
    /// The writes up to `upto` are proven.
    pub fn durable(&mut self, upto: Txid, effects: &mut Vec<Effect<A>>) {
        if self.is_broken {
            return;
        }
        self.proven = self.proven.max(upto);
        self.is_closed = false;
        while let Some((_, ack)) = self.held.pop_front_if(|(at, _)| *at <= self.proven) {
            effects.push(Effect::Release(ack));
        }
    }
    /// The proof cannot be had any more: drops what is held and what still comes.
    pub fn break_now(&mut self, effects: &mut Vec<Effect<A>>) {
        self.is_broken = true;
        effects.extend(self.held.drain(..).map(|(_, ack)| Effect::Drop(ack)));
    }
    /// How many acks wait.
    pub fn len(&self) -> usize {
        self.held.len()
    }
    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
    /// Up to where the history is proven.
    pub fn proven(&self) -> Txid {
        self.proven
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::Effect::{Drop, Release};
    use super::*;

    fn effects(act: impl FnOnce(&mut Vec<Effect<u32>>)) -> Vec<Effect<u32>> {
        let mut effects = vec![];
        act(&mut effects);
        effects
    }
    fn t(n: u64) -> Txid {
        Txid::new(n)
    }

    #[test]
    fn an_ack_waits_for_its_position_and_leaves_in_the_order_of_holding() {
        let mut gate = Gate::new(t(4));
        assert_eq!(effects(|e| gate.hold(t(5), 1, e)), []);
        assert_eq!(effects(|e| gate.hold(t(7), 2, e)), []);
        assert_eq!(effects(|e| gate.hold(t(6), 3, e)), []);
        assert_eq!(effects(|e| gate.durable(t(6), e)), [Release(1)]);
        assert_eq!(gate.len(), 2);
        assert_eq!(effects(|e| gate.durable(t(7), e)), [Release(2), Release(3)]);
        assert!(gate.is_empty());
    }

    #[test]
    fn what_saw_only_proven_writes_passes_an_empty_gate_at_once() {
        let mut gate = Gate::new(t(4));
        assert_eq!(effects(|e| gate.hold(t(4), 1, e)), [Release(1)]);
    }

    #[test]
    fn what_saw_only_proven_writes_still_does_not_overtake() {
        let mut gate = Gate::new(t(4));
        assert_eq!(effects(|e| gate.hold(t(5), 1, e)), []);
        assert_eq!(effects(|e| gate.hold(t(4), 2, e)), []);
        assert_eq!(effects(|e| gate.durable(t(5), e)), [Release(1), Release(2)]);
    }

    #[test]
    fn a_closed_gate_holds_even_what_was_restored() {
        let mut gate = Gate::closed(t(4));
        assert_eq!(effects(|e| gate.hold(t(4), 1, e)), []);
        assert_eq!(effects(|e| gate.durable(t(4), e)), [Release(1)]);
        assert_eq!(effects(|e| gate.hold(t(4), 2, e)), [Release(2)]);
    }

    #[test]
    fn a_broken_gate_drops_all_and_never_opens_again() {
        let mut gate = Gate::new(t(0));
        assert_eq!(effects(|e| gate.hold(t(1), 1, e)), []);
        assert_eq!(effects(|e| gate.break_now(e)), [Drop(1)]);
        assert_eq!(effects(|e| gate.durable(t(9), e)), []);
        assert_eq!(effects(|e| gate.hold(t(1), 2, e)), [Drop(2)]);
    }

    #[test]
    fn an_older_proof_does_not_take_a_newer_one_back() {
        let mut gate = Gate::new(t(0));
        assert_eq!(effects(|e| gate.durable(t(5), e)), []);
        assert_eq!(effects(|e| gate.durable(t(3), e)), []);
        assert_eq!(gate.proven(), t(5));
        assert_eq!(effects(|e| gate.hold(t(5), 1, e)), [Release(1)]);
    }
}
