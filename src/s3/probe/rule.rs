//! The rules that a store must keep: what each is, its stable name, and what hangs on it.

use std::fmt;

/// One promise of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A conditional write creates an object that is not there.
    Create,
    /// It does not create it twice.
    CreateTwice,
    /// A read right after a write sees it, also when it replaced another one.
    ReadAfterWrite,
    /// A conditional write replaces the version that it names.
    Update,
    /// It does not replace another version.
    StaleUpdate,
    /// It does not bring back an object that is gone.
    AbsentUpdate,
    /// A ranged read gives exactly the wanted bytes.
    RangedRead,
    /// A listing right after a write has it, and keys that differ in one letter's case are two.
    ListAfterWrite,
    /// Of many who create one object at once, one wins.
    CreateRace,
    /// Of many who replace one version at once, one wins.
    UpdateRace,
    /// An object can be removed, and a read right after sees it.
    Delete,
}

impl Rule {
    /// All, in the order in which a probe tries them: the races last, as they cost most.
    pub const ALL: [Rule; 11] = [
        Rule::Create,
        Rule::CreateTwice,
        Rule::ReadAfterWrite,
        Rule::Update,
        Rule::StaleUpdate,
        Rule::AbsentUpdate,
        Rule::RangedRead,
        Rule::ListAfterWrite,
        Rule::Delete,
        Rule::CreateRace,
        Rule::UpdateRace,
    ];

    /// The stable name of its breach.
    pub fn code(self) -> &'static str {
        match self {
            Rule::Create => "store.create.failed",
            Rule::CreateTwice => "store.create.twice-accepted",
            Rule::ReadAfterWrite => "store.read.stale",
            Rule::Update => "store.cas.current-refused",
            Rule::StaleUpdate => "store.cas.stale-accepted",
            Rule::AbsentUpdate => "store.cas.absent-accepted",
            Rule::RangedRead => "store.range.wrong",
            Rule::ListAfterWrite => "store.list.wrong",
            Rule::Delete => "store.delete.kept",
            Rule::CreateRace => "store.create.race-lost",
            Rule::UpdateRace => "store.cas.race-lost",
        }
    }

    /// What its breach means for the data.
    pub fn stake(self) -> &'static str {
        match self {
            Rule::Create => "no cell could ever be created",
            Rule::CreateTwice | Rule::CreateRace => {
                "two nodes would both create and own a cell, and acknowledged writes of one of \
                 them would be lost"
            }
            Rule::ReadAfterWrite => {
                "a node that was replaced would still see itself as the owner and acknowledge \
                 writes that are lost"
            }
            Rule::Update => "no cell could ever move or be released",
            Rule::StaleUpdate | Rule::UpdateRace => {
                "a node that was replaced could take a cell back, and acknowledged writes of the \
                 new owner would be lost"
            }
            Rule::AbsentUpdate => "a node could bring back a cell that was purged",
            Rule::RangedRead => "databases would be restored from wrong bytes, or not at all",
            Rule::ListAfterWrite => "a restore would miss acknowledged writes",
            Rule::Delete => "the bucket would grow for ever",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::Create => "a conditional write must create an object that is not there",
            Rule::CreateTwice => "a second create of the same object must be refused",
            Rule::ReadAfterWrite => "a read after a write must see it",
            Rule::Update => "a conditional write must replace the version that it names",
            Rule::StaleUpdate => "a conditional write that names an old version must be refused",
            Rule::AbsentUpdate => {
                "a conditional write that names a version must be refused without the object"
            }
            Rule::RangedRead => "a ranged read must give exactly the wanted bytes",
            Rule::ListAfterWrite => "a listing after a write must have it, under its exact key",
            Rule::CreateRace => "of many creates of one object at once, one must win",
            Rule::UpdateRace => "of many conditional writes on one version at once, one must win",
            Rule::Delete => "a deleted object must be gone",
        })
    }
}
