//! The arguments: nouns, verbs and options, as `--help` shows them.
//!
//! Owns: their names and descriptions. Names and sizes are plain text here and are checked in `parse.rs`, so that what is
//! wrong with them is said the same way everywhere, and never printed raw.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use bulkhead_api::client::DEFAULT_SOCKET;
use bulkhead_bench::experiment::Simulated;
use bulkhead_bench::journal_cost::{self, Features};
use bulkhead_core::control::Mode;
use bulkhead_core::control::usage::Unit;
use bulkhead_core::model::{self, Calibration, FsKind, Policy, Provision};
use bulkhead_sys::ublk::service;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::parse;

const EXIT_CODES: &str = "\
Exit codes:
  0  done, or nothing to do          6  there is data on it that is not Bulkhead's
  1  internal error                  7  no space
  2  wrong arguments                 8  not supported on this host
  3  not found                       9  permission denied
  4  already exists                 10  damaged
  5  in use                         11  the daemon does not answer
                                   12  cancelled
`bulkhead run` ends with the exit code of its command (128 + the number of the signal that ended
it), 127 when there is no such command, 126 when it cannot be executed, 125 when anything else
failed before it, and 2 only when its own arguments cannot be read.";

/// Storage isolation for containers: own journal, held shares, nothing shared that one could block
#[derive(Debug, Parser)]
#[command(name = "bulkhead", version, max_term_width = 100, after_long_help = EXIT_CODES, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// How results (and errors) are printed
    #[arg(long, short, global = true, value_enum, default_value_t = Format::Table, env = "BULKHEAD_OUTPUT",
        hide_possible_values = true, value_name = "table|json", help_heading = "Global options")]
    pub(crate) output: Format,

    /// The daemon's socket
    #[arg(long, global = true, default_value = DEFAULT_SOCKET, env = "BULKHEAD_SOCKET", value_name = "PATH",
        help_heading = "Global options")]
    pub(crate) socket: PathBuf,

    /// How long to wait, in seconds, for other operations on the same objects and for a tenant's data to be written; in most cases nothing
    /// has been changed then, and the error says so
    #[arg(long, global = true, default_value_t = 60, value_parser = clap::value_parser!(u64).range(..=MAX_WAIT), value_name = "SECONDS",
        help_heading = "Global options")]
    pub(crate) wait: u64,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// A week: more than anybody waits.
const MAX_WAIT: u64 = 7 * 24 * 3600;

