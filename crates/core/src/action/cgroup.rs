//! Actions on cgroups: their processes and journal threads, controllers, weights and limits.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::DeviceRef;
use crate::cgroup::CgroupPath;
use crate::devname::DevName;
use crate::model::{FsKind, IoMax};

/// Actions on cgroups: their processes and journal threads, controllers, weights and limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each variant's fields say what its Display sentence says")]
pub enum CgroupAction {
    /// Makes a cgroup with controllers io and memory.
    CreateCgroup { cgroup: CgroupPath },
    /// Moves the processes of a cgroup, not of those below it, into another one, which is created if needed.
    MoveProcesses { from: CgroupPath, to: CgroupPath },
    /// Enables a controller for the cgroups below one; `/` is the root.
    EnableController { cgroup: CgroupPath, controller: String },
    /// Writes a cgroup file.
    WriteCgroup { cgroup: CgroupPath, file: String, value: String },
    /// Sets a cgroup's weight on one device; the file is one of [`crate::tenant::WEIGHT_FILES`].
    SetWeight { cgroup: CgroupPath, file: String, device: DevName, weight: u32 },
    /// Resets a cgroup's own weight on a device, if the cgroup exists and has one.
    ResetWeight { cgroup: CgroupPath, file: String, device: DevName },
    /// Sets a cgroup's limits on a device, if both exist.
    #[serde(alias = "limit_iops")]
    LimitIo { cgroup: CgroupPath, device: DevName, limit: IoMax },
    /// Removes a cgroup, if it exists.
    RemoveCgroup { cgroup: CgroupPath },
    /// Moves the journal thread of a mounted file system into a cgroup.
    PlaceJournal { device: DeviceRef, fs: FsKind, cgroup: CgroupPath },
    /// Moves the journal thread, if there is one, of an ext4 on the device with this kernel name into a cgroup.
    MoveJournal { device: DevName, cgroup: CgroupPath },
}

impl fmt::Display for CgroupAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use CgroupAction as A;
        match self {
            A::CreateCgroup { cgroup } => write!(f, "create cgroup {cgroup}"),
            A::MoveProcesses { from, to } => write!(f, "move the processes of cgroup {from} to {to}"),
            A::EnableController { cgroup, controller } => {
                write!(f, "enable controller {controller} below cgroup {cgroup}")
            }
            A::WriteCgroup { cgroup, file, value } => write!(f, "write {value:?} to {cgroup}/{file}"),
            A::SetWeight { cgroup, file, device, weight } => {
                write!(f, "set {file} of {cgroup} on {device} to {weight}")
            }
            A::ResetWeight { cgroup, file, device } => write!(f, "reset {file} of {cgroup} on {device}"),
            A::LimitIo { cgroup, device, limit } => write!(f, "set io.max of {cgroup} on {device} to {limit}"),
            A::RemoveCgroup { cgroup } => write!(f, "remove cgroup {cgroup}"),
            A::PlaceJournal { device, cgroup, .. } => write!(f, "move the journal thread of {device} to {cgroup}"),
            A::MoveJournal { device, cgroup } => write!(f, "move the journal thread of {device} to /{cgroup}"),
        }
    }
}
