//! Holds, which enforce shares on a device, and the limits of cgroups that they change.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cgroup::CgroupPath;
use crate::devname::DevName;
use crate::identity::Identity;

/// How shares are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Bulkhead's method.
    #[default]
    Correcting,
    /// The method published by Tobimatsu et al., for comparison.
    Published,
}

/// The resource that shares divide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// The bytes that the device reads and writes.
    #[default]
    Bytes,
    /// Device time: a random write of 4 KiB costs a disk more than 4 KiB of a stream.
    Time,
}

/// A hold as recorded: enforced shares of containers on a device, journal I/O included. A device has at most one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Hold {
    /// Kernel name of the physical device.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub device: DevName,
    /// The resource that shares divide.
    pub unit: Unit,
    /// How shares are enforced.
    pub mode: Mode,
    /// The cgroup file with the weights of the active controller.
    pub weight_file: String,
    /// Sum of the tenants' weights.
    pub total_weight: u32,
    /// The tenants, at least two.
    pub tenants: Vec<HeldTenant>,
    /// Changed tunables of the device's scheduler, with their values from before the hold.
    #[serde(default)]
    pub tunables: BTreeMap<String, String>,
    /// Lease, seconds: the hold ends if it is not renewed for that long; `null` if it lasts until it is removed.
    pub lease_seconds: Option<u32>,
    /// The daemon started it for the promises of tenants, and changes or ends it with them; absent: `false`.
    #[serde(default)]
    pub for_promises: bool,
}

/// A container whose share is enforced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HeldTenant {
    /// Its name as requested.
    pub name: String,
    /// Its share, parts per million.
    pub share_ppm: u32,
    /// Its identity.
    pub identity: Identity,
    /// Its cgroup, on which its weight is set.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub cgroup: CgroupPath,
    /// Its limit on operations from before the hold.
    #[serde(default)]
    pub iops_before: RateLimit,
    /// Its limit on bytes from before the hold. Earlier versions did not record it: their holds leave limits on bytes
    /// alone.
    #[serde(default)]
    pub bytes_before: Option<RateLimit>,
    /// Promised 99th percentile of its fsync latency, microseconds.
    #[serde(default)]
    pub fsync_p99_us: Option<u64>,
    /// The journal of a file system that only it uses.
    #[serde(default)]
    pub journal: Option<HeldJournal>,
}

impl HeldTenant {
    /// Its limits from before the hold.
    #[must_use]
    pub fn before(&self) -> IoMax {
        IoMax { ops: self.iops_before, bytes: self.bytes_before }
    }
}

/// A journal thread that is charged to its container during a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HeldJournal {
    /// Kernel name of the file system's device.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub device: DevName,
    /// The thread's cgroup, next to the container's. Without a hold the thread is in the root cgroup.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub cgroup: CgroupPath,
}

/// Limits on a cgroup's operations or bytes per second on a device; absent means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RateLimit {
    /// Reads.
    pub read: Option<u64>,
    /// Writes.
    pub write: Option<u64>,
}

impl RateLimit {
    /// The same limits, each reduced to at most `most`.
    #[must_use]
    pub fn capped(self, most: u64) -> Self {
        Self {
            read: Some(self.read.map_or(most, |read| read.min(most))),
            write: Some(self.write.map_or(most, |write| write.min(most))),
        }
    }

    /// The larger of both limits; `None` if one is absent.
    #[must_use]
    pub fn largest(self) -> Option<u64> {
        Some(self.read?.max(self.write?))
    }
}

/// A line of `io.max`, without the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoMax {
    /// Operations (`riops`, `wiops`).
    #[serde(flatten)]
    pub ops: RateLimit,
    /// Bytes (`rbps`, `wbps`); `None` leaves them unchanged.
    #[serde(default)]
    pub bytes: Option<RateLimit>,
}

impl IoMax {
    /// These limits, restricted to the keys that `other` has.
    #[must_use]
    pub fn restricted_to(self, other: Self) -> Self {
        Self { bytes: other.bytes.and(self.bytes), ..self }
    }
}

impl fmt::Display for IoMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |limit: Option<u64>| limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string());
        if let Some(RateLimit { read, write }) = self.bytes {
            write!(f, "rbps={} wbps={} ", text(read), text(write))?;
        }
        write!(f, "riops={} wiops={}", text(self.ops.read), text(self.ops.write))
    }
}
