//! Arguments of `bulkhead volume`.

use bulkhead_core::model::{self, Provision, VolumeFs};
use clap::{Args, Subcommand, ValueEnum};

use super::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReadFrom {
    /// From disk; no memory is shared
    Disk,
    /// Through the host page cache: one copy in memory for all clones of an image, besides what each clone's own page cache holds
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
        /// not mounted). Without this option, a volume that grows keeps its journal, which is then small for its size
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
        /// Where shared blocks are read from [default: that of the origin; on LVM: disk]. On LVM, only clones of a snapshot support `host-cache`, and
        /// peers are not available
        #[arg(long, value_enum, value_name = "SOURCE")]
        read_from: Option<ReadFrom>,
        /// Sharing domain: a volume reads from the page caches of volumes in the same domain only. Not with
        /// `--read-from host-cache` or `both`, which read through the host's page cache [default: the origin's, otherwise the pool's]
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
    /// Create a snapshot in a directory pool from a stream on standard input; only for streams of trusted hosts
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
    /// Return the unused space of mounted volumes to their pools (clones, and volumes provisioned on demand)
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
    /// Tenant to charge for the work; the snapshot is not attached to it [default: the tenant of a volume that depends on the stream's base,
    /// otherwise none, at the lowest priority]
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
    /// File system; `none` makes a raw volume, whose block device is for its tenant
    #[arg(long, value_enum, default_value_t = Fs::Ext4)]
    pub(crate) fs: Fs,
    /// When blocks are allocated from the pool [default: on-demand in a thin pool, otherwise full]
    #[arg(long, value_enum)]
    pub(crate) provision: Option<Blocks>,
    /// Size of the journal (ext4 only), or `auto` [default: auto, 1/64 of the volume, 4 MiB to 1 GiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) journal: Option<String>,
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
    /// Mount this directory of the volume in place of its root; created if it does not exist. Databases refuse a directory with `lost+found`
    /// [default: for a clone its origin's, otherwise the root]
    #[arg(long, value_name = "NAME")]
    pub(crate) subdir: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fs {
    Ext4,
    Xfs,
    None,
}

impl From<Fs> for VolumeFs {
    fn from(fs: Fs) -> Self {
        match fs {
            Fs::Ext4 => Self::Ext4,
            Fs::Xfs => Self::Xfs,
            Fs::None => Self::None,
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
