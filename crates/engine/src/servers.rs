//! Supervises block servers: one that dies is replaced at once, whatever else the daemon is doing.
//!
//! It has a thread of its own because the daemon itself, and everything that waits for it, may be waiting for a volume's I/O. Successors are
//! started in parallel, so that one whose disk hangs does not delay the others.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bulkhead_core::backend::device_owner;
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::error::{Code, Fault, chain};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::health::{self, HOST};
use bulkhead_core::serve::ServeSpec;
use bulkhead_formats::servers::{self, RegistryChanges, RegistryWatcher};
use bulkhead_sys::background;
use bulkhead_sys::process::Handle;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::ublk::{Control, State};
use uuid::Uuid;

use crate::host::Host as _;
use crate::kernel::Kernel;

/// How long the starting daemon waits for successors of servers that are gone.
const FIRST_LIMIT: Duration = Duration::from_secs(20);

/// The first and the longest delay before a failed start is retried; it doubles each time.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));

/// A server that exits within this time of its start counts as failed.
const MIN_UPTIME: Duration = Duration::from_secs(2);

/// Most successors that are started at a time.
const MAX_STARTING: usize = 16;

/// Starts successors for the servers that are gone now, and a thread that does so for later ones until this process
/// exits.
///
/// # Errors
/// `Internal` when the servers cannot be watched.
pub fn watch_servers(kernel: Arc<Kernel>) -> Result<(), Fault> {
    let failed =
        |error: io::Error| Fault::new(Code::Internal, "block servers", format!("they cannot be watched: {error}"));
    let watcher = Arc::new(RegistryWatcher::new(&Roots::host()).map_err(failed)?);
    let (started, ended) = channel();
    let starter = Starter { roots: Roots::host(), kernel, watcher: Arc::clone(&watcher), started };
    let mut servers = Servers {
        starter: Arc::new(starter),
        ended,
        devices: BTreeMap::new(),
        due: BTreeMap::new(),
        queue: BTreeSet::new(),
        tries: BTreeMap::new(),
    };
    let (settled, is_settled) = channel();
    let supervise = move || {
        if let Err(error) = background::set_io_flusher() {
            let evidence = format!(
                "when memory is short, a new block server may wait for I/O on the volume that it is to serve: {}",
                chain(&error)
            );
            servers.starter.kernel.conditions().set(Finding::new(FindingId::ServersMayDeadlock, HOST, evidence));
        }
        // Devices that exist already cause no events: check all of them.
        let mut changes = RegistryChanges { overflowed: true, ..RegistryChanges::default() };
        loop {
            let overflowed = changes.overflowed;
            let found = servers.settle(changes);
            if found.settled {
                // The receiver waits for the first message only.
                let _ = settled.send(());
            }
            changes = watcher.wait(found.again);
            changes.overflowed |= overflowed && found.is_unknown;
        }
    };
    thread::Builder::new().name("servers".to_owned()).spawn(supervise).map_err(failed)?;
    if is_settled.recv_timeout(FIRST_LIMIT).is_err() {
        tracing::warn!("a block server that is gone has no successor yet: I/O on its volume waits");
    }
    Ok(())
}

/// What is needed to start a successor; shared with the threads that do so.
struct Starter {
    roots: Roots,
    kernel: Arc<Kernel>,
    watcher: Arc<RegistryWatcher>,
    /// Where those threads report the outcome.
    started: Sender<(Uuid, Result<(), String>)>,
}

struct Servers {
    starter: Arc<Starter>,
    ended: Receiver<(Uuid, Result<(), String>)>,
    /// Our devices, by their numbers.
    devices: BTreeMap<u32, Device>,
    /// When to check a device again without an event.
    due: BTreeMap<u32, Instant>,
    /// Devices without a server that wait for their turn to get one.
    queue: BTreeSet<u32>,
    /// Volumes whose servers are gone.
    tries: BTreeMap<Uuid, Try>,
}

/// A device, as registered.
struct Device {
    volume: Uuid,
    image: PathBuf,
    /// Its server while that is running; its exit is waited for.
    server: Option<Handle>,
}

