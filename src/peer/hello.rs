//! The first bytes of a connection, in each direction.
//!
//! `CELLDPR` and a zero, the version (`u16`), the length of what else it says (`u16`). These twelve
//! bytes keep their form in every version, so that two releases can tell each other apart. Who is at
//! the other end stands in its certificate.
//!
//! In this version the caller may say which shard of the node it wants to speak to (`u16`): the
//! connection is then served by that one, if there is one of this number.

use crate::FrameError;

/// The version that this release speaks, and the only one. Whatever changes the form of what nodes say
/// to each other raises it (`form.rs`): they would misread each other otherwise.
pub const PROTOCOL: u16 = 4;
/// Bytes of a greeting.
pub const HELLO_LEN: usize = 12;
/// Bytes of the number of a shard.
pub const SHARD_LEN: usize = 2;

const MAGIC: [u8; 8] = *b"CELLDPR\0";

/// What each side says first.
pub fn hello() -> [u8; HELLO_LEN] {
    let mut bytes = [0; HELLO_LEN];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&PROTOCOL.to_be_bytes());
    bytes
}

/// What a caller says that wants to speak to one shard of the node.
pub fn hello_to(shard: u16) -> [u8; HELLO_LEN + SHARD_LEN] {
    let mut bytes = [0; HELLO_LEN + SHARD_LEN];
    bytes[..HELLO_LEN].copy_from_slice(&hello());
    bytes[11] = SHARD_LEN as u8;
    bytes[HELLO_LEN..].copy_from_slice(&shard.to_be_bytes());
    bytes
}

/// Checks what the other side says first. Returns whether the number of a shard follows.
///
/// # Errors
/// [`FrameError::Magic`]: it is none of ours. [`FrameError::Version`]: it is of another release.
pub fn check_hello(bytes: &[u8; HELLO_LEN]) -> Result<bool, FrameError> {
    let (magic, rest) = bytes.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(FrameError::Magic);
    }
    match *rest {
        [a, b, ..] if [a, b] != PROTOCOL.to_be_bytes() => {
            Err(FrameError::Version(u16::from_be_bytes([a, b])))
        }
        [_, _, 0, 0] => Ok(false),
        [_, _, 0, len] if usize::from(len) == SHARD_LEN => Ok(true),
        _ => Err(FrameError::Malformed("a greeting says more than its version does")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_understood_and_its_bytes_stay() {
        assert_eq!(check_hello(&hello()), Ok(false));
        assert_eq!(&hello(), b"CELLDPR\0\x00\x04\x00\x00");
        assert_eq!(&hello_to(0x0102), b"CELLDPR\0\x00\x04\x00\x02\x01\x02");
        assert_eq!(hello_to(7).first_chunk().map(check_hello), Some(Ok(true)));
    }

    #[test]
    fn another_protocol_is_refused() {
        assert_eq!(check_hello(b"GET / HTTP/1"), Err(FrameError::Magic));
        assert_eq!(check_hello(b"CELLDPR\0\x00\x03\x00\x00"), Err(FrameError::Version(3)));
        assert_eq!(check_hello(b"CELLDPR\0\x00\x05\xff\xff"), Err(FrameError::Version(5)));
        let longer = check_hello(b"CELLDPR\0\x00\x04\x00\x01");
        assert!(matches!(longer, Err(FrameError::Malformed(_))), "{longer:?}");
    }
}
