//! File systems of volumes, how they are provisioned, and how far they may be repaired.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// A file system type that Bulkhead creates and mounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum FsKind {
    /// ext4: its journal thread can be charged to the tenant.
    #[default]
    Ext4,
    /// XFS: log writes under fsync are charged to the caller, background log writes to the root cgroup (docs/DECISIONS.md, K3).
    Xfs,
}

impl FsKind {
    /// The type name for mount(2).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            FsKind::Ext4 => "ext4",
            FsKind::Xfs => "xfs",
        }
    }

    /// The smallest volume for which `mkfs` succeeds with Bulkhead's options (mkfs.xfs refuses less than 300 MiB).
    #[must_use]
    pub const fn min_size(self) -> Bytes {
        match self {
            FsKind::Ext4 => Bytes::mib(16),
            FsKind::Xfs => Bytes::mib(300),
        }
    }
}

impl fmt::Display for FsKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a volume's device contains: a file system that Bulkhead makes and mounts, or none, which makes it a raw volume:
/// its device is for its tenant, and what is in it is never looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum VolumeFs {
    /// ext4, see [`FsKind::Ext4`].
    #[default]
    Ext4,
    /// XFS, see [`FsKind::Xfs`].
    Xfs,
    /// None: a raw volume.
    None,
}

impl VolumeFs {
    /// Its file system, if it has one.
    #[must_use]
    pub const fn kind(self) -> Option<FsKind> {
        match self {
            VolumeFs::Ext4 => Some(FsKind::Ext4),
            VolumeFs::Xfs => Some(FsKind::Xfs),
            VolumeFs::None => None,
        }
    }

    /// The word in records, requests and output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            VolumeFs::Ext4 => FsKind::Ext4.as_str(),
            VolumeFs::Xfs => FsKind::Xfs.as_str(),
            VolumeFs::None => "none",
        }
    }

    /// The smallest volume: that of the file system, and 1 MiB for a raw volume.
    #[must_use]
    pub const fn min_size(self) -> Bytes {
        match self {
            VolumeFs::Ext4 => FsKind::Ext4.min_size(),
            VolumeFs::Xfs => FsKind::Xfs.min_size(),
            VolumeFs::None => Bytes::mib(1),
        }
    }
}

impl From<FsKind> for VolumeFs {
    fn from(kind: FsKind) -> Self {
        match kind {
            FsKind::Ext4 => Self::Ext4,
            FsKind::Xfs => Self::Xfs,
        }
    }
}

impl fmt::Display for VolumeFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// When a volume's blocks are allocated from its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Provision {
    /// All at creation: a preallocated image, a thick LV, or a thin LV of which each block was written once.
    #[default]
    Full,
    /// On the first write to each block: a sparse image or a thin LV. Each first write changes metadata that all
    /// tenants share.
    OnDemand,
}

impl fmt::Display for Provision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Provision::Full => "full",
            Provision::OnDemand => "on-demand",
        })
    }
}

/// How far a repair may change a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repair {
    /// Not at all.
    #[default]
    No,
    /// Safe repairs only: the journal is replayed, minor errors are fixed.
    Safe,
    /// All repairs, which may lose damaged files.
    Full,
}
