//! The host that is a real kernel: facts and actions through `bulkhead-sys`.
//!
//! `act.rs` has the actions, `cgroups.rs` and `image.rs` those on cgroups and images, `apart.rs` those that wait for a tenant's I/O, `worker.rs`
//! processes for work that is not the daemon's, `faults.rs` what errors mean to an operator, `proof.rs` and `records.rs` what makes looking again
//! cheap; the look-ups are here.

mod act;
pub mod apart;
mod cgroups;
pub(crate) mod faults;
mod image;
mod proof;
mod records;
mod siblings;
mod worker;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bulkhead_core::action::{Action, Applied, DeviceRef, Record};
use bulkhead_core::backend::image_path;
use bulkhead_core::error::{Code, Fault, chain};
use bulkhead_core::health::{Backing, Space};
use bulkhead_core::heat::Heat;
use bulkhead_core::identity::Identity;
use bulkhead_core::merge::LayerTree;
use bulkhead_core::model::{FsKind, IoMax, PoolSource, RateLimit};
use bulkhead_core::name::Name;
use bulkhead_core::slices;
use bulkhead_core::stream::PartState;
use bulkhead_core::tenant::WEIGHT_FILES;
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_core::wire::{Accounting, IoBytes, LayersView};
use bulkhead_core::work::WorkSpec;
use bulkhead_sys::block::{self, BlockDevice, Holder};
use bulkhead_sys::cgroup::{self, CgroupError, CgroupPath, IoLimits};
use bulkhead_sys::lvm::{self, LvKind};
use bulkhead_sys::mount::{self, MountPoints};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::systemd::{self, Manager};
use bulkhead_sys::ublk::{Owners, service};
use bulkhead_sys::{file, fsutil, iocost, iosched, jbd2, layer, merge, part, process};
use uuid::Uuid;

use self::act::cgroup_path;
use self::cgroups::RootSlice;
use self::faults::Classify;
use self::records::KnownRecords;
use crate::conditions::Conditions;
use crate::host::{
    BlockFacts, Host, JournalFacts, LogicalVolume, NamedDevice, OpenDevice, Proof, Records, ThinPool, Worker,
};
use crate::jobs::Job;
use crate::observe::containers;
use crate::servers::Replacing;
use crate::store;

/// How long killed processes may take to go.
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// The running kernel.
#[derive(Debug)]
pub struct Kernel {
    pub(super) roots: Roots,
    /// Where that is process 1.
    pub(super) systemd: Option<Manager>,
    /// Requests that each volume of a file pool that gets a device can have under way.
    pub(super) requests: u16,
    /// Whether this program has the command that carries out actions in processes of their own.
    pub(super) has_processes: bool,
    /// Taken by who makes layers, and exclusively by who removes those that nothing lies on.
    pub(super) layers: RwLock<()>,
    root_slice: RootSlice,
    /// Directories in which layers were to be looked for that nothing lies on, while others were being made.
    pub(super) unswept: Mutex<BTreeSet<PathBuf>>,
    /// Images that are being made to take the place of others.
    pub(super) being_made: Mutex<BTreeSet<PathBuf>>,
    pub(super) replacing: Replacing,
    /// Of which ublk devices it is known that they are not the one that is looked for.
    pub(super) owners: Owners,
    /// Opened when it is asked for the first time.
    mount_points: Mutex<Option<MountPoints>>,
    known: KnownRecords,
    pub(super) conditions: Conditions,
}

impl Kernel {
    /// The host that this process runs on.
    #[must_use]
    pub fn host() -> Self {
        let roots = Roots::host();
        Self {
            // Without a bus, tenants have plain cgroups, which systemd leaves alone.
            systemd: (systemd::is_running(&roots) && systemd::has_bus(&roots)).then(Manager::default),
            roots,
            requests: bulkhead_sys::ublk::service::REQUESTS,
            has_processes: false,
            layers: RwLock::default(),
            root_slice: RootSlice::default(),
            unswept: Mutex::default(),
            being_made: Mutex::default(),
            replacing: Replacing::default(),
            owners: Owners::default(),
            mount_points: Mutex::default(),
            known: KnownRecords::default(),
            conditions: Conditions::default(),
        }
    }

