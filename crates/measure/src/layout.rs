//! The compared configurations: the layout of the tenants' files, and the controller that makes their shares work.
//!
//! Owns: a private Bulkhead (the engine as a library, with its own state directory) with one pool, the volumes of all layouts and two
//! tenants; switching between layouts and controllers; removing everything afterwards, including leftovers of a killed run.
//! Does not: create volumes and tenants itself (`engine` does), or measure.
//!
//! All layouts are set up once and stay mounted: an unused file system does no I/O (it is created without lazy initialisation and mounted
//! with `noatime`). The shared volume is as large as both own volumes together.

mod bench;
mod removal;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use bulkhead_engine::carry_out::Executor;
use bulkhead_engine::engine::{Dirs, Engine};
use bulkhead_engine::kernel::Kernel;
use bulkhead_sys::block;
use bulkhead_sys::roots::Roots;
use serde::{Deserialize, Serialize};

pub use self::bench::Bench;
pub use self::removal::{record_scheduler, remove_all, remove_leftovers};
use crate::cleanup::RUN_DIR;

/// Directory for the records of a run. After a killed run, the next one removes everything that they list.
pub const STATE_DIR: &str = "/var/lib/bulkhead-bench";
/// Name of the pool. Its volume group is `bulkhead-bench`, as is the directory created in a directory target.
pub const POOL: &str = "bench";
/// The tenants: the protected one, its neighbour, and the holder of the shared volume, in which nothing runs.
const TENANTS: [&str; 3] = ["bench-a", "bench-b", HOLDER];
/// Holds the volume that other pools are on, so it is removed after them.
pub const HOLDER: &str = "bench-shared";
/// Name of the pool of served volumes, which is a directory on the shared volume.
const SERVED_POOL: &str = "bench-served";
/// Maximum size of one tenant's volume.
const VOLUME: Bytes = Bytes::mib(2048);
/// Time limit for writing an empty journal.
const JOURNAL_LIMIT: Duration = Duration::from_secs(300);
/// Minimum size of one tenant's volume, which the loads fit in.
const VOLUME_MIN: Bytes = Bytes::mib(400);

/// The layout of the tenants' files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Layout {
    /// One file system for both, with a directory each; its journal thread is in the root cgroup, where the kernel creates it.
    Shared,
    /// A volume each; the journal threads are in the root cgroup.
    Own,
    /// A volume each, with its journal thread in the tenant's slice, as Bulkhead does.
    OwnAccounted,
    /// The same without the cpu controller below the tenants' slices, so that the journal thread has no CPU weight.
    OwnAccountedWithoutCpu,
    /// A volume each in a directory pool on the shared volume, served by block servers, with accounting.
    Served,
}

impl Layout {
    /// All layouts.
    pub const ALL: [Self; 5] =
        [Self::Shared, Self::Own, Self::OwnAccounted, Self::OwnAccountedWithoutCpu, Self::Served];

    /// The name in results.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Own => "own",
            Self::OwnAccounted => "own+accounting",
            Self::OwnAccountedWithoutCpu => "own+accounting-cpu",
            Self::Served => "blockd+accounting",
        }
    }

    /// Whether the journal thread of a volume of its own is in its tenant's slice; that of a served one always is.
    const fn is_accounted(self) -> bool {
        matches!(self, Self::OwnAccounted | Self::OwnAccountedWithoutCpu)
    }
}

/// The controller that makes weights work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Controller {
    /// None: scheduler `none`, io.cost disabled.
    None,
    /// The BFQ scheduler, with its defaults.
    Bfq,
    /// BFQ as configured by a hold, see [`STRICT`].
    BfqStrict,
    /// io.cost with a model, scheduler `none`.
    Iocost,
    /// The arbiter, scheduler `none`, io.cost disabled: for served volumes on a disk with an arm.
    Arbiter,
}

impl Controller {
    /// The name in results.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bfq => "bfq",
            Self::BfqStrict => "bfq-strict",
            Self::Iocost => "iocost",
            Self::Arbiter => "arbiter",
        }
    }
}

/// The storage that an experiment runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A whole block device, which becomes a volume group; volumes are logical volumes.
    Device {
        /// Path of the device.
        path: PathBuf,
        /// Whether the data on it may be erased.
        erase: bool,
    },
    /// A directory on a host file system: the shared layout is two directories, own volumes are loop devices.
    Directory(PathBuf),
}

impl Target {
    /// Whether it is on a disk with an arm, or may be.
    #[must_use]
    pub fn may_have_arm(&self) -> bool {
        match self {
            Self::Device { path, .. } => block::by_path(&Roots::host(), path).is_ok_and(|device| device.rotational),
            Self::Directory(_) => true,
        }
    }
}

/// The directories of both tenants in one layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantDirs {
    /// Tenant A's.
    pub a: PathBuf,
    /// Tenant B's.
    pub b: PathBuf,
}

/// An engine with private records; `program` serves block devices.
///
/// # Errors
/// If the state directory cannot be created.
pub fn private_engine(program: &Path) -> Result<Engine> {
    fs::create_dir_all(STATE_DIR).with_context(|| format!("cannot create {STATE_DIR}"))?;
    let dirs = Dirs { state: STATE_DIR.into(), run: RUN_DIR.into() };
    Ok(Engine::new(dirs, Executor::new(Arc::new(Kernel::host().with_program(program)), None)))
}

/// Parses a name.
///
/// # Errors
/// If it is not a valid name.
pub fn name(text: &str) -> Result<Name> {
    text.parse().with_context(|| format!("{text:?} is not a valid name"))
}

fn reference(volume: &str) -> Result<VolumeRef> {
    Ok(VolumeRef { pool: name(POOL)?, name: name(volume)? })
}
