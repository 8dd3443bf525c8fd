//! Tenants and their hard limits, as recorded.

use serde::{Deserialize, Serialize};

use super::{FrontEnd, VolumeRef};
use crate::name::Name;
use crate::units::Share;

/// Hard limits on a device, as in `io.max`; absent means unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct IoLimit {
    /// Path of the physical device, for example `/dev/vda`.
    pub device: String,
    /// Bytes read per second.
    pub read_bytes_per_second: Option<u64>,
    /// Bytes written per second.
    pub write_bytes_per_second: Option<u64>,
    /// Reads per second.
    pub read_iops: Option<u64>,
    /// Writes per second.
    pub write_iops: Option<u64>,
}

/// A tenant as recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its name, unique on the host.
    pub name: Name,
    /// Its weight under contention.
    pub share: Share,
    /// Hard limits.
    #[serde(default)]
    pub limits: Vec<IoLimit>,
    /// Promised 99th percentile of its fsync latency, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fsync_p99_us: Option<u64>,
    /// Attached volumes, which stay mounted for it, also after a reboot.
    #[serde(default)]
    pub volumes: Vec<VolumeRef>,
    /// The front end that created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<FrontEnd>,
    /// Being removed. After a crash the removal is completed.
    #[serde(default)]
    pub removing: bool,
}
