//! The prepared lab: host programs, guest root, the answer about KVM, and this run's temporary folder.
//!
//! Everything that boots a machine takes a [`Lab`]. Dropping it removes the temporary folder.

use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Context, Result, anyhow};

use crate::cache::Cache;
use crate::clock::Clock;
use crate::crate_tool::{self, CrateTool};
use crate::guest_root::GuestRoot;
use crate::kernels::{self, Kernel, KernelImage};
use crate::package::{self, GuestPackage};
use crate::programs::stripped;
use crate::root_image::RootImage;
use crate::run_dir::RunDir;
use crate::{kvm, setup};

/// What the caller brings to a lab.
#[derive(Debug, Clone)]
pub struct LabConfig {
    /// The `bulkhead-lab-agent` program, built for this host.
    pub agent: PathBuf,
    /// The `bulkhead-lab-disk` program, built for this host: serves the disks of machines in virtual time.
    pub disk: PathBuf,
    /// Programs that guests find in /lab/bin (and in `PATH`) under their file names.
    pub programs: Vec<PathBuf>,
    /// The Debian package of the programs, for cases that install it; those are skipped without it.
    pub package: Option<PathBuf>,
    /// Folder for console logs, reports and results; created if absent.
    pub artifacts: PathBuf,
}

/// A lab that is ready to boot machines.
#[derive(Debug)]
pub struct Lab {
    cache: Cache,
    root: GuestRoot,
    kvm: bool,
    config: LabConfig,
    /// Copies of the programs, for guests.
    programs: Vec<PathBuf>,
    kernels: Mutex<Vec<(Kernel, KernelImage)>>,
    // Last, so that the folder is removed after everything that may use it.
    run_dir: RunDir,
}

impl Lab {
    /// Prepares everything that is missing (the first time some minutes, later a moment).
    ///
    /// # Errors
    /// When the host lacks programs that cannot be installed, or a download fails.
    pub async fn open(config: LabConfig) -> Result<Self> {
        for program in [&config.agent, &config.disk].into_iter().chain(&config.programs) {
            std::fs::metadata(program)
                .with_context(|| format!("{} is not there: build it first", program.display()))?;
        }
        std::fs::create_dir_all(&config.artifacts)
            .with_context(|| format!("cannot create {}", config.artifacts.display()))?;
        let run_dir = RunDir::create()?;
        let cache = Cache::locate()?;
        let building = cache.lock_for_building().await?;
        let (root, main_kernel) = root_with_kernel(&cache).await?;
        let kernels = Mutex::new(vec![(Kernel::V6_12, main_kernel)]);
        // A trial of KVM makes an image of the root, and takes the lock for that.
        drop(building);
        let folder = run_dir.path("programs");
        std::fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let mut programs = Vec::new();
        for program in [&config.agent, &config.disk].into_iter().chain(&config.programs) {
            programs.push(stripped(program, &folder).await?);
        }
        let mut lab = Self { cache, root, kvm: false, config, programs, kernels, run_dir };
        let kvm = kvm::usable(&mut lab).await?;
        lab.set_kvm(kvm);
        Ok(lab)
    }

    /// Makes what every lab needs and is not in the cache yet: programs of the host, the guest root, the image of it. Needs no
    /// programs under test, so that it can be done while those are built.
    ///
    /// # Errors
    /// As [`Lab::open`].
    pub async fn provide_root() -> Result<()> {
        let cache = Cache::locate()?;
        let _building = cache.lock_for_building().await?;
        let (root, _) = root_with_kernel(&cache).await?;
        RootImage::provide(&cache, &root, Kernel::V6_12).await.map(drop)
    }

    /// A kernel to boot, downloaded if need be.
    ///
    /// # Errors
    /// When it cannot be had; cases that want it are then skipped.
    pub async fn kernel(&self, kernel: Kernel) -> Result<KernelImage> {
        if let Some(known) = self.known_kernel(kernel)? {
            return Ok(known);
        }
        let _building = self.cache.lock_for_building().await?;
        if let Some(known) = self.known_kernel(kernel)? {
            return Ok(known);
        }
        let image = kernels::provide(&self.cache, &self.root, kernel).await?;
        self.kernel_table()?.push((kernel, image.clone()));
        Ok(image)
    }

    /// The guest root as an image for a kernel, made if need be.
    ///
    /// # Errors
    /// When the kernel cannot be had, or the image cannot be made.
    pub(crate) async fn root_image(&self, kernel: Kernel) -> Result<RootImage> {
        self.kernel(kernel).await?;
        let _building = self.cache.lock_for_building().await?;
        RootImage::provide(&self.cache, &self.root, kernel).await
    }

    /// A Debian package whose programs guests can run, downloaded if need be. Guests that run already have it too.
    ///
    /// # Errors
    /// When it cannot be had; cases that want it are then skipped.
    pub async fn package(&self, name: &'static str) -> Result<GuestPackage> {
        let _building = self.cache.lock_for_building().await?;
        package::provide(&self.cache, &self.root, name).await
    }

    /// A program of crates.io for [`crate::Machine::bring`], built if need be.
    ///
    /// # Errors
    /// When it cannot be had; cases that want it are then skipped.
    pub async fn crate_tool(&self, tool: CrateTool) -> Result<PathBuf> {
        let _building = self.cache.lock_for_building().await?;
        crate_tool::provide(&self.cache, tool).await
    }

    /// The kernels provided so far.
    pub(crate) fn used_kernels(&self) -> Result<Vec<(Kernel, KernelImage)>> {
        Ok(self.kernel_table()?.clone())
    }

    fn known_kernel(&self, kernel: Kernel) -> Result<Option<KernelImage>> {
        let table = self.kernel_table()?;
        Ok(table.iter().find(|(known, _)| *known == kernel).map(|(_, image)| image.clone()))
    }

    fn kernel_table(&self) -> Result<std::sync::MutexGuard<'_, Vec<(Kernel, KernelImage)>>> {
        self.kernels.lock().map_err(|_| anyhow!("a thread of the lab panicked"))
    }

    /// The guest root.
    #[must_use]
    pub fn root(&self) -> &GuestRoot {
        &self.root
    }

    /// True when guests run on the real CPU; otherwise they are emulated and 10 to 15 times slower.
    #[must_use]
    pub fn kvm(&self) -> bool {
        self.kvm
    }

    /// True when guests with this clock run on the real CPU: counting instructions takes an emulated one.
    #[must_use]
    pub fn kvm_for(&self, clock: Clock) -> bool {
        self.kvm && clock == Clock::Wall
    }

    /// What the caller brought.
    #[must_use]
    pub fn config(&self) -> &LabConfig {
        &self.config
    }

    /// The programs for guests.
    pub(crate) fn programs(&self) -> &[PathBuf] {
        &self.programs
    }

    /// The same lab with KVM switched on or off.
    pub(crate) fn set_kvm(&mut self, kvm: bool) {
        self.kvm = kvm;
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    pub(crate) fn run_dir(&self) -> &RunDir {
        &self.run_dir
    }
}

/// The guest root with the main kernel. The caller holds the build lock.
async fn root_with_kernel(cache: &Cache) -> Result<(GuestRoot, KernelImage)> {
    setup::host_programs().await?;
    let root = GuestRoot::provide(cache).await?;
    let kernel = kernels::provide(cache, &root, Kernel::V6_12).await?;
    Ok((root, kernel))
}
