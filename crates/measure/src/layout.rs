//! What is compared: how the tenants' files are laid out, and which controller makes their shares work.
//!
//! Owns: a private Bulkhead (the engine as a library, with a state directory of its own) with one pool, the volumes of all
//! layouts and two tenants; switching between layouts and controllers; removing everything again, also what a killed run left.
//! Does not: decide how volumes and tenants are made (`engine`), or measure.
//!
//! All layouts are set up once and stay mounted; a file system that nobody uses does no I/O (made without lazy
//! initialisation, `noatime`). The shared volume is as large as both own ones together.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead_api::wire::{DeviceControl, NewPoolSource, PoolCreate, TenantCreate, TenantSet, VolumeCreate};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::control::strictness::STRICT;
use bulkhead_core::model::{Calibration, FsKind, MountOptions, Policy, Server, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::slices;
use bulkhead_core::tenant;
use bulkhead_core::units::{Bytes, DevNo, Share};
use bulkhead_engine::carry_out::Executor;
use bulkhead_engine::engine::{Dirs, Engine};
use bulkhead_engine::kernel::Kernel;
use bulkhead_formats::servers;
use bulkhead_sys::cgroup;
use bulkhead_sys::file::LockFile;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::tool::Tool;
use bulkhead_sys::{block, iocost, iosched, jbd2, lvm};
use serde::{Deserialize, Serialize};

use crate::cleanup::{RUN_DIR, forget, keep, kept, lock, with_removal};
use crate::pair::Pair;

/// Where a run keeps its records: what is in it after a killed run is removed by the next one.
pub const STATE_DIR: &str = "/var/lib/bulkhead-bench";
/// Name of the pool; its volume group is `bulkhead-bench`, and so is the directory made in a directory target.
pub const POOL: &str = "bench";
/// The tenants: the one that is protected, its neighbour, and the holder of the shared volume, in which nothing runs.
const TENANTS: [&str; 3] = ["bench-a", "bench-b", HOLDER];
/// Holds the volume that pools lie on: it goes after them.
pub const HOLDER: &str = "bench-shared";
/// Largest size of one tenant's volume.
const VOLUME: Bytes = Bytes::mib(2048);
/// How long it may take to write an empty journal.
const JOURNAL_LIMIT: Duration = Duration::from_secs(300);
/// Smallest size of one tenant's volume that the loads fit in.
const VOLUME_MIN: Bytes = Bytes::mib(400);

/// How the tenants' files are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Layout {
    /// One file system for both, a directory each; its journal thread is where the kernel left it, in the root cgroup.
    Shared,
    /// A volume each; the journal threads in the root cgroup.
    Own,
    /// A volume each, the journal thread in the tenant's slice: as Bulkhead does it.
    OwnAccounted,
    /// The same, and the CPU shares nothing out below the tenants' slices: the journal thread has no weight of its own.
    OwnAccountedWithoutCpu,
}

impl Layout {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Shared, Self::Own, Self::OwnAccounted, Self::OwnAccountedWithoutCpu];

    /// The word in results.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Own => "own",
            Self::OwnAccounted => "own+accounting",
            Self::OwnAccountedWithoutCpu => "own+accounting-cpu",
        }
    }

    /// Whether the journal thread of a volume is in its tenant's slice.
    const fn is_accounted(self) -> bool {
        matches!(self, Self::OwnAccounted | Self::OwnAccountedWithoutCpu)
    }
}

/// What makes weights work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Controller {
    /// Nothing: scheduler `none`, io.cost off.
    None,
    /// The BFQ scheduler, with its defaults.
    Bfq,
    /// BFQ as a hold sets it: see [`STRICT`].
    BfqStrict,
    /// io.cost with a model, scheduler `none`.
    Iocost,
}

impl Controller {
    /// The word in results.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bfq => "bfq",
            Self::BfqStrict => "bfq-strict",
            Self::Iocost => "iocost",
        }
    }
}

/// On what an experiment runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A whole block device, which becomes a volume group; volumes are logical volumes.
    Device {
        /// Its path.
        path: PathBuf,
        /// Whether the data that is on it may be erased.
        erase: bool,
    },
    /// A directory on a host file system: the shared layout is two directories, own volumes are loop devices.
    Directory(PathBuf),
}

/// The directories of the two tenants in one layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Tenant A's.
    pub a: PathBuf,
    /// Tenant B's.
    pub b: PathBuf,
}

/// What a killed run cannot tell the next one otherwise.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Leftover {
    device: String,
    scheduler: Option<String>,
    directory: Option<PathBuf>,
}

