//! Actions on the block devices of images, and on the block servers behind them.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::Server;
use crate::serve::ServeSpec;
use crate::units::Bytes;

/// Actions on the block devices of images, and on the block servers behind them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each variant's fields say what its Display sentence says")]
pub enum ServerAction {
    /// Attaches an image as a block device with direct I/O, and moves its block server, if any, into the given cgroup.
    /// The image can be a thin volume's device; blocks that it shares with the snapshot `below` are read from that. An
    /// image that is attached keeps its device; its server is replaced when flattening begins or ends, or when the
    /// source of shared blocks changes.
    AttachImage {
        server: Server,
        #[serde(flatten)]
        spec: ServeSpec,
    },
    /// Grows an image's device to this size, if it is smaller.
    RefreshImage { image: PathBuf, volume: Uuid, size_bytes: Bytes },
    /// Removes an image's device, if there is one.
    DetachImage { image: PathBuf, volume: Uuid },
    /// Replaces the block server of an image, if it has layers open that were replaced or removed.
    RenewServer { image: PathBuf, volume: Uuid },
}

impl fmt::Display for ServerAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ServerAction as A;
        match self {
            A::AttachImage { server, spec: ServeSpec { image, cgroup, .. } } => {
                let how = match server {
                    Server::Auto => "serve",
                    Server::Loop => "attach to a loop device",
                };
                let cgroup = cgroup.as_ref().map_or_else(String::new, |cgroup| format!(", in cgroup {cgroup}"));
                write!(f, "{how} image {} with direct I/O{cgroup}", image.display())
            }
            A::RefreshImage { image, size_bytes, .. } => {
                write!(f, "grow the block device of {} to {size_bytes}", image.display())
            }
            A::DetachImage { image, .. } => write!(f, "remove the block device of {}", image.display()),
            A::RenewServer { image, .. } => write!(f, "restart the block server of {}", image.display()),
        }
    }
}
