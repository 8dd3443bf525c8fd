//! Cgroups and the journal threads in them. Where systemd is process 1, a cgroup with the path of a slice is a unit as well: systemd starts and
//! stops it, and gets its weights and limits, or it would set its own the next time that the unit is changed.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use bulkhead_api::wire::IoBytes;
use bulkhead_core::action::{CgroupAction, DeviceRef};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::identity::Identity;
use bulkhead_core::model::{FsKind, IoMax, RateLimit};
use bulkhead_core::observe::shares::Weights;
use bulkhead_core::slices;
use bulkhead_core::tenant::WEIGHT_FILES;
use bulkhead_core::units::DevNo;
use bulkhead_formats::servers;
use bulkhead_sys::cgroup::{self, CgroupError, IoLimits};
use bulkhead_sys::jbd2::{self, Jbd2Error};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::systemd::{self, Manager, Property};
use bulkhead_sys::{block, process};

use super::Kernel;
use super::act::Outcome;
use super::devices::device_name;
use super::faults::Classify;
use crate::host::{Cgroups, JournalFacts, Processes as _};
use crate::observe::containers;

/// Controllers that a tenant's cgroups cannot do without: io for the shares, memory so that write-back is charged to its owner.
/// Controller cpu is enabled by actions of its own, each of which may be refused.
pub(super) const CONTROLLERS: [&str; 2] = ["io", "memory"];

/// How often moving the processes of a cgroup is repeated, since new ones may appear meanwhile.
const MAX_MOVES: usize = 100;

/// The slice above all tenants, which is removed with the last one. Nothing is created in it meanwhile: a cgroup created between the check and
/// the removal would prevent the removal, and systemd stops everything in a slice together with it.
#[derive(Debug, Default)]
pub(super) struct RootSlice(RwLock<()>);

impl RootSlice {
    /// Prevents the removal of the slice until the guard is dropped.
    fn keep(&self) -> impl Drop + '_ {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the slice if it is empty.
    fn remove_if_empty<T>(&self, is_empty: impl FnOnce() -> bool, remove: impl FnOnce() -> T) -> Option<T> {
        let _alone = self.0.write().unwrap_or_else(PoisonError::into_inner);
        is_empty().then(remove)
    }
}

impl Kernel {
    pub(super) fn act_on_cgroup(&self, action: &CgroupAction) -> Result<Outcome, Fault> {
        use CgroupAction as A;
        match action {
            A::CreateCgroup { cgroup } => self.create_cgroup(cgroup),
            A::MoveProcesses { from, to } => self.move_processes(from, to),
            A::EnableController { cgroup, controller } => {
                let old = cgroup::enable(&self.roots, cgroup, &[controller])
                    .map_err(|e| e.fault(format!("cgroup {cgroup}")))?;
                Ok(Outcome { changed: old.is_some(), old, ..Outcome::DONE })
            }
            A::WriteCgroup { cgroup, file, value } => self.write_cgroup(cgroup, file, value),
            A::SetWeight { cgroup, file, device, weight } => {
                let dev = block::devno_of_name(&self.roots, device.as_str()).ok_or_else(|| {
                    Fault::new(Code::NotFound, format!("device {device}"), "the device no longer exists")
                })?;
                let before = self.weights(cgroup, file)?.ok_or_else(|| no_weight(cgroup, file))?;
                let old = before.on(dev);
                if before.has_own(dev) && old == u64::from(*weight) {
                    return Ok(Outcome::UNCHANGED);
                }
                self.write_cgroup(cgroup, file, &format!("{dev} {weight}"))?;
                Ok(Outcome { changed: true, old: Some(old.to_string()), ..Outcome::DONE })
            }
            A::ResetWeight { cgroup, file, device } => {
                // The weights on a device disappear with it.
                let Some(dev) = block::devno_of_name(&self.roots, device.as_str()) else {
                    return Ok(Outcome::UNCHANGED);
                };
                match self.weights(cgroup, file)? {
                    Some(before) if before.has_own(dev) => {
                        self.write_cgroup(cgroup, file, &format!("{dev} default"))?;
                        Ok(Outcome { changed: true, old: Some(before.on(dev).to_string()), ..Outcome::DONE })
                    }
                    _ => Ok(Outcome::UNCHANGED),
                }
            }
            A::LimitIo { cgroup, device, limit } => {
                let Some(dev) = block::devno_of_name(&self.roots, device.as_str()) else {
                    return Ok(Outcome::UNCHANGED);
                };
                match self.io_max(cgroup, dev)?.map(|before| before.restricted_to(*limit)) {
                    Some(before) if before != *limit => {
                        self.write_cgroup(cgroup, "io.max", &format!("{dev} {limit}"))?;
                        Ok(Outcome { changed: true, old: Some(before.to_string()), ..Outcome::DONE })
                    }
                    _ => Ok(Outcome::UNCHANGED),
                }
            }
            A::RemoveCgroup { cgroup } => self.remove_cgroup(cgroup),
            A::PlaceJournal { device, fs, cgroup } => self.place_journal(device, *fs, cgroup),
            // The thread ends with its file system.
            A::MoveJournal { device, cgroup } => match jbd2::place(&self.roots, device.as_str(), cgroup) {
                Ok(placed) => {
                    Ok(Outcome { old: Some(placed.from.to_string()), changed: placed.moved, ..Outcome::DONE })
                }
                Err(Jbd2Error::NoThread { .. }) => Ok(Outcome::UNCHANGED),
                Err(error) => Err(error.fault(format!("device {device}"))),
            },
        }
    }

