//! The driver's features, and the state and parameters of its devices.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_core::units::Bytes;
use rustix::process::Pid;

use super::uapi;
use crate::process::Handle;
use crate::roots::Roots;

/// Optional features of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(pub(super) u64);

impl Features {
    /// Whether a live device can be resized (`UBLK_F_UPDATE_SIZE`, Linux 6.16).
    #[must_use]
    pub fn can_resize(self) -> bool {
        self.0 & uapi::F_UPDATE_SIZE != 0
    }
}

/// State of a device (`UBLK_S_DEV_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not started, or stopped.
    Dead,
    /// Served.
    Live,
    /// Its server has exited: requests wait for the next one.
    Quiesced,
    /// Another state, by its number.
    Other(u16),
}

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number: its disk is `/dev/ublkb<id>`.
    pub id: u32,
    /// Its state.
    pub state: State,
    /// Its server, which may have exited.
    pub server_pid: Option<u32>,
    /// Set by its creator, and stored by the kernel without interpretation.
    pub owner: u64,
    /// Number of queues.
    pub queues: u16,
    /// Maximum number of requests in flight per queue.
    pub depth: u16,
    /// Size of the largest request.
    pub max_io_bytes: u32,
}

impl DeviceInfo {
    /// The kernel name of its disk.
    #[must_use]
    pub fn name(&self) -> String {
        format!("ublkb{}", self.id)
    }

    /// Its server, if it is alive.
    ///
    /// # Errors
    /// The operating system's.
    pub fn server(&self) -> io::Result<Option<Handle>> {
        let pid = self.server_pid.filter(|_| self.state == State::Live);
        let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let server = pid.map_or(Ok(None), Handle::open)?;
        // A zombie may still exist until its parent reaps it.
        Ok(match server {
            Some(server) if server.wait_until_ended(Duration::ZERO)? => None,
            server => server,
        })
    }

    /// The disk's node.
    #[must_use]
    pub fn node(&self, roots: &Roots) -> PathBuf {
        roots.dev.join(self.name())
    }
}

/// Specification of a new device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Identifies the device later.
    pub owner: u64,
    /// Number of queues.
    pub queues: u16,
    /// Maximum number of requests in flight per queue.
    pub depth: u16,
    /// Size of the largest request, a multiple of the page size.
    pub max_io_bytes: u32,
}

/// Parameters of a device for the block layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Its size.
    pub size: Bytes,
    /// Logical block size in bytes, a power of two from 512 to the page size.
    pub block_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// It is on a rotating disk.
    pub rotational: bool,
    /// Completed writes may be lost until a flush, unless they have FUA.
    pub volatile_cache: bool,
    /// Largest range of a discard; zero if unsupported.
    pub max_discard: Bytes,
    /// Largest range of a write-zeroes request; zero if unsupported.
    pub max_zeroes: Bytes,
}

pub(super) fn device_info(info: uapi::Info) -> DeviceInfo {
    DeviceInfo {
        id: info.id,
        state: match info.state {
            0 => State::Dead,
            1 => State::Live,
            2 => State::Quiesced,
            other => State::Other(other),
        },
        server_pid: u32::try_from(info.pid).ok().filter(|pid| *pid != 0),
        owner: info.owner,
        queues: info.queues,
        depth: info.depth,
        max_io_bytes: info.max_io_bytes,
    }
}
