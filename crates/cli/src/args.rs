//! The arguments: nouns, verbs and options, as `--help` shows them.
//!
//! Owns: their names and descriptions. Does not: validate names and sizes, which are plain text here and checked in `parse.rs`, so
//! that errors about them have the same form everywhere and control characters in them are escaped.

mod image;
mod observe;
mod pool;
mod tenant;

use std::net::SocketAddr;
use std::path::PathBuf;

use bulkhead_api::client::DEFAULT_SOCKET;
use bulkhead_core::model::{self, FsKind, Mode, Policy, Provision, Unit};
use bulkhead_formats::servers;
use bulkhead_measure::calibrate::IocostLines;
use bulkhead_measure::experiment::Simulated;
use bulkhead_measure::journal_cost::{self, Features};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub(crate) use self::image::{ImageCommand, ImageImportArgs};
pub(crate) use self::observe::{BlameArgs, HeatmapArgs, SortKey, TopArgs};
pub(crate) use self::pool::{PoolCommand, PoolCreateArgs, Server};
pub(crate) use self::tenant::{EnterArgs, RunArgs, TenantCommand, TenantSetArgs};

const EXIT_CODES: &str = "\
Exit codes:
  0  success, or nothing to do       6  the target already contains other data
  1  internal error                  7  no space left
  2  invalid arguments               8  not supported on this host
  3  not found                       9  permission denied
  4  already exists                 10  data is corrupt
  5  in use                         11  the daemon does not answer
                                   12  cancelled
`bulkhead run` exits with the exit code of its command (128 + N if signal N ended it), with 127 if
the command does not exist, 126 if it cannot be executed, 125 if anything else fails before it
starts, and 2 only if its own arguments cannot be parsed.";

/// Storage isolation for containers: private journals, enforced I/O shares, no cross-tenant fsync stalls
#[derive(Debug, Parser)]
#[command(name = "bulkhead", version, max_term_width = 100, after_long_help = EXIT_CODES, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Output format of results and errors
    #[arg(long, short, global = true, value_enum, default_value_t = Format::Table, env = "BULKHEAD_OUTPUT",
        hide_possible_values = true, value_name = "table|json", help_heading = "Global options")]
    pub(crate) output: Format,

    /// Path of the daemon's socket
    #[arg(long, global = true, default_value = DEFAULT_SOCKET, env = "BULKHEAD_SOCKET", value_name = "PATH",
        help_heading = "Global options")]
    pub(crate) socket: PathBuf,

    /// Seconds to wait for other operations on the same objects, and for a tenant's data to be written, at most 604800. On timeout, the
    /// error says if nothing has changed, which is the usual case
    #[arg(long, global = true, default_value_t = 60, value_parser = clap::value_parser!(u64).range(..=MAX_WAIT), value_name = "SECONDS",
        help_heading = "Global options")]
    pub(crate) wait: u64,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// One week: longer than any user waits.
const MAX_WAIT: u64 = 7 * 24 * 3600;