/// The attempts to replace a server.
#[derive(Debug, Default)]
struct Try {
    is_starting: bool,
    /// The number of failures.
    failed: u32,
    next: Option<Instant>,
    /// The reason of the last failure.
    why: String,
    /// When a successor was started.
    started: Option<Instant>,
}

impl Try {
    /// Whether a successor was started just now.
    fn is_new(&self, now: Instant) -> bool {
        self.started.is_some_and(|at| now.saturating_duration_since(at) < MIN_UPTIME)
    }

    /// Records a failure, and schedules the next attempt.
    fn failed(&mut self, why: String, now: Instant) {
        let wait = RETRY_DELAYS.0.saturating_mul(1u32.checked_shl(self.failed).unwrap_or(u32::MAX)).min(RETRY_DELAYS.1);
        self.failed = self.failed.saturating_add(1);
        (self.is_starting, self.started, self.next) = (false, None, Some(now + wait));
        self.why = why;
    }
}

/// The result of a check of servers.
struct Found {
    /// When to check again without an event.
    again: Option<Duration>,
    /// Whether every missing server has a successor, or cannot have one now.
    settled: bool,
    /// The servers could not be listed.
    is_unknown: bool,
}

impl Servers {
    /// Checks the devices with events and those that are due, and starts successors.
    fn settle(&mut self, changes: RegistryChanges) -> Found {
        let now = Instant::now();
        let tried: Vec<(Uuid, Result<(), String>)> = self.ended.try_iter().collect();
        for (volume, outcome) in tried {
            self.record_try(volume, outcome, now);
        }
        match self.to_check(changes, now) {
            Ok(entries) => {
                let mut control = None;
                for (id, spec) in entries {
                    self.due.remove(&id);
                    self.queue.remove(&id);
                    match spec {
                        Some(spec) => self.check_device(&mut control, id, spec, now),
                        None => self.remove(id),
                    }
                }
            }
            Err(error) => {
                let evidence = format!("the block servers cannot be listed ({error})");
                self.starter.kernel.conditions().set(Finding::new(FindingId::ServersUnlisted, HOST, evidence));
                return Found { again: Some(RETRY_DELAYS.0), settled: false, is_unknown: true };
            }
        }
        self.starter.kernel.conditions().clear(FindingId::ServersUnlisted, HOST);
        self.report_gone();
        let again = self.due.values().min().map(|due| due.saturating_duration_since(now));
        Found { again, settled: self.n_starting() == 0 && self.queue.is_empty(), is_unknown: false }
    }

    /// The devices to check now with their entries; `None` for those that are no longer registered.
    fn to_check(&self, changes: RegistryChanges, now: Instant) -> io::Result<Vec<(u32, Option<ServeSpec>)>> {
        let roots = &self.starter.roots;
        if changes.overflowed {
            let entries: BTreeMap<u32, ServeSpec> = servers::list(roots)?.into_iter().collect();
            let gone: Vec<u32> = self.devices.keys().filter(|id| !entries.contains_key(id)).copied().collect();
            let entries = entries.into_iter().map(|(id, spec)| (id, Some(spec)));
            return Ok(entries.chain(gone.into_iter().map(|id| (id, None))).collect());
        }
        let mut ids = changes.devices;
        ids.extend(self.due.iter().filter(|(_, due)| **due <= now).map(|(id, _)| *id));
        ids.extend(self.queue.iter().take(MAX_STARTING.saturating_sub(self.n_starting())));
        Ok(ids.into_iter().map(|id| (id, servers::spec_of_device(roots, id))).collect())
    }

    fn n_starting(&self) -> usize {
        self.tries.values().filter(|tried| tried.is_starting).count()
    }

