//! Arguments of `bulkhead hold`.

use bulkhead_core::model::{Mode, Unit};
use clap::{Args, Subcommand, ValueEnum};

use super::Write;

#[derive(Debug, Args)]
pub(crate) struct HoldArgs {
    #[command(subcommand)]
    pub(crate) command: Option<HoldCommand>,
    #[command(flatten)]
    pub(crate) start: HoldStartArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HoldCommand {
    /// List enforced shares, with each tenant's target and achieved share
    Ls,
    /// Stop enforcing shares on a device, and restore its previous weights
    Rm {
        /// Kernel name or path of the device, for example vda
        device: String,
        #[command(flatten)]
        write: Write,
    },
}

#[derive(Debug, Args)]
pub(crate) struct HoldStartArgs {
    /// Tenant and its share; required at least twice. NAME is a tenant, a container (its name, or the first 12 or more digits of its ID), a
    /// systemd unit, or the path of a cgroup. Shares are relative: their sum does not matter
    #[arg(long = "tenant", value_name = "NAME=SHARE", required = true)]
    pub(crate) tenants: Vec<String>,
    /// Target for the 99th percentile of a tenant's fsync latency, in us, ms or s, for example db=20ms. The other tenants are throttled to
    /// meet it, but not below a quarter of their share. Can be repeated for other tenants
    #[arg(long, value_name = "NAME=TIME")]
    pub(crate) fsync_p99: Vec<String>,
    /// An ext4 file system that only this container uses, given by the absolute path of a directory in it or of its device. While shares are enforced, its journal
    /// thread runs in a cgroup next to the container's and gets part of the container's weight. Can be repeated for other containers
    #[arg(long, value_name = "NAME=PATH")]
    pub(crate) journal: Vec<String>,
    /// Physical device, by kernel name or path [default: the only one with a controller]
    #[arg(long, value_name = "DEV")]
    pub(crate) device: Option<String>,
    /// Resource that the shares divide: bytes, or device time, in which small random writes cost more than their bytes suggest
    #[arg(long, value_enum, default_value_t = HoldUnit::Bytes)]
    pub(crate) unit: HoldUnit,
    /// Method of correcting weights: Bulkhead's own, or for comparison equation 4 of Tobimatsu et al., applied every 5 s
    #[arg(long, value_enum, default_value_t = HoldMode::Correcting)]
    pub(crate) mode: HoldMode,
    /// Keep enforcing shares after this command ends, until `bulkhead hold rm` or the next boot
    #[arg(long)]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// [`Unit`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HoldUnit {
    Bytes,
    Time,
}

impl From<HoldUnit> for Unit {
    fn from(unit: HoldUnit) -> Self {
        match unit {
            HoldUnit::Bytes => Self::Bytes,
            HoldUnit::Time => Self::Time,
        }
    }
}

/// [`Mode`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HoldMode {
    Correcting,
    Published,
}

impl From<HoldMode> for Mode {
    fn from(mode: HoldMode) -> Self {
        match mode {
            HoldMode::Correcting => Self::Correcting,
            HoldMode::Published => Self::Published,
        }
    }
}
