//! What a node says of itself to another one, or to an operator: is it there, and how is it?

use bytes::{BufMut, Bytes};
use celld_core::node::{NodeId, SessionId};

use crate::FrameError;
use crate::wire::{Reader, put_bytes, put_session};

/// The answer to a probe, which has an empty head itself. Neither has a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeReply {
    /// The peer protocol that it speaks.
    pub protocol: u16,
    /// Its release.
    pub version: String,
    /// Its name.
    pub node: NodeId,
    /// This life of it.
    pub session: SessionId,
    /// Its shards.
    pub shards: u16,
    /// Cells in its memory.
    pub resident_cells: u64,
    /// How busy its shards are, in thousandths of all their time.
    pub load_permille: u16,
    /// Cells that it reads from the bucket at this moment.
    pub restoring: u32,
    /// It stops, and takes no more cells.
    pub is_draining: bool,
}

impl ProbeReply {
    /// As bytes.
    ///
    /// # Errors
    /// A part is too long to be said.
    pub fn encode(&self) -> Result<Bytes, FrameError> {
        let mut out = Vec::with_capacity(128);
        out.put_u16(self.protocol);
        put_bytes(&mut out, "a version", self.version.as_bytes())?;
        put_bytes(&mut out, "the name of a node", self.node.as_str().as_bytes())?;
        put_session(&mut out, &self.session);
        out.put_u16(self.shards);
        out.put_u64(self.resident_cells);
        out.put_u16(self.load_permille);
        out.put_u32(self.restoring);
        out.put_u8(self.is_draining.into());
        Ok(out.into())
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are no such answer.
    pub fn decode(head: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(head);
        let reply = Self {
            protocol: reader.u16()?,
            version: reader.text()?.to_owned(),
            node: reader.node()?,
            session: reader.session()?,
            shards: reader.u16()?,
            resident_cells: reader.u64()?,
            load_permille: reader.u16()?,
            restoring: reader.u32()?,
            is_draining: reader.bool()?,
        };
        reader.end()?;
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_reads_back_what_it_says_and_nothing_less() {
        let reply = ProbeReply {
            protocol: 1,
            version: "0.1.0".into(),
            node: NodeId::parse("node-7").expect("a name"),
            session: SessionId::parse(&"0e".repeat(16)).expect("32 digits"),
            shards: 64,
            resident_cells: 1 << 40,
            load_permille: 1_000,
            restoring: 3,
            is_draining: true,
        };
        let bytes = reply.encode().expect("short");
        assert_eq!(ProbeReply::decode(&bytes), Ok(reply));
        for len in 0..bytes.len() {
            ProbeReply::decode(&bytes[..len]).expect_err("cut short");
        }
        ProbeReply::decode(&[&bytes[..], b"x"].concat()).expect_err("too long");
    }
}