    /// Carries out what waits for a tenant's I/O in processes of their own. The program has to have the command [`apart::COMMAND`].
    #[must_use]
    pub fn with_processes(self) -> Self {
        Self { has_processes: true, ..self }
    }

    /// With so many requests under way for each volume of a file pool, once it gets a device.
    #[must_use]
    pub fn with_requests(self, requests: u16) -> Self {
        Self { requests, ..self }
    }

    /// Whether a volume's server was ended on purpose, by somebody who starts another.
    pub(crate) fn is_replacing(&self, volume: Uuid) -> bool {
        self.replacing.contains(volume)
    }

    fn io_of(&self, cgroup: &str, dev: DevNo) -> Option<cgroup::IoStat> {
        cgroup::io_stat(&self.roots, &cgroup_path(cgroup).ok()?).ok()?.remove(&dev)
    }

    /// Names of the physical devices below a device.
    fn physical(&self, dev: DevNo) -> (Vec<String>, Vec<String>) {
        match block::stack(&self.roots, dev) {
            Ok(stack) => {
                let names = stack.physical.iter().filter_map(|dev| block::name_of(&self.roots, *dev).ok()).collect();
                (names, stack.dead_ends.into_iter().map(|end| end.reason).collect())
            }
            Err(error) => (Vec::new(), vec![error.to_string()]),
        }
    }

    fn block_facts(&self, device: BlockDevice) -> BlockFacts {
        let (physical, _) = self.physical(device.dev);
        let cost = iocost::read(&self.roots, device.dev).ok().flatten();
        let without_dev = |line: String| line.split_once(' ').map_or(String::new(), |(_, rest)| rest.to_owned());
        let (cost_qos, cost_model) = match cost {
            Some((qos, model)) => (Some(without_dev(qos.line(device.dev))), Some(without_dev(model.line(device.dev)))),
            None => (None, None),
        };
        let (scheduler, schedulers) = match device.scheduler {
            Some(scheduler) => (Some(scheduler.active), scheduler.available),
            None => (None, Vec::new()),
        };
        BlockFacts {
            name: device.name,
            dev: device.dev,
            size: device.size,
            rotational: device.rotational,
            largest_request: device.largest_request,
            scheduler,
            schedulers,
            physical,
            identity: block::identity(&self.roots, device.dev),
            cost_model,
            cost_qos,
        }
    }

    fn device_at(&self, path: &Path, object: &str) -> Result<BlockDevice, Fault> {
        if !path.is_absolute() {
            return Err(Fault::new(Code::InvalidArgument, object, "its path is not absolute")
                .hint("give its path in /dev, for example /dev/sdb"));
        }
        block::by_path(&self.roots, path).map_err(|e| match e {
            block::BlockError::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Fault::new(Code::NotFound, object, "there is no such device").hint("`lsblk` lists the block devices")
            }
            other => other.fault(object),
        })
    }
}

impl Host for Kernel {
    fn apply(&self, action: &Action, job: &Job) -> Result<Applied, Fault> {
        self.act_for(action, job)
    }

    fn start_worker(&self, spec: &WorkSpec) -> Result<Box<dyn Worker>, Fault> {
        self.worker(spec)
    }

    fn records(&self, dir: &Path, suffix: &str) -> Result<Records, Fault> {
        let names = self.list_dir(dir)?.unwrap_or_default();
        // A name that starts with a dot is a temporary file that a crash left; it was never the record.
        let wanted = names.into_iter().filter(|name| name.ends_with(suffix) && !name.starts_with('.'));
        Ok(self.known.all(dir, suffix, wanted.map(|name| dir.join(name)), |path| self.record(path)))
    }

