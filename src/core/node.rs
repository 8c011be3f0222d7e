//! Names of nodes and of their lives.

use alloc::format;
use alloc::string::String;
use core::fmt;

/// A process on a machine, as its operator names it: 1 to 63 of `a-z 0-9 -`, so that it can be a
/// part of a key and of a host name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(String);

/// One life of a node: 32 lower-case hexadecimal digits, drawn anew at each start.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(String);

/// A state directory: 32 lower-case hexadecimal digits, drawn when it was made. It outlives the
/// sessions and even the name of its node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(String);

impl NodeId {
    /// Checks the spelling.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let fits = (1..=63).contains(&text.len()) && text.bytes().all(plain);
        (fits && !text.starts_with('-')).then(|| Self(text.into()))
    }
    /// Key of the node's lease in the bucket.
    pub fn lease_key(&self) -> String {
        format!("nodes/{}.json", self.0)
    }
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl SessionId {
    /// Checks the spelling.
    pub fn parse(text: &str) -> Option<Self> {
        is_hex32(text).then(|| Self(text.into()))
    }
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl DiskId {
    /// Checks the spelling.
    pub fn parse(text: &str) -> Option<Self> {
        is_hex32(text).then(|| Self(text.into()))
    }
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_hex32(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == 32 && text.bytes().all(plain)
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
