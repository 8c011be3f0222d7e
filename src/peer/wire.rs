//! Bytes in and out: the few forms that frames and heads are made of.
//!
//! Text and bytes are written as a `u32` length and then themselves. [`Reader`] answers with a
//! fault where bytes are missing, and takes no memory.

use bytes::BufMut;
use celld_core::cell::CellId;
use celld_core::node::{NodeId, SessionId};

use crate::FrameError;

/// Appends text or bytes with their length.
///
/// # Errors
/// The length does not fit into 32 bits.
pub(crate) fn put_bytes(
    out: &mut Vec<u8>,
    what: &'static str,
    bytes: &[u8],
) -> Result<(), FrameError> {
    let len = u32::try_from(bytes.len()).map_err(|_| FrameError::Length {
        what,
        len: bytes.len() as u64,
        max: u64::from(u32::MAX),
    })?;
    out.put_u32(len);
    out.put_slice(bytes);
    Ok(())
}

/// The rest of a payload that is complete.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self(payload)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], FrameError> {
        let (head, rest) = self
            .0
            .split_at_checked(len)
            .ok_or(FrameError::Malformed("a field reaches past the end"))?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn raw<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, FrameError> {
        Ok(self.raw::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FrameError> {
        Ok(u16::from_be_bytes(self.raw()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FrameError> {
        Ok(u32::from_be_bytes(self.raw()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FrameError> {
        Ok(u64::from_be_bytes(self.raw()?))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], FrameError> {
        let len = self.u32()?;
        self.take(usize::try_from(len).unwrap_or(usize::MAX))
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, FrameError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| FrameError::Malformed("text is not UTF-8"))
    }

    /// What [`put_session`] wrote.
    pub(crate) fn session(&mut self) -> Result<SessionId, FrameError> {
        let number = u128::from_be_bytes(self.raw()?);
        SessionId::parse(&format!("{number:032x}"))
            .ok_or(FrameError::Malformed("the name of a session"))
    }

    /// The name of a node.
    pub(crate) fn node(&mut self) -> Result<NodeId, FrameError> {
        NodeId::parse(self.text()?).ok_or(FrameError::Malformed("the name of a node"))
    }

    /// What [`put_cell`] wrote.
    pub(crate) fn cell(&mut self) -> Result<CellId, FrameError> {
        let (namespace, id) = (self.text()?, self.text()?);
        CellId::new(namespace, id).ok_or(FrameError::Malformed("the name of a cell"))
    }

    /// What [`put_option`] wrote.
    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, FrameError>,
    ) -> Result<Option<T>, FrameError> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// A zero or a one.
    pub(crate) fn bool(&mut self) -> Result<bool, FrameError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Malformed("what is yes or no is neither")),
        }
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// A payload is used up: one message has one spelling.
    pub(crate) fn end(self) -> Result<(), FrameError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(FrameError::Malformed("bytes follow its last field"))
        }
    }
}

/// Appends a session: half as long as its text.
pub(crate) fn put_session(out: &mut Vec<u8>, session: &SessionId) {
    let number = u128::from_str_radix(session.as_str(), 16);
    out.put_u128(number.expect("a session is 32 hexadecimal digits"));
}

/// Appends the name of a cell.
///
/// # Errors
/// As [`put_bytes`]; never for a name that [`CellId`] accepts.
pub(crate) fn put_cell(out: &mut Vec<u8>, cell: &CellId) -> Result<(), FrameError> {
    put_bytes(out, "a namespace", cell.namespace().as_bytes())?;
    put_bytes(out, "an id", cell.id().as_bytes())
}

/// Appends what may be missing: a one and then itself, or a zero.
pub(crate) fn put_option<T>(
    out: &mut Vec<u8>,
    value: Option<T>,
    put: impl FnOnce(&mut Vec<u8>, T) -> Result<(), FrameError>,
) -> Result<(), FrameError> {
    match value {
        None => {
            out.put_u8(0);
            Ok(())
        }
        Some(value) => {
            out.put_u8(1);
            put(out, value)
        }
    }
}
