//! Physical devices: the controller, its calibration, and the settings from before.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::demand::DeviceCosts;
use crate::devname::DevName;

/// The controller that applies weights on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// `io.cost` with a model.
    Iocost,
    /// The BFQ scheduler.
    Bfq,
    /// None: weights have no effect.
    None,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Policy::Iocost => "iocost",
            Policy::Bfq => "bfq",
            Policy::None => "none",
        })
    }
}

/// A measured iocost model, with its latency targets and vrate range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Calibration {
    /// The line for `io.cost.model`, without the device.
    pub model: String,
    /// The line for `io.cost.qos`, without the device.
    pub qos: String,
    /// How it was measured: command lines and raw figures.
    pub measured: Vec<String>,
    /// Its effect on a small fsync; absent if that was not measured, or not recorded by an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
}

/// Effect of the chosen model on a small append + fsync every 100 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Isolation {
    /// Mean latency of an fsync alone, microseconds.
    pub alone_us: u64,
    /// Mean latency of an fsync beside greedy buffered writers of another tenant, microseconds.
    pub beside_us: u64,
}

/// A device's queue settings from before Bulkhead's changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSettings {
    /// The scheduler.
    pub scheduler: String,
    /// The line of `io.cost.model`, if there was one.
    pub cost_model: Option<String>,
    /// The line of `io.cost.qos`, if there was one.
    pub cost_qos: Option<String>,
}

/// What the requests of physical devices cost, as measured of a file system on them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StoredCosts {
    /// Kernel names of all physical devices below the file system, in order: the costs are those of the whole, as of a RAID.
    pub devices: Vec<String>,
    /// The costs.
    pub costs: DeviceCosts,
    /// When they were stored, in seconds since the Unix epoch.
    pub unix_seconds: u64,
}

/// A physical device as recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// Kernel name of the device.
    pub name: DevName,
    /// Serial number or other lasting identity, which reveals a renamed device; empty if it has none.
    pub identity: String,
    /// The controller that the operator chose.
    pub policy: Option<Policy>,
    /// The settings before that.
    pub before: Option<QueueSettings>,
    /// Its calibration.
    pub calibration: Option<Calibration>,
    /// Whether block servers take turns on it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub arbiter: bool,
    /// Costs of file systems of which it is the first physical device, one for each set of physical devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub costs: Vec<StoredCosts>,
}
