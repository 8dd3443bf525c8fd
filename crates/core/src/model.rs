//! The recorded objects: pools, volumes, tenants, leases, devices, holds.
//!
//! These types are the bodies of state files (docs/formats/state.md) and the content of LVM tags.

mod device;
mod front_end;
mod fs;
mod hold;
mod lease;
mod pool;
mod read_from;
mod selinux;
mod tenant;
#[cfg(test)]
mod tests;
mod volume;

pub use self::device::{Calibration, DeviceRecord, Isolation, Policy, QueueSettings, StoredCosts};
pub use self::front_end::FrontEnd;
pub use self::fs::{FsKind, Provision, Repair, VolumeFs};
pub use self::hold::{HeldJournal, HeldTenant, Hold, IoMax, Mode, RateLimit, Unit};
pub use self::lease::{Holder, Lease, LeaseUser};
pub use self::pool::{Pool, PoolSource, Server};
pub use self::read_from::ReadFrom;
pub(crate) use self::read_from::read_from_tag;
pub use self::selinux::{MAX_SELINUX_CONTEXT_BYTES, SelinuxContext, SelinuxContextError};
pub use self::tenant::{IoLimit, Profile, Tenant};
pub use self::volume::{Mapping, MountOptions, Volume, VolumeRef, VolumeRefError, VolumeState};
