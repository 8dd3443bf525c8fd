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