    /// Records the outcome of an attempt to start a successor.
    fn record_try(&mut self, volume: Uuid, outcome: Result<(), String>, now: Instant) {
        let of_volume = self.devices.iter().filter(|(_, device)| device.volume == volume);
        let ids: Vec<u32> = of_volume.map(|(id, _)| *id).collect();
        if ids.is_empty() {
            // Its device was removed meanwhile.
            self.tries.remove(&volume);
            return;
        }
        self.due.extend(ids.into_iter().map(|id| (id, now)));
        let tried = self.tries.entry(volume).or_default();
        match outcome {
            Ok(()) => (tried.is_starting, tried.started) = (false, Some(now)),
            Err(why) => tried.failed(why, now),
        }
    }

    fn remove(&mut self, id: u32) {
        let Some(Device { volume, .. }) = self.devices.remove(&id) else { return };
        // A successor that is being started still reports its outcome.
        if self.tries.get(&volume).is_some_and(|tried| !tried.is_starting) {
            self.tries.remove(&volume);
        }
    }

    fn check_device(&mut self, control: &mut Option<Control>, id: u32, spec: ServeSpec, now: Instant) {
        let volume = spec.volume;
        // Read before the check, too: a server that was stopped on purpose may be unmarked by the time the check is done.
        let was_replacing = self.starter.kernel.is_replacing(volume);
        let found = self.starter.server(control, id, &spec);
        // Drops the handle of the previous server, which ends the wait for its exit.
        let mut device = Device { volume, image: spec.image.clone(), server: None };
        match found {
            Ok(server) => {
                if let Some(server) = server {
                    if let Err(error) = self.starter.watcher.add(id, &server) {
                        tracing::error!(%error, device = id, "cannot wait for the exit of a block server");
                        self.due.insert(id, now + RETRY_DELAYS.0);
                    }
                    device.server = Some(server);
                }
                match self.tries.get(&volume) {
                    Some(tried) if tried.is_new(now) => drop(self.due.insert(id, now + MIN_UPTIME)),
                    _ => drop(self.tries.remove(&volume)),
                }
            }
            // The thread that stopped it starts its successor or removes the device; if that fails, the next check replaces it.
            Err(_) if was_replacing || self.starter.kernel.is_replacing(volume) => {
                self.due.insert(id, now + RETRY_DELAYS.0);
            }
            Err(gone) => self.replace(id, spec, &gone, now),
        }
        self.devices.insert(id, device);
    }

    /// Replaces a server that is gone, now or later.
    fn replace(&mut self, id: u32, spec: ServeSpec, gone: &str, now: Instant) {
        let (volume, n_starting) = (spec.volume, self.n_starting());
        // A server that ran for some time is replaced without delay.
        if self.tries.get(&volume).is_some_and(|tried| tried.started.is_some() && !tried.is_new(now)) {
            self.tries.remove(&volume);
        }
        let tried = self.tries.entry(volume).or_default();
        if tried.started.is_some() {
            tried.failed("it exited again".to_owned(), now);
        }
        match tried.next {
            // Its outcome is still to be reported.
            _ if tried.is_starting => {}
            Some(next) if next > now => drop(self.due.insert(id, next)),
            _ if n_starting >= MAX_STARTING => drop(self.queue.insert(id)),
            _ => {
                if tried.failed == 0 {
                    tracing::warn!(image = %spec.image.display(), gone, "another block server takes over");
                }
                tried.is_starting = true;
                self.start(spec);
            }
        }
    }

    /// Reports images without a server whose successors do not start, or exit at once.
    fn report_gone(&self) {
        // Usually there are none, and this does not iterate over a thousand devices.
        let failed = self.tries.iter().filter(|(_, tried)| tried.failed > 0);
        let devices = failed.flat_map(|(volume, tried)| {
            self.devices.values().filter(move |device| device.volume == *volume).map(move |device| (device, tried))
        });
        let finding = |(device, tried): (&Device, &Try)| {
            let evidence = format!("its block server is gone and has no successor: {}", tried.why);
            (device.image.clone(), health::server_gone(format!("image {}", device.image.display()), evidence))
        };
        let findings: BTreeMap<PathBuf, Finding> = devices.map(finding).collect();
        let conditions = self.starter.kernel.conditions();
        conditions.keep_for_images(&FindingId::ServerGone, |image| findings.contains_key(image));
        findings.into_iter().for_each(|(image, finding)| conditions.set_for_image(&image, finding));
    }