/// Everything that is set up. Removed when it is dropped; [`Bench::remove`] does the same and tells what failed.
#[derive(Debug)]
pub struct Bench {
    engine: Engine,
    roots: Roots,
    device: String,
    dev: DevNo,
    shared: Places,
    own: Places,
    /// Kernel name of the volume's device, for its journal thread, and the journal cgroup of its tenant.
    journals: Vec<(String, CgroupPath)>,
    volume_bytes: u64,
    notes: Vec<String>,
    removed: bool,
    // Given up last: nobody else may find our records while we remove them.
    _lock: LockFile,
}

impl Bench {
    /// Removes what a killed run left, then makes pool, volumes and tenants with these shares; block servers are started with `program`.
    /// The shared volume's journal is as
    /// large as its size asks for, or as said: that of a large disk is larger than the volumes here.
    ///
    /// # Errors
    /// When the target cannot be used, another run is under way, or Bulkhead's tenants are on this host.
    pub fn set_up(
        target: &Target,
        program: &Path,
        shares: (Share, Share),
        shared_journal: Option<Bytes>,
    ) -> Result<Self> {
        let roots = Roots::host();
        let lock = lock()?;
        let engine = private_engine(program)?;
        remove_leftovers(&engine, &roots)?;
        let nowhere = Places { a: PathBuf::new(), b: PathBuf::new() };
        let mut bench = Self {
            engine,
            roots,
            device: String::new(),
            dev: DevNo::new(0, 0),
            shared: nowhere.clone(),
            own: nowhere,
            journals: Vec::new(),
            volume_bytes: 0,
            notes: Vec::new(),
            removed: false,
            _lock: lock,
        };
        match bench.make(target, shares, shared_journal) {
            Ok(()) => Ok(bench),
            Err(error) => with_removal(Err(error), bench.remove()),
        }
    }

    fn make(&mut self, target: &Target, shares: (Share, Share), shared_journal: Option<Bytes>) -> Result<()> {
        let mut leftover = Leftover::default();
        let source = match target {
            Target::Device { path, erase } => NewPoolSource::Device {
                path: path.clone(),
                thin: false,
                erase: erase.then(|| path.display().to_string()),
            },
            Target::Directory(path) => {
                let base = path.join("bulkhead-bench");
                if base.exists() {
                    bail!("{} is there already and not from an earlier run: remove it", base.display());
                }
                leftover.directory = Some(base.clone());
                keep(&leftover_path(), &leftover)?;
                fs::create_dir(&base).with_context(|| format!("cannot create {}", base.display()))?;
                NewPoolSource::Directory { path: base.join("pool"), server: Server::Loop }
            }
        };
        let pool = self.engine.pool_create(&PoolCreate { name: name(POOL)?, source }, false)?;
        let pool = pool.object.context("the pool is not there after it was made")?;
        let [device] = &pool.physical_devices[..] else {
            let cause = pool.findings.iter().map(|finding| finding.evidence.as_str()).collect::<Vec<_>>().join("; ");
            bail!("the target is on {} physical devices, and one is needed. {cause}", pool.physical_devices.len());
        };
        self.device = device.clone();
        self.dev = block::devno_of(&self.roots.dev.join(device)).context("the physical device")?;
        self.take_queue(&mut leftover)?;
        let free = pool.free_bytes.context("the room in the pool is not known")?;
        self.make_volumes(target, free)?;
        if let Some(journal) = shared_journal.filter(|_| matches!(target, Target::Device { .. })) {
            replace_journal(journal).context("the shared volume's journal")?;
        }
        self.make_tenants(target, shares)
    }

    /// Remembers the scheduler for the end, loads BFQ so that its weights can be set, and selects `none`.
    fn take_queue(&mut self, leftover: &mut Leftover) -> Result<()> {
        let before = block::inspect(&self.roots, self.dev).context("the physical device")?.scheduler;
        leftover.device.clone_from(&self.device);
        leftover.scheduler = before.map(|scheduler| scheduler.active);
        keep(&leftover_path(), leftover)?;
        if let Err(error) = block::set_scheduler(&self.roots, self.dev, "bfq") {
            self.notes.push(format!("bfq is not available: {error}"));
        }
        block::set_scheduler(&self.roots, self.dev, "none").context("cannot select scheduler none")?;
        Ok(())
    }