    pub(super) fn create_cgroup(&self, cgroup: &CgroupPath) -> Result<Outcome, Fault> {
        let _stays = self.root_slice.keep();
        let mut started = false;
        if let Some((systemd, unit)) = self.unit_of(cgroup) {
            if !cgroup::exists(&self.roots, cgroup) {
                systemd.invalidate(unit);
                started = true;
            }
            systemd.start(unit).map_err(|e| e.fault(format!("unit {unit}")))?;
        }
        let created =
            cgroup::create(&self.roots, cgroup, &CONTROLLERS).map_err(|e| e.fault(format!("cgroup {cgroup}")))?;
        Ok(Outcome::changed(created || started))
    }

    /// See [`Host::start_run`](crate::host::Host::start_run).
    pub(super) fn start_run_in(&self, payload: &CgroupPath, pid: u32, command_pid: u32) -> Result<CgroupPath, Fault> {
        let object = || format!("process {command_pid}");
        match process::parent(&self.roots, command_pid) {
            None => return Err(Fault::new(Code::NotFound, object(), "there is no such process")),
            Some(parent) if parent != pid => {
                let cause =
                    format!("its parent is process {parent}, but must be process {pid}, the one that waits for it");
                return Err(Fault::new(Code::InvalidArgument, object(), cause));
            }
            Some(_) => {}
        }
        let below = |name: &str| payload.join(name).map_err(|error| Fault::new(Code::Internal, object(), error));
        if let Some((systemd, slice)) = self.unit_of(payload) {
            let unit = slices::run(pid, true);
            systemd.start_scope(&unit, slice, command_pid).map_err(|e| e.fault(format!("unit {unit}")))?;
            return below(&unit);
        }
        let cgroup = below(&slices::run(pid, false))?;
        cgroup::create(&self.roots, &cgroup, &[]).map_err(|e| e.fault(format!("cgroup {cgroup}")))?;
        cgroup::move_pid(&self.roots, command_pid, &cgroup).map_err(|e| e.fault(object()))?;
        Ok(cgroup)
    }

    pub(super) fn remove_cgroup(&self, cgroup: &CgroupPath) -> Result<Outcome, Fault> {
        if *cgroup == slices::root() {
            // It may hold the cgroups of another daemon.
            let is_empty = || cgroup::children(&self.roots, cgroup).unwrap_or_default().is_empty();
            let removed = self.root_slice.remove_if_empty(is_empty, || self.remove(cgroup, cgroup::remove));
            return removed.unwrap_or(Ok(Outcome::UNCHANGED));
        }
        self.remove(cgroup, cgroup::remove_tree)
    }

