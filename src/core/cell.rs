//! Names of cells, their keys in the bucket, and the shard that owns them.

use alloc::format;
use alloc::string::{String, ToString as _};
use core::fmt;

use crate::epoch::Epoch;
use crate::txid::Txid;

/// A Durable Object: a namespace (one class of one script) and 256 bits.
///
/// Written `<namespace>/<64 hexadecimal digits>`, which is also the middle of its keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellId {
    namespace: String,
    id: String,
}

impl CellId {
    /// Checks both spellings. A namespace is 1 to 200 of `A-Z a-z 0-9 . _ $ -`, not starting with
    /// a dot, so that it is one plain segment of a key on every store.
    pub fn new(namespace: &str, id: &str) -> Option<Self> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'$' | b'-');
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let fits = (1..=200).contains(&namespace.len())
            && namespace.bytes().all(plain)
            && !namespace.starts_with('.')
            && id.len() == 64
            && id.bytes().all(hex);
        fits.then(|| Self { namespace: namespace.into(), id: id.into() })
    }
    /// The class's key: survives renames of the class.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
    /// 64 hexadecimal digits.
    pub fn id(&self) -> &str {
        &self.id
    }
    /// Key of the ownership record.
    pub fn own_key(&self) -> String {
        format!("cells/{self}/own.json")
    }
    /// Prefix of all LTX files.
    pub fn ltx_prefix(&self) -> String {
        format!("cells/{self}/ltx/")
    }
    /// Key of one LTX file. `min` and `max` are the TXIDs that it covers, both included.
    pub fn ltx_key(&self, epoch: Epoch, level: u8, min: Txid, max: Txid) -> String {
        format!("cells/{self}/ltx/e{epoch}/{level}/{min}-{max}.ltx")
    }
    /// A number that stands for this cell in its LTX files, which have no room for its name.
    pub fn tag(&self) -> u64 {
        crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, self.to_string().as_bytes())
    }
    /// The shard of `shards` that owns this cell on every node. FNV-1a over the id: ids are
    /// already random, it only has to be the same everywhere.
    pub fn shard(&self, shards: usize) -> usize {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in self.id.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        // The high bits of FNV are the mixed ones; a modulo of the low ones would be uneven. And so
        // the cells of one shard are of neighbouring ones where there are more or fewer shards.
        ((u128::from(hash) * shards as u128) >> 64) as usize
    }
}

impl fmt::Display for CellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_spread_over_shards() {
        let mut counts = [0_usize; 3];
        for n in 0..3_000_u32 {
            let id = format!("{:064x}", u128::from(n) * 0x9e37_79b9_7f4a_7c15);
            counts[CellId::new("a.B", &id).expect("a good name").shard(3)] += 1;
        }
        assert!(counts.iter().all(|&n| (800..1_200).contains(&n)), "{counts:?}");
    }

    #[test]
    fn a_name_that_would_leave_its_prefix_is_refused() {
        let id = "0".repeat(64);
        for namespace in ["", "..", "a/b", "a b", "a%2f"] {
            assert_eq!(CellId::new(namespace, &id), None, "{namespace:?}");
        }
        assert_eq!(CellId::new("a.B", "00"), None);
    }
}