    fn record(&self, path: &Path) -> Option<Result<Record, Fault>> {
        let content = match file::read_limited(path, Bytes(store::MAX_BYTES)) {
            Err(error) if error.is_not_found() => return None,
            Err(error @ file::FileError::TooLarge { .. }) => Err(store::damaged(path, chain(&error))),
            content => content.map_err(|e| e.fault(format!("state file {}", path.display()))),
        };
        Some(content.and_then(|content| store::decode(path, &content)))
    }

    fn logical_volumes(&self, vg: &str) -> Result<Vec<LogicalVolume>, Fault> {
        let volumes = lvm::lvs(vg).map_err(|e| e.fault(format!("volume group {vg}")))?;
        let volume = |lv: lvm::Lv| LogicalVolume {
            thin_pool: matches!(lv.kind, LvKind::ThinPool).then_some(ThinPool { zeroes: lv.zeroes }),
            name: lv.name,
            size: lv.size,
            tags: lv.tags,
            read_only: lv.read_only,
        };
        Ok(volumes.into_iter().map(volume).collect())
    }

    fn vg_devices(&self, vg: &str) -> Result<Vec<DevNo>, Fault> {
        let paths = lvm::pv_devices(vg).map_err(|e| e.fault(format!("volume group {vg}")))?;
        // One that is missing has no node, and is not the device that somebody asks for.
        Ok(paths.iter().filter_map(|path| block::devno_of(path).ok()).collect())
    }