/// Output for users or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the daemon, which most other commands require
    Daemon(DaemonArgs),
    /// Manage pools: directories or LVM volume groups that contain volumes
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Manage volumes: block devices, each with its own file system and journal
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Import base images, from which the volumes of containers are cloned
    #[command(subcommand)]
    Image(ImageCommand),
    /// Show which volumes read which shared blocks, and from where: disk, host page cache, or a peer's page cache
    Heatmap(HeatmapArgs),
    /// Manage tenants: containers, or groups of processes, that are isolated from each other
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Run a command in a tenant, with volumes mounted for that command alone
    Run(RunArgs),
    /// Manage block devices and the I/O controllers that make shares work on them
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Enforce the I/O shares of containers on a device, journal I/O included
    ///
    /// A kernel thread writes the journal, and those writes are charged to the root cgroup, so a journal-heavy container exceeds its share. The
    /// daemon compensates once a second by reducing the weight of such a container accordingly. Without --detach, shares are enforced while
    /// this command runs, and it prints each tenant's target and achieved share; when it ends, the previous weights are restored.
    #[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Hold(HoldArgs),
    /// Show live reads, writes and journal I/O per container, and which containers delay each other's fsync
    Top(TopArgs),
    /// Show which container's writes delayed which container's fsync
    Blame(BlameArgs),
    /// Measure the cost of system calls in journal bytes
    #[command(subcommand)]
    Journal(JournalCommand),
    /// List, show and cancel jobs: the operations of the daemon that are in progress or ended recently
    #[command(subcommand)]
    Job(JobCommand),
    /// Show facts about this host, and the daemon's findings
    Host,
    /// Demonstrate the effect of a noisy neighbour on fsync on this machine, without and with Bulkhead
    Demo(DemoArgs),
    /// Print a shell completion script
    Completions {
        /// Shell to complete commands for
        shell: Shell,
    },
    /// Execute the command of `run` (internal)
    #[command(name = "__enter", hide = true)]
    Enter(EnterArgs),
    /// Serve a volume's image as a block device, in the background (internal)
    #[command(name = bulkhead_core::serve::COMMAND, hide = true)]
    Blockd(BlockdArgs),
    /// Read mounted volumes on behalf of the block servers of their peers, in the background (internal)
    #[command(name = "siblings", hide = true)]
    Siblings,
    /// Perform one action in a separate process, so that the daemon does not block on it (internal)
    #[command(name = bulkhead_engine::kernel::apart::COMMAND, hide = true)]
    Act {
        /// Action, as JSON
        action: String,
    },
    /// Perform long-running work under the supervision of the daemon (internal)
    #[command(name = bulkhead_core::work::COMMAND, hide = true)]
    Work {
        /// Work to perform, as JSON
        spec: String,
    },
    /// Run a load generator in a directory (internal)
    #[command(name = "__load", hide = true)]
    Load(bulkhead_measure::load::LoadArgs),
    /// Write the command reference and the man pages to a directory (for packaging)
    #[command(name = "__docs", hide = true)]
    Docs {
        /// Output directory
        directory: PathBuf,
    },
}

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

#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// List jobs: those in progress first, then those that ended, most recent first
    Ls,
    /// Show a job
    Inspect {
        /// Job number
        job: u64,
    },
    /// Cancel a job and undo what it has done
    ///
    /// A waiting job is cancelled at once; a running one before its next step, provided that everything it has done so far can be undone.
    Cancel {
        /// Job number
        job: u64,
    },
}

#[derive(Debug, Args)]
pub(crate) struct HoldStartArgs {
    /// Tenant and its share; required at least twice. NAME is a tenant, a container (its name or the start of its ID), a systemd unit, or the
    /// path of a cgroup. Shares are relative: their sum does not matter
    #[arg(long = "tenant", value_name = "NAME=SHARE", required = true)]
    pub(crate) tenants: Vec<String>,
    /// Upper limit for the 99th percentile of a tenant's fsync latency, for example db=20ms. The other tenants are throttled to meet it, but
    /// not below a quarter of their share. Can be repeated for other tenants
    #[arg(long, value_name = "NAME=TIME")]
    pub(crate) fsync_p99: Vec<String>,
    /// An ext4 file system that only this container uses, given as a directory in it or as its device. While shares are enforced, its journal
    /// thread runs in a cgroup next to the container's and gets part of the container's weight. Can be repeated for other containers
    #[arg(long, value_name = "NAME=PATH")]
    pub(crate) journal: Vec<String>,
    /// Physical device, by kernel name or path [default: the only one with a controller]
    #[arg(long, value_name = "DEV")]
    pub(crate) device: Option<String>,
    /// Resource that the shares divide: bytes, or device time, in which small random writes cost more than their bytes suggest
    #[arg(long, value_enum, default_value_t = HoldUnit::Bytes)]
    pub(crate) unit: HoldUnit,
    /// Method of correcting weights: Bulkhead's own, or for comparison the published equation, applied every 5 s
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

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Directory to run in; files created there (at most 6 GiB) are removed afterwards
    #[arg(long, value_name = "DIR", conflicts_with = "device", required_unless_present = "device")]
    pub(crate) on: Option<PathBuf>,
    /// Whole block device to run on instead; all data on it is lost
    #[arg(long, value_name = "DEV", requires = "erase")]
    pub(crate) device: Option<PathBuf>,
    /// Repeat the exact path of the device, to confirm that its data may be lost
    #[arg(long, value_name = "DEV", requires = "device")]
    pub(crate) erase: Option<PathBuf>,
    /// Output directory for the report, the measurements and the plots
    #[arg(long, value_name = "DIR", default_value = "bulkhead-demo")]
    pub(crate) report: PathBuf,
    #[command(flatten)]
    pub(crate) iocost: IocostLines,
    #[command(flatten)]
    pub(crate) simulated: Simulated,
}