    fn make_volumes(&mut self, target: &Target, free: Bytes) -> Result<()> {
        let is_device = matches!(target, Target::Device { .. });
        // One part stays free for what is added later; a little of each for metadata of the pool.
        let parts = if is_device { 5 } else { 4 };
        let size = Bytes((free.0 / parts / Bytes::MIB * Bytes::MIB).saturating_sub(8 * Bytes::MIB)).min(VOLUME);
        if size < VOLUME_MIN {
            bail!("the target has {free} of room; at least {} are needed", Bytes(VOLUME_MIN.0 * parts));
        }
        self.volume_bytes = size.0;
        let mut volumes = vec![("a", size), ("b", size)];
        if is_device {
            volumes.push(("shared", Bytes(2 * size.0)));
        }
        for (volume, size_bytes) in volumes {
            let request = VolumeCreate {
                mount_options: MountOptions::default(),
                volume: reference(volume)?,
                size_bytes,
                fs: FsKind::Ext4,
                provision: None,
                fast_commit: false,
            };
            self.engine.volume_create(&request, false)?;
        }
        Ok(())
    }

    fn make_tenants(&mut self, target: &Target, shares: (Share, Share)) -> Result<()> {
        let wanted = [("a", shares.0, TENANTS[0]), ("b", shares.1, TENANTS[1]), ("shared", Share::DEFAULT, TENANTS[2])];
        let mut places = Vec::new();
        for (volume, share, tenant_name) in wanted {
            if volume == "shared"
                && let Target::Directory(path) = target
            {
                places.push(path.join("bulkhead-bench/shared"));
                continue;
            }
            let tenant_name = name(tenant_name)?;
            let volumes = vec![reference(volume)?];
            let request = TenantCreate { name: tenant_name.clone(), share, limits: Vec::new(), volumes };
            let made = self.engine.tenant_create(&request, false)?;
            if volume == "a" {
                // What weights cannot be had for one tenant cannot be had for any.
                let findings = made.object.into_iter().flat_map(|tenant| tenant.findings);
                self.notes.extend(findings.map(|finding| finding.evidence));
            }
            let view = self.engine.volume_inspect(&reference(volume)?)?;
            let device = view.device.with_context(|| format!("volume {volume} has no device"))?;
            let found = block::by_path(&self.roots, Path::new(&device)).context("the volume's device")?;
            self.journals.push((found.name, slices::journal(&tenant_name)));
            places.push(view.mounted_at.with_context(|| format!("volume {volume} is not mounted"))?);
        }
        let [a, b, shared] = &places[..] else { bail!("three places were expected") };
        self.own = Places { a: a.join("files"), b: b.join("files") };
        self.shared = Places { a: shared.join("a"), b: shared.join("b") };
        self.check_weights(shares)?;
        for dir in [&self.own.a, &self.own.b, &self.shared.a, &self.shared.b] {
            fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        Ok(())
    }

    /// Whether the kernel has the weights that the shares stand for: an ineffective share would void every figure.
    fn check_weights(&self, shares: (Share, Share)) -> Result<()> {
        for (tenant_name, share) in [(TENANTS[0], shares.0), (TENANTS[1], shares.1)] {
            let slice = slices::tenant(&name(tenant_name)?);
            for (file, wanted) in [("io.weight", share.weight()), ("io.bfq.weight", share.bfq_weight())] {
                if !self.roots.cgroup_dir(&slice).join(file).exists() {
                    continue;
                }
                let found = cgroup::read(&self.roots, &slice, file).context("a tenant's weight")?;
                if found.lines().next() != Some(&format!("default {wanted}")) {
                    bail!("{file} of {tenant_name} is {:?}, where {wanted} was set", found.trim());
                }
            }
        }
        Ok(())
    }

    /// Selects a layout and a controller; returns the tenants' directories.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn arrange(&self, layout: Layout, controller: Controller, model: Option<&Calibration>) -> Result<Places> {
        for (index, (device, journal)) in self.journals.iter().enumerate() {
            // Index 2 is the shared volume: its thread is nobody's.
            let accounted = layout.is_accounted() && index < 2;
            let cgroup = if accounted { journal.clone() } else { CgroupPath::root() };
            jbd2::place(&self.roots, device, &cgroup)
                .with_context(|| format!("cannot put the journal thread of {device} into {cgroup}"))?;
        }
        self.share_cpu(layout != Layout::OwnAccountedWithoutCpu)?;
        // Off in between, so that debts and vrate of the cell before do not reach into this one.
        iocost::disable(&self.roots, self.dev).context("cannot disable io.cost")?;
        let policy = match controller {
            Controller::None => Policy::None,
            Controller::Bfq | Controller::BfqStrict => Policy::Bfq,
            Controller::Iocost => {
                let model = model.context("io.cost needs a model of the device: give `--model` and `--qos`")?;
                self.engine.device_calibrated(&self.device, model.clone(), false)?;
                Policy::Iocost
            }
        };
        self.engine.device_control(&self.device, &DeviceControl { policy: Some(policy) }, false)?;
        let tunables = match controller {
            Controller::Bfq => [("low_latency", "1"), ("strict_guarantees", "0"), ("slice_idle", "8")].as_slice(),
            Controller::BfqStrict => &STRICT,
            Controller::None | Controller::Iocost => &[],
        };
        for (tunable, value) in tunables {
            iosched::set(&self.roots, self.dev, tunable, value).context("cannot tune BFQ")?;
        }
        Ok(self.places(layout).clone())
    }