/// For people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the service that everything else talks to
    Daemon(DaemonArgs),
    /// Places where volumes live: a directory, or an LVM volume group
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Block devices with a file system and a journal of their own
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Base volumes of what containers start from
    #[command(subcommand)]
    Image(ImageCommand),
    /// Show who read whose shared blocks, and from where: disk, host's page cache, sibling's page cache
    Heatmap(HeatmapArgs),
    /// Containers, or groups of processes, that are isolated from each other
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Run a command in a tenant, with volumes mounted for it alone
    Run(RunArgs),
    /// Block devices, and the controllers that make shares work on them
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Hold shares of containers on a device, journal I/O included
    ///
    /// Journal writes by a thread of the kernel are charged to nobody whom a weight holds: who causes them has them on top of its
    /// share. The daemon makes such a container's weight that much smaller, once a second. Without --detach this lasts as long as
    /// the command, which prints where everybody stands; then the weights are as before.
    #[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Hold(HoldArgs),
    /// Show live who reads, writes and journals how much, and who waits for whom in fsync
    Top(TopArgs),
    /// Show whose writes made whose fsync slow
    Blame(BlameArgs),
    /// What calls cost in journal bytes
    #[command(subcommand)]
    Journal(JournalCommand),
    /// Operations that the daemon is carrying out, and those that ended lately
    #[command(subcommand)]
    Job(JobCommand),
    /// Show what the daemon found on this host, and what is wrong
    Host,
    /// Show on this machine what a noisy neighbour does to an fsync, and what Bulkhead changes
    Demo(DemoArgs),
    /// Print a script that completes commands in a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Become the command of `run` (internal)
    #[command(name = "__enter", hide = true)]
    Enter(EnterArgs),
    /// Serve a volume's image as a block device, in the background (internal)
    #[command(name = bulkhead_core::serve::COMMAND, hide = true)]
    Blockd(BlockdArgs),
    /// Read from mounted volumes for the block servers of others, in the background (internal)
    #[command(name = "siblings", hide = true)]
    Siblings,
    /// Carry out one action, for a daemon that does not wait for it itself (internal)
    #[command(name = bulkhead_engine::kernel::apart::COMMAND, hide = true)]
    Act {
        /// The action, as JSON
        action: String,
    },
    /// Do work that takes long, for a daemon that follows it (internal)
    #[command(name = bulkhead_core::work::COMMAND, hide = true)]
    Work {
        /// The work, as JSON
        spec: String,
    },
    /// Put a load on a directory (internal)
    #[command(name = "__load", hide = true)]
    Load(bulkhead_bench::load::LoadArgs),
    /// Run one experiment and write its JSON (for the lab)
    #[command(name = "__experiment", hide = true)]
    Experiment(ExperimentArgs),
    /// Write the reference and the man pages into a directory (for packages)
    #[command(name = "__docs", hide = true)]
    Docs {
        /// Where to
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
    /// List the shares that are held, and where everybody stands
    Ls,
    /// End what is held on a device: its weights are as before
    Rm {
        /// Its kernel name or path, for example vda
        device: String,
        #[command(flatten)]
        write: Write,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// List the jobs: those that run, then those that ended, the latest first
    Ls,
    /// Show a job
    Inspect {
        /// Its number
        job: u64,
    },
    /// Have a job undone: at once while it waits, else before its next step, if all that it did can be undone
    Cancel {
        /// Its number
        job: u64,
    },
}

#[derive(Debug, Args)]
pub(crate) struct HoldStartArgs {
    /// A container and its share, twice or more: a tenant, a container by its name or the start of its id, a unit, or the path
    /// of a cgroup. Shares may sum to anything
    #[arg(long = "tenant", value_name = "NAME=SHARE", required = true)]
    pub(crate) tenants: Vec<String>,
    /// How long 99 % of a tenant's fsyncs are to take at most, for example db=20ms: the others are slowed down for it, to a quarter
    /// of their share at least. May be given for several
    #[arg(long, value_name = "NAME=TIME")]
    pub(crate) fsync_p99: Vec<String>,
    /// An ext4 that only this container uses, by a directory in it or its device: its journal thread runs in a cgroup beside the
    /// container's as long as the share is held, and has a part of its weight. May be given for several
    #[arg(long, value_name = "NAME=PATH")]
    pub(crate) journal: Vec<String>,
    /// The physical device, by its kernel name or path [default: the only one with a controller]
    #[arg(long, value_name = "DEV")]
    pub(crate) device: Option<String>,
    /// What shares are parts of: bytes, or the device's time, of which a small random write takes more than its bytes say
    #[arg(long, value_enum, default_value_t = HoldUnit::Bytes)]
    pub(crate) unit: HoldUnit,
    /// How they are held: as Bulkhead does, or every 5 s by the published equation, for comparison
    #[arg(long, value_enum, default_value_t = HoldMode::Correcting)]
    pub(crate) mode: HoldMode,
    /// Leave it in force when this command ends, until `bulkhead hold rm` or the next boot
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
pub(crate) struct TopArgs {
    /// Print one table and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Print the sums since the observation began as JSON, and end
    #[arg(long, conflicts_with_all = ["once", "interval"])]
    pub(crate) total: bool,
    /// Seconds between two looks
    #[arg(long, short, default_value_t = 2.0, value_name = "SECONDS", value_parser = parse::seconds, allow_negative_numbers = true)]
    pub(crate) interval: f64,
    /// What the lines are sorted by at first
    #[arg(long, short, value_enum, default_value_t = SortKey::Journal)]
    pub(crate) sort: SortKey,
}

/// Columns to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortKey {
    /// Journal bytes that it caused
    Journal,
    /// Data that it reads and writes
    Data,
    /// Device time
    Device,
    /// 99th percentile of fsync
    Fsync,
    /// Time that it waited in fsync because of others
    Waited,
    /// Name
    Name,
}

#[derive(Debug, Args)]
pub(crate) struct BlameArgs {
    /// Seconds to watch
    #[arg(long = "for", default_value_t = 10.0, value_name = "SECONDS", value_parser = parse::seconds, conflicts_with = "total", allow_negative_numbers = true)]
    pub(crate) watch: f64,
    /// Print a table after each such time, until interrupted
    #[arg(long, conflicts_with = "total")]
    pub(crate) follow: bool,
    /// Everything since the daemon began to observe, at once; with --waits the last 5 minutes
    #[arg(long)]
    pub(crate) total: bool,
    /// With --waits, list the waits of the last SECONDS (at most 300) at once
    #[arg(long, value_name = "SECONDS", value_parser = parse::remembered_seconds, requires = "waits", conflicts_with_all = ["watch", "follow", "total"], allow_negative_numbers = true)]
    pub(crate) last: Option<f64>,
    /// List the longest waits one by one: the commits that each waited for, and whose blocks, data and requests held it up
    #[arg(long)]
    pub(crate) waits: bool,
    /// Only what this container waited for: its name, or the first 12 or more digits of its id
    #[arg(value_name = "VICTIM")]
    pub(crate) victim: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// A directory to run in; what is made there (at most 6 GiB) is removed afterwards
    #[arg(long, value_name = "DIR", conflicts_with = "device", required_unless_present = "device")]
    pub(crate) on: Option<PathBuf>,
    /// A whole block device to run on instead: all data on it is lost
    #[arg(long, value_name = "DEV", requires = "erase")]
    pub(crate) device: Option<PathBuf>,
    /// The exact path of the device once more, as confirmation that its data may be lost
    #[arg(long, value_name = "DEV", requires = "device")]
    pub(crate) erase: Option<PathBuf>,
    /// Where the report, the figures and the pictures go
    #[arg(long, value_name = "DIR", default_value = "bulkhead-demo")]
    pub(crate) report: PathBuf,
    #[command(flatten)]
    pub(crate) iocost: IocostLines,
    #[command(flatten)]
    pub(crate) simulated: SimulatedArgs,
}

/// What the lab says of a machine that it simulates.
#[derive(Debug, Args)]
pub(crate) struct SimulatedArgs {
    /// What a simulated disk simulates, in words
    #[arg(long, hide = true, default_value = "", value_name = "WORDS")]
    disk: String,
    /// The name of its model
    #[arg(long, hide = true, default_value = "", value_name = "NAME")]
    disk_model: String,
    /// What the machine's clock runs by, in words
    #[arg(long, hide = true, default_value = "", value_name = "WORDS")]
    clock: String,
}

impl SimulatedArgs {
    pub(crate) fn simulated(&self) -> Simulated {
        let Self { disk, disk_model, clock } = self;
        Simulated { disk: disk.clone(), disk_model: disk_model.clone(), clock: clock.clone() }
    }
}

/// What io.cost is told about a device.
#[derive(Debug, Args)]
pub(crate) struct IocostLines {
    /// The line for io.cost.model (without the device number), as `device inspect` shows it
    #[arg(long, value_name = "LINE", requires = "qos")]
    model: Option<String>,
    /// The line for io.cost.qos that goes with it
    #[arg(long, value_name = "LINE", requires = "model")]
    qos: Option<String>,
}

impl IocostLines {
    /// The lines, if they were given, as a calibration that was not measured.
    pub(crate) fn calibration(&self) -> Option<Calibration> {
        let (model, qos) = (self.model.clone()?, self.qos.clone()?);
        let measured = vec!["given on the command line, not measured".to_owned()];
        Some(Calibration { model, qos, measured, isolation: None })
    }
}

#[derive(Debug, Args)]
pub(crate) struct ExperimentArgs {
    /// Which one
    pub(crate) name: String,
    /// The block device, whose data is lost
    #[arg(long, value_name = "DEV")]
    pub(crate) device: PathBuf,
    /// Where its JSON goes
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// The short form
    #[arg(long)]
    pub(crate) quick: bool,
    /// Number of rounds
    #[arg(long)]
    pub(crate) rounds: Option<u32>,
    /// Only these configurations, as `shared/none`
    #[arg(long = "config", value_name = "LAYOUT/CONTROLLER")]
    pub(crate) configs: Vec<String>,
    /// Only these neighbours
    #[arg(long = "neighbour", value_name = "KIND")]
    pub(crate) neighbours: Vec<String>,
    #[command(flatten)]
    pub(crate) iocost: IocostLines,
    #[command(flatten)]
    pub(crate) simulated: SimulatedArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// Where records are kept that survive a reboot
    #[arg(long, value_name = "DIR", default_value = "/var/lib/bulkhead")]
    pub(crate) state_dir: PathBuf,
    /// Where volumes are mounted and running state is kept
    #[arg(long, value_name = "DIR", default_value = "/run/bulkhead")]
    pub(crate) run_dir: PathBuf,
    /// The group whose members may use the socket, beside root; its members are as good as root
    #[arg(long, value_name = "GROUP")]
    pub(crate) socket_group: Option<String>,
    /// Serve /metrics to Prometheus here too, for example 127.0.0.1:9477; it shows the names of all containers that do I/O
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// How many requests of a file volume can be under way; each takes up to 256 KiB of memory that is never paged out. Volumes that
    /// have a device keep what they have
    #[arg(long, value_name = "N", default_value_t = service::REQUESTS, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) volume_requests: u16,
    /// How the log on standard error is written; BULKHEAD_LOG sets its level (error, warn, info, debug)
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// What every command has that writes.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Write {
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Make a pool, or take one over that is there already
    Create(PoolCreateArgs),
    /// List the pools
    Ls,
    /// Show a pool
    Inspect {
        /// Its name
        name: String,
    },
    /// Say where a pool in a directory is now: its file system is mounted elsewhere
    Move {
        /// Its name
        name: String,
        /// The directory in which its volumes are
        #[arg(long, value_name = "PATH")]
        dir: PathBuf,
        #[command(flatten)]
        write: Write,
    },
    /// Remove an empty pool
    Rm {
        /// Its name
        name: String,
        #[command(flatten)]
        write: Write,
    },
}

#[derive(Debug, Args)]
pub(crate) struct PoolCreateArgs {
    /// Its name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) place: PoolPlace,
    /// Make thin volumes, snapshots and clones in this thin pool of the volume group
    #[arg(long, value_name = "LV", requires = "vg", conflicts_with_all = ["dir", "device"])]
    pub(crate) thin_pool: Option<String>,
    /// Make a thin pool on the device, for thin volumes, snapshots and clones
    #[arg(long, requires = "device", conflicts_with_all = ["dir", "vg"])]
    pub(crate) thin: bool,
    /// The device once more, as confirmation that everything on it may be erased
    #[arg(long, value_name = "DEV", requires = "device", conflicts_with_all = ["dir", "vg"])]
    pub(crate) erase: Option<String>,
    /// What makes block devices of the images in the directory
    #[arg(long, value_enum, default_value_t = Server::Auto, requires = "dir", conflicts_with_all = ["vg", "device"])]
    pub(crate) server: Server,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Server {
    /// A block server for each volume (ublk); a loop device where the kernel has no ublk
    Auto,
    /// A loop device for each volume: each flush commits the journal of the file system that the directory is on
    Loop,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PoolPlace {
    /// A directory on a host file system; it is made when it is not there
    #[arg(long, value_name = "PATH")]
    pub(crate) dir: Option<PathBuf>,
    /// An LVM volume group that is there already
    #[arg(long, value_name = "VG")]
    pub(crate) vg: Option<String>,
    /// A whole block device, which becomes a volume group
    #[arg(long, value_name = "DEV")]
    pub(crate) device: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct HeatmapArgs {
    /// Draw it as well
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sharing {
    /// From the disk: it shares no memory
    Off,
    /// Through the host's page cache: one copy in memory for all clones of an image, beside that of each clone
    Base,
    /// From the memory of a clone that has read the same, else from the disk (imported images)
    Drr,
    /// From the memory of a clone that has read the same, else through the host's page cache (imported images)
    Both,
}

impl From<Sharing> for model::Sharing {
    fn from(sharing: Sharing) -> Self {
        match sharing {
            Sharing::Off => Self::Off,
            Sharing::Base => Self::Base,
            Sharing::Drr => Self::Drr,
            Sharing::Both => Self::Both,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Make a volume with an empty file system
    Create(VolumeCreateArgs),
    /// List the volumes
    Ls {
        /// Only those of this pool
        #[arg(long, value_name = "POOL")]
        pool: Option<String>,
    },
    /// Show a volume, and how its journal is charged
    Inspect {
        /// POOL/VOLUME, or VOLUME when only one pool has one of that name
        volume: String,
    },
    /// Remove a volume and its data
    Rm {
        /// POOL/VOLUME, or VOLUME when only one pool has one of that name
        volume: String,
        /// Also when it is mounted for a tenant: take it away first
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        write: Write,
    },
    /// Change the size of a volume, which can grow while it is in use, or of its journal
    Resize {
        /// POOL/VOLUME, or VOLUME when only one pool has one of that name
        volume: String,
        /// The new size, for example 20G
        #[arg(long, allow_hyphen_values = true, required_unless_present = "journal")]
        size: Option<String>,
        /// Confirm that it is to become smaller (ext4 only, while it is not mounted)
        #[arg(long)]
        shrink: bool,
        /// Replace its journal by one of this size, for example 128M, or `auto`: as large as that of a new volume (ext4 only, while it is
        /// not mounted). A volume that grows keeps its small journal otherwise
        #[arg(long, allow_hyphen_values = true, value_name = "SIZE")]
        journal: Option<String>,
        #[command(flatten)]
        write: Write,
    },
    /// Make a read-only copy that shares unchanged blocks (thin pools, and directories without `--server loop`)
    Snapshot {
        /// The volume to copy: POOL/VOLUME, or VOLUME when only one pool has one of that name
        volume: String,
        /// Name of the copy, in the same pool
        name: String,
        #[command(flatten)]
        write: Write,
    },
    /// Make a writable copy that shares unchanged blocks (thin pools, and directories without `--server loop`)
    Clone {
        /// The volume to copy: POOL/VOLUME, or VOLUME when only one pool has one of that name
        volume: String,
        /// Name of the copy, in the same pool
        name: String,
        /// From where it reads what it shares; when left away as the original does, and on LVM `off` (there clones of a snapshot
        /// can have `base`)
        #[arg(long, value_enum, value_name = "HOW")]
        share: Option<Sharing>,
        /// Learn from the reads of other volumes only if they are in the same domain; the pool's when left away (`drr` and `off` only)
        #[arg(long, value_name = "NAME")]
        domain: Option<String>,
        #[command(flatten)]
        write: Write,
    },
    /// Make a volume that no tenant holds what a snapshot of it holds (pools on a directory)
    Rollback {
        /// POOL/VOLUME, or VOLUME when only one pool has one of that name
        volume: String,
        /// Name of the snapshot, in the same pool
        snapshot: String,
        /// Confirm that what was written to the volume since is lost
        #[arg(long)]
        lose_changes: bool,
        #[command(flatten)]
        write: Write,
    },
    /// Have a copied volume copy what it still shares, while it is in use, so that it depends on no layer (pools on a directory)
    Flatten {
        /// POOL/VOLUME, or VOLUME when only one pool has one of that name
        volume: String,
        /// Stop it; what was copied by then stays the volume's own
        #[arg(long)]
        cancel: bool,
        #[command(flatten)]
        write: Write,
    },
    /// Write a snapshot to standard output as a stream, all of it or what differs from another (pools on a directory or a thin pool)
    Send(SendArgs),
    /// Make a snapshot of a stream on standard input; only from hosts that are trusted as this one is (pools on a directory)
    Receive(ReceiveArgs),
    /// Check the file system of a volume that is not mounted
    Check {
        /// POOL/VOLUME, or VOLUME when only one pool has one of that name
        volume: String,
        /// Repair what can be repaired safely
        #[arg(long)]
        repair: bool,
        /// Repair all of it, which can lose files that are damaged; what it was is kept as the snapshot VOLUME-before-repair where the
        /// pool can
        #[arg(long, conflicts_with = "repair")]
        full: bool,
        #[command(flatten)]
        write: Write,
    },
    /// Give what files of mounted volumes no longer use back to their pools, which the tenants pay for (volumes provisioned on demand)
    Trim {
        /// POOL/VOLUME, or VOLUME when only one pool has one of that name; one after the other
        #[arg(value_name = "VOLUME", required_unless_present = "all", conflicts_with = "all")]
        volumes: Vec<String>,
        /// All volumes that are mounted and can be trimmed
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        write: Write,
    },
    /// Give a volume that no tenant has a device without mounting it, for tools that repair or copy it
    Map {
        /// POOL/VOLUME, or VOLUME when only one pool has one of that name
        volume: String,
        #[command(flatten)]
        write: Write,
    },
    /// Take the device of a mapped volume away
    Unmap {
        /// POOL/VOLUME, or VOLUME when only one pool has one of that name
        volume: String,
        #[command(flatten)]
        write: Write,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Make a snapshot, to be cloned, of a directory, a tar archive or an OCI image; the same source gives the same base (pools on a
    /// directory)
    Import(ImageImportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ImageImportArgs {
    /// A directory, a tar archive (plain, gzip or zstd), an OCI image layout, or what `docker save` writes; images as a directory or a tar archive
    pub(crate) source: PathBuf,
    /// POOL/VOLUME: the snapshot to make
    pub(crate) volume: String,
    /// Its size, for example 10G; about twice what is in it when left out. Clones can be made larger
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) size: Option<String>,
    /// Which image of several: OS/ARCHITECTURE[/VARIANT]; what this host runs when left out
    #[arg(long)]
    pub(crate) platform: Option<String>,
    /// Which image of several: its name, tag or digest, for example alpine:3.20
    #[arg(long, value_name = "NAME")]
    pub(crate) reference: Option<String>,
    /// Refuse a source of which not all extended attributes can be kept; they are left out, and named, otherwise
    #[arg(long)]
    pub(crate) strict: bool,
    /// Where archives are unpacked on the way
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(crate) staging: PathBuf,
    /// Tenant that is charged for the daemon's part of the work [default: none, at the lowest priority]; the snapshot is not attached to it
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// The snapshot: POOL/VOLUME, or VOLUME when only one pool has one of that name
    pub(crate) snapshot: String,
    /// A snapshot in the same pool that was sent before: send only what differs
    #[arg(long, value_name = "SNAPSHOT")]
    pub(crate) from: Option<String>,
    /// Go on where an interrupted transfer ended: what `bulkhead volume receive --token` prints
    #[arg(long, value_name = "TOKEN")]
    pub(crate) resume: Option<String>,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[derive(Debug, Args)]
pub(crate) struct ReceiveArgs {
    /// POOL/VOLUME: the snapshot to make
    pub(crate) volume: String,
    /// Print where an interrupted transfer has to go on, for `bulkhead volume send --resume`
    #[arg(long, conflicts_with = "abort")]
    pub(crate) token: bool,
    /// Give up what was received of an interrupted transfer
    #[arg(long)]
    pub(crate) abort: bool,
    /// Tenant that is charged for the work [default: that of a volume with the same base, or none, at the lowest priority]; the snapshot is
    /// not attached to it
    #[arg(long, value_name = "NAME", conflicts_with_all = ["token", "abort"])]
    pub(crate) tenant: Option<String>,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeCreateArgs {
    /// POOL/VOLUME
    pub(crate) volume: String,
    /// Its size, for example 10G; rounded up to what the pool can give
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) size: String,
    /// Its file system
    #[arg(long, value_enum, default_value_t = Fs::Ext4)]
    pub(crate) fs: Fs,
    /// When its blocks are taken from the pool; full is the default, except in a thin pool
    #[arg(long, value_enum)]
    pub(crate) provision: Option<Blocks>,
    /// Switch on ext4's fast_commit
    #[arg(long)]
    pub(crate) fast_commit: bool,
    #[command(flatten)]
    pub(crate) write: Write,
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

#[derive(Debug, Subcommand)]
pub(crate) enum TenantCommand {
    /// Make a tenant: cgroups, share, limits, volumes
    Create {
        /// Its name
        name: String,
        /// Its weight when there is contention, 1 to 10000
        #[arg(long, value_name = "N", default_value = "100", allow_hyphen_values = true)]
        share: String,
        /// A hard limit, for example vda:wbps=50M,riops=100 (rbps, wbps, riops, wiops); may be repeated
        #[arg(long = "limit", value_name = "DEV:KEY=N,…")]
        limits: Vec<String>,
        /// A volume to keep mounted for it; may be repeated
        #[arg(long = "volume", value_name = "REF")]
        volumes: Vec<String>,
        #[command(flatten)]
        write: Write,
    },
    /// List the tenants
    Ls,
    /// Show a tenant
    Inspect {
        /// Its name
        name: String,
    },
    /// Wait until all volumes of a tenant are mounted
    ///
    /// Fails with the volume that is not, and why. The unit bulkhead-tenant@NAME.service runs this, for units that need the volumes to say
    /// Requires= and After= it.
    Ready {
        /// Its name
        name: String,
        /// How long to wait, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        timeout: u64,
    },
    /// Change a tenant; what is not given stays as it is
    Set(TenantSetArgs),
    /// Remove a tenant; its volumes stay
    Rm {
        /// Its name
        name: String,
        /// Also while processes run in it: kill them
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        write: Write,
    },
}

#[derive(Debug, Args)]
pub(crate) struct TenantSetArgs {
    /// Its name
    pub(crate) name: String,
    /// Its new weight, 1 to 10000
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) share: Option<String>,
    /// Hard limits in place of all that it has, for example vda:wbps=50M,riops=100; may be repeated
    #[arg(long = "limit", value_name = "DEV:KEY=N,…", conflicts_with = "no_limits")]
    pub(crate) limits: Vec<String>,
    /// Take all hard limits away
    #[arg(long)]
    pub(crate) no_limits: bool,
    /// A volume to keep mounted for it from now on; may be repeated
    #[arg(long, value_name = "REF")]
    pub(crate) attach: Vec<String>,
    /// A volume to unmount; may be repeated
    #[arg(long, value_name = "REF")]
    pub(crate) detach: Vec<String>,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The tenant
    #[arg(long, short)]
    pub(crate) tenant: String,
    /// A volume, and the directory where the command sees it; may be repeated
    #[arg(long = "volume", short, value_name = "REF:/PATH[:ro]")]
    pub(crate) volumes: Vec<String>,
    /// The command and its arguments; what it leaves running in the background is killed at its end
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct EnterArgs {
    #[arg(long)]
    pub(crate) tenant: String,
    /// The process that waits for the command
    #[arg(long)]
    pub(crate) run: u32,
    #[arg(long, num_args = 3, allow_hyphen_values = true, value_names = ["SOURCE", "TARGET", "MODE"])]
    pub(crate) bind: Vec<OsString>,
    #[arg(required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct BlockdArgs {
    /// What to serve, as JSON (`ServeSpec`)
    pub(crate) spec: String,
    /// How many requests can be under way
    #[arg(long, default_value_t = service::REQUESTS, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) requests: u16,
    /// Only take the volume's device over, and make none
    #[arg(long)]
    pub(crate) successor: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// List the block devices, and whether shares work on them
    Ls,
    /// Show a block device: controller, scheduler, calibration
    Inspect {
        /// Its kernel name or path, for example vda
        device: String,
    },
    /// Choose the controller that makes shares work on a physical device
    Control {
        /// Its kernel name or path, for example vda
        device: String,
        #[command(flatten)]
        choice: ControlChoice,
        #[command(flatten)]
        write: Write,
    },
    /// Measure an io.cost model for a device, and store it
    ///
    /// Takes minutes. Two scratch volumes, each in a tenant of its own (both named bulkhead-calibrate-a and -b, which are
    /// reserved), are made in a pool on the device and removed at the end. The device should have nothing else to do; its
    /// controller is off meanwhile. fio has to be installed. With --model and --qos nothing is measured: they are stored.
    Calibrate(CalibrateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// Its kernel name or path, for example vda
    pub(crate) device: String,
    /// The pool whose room is used [default: the one with most room on the device]
    #[arg(long, value_name = "POOL", conflicts_with_all = ["model", "qos"])]
    pub(crate) pool: Option<String>,
    /// Only measure what the stored calibration does to a small fsync beside three kinds of neighbours, and to those
    #[arg(long, conflicts_with_all = ["model", "qos", "dry_run"])]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) iocost: IocostLines,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[derive(Debug, Subcommand)]
pub(crate) enum JournalCommand {
    /// Measure on this kernel how many bytes each kind of call writes to the journal of an ext4 or XFS
    ///
    /// Each run makes a scratch file system in memory, with its journal on a device of its own, and calls each of 13 system
    /// calls on files of their own; what the journal's device was given by the end of the commit is what they cost. The last two
    /// columns are two-term weights: what a commit costs with such calls in it, and what each call adds. Takes a minute, and at
    /// most 400 MiB of memory; needs root, e2fsprogs, xfsprogs and loop devices, and no daemon. Nothing else on the machine is
    /// touched.
    Calibrate(JournalCalibrateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct JournalCalibrateArgs {
    /// On which kind of file system [default: all of them, one after the other]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    pub(crate) features: Vec<Features>,
    /// How often everything is repeated
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Calls of each kind in a run
    #[arg(long, default_value_t = journal_cost::MAX_CALLS, value_name = "N",
        value_parser = clap::value_parser!(u32).range(i64::from(journal_cost::MIN_CALLS)..=i64::from(journal_cost::MAX_CALLS)))]
    pub(crate) calls: u32,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ControlChoice {
    /// The controller; none means that shares have no effect
    #[arg(long, value_enum)]
    pub(crate) policy: Option<Controller>,
    /// What was in force before Bulkhead changed it
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
