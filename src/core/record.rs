//! Reading the small JSON records of the bucket, strictly.
//!
//! Invariant: a record is understood whole or refused: no field is skipped, guessed or defaulted.
//! What cannot be read names the record, the field and what was expected there.

use alloc::string::{String, ToString};

use serde_json::{Map, Value};

/// A record that cannot be used. Nothing may be decided from it; an operator must look.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Longer than any record that we write; not parsed at all.
    #[error("{record}: {len} bytes, but at most {max} are read")]
    TooLong {
        /// Which record.
        record: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The longest that is read.
        max: usize,
    },
    /// Not a JSON object; the reason has line and column.
    #[error("{record}: not a JSON object: {reason}")]
    NotJson {
        /// Which record.
        record: &'static str,
        /// What the parser says.
        reason: String,
    },
    /// Written by a version that we do not know. Never guessed at.
    #[error("{record}: format {found}, but this celld knows format {known}: run a newer celld")]
    Format {
        /// Which record.
        record: &'static str,
        /// The format found.
        found: u64,
        /// The format that we know.
        known: u64,
    },
    /// A field that should be there.
    #[error("{record}: field `{field}` is missing")]
    Missing {
        /// Which record.
        record: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A field that format does not have.
    #[error("{record}: unknown field `{field}`")]
    Unknown {
        /// Which record.
        record: &'static str,
        /// The field.
        field: String,
    },
    /// A field with a value that it cannot have.
    #[error("{record}: field `{field}` is {found}, but should be {expected}")]
    Field {
        /// Which record.
        record: &'static str,
        /// The field.
        field: &'static str,
        /// What stands there, shortened.
        found: String,
        /// What should.
        expected: &'static str,
    },
}

/// The fields of one object, taken out one by one until none is left.
pub(crate) struct Fields {
    record: &'static str,
    map: Map<String, Value>,
}

impl Fields {
    /// Parses `bytes`, and checks that its field `format` is `known`.
    pub(crate) fn parse(
        record: &'static str,
        bytes: &[u8],
        max: usize,
        known: u64,
    ) -> Result<Self, RecordError> {
        if bytes.len() > max {
            return Err(RecordError::TooLong { record, len: bytes.len(), max });
        }
        let map = serde_json::from_slice(bytes)
            .map_err(|e| RecordError::NotJson { record, reason: e.to_string() })?;
        let mut fields = Self { record, map };
        match fields.number("format")? {
            found if found == known => Ok(fields),
            found => Err(RecordError::Format { record, found, known }),
        }
    }
    /// A whole number.
    pub(crate) fn number(&mut self, field: &'static str) -> Result<u64, RecordError> {
        self.get(field, "a whole number", |value| value.as_u64())
    }
    /// Text that `read` understands.
    pub(crate) fn text<T>(
        &mut self,
        field: &'static str,
        expected: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, RecordError> {
        self.get(field, expected, |value| value.as_str().and_then(read))
    }
    /// Whatever `read` understands.
    pub(crate) fn get<T>(
        &mut self,
        field: &'static str,
        expected: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, RecordError> {
        let record = self.record;
        let value = self.map.remove(field).ok_or(RecordError::Missing { record, field })?;
        read(&value).ok_or_else(|| self.bad(field, &value, expected))
    }
    /// An object inside this one, or `null`.
    pub(crate) fn object(
        &mut self,
        field: &'static str,
        expected: &'static str,
    ) -> Result<Option<Fields>, RecordError> {
        let record = self.record;
        match self.map.remove(field) {
            None => Err(RecordError::Missing { record, field }),
            Some(Value::Null) => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self { record, map })),
            Some(value) => Err(self.bad(field, &value, expected)),
        }
    }
    /// Nothing may be left.
    pub(crate) fn end(self) -> Result<(), RecordError> {
        match self.map.into_iter().next() {
            None => Ok(()),
            Some((field, _)) => {
                Err(RecordError::Unknown { record: self.record, field: shorten(&field) })
            }
        }
    }
    /// `field` holds `value`, which it must not.
    pub(crate) fn bad(
        &self,
        field: &'static str,
        value: &Value,
        expected: &'static str,
    ) -> RecordError {
        let found = shorten(&value.to_string());
        RecordError::Field { record: self.record, field, found, expected }
    }
}

/// The first 80 characters: what stands in a record may be long, a log line should not be.
fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}