    fn remove(
        &self,
        cgroup: &CgroupPath,
        remove: impl FnOnce(&Roots, &CgroupPath) -> Result<bool, CgroupError>,
    ) -> Result<Outcome, Fault> {
        if !cgroup::exists(&self.roots, cgroup) {
            return Ok(Outcome::UNCHANGED);
        }
        // systemd would end the processes in it.
        if self.processes(cgroup).is_empty()
            && let Some((systemd, unit)) =
                self.unit_of(cgroup).or_else(|| self.systemd.as_ref().zip(systemd::scope_of(cgroup)))
        {
            systemd.stop(unit).map_err(|e| e.fault(format!("unit {unit}")))?;
        }
        remove(&self.roots, cgroup).map_err(|e| e.fault(format!("cgroup {cgroup}")))?;
        Ok(Outcome::DONE)
    }

    pub(super) fn move_processes(&self, from: &CgroupPath, to: &CgroupPath) -> Result<Outcome, Fault> {
        let mut moved = false;
        for _ in 0..MAX_MOVES {
            let pids = match cgroup::procs(&self.roots, from) {
                Err(CgroupError::NotFound { .. }) => break,
                pids => pids.map_err(|e| e.fault(format!("cgroup {from}")))?,
            };
            if pids.is_empty() {
                break;
            }
            // Without controllers below its parent, which has processes.
            cgroup::create(&self.roots, to, &[]).map_err(|e| e.fault(format!("cgroup {to}")))?;
            for pid in pids {
                match cgroup::move_pid(&self.roots, pid, to) {
                    Ok(()) => moved = true,
                    Err(CgroupError::NoProcess { .. }) => {}
                    Err(error) => return Err(error.fault(format!("process {pid}"))),
                }
            }
        }
        Ok(Outcome::changed(moved))
    }

    pub(super) fn write_cgroup(&self, cgroup: &CgroupPath, file: &str, value: &str) -> Result<Outcome, Fault> {
        let object = || format!("cgroup {cgroup}");
        let now = cgroup::read(&self.roots, cgroup, file).map_err(|e| e.fault(object()))?;
        let is_so = now.lines().any(|line| line.trim() == value);
        if let Some(((systemd, unit), property)) = self.unit_of(cgroup).zip(property(file, value)) {
            let fault = |error: systemd::SystemdError| error.fault(format!("unit {unit}"));
            if !is_so {
                // The unit may have been stopped, and started without its properties.
                systemd.invalidate(unit);
                systemd.start(unit).map_err(fault)?;
            }
            systemd.set(unit, &property).map_err(fault)?;
        }
        if is_so {
            return Ok(Outcome::UNCHANGED);
        }
        let old = cgroup::write(&self.roots, cgroup, file, value).map_err(|e| e.fault(object()))?;
        Ok(Outcome { old: Some(old.trim().to_owned()), changed: true, ..Outcome::DONE })
    }

    /// The unit that a cgroup belongs to, where it is one of systemd's slices.
    fn unit_of<'a>(&'a self, path: &'a CgroupPath) -> Option<(&'a Manager, &'a str)> {
        self.systemd.as_ref().zip(systemd::slice_of(path))
    }

    /// The content of a weight file; `None` if the cgroup is gone or does not have it.
    pub(super) fn weights(&self, cgroup: &CgroupPath, file: &str) -> Result<Option<Weights>, Fault> {
        let text = match cgroup::read(&self.roots, cgroup, file) {
            Ok(text) => text,
            Err(CgroupError::NotFound { .. } | CgroupError::NoFile { .. }) => return Ok(None),
            Err(error) => return Err(error.fault(format!("cgroup {cgroup}"))),
        };
        Weights::parse(&text).map(Some).ok_or_else(|| {
            Fault::new(Code::Internal, format!("cgroup {cgroup}"), format!("cannot parse {file}: {text:?}"))
        })
    }

    fn place_journal(&self, device: &DeviceRef, fs: FsKind, cgroup: &CgroupPath) -> Result<Outcome, Fault> {
        let (_, name) = self.kernel_name(device)?;
        let placed = match fs {
            FsKind::Ext4 => jbd2::place(&self.roots, &name, cgroup),
            FsKind::Xfs => jbd2::place_kthread(&self.roots, "xfsaild", &name, cgroup),
        }
        .map_err(|e| e.fault(device))?;
        Ok(Outcome { old: Some(placed.from.to_string()), changed: placed.moved, ..Outcome::DONE })
    }

    fn io_of(&self, cgroup: &CgroupPath, dev: DevNo) -> Option<cgroup::IoStat> {
        cgroup::io_stat(&self.roots, cgroup).ok()?.remove(&dev)
    }
}

