//! Bytes in and out: the few forms that frames are made of.
//!
//! Text and bytes are written as a `u32` length and then themselves. [`Reader`] answers with a
//! fault where bytes are missing, and takes memory only for bytes that it has.

use bytes::{BufMut, Bytes, BytesMut};

use crate::FrameError;

/// Appends text or bytes with their length.
///
/// # Errors
/// The length does not fit into 32 bits.
pub(crate) fn put_bytes(
    out: &mut BytesMut,
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

    /// All that is left.
    pub(crate) fn rest(&mut self) -> Bytes {
        Bytes::copy_from_slice(std::mem::take(&mut self.0))
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
