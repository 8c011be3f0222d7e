//! The fleet record, `fleet/fleet.json`: who may speak to the nodes of this bucket.
//!
//! The first node creates it, if it is absent; nobody ever changes it. Whoever can read it belongs
//! to the fleet: the certificates of its nodes are made from its secret.
//!
//! Invariant: a secret is never shown, neither by `Debug` nor in an error.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;

use crc_fast::{CrcAlgorithm, checksum};
use serde_json::json;

use crate::record::{Fields, RecordError};

/// Key of the record.
pub const FLEET_KEY: &str = "fleet/fleet.json";

/// The only format so far.
const FORMAT: u64 = 1;
/// Several times what we write.
const RECORD_BYTES_MAX: usize = 1_024;

/// The name of a fleet: 32 lower-case hexadecimal digits, drawn by its first node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FleetId(String);

/// The root of a fleet's certificates.
#[derive(Clone, PartialEq, Eq)]
pub struct FleetSecret([u8; 32]);

/// What `fleet/fleet.json` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetRecord {
    /// Which fleet.
    pub fleet: FleetId,
    /// What its nodes know, and nobody else.
    pub secret: FleetSecret,
}

/// What a node that starts does about the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Join {
    /// It belongs to this fleet.
    Member(FleetRecord),
    /// Write these bytes if the record is absent. `Applied`: the fleet is the one that was drawn.
    /// Otherwise read the record and [`join`] again.
    Create(Vec<u8>),
}

/// Decides by what the bucket holds. `drawn`: the fleet that this node makes when there is none;
/// it keeps it until it is a member, so that its write of unknown outcome says the same each time.
///
/// # Errors
/// The record is not one of ours. It is not repaired: another secret would be another fleet, and
/// the nodes that hold the old one would not be reached.
pub fn join(seen: Option<&[u8]>, drawn: &FleetRecord) -> Result<Join, RecordError> {
    match seen {
        Some(bytes) => FleetRecord::parse(bytes).map(Join::Member),
        None => Ok(Join::Create(drawn.encode())),
    }
}

impl FleetId {
    /// From 128 random bits.
    pub fn drawn(bits: u128) -> Self {
        Self(format!("{bits:032x}"))
    }
    /// Checks the spelling.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        (text.len() == 32 && text.bytes().all(plain)).then(|| Self(text.into()))
    }
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FleetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FleetSecret {
    /// From 256 random bits.
    pub fn drawn(bits: [u8; 32]) -> Self {
        Self(bits)
    }
    /// The bits, for deriving keys.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
    fn parse(text: &str) -> Option<Self> {
        let mut bits = [0; 32];
        let digit = |b: u8| match b {
            b'0'..=b'9' => Some(b - b'0'),
            b'a'..=b'f' => Some(b - b'a' + 10),
            _ => None,
        };
        if text.len() != 64 {
            return None;
        }
        for (bits, pair) in bits.iter_mut().zip(text.as_bytes().chunks(2)) {
            *bits = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(bits))
    }
    fn spell(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for FleetSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FleetSecret(not shown)")
    }
}

impl FleetRecord {
    /// Reads a record.
    ///
    /// # Errors
    /// It is too long, not of our format, or was changed; the error says what and where.
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        const RECORD: &str = "fleet record";
        let mut fields = Fields::parse(RECORD, bytes, RECORD_BYTES_MAX, FORMAT)?;
        let fleet = fields.text("fleet", "32 hexadecimal digits", FleetId::parse)?;
        // Not by `text`, whose error would show what it found.
        let secret =
            fields.get("secret", "", |value| Some(value.as_str().and_then(FleetSecret::parse)))?;
        let secret = secret.ok_or(RecordError::Field {
            record: RECORD,
            field: "secret",
            found: "not shown".to_string(),
            expected: "64 hexadecimal digits",
        })?;
        let record = Self { fleet, secret };
        let sum = record.sum();
        let expected = "the checksum of this record: it was changed";
        fields.text("sum", expected, |text| (text == sum).then_some(()))?;
        fields.end()?;
        Ok(record)
    }
    /// As the bucket keeps it.
    pub fn encode(&self) -> Vec<u8> {
        let record = json!({
            "format": FORMAT,
            "fleet": self.fleet.as_str(),
            "secret": self.secret.spell(),
            "sum": self.sum(),
        });
        record.to_string().into_bytes()
    }
    /// A damaged secret would keep a node from all others, and nothing would tell why.
    fn sum(&self) -> String {
        let said = format!("{FORMAT} {} {}", self.fleet, self.secret.spell());
        format!("{:016x}", checksum(CrcAlgorithm::Crc64Nvme, said.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n: u8) -> FleetRecord {
        FleetRecord {
            fleet: FleetId::drawn(u128::from(n)),
            secret: FleetSecret::drawn([n.wrapping_mul(31); 32]),
        }
    }

    #[test]
    fn a_record_reads_back_what_it_says() {
        for n in 0..=255 {
            assert_eq!(FleetRecord::parse(&record(n).encode()), Ok(record(n)));
        }
    }

    #[test]
    fn the_first_node_creates_and_all_others_join() {
        let drawn = record(1);
        let Ok(Join::Create(bytes)) = join(None, &drawn) else { panic!("there is no fleet") };
        assert_eq!(join(Some(&bytes), &record(2)), Ok(Join::Member(drawn)));
    }

    #[test]
    fn what_was_changed_is_refused() {
        let text = String::from_utf8(record(7).encode()).expect("JSON");
        for (from, to, told) in [
            ("\"format\":1", "\"format\":2", "format 2, but this celld knows format 1"),
            ("0007\"", "0008\"", "field `sum` is "),
            ("d9d9\"", "d9d8\"", "field `sum` is "),
            ("d9d9\"", "d9\"", "field `secret` is not shown, but should be 64 hexadecimal digits"),
            ("d9d9\"", "D9D9\"", "field `secret` is not shown"),
            ("\"fleet\":\"0", "\"fleet\":\"x", "field `fleet` is \"x"),
            ("\"fleet\":", "\"fleat\":", "field `fleet` is missing"),
            ("{", "{\"more\":1,", "unknown field `more`"),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from}");
            let error = FleetRecord::parse(changed.as_bytes()).expect_err(from).to_string();
            assert!(error.contains(told), "{from}: {error}");
        }
        let long = " ".repeat(RECORD_BYTES_MAX + 1);
        assert!(matches!(FleetRecord::parse(long.as_bytes()), Err(RecordError::TooLong { .. })));
        assert!(matches!(FleetRecord::parse(b"<html>"), Err(RecordError::NotJson { .. })));
    }

    #[test]
    fn a_secret_is_never_shown() {
        let record = record(9);
        let shown = format!("{record:?}");
        assert!(shown.contains("not shown"), "{shown}");
        let text = String::from_utf8(record.encode()).expect("JSON");
        let numbers = text.replacen(&record.secret.spell(), "1717171717", 1);
        let error = FleetRecord::parse(numbers.as_bytes()).expect_err("too short").to_string();
        assert!(!error.contains("1717"), "{error}");
    }
}
