//! The arguments: nouns, verbs and options, as `--help` shows them.
//!
//! Owns: their names and descriptions. Does not: validate names and sizes, which are plain text here and checked in `parse.rs`, so
//! that errors about them have the same form everywhere and control characters in them are escaped.

mod csi;
mod daemon;
mod demo;
mod device;
mod docker;
mod doctor;
mod hold;
mod image;
mod job;
mod journal;
mod nest;
mod observe;
mod plan;
mod pool;
mod profile;
mod sweep;
mod tenant;
mod volume;

use std::path::PathBuf;

use bulkhead_api::client::DEFAULT_SOCKET;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

pub(crate) use self::csi::{CsiArgs, CsiMode, HttpEndpoint};
pub(crate) use self::daemon::{BlockdArgs, DaemonArgs, LogFormat};
pub(crate) use self::demo::DemoArgs;
pub(crate) use self::device::{CalibrateArgs, CostsArgs, DeviceCommand, Switch};
pub(crate) use self::docker::DockerArgs;
pub(crate) use self::doctor::DoctorArgs;
pub(crate) use self::hold::{HoldArgs, HoldCommand, HoldStartArgs};
pub(crate) use self::image::{ImageCommand, ImageImportArgs};
pub(crate) use self::job::JobCommand;
pub(crate) use self::journal::{JournalCalibrateArgs, JournalCommand};
pub(crate) use self::nest::NestArgs;
pub(crate) use self::observe::{BlameArgs, HeatmapArgs, SortKey, TopArgs};
pub(crate) use self::plan::PlanArgs;
pub(crate) use self::pool::{PoolCommand, PoolCreateArgs, Server};
pub(crate) use self::profile::ProfileArgs;
pub(crate) use self::sweep::SweepArgs;
pub(crate) use self::tenant::{EnterArgs, RunArgs, TenantCommand, TenantSetArgs};
pub(crate) use self::volume::{MountArgs, ReceiveArgs, SendArgs, VolumeCommand};

const EXIT_CODES: &str = "\
Exit codes:
  0  success, or nothing to do       6  the target already contains other data
  1  internal error                  7  no space left
  2  invalid arguments               8  not supported on this host
  3  not found                       9  permission denied
  4  already exists                 10  data is corrupt
  5  in use                         11  unavailable: for example, the daemon does not answer
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

    /// Seconds to wait for other operations on the same objects, and for a tenant's dirty data to be written to disk, 0 to 604800. On
    /// timeout, the error says whether anything was changed
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
    Host {
        #[command(subcommand)]
        command: Option<HostCommand>,
    },
    /// Check the storage stack of this host for configuration that costs isolation, speed or data
    ///
    /// Reads /proc, /sys and cgroups, changes nothing and sends no I/O to any device; needs no daemon. As root it sees all processes. Exits with
    /// 20 if the most severe finding is a warning, and with 21 if it is critical.
    Doctor(DoctorArgs),
    /// Run the volume plugin for Docker and Podman
    ///
    /// Started by systemd when Docker or Podman uses a volume of the driver `bulkhead`. Stateless: translates the engines' requests into
    /// requests to the daemon.
    DockerPlugin(DockerArgs),
    /// Run the CSI driver for Kubernetes
    ///
    /// Serves the Container Storage Interface. Stateless: translates its calls into requests to this node's daemon.
    Csi(CsiArgs),
    /// Measure which file system in an image works on which below it, on a disk whose data is lost
    ///
    /// Makes each pair of file systems on the disk, and compares micro I/O and file, web, mail and database servers on it with the same file
    /// system on the disk itself. Writes a report with the best and worst pairs and what differs on the disk. Takes hours; an interrupted run
    /// can be continued.
    Nest(NestArgs),
    /// Measure what a running container demands of its host, for `plan`
    ///
    /// Watches processor time, requests to devices, durable writes, page cache and threads of a container of any engine, from outside, until the
    /// figures are stable. Changes nothing, and needs no daemon without --save. With --demand, writes what a fleet file takes.
    Profile(ProfileArgs),
    /// Measure how many copies of workloads are worth having on a pool, and which go together
    ///
    /// Runs more and more copies of commands that print their rates, and mixes of them, each copy in a tenant with a volume of its own, which are
    /// removed at the end. Warm-up and steady state are found, not assumed. Says where more copies gain nothing (knee), where they lose
    /// (throughput valley), what limits them, and who pays in a mix. docs/sweep.md describes the file. An interrupted sweep can be continued.
    Sweep(SweepArgs),
    /// Plan which workload belongs on which device of which host
    ///
    /// Predicts, from what each workload demands and what each device's requests cost, what workloads achieve together, and maximises the sum of
    /// their throughputs, each in parts of what it achieves alone, under floors, promised latencies, space, memory and groups. Changes nothing, and
    /// needs no daemon without --here. docs/plan.md describes the fleet file.
    Plan(PlanArgs),
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
    #[command(name = "peers", hide = true)]
    Peers,
    /// Perform one action in a separate process, so that the daemon does not block on it (internal)
    #[command(name = bulkhead_engine::kernel::subprocess::COMMAND, hide = true)]
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

#[derive(Debug, Subcommand)]
pub(crate) enum HostCommand {
    /// Print what plans have to know of this host, as JSON: processors, memory, devices with their costs, tenants with their demands
    ///
    /// `plan` reads it as `report` of a host in a fleet file. Costs are stored by `device costs --save`, demands by `profile --save`.
    Report,
}

/// Options of all commands that change something.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Write {
    /// Show what would be done, without changing anything
    #[arg(long)]
    pub(crate) dry_run: bool,
}