impl Cgroups for Kernel {
    fn weight_files(&self) -> Vec<&'static str> {
        // Before the first tenant there is no slice yet: io.cost.qos in the root stands for io.weight below it.
        let dir = self.roots.cgroup_dir(&slices::root());
        let has = |file: &&str| {
            dir.join(file).exists()
                || (!dir.exists() && *file == "io.weight" && self.roots.cgroup.join("io.cost.qos").exists())
        };
        WEIGHT_FILES.iter().copied().filter(|file| has(file)).collect()
    }

    fn controllers(&self) -> BTreeSet<String> {
        cgroup::controllers(&self.roots).unwrap_or_default()
    }

    fn containers(&self) -> Result<Vec<(CgroupPath, Identity)>, Fault> {
        let found = containers(&self.roots);
        found.map_err(|error| Fault::new(Code::Internal, "cgroups", format!("they cannot be listed ({error})")))
    }

    fn weight(&self, cgroup: &CgroupPath, file: &str, dev: DevNo) -> Result<Option<u32>, Fault> {
        Ok(self.weights(cgroup, file)?.and_then(|weights| u32::try_from(weights.on(dev)).ok()))
    }

    fn io_max(&self, cgroup: &CgroupPath, dev: DevNo) -> Result<Option<IoMax>, Fault> {
        match cgroup::io_limits(&self.roots, cgroup, dev) {
            Ok(IoLimits { rbps, wbps, riops, wiops }) => Ok(Some(IoMax {
                ops: RateLimit { read: riops, write: wiops },
                bytes: Some(RateLimit { read: rbps, write: wbps }),
            })),
            Err(CgroupError::NotFound { .. } | CgroupError::NoFile { .. }) => Ok(None),
            Err(error) => Err(error.fault(format!("cgroup {cgroup}"))),
        }
    }

    fn io_bytes(&self, cgroup: &CgroupPath) -> IoBytes {
        let stat = cgroup::io_stat(&self.roots, cgroup).unwrap_or_default();
        // A stacked device counts once for each of its layers: only physical ones are added up.
        let physical = stat.into_iter().filter(|(dev, _)| servers::is_physical(&self.roots, *dev));
        physical.fold(IoBytes::default(), |sum, (_, io)| IoBytes {
            read_bytes: sum.read_bytes + io.rbytes,
            written_bytes: sum.written_bytes + io.wbytes,
        })
    }

    fn moved_bytes(&self, cgroup: &CgroupPath, dev: DevNo) -> u64 {
        self.io_of(cgroup, dev).map_or(0, |io| io.rbytes.saturating_add(io.wbytes))
    }

    fn operations(&self, cgroup: &CgroupPath, dev: DevNo) -> u64 {
        self.io_of(cgroup, dev).map_or(0, |io| io.rios.saturating_add(io.wios))
    }

    fn io_waited(&self, cgroup: &CgroupPath) -> Option<Duration> {
        cgroup::io_waited(&self.roots, cgroup)
    }

    fn journal_at(&self, path: &Path) -> Result<JournalFacts, Fault> {
        let object = || format!("file system of {}", path.display());
        let dev = block::devno_below(path).map_err(|e| e.fault(object()))?;
        let none = |cause: &str| {
            Fault::new(Code::Unsupported, object(), cause).hint(
                "only an ext4 file system with a journal, on its own device, has a journal thread that can be charged",
            )
        };
        let name = block::name_of(&self.roots, dev).map_err(|_| none("it is not on a block device"))?;
        if block::devno_below(Path::new("/")).is_ok_and(|root| root == dev) {
            return Err(none("it is the host's root file system, whose journal is shared by everything on the host"));
        }
        let thread = jbd2::find_thread(&self.roots, &name).map_err(|e| e.fault(object()))?;
        let pid = thread.ok_or_else(|| none("it has no journal thread"))?;
        let cgroup = cgroup::cgroup_of(&self.roots, pid).map_err(|e| e.fault(object()))?;
        let device = device_name(name)?;
        Ok(JournalFacts { physical: self.physical(dev).0, device, cgroup })
    }
}

