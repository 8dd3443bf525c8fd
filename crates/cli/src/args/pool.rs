//! Arguments of `bulkhead pool`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::Write;

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Create a pool, or adopt an existing one
    Create(PoolCreateArgs),
    /// List pools
    Ls,
    /// Show a pool
    Inspect {
        /// Name of the pool
        name: String,
    },
    /// Record the new location of a directory pool whose file system is now mounted elsewhere
    Move {
        /// Name of the pool
        name: String,
        /// Directory that now contains its volumes
        #[arg(long, value_name = "PATH")]
        dir: PathBuf,
        #[command(flatten)]
        write: Write,
    },
    /// Remove an empty pool
    Rm {
        /// Name of the pool
        name: String,
        #[command(flatten)]
        write: Write,
    },
}

#[derive(Debug, Args)]
pub(crate) struct PoolCreateArgs {
    /// Name of the pool
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) place: PoolPlace,
    /// Create thin volumes, snapshots and clones in this thin pool of the volume group
    #[arg(long, value_name = "LV", requires = "vg", conflicts_with_all = ["dir", "device"])]
    pub(crate) thin_pool: Option<String>,
    /// Create a thin pool on the device, for thin volumes, snapshots and clones
    #[arg(long, requires = "device", conflicts_with_all = ["dir", "vg"])]
    pub(crate) thin: bool,
    /// Repeat the device, to confirm that everything on it may be erased
    #[arg(long, value_name = "DEV", requires = "device", conflicts_with_all = ["dir", "vg"])]
    pub(crate) erase: Option<String>,
    /// How image files in the directory are provided as block devices
    #[arg(long, value_enum, default_value_t = Server::Auto, requires = "dir", conflicts_with_all = ["vg", "device"])]
    pub(crate) server: Server,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Server {
    /// One block server per volume (ublk), or a loop device if the kernel has no ublk
    Auto,
    /// One loop device per volume; each flush commits the journal of the file system that contains the directory
    Loop,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PoolPlace {
    /// Directory on a host file system; created if it does not exist
    #[arg(long, value_name = "PATH")]
    pub(crate) dir: Option<PathBuf>,
    /// Existing LVM volume group
    #[arg(long, value_name = "VG")]
    pub(crate) vg: Option<String>,
    /// Whole block device to create a volume group on
    #[arg(long, value_name = "DEV")]
    pub(crate) device: Option<PathBuf>,
}