#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// Directory for state that survives a reboot
    #[arg(long, value_name = "DIR", default_value = "/var/lib/bulkhead")]
    pub(crate) state_dir: PathBuf,
    /// Directory for mount points and runtime state
    #[arg(long, value_name = "DIR", default_value = "/run/bulkhead")]
    pub(crate) run_dir: PathBuf,
    /// Group whose members may use the socket, besides root; membership is equivalent to root access
    #[arg(long, value_name = "GROUP")]
    pub(crate) socket_group: Option<String>,
    /// Also serve Prometheus metrics (/metrics) on this address, for example 127.0.0.1:9477; they reveal the names of all containers that do
    /// I/O
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Maximum number of requests in flight per file volume, 1 to 1024; each takes up to 256 KiB of memory that is never paged out. Volumes
    /// that already have a device keep their value
    #[arg(long, value_name = "N", default_value_t = servers::REQUESTS, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) volume_requests: u16,
    /// Format of the log on standard error; BULKHEAD_LOG sets its level (error, warn, info, debug)
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Options of all commands that change something.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Write {
    /// Show what would be done, without changing anything
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReadFrom {
    /// From disk; no memory is shared
    Disk,
    /// Through the host page cache: one copy in memory for all clones of an image, in addition to each clone's own
    HostCache,
    /// From the page cache of a peer (a clone that has read the same block), else from disk (imported images only)
    Peers,
    /// From the page cache of a peer, else through the host page cache (imported images only)
    Both,
}

impl From<ReadFrom> for model::ReadFrom {
    fn from(mode: ReadFrom) -> Self {
        match mode {
            ReadFrom::Disk => Self::Disk,
            ReadFrom::HostCache => Self::HostCache,
            ReadFrom::Peers => Self::Peers,
            ReadFrom::Both => Self::Both,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Create a volume with an empty file system
    Create(VolumeCreateArgs),
    /// List volumes
    Ls {
        /// Only the volumes of this pool
        #[arg(long, value_name = "POOL")]
        pool: Option<String>,
    },
    /// Show a volume, and how its journal I/O is charged
    Inspect {
        /// POOL/VOLUME, or just VOLUME if only one pool has a volume of that name
        volume: String,
    },
    /// Remove a volume and its data
    Rm {
        /// POOL/VOLUME, or just VOLUME if only one pool has a volume of that name
        volume: String,
        /// Remove it even if it is attached to a tenant, after detaching it
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        write: Write,
    },
    /// Resize a volume or its journal; volumes can grow while they are in use
    Resize {
        /// POOL/VOLUME, or just VOLUME if only one pool has a volume of that name
        volume: String,
        /// New size, for example 20G
        #[arg(long, allow_hyphen_values = true, required_unless_present = "journal")]
        size: Option<String>,
        /// Confirm that the volume is to shrink (ext4 only, while not mounted)
        #[arg(long)]
        shrink: bool,
        /// Replace the journal with one of this size, for example 128M, or `auto` for the size that a new volume would get (ext4 only, while
        /// not mounted). Without this option, a volume that grows keeps its small journal
        #[arg(long, allow_hyphen_values = true, value_name = "SIZE")]
        journal: Option<String>,
        #[command(flatten)]
        write: Write,
    },
    /// Create a read-only snapshot of a volume (thin pools, and directory pools without `--server loop`)
    ///
    /// It shares unchanged blocks with its origin.
    Snapshot {
        /// Origin of the snapshot: POOL/VOLUME, or just VOLUME if only one pool has a volume of that name
        volume: String,
        /// Name of the snapshot, created in the same pool
        name: String,
        #[command(flatten)]
        write: Write,
    },
    /// Create a writable clone of a volume or snapshot (thin pools, and directory pools without `--server loop`)
    ///
    /// It shares unchanged blocks with its origin.
    Clone {
        /// Origin of the clone: POOL/VOLUME, or just VOLUME if only one pool has a volume of that name
        volume: String,
        /// Name of the clone, created in the same pool
        name: String,
        /// Where shared blocks are read from [default: as the origin; on LVM: disk]. On LVM, only clones of a snapshot support `host-cache`, and
        /// peers are not available
        #[arg(long, value_enum, value_name = "SOURCE")]
        read_from: Option<ReadFrom>,
        /// Sharing domain: volumes read only the page caches of volumes in the same domain (with `peers` and `disk` only) [default: the origin's,
        /// else the pool's]
        #[arg(long, value_name = "NAME")]
        domain: Option<String>,
        #[command(flatten)]
        mount: MountArgs,
        #[command(flatten)]
        write: Write,
    },
    /// Revert a detached volume to one of its snapshots (directory pools)
    Rollback {
        /// POOL/VOLUME, or just VOLUME if only one pool has a volume of that name
        volume: String,
        /// Name of the snapshot to revert to, in the same pool
        snapshot: String,
        /// Confirm that everything written to the volume since then is lost
        #[arg(long)]
        lose_changes: bool,
        #[command(flatten)]
        write: Write,
    },
    /// Make a volume independent of the layers it shares with others (directory pools)
    ///
    /// Blocks that the volume still shares are copied into its own image while it is in use, until it depends on no layer.
    Flatten {
        /// POOL/VOLUME, or just VOLUME if only one pool has a volume of that name
        volume: String,
        /// Stop copying; blocks that have been copied stay in the volume's image
        #[arg(long)]
        cancel: bool,
        #[command(flatten)]
        write: Write,
    },
    /// Write a snapshot to standard output as a stream, in full or as the difference from another (directory pools and thin pools)
    Send(SendArgs),
    /// Create a snapshot from a stream on standard input; the sending host must be trusted (directory pools)
    Receive(ReceiveArgs),
    /// Check the file system of a volume that is not mounted
    Check {
        /// POOL/VOLUME, or just VOLUME if only one pool has a volume of that name
        volume: String,
        /// Repair what can be repaired safely
        #[arg(long)]
        repair: bool,
        /// Repair everything, even if damaged files are lost; if the pool supports snapshots, the previous state is kept as the snapshot
        /// VOLUME-before-repair
        #[arg(long, conflicts_with = "repair")]
        full: bool,
        #[command(flatten)]
        write: Write,
    },
    /// Return the unused space of mounted volumes to their pools (volumes provisioned on demand)
    ///
    /// Discards blocks that no file uses. The tenants are charged for the I/O.
    Trim {
        /// Volumes to trim, one after the other: POOL/VOLUME, or just VOLUME if only one pool has a volume of that name
        #[arg(value_name = "VOLUME", required_unless_present = "all", conflicts_with = "all")]
        volumes: Vec<String>,
        /// Trim all mounted volumes that can be trimmed
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        write: Write,
    },
    /// Provide a block device for a detached volume without mounting it, for tools that repair or copy it
    Map {
        /// POOL/VOLUME, or just VOLUME if only one pool has a volume of that name
        volume: String,
        #[command(flatten)]
        write: Write,
    },
    /// Remove the block device of a mapped volume
    Unmap {
        /// POOL/VOLUME, or just VOLUME if only one pool has a volume of that name
        volume: String,
        #[command(flatten)]
        write: Write,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// Snapshot to send: POOL/VOLUME, or just VOLUME if only one pool has a volume of that name
    pub(crate) snapshot: String,
    /// Previously sent snapshot in the same pool; only the difference from it is sent
    #[arg(long, value_name = "SNAPSHOT")]
    pub(crate) from: Option<String>,
    /// Resume an interrupted transfer: the resume token that `bulkhead volume receive --token` prints
    #[arg(long, value_name = "TOKEN")]
    pub(crate) resume: Option<String>,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[derive(Debug, Args)]
pub(crate) struct ReceiveArgs {
    /// Snapshot to create: POOL/VOLUME
    pub(crate) volume: String,
    /// Print the resume token of an interrupted transfer, for `bulkhead volume send --resume`
    #[arg(long, conflicts_with = "abort")]
    pub(crate) token: bool,
    /// Discard the received data of an interrupted transfer
    #[arg(long)]
    pub(crate) abort: bool,
    /// Tenant to charge for the work [default: the tenant of a volume with the same base, or none, at the lowest priority]; the snapshot is not
    /// attached to it
    #[arg(long, value_name = "NAME", conflicts_with_all = ["token", "abort"])]
    pub(crate) tenant: Option<String>,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeCreateArgs {
    /// Volume to create: POOL/VOLUME
    pub(crate) volume: String,
    /// Size, for example 10G; rounded up to the granularity of the pool
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) size: String,
    /// File system
    #[arg(long, value_enum, default_value_t = Fs::Ext4)]
    pub(crate) fs: Fs,
    /// When blocks are allocated from the pool [default: full, except in a thin pool]
    #[arg(long, value_enum)]
    pub(crate) provision: Option<Blocks>,
    /// Enable ext4's fast_commit
    #[arg(long)]
    pub(crate) fast_commit: bool,
    #[command(flatten)]
    pub(crate) mount: MountArgs,
    #[command(flatten)]
    pub(crate) write: Write,
}

/// How a volume is mounted for its tenant.
#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    /// Mount the volume without `nosuid`, for a container's root file system: set-user-ID programs and file capabilities work
    #[arg(long)]
    pub(crate) suid: bool,
    /// Mount the volume without `nodev`: device nodes in it can be opened
    #[arg(long)]
    pub(crate) dev: bool,
    /// Mount this directory of the volume in place of its root, and create it if need be: databases refuse a directory with `lost+found` [default:
    /// the origin's, else the root]
    #[arg(long, value_name = "NAME")]
    pub(crate) subdir: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fs {
    Ext4,
    Xfs,
}

impl From<Fs> for FsKind {
    fn from(fs: Fs) -> Self {
        match fs {
            Fs::Ext4 => Self::Ext4,
            Fs::Xfs => Self::Xfs,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Blocks {
    Full,
    OnDemand,
}

impl From<Blocks> for Provision {
    fn from(blocks: Blocks) -> Self {
        match blocks {
            Blocks::Full => Self::Full,
            Blocks::OnDemand => Self::OnDemand,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct BlockdArgs {
    /// Specification of the device to serve, as JSON (`ServeSpec`)
    pub(crate) spec: String,
    /// Maximum number of requests in flight
    #[arg(long, default_value_t = servers::REQUESTS, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) requests: u16,
    /// Only take over the volume's existing device; do not create one
    #[arg(long)]
    pub(crate) successor: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// List block devices, and whether shares work on them
    Ls,
    /// Show a block device: controller, scheduler, calibration
    Inspect {
        /// Kernel name or path of the device, for example vda
        device: String,
    },
    /// Select the I/O controller that makes shares work on a physical device
    Control {
        /// Kernel name or path of the device, for example vda
        device: String,
        #[command(flatten)]
        choice: ControlChoice,
        #[command(flatten)]
        write: Write,
    },
    /// Measure an io.cost model for a device, and store it
    ///
    /// Takes minutes. Creates two scratch volumes in a pool on the device, each in its own tenant (both named bulkhead-calibrate-a and -b,
    /// which are reserved names), and removes them at the end. The device should be idle otherwise; its controller is disabled in the meantime.
    /// Requires fio. With --model and --qos, these are stored, and nothing is measured.
    Calibrate(CalibrateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// Kernel name or path of the device, for example vda
    pub(crate) device: String,
    /// Pool to create the scratch volumes in [default: the one with the most free space on the device]
    #[arg(long, value_name = "POOL", conflicts_with_all = ["model", "qos"])]
    pub(crate) pool: Option<String>,
    /// Only measure the effect of the stored calibration on a small fsync next to three kinds of neighbours, and on these neighbours
    #[arg(long, conflicts_with_all = ["model", "qos", "dry_run"])]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) iocost: IocostLines,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JournalCommand {
    /// Measure the bytes that each kind of system call writes to the journal of ext4 or XFS on this kernel
    ///
    /// Each run creates a scratch file system in memory, with its journal on a separate device, and makes each of 13 system calls on separate
    /// files; their cost is the number of bytes written to the journal's device by the end of the commit. The last two columns are two-term weights:
    /// the cost of a commit that contains such calls, and the additional cost of each call. Takes a minute, and at most 400 MiB of memory; requires root,
    /// e2fsprogs, xfsprogs and loop devices, but no daemon. Nothing else on the machine is touched.
    Calibrate(JournalCalibrateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct JournalCalibrateArgs {
    /// Kind of file system; can be a comma-separated list [default: all, one after the other]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    pub(crate) features: Vec<Features>,
    /// Number of runs, 1 to 1000
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Calls of each kind per run
    #[arg(long, default_value_t = journal_cost::MAX_CALLS, value_name = "N",
        value_parser = clap::value_parser!(u32).range(i64::from(journal_cost::MIN_CALLS)..=i64::from(journal_cost::MAX_CALLS)))]
    pub(crate) calls: u32,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ControlChoice {
    /// Controller; with `none`, shares have no effect
    #[arg(long, value_enum)]
    pub(crate) policy: Option<Controller>,
    /// Restore the setting that was active before Bulkhead changed it
    #[arg(long)]
    pub(crate) restore: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Controller {
    Iocost,
    Bfq,
    None,
}

impl From<Controller> for Policy {
    fn from(controller: Controller) -> Self {
        match controller {
            Controller::Iocost => Self::Iocost,
            Controller::Bfq => Self::Bfq,
            Controller::None => Self::None,
        }
    }
}