    fn image_size(&self, image: &Path) -> Result<Option<Bytes>, Fault> {
        match std::fs::metadata(image) {
            Ok(found) => Ok(Some(Bytes(found.len()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(file::FileError::Io { operation: "stat", path: image.to_owned(), source }
                .fault(format!("file {}", image.display()))),
        }
    }

    fn vg_tags(&self, vg: &str) -> Result<Option<Vec<String>>, Fault> {
        let found = lvm::vg(vg).map_err(|e| e.fault(format!("volume group {vg}")))?;
        Ok(found.map(|vg| vg.tags))
    }

    fn space(&self, source: &PoolSource) -> Result<Space, Fault> {
        match source {
            PoolSource::File { directory, .. } => {
                let object = format!("directory {}", directory.display());
                let space = file::free_space(directory).map_err(|e| e.fault(&object))?;
                Ok(Space::new(space.total, space.free, Bytes(4096)))
            }
            PoolSource::Lvm { vg, thin_pool, .. } => {
                let object = format!("volume group {vg}");
                let group = lvm::vg(vg)
                    .map_err(|e| e.fault(&object))?
                    .ok_or_else(|| Fault::new(Code::NotFound, &object, "there is no such volume group"))?;
                let space = Space::new(group.size, group.free, group.extent_size);
                let mut space = Space { is_partial: group.partial, ..space };
                if let Some(name) = thin_pool {
                    thin_pool_space(vg, name, &mut space)?;
                }
                Ok(space)
            }
        }
    }

    fn journal_bytes(&self, device: &DeviceRef) -> Result<Option<Bytes>, Fault> {
        let place = match (self.open_device(device)?, device) {
            (Some(open), _) => open.path,
            (None, DeviceRef::Image { image, .. }) if image.is_file() => image.clone(),
            (None, _) => return Ok(None),
        };
        fsutil::journal_bytes(&place).map_err(|e| e.fault(device))
    }

    fn allocated(&self, source: &PoolSource, volume: &Name) -> Result<Bytes, Fault> {
        match source {
            PoolSource::File { directory, .. } => {
                let image = image_path(directory, volume);
                bulkhead_sys::image::allocated(&image).map_err(|e| e.fault(faults::file(&image)))
            }
            PoolSource::Lvm { vg, .. } => {
                let found =
                    lvm::lv(vg, volume.as_str()).map_err(|e| e.fault(format!("logical volume {vg}/{volume}")))?;
                Ok(found.as_ref().map_or(Bytes(0), lvm::Lv::allocated))
            }
        }
    }

    fn list_dir(&self, dir: &Path) -> Result<Option<Vec<String>>, Fault> {
        let fault = |source: std::io::Error| {
            file::FileError::Io { operation: "list", path: dir.to_owned(), source }
                .fault(format!("directory {}", dir.display()))
        };
        match std::fs::read_dir(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(fault(error)),
            Ok(entries) => {
                let names: Result<Vec<String>, _> =
                    entries.map(|entry| entry.map(|e| e.file_name().to_string_lossy().into_owned())).collect();
                let mut names = names.map_err(fault)?;
                names.sort();
                Ok(Some(names))
            }
        }
    }

    fn who_can_replace(&self, directory: &Path) -> Result<Option<String>, Fault> {
        file::who_can_replace(directory).map_err(|e| e.fault(format!("directory {}", directory.display())))
    }

    fn named_device(&self, path: &Path) -> Result<NamedDevice, Fault> {
        let object = format!("device {}", path.display());
        let found = self.device_at(path, &object)?;
        let in_use = block::is_in_use(&self.roots, found.dev).map_err(|e| e.fault(&object))?;
        let signatures = block::signatures(path).map_err(|e| e.fault(&object))?;
        // The kernel holds a physical volume only while a logical volume on it is active: its group may be full of data.
        let is_pv = signatures.iter().any(|signature| signature.kind == "LVM2_member");
        let group = if is_pv { lvm::group_of(path).map_err(|e| e.fault(&object))? } else { None };
        let in_group = group.map(|group| format!("it belongs to volume group {group}"));
        Ok(NamedDevice {
            dev: found.dev,
            size: found.size,
            signatures: signatures.into_iter().map(|signature| signature.kind).collect(),
            in_use: in_use.map(|reason| reason.to_string()).or(in_group),
        })
    }

    fn limited_device(&self, path: &Path) -> Result<DevNo, Fault> {
        let object = format!("device {}", path.display());
        let found = self.device_at(path, &object)?;
        if found.partition_of.is_some() {
            return Err(Fault::new(
                Code::InvalidArgument,
                object,
                "it is a partition, but limits apply to whole devices",
            )
            .hint("give the device that it is a partition of"));
        }
        Ok(found.dev)
    }

    fn block_devices(&self) -> Result<Vec<BlockFacts>, Fault> {
        let devices = block::all(&self.roots).map_err(|e| e.fault("block devices"))?;
        Ok(devices.into_iter().filter(|device| device.size.0 > 0).map(|device| self.block_facts(device)).collect())
    }

    fn block_device(&self, name: &str) -> Result<Option<BlockFacts>, Fault> {
        let Some(dev) = block::devno_of_name(&self.roots, name) else { return Ok(None) };
        let device = block::inspect(&self.roots, dev).map_err(|e| e.fault(format!("device {name}")))?;
        Ok((device.size.0 > 0 && device.name == name).then(|| self.block_facts(device)))
    }

    fn open_device(&self, device: &DeviceRef) -> Result<Option<OpenDevice>, Fault> {
        match device {
            DeviceRef::Image { image, volume } => self.open_image(image, *volume),
            DeviceRef::Lv { vg, lv } => {
                let path = lvm::node(vg, lv);
                if !path.exists() {
                    return Ok(None);
                }
                let dev = block::devno_of(&path).map_err(|e| e.fault(device))?;
                Ok(Some(OpenDevice { path, dev, backing: Backing::LogicalVolume }))
            }
        }
    }

    fn in_use(&self, device: &DeviceRef) -> Result<Option<String>, Fault> {
        let Some(open) = self.open_device(device)? else { return Ok(None) };
        let used = block::is_in_use(&self.roots, open.dev).map_err(|e| e.fault(device))?;
        Ok(used.map(|used| used.to_string()))
    }

    fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    fn physical_devices(&self, source: &PoolSource) -> (Vec<String>, Vec<String>) {
        let devices = match source {
            PoolSource::File { directory, .. } => match block::holder_of(&self.roots, directory) {
                Ok(Holder::Devices(devices)) => devices,
                Ok(Holder::None { reason }) => return (Vec::new(), vec![reason]),
                Err(error) => return (Vec::new(), vec![error.to_string()]),
            },
            PoolSource::Lvm { vg, .. } => match lvm::pv_devices(vg) {
                Ok(paths) => paths.iter().filter_map(|path| block::devno_of(path).ok()).collect(),
                Err(error) => return (Vec::new(), vec![error.to_string()]),
            },
        };
        let (mut names, mut unknown) = (Vec::new(), Vec::new());
        for dev in devices {
            let (more_names, more_unknown) = self.physical(dev);
            names.extend(more_names);
            unknown.extend(more_unknown);
        }
        names.sort();
        names.dedup();
        (names, unknown)
    }

    fn is_mounted(&self, target: &Path) -> Result<bool, Fault> {
        let found = mount::mounted_at(&self.roots, target).map_err(|e| e.fault(target.display()))?;
        Ok(found.is_some())
    }

    fn mount_points(&self) -> Result<Arc<BTreeSet<PathBuf>>, Fault> {
        let mut points = self.mount_points.lock().unwrap_or_else(PoisonError::into_inner);
        let open = match points.take() {
            Some(open) => open,
            None => MountPoints::open(&self.roots).map_err(|e| e.fault("mount table"))?,
        };
        points.insert(open).now().map_err(|e| e.fault("mount table"))
    }

    fn proof(&self, kept: &[Action]) -> Option<Arc<dyn Proof>> {
        self.proof_of(kept)
    }

    fn part(&self, path: &Path) -> Result<Option<PartState>, Fault> {
        part::state(path).map_err(|e| e.fault(faults::file(path)))
    }

    fn part_is_abandoned(&self, path: &Path, for_at_least: Duration) -> Result<bool, Fault> {
        part::is_abandoned(path, for_at_least).map_err(|e| e.fault(faults::file(path)))
    }

    fn layers(&self, device: &DeviceRef) -> Result<Option<LayersView>, Fault> {
        match device {
            // A thin volume lies on no layers: its pool has what it shares. One that is not active has no node.
            DeviceRef::Image { image, .. }
                if image.starts_with("/dev") && (!image.exists() || block::devno_of(image).is_ok()) =>
            {
                Ok(None)
            }
            DeviceRef::Image { image, .. } => layer::space(image).map_err(|e| e.fault(faults::file(image))),
            DeviceRef::Lv { .. } => Ok(None),
        }
    }

    fn layer_tree(&self, directory: &Path) -> Result<LayerTree, Fault> {
        merge::tree(directory).map_err(|e| e.fault(faults::file(directory)))
    }

    fn heat(&self, volume: Uuid) -> Result<Heat, Fault> {
        service::heat(&self.roots, volume).map_err(|e| e.fault(format!("volume {volume}")))
    }

    fn accounting(&self, device: &DeviceRef, fs: FsKind, tenant: &Name) -> Accounting {
        if let DeviceRef::Image { image, volume } = device
            && let Some(accounting) = self.server_accounting(image, *volume, &slices::server(tenant))
        {
            return accounting;
        }
        let journal_cgroup = slices::journal(tenant);
        let thread = self.kernel_name(device).and_then(|(_, name)| {
            let found = match fs {
                FsKind::Ext4 => jbd2::find_thread(&self.roots, &name),
                FsKind::Xfs => jbd2::find_xfsaild(&self.roots, &name),
            };
            found.map_err(|e| e.fault(device))
        });
        let pid = match thread {
            Ok(Some(pid)) => pid,
            Ok(None) => return Accounting::None { reason: "its journal thread was not found".to_owned() },
            Err(fault) => return Accounting::None { reason: fault.to_string() },
        };
        let found = match cgroup::cgroup_of(&self.roots, pid) {
            Ok(found) => found.to_string(),
            Err(error) => return Accounting::None { reason: error.to_string() },
        };
        if found.trim_start_matches('/') != journal_cgroup {
            let reason = format!("its journal thread (pid {pid}) is in cgroup {found}, not in {journal_cgroup}");
            return Accounting::None { reason };
        }
        match fs {
            FsKind::Ext4 => Accounting::JournalThread { pid, cgroup: journal_cgroup },
            FsKind::Xfs => Accounting::Partial {
                limit: "XFS: log writes under fsync are charged to the caller and xfsaild to the journal cgroup; background \
                        log writes are made by kworkers, which cannot be moved, and are charged to the root cgroup"
                    .to_owned(),
            },
        }
    }

    fn weight_files(&self) -> Vec<&'static str> {
        let slice: Result<CgroupPath, Fault> = cgroup_path(slices::ROOT);
        let Ok(slice) = slice else { return Vec::new() };
        // Before the first tenant there is no slice yet: io.cost.qos in the root stands for io.weight below it.
        let dir = slice.dir(&self.roots);
        let has = |file: &&str| {
            dir.join(file).exists()
                || (!dir.exists() && *file == "io.weight" && self.roots.cgroup.join("io.cost.qos").exists())
        };
        WEIGHT_FILES.iter().copied().filter(|file| has(file)).collect()
    }

    fn controllers(&self) -> BTreeSet<String> {
        cgroup::controllers(&self.roots).unwrap_or_default()
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
        Ok(JournalFacts {
            physical: self.physical(dev).0,
            device: name,
            cgroup: cgroup.to_string().trim_start_matches('/').to_owned(),
        })
    }

    fn moved_bytes(&self, cgroup: &str, dev: DevNo) -> u64 {
        self.io_of(cgroup, dev).map_or(0, |io| io.rbytes.saturating_add(io.wbytes))
    }

    fn runs(&self, payload: &str) -> Vec<(u32, String)> {
        let children = cgroup_path(payload).ok().and_then(|path| cgroup::children(&self.roots, &path).ok());
        let run = |path: &CgroupPath| Some((slices::run_of(path.name())?, path.to_string()));
        children.unwrap_or_default().iter().filter_map(run).collect()
    }

    fn start_run(&self, payload: &str, pid: u32, command_pid: u32) -> Result<String, Fault> {
        self.start_run_in(payload, pid, command_pid)
    }

    fn processes(&self, cgroup: &str) -> Vec<u32> {
        let Ok(path) = cgroup_path(cgroup) else { return Vec::new() };
        let mut pids = cgroup::procs(&self.roots, &path).unwrap_or_default();
        for child in cgroup::children(&self.roots, &path).unwrap_or_default() {
            pids.extend(self.processes(&child.to_string()));
        }
        pids
    }

    fn kill_all(&self, cgroup: &str) -> Result<(), Fault> {
        let path = cgroup_path(cgroup)?;
        cgroup::kill_all(&self.roots, &path, KILL_LIMIT).map_err(|e| e.fault(format!("cgroup {cgroup}")))
    }

    fn terminate(&self, cgroup: &str) {
        for pid in self.processes(cgroup) {
            // One that is gone has ended.
            let _ = process::terminate(pid);
        }
    }

    fn is_going_down(&self) -> bool {
        self.systemd.as_ref().is_some_and(|systemd| {
            systemd.is_stopping().unwrap_or_else(|error| {
                tracing::warn!(
                    why = bulkhead_core::error::chain(&error),
                    "systemd does not say whether the host is shutting down"
                );
                false
            })
        })
    }

    fn io_bytes(&self, cgroup: &str) -> IoBytes {
        let Ok(path) = cgroup_path(cgroup) else { return IoBytes::default() };
        let stat = cgroup::io_stat(&self.roots, &path).unwrap_or_default();
        // A stacked device counts once for each of its layers: only physical ones are added up.
        let physical = stat.into_iter().filter(|(dev, _)| block::is_physical(&self.roots, *dev));
        physical.fold(IoBytes::default(), |sum, (_, io)| IoBytes {
            read_bytes: sum.read_bytes + io.rbytes,
            written_bytes: sum.written_bytes + io.wbytes,
        })
    }

    fn containers(&self) -> Result<Vec<(String, Identity)>, Fault> {
        let found = containers(&self.roots);
        found.map_err(|error| Fault::new(Code::Internal, "cgroups", format!("they cannot be listed ({error})")))
    }

    fn weight(&self, cgroup: &str, file: &str, dev: DevNo) -> Result<Option<u32>, Fault> {
        Ok(self.weights(cgroup, file)?.and_then(|weights| u32::try_from(weights.on(dev)).ok()))
    }

    fn tunable(&self, dev: DevNo, tunable: &str) -> Option<String> {
        iosched::get(&self.roots, dev, tunable)
    }

    fn io_max(&self, cgroup: &str, dev: DevNo) -> Result<Option<IoMax>, Fault> {
        match cgroup::io_limits(&self.roots, &cgroup_path(cgroup)?, dev) {
            Ok(IoLimits { rbps, wbps, riops, wiops }) => Ok(Some(IoMax {
                ops: RateLimit { read: riops, write: wiops },
                bytes: Some(RateLimit { read: rbps, write: wbps }),
            })),
            Err(CgroupError::NotFound { .. } | CgroupError::NoFile { .. }) => Ok(None),
            Err(error) => Err(error.fault(format!("cgroup {cgroup}"))),
        }
    }

    fn operations(&self, cgroup: &str, dev: DevNo) -> u64 {
        self.io_of(cgroup, dev).map_or(0, |io| io.rios.saturating_add(io.wios))
    }

    fn io_waited(&self, cgroup: &str) -> Option<Duration> {
        cgroup::io_waited(&self.roots, &cgroup_path(cgroup).ok()?)
    }

    fn device_busy(&self, device: &str) -> Result<Duration, Fault> {
        block::busy(&self.roots, device).map_err(|e| e.fault(format!("device {device}")))
    }

    fn cost_used(&self, dev: DevNo) -> Duration {
        let stat = cgroup::io_stat(&self.roots, &CgroupPath::root()).unwrap_or_default();
        stat.get(&dev).map_or(Duration::ZERO, |io| Duration::from_micros(io.cost_usage_us))
    }

    fn start_time(&self, pid: u32) -> Option<u64> {
        process::start_time(&self.roots, pid)
    }
}

fn thin_pool_space(vg: &str, name: &str, space: &mut Space) -> Result<(), Fault> {
    let object = format!("thin pool {vg}/{name}");
    let pool = lvm::lv(vg, name)
        .map_err(|e| e.fault(&object))?
        .filter(|lv| lv.kind == LvKind::ThinPool)
        .ok_or_else(|| Fault::new(Code::NotFound, &object, "there is no such thin pool"))?;
    space.total = pool.size;
    let used_pct = pool.data_percent.unwrap_or(0.0);
    // Basis points, so that the arithmetic stays in whole numbers.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a percentage lies between 0 and 100")]
    let free_bp = ((100.0 - used_pct).clamp(0.0, 100.0) * 100.0) as u64;
    space.free = Bytes(pool.size.0 / 10_000 * free_bp);
    (space.data_pct, space.metadata_pct, space.health) = (pool.data_percent, pool.metadata_percent, pool.health);
    Ok(())
}
