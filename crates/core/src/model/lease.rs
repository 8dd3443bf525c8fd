//! Leases: volumes that are mounted as long as something uses them.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{FrontEnd, VolumeRef};
use crate::name::Name;

/// A volume that is mounted as long as something uses it. Leases end with a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Identity of the lease.
    pub id: Uuid,
    /// The tenant that it is mounted for.
    pub tenant: Name,
    /// The volume.
    pub volume: VolumeRef,
    /// What uses it.
    #[serde(flatten)]
    pub holder: Holder,
}

/// What uses a volume under a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Holder {
    /// A process (`bulkhead run`): the lease ends with it.
    Process {
        /// Its process id.
        pid: u32,
        /// Its start time in clock ticks after boot (field 22 of `/proc/PID/stat`): tells a reused pid apart.
        start_time_ticks: u64,
    },
    /// A user of a front end: the lease ends when that front end returns it.
    FrontEnd {
        /// Which user.
        user: LeaseUser,
        /// How often it has mounted the volume without unmounting it: Docker mounts and unmounts with the same ID for `docker cp`
        /// while the container runs. 0: it was returned, but the volume could not be unmounted yet.
        mounts: u32,
    },
}

impl Holder {
    /// The process, where it is one.
    #[must_use]
    pub const fn pid(&self) -> Option<u32> {
        match self {
            Self::Process { pid, .. } => Some(*pid),
            Self::FrontEnd { .. } => None,
        }
    }

    /// How often a user of a front end has mounted the volume without unmounting it; `None` for a process.
    #[must_use]
    pub const fn mounts(&self) -> Option<u32> {
        match self {
            Self::Process { .. } => None,
            Self::FrontEnd { mounts, .. } => Some(*mounts),
        }
    }

    /// The holder after one more mount.
    #[must_use]
    pub fn once_more(&self) -> Self {
        match self {
            Self::Process { .. } => self.clone(),
            Self::FrontEnd { user, mounts } => Self::FrontEnd { user: user.clone(), mounts: mounts.saturating_add(1) },
        }
    }

    /// The user of a front end, where it is one.
    #[must_use]
    pub const fn user(&self) -> Option<&LeaseUser> {
        match self {
            Self::Process { .. } => None,
            Self::FrontEnd { user, .. } => Some(user),
        }
    }
}

/// A user of a volume, as a front end distinguishes them; for Docker, the ID of a mount of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LeaseUser {
    /// The front end.
    pub front_end: FrontEnd,
    /// Any text of 1 to 255 bytes that is unique in the front end.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 255))]
    pub id: String,
}
