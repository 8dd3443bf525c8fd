//! Devices and the host: requests and answers.

use std::path::PathBuf;

use bulkhead_core::demand::DeviceCosts;
use bulkhead_core::finding::Finding;
use bulkhead_core::model::{Calibration, Policy};
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Enables a controller, or restores the previous configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceControl {
    /// The controller to enable; `null` restores the configuration from before Bulkhead changed it.
    pub policy: Option<Policy>,
}

/// Switches the arbiter of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceArbiter {
    /// Whether the block servers of volumes on it take turns.
    pub on: bool,
}

/// What to measure on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceMeasure {
    /// The pool to create scratch volumes in. Default: the one with the most free space on the device.
    #[serde(default)]
    pub pool: Option<Name>,
    /// Only measure the effect of the stored calibration. Default: false.
    #[serde(default)]
    pub verify: bool,
}

/// Stores what the requests of a device cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CostsStore {
    /// Absolute path of the directory in which they were measured: they are those of the devices below its file system.
    #[schema(value_type = String)]
    pub directory: PathBuf,
    /// The costs.
    pub costs: DeviceCosts,
}

/// A block device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    /// Kernel name, for example `vda`.
    pub name: String,
    /// Device number, `major:minor`.
    pub dev: String,
    /// Size, bytes.
    pub size_bytes: Bytes,
    /// Whether the kernel considers it rotational (`queue/rotational`).
    pub rotational: bool,
    /// Active and available I/O schedulers (`queue/scheduler`).
    pub scheduler: Option<String>,
    /// Kernel names of the devices at the bottom of its stack; its own name if it is physical.
    pub physical_devices: Vec<String>,
    /// The controller that makes weights work on it.
    pub policy: Policy,
    /// Whether shares have an effect on this device.
    pub shares_work: bool,
    /// Why shares have an effect, or why not.
    pub reason: String,
    /// Its current line of `io.cost.model`.
    pub cost_model: Option<String>,
    /// Its current line of `io.cost.qos`.
    pub cost_qos: Option<String>,
    /// Whether the block servers of volumes on it take turns.
    #[serde(default)]
    pub arbiter: bool,
    /// Its stored calibration, if any.
    pub calibration: Option<Calibration>,
    /// Conditions that weaken isolation on it, or on the physical devices below it.
    pub findings: Vec<Finding>,
}

/// The daemon, and facts about its host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// Bulkhead's version.
    pub version: String,
    /// Features and properties that were probed on this host.
    pub facts: serde_json::Value,
    /// Findings about the host and all objects on it, most severe first, as far as the daemon knows them without querying LVM or
    /// devices. The route that shows a single object checks more.
    pub findings: Vec<Finding>,
}
