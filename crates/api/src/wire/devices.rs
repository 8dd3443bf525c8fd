//! Devices and the host: requests and answers.

use bulkhead_core::finding::Finding;
use bulkhead_core::model::{Calibration, Policy};
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Puts a controller in force, or the one from before Bulkhead back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceControl {
    /// The controller; `null` restores what was in force before Bulkhead changed it.
    pub policy: Option<Policy>,
}

/// What is to be measured on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceMeasure {
    /// The pool whose room is used; the one with most of it on the device when left out.
    #[serde(default)]
    pub pool: Option<Name>,
    /// Only measure what the recorded calibration does.
    #[serde(default)]
    pub verify: bool,
}

/// A block device as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    /// Kernel name, for example `vda`.
    pub name: String,
    /// `major:minor`.
    pub dev: String,
    /// Its size.
    pub size_bytes: Bytes,
    /// Whether the kernel takes it for a rotating one.
    pub rotational: bool,
    /// The scheduler in force and those that can be had.
    pub scheduler: Option<String>,
    /// The devices at the bottom of its stack; itself when it is physical.
    pub physical_devices: Vec<String>,
    /// Which controller makes weights work on it.
    pub policy: Policy,
    /// Whether a tenant's share has any effect on this device.
    pub shares_work: bool,
    /// Why, or why not.
    pub reason: String,
    /// `io.cost.model` in force.
    pub cost_model: Option<String>,
    /// `io.cost.qos` in force.
    pub cost_qos: Option<String>,
    /// The calibration stored for this device, if it was calibrated.
    pub calibration: Option<Calibration>,
    /// What weakens isolation on it, or on the physical devices below it.
    pub findings: Vec<Finding>,
}

/// What the daemon is and sees.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// Bulkhead's version.
    pub version: String,
    /// Facts that were probed on this host.
    pub facts: serde_json::Value,
    /// What is to be known of the host and of all that is on it, the gravest first, as far as the daemon knows it without asking LVM or
    /// devices; `inspect` of an object looks at more.
    pub findings: Vec<Finding>,
}
