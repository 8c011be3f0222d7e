//! Who owns a cell: the record `cells/<cell>/own.json`, and what its reader may do.
//!
//! Invariants: an epoch has one writer, ever: each activation takes the next epoch with a
//! compare-and-swap. A file of an epoch before `base.epoch` counts only up to `base.txid`, so what
//! a stale owner uploads late is never read.
//! Source: fencing tokens as in "The Chubby lock service", OSDI 2006 (sequencers); `base` is ours.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crc_fast::{CrcAlgorithm, checksum};
use serde_json::{Value, json};

use crate::cas::{Etag, Nonce};
use crate::cell::CellId;
use crate::epoch::{Epoch, FencingToken};
use crate::lease::OwnerLease;
use crate::node::{NodeId, SessionId};
use crate::record::{Fields, RecordError};
use crate::time::Mono;
use crate::txid::Txid;

/// The only format of the record so far.
const FORMAT: u64 = 1;

/// Our own records stay below 400 bytes; ten times that leaves room and bounds memory.
pub const RECORD_BYTES_MAX: usize = 4_096;

/// The largest number that every JSON reader keeps exactly; no cell is claimed so often.
const EPOCH_MAX: u64 = 1 << 53;

/// What `own.json` says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Who owns the cell; `None`: released.
    pub owner: Option<Owner>,
    /// The number of the latest ownership.
    pub epoch: Epoch,
    /// Where the files that count begin.
    pub base: Base,
    /// Tells this write of the record from every other.
    pub nonce: Nonce,
}

/// One life of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The node: the name of its lease.
    pub node: NodeId,
    /// The session: its lease must still be of this one.
    pub session: SessionId,
}

/// Where an epoch began: files of earlier epochs count only up to `txid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Base {
    /// The epoch that began there.
    pub epoch: Epoch,
    /// The last commit before it.
    pub txid: Txid,
}

impl Base {
    /// Of a cell that never existed.
    pub const ORIGIN: Base = Base { epoch: Epoch::FIRST, txid: Txid::ZERO };

    /// Whether a file of `epoch` whose last commit is `max` may be a part of the cell's history.
    ///
    /// Shuts out what earlier owners uploaded late beyond `txid`. What a still older owner uploaded
    /// late, but below `txid`, is told apart by its epoch: of two files that end at the same commit
    /// the one of the higher epoch counts, because the later owner began before that commit.
    pub fn admits(&self, epoch: Epoch, max: Txid) -> bool {
        epoch >= self.epoch || max <= self.txid
    }
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Me {
    /// Our node and session. Our lease is held: its record has replaced those of our node's
    /// earlier sessions.
    pub owner: Owner,
    /// The epoch at which this session serves the cell right now, if it does.
    pub serving: Option<Epoch>,
}

/// What the reader of the record may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The cell never existed: create the record; there is nothing to restore.
    Create(Record),
    /// Nobody may serve it any more: write `record` if the object still is `guard`.
    Claim {
        /// The version that was read.
        guard: Etag,
        /// What to write.
        record: Record,
    },
    /// It is ours, at the epoch that we serve.
    Serve,
    /// Another session owns it: ask there.
    Forward(Route),
    /// Whether this owner lives decides: read the lease of its node, and decide again.
    ReadLease(Owner),
    /// The bucket broke its contract; the reason says how. Serve nothing, an operator must look.
    Broken(&'static str),
}

/// Where another session serves a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Who owns the cell.
    pub owner: Owner,
    /// At which epoch.
    pub epoch: Epoch,
    /// Past this its lease may be over, as far as is known here: read the ownership again.
    pub until: Mono,
}