    fn start(&self, spec: ServeSpec) {
        let (starter, volume) = (Arc::clone(&self.starter), spec.volume);
        let start = move || {
            let outcome = starter.start(&spec);
            // Fails when supervision has ended.
            let _ = starter.started.send((volume, outcome));
            starter.watcher.wake();
        };
        if let Err(error) = thread::Builder::new().name("successor".to_owned()).spawn(start) {
            // Retried like any other failure.
            let _ = self.starter.started.send((volume, Err(format!("cannot start a thread ({error})"))));
            self.starter.watcher.wake();
        }
    }
}

impl Starter {
    /// The server of a device; `None` if the device is gone or being removed. The error describes a server that is gone. The driver is
    /// opened when it is needed, and stays open.
    fn server(&self, control: &mut Option<Control>, id: u32, spec: &ServeSpec) -> Result<Option<Handle>, String> {
        let opened = match control.take() {
            Some(open) => Ok(open),
            None => Control::open(&self.roots),
        };
        let device = opened.and_then(|open| control.insert(open).info(id)).map_err(|e| chain(&e))?;
        let is_ours = |owner| owner == device_owner(spec.volume);
        let Some(device) = device.filter(|device| is_ours(device.owner) && device.state != State::Dead) else {
            return Ok(None);
        };
        match device.server().map_err(|e| e.to_string())? {
            Some(server) => Ok(Some(server)),
            None => Err(device.server_pid.map_or_else(|| "no process".to_owned(), |pid| format!("process {pid}"))),
        }
    }

    fn start(&self, spec: &ServeSpec) -> Result<(), String> {
        // The tenant may have been removed with its cgroups; when the volume gets another tenant, the server is moved to its cgroup.
        let exists = |cgroup: &CgroupPath| self.roots.cgroup_dir(cgroup).is_dir();
        let spec = ServeSpec { cgroup: spec.cgroup.clone().filter(exists), ..spec.clone() };
        self.kernel.start_successor(&spec).map_err(|fault| fault.cause)
    }
}

/// Volumes whose servers are being replaced or stopped on purpose, so that supervision leaves them alone.
#[derive(Debug, Default)]
pub(crate) struct Replacing(Mutex<BTreeMap<Uuid, usize>>);

impl Replacing {
    /// Marks a volume until the guard is dropped.
    pub(crate) fn begin(&self, volume: Uuid) -> impl Drop + '_ {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(volume).or_default() += 1;
        ReplacingGuard { replacing: self, volume }
    }

    pub(crate) fn contains(&self, volume: Uuid) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&volume)
    }
}

struct ReplacingGuard<'a> {
    replacing: &'a Replacing,
    volume: Uuid,
}

impl Drop for ReplacingGuard<'_> {
    fn drop(&mut self) {
        let mut volumes = self.replacing.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = volumes.get_mut(&self.volume) {
            *n -= 1;
            if *n == 0 {
                volumes.remove(&self.volume);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_starts_are_retried_with_exponential_backoff() {
        let now = Instant::now();
        let mut tried = Try::default();
        let mut waits = Vec::new();
        for n in 1..=40 {
            tried.failed("no memory".to_owned(), now);
            assert_eq!((tried.failed, tried.why.as_str()), (n, "no memory"));
            waits.push((tried.next.unwrap() - now).as_secs());
        }
        assert_eq!(waits[..9], [2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(waits[39], 300);
    }

    #[test]
    fn a_volume_is_marked_until_the_last_guard_is_dropped() {
        let (replacing, volume) = (Replacing::default(), Uuid::from_u128(7));
        let first = replacing.begin(volume);
        let second = replacing.begin(volume);
        drop(first);
        assert!(replacing.contains(volume) && !replacing.contains(Uuid::nil()));
        drop(second);
        assert!(!replacing.contains(volume));
    }
}
