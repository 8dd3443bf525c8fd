//! Leases: volumes that are mounted as long as something uses them.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{FrontEnd, SelinuxContext, VolumeRef};
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
    /// The SELinux context of its mount; `None`: its files have their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selinux_context: Option<SelinuxContext>,
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
        /// The latest requests that are counted in `mounts`, by the ids that their client gave them. One of them that is repeated, because
        /// the daemon died before it had answered, is not counted again.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        counted: Vec<Uuid>,
    },
}

/// How many requests a lease remembers: more than one front end sends for one user at a time.
const REMEMBERED: usize = 64;

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

    /// The holder after a request to mount the volume.
    #[must_use]
    pub fn once_more(&self, request: Option<Uuid>) -> Self {
        self.after(request, |mounts| mounts.saturating_add(1))
    }

    /// The holder after a request to unmount the volume.
    #[must_use]
    pub fn once_less(&self, request: Option<Uuid>) -> Self {
        self.after(request, |mounts| mounts.saturating_sub(1))
    }

    /// The holder as if this request to mount the volume had not been made.
    #[must_use]
    pub fn without(&self, request: Option<Uuid>) -> Self {
        let mut holder = self.once_less(None);
        if let Self::FrontEnd { counted, .. } = &mut holder {
            counted.retain(|id| Some(*id) != request);
        }
        holder
    }

    fn after(&self, request: Option<Uuid>, count: impl FnOnce(u32) -> u32) -> Self {
        let mut holder = self.clone();
        if let Self::FrontEnd { mounts, counted, .. } = &mut holder
            && request.is_none_or(|id| !counted.contains(&id))
        {
            *mounts = count(*mounts);
            counted.extend(request);
            let n_forgotten = counted.len().saturating_sub(REMEMBERED);
            counted.drain(..n_forgotten);
        }
        holder
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

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(counted: Vec<Uuid>) -> Holder {
        Holder::FrontEnd { user: LeaseUser { front_end: FrontEnd::Docker, id: "c1".into() }, mounts: 1, counted }
    }

    #[test]
    fn a_request_is_counted_once_however_often_it_is_repeated() {
        let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let once = holder(vec![first]);
        assert_eq!(once.once_more(Some(first)), once);
        let twice = once.once_more(Some(second));
        assert_eq!(twice.mounts(), Some(2));
        assert_eq!(twice.once_more(Some(first)).once_more(Some(second)), twice);
        assert_eq!(twice.without(Some(second)), once);
        let third = Some(Uuid::from_u128(3));
        let returned = twice.once_less(third);
        assert_eq!((returned.mounts(), returned.once_less(third)), (Some(1), returned.clone()));
        // Requests without an id are all different.
        assert_eq!(once.once_more(None).once_more(None).mounts(), Some(3));
    }

    #[test]
    fn the_latest_requests_are_remembered() {
        let requests = (0..2 * REMEMBERED as u128).map(Uuid::from_u128);
        let last = requests.fold(holder(Vec::new()), |holder, request| holder.once_more(Some(request)));
        let Holder::FrontEnd { counted, .. } = &last else { unreachable!() };
        assert_eq!((counted.len(), last.mounts()), (REMEMBERED, Some(129)));
        assert_eq!(last.once_more(counted.last().copied()), last);
    }

    #[test]
    fn a_record_without_an_selinux_context_is_read_and_one_with_it_keeps_it() {
        let old = r#"{"id":"00000000-0000-0000-0000-000000000007","tenant":"db","volume":"p/v","pid":42,"start_time_ticks":9}"#;
        let lease: Lease = serde_json::from_str(old).unwrap();
        assert_eq!((lease.selinux_context.as_ref(), serde_json::to_string(&lease).unwrap().as_str()), (None, old));
        let context = Some("system_u:object_r:container_file_t:s0:c1,c2".parse().unwrap());
        let lease = Lease { selinux_context: context, ..lease };
        assert_eq!(serde_json::from_str::<Lease>(&serde_json::to_string(&lease).unwrap()).unwrap(), lease);
        let hostile = old.replace("\"pid\"", "\"selinux_context\":\"u:r:t\\\"\",\"pid\"");
        assert!(serde_json::from_str::<Lease>(&hostile).is_err(), "{hostile}");
    }

    #[test]
    fn a_record_without_counted_requests_is_read() {
        let old = r#"{"user":{"front_end":"docker","id":"c1"},"mounts":1}"#;
        assert_eq!(serde_json::from_str::<Holder>(old).unwrap(), holder(Vec::new()));
        assert_eq!(serde_json::to_string(&holder(Vec::new())).unwrap(), old);
    }
}