/// Decides from what was read: `None` means that there is no record. `lease` is the lease of the
/// owner, if it was read. `nonce` goes into the record that is to be written.
pub fn decide(
    read: Option<(&Record, &Etag)>,
    lease: Option<OwnerLease>,
    me: &Me,
    nonce: Nonce,
) -> Decision {
    let Some((record, etag)) = read else {
        if me.serving.is_some() {
            return Decision::Broken("the ownership record of a served cell is gone");
        }
        let owner = Some(me.owner.clone());
        return Decision::Create(Record { owner, epoch: Epoch::FIRST, base: Base::ORIGIN, nonce });
    };
    if me.serving.is_some_and(|serving| record.epoch < serving) {
        return Decision::Broken("the ownership record went back to an earlier epoch");
    }
    let claim =
        |nonce| Decision::Claim { guard: etag.clone(), record: record.claim(&me.owner, nonce) };
    let Some(owner) = &record.owner else { return claim(nonce) };
    if owner.session == me.owner.session {
        return match me.serving {
            _ if owner.node != me.owner.node => {
                Decision::Broken("the ownership record has our session under another node")
            }
            Some(serving) if serving == record.epoch => Decision::Serve,
            // An earlier activation of ours: its late writes must land aside, as anybody's.
            Some(_) | None => claim(nonce),
        };
    }
    if owner.node == me.owner.node {
        return claim(nonce);
    }
    match lease {
        None => Decision::ReadLease(owner.clone()),
        Some(OwnerLease::Live(until)) => {
            Decision::Forward(Route { owner: owner.clone(), epoch: record.epoch, until })
        }
        Some(OwnerLease::Dead | OwnerLease::Retired | OwnerLease::Replaced) => claim(nonce),
    }
}

impl Record {
    /// Reads the record of `cell`.
    ///
    /// # Errors
    /// It is too long, not of our format, contradicts itself, was changed, or is the record of
    /// another cell; the error says what and where.
    pub fn parse(bytes: &[u8], cell: &CellId) -> Result<Self, RecordError> {
        let mut fields = Fields::parse("own.json", bytes, RECORD_BYTES_MAX, FORMAT)?;
        let node = fields.text("node", "a node's name, or empty for released", |text| {
            if text.is_empty() { Some(None) } else { NodeId::parse(text).map(Some) }
        })?;
        let owner = match node {
            Some(node) => {
                let hex = "the 32 hexadecimal digits of a session";
                Some(Owner { node, session: fields.text("session", hex, SessionId::parse)? })
            }
            None => {
                let empty = |text: &str| text.is_empty().then_some(());
                fields.text("session", "empty, as `node` is", empty)?;
                None
            }
        };
        let epoch = fields.get("epoch", "a whole number from 1 to 2^53", |value| {
            value.as_u64().filter(|n| *n <= EPOCH_MAX).and_then(Epoch::from_record)
        })?;
        let base = match fields.object("base", "an object with `epoch` and `txid`, or null")? {
            None => Base::ORIGIN,
            Some(base) => parse_base(base, epoch, owner.is_none())?,
        };
        let nonce = fields.text("nonce", "1 to 64 of A-Z a-z 0-9 . -", Nonce::parse)?;
        let record = Self { owner, epoch, base, nonce };
        let sum = record.sum(cell);
        let expected = "the checksum of this record of this cell: it was changed, or is another's";
        fields.text("sum", expected, |text| (text == sum).then_some(()))?;
        fields.end()?;
        Ok(record)
    }
    /// As the bucket keeps it for `cell`.
    pub fn encode(&self, cell: &CellId) -> Vec<u8> {
        let (node, session) = match &self.owner {
            Some(owner) => (owner.node.as_str(), owner.session.as_str()),
            None => ("", ""),
        };
        let base = json!({ "epoch": self.base.epoch.get(), "txid": self.base.txid.to_string() });
        let record = json!({
            "format": FORMAT,
            "node": node,
            "session": session,
            "epoch": self.epoch.get(),
            "base": base,
            "nonce": self.nonce.as_str(),
            "sum": self.sum(cell),
        });
        record.to_string().into_bytes()
    }
    /// CRC-64 of everything that the record says, and of whose it is: one changed digit of `base`
    /// would hide commits.
    fn sum(&self, cell: &CellId) -> String {
        let (node, session) = match &self.owner {
            Some(owner) => (owner.node.as_str(), owner.session.as_str()),
            None => ("", ""),
        };
        let Base { epoch, txid } = self.base;
        let nonce = self.nonce.as_str();
        let said = format!("{cell} {node} {session} {} {epoch} {txid} {nonce}", self.epoch);
        format!("{:016x}", checksum(CrcAlgorithm::Crc64Nvme, said.as_bytes()))
    }
    /// Whether it still names this session at this epoch: the question of the bucket proof.
    pub fn is_of(&self, token: &FencingToken) -> bool {
        self.epoch == token.epoch
            && self.owner.as_ref().is_some_and(|owner| owner.session == token.session)
    }
    /// Whether its epoch began at a known position: then its owner must find exactly that, and
    /// may serve without a second write.
    pub fn is_based(&self) -> bool {
        self.base.epoch == self.epoch
    }
    /// The next ownership. What counts stays as it was until the new owner has restored it.
    fn claim(&self, owner: &Owner, nonce: Nonce) -> Record {
        let owner = Some(owner.clone());
        Record { owner, epoch: self.epoch.next(), base: self.base, nonce }
    }
    /// The same ownership, begun at `txid`: what was restored. From then on what earlier epochs
    /// upload late does not count.
    pub fn rebase(&self, txid: Txid, nonce: Nonce) -> Record {
        let base = Base { epoch: self.epoch, txid };
        Record { owner: self.owner.clone(), epoch: self.epoch, base, nonce }
    }
    /// Nobody's. The next owner begins at `txid`, which must be proven. Written under the version
    /// that `claim::Effect::Serve` gave, after the last commit. Its end need not be known: if it
    /// did not apply, the next owner claims as from any other.
    pub fn release(&self, txid: Txid, nonce: Nonce) -> Record {
        let base = Base { epoch: self.epoch.next(), txid };
        Record { owner: None, epoch: self.epoch, base, nonce }
    }
    /// Nobody's, and without a commit: no file of this epoch or an earlier one counts any more,
    /// whoever wrote it and whenever it arrives. The next owner begins a new history, at an epoch
    /// that nobody had. Written under the version that was read, by who may release or claim the
    /// cell; only after it stands may the files be deleted.
    pub fn purge(&self, nonce: Nonce) -> Record {
        self.release(Txid::ZERO, nonce)
    }
}

