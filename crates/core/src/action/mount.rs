//! Actions on mounts and on what is mounted.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::DeviceRef;
use crate::cgroup::CgroupPath;
use crate::model::{FsKind, MountOptions, SelinuxContext};
use crate::units::Bytes;

/// Actions on mounts and on what is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each variant's fields say what its Display sentence says")]
pub enum MountAction {
    /// Mounts with `noatime`, and with `nosuid,nodev` unless the options say otherwise.
    Mount {
        device: DeviceRef,
        fs: FsKind,
        target: PathBuf,
        read_only: bool,
        nouuid: bool,
        #[serde(default, skip_serializing_if = "MountOptions::is_default")]
        options: MountOptions,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        selinux_context: Option<SelinuxContext>,
    },
    /// Binds the node of a raw volume's device to a file at the target, which has the same path as long as the volume is
    /// attached. What is in the device is not looked at.
    BindDevice { device: DeviceRef, target: PathBuf },
    /// Removes the node of a raw volume's device at the target, and the file below it. Refuses while the device is open,
    /// or its node is bound elsewhere.
    UnbindDevice { device: DeviceRef, target: PathBuf },
    /// Writes everything that the page cache has of a raw volume's device.
    SyncDevice { device: DeviceRef },
    /// Unmounts what is mounted at the target, if anything.
    Unmount { target: PathBuf },
    /// Writes everything that a mounted file system has cached.
    SyncFs { target: PathBuf },
    /// Discards the free blocks of a mounted file system in part of its range (FITRIM). The process that does so joins the cgroup.
    TrimFs { target: PathBuf, cgroup: CgroupPath, start_bytes: Bytes, length_bytes: Bytes },
    /// Lets peers in the same domain read a mounted volume's page cache.
    AttachPeer { device: DeviceRef, volume: Uuid, target: PathBuf, domain: String },
    /// Stops that, since open files of the peer reader would prevent the unmount.
    DetachPeer { volume: Uuid },
}

impl fmt::Display for MountAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use MountAction as A;
        match self {
            A::Mount { device, fs, target, read_only, options, selinux_context, .. } => {
                let how = if *read_only { ",ro" } else { "" };
                match &options.subdir {
                    None => write!(f, "mount {fs} of {device} at {}", target.display())?,
                    Some(subdir) => write!(f, "mount directory {subdir} of {fs} of {device} at {}", target.display())?,
                }
                write!(f, " ({options},noatime{how}")?;
                if let Some(context) = selinux_context {
                    write!(f, ",context=\"{context}\"")?;
                }
                f.write_str(")")
            }
            A::BindDevice { device, target } => write!(f, "bind the node of {device} at {}", target.display()),
            A::UnbindDevice { target, .. } => write!(f, "remove the device node at {}", target.display()),
            A::SyncDevice { device } => write!(f, "sync {device}"),
            A::Unmount { target } => write!(f, "unmount {}", target.display()),
            A::SyncFs { target } => write!(f, "sync the file system at {}", target.display()),
            A::TrimFs { target, start_bytes, length_bytes, .. } => {
                let end = Bytes(start_bytes.0.saturating_add(length_bytes.0));
                write!(f, "trim the file system at {} from {start_bytes} to {end}", target.display())
            }
            A::AttachPeer { target, .. } => write!(f, "let peers read the cached blocks of {}", target.display()),
            A::DetachPeer { volume } => write!(f, "stop peers from reading volume {volume}"),
        }
    }
}
