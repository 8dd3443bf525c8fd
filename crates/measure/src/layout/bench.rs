//! The set-up of an experiment: pool, volumes and tenants, and switching between configurations.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use bulkhead_api::wire::{
    DeviceArbiter, DeviceControl, NewPoolSource, PoolCreate, TenantCreate, TenantSet, VolumeCreate,
};
use bulkhead_core::backend::image_path;
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::control::strictness::STRICT;
use bulkhead_core::model::{Calibration, Policy, Server, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::slices;
use bulkhead_core::tenant;
use bulkhead_core::units::{Bytes, DevNo, Share};
use bulkhead_engine::engine::Engine;
use bulkhead_formats::servers;
use bulkhead_sys::cgroup;
use bulkhead_sys::file::LockFile;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::tool::Tool;
use bulkhead_sys::{block, iocost, iosched, jbd2, lvm};

use super::removal::{RestoreRecord, record_path, remove_all, remove_leftovers};
use super::{
    Controller, JOURNAL_LIMIT, Layout, POOL, SERVED_POOL, TENANTS, Target, TenantDirs, VOLUME, VOLUME_MIN, name,
    private_engine, reference,
};
use crate::cleanup::{lock, store_record, with_removal};
use crate::image::write_out;
use crate::pair::Pair;

/// The complete set-up. Removed on drop; [`Bench::remove`] does the same and returns errors.
#[derive(Debug)]
pub struct Bench {
    engine: Engine,
    roots: Roots,
    device: String,
    dev: DevNo,
    shared: TenantDirs,
    own: TenantDirs,
    /// Added when they are first used.
    served: OnceLock<TenantDirs>,
    /// Kernel name of the volume's device, for its journal thread, and the journal cgroup of its tenant.
    journals: Vec<(String, CgroupPath)>,
    volume_bytes: u64,
    notes: Vec<String>,
    removed: bool,
    // Dropped last: no other run may see the records while they are being removed.
    _lock: LockFile,
}

impl Bench {
    /// Removes leftovers of a killed run, then creates pool, volumes and tenants with these shares. `program` serves block devices.
    /// The shared volume's journal has its default size or `shared_journal`: the default of a large disk exceeds that of the volumes here.
    ///
    /// # Errors
    /// If the target cannot be used, another run is in progress, or this host has tenants of Bulkhead.
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
        let nowhere = TenantDirs { a: PathBuf::new(), b: PathBuf::new() };
        let mut bench = Self {
            engine,
            roots,
            device: String::new(),
            dev: DevNo::new(0, 0),
            shared: nowhere.clone(),
            own: nowhere,
            served: OnceLock::new(),
            journals: Vec::new(),
            volume_bytes: 0,
            notes: Vec::new(),
            removed: false,
            _lock: lock,
        };
        match bench.create(target, shares, shared_journal) {
            Ok(()) => Ok(bench),
            Err(error) => with_removal(Err(error), bench.remove()),
        }
    }

    fn create(&mut self, target: &Target, shares: (Share, Share), shared_journal: Option<Bytes>) -> Result<()> {
        let mut leftover = RestoreRecord::default();
        let source = match target {
            Target::Device { path, erase } => NewPoolSource::Device {
                path: path.clone(),
                thin: false,
                erase: erase.then(|| path.display().to_string()),
            },
            Target::Directory(path) => {
                let base = path.join("bulkhead-bench");
                if base.exists() {
                    bail!("{} exists and is not from an earlier run: remove it", base.display());
                }
                leftover.directory = Some(base.clone());
                store_record(&record_path(), &leftover)?;
                fs::create_dir(&base).with_context(|| format!("cannot create {}", base.display()))?;
                NewPoolSource::Directory { path: base.join("pool"), server: Server::Loop }
            }
        };
        let pool = self.engine.pool_create(&PoolCreate { name: name(POOL)?, source }, false)?;
        let pool = pool.object.context("the pool does not exist after its creation")?;
        let [device] = &pool.physical_devices[..] else {
            let cause = pool.findings.iter().map(|finding| finding.evidence.as_str()).collect::<Vec<_>>().join("; ");
            bail!("the target is on {} physical devices, but must be on one. {cause}", pool.physical_devices.len());
        };
        self.device = device.clone();
        self.dev = block::devno_of(&self.roots.dev.join(device)).context("the physical device")?;
        self.prepare_queue(&mut leftover)?;
        let free = pool.free_bytes.context("the free space of the pool is unknown")?;
        self.create_volumes(target, free)?;
        if let Some(journal) = shared_journal.filter(|_| matches!(target, Target::Device { .. })) {
            replace_journal(journal).context("the shared volume's journal")?;
        }
        self.create_tenants(target, shares)
    }

    /// Records the scheduler to restore, loads BFQ so that its weights can be set, and selects `none`.
    fn prepare_queue(&mut self, leftover: &mut RestoreRecord) -> Result<()> {
        let before = block::inspect(&self.roots, self.dev).context("the physical device")?.scheduler;
        leftover.device.clone_from(&self.device);
        leftover.scheduler = before.map(|scheduler| scheduler.active);
        store_record(&record_path(), leftover)?;
        if let Err(error) = block::set_scheduler(&self.roots, self.dev, "bfq") {
            self.notes.push(format!("bfq is not available: {error}"));
        }
        block::set_scheduler(&self.roots, self.dev, "none").context("cannot select scheduler none")?;
        Ok(())
    }

    fn create_volumes(&mut self, target: &Target, free: Bytes) -> Result<()> {
        let is_device = matches!(target, Target::Device { .. });
        // One part stays free for later additions, and a little of each for metadata of the pool.
        let parts = if is_device { 5 } else { 4 };
        let size = Bytes((free.0 / parts / Bytes::MIB * Bytes::MIB).saturating_sub(8 * Bytes::MIB)).min(VOLUME);
        if size < VOLUME_MIN {
            bail!("the target has {free} of free space; at least {} are required", Bytes(VOLUME_MIN.0 * parts));
        }
        self.volume_bytes = size.0;
        let mut volumes = vec![("a", size), ("b", size)];
        if is_device {
            volumes.push(("shared", Bytes(2 * size.0)));
        }
        for (volume, size_bytes) in volumes {
            let request = VolumeCreate::new(reference(volume)?, size_bytes);
            self.engine.volume_create(&request, false)?;
        }
        Ok(())
    }

    fn create_tenants(&mut self, target: &Target, shares: (Share, Share)) -> Result<()> {
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
            let request = TenantCreate { share, volumes, ..TenantCreate::new(tenant_name.clone()) };
            let made = self.engine.tenant_create(&request, false)?;
            if volume == "a" {
                // Weights that are unavailable for one tenant are unavailable for all.
                let findings = made.object.into_iter().flat_map(|tenant| tenant.findings);
                self.notes.extend(findings.map(|finding| finding.evidence));
            }
            let view = self.engine.volume_inspect(&reference(volume)?)?;
            let device = view.device.with_context(|| format!("volume {volume} has no device"))?;
            let found = block::by_path(&self.roots, Path::new(&device)).context("the volume's device")?;
            self.journals.push((found.name, slices::journal(&tenant_name)));
            places.push(view.mounted_at.with_context(|| format!("volume {volume} is not mounted"))?);
        }
        let [a, b, shared] = &places[..] else { bail!("three directories were expected") };
        self.own = TenantDirs { a: a.join("files"), b: b.join("files") };
        self.shared = TenantDirs { a: shared.join("a"), b: shared.join("b") };
        self.check_weights(shares)?;
        for dir in [&self.own.a, &self.own.b, &self.shared.a, &self.shared.b] {
            fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        Ok(())
    }

    /// Checks that the kernel has the weights of the shares: an ineffective share would void all results.
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
    pub fn arrange(&self, layout: Layout, controller: Controller, model: Option<&Calibration>) -> Result<TenantDirs> {
        for (index, (device, journal)) in self.journals.iter().enumerate() {
            // Index 2 is the shared volume, whose thread belongs to no tenant.
            let accounted = layout.is_accounted() && index < 2;
            let cgroup = if accounted { journal.clone() } else { CgroupPath::root() };
            jbd2::place(&self.roots, device, &cgroup)
                .with_context(|| format!("cannot put the journal thread of {device} into {cgroup}"))?;
        }
        if layout == Layout::Served && self.served.get().is_none() {
            // Only this thread arranges layouts.
            let _ = self.served.set(self.serve()?);
        }
        self.set_cpu_controller(layout != Layout::OwnAccountedWithoutCpu)?;
        // Disabled in between, so that debts and vrate of the previous cell do not affect this one.
        iocost::disable(&self.roots, self.dev).context("cannot disable io.cost")?;
        let policy = match controller {
            Controller::None | Controller::Arbiter => Policy::None,
            Controller::Bfq | Controller::BfqStrict => Policy::Bfq,
            Controller::Iocost => {
                let model = model.context("io.cost needs a model of the device: specify `--model` and `--qos`")?;
                self.engine.device_calibrated(&self.device, model.clone(), false)?;
                Policy::Iocost
            }
        };
        self.engine.device_control(&self.device, &DeviceControl { policy: Some(policy) }, false)?;
        self.engine.device_arbiter(&self.device, &DeviceArbiter { on: controller == Controller::Arbiter }, false)?;
        let tunables = match controller {
            Controller::Bfq => [("low_latency", "1"), ("strict_guarantees", "0"), ("slice_idle", "8")].as_slice(),
            Controller::BfqStrict => &STRICT,
            Controller::None | Controller::Iocost | Controller::Arbiter => &[],
        };
        for (tunable, value) in tunables {
            iosched::set(&self.roots, self.dev, tunable, value).context("cannot tune BFQ")?;
        }
        Ok(self.dirs(layout).clone())
    }

    /// Adds volumes of a directory pool on the shared volume, with all blocks of their images written, to the tenants.
    fn serve(&self) -> Result<TenantDirs> {
        let pool = name(SERVED_POOL)?;
        let path = self.host_dir()?.join(SERVED_POOL);
        let source = NewPoolSource::Directory { path: path.clone(), server: Server::Auto };
        self.engine.pool_create(&PoolCreate { name: pool.clone(), source }, false)?;
        // The other half of the shared volume is for the shared layout.
        let size = Bytes(self.volume_bytes / 2 / Bytes::MIB * Bytes::MIB);
        let mut dirs = Vec::new();
        for (volume, tenant_name) in [("a", TENANTS[0]), ("b", TENANTS[1])] {
            let volume = VolumeRef { pool: pool.clone(), name: name(volume)? };
            self.engine.volume_create(&VolumeCreate::new(volume.clone(), size), false)?;
            // A block server would write them later, in the background.
            write_out(&image_path(&path, &volume.name)).context("the image")?;
            let attach = TenantSet { attach: vec![volume.clone()], ..TenantSet::default() };
            self.engine.tenant_set(&name(tenant_name)?, &attach, false)?;
            let view = self.engine.volume_inspect(&volume)?;
            let dir = view.mounted_at.with_context(|| format!("volume {volume} is not mounted"))?.join("files");
            fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
            dirs.push(dir);
        }
        let [a, b] = &dirs[..] else { bail!("two directories were expected") };
        Ok(TenantDirs { a: a.clone(), b: b.clone() })
    }

    /// Disables the cpu controller below the tenants' slices, or lets the engine enable it again with its weights.
    fn set_cpu_controller(&self, wanted: bool) -> Result<()> {
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
    pub fn dirs(&self, layout: Layout) -> &TenantDirs {
        match layout {
            Layout::Shared => &self.shared,
            Layout::Served => self.served.get().unwrap_or(&self.own),
            Layout::Own | Layout::OwnAccounted | Layout::OwnAccountedWithoutCpu => &self.own,
        }
    }

    /// The two tenants: the protected one, and its neighbour.
    ///
    /// # Errors
    /// Never, because the names are valid.
    pub fn tenants(&self) -> Result<[Name; 2]> {
        Ok([name(TENANTS[0])?, name(TENANTS[1])?])
    }

    /// The two tenants as a [`Pair`] to measure.
    ///
    /// # Errors
    /// Never, because the names are valid.
    pub fn pair(&self) -> Result<Pair> {
        let [a, b] = self.tenants()?;
        let mut file_systems = vec![self.shared.a.clone(), self.own.a.clone(), self.own.b.clone()];
        file_systems.extend(self.served.get().into_iter().flat_map(|dirs| [dirs.a.clone(), dirs.b.clone()]));
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
        let dir = &self.dirs(layout).a;
        let dev = fs::metadata(dir).with_context(|| format!("cannot inspect {}", dir.display()))?.dev();
        Ok(DevNo::new(rustix::fs::major(dev), rustix::fs::minor(dev)))
    }

    /// Size of one tenant's volume.
    #[must_use]
    pub fn volume_bytes(&self) -> u64 {
        self.volume_bytes
    }

    /// The private engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Mount point of the shared volume.
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

    /// Notes on missing features, for the result.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Removes everything that was set up, and restores the queue's settings.
    ///
    /// # Errors
    /// The first failure; the next run tries again.
    pub fn remove(mut self) -> Result<()> {
        self.removed = true;
        remove_all(&self.engine, &self.roots).context("cannot remove the experiment's set-up")
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

/// Replaces the journal of the shared volume, which must not be mounted yet, with one of another size.
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
