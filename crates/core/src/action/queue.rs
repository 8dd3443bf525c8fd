//! Actions on the request queue of a device: its scheduler and io.cost.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::devname::DevName;

/// Actions on the request queue of a device: its scheduler and io.cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each variant's fields say what its Display sentence says")]
pub enum QueueAction {
    /// Sets a device's I/O scheduler.
    SetScheduler { device: DevName, scheduler: String },
    /// Sets a tunable of the active I/O scheduler; does nothing if that has none of the name.
    SetTunable { device: DevName, tunable: String, value: String },
    /// Sets `io.cost.model` of a device.
    SetCostModel { device: DevName, line: String },
    /// Sets `io.cost.qos` of a device.
    SetCostQos { device: DevName, line: String },
    /// Disables io.cost on a device.
    DisableCost { device: DevName },
    /// Has the block servers on a device take turns, or not.
    SetArbiter { device: DevName, on: bool },
}

impl fmt::Display for QueueAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use QueueAction as A;
        match self {
            A::SetScheduler { device, scheduler } => write!(f, "set the scheduler of {device} to {scheduler}"),
            A::SetTunable { device, tunable, value } => {
                write!(f, "set {tunable} of {device}'s scheduler to {value}")
            }
            A::SetCostModel { device, line } => write!(f, "set io.cost.model of {device}: {line}"),
            A::SetCostQos { device, line } => write!(f, "set io.cost.qos of {device}: {line}"),
            A::DisableCost { device } => write!(f, "disable io.cost on {device}"),
            A::SetArbiter { device, on } => {
                write!(f, "switch the arbiter of {device} {}", if *on { "on" } else { "off" })
            }
        }
    }
}
