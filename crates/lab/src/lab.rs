//! The prepared lab: host programs, guest root, whether KVM works, and this run's temporary directory.
//!
//! Everything that boots a machine takes a [`Lab`]. Dropping it removes the temporary directory.

use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Context, Result, anyhow};

use crate::cache::Cache;
use crate::clock::Clock;
use crate::crate_tool::{self, CrateTool};
use crate::go_tool::{self, GoModule, GoPrograms, GoTool};
use crate::guest_root::GuestRoot;
use crate::kernels::{self, Kernel, KernelImage};
use crate::package::{self, GuestPackage};
use crate::programs::stripped;
use crate::root_image::RootImage;
use crate::run_dir::RunDir;
use crate::{kvm, setup};

/// Input of [`Lab::open`].
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
    /// Directory for console logs, reports and results; created if absent.
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
    // Last, so that the directory is removed after everything that may use it.
    run_dir: RunDir,
}

impl Lab {
    /// Prepares everything that is missing, which takes some minutes the first time.
    ///
    /// # Errors
    /// When the host lacks programs that cannot be installed, or a download fails.
    pub async fn open(config: LabConfig) -> Result<Self> {
        for program in [&config.agent, &config.disk].into_iter().chain(&config.programs) {
            std::fs::metadata(program)
                .with_context(|| format!("{} does not exist: build it first", program.display()))?;
        }
        std::fs::create_dir_all(&config.artifacts)
            .with_context(|| format!("cannot create {}", config.artifacts.display()))?;
        let run_dir = RunDir::create()?;
        let cache = Cache::locate()?;
        let building = cache.lock_for_building().await?;
        let (root, main_kernel) = root_with_kernel(&cache).await?;
        let kernels = Mutex::new(vec![(Kernel::V6_12, main_kernel)]);
        // The KVM trial builds an image of the root, for which it takes the lock itself.
        drop(building);
        let dir = run_dir.path("programs");
        std::fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let mut programs = Vec::new();
        for program in [&config.agent, &config.disk].into_iter().chain(&config.programs) {
            programs.push(stripped(program, &dir).await?);
        }
        let mut lab = Self { cache, root, kvm: false, config, programs, kernels, run_dir };
        let kvm = kvm::usable(&mut lab).await?;
        lab.set_kvm(kvm);
        Ok(lab)
    }

    /// Prepares what every lab needs and the cache lacks: host programs, the guest root, its image. Needs no programs
    /// under test, so it can run while those are built.
    ///
    /// # Errors
    /// As [`Lab::open`].
    pub async fn provide_root() -> Result<()> {
        let cache = Cache::locate()?;
        let _building = cache.lock_for_building().await?;
        let (root, _) = root_with_kernel(&cache).await?;
        RootImage::provide(&cache, &root, Kernel::V6_12).await.map(drop)
    }

    /// A kernel to boot, downloaded if necessary.
    ///
    /// # Errors
    /// When it is not available; cases that need it are then skipped.
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

    /// The guest root as an image for a kernel, built if necessary.
    ///
    /// # Errors
    /// When the kernel is not available, or the image cannot be built.
    pub(crate) async fn root_image(&self, kernel: Kernel) -> Result<RootImage> {
        self.kernel(kernel).await?;
        let _building = self.cache.lock_for_building().await?;
        RootImage::provide(&self.cache, &self.root, kernel).await
    }

    /// A Debian package whose programs guests can run, downloaded if necessary. Running guests see it too.
    ///
    /// # Errors
    /// When it is not available; cases that need it are then skipped.
    pub async fn package(&self, name: &'static str) -> Result<GuestPackage> {
        let _building = self.cache.lock_for_building().await?;
        package::provide(&self.cache, &self.root, name).await
    }

    /// A program from crates.io for [`crate::Machine::bring`], built if necessary.
    ///
    /// # Errors
    /// When it is not available; cases that need it are then skipped.
    pub async fn crate_tool(&self, tool: CrateTool) -> Result<PathBuf> {
        let _building = self.cache.lock_for_building().await?;
        crate_tool::provide(&self.cache, tool).await
    }

    /// A program of a Go module for [`crate::Machine::bring`], built if necessary.
    ///
    /// # Errors
    /// When it is not available, as without `go` on this host; cases that need it are then skipped.
    pub async fn go_tool(&self, tool: GoTool) -> Result<PathBuf> {
        let _building = self.cache.lock_for_building().await?;
        go_tool::provide(&self.cache, tool).await
    }

    /// The programs of a Go module for [`crate::Machine::bring`], built if necessary.
    ///
    /// # Errors
    /// When they are not available, as without `go` on this host; cases that need them are then skipped.
    pub async fn go_programs(&self, module: GoModule) -> Result<GoPrograms> {
        let _building = self.cache.lock_for_building().await?;
        go_tool::provide_all(&self.cache, module).await
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

    /// Whether guests run on the real CPU. Emulated guests are 10 to 15 times slower.
    #[must_use]
    pub fn kvm(&self) -> bool {
        self.kvm
    }

    /// Whether guests with this clock run on the real CPU. Counting instructions requires an emulated one.
    #[must_use]
    pub fn kvm_for(&self, clock: Clock) -> bool {
        self.kvm && clock == Clock::Wall
    }

    /// The configuration that the lab was opened with.
    #[must_use]
    pub fn config(&self) -> &LabConfig {
        &self.config
    }

    /// The programs for guests.
    pub(crate) fn programs(&self) -> &[PathBuf] {
        &self.programs
    }

    /// Enables or disables KVM.
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
