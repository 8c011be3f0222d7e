//! The first bytes of a connection, in each direction.
//!
//! `CELLDPR` and a zero, the version (`u16`), the length of the rest (`u16`), the rest. The first
//! twelve bytes keep this form in every version, so that two releases can tell each other apart.

use bytes::{BufMut, BytesMut};
use celld_core::node::{NodeId, SessionId};

use crate::FrameError;
use crate::frame::{session_bytes, session_from};
use crate::wire::{Reader, put_bytes};

/// The version that this release speaks, and the only one.
pub const PROTOCOL: u16 = 1;
/// The longest greeting: a session and the longest name of a node, with room for later versions.
pub const HELLO_LEN_MAX: usize = FIXED_LEN + 512;

const MAGIC: [u8; 8] = *b"CELLDPR\0";
const FIXED_LEN: usize = 12;

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The name that its operator gave it.
    pub node: NodeId,
    /// Its present life: frames of an earlier one are not its frames.
    pub session: SessionId,
}

impl Hello {
    /// Appends the greeting.
    ///
    /// # Errors
    /// Never for a name that [`NodeId`] accepts; the length is checked all the same.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), FrameError> {
        let mut rest = BytesMut::new();
        rest.put_slice(&session_bytes(&self.session)?);
        put_bytes(&mut rest, "the name of a node", self.node.as_str().as_bytes())?;
        let max = HELLO_LEN_MAX - FIXED_LEN;
        let len = u16::try_from(rest.len()).ok().filter(|len| usize::from(*len) <= max).ok_or(
            FrameError::Length { what: "a greeting", len: rest.len() as u64, max: max as u64 },
        )?;
        out.put_slice(&MAGIC);
        out.put_u16(PROTOCOL);
        out.put_u16(len);
        out.put_slice(&rest);
        Ok(())
    }

    /// Reads a greeting from the start of `buf`, and how many bytes it took. `None`: bytes are
    /// missing.
    ///
    /// # Errors
    /// [`FrameError::Magic`] and [`FrameError::Version`] as early as the bytes show it.
    pub fn decode(buf: &[u8]) -> Result<Option<(Self, usize)>, FrameError> {
        let shown = buf.len().min(MAGIC.len());
        if buf[..shown] != MAGIC[..shown] {
            return Err(FrameError::Magic);
        }
        let Some(fixed) = buf.get(MAGIC.len()..FIXED_LEN) else { return Ok(None) };
        let mut fixed = Reader::new(fixed);
        let (version, len) = (fixed.u16()?, usize::from(fixed.u16()?));
        if version != PROTOCOL {
            return Err(FrameError::Version(version));
        }
        let max = HELLO_LEN_MAX - FIXED_LEN;
        if len > max {
            let (len, max) = (len as u64, max as u64);
            return Err(FrameError::Length { what: "a greeting", len, max });
        }
        let Some(rest) = buf.get(FIXED_LEN..FIXED_LEN + len) else { return Ok(None) };
        let mut rest = Reader::new(rest);
        let session = session_from(rest.raw()?)?;
        let node = NodeId::parse(rest.text()?).ok_or(FrameError::Malformed("the node's name"))?;
        rest.end()?;
        Ok(Some((Self { node, session }, FIXED_LEN + len)))
    }
}
