//! What the owner of a cell says to the node to which it has handed it: take it now.
//!
//! The owner has given the cell back to the bucket before. If somebody else was faster, the answer
//! is the refusal [`crate::Code::NotOwner`]. Neither call nor answer has a body.

use bytes::{BufMut, Bytes};
use celld_core::cell::CellId;
use celld_core::epoch::Epoch;

use crate::FrameError;
use crate::wire::{Reader, put_bytes, put_cell, put_option};

/// The head of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeHead {
    /// Which one.
    pub cell: CellId,
    /// Its class in the script.
    pub class: String,
    /// `ctx.id.name`, if it was made of one.
    pub name: Option<String>,
}

/// The head of the answer: it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Of the new ownership.
    pub epoch: Epoch,
}

impl TakeHead {
    /// As bytes.
    ///
    /// # Errors
    /// A part is too long to be said.
    pub fn encode(&self) -> Result<Bytes, FrameError> {
        let mut out = Vec::with_capacity(256);
        put_cell(&mut out, &self.cell)?;
        put_bytes(&mut out, "a class", self.class.as_bytes())?;
        put_option(&mut out, self.name.as_ref(), |out, name| {
            put_bytes(out, "the name of a cell", name.as_bytes())
        })?;
        Ok(out.into())
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are no such call.
    pub fn decode(head: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(head);
        let cell = reader.cell()?;
        let class = reader.text()?.to_owned();
        let name = reader.option(|reader| reader.text().map(str::to_owned))?;
        reader.end()?;
        Ok(Self { cell, class, name })
    }
}

impl Taken {
    /// As bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(8);
        out.put_u64(self.epoch.get());
        out.into()
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are no such answer.
    pub fn decode(head: &[u8]) -> Result<Self, FrameError> {
        let mut reader = Reader::new(head);
        let epoch = Epoch::from_record(reader.u64()?);
        reader.end()?;
        epoch.map(|epoch| Self { epoch }).ok_or(FrameError::Malformed("an epoch"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_reads_back_what_it_says_and_nothing_less() {
        let cell = CellId::new("a.Room", &"0f".repeat(32)).expect("a good name");
        for name in [None, Some("a room".to_owned())] {
            let head = TakeHead { cell: cell.clone(), class: "Room".into(), name };
            let bytes = head.encode().expect("short");
            assert_eq!(TakeHead::decode(&bytes), Ok(head));
            for len in 0..bytes.len() {
                TakeHead::decode(&bytes[..len]).expect_err("cut short");
            }
            TakeHead::decode(&[&bytes[..], b"x"].concat()).expect_err("too long");
        }
    }

    #[test]
    fn an_answer_reads_back_what_it_says_and_nothing_less() {
        let taken = Taken { epoch: Epoch::FIRST.next() };
        let bytes = taken.encode();
        assert_eq!(Taken::decode(&bytes), Ok(taken));
        for wrong in [&bytes[..7], &[&bytes[..], b"x"].concat(), &[0; 8]] {
            Taken::decode(wrong).expect_err("no answer");
        }
    }
}