    /// Disables the cpu controller below the two tenants' slices, or has the engine enable it again, with its weights.
    fn share_cpu(&self, wanted: bool) -> Result<()> {
        for tenant_name in self.tenants()? {
            let slice = slices::tenant(&tenant_name);
            let file = "cgroup.subtree_control";
            let enabled = cgroup::read(&self.roots, &slice, file).context("a tenant's controllers")?;
            if enabled.split_ascii_whitespace().any(|controller| controller == tenant::CPU) == wanted {
                continue;
            }
            if wanted {
                self.engine.tenant_set(&tenant_name, &TenantSet::default(), false)?;
            } else {
                cgroup::write(&self.roots, &slice, file, &format!("-{}", tenant::CPU))
                    .with_context(|| format!("cannot disable controller cpu below {slice}"))?;
            }
        }
        Ok(())
    }

    /// The tenants' directories in a layout.
    #[must_use]
    pub fn places(&self, layout: Layout) -> &Places {
        if layout == Layout::Shared { &self.shared } else { &self.own }
    }

    /// The two tenants: the one that is protected, and its neighbour.
    ///
    /// # Errors
    /// Never with the names that are used.
    pub fn tenants(&self) -> Result<[Name; 2]> {
        Ok([name(TENANTS[0])?, name(TENANTS[1])?])
    }

    /// The two tenants as a measurement needs them.
    ///
    /// # Errors
    /// Never with the names that are used.
    pub fn pair(&self) -> Result<Pair> {
        let [a, b] = self.tenants()?;
        let file_systems = vec![self.shared.a.clone(), self.own.a.clone(), self.own.b.clone()];
        Ok(Pair::new(&self.roots, self.dev, (&a, &b), file_systems))
    }

    /// Kernel name of the physical device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Number of the physical device.
    #[must_use]
    pub fn dev(&self) -> DevNo {
        self.dev
    }

    /// Number of the device that tenant A's file system is on, in a layout.
    ///
    /// # Errors
    /// When the directory cannot be inspected.
    pub fn dev_of_a(&self, layout: Layout) -> Result<DevNo> {
        use std::os::unix::fs::MetadataExt;
        let dir = &self.places(layout).a;
        let dev = fs::metadata(dir).with_context(|| format!("cannot inspect {}", dir.display()))?.dev();
        Ok(DevNo::new(rustix::fs::major(dev), rustix::fs::minor(dev)))
    }

    /// Size of one tenant's volume.
    #[must_use]
    pub fn volume_bytes(&self) -> u64 {
        self.volume_bytes
    }

    /// The engine that everything was made by.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Where the shared volume is mounted.
    ///
    /// # Errors
    /// Never on a device target.
    pub fn host_dir(&self) -> Result<&Path> {
        self.shared.a.parent().context("the shared volume is not mounted")
    }

    /// Kernel name of the shared volume's device. Only on a device target.
    #[must_use]
    pub fn shared_device(&self) -> Option<&str> {
        self.journals.get(2).map(|(device, _)| device.as_str())
    }

    /// What could not be had.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Removes everything that was set up, and restores the queue's settings.
    ///
    /// # Errors
    /// The first thing that could not be removed; the next run tries again.
    pub fn remove(mut self) -> Result<()> {
        self.removed = true;
        remove_all(&self.engine, &self.roots).context("cannot remove what the experiment had set up")
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !self.removed
            && let Err(error) = remove_all(&self.engine, &self.roots)
        {
            tracing::error!(error = format!("{error:#}"), "not everything could be removed; the next run tries again");
        }
    }
}

/// Gives the shared volume, which nobody has mounted yet, a journal of another size.
fn replace_journal(size: Bytes) -> Result<()> {
    let vg = format!("bulkhead-{POOL}");
    servers::lvm().activate(&vg, "shared").context("cannot activate the volume")?;
    let node = lvm::node(&vg, "shared");
    let tune = |option: &str, value: &str| {
        Tool::new("tune2fs")
            .args([option, value])
            .arg(&node)
            .limit(JOURNAL_LIMIT)
            .run()
            .context("cannot replace the journal")
    };
    tune("-O", "^has_journal")?;
    tune("-J", &format!("size={}", size.0 / Bytes::MIB))?;
    Ok(())
}

