//! Who read whose blocks: the heat map of Zhao et al. Block servers count, the daemon puts names to it.

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
    /// The page cache of a sibling, by its volume.
    Sibling(Uuid),
}

impl HeatSource {
    /// What kind of source it is, in a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Disk(_) => "disk",
            Self::Cache(_) => "cache",
            Self::Sibling(_) => "sibling",
        }
    }

    /// Whether a read from the disk was saved.
    #[must_use]
    pub fn saves_the_disk(self) -> bool {
        !matches!(self, Self::Disk(_))
    }
}

/// What a volume has read from one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HeatCount {
    /// From where.
    pub source: HeatSource,
    /// Reads.
    pub requests: u64,
    /// How much they brought.
    pub bytes: Bytes,
}

/// All that a volume's server has counted since the volume was opened, in no order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heat {
    /// The version of this format: 1.
    pub version: u32,
    /// The counts, one for each source.
    pub counts: Vec<HeatCount>,
}

impl Heat {
    /// The version that is written, and the only one that is read.
    pub const VERSION: u32 = 1;

    /// Counts one read.
    pub fn count(&mut self, source: HeatSource, bytes: u64) {
        let found = self.counts.iter_mut().find(|count| count.source == source);
        match found {
            Some(count) => {
                count.requests += 1;
                count.bytes = Bytes(count.bytes.0.saturating_add(bytes));
            }
            None => self.counts.push(HeatCount { source, requests: 1, bytes: Bytes(bytes) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_counted_by_their_source() {
        let mut heat = Heat { version: Heat::VERSION, ..Heat::default() };
        let (layer, sibling) = (Uuid::from_u128(1), Uuid::from_u128(2));
        for source in [HeatSource::Disk(layer), HeatSource::Sibling(sibling), HeatSource::Disk(layer)] {
            heat.count(source, 4096);
        }
        let text = serde_json::to_string(&heat).unwrap();
        assert_eq!(
            text,
            r#"{"version":1,"counts":[{"source":{"from":"disk","id":"00000000-0000-0000-0000-000000000001"},"requests":2,"bytes":8192},{"source":{"from":"sibling","id":"00000000-0000-0000-0000-000000000002"},"requests":1,"bytes":4096}]}"#
        );
        assert_eq!(serde_json::from_str::<Heat>(&text).unwrap(), heat);
        assert!(HeatSource::Cache(layer).saves_the_disk() && !HeatSource::Disk(layer).saves_the_disk());
    }
}