/// `base` of a record: not of an epoch that is still to come, except the one after a release.
fn parse_base(mut base: Fields, epoch: Epoch, released: bool) -> Result<Base, RecordError> {
    let last = if released { epoch.get().saturating_add(1) } else { epoch.get() };
    let expected = "a whole number from 1 to the record's epoch, or the next one if released";
    let begun = base.get("epoch", expected, |value: &Value| {
        value.as_u64().filter(|n| *n <= last).and_then(Epoch::from_record)
    })?;
    let txid = base.text("txid", "16 hexadecimal digits", Txid::parse)?;
    base.end()?;
    Ok(Base { epoch: begun, txid })
}

#[cfg(test)]
mod tests {
    use std::string::String;

    use super::*;

    fn owner(node: &str, session: char) -> Owner {
        let session: String = core::iter::repeat_n(session, 32).collect();
        Owner {
            node: NodeId::parse(node).expect("a node"),
            session: SessionId::parse(&session).expect("a session"),
        }
    }
    fn epoch(n: u64) -> Epoch {
        Epoch::from_record(n).expect("not zero")
    }
    fn nonce(n: u32) -> Nonce {
        Nonce::numbered(7, n)
    }
    /// A record of `owner` at epoch 5, which began at epoch 4 after TXID 10.
    fn record(owner: Option<Owner>) -> Record {
        let base = Base { epoch: epoch(4), txid: Txid::new(10) };
        Record { owner, epoch: epoch(5), base, nonce: nonce(1) }
    }
    fn asked(record: &Record, lease: Option<OwnerLease>, serving: Option<u64>) -> Decision {
        let me = Me { owner: owner("n1", 'a'), serving: serving.map(epoch) };
        decide(Some((record, &Etag::new("e"))), lease, &me, nonce(2))
    }
    fn claimed() -> Decision {
        let record = Record { owner: Some(owner("n1", 'a')), epoch: epoch(6), ..record(None) };
        Decision::Claim { guard: Etag::new("e"), record: Record { nonce: nonce(2), ..record } }
    }
    fn cell() -> CellId {
        CellId::new("app.Class", &"0".repeat(64)).expect("a good name")
    }
    fn error(text: &str) -> String {
        Record::parse(text.as_bytes(), &cell()).expect_err(text).to_string()
    }

