//! Holds, which enforce shares on a device: requests and answers.

use std::path::PathBuf;

use bulkhead_core::model::{Hold, Mode, Unit};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Holds shares of containers on a device, journal I/O included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldStart {
    /// Kernel name of the physical device, or its path; may be left out on a host with only one that has a controller.
    #[serde(default)]
    pub device: Option<String>,
    /// What shares are parts of.
    #[serde(default)]
    pub unit: Unit,
    /// How they are held.
    #[serde(default)]
    pub mode: Mode,
    /// Who shares.
    pub tenants: Vec<HoldTenant>,
    /// After how long without this request it ends, seconds; by default it lasts until it is removed, or the host starts anew.
    #[serde(default)]
    pub lease_seconds: Option<u32>,
}

/// A container and its share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldTenant {
    /// A tenant of Bulkhead, a container by name or by the start of its id, a unit, or the path of a cgroup.
    pub tenant: String,
    /// Its share; shares may sum to anything.
    pub share: f64,
    /// How long 99 % of its fsyncs are to take at most, microseconds: others are slowed down for it.
    #[serde(default)]
    pub fsync_p99_us: Option<u64>,
    /// An ext4 that only this container uses, by a directory in it or its device: its journal thread is charged to the container.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub journal: Option<PathBuf>,
}

impl HoldTenant {
    /// One who is promised a share and nothing else.
    #[must_use]
    pub fn new(tenant: impl Into<String>, share: f64) -> Self {
        Self { tenant: tenant.into(), share, fsync_p99_us: None, journal: None }
    }
}

/// Shares that are held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HoldView {
    /// As recorded.
    #[serde(flatten)]
    pub hold: Hold,
    /// `corrected`, `within_band`, `starting`, `not_contended`, `no_contenders`, `ineffective`, `capped`, `latency_missed`, `partial`,
    /// `late`, `clock_went_back`, `other_writer` or `failed`.
    pub state: String,
    /// The same for people: why weights were changed, or why not.
    pub reason: String,
    /// How often weights were changed since the daemon began.
    pub corrections: u64,
    /// Where each tenant stands, in the order of the record; empty before the first sample.
    pub standings: Vec<StandingView>,
}

/// Where a tenant stands in the last seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StandingView {
    /// What it is called in the record.
    pub name: String,
    /// What it is to have, of what all did who want more than they have (0 to 1).
    pub target_share: f64,
    /// What it had, journal I/O included.
    pub achieved_share: f64,
    /// Its journal I/O alone, in the same measure.
    pub journal_share: f64,
    /// Its weight on the device.
    pub weight: u32,
    /// Whether it wants more than it has, so that its share matters.
    pub contends: bool,
    /// Its journal I/O alone is more than its share: no weight helps, a volume of its own would.
    pub infeasible: bool,
    /// How many operations per second it is held to (`io.max`), where weights do nothing or for another one's latency.
    #[serde(default)]
    pub cap: Option<u32>,
    /// How many bytes per second it is held to, in place of operations where those vary in size.
    #[serde(default)]
    pub cap_bytes: Option<u64>,
    /// How long 99 % of its fsyncs in the last 10 s took at most; only of those to whom something was promised.
    #[serde(default)]
    pub fsync_p99_seconds: Option<f64>,
}
