//! What `nodes/<node>.json` says: whose lease it is, what it grants, how to reach the node, and how
//! busy it is.
//!
//! Units: as the names of the fields say. `written` is for people who read the bucket: nothing is
//! decided by a clock of another node.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json::{Value, json};

use super::{Seen, Standing};
use crate::cas::Etag;
use crate::node::{DiskId, NodeId, SessionId};
use crate::record::{Fields, RecordError};
use crate::time::{Micros, Wall};

/// The only format of the record so far.
const FORMAT: u64 = 1;

/// Our records stay below 1 KiB; this leaves room for long addresses and bounds memory.
pub const RECORD_BYTES_MAX: usize = 4_096;

/// Longer versions are not ours.
const VERSION_MAX: usize = 64;

/// The record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Whose lease.
    pub node: NodeId,
    /// Which life of it.
    pub session: SessionId,
    /// The number of this write in its session.
    pub write: u64,
    /// What it grants from when it was sent, in whole milliseconds. Zero: nothing, the node has
    /// given up its right.
    pub ttl: Micros,
    /// When it was written, by the clock of the node.
    pub written: Wall,
    /// The disk on which the session keeps what it must not lose.
    pub disk: DiskId,
    /// The peer protocol that the node speaks.
    pub protocol: u64,
    /// Where peers reach it; `None`: it takes no peers.
    pub address: Option<String>,
    /// The version of celld.
    pub version: String,
    /// How busy it is.
    pub load: Load,
}

/// How busy a node was when it wrote its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub struct Load {
    /// Cores that serve cells.
    pub shards: u64,
    /// Cells in memory.
    pub cells: u64,
    /// As many are kept at most; zero: as many as fit.
    pub cells_max: u64,
    /// Memory of the cells.
    pub memory_bytes: u64,
    /// What they may take; zero: not known.
    pub memory_max_bytes: u64,
    /// The part of the time in which the shards had something to do, in thousandths.
    pub busy_permille: u64,
    /// Cells that are being restored.
    pub restoring: u64,
    /// It gives its cells away and takes no others.
    pub is_draining: bool,
}

impl Record {
    /// Reads a record.
    ///
    /// # Errors
    /// It is too long or not of our format; the error says what and where.
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut fields = Fields::parse("node lease", bytes, RECORD_BYTES_MAX, FORMAT)?;
        let hex = "32 hexadecimal digits";
        let load = "an object with the load of the node";
        let record = Self {
            node: fields.text("node", "a node's name", NodeId::parse)?,
            session: fields.text("session", hex, SessionId::parse)?,
            write: fields.number("write")?,
            ttl: Micros::from_millis(fields.number("ttl_ms")?),
            written: Wall::from_millis(fields.number("written_ms")?),
            disk: fields.text("disk", hex, DiskId::parse)?,
            protocol: fields.number("protocol")?,
            address: fields.get("address", "an address or null", |value| match value {
                Value::Null => Some(None),
                Value::String(text) if !text.is_empty() => Some(Some(text.clone())),
                Value::String(_)
                | Value::Bool(_)
                | Value::Number(_)
                | Value::Array(_)
                | Value::Object(_) => None,
            })?,
            version: fields.text("version", "a version of celld", |text| {
                (1..=VERSION_MAX).contains(&text.len()).then(|| text.to_string())
            })?,
            load: match fields.object("load", load)? {
                Some(fields) => Load::parse(fields)?,
                None => return Err(fields.bad("load", &Value::Null, load)),
            },
        };
        fields.end()?;
        Ok(record)
    }
    /// As the bucket keeps it.
    pub fn encode(&self) -> Vec<u8> {
        let record = json!({
            "format": FORMAT,
            "node": self.node.as_str(),
            "session": self.session.as_str(),
            "write": self.write,
            "ttl_ms": self.ttl.as_millis(),
            "written_ms": self.written.as_millis(),
            "disk": self.disk.as_str(),
            "protocol": self.protocol,
            "address": self.address.as_deref(),
            "version": self.version,
            "load": self.load.encode(),
        });
        record.to_string().into_bytes()
    }
    /// Whether it grants nothing: its session has given up its right.
    pub fn is_retired(&self) -> bool {
        self.ttl == Micros::ZERO
    }
    /// The record as `session` sees it; `etag` is its version, and `standing` what is known of the
    /// session that wrote it.
    pub fn seen_by(&self, session: &SessionId, etag: Etag, standing: Standing) -> Seen {
        if self.session == *session {
            Seen::Ours(self.write, etag)
        } else {
            Seen::Theirs(etag, standing)
        }
    }
}

impl Load {
    fn parse(mut fields: Fields) -> Result<Self, RecordError> {
        let load = Self {
            shards: fields.number("shards")?,
            cells: fields.number("cells")?,
            cells_max: fields.number("cells_max")?,
            memory_bytes: fields.number("memory_bytes")?,
            memory_max_bytes: fields.number("memory_max_bytes")?,
            busy_permille: fields.number("busy_permille")?,
            restoring: fields.number("restoring")?,
            is_draining: fields.get("is_draining", "true or false", Value::as_bool)?,
        };
        fields.end()?;
        Ok(load)
    }
    fn encode(&self) -> Value {
        json!({
            "shards": self.shards,
            "cells": self.cells,
            "cells_max": self.cells_max,
            "memory_bytes": self.memory_bytes,
            "memory_max_bytes": self.memory_max_bytes,
            "busy_permille": self.busy_permille,
            "restoring": self.restoring,
            "is_draining": self.is_draining,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The first write of a session of node `n1`.
    pub fn record(session: &str) -> Record {
        Record {
            node: NodeId::parse("n1").expect("a node"),
            session: SessionId::parse(&session.repeat(32)).expect("a session"),
            write: 1,
            ttl: Micros::from_secs(10),
            written: Wall::from_millis(1_764_000_000_000),
            disk: DiskId::parse(&"d".repeat(32)).expect("a disk"),
            protocol: 1,
            address: Some("10.0.0.1:7000".into()),
            version: "0.1.0".into(),
            load: Load { shards: 4, cells: 12, is_draining: true, ..Load::default() },
        }
    }

    #[test]
    fn a_record_reads_back_what_it_writes_and_nothing_else() {
        let mut record = record("a");
        assert_eq!(Record::parse(&record.encode()), Ok(record.clone()));
        record.address = None;
        assert_eq!(Record::parse(&record.encode()), Ok(record.clone()));
        let text = String::from_utf8(record.encode()).expect("text");
        for (from, to, says) in [
            ("null", "\"\"", "field `address` is \"\", but should be an address or null"),
            ("null", "{}", "field `address` is {}"),
            ("\"write\":1", "\"write\":1.5", "field `write` is 1.5"),
            ("\"protocol\":1,", "", "field `protocol` is missing"),
            ("\"0.1.0\"", "\"\"", "field `version` is \"\""),
            ("\"dddd", "\"dddD", "field `disk` is "),
            ("\"cells\":12", "\"cells\":-1", "field `cells` is -1"),
            ("\"cells\":12", "\"cells\":1,\"more\":1", "unknown field `more`"),
            ("\"is_draining\":true", "\"is_draining\":1", "should be true or false"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = Record::parse(text.replacen(from, to, 1).as_bytes()).expect_err(to);
            assert!(error.to_string().contains(says), "{error}");
        }
        let start = text.find("\"load\":").expect("the last field");
        let text = std::format!("{}\"load\":null}}", &text[..start]);
        let error = Record::parse(text.as_bytes()).expect_err("no load");
        assert!(error.to_string().contains("field `load` is null"), "{error}");
    }
}