/// The property of a unit that corresponds to a write to a cgroup file; `None` where systemd has none (`io.bfq.weight`, which it sets to
/// a value of its own), and for values that change all the time (weights on single devices).
fn property(file: &str, value: &str) -> Option<Property> {
    match file {
        "io.weight" => value.strip_prefix("default ")?.parse().ok().map(Property::IoWeight),
        "cpu.weight" => value.parse().ok().map(Property::CpuWeight),
        "io.max" => {
            let mut words = value.split(' ');
            let dev: DevNo = words.next()?.parse().ok()?;
            let mut limits = [None; 4];
            for (limit, key) in limits.iter_mut().zip(["rbps=", "wbps=", "riops=", "wiops="]) {
                let text = words.next()?.strip_prefix(key)?;
                *limit = if text == "max" { None } else { Some(text.parse().ok()?) };
            }
            Some(Property::IoMax(dev, limits))
        }
        _ => None,
    }
}

fn no_weight(cgroup: &CgroupPath, file: &str) -> Fault {
    Fault::new(Code::NotFound, format!("cgroup {cgroup}"), format!("it is gone, or has no {file}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::{fs, io, thread};

    use super::*;

    #[test]
    fn systemd_gets_lasting_properties() {
        let limits = Property::IoMax(DevNo::new(8, 16), [None, Some(4096), Some(7), None]);
        assert_eq!(property("io.max", "8:16 rbps=max wbps=4096 riops=7 wiops=max"), Some(limits));
        assert_eq!(property("io.weight", "default 700"), Some(Property::IoWeight(700)));
        assert_eq!(property("cpu.weight", "10000"), Some(Property::CpuWeight(10_000)));
        for (file, value) in [
            ("io.weight", "8:16 300"),
            ("io.bfq.weight", "default 70"),
            ("io.max", "8:16 riops=7 wiops=max"),
            ("cgroup.freeze", "1"),
        ] {
            assert_eq!(property(file, value), None, "{file} {value}");
        }
    }

    /// Removes a cgroup as systemd does: with everything in it.
    #[test]
    fn cgroups_created_concurrently_in_the_root_slice_are_not_removed() {
        let base = tempfile::tempdir().unwrap();
        let (root, slice) = (base.path().join(slices::ROOT), RootSlice::default());
        let is_empty = || fs::read_dir(&root).is_ok_and(|mut found| found.next().is_none());
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let remover = scope.spawn(|| {
                let mut n_removed = 0;
                while !is_done.load(Ordering::Relaxed) {
                    n_removed +=
                        usize::from(slice.remove_if_empty(is_empty, || fs::remove_dir_all(&root).unwrap()).is_some());
                }
                n_removed
            });
            let make = |n: usize| {
                let first = root.join(n.to_string());
                {
                    let _stays = slice.keep();
                    fs::create_dir_all(&root).and_then(|()| fs::create_dir(&first))?;
                }
                // It exists, and keeps its parent from being removed.
                thread::yield_now();
                fs::remove_dir(&first)
            };
            let made: io::Result<()> = (0..200).try_for_each(make);
            is_done.store(true, Ordering::Relaxed);
            let n_removed = remover.join().unwrap();
            made.unwrap();
            assert!(n_removed > 0);
        });
    }

    #[test]
    fn a_missing_cgroup_has_no_processes_to_move() {
        let [from, to] = ["none", "other"].map(|name| format!("bulkhead-test.slice/{name}").parse().unwrap());
        let moved = Kernel::host().move_processes(&from, &to).unwrap();
        assert!(!moved.changed);
    }
}
