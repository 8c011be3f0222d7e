//! The protocol, and the ways to get it wrong that the checker must notice.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    Not,
    /// The right counts from the answer.
    LeaseFromAnswer,
    /// A renewal without an answer counts as applied.
    LeaseUnknownApplied,
    /// A session never notices that its right is over.
    ExpiryForgotten,
    /// The record of another session of our node is written over at once.
    TwinReplaced,
    /// Whether an owner lives is told by wall clocks.
    JudgedByWall,
    /// An owner is dead when its time is over here, without another look.
    JudgedUnread,
    /// The lease is given up when the drain begins.
    RetiredEarly,
    /// A claim without an answer counts as applied.
    ClaimUnknownApplied,
    /// A read-back compares epochs, not nonces.
    NonceIgnored,
    /// A claim writes over whatever stands.
    GuardForgotten,
    /// The claim's base is never moved to what was restored.
    RebaseSkipped,
    /// A restore counts every file.
    BaseIgnored,
    /// A local wake keeps the epoch of the activation before.
    EpochReused,
    /// The proof takes a read of the record that began with the upload.
    ReadTooEarly,
    /// The proof does not read the record.
    ReadSkipped,
    /// The gate lets go at the commit.
    GateAtCommit,
    /// A release names a commit that is not proven.
    ReleaseUnproven,
    /// A cell that was released is served on.
    ReleasedServed,
    /// A cell that moves is served until the other node has it.
    MovedServed,
    /// A purge deletes all files, not those up to its epoch.
    PurgedLater,
    /// A route is used until its owner refuses it, or has ended.
    RouteWithoutDeadline,
    /// A request that may have run is sent again.
    Replayed,
    /// An answer does not wait for the entry of the alarm that it shows.
    EntryUnawaited,
    /// An entry is given away when no alarm is set, proven or not.
    EntryGivenAway,
    /// Entries of all epochs have the same name.
    EntryNameReused,
    /// An owner relies on the entries of earlier ones.
    EntryInherited,
    /// The alarm is taken away when it begins to run.
    AlarmForgottenAtRun,
    /// Nobody scans the index.
    ScanForgotten,
}
