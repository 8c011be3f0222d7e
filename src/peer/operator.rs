//! What an operator asks of a node, from the command line.
//!
//! How a node is, a probe tells ([`crate::probe`]). The answer's body, where there is one, is text:
//! one JSON document a line.

use bytes::{BufMut, Bytes};
use celld_core::cell::CellId;
use celld_core::node::NodeId;

use crate::FrameError;
use crate::wire::{Reader, put_bytes, put_cell, put_option};

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorRequest {
    /// Its resident cells, at most `limit`, in the order of their names, after one of them.
    ListCells {
        /// The last one of the list before.
        after: Option<CellId>,
        /// How many.
        limit: u32,
    },
    /// One cell, as the node has it in memory.
    ShowCell(CellId),
    /// Give it back to the bucket.
    EvictCell(CellId),
    /// Hand it to another node; asked of that node itself: take it, as nobody has it.
    MoveCell {
        /// This one.
        cell: CellId,
        /// To this node.
        to: NodeId,
    },
    /// Delete it with all its data.
    PurgeCell(CellId),
    /// Hand all cells over, and stop.
    Drain,
    /// Write a block to the disk and flush it, as a follower does before it answers, so that the
    /// caller sees how long that takes.
    Flush,
}

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorReply {
    /// Done, or what was asked for is in the body.
    Done,
    /// Not done.
    Refused {
        /// Stable: scripts may compare it.
        code: String,
        /// For a person: what, where, and what to do.
        words: String,
        /// The same request may succeed later.
        retryable: bool,
    },
}

impl OperatorRequest {
    /// As bytes.
    ///
    /// # Errors
    /// A part is too long to be said.
    pub fn encode(&self) -> Result<Bytes, FrameError> {
        let mut out = Vec::with_capacity(128);
        let with_cell = |out: &mut Vec<u8>, kind, cell| {
            out.put_u8(kind);
            put_cell(out, cell)
        };
        match self {
            Self::ListCells { after, limit } => {
                out.put_u8(1);
                put_option(&mut out, after.as_ref(), put_cell)?;
                out.put_u32(*limit);
            }
            Self::ShowCell(cell) => with_cell(&mut out, 2, cell)?,
            Self::EvictCell(cell) => with_cell(&mut out, 3, cell)?,
            Self::MoveCell { cell, to } => {
                with_cell(&mut out, 4, cell)?;
                put_bytes(&mut out, "the name of a node", to.as_str().as_bytes())?;
            }
            Self::PurgeCell(cell) => with_cell(&mut out, 5, cell)?,
            Self::Drain => out.put_u8(6),
            Self::Flush => out.put_u8(7),
        }
        Ok(out.into())
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are no such request.
    pub fn decode(head: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(head);
        let request = match reader.u8()? {
            1 => Self::ListCells { after: reader.option(Reader::cell)?, limit: reader.u32()? },
            2 => Self::ShowCell(reader.cell()?),
            3 => Self::EvictCell(reader.cell()?),
            4 => Self::MoveCell { cell: reader.cell()?, to: reader.node()? },
            5 => Self::PurgeCell(reader.cell()?),
            6 => Self::Drain,
            7 => Self::Flush,
            _ => return Err(FrameError::Malformed("the kind of an operator's request")),
        };
        reader.end()?;
        Ok(request)
    }
}

impl OperatorReply {
    /// As bytes.
    ///
    /// # Errors
    /// A part is too long to be said.
    pub fn encode(&self) -> Result<Bytes, FrameError> {
        let mut out = Vec::with_capacity(128);
        match self {
            Self::Done => out.put_u8(0),
            Self::Refused { code, words, retryable } => {
                out.put_u8(1);
                put_bytes(&mut out, "a code", code.as_bytes())?;
                put_bytes(&mut out, "the words of a refusal", words.as_bytes())?;
                out.put_u8((*retryable).into());
            }
        }
        Ok(out.into())
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are no such answer.
    pub fn decode(head: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(head);
        let reply = match reader.u8()? {
            0 => Self::Done,
            1 => Self::Refused {
                code: reader.text()?.to_owned(),
                words: reader.text()?.to_owned(),
                retryable: reader.bool()?,
            },
            _ => return Err(FrameError::Malformed("the kind of an operator's answer")),
        };
        reader.end()?;
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_back_what_they_say_and_nothing_less() {
        let cell = || CellId::new("a.Room", &"0f".repeat(32)).expect("a good name");
        let to = NodeId::parse("n2").expect("a name");
        for request in [
            OperatorRequest::ListCells { after: None, limit: 100 },
            OperatorRequest::ListCells { after: Some(cell()), limit: 1 },
            OperatorRequest::ShowCell(cell()),
            OperatorRequest::EvictCell(cell()),
            OperatorRequest::MoveCell { cell: cell(), to },
            OperatorRequest::PurgeCell(cell()),
            OperatorRequest::Drain,
            OperatorRequest::Flush,
        ] {
            let bytes = request.encode().expect("short");
            assert_eq!(OperatorRequest::decode(&bytes), Ok(request));
            for len in 0..bytes.len() {
                OperatorRequest::decode(&bytes[..len]).expect_err("cut short");
            }
            OperatorRequest::decode(&[&bytes[..], b"x"].concat()).expect_err("too long");
        }
        OperatorRequest::decode(&[99]).expect_err("unknown");
    }

    #[test]
    fn answers_read_back_what_they_say_and_nothing_less() {
        let (code, words) = ("not_owner".to_owned(), "cell x is at node n3".to_owned());
        for reply in [OperatorReply::Done, OperatorReply::Refused { code, words, retryable: true }]
        {
            let bytes = reply.encode().expect("short");
            assert_eq!(OperatorReply::decode(&bytes), Ok(reply));
            for len in 0..bytes.len() {
                OperatorReply::decode(&bytes[..len]).expect_err("cut short");
            }
        }
    }
}
