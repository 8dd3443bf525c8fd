//! Requests and answers about holds, which enforce shares on a device.

use std::path::PathBuf;

use bulkhead_core::model::{Hold, Mode, Unit};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Starts to enforce the shares of containers on a device, journal I/O included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldStart {
    /// Physical device, by kernel name or path. Default: the only one with a controller.
    #[serde(default)]
    pub device: Option<String>,
    /// The resource that the shares divide. Default: bytes.
    #[serde(default)]
    pub unit: Unit,
    /// The method of correcting weights. Default: Bulkhead's own.
    #[serde(default)]
    pub mode: Mode,
    /// The containers and their shares, at least two.
    pub tenants: Vec<HoldTenant>,
    /// The hold ends unless this request is repeated within this time, in seconds. Default: it lasts until it is removed or the host
    /// reboots.
    #[serde(default)]
    pub lease_seconds: Option<u32>,
}

/// A container and its share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldTenant {
    /// A tenant, a container (its name, or the first 12 or more digits of its ID), a systemd unit, or the path of a cgroup.
    pub tenant: String,
    /// Its share, greater than 0. Shares are relative: their sum does not matter.
    pub share: f64,
    /// Target for the 99th percentile of its fsync latency, in microseconds. Other containers are throttled to meet it. Default: none.
    #[serde(default)]
    pub fsync_p99_us: Option<u64>,
    /// An ext4 file system that only this container uses, given by the absolute path of a directory in it or of its device. Its journal
    /// thread is charged to the container. Default: none.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub journal: Option<PathBuf>,
}

impl HoldTenant {
    /// A container with a share, and neither a latency limit nor a journal.
    #[must_use]
    pub fn new(tenant: impl Into<String>, share: f64) -> Self {
        Self { tenant: tenant.into(), share, fsync_p99_us: None, journal: None }
    }
}

/// A hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HoldView {
    /// The record.
    #[serde(flatten)]
    pub hold: Hold,
    /// `corrected`, `within_band`, `starting`, `not_contended`, `no_contenders`, `ineffective`, `capped`, `latency_missed`, `partial`,
    /// `late`, `clock_went_back`, `other_writer` or `failed`.
    pub state: String,
    /// The state in words: why weights were changed, or why not.
    pub reason: String,
    /// Number of corrections of weights since the daemon started.
    pub corrections: u64,
    /// Target and achieved share of each tenant, in the order of the record; empty before the first sample.
    pub standings: Vec<StandingView>,
}

/// Target and achieved share of a tenant, over the last seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StandingView {
    /// Its name in the record.
    pub name: String,
    /// Its target, as a fraction (0 to 1) of the I/O of all contending tenants.
    pub target_share: f64,
    /// Its achieved share, journal I/O included, in the same unit.
    pub achieved_share: f64,
    /// The share of its journal I/O alone, in the same unit.
    pub journal_share: f64,
    /// Its current weight on the device.
    pub weight: u32,
    /// Whether it contends: it wants more of the device than it has.
    pub contends: bool,
    /// Whether its journal I/O alone exceeds its target: no weight can correct this, but its own volume would.
    pub infeasible: bool,
    /// Its cap in operations per second (`io.max`), where weights have no effect or another tenant has a latency limit.
    #[serde(default)]
    pub cap: Option<u32>,
    /// Its cap in bytes per second (`io.max`), used instead of operations where their sizes vary.
    #[serde(default)]
    pub cap_bytes: Option<u64>,
    /// 99th percentile of its fsync latency over the last 10 s, in seconds; only for tenants with a latency limit.
    #[serde(default)]
    pub fsync_p99_seconds: Option<f64>,
}