/// The engine with records of its own, that nobody else uses; block servers are started with `program`.
///
/// # Errors
/// When the records have no place.
pub fn private_engine(program: &Path) -> Result<Engine> {
    fs::create_dir_all(STATE_DIR).with_context(|| format!("cannot create {STATE_DIR}"))?;
    let dirs = Dirs { state: STATE_DIR.into(), run: RUN_DIR.into() };
    Ok(Engine::new(dirs, Executor::new(Arc::new(Kernel::host().with_program(program)), None)))
}

/// Removes what an earlier run left, or this one made. Refuses to go on where others have tenants.
///
/// # Errors
/// The first thing that cannot be removed; a tenant of others.
pub fn remove_leftovers(engine: &Engine, roots: &Roots) -> Result<()> {
    remove_all(engine, roots).context("cannot remove what an experiment had set up")?;
    refuse_foreign_tenants(roots)
}

/// Removes all that our records know: tenants with their processes, volumes, pools, the queue's settings, directories.
///
/// # Errors
/// The first thing that cannot be removed.
pub fn remove_all(engine: &Engine, roots: &Roots) -> Result<()> {
    let holder = name(HOLDER)?;
    for hold in engine.holds()? {
        engine.hold_stop(hold.device.as_str(), false)?;
    }
    for tenant in engine.tenant_list()?.into_iter().filter(|tenant| tenant.name != holder) {
        engine.tenant_remove(&tenant.name, true, false)?;
    }
    // Pools on the shared volume go before that is unmounted. After a reboot they cannot be listed, and go with it.
    for pool in engine.pool_list()?.into_iter().filter(|pool| pool.name.as_str() != POOL) {
        for volume in engine.volume_list(Some(&pool.name)).unwrap_or_default() {
            engine.volume_remove(&volume.volume, true, false)?;
        }
        engine.pool_remove(&pool.name, false)?;
    }
    engine.tenant_remove(&holder, true, false)?;
    for volume in engine.volume_list(None)? {
        engine.volume_remove(&volume.volume, true, false)?;
    }
    for pool in engine.pool_list()? {
        engine.pool_remove(&pool.name, false)?;
    }
    let path = leftover_path();
    let Some(leftover) = kept::<Leftover>(&path)? else { return Ok(()) };
    if let Ok(dev) = block::devno_of(&roots.dev.join(&leftover.device)) {
        if !leftover.device.is_empty() {
            iocost::disable(roots, dev).context("cannot disable io.cost")?;
            engine.device_control(&leftover.device, &DeviceControl { policy: None }, false)?;
        }
        if let Some(scheduler) = &leftover.scheduler {
            block::set_scheduler(roots, dev, scheduler).context("cannot restore the scheduler")?;
        }
    }
    if let Some(directory) = &leftover.directory
        && directory.ends_with("bulkhead-bench")
        && directory.exists()
    {
        fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    forget(&path)
}

/// Our tenants share `bulkhead.slice` with the daemon's: their I/O would be measured, and ours would disturb them.
fn refuse_foreign_tenants(roots: &Roots) -> Result<()> {
    let slice = slices::root();
    if !cgroup::exists(roots, &slice) {
        return Ok(());
    }
    let found = cgroup::children(roots, &slice).context("the tenants on this host")?;
    if let Some(other) = found.first() {
        bail!(
            "Bulkhead's tenant {} is on this host: an experiment would disturb it, and it the experiment",
            other.name()
        );
    }
    Ok(())
}

/// Records the scheduler of a device, which [`remove_all`] restores.
///
/// # Errors
/// When it cannot be recorded.
pub fn remember_queue(device: &str, scheduler: Option<String>) -> Result<()> {
    keep(&leftover_path(), &Leftover { device: device.to_owned(), scheduler, directory: None })
}

fn leftover_path() -> PathBuf {
    Path::new(STATE_DIR).join("restore.json")
}

/// A name of what is set up.
///
/// # Errors
/// When it is not a valid name.
pub fn name(text: &str) -> Result<Name> {
    text.parse().with_context(|| format!("{text:?} is not a valid name"))
}

fn reference(volume: &str) -> Result<VolumeRef> {
    Ok(VolumeRef { pool: name(POOL)?, name: name(volume)? })
}
