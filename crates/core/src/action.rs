//! Actions: everything that Bulkhead changes on a host.
//!
//! Invariant 1: each write to the kernel or to the state is an `Action`; `--dry-run` prints the actions and changes
//! nothing. Each action is idempotent: applied a second time, it changes nothing and succeeds.

mod cgroup;
mod fs;
mod image;
mod layer;
mod lvm;
mod mount;
mod queue;
mod server;
mod state;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use self::cgroup::CgroupAction;
pub use self::fs::FsAction;
pub use self::image::ImageAction;
pub use self::layer::LayerAction;
pub use self::lvm::LvmAction;
pub use self::mount::MountAction;
pub use self::queue::QueueAction;
pub use self::server::ServerAction;
pub use self::state::StateAction;
use crate::model::{DeviceRecord, Hold, Lease, Mapping, Pool, Tenant, Volume};
use crate::units::Bytes;

/// A block device, identified by its source, so that a plan can name it before it exists.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceRef {
    /// The block device of an image.
    Image {
        /// The image.
        image: PathBuf,
        /// Its volume.
        volume: Uuid,
    },
    /// A logical volume.
    Lv {
        /// Volume group.
        vg: String,
        /// Logical volume.
        lv: String,
    },
}

impl fmt::Display for DeviceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceRef::Image { image, .. } => write!(f, "block device of {}", image.display()),
            DeviceRef::Lv { vg, lv } => write!(f, "/dev/{vg}/{lv}"),
        }
    }
}

/// The body of a state file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// `pools/NAME` on the host and `bulkhead-pool` inside a directory pool.
    Pool(Pool),
    /// `NAME.volume` beside the image.
    Volume(Volume),
    /// `tenants/NAME`.
    Tenant(Tenant),
    /// `leases/ID` under the runtime directory.
    Lease(Lease),
    /// `devices/NAME`: a device's calibration, and its configuration from before Bulkhead's changes.
    Device(DeviceRecord),
    /// `holds/DEVICE` under the runtime directory.
    Hold(Hold),
    /// `mappings/UUID` under the runtime directory, by the UUID of the volume.
    Mapping(Mapping),
}

impl Record {
    /// The word that opens the state file.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Record::Pool(_) => "pool",
            Record::Volume(_) => "volume",
            Record::Tenant(_) => "tenant",
            Record::Lease(_) => "lease",
            Record::Device(_) => "device",
            Record::Hold(_) => "hold",
            Record::Mapping(_) => "mapping",
        }
    }
}

/// One step, by facet. Paths of cgroups are relative to the cgroup v2 root.
///
/// Each facet has a file in `action`, with its actions and their messages, and one in the engine's `kernel`, which
/// carries them out. The JSON does not mention facets: it has the action's name, which is unique among all facets
/// (`"action": "make_dir"`), beside its fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Action {
    /// See [`StateAction`].
    State(StateAction),
    /// See [`ImageAction`].
    Image(ImageAction),
    /// See [`LayerAction`].
    Layer(LayerAction),
    /// See [`ServerAction`].
    Server(ServerAction),
    /// See [`LvmAction`].
    Lvm(LvmAction),
    /// See [`FsAction`].
    Fs(FsAction),
    /// See [`MountAction`].
    Mount(MountAction),
    /// See [`CgroupAction`].
    Cgroup(CgroupAction),
    /// See [`QueueAction`].
    Queue(QueueAction),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::State(action) => action.fmt(f),
            Action::Image(action) => action.fmt(f),
            Action::Layer(action) => action.fmt(f),
            Action::Server(action) => action.fmt(f),
            Action::Lvm(action) => action.fmt(f),
            Action::Fs(action) => action.fmt(f),
            Action::Mount(action) => action.fmt(f),
            Action::Cgroup(action) => action.fmt(f),
            Action::Queue(action) => action.fmt(f),
        }
    }
}

/// An action that was applied, or in a dry run would be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Applied {
    /// The step.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub action: Action,
    /// The previous value, if there is one (a weight, a scheduler, a thread's cgroup).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// Whether anything changed; `false` if it was done before, and in a dry run.
    pub changed: bool,
    /// The number of bytes discarded, for actions that discard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discarded_bytes: Option<Bytes>,
}
