//! Tenants and their hard limits, as recorded.

use serde::{Deserialize, Serialize};

use super::{FrontEnd, VolumeRef};
use crate::demand::{Demand, Senseless};
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

/// What a tenant demands of its host, as `bulkhead profile` has found it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Profile {
    /// The workload that the tenant is a copy of, by which copies on other hosts are known; absent: its own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Name>,
    /// What each of its operations demands.
    pub demand: Demand,
    /// Operations per second that it achieved while nothing else used the host, above 0; absent if it was not alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone_per_s: Option<f64>,
    /// When it was stored, in seconds since the Unix epoch.
    pub unix_seconds: u64,
}

impl Profile {
    /// Refuses values that make no sense.
    ///
    /// # Errors
    /// The first such value.
    pub fn check(&self) -> Result<(), Senseless> {
        self.demand.check()?;
        match self.alone_per_s {
            Some(per_s) if !(per_s.is_finite() && per_s > 0.0) => {
                Err(Senseless { key: "alone_per_s".to_owned(), cause: format!("{per_s} is not a number above 0") })
            }
            _ => Ok(()),
        }
    }
}

/// A tenant as recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// What it demands, for plans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
}

impl Tenant {
    /// The same as if it had not been profiled.
    #[must_use]
    pub fn without_profile(self) -> Self {
        Self { profile: None, ..self }
    }
}
