//! From where a volume reads the blocks that it shares with others.

use std::fmt;

use serde::{Deserialize, Serialize};

/// From where a volume reads shared blocks: those of its layers that it has not written itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReadFrom {
    /// From the layers, with direct I/O. No memory is shared.
    Disk,
    /// From the layers, through the host's page cache. All volumes on a layer share one copy in memory.
    #[default]
    HostCache,
    /// From the page cache of a peer that has read the same block (Zhao et al., *DRR*), otherwise from disk. There is
    /// no other copy in memory.
    Peers,
    /// From a peer's page cache, otherwise through the host's.
    Both,
}

impl ReadFrom {
    /// All modes, in ascending order of sharing.
    pub const ALL: [Self; 4] = [Self::Disk, Self::HostCache, Self::Peers, Self::Both];

    /// The value on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::HostCache => "host-cache",
            Self::Peers => "peers",
            Self::Both => "both",
        }
    }

    /// The value in LVM tags, state files and files of block servers, which outlive versions of the program.
    #[must_use]
    pub const fn tag(self) -> &'static str {
        match self {
            Self::Disk => "off",
            Self::HostCache => "base",
            Self::Peers => "drr",
            Self::Both => "both",
        }
    }

    /// The mode with this tag, if there is one.
    #[must_use]
    pub fn from_tag(tag: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.tag() == tag)
    }

    /// Whether the volume reads from peers, and lets them read from it.
    #[must_use]
    pub fn uses_peers(self) -> bool {
        matches!(self, Self::Peers | Self::Both)
    }

    /// Whether layers are read through the host's page cache.
    #[must_use]
    pub fn caches_layers(self) -> bool {
        matches!(self, Self::HostCache | Self::Both)
    }
}

/// [`ReadFrom`] in the JSON of state files and files of block servers, as its tag, which earlier versions also read.
pub(crate) mod read_from_tag {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use super::ReadFrom;

    pub(crate) fn serialize<S: Serializer>(mode: &ReadFrom, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(mode.tag())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ReadFrom, D::Error> {
        let tag = String::deserialize(deserializer)?;
        ReadFrom::from_tag(&tag).ok_or_else(|| D::Error::custom(format!("unknown mode of sharing `{tag}`")))
    }
}

impl fmt::Display for ReadFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