    #[test]
    fn a_cell_that_never_existed_is_created_at_epoch_one_with_nothing_to_restore() {
        let me = Me { owner: owner("n1", 'a'), serving: None };
        let record = Record {
            owner: Some(owner("n1", 'a')),
            epoch: Epoch::FIRST,
            base: Base::ORIGIN,
            nonce: nonce(2),
        };
        assert!(record.is_based());
        assert_eq!(decide(None, None, &me, nonce(2)), Decision::Create(record));
    }

    #[test]
    fn a_released_cell_is_claimed_where_the_release_says() {
        let released = record(Some(owner("n2", 'b'))).release(Txid::new(17), nonce(1));
        assert_eq!(released.base, Base { epoch: epoch(6), txid: Txid::new(17) });
        let Decision::Claim { record, .. } = asked(&released, None, None) else {
            panic!("not claimed")
        };
        assert_eq!((record.epoch, record.base), (epoch(6), released.base));
        assert!(record.is_based());
    }

    #[test]
    fn a_local_wake_takes_a_new_epoch_too() {
        assert_eq!(asked(&record(Some(owner("n1", 'a'))), None, None), claimed());
        assert_eq!(asked(&record(Some(owner("n1", 'a'))), None, Some(4)), claimed());
        assert_eq!(asked(&record(Some(owner("n1", 'a'))), None, Some(5)), Decision::Serve);
    }

    #[test]
    fn an_earlier_life_of_our_own_node_needs_no_look_at_its_lease() {
        assert_eq!(asked(&record(Some(owner("n1", 'b'))), None, None), claimed());
    }

    #[test]
    fn another_node_keeps_its_cells_exactly_as_long_as_its_lease_lives() {
        let theirs = owner("n2", 'b');
        let record = record(Some(theirs.clone()));
        assert_eq!(asked(&record, None, None), Decision::ReadLease(theirs.clone()));
        let until = Mono::from_micros(99);
        let route = Route { owner: theirs, epoch: epoch(5), until };
        let live = Some(OwnerLease::Live(until));
        assert_eq!(asked(&record, live, None), Decision::Forward(route));
        for over in [OwnerLease::Dead, OwnerLease::Retired, OwnerLease::Replaced] {
            assert_eq!(asked(&record, Some(over), None), claimed(), "{over:?}");
        }
    }

    #[test]
    fn a_record_that_goes_back_or_vanishes_under_its_owner_is_not_believed() {
        let ours = record(Some(owner("n1", 'a')));
        assert!(matches!(asked(&ours, None, Some(6)), Decision::Broken(_)));
        let me = Me { owner: owner("n1", 'a'), serving: Some(epoch(5)) };
        assert!(matches!(decide(None, None, &me, nonce(2)), Decision::Broken(_)));
        let renamed = record(Some(owner("n2", 'a')));
        assert!(matches!(asked(&renamed, None, None), Decision::Broken(_)));
    }

    #[test]
    fn the_base_moves_only_after_the_restore() {
        let Decision::Claim { record, .. } = asked(&record(None), None, None) else {
            panic!("not claimed")
        };
        assert!(!record.is_based());
        let rebased = record.rebase(Txid::new(12), nonce(3));
        assert_eq!(rebased.base, Base { epoch: epoch(6), txid: Txid::new(12) });
        assert!(rebased.is_based());
        assert!(rebased.base.admits(epoch(5), Txid::new(12)));
        assert!(!rebased.base.admits(epoch(5), Txid::new(13)));
        assert!(rebased.base.admits(epoch(6), Txid::new(13)));
    }

    #[test]
    fn nothing_that_was_written_before_a_purge_counts_after_it() {
        let purged = record(Some(owner("n2", 'b'))).purge(nonce(2));
        let Decision::Claim { record, .. } = asked(&purged, None, None) else {
            panic!("not claimed")
        };
        assert!(record.is_based() && record.epoch == epoch(6));
        for late in [1, 10, u64::MAX] {
            assert!(!record.base.admits(epoch(5), Txid::new(late)), "{late}");
            assert!(!record.base.admits(epoch(1), Txid::new(late)), "{late}");
        }
        assert!(record.base.admits(epoch(6), Txid::new(1)));
    }

