//! The heat map of Zhao et al.: which volume read whose blocks. Block servers count reads, the daemon adds names.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::units::Bytes;

/// From where shared blocks were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "from", content = "id", rename_all = "snake_case")]
pub enum HeatSource {
    /// A layer, from the disk.
    Disk(Uuid),
    /// A layer, from the host's page cache.
    Cache(Uuid),
    /// The page cache of a peer, by its volume. `sibling` is its earlier name.
    #[serde(alias = "sibling")]
    Peer(Uuid),
}

impl HeatSource {
    /// What kind of source it is, in a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Disk(_) => "disk",
            Self::Cache(_) => "cache",
            Self::Peer(_) => "peer",
        }
    }

    /// Whether a read from the disk was saved.
    #[must_use]
    pub fn saves_the_disk(self) -> bool {
        !matches!(self, Self::Disk(_))
    }
}

/// What a volume has read from one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadCount {
    /// From where.
    pub source: HeatSource,
    /// Reads.
    pub requests: u64,
    /// How much they brought.
    pub bytes: Bytes,
}

/// All that a volume's server has counted since the volume was opened, in no order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// The counts, one for each source.
    pub counts: Vec<ReadCount>,
}

impl ReadCounts {
    /// Counts one read.
    pub fn count(&mut self, source: HeatSource, bytes: u64) {
        let found = self.counts.iter_mut().find(|count| count.source == source);
        match found {
            Some(count) => {
                count.requests += 1;
                count.bytes = Bytes(count.bytes.0.saturating_add(bytes));
            }
            None => self.counts.push(ReadCount { source, requests: 1, bytes: Bytes(bytes) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_counted_by_their_source() {
        let mut heat = ReadCounts::default();
        let (layer, peer) = (HeatSource::Disk(Uuid::from_u128(1)), HeatSource::Peer(Uuid::from_u128(2)));
        for source in [layer, peer, layer] {
            heat.count(source, 4096);
        }
        let count = |source, requests, bytes| ReadCount { source, requests, bytes: Bytes(bytes) };
        assert_eq!(heat.counts, [count(layer, 2, 8192), count(peer, 1, 4096)]);
        assert!(peer.saves_the_disk() && !layer.saves_the_disk());
        assert!(HeatSource::Cache(Uuid::nil()).saves_the_disk());
    }

    #[test]
    fn a_peer_is_read_by_its_earlier_name_too() {
        let peer = HeatSource::Peer(Uuid::from_u128(2));
        let text = serde_json::to_string(&peer).unwrap();
        assert_eq!(text, r#"{"from":"peer","id":"00000000-0000-0000-0000-000000000002"}"#);
        for text in [text.replace("peer", "sibling"), text] {
            assert_eq!(serde_json::from_str::<HeatSource>(&text).unwrap(), peer);
        }
    }
}
