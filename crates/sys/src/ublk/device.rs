//! What the driver says of itself and of its devices.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_core::units::Bytes;
use rustix::process::Pid;

use super::uapi;
use crate::process::Handle;
use crate::roots::Roots;

/// What the driver can do, as far as Bulkhead makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(pub(super) u64);

impl Features {
    /// A live device can change its size (`UBLK_F_UPDATE_SIZE`, Linux 6.16).
    #[must_use]
    pub fn can_resize(self) -> bool {
        self.0 & uapi::F_UPDATE_SIZE != 0
    }
}

/// State of a device (`UBLK_S_DEV_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Made and not started, or stopped.
    Dead,
    /// Served.
    Live,
    /// Its server is gone: requests wait for the next one.
    Quiesced,
    /// Anything else, by its number.
    Other(u16),
}

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number: its disk is `/dev/ublkb<id>`.
    pub id: u32,
    /// Its state.
    pub state: State,
    /// The process that serves it, also when that is gone.
    pub server_pid: Option<u32>,
    /// What its maker wrote on it; the kernel keeps it and takes no notice.
    pub owner: u64,
    /// Number of queues.
    pub queues: u16,
    /// Requests under way in each queue at most.
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

    /// The process that serves it, if it is there.
    ///
    /// # Errors
    /// The operating system's.
    pub fn server(&self) -> io::Result<Option<Handle>> {
        let pid = self.server_pid.filter(|_| self.state == State::Live);
        let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let server = pid.map_or(Ok(None), Handle::open)?;
        // One that has ended may still be there until its parent has asked how.
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

/// What a new device is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Written on it, so that it is found again.
    pub owner: u64,
    /// Number of queues.
    pub queues: u16,
    /// Requests under way in each queue at most.
    pub depth: u16,
    /// Size of the largest request, a multiple of the page size.
    pub max_io_bytes: u32,
}

/// What a device says about itself to the block layer. All have a volatile cache and FUA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Its size.
    pub size: Bytes,
    /// Logical block, a power of two from 512 to the page size, in bytes.
    pub block_bytes: u32,
    /// Nothing can be written.
    pub read_only: bool,
    /// It lies on a rotating disk.
    pub rotational: bool,
    /// What it has taken may be lost unless it is flushed or written with FUA.
    pub volatile_cache: bool,
    /// The largest range that one request discards; zero when it cannot.
    pub max_discard: Bytes,
    /// The largest range that one request zeroes; zero when it cannot.
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