    #[test]
    fn a_record_reads_back_what_it_writes() {
        for record in [record(Some(owner("n1", 'a'))), record(None)] {
            assert_eq!(Record::parse(&record.encode(&cell()), &cell()), Ok(record));
        }
    }

    #[test]
    fn a_record_without_a_base_counts_every_file() {
        let text = Record { base: Base::ORIGIN, ..record(None) }.encode(&cell());
        let text = String::from_utf8(text).expect("text");
        let text = text.replace(r#"{"epoch":1,"txid":"0000000000000000"}"#, "null");
        assert!(text.contains("null"), "{text}");
        let record = Record::parse(text.as_bytes(), &cell()).expect("a record");
        assert_eq!(record.base, Base::ORIGIN);
        assert!(record.base.admits(Epoch::FIRST, Txid::new(u64::MAX)));
    }

    #[test]
    fn a_bad_record_is_refused_and_the_error_says_what_and_where() {
        let good = String::from_utf8(record(Some(owner("n1", 'a'))).encode(&cell())).expect("text");
        for (from, to, says) in [
            ("\"format\":1", "\"format\":2", "own.json: format 2, but this celld knows format 1"),
            ("\"n1\"", "\"N1\"", "field `node` is \"N1\", but should be a node's name"),
            ("\"n1\"", "\"\"", "field `session` is \"aaaa"),
            ("\"n1\"", "7", "field `node` is 7"),
            ("\"epoch\":5", "\"epoch\":0", "field `epoch` is 0, but should be a whole number"),
            ("\"epoch\":5", "\"epoch\":-1", "field `epoch` is -1"),
            ("\"epoch\":5", "\"epoch\":18446744073709551615", "field `epoch` is 184467440"),
            ("\"epoch\":4", "\"epoch\":6", "field `epoch` is 6, but should be a whole number from"),
            ("\"txid\":\"0", "\"txid\":\"", "field `txid` is \"000000000000"),
            ("\"nonce\":", "\"nonsense\":", "field `nonce` is missing"),
            ("\"nonce\":", "\"more\":1,\"nonce\":", "unknown field `more`"),
            ("\"epoch\":5", "\"epoch\":6", "field `sum` is "),
            ("a\"}", "9\"}", "field `sum` is "),
            ("}", "", "not a JSON object: EOF"),
        ] {
            assert!(good.contains(from), "{from}");
            let text = error(&good.replacen(from, to, 1));
            assert!(text.contains(says), "{text:?} should say {says:?}");
        }
        assert!(error("[1]").contains("not a JSON object"));
        let long = [b' '; RECORD_BYTES_MAX + 1];
        assert_eq!(
            Record::parse(&long, &cell()).expect_err("too long").to_string(),
            "own.json: 4097 bytes, but at most 4096 are read"
        );
    }

    #[test]
    fn the_record_of_another_cell_is_refused() {
        let other = CellId::new("app.Class", &"1".repeat(64)).expect("a good name");
        let error = Record::parse(&record(None).encode(&cell()), &other).expect_err("another's");
        assert!(error.to_string().contains("field `sum`"), "{error}");
    }

    #[test]
    fn a_damaged_record_never_panics_and_is_never_half_understood() {
        let whole = record(Some(owner("n1", 'a')));
        let good = whole.encode(&cell());
        let mut understood = 0;
        for at in 0..good.len() {
            for byte in 0..=u8::MAX {
                let mut bytes = good.clone();
                bytes[at] = byte;
                if let Ok(record) = Record::parse(&bytes, &cell()) {
                    assert_eq!(record, whole);
                    understood += 1;
                }
            }
            Record::parse(&good[..at], &cell()).expect_err("cut short");
        }
        // Each byte as it was, and little else.
        assert!((good.len()..good.len() + 8).contains(&understood), "{understood}");
    }
}
