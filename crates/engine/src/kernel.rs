//! The host that is a real kernel: facts and actions through `bulkhead-sys`.
//!
//! One file for each facet of a host (a trait of [`crate::host`]): its look-ups, and the actions on the same objects, which `act.rs` dispatches.
//! `subprocess.rs` runs actions that wait for a tenant's I/O in processes of their own, `worker.rs` starts workers, `faults.rs` and `layer_errors.rs` translate errors for
//! operators, `proof.rs` and `records.rs` make it cheap to check that nothing has changed.

mod act;
mod cgroups;
mod devices;
pub(crate) mod faults;
mod file_systems;
mod images;
pub mod layer_errors;
mod layers;
mod lvm;
mod mounts;
mod peers;
mod pools;
mod processes;
mod proof;
mod records;
mod servers;
mod state;
pub mod subprocess;
mod volumes;
mod worker;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};

use bulkhead_core::action::{Action, Applied};
use bulkhead_core::error::Fault;
use bulkhead_core::work::WorkSpec;
use bulkhead_sys::mount::MountPoints;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::systemd::{self, Manager};
use bulkhead_sys::ublk::Owners;
use uuid::Uuid;

use self::cgroups::RootSlice;
use self::records::KnownRecords;
use crate::conditions::Conditions;
use crate::host::{Host, Proof, Worker};
use crate::jobs::Job;
use crate::servers::Replacing;

/// The running kernel.
#[derive(Debug)]
pub struct Kernel {
    pub(super) roots: Roots,
    /// Set where systemd is process 1.
    pub(super) systemd: Option<Manager>,
    /// The queue depth of new devices of directory pools' volumes.
    pub(super) requests: u16,
    /// The program `bulkhead`, which serves images and reads for peers in processes of their own.
    pub(super) program: PathBuf,
    /// Whether this program has the command that carries out actions in processes of their own.
    pub(super) has_processes: bool,
    /// Shared while layers are created, exclusive while unused ones are removed.
    pub(super) layers: RwLock<()>,
    root_slice: RootSlice,
    /// Directories whose unused layers could not be removed because layers were being created.
    pub(super) postponed_sweeps: Mutex<BTreeSet<PathBuf>>,
    /// Images being created to replace others.
    pub(super) images_being_created: Mutex<BTreeSet<PathBuf>>,
    pub(super) replacing: Replacing,
    /// The owners of ublk devices that earlier look-ups have found.
    pub(super) owners: Owners,
    /// Opened at the first request.
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
            requests: bulkhead_formats::servers::DEFAULT_REQUESTS,
            program: "/proc/self/exe".into(),
            has_processes: false,
            layers: RwLock::default(),
            root_slice: RootSlice::default(),
            postponed_sweeps: Mutex::default(),
            images_being_created: Mutex::default(),
            replacing: Replacing::default(),
            owners: Owners::default(),
            mount_points: Mutex::default(),
            known: KnownRecords::default(),
            conditions: Conditions::default(),
        }
    }

    /// Runs actions that wait for a tenant's I/O in processes of their own. The program has to have the command [`subprocess::COMMAND`].
    #[must_use]
    pub fn with_processes(self) -> Self {
        Self { has_processes: true, ..self }
    }

    /// With the program `bulkhead` at this path, where this process runs another one.
    #[must_use]
    pub fn with_program(self, program: &Path) -> Self {
        Self { program: program.to_owned(), ..self }
    }

    /// With this queue depth for new devices of directory pools' volumes.
    #[must_use]
    pub fn with_requests(self, requests: u16) -> Self {
        Self { requests, ..self }
    }

    /// Whether a volume's server is being replaced or stopped on purpose.
    pub(crate) fn is_replacing(&self, volume: Uuid) -> bool {
        self.replacing.contains(volume)
    }
}

impl Host for Kernel {
    fn apply(&self, action: &Action, job: &Job) -> Result<Applied, Fault> {
        self.act_for(action, job)
    }

    fn start_worker(&self, spec: &WorkSpec) -> Result<Box<dyn Worker>, Fault> {
        self.worker(spec)
    }

    fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    fn proof(&self, kept: &[Action]) -> Option<Arc<dyn Proof>> {
        self.proof_of(kept)
    }
}
