//! Waiting for changes of the registry: entries that are written or removed, and servers that exit. The cost of a wait does not depend
//! on the number of servers.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bulkhead_sys::process::Handle;
use bulkhead_sys::roots::Roots;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fs::inotify;

use super::{device_number, dir};

/// Waits for changes of the registry.
#[derive(Debug)]
pub struct RegistryWatcher {
    epoll: OwnedFd,
    inotify: OwnedFd,
    wakeup: OwnedFd,
}

/// What has changed since the last wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryChanges {
    /// Numbers of the devices whose entries were written or removed, or whose servers have exited.
    pub devices: BTreeSet<u32>,
    /// The kernel dropped events (`IN_Q_OVERFLOW`): any device may have changed.
    pub overflowed: bool,
}

/// Keys of epoll events; the exit of a server has the number of its device as its key.
const INOTIFY_KEY: u64 = u64::MAX;
const WAKEUP_KEY: u64 = u64::MAX - 1;

/// Events that one wait returns; the next wait returns the rest.
const MAX_EVENTS: usize = 64;

impl RegistryWatcher {
    /// Watches the registry, and creates its directory if necessary.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(roots: &Roots) -> io::Result<Self> {
        fs::create_dir_all(dir(roots))?;
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&inotify, dir(roots), inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::DELETE)?;
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (fd, key) in [(&inotify, INOTIFY_KEY), (&wakeup, WAKEUP_KEY)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(key), epoll::EventFlags::IN)?;
        }
        Ok(Self { epoll, inotify, wakeup })
    }

    /// Waits for the exit of a device's server as well, until the handle is dropped.
    ///
    /// # Errors
    /// The operating system's.
    pub fn add(&self, id: u32, server: &Handle) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, server, epoll::EventData::new_u64(id.into()), epoll::EventFlags::IN)?)
    }

    /// Waits for a change, for [`wake`](Self::wake), or for `limit`. May return without a change. The exit of a server is reported by
    /// each wait until its handle is dropped.
    pub fn wait(&self, limit: Option<Duration>) -> RegistryChanges {
        let mut changes = RegistryChanges::default();
        let mut events = Vec::with_capacity(MAX_EVENTS);
        let limit = limit.map(|limit| Timespec::try_from(limit).unwrap_or_default());
        // A signal interrupts it: the caller waits again.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), limit.as_ref());
        for event in events {
            match event.data.u64() {
                INOTIFY_KEY => self.read_inotify(&mut changes),
                WAKEUP_KEY => {
                    // One read resets the counter of an eventfd.
                    let _ = rustix::io::read(&self.wakeup, &mut [0; 8]);
                }
                id => changes.devices.extend(u32::try_from(id).ok()),
            }
        }
        changes
    }

    fn read_inotify(&self, changes: &mut RegistryChanges) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        // Until none are left.
        while let Ok(event) = events.next() {
            changes.overflowed |= event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW);
            changes.devices.extend(event.file_name().and_then(|name| device_number(name.to_str().ok()?)));
        }
    }

    /// Makes the current or next [`wait`](Self::wait) return.
    pub fn wake(&self) {
        // Fails only if the counter is full, and then a wakeup is pending anyway.
        let _ = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
    }
}
