//! What the tracer reports: records of commits and fsyncs, and monotonic sums.

use crate::units::DevNo;

/// A cgroup of the unified hierarchy, by the number of its kernfs node, which is also its directory's inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupId(pub u64);

/// Number of a transaction of one journal; wraps around (kernel `tid_t`).
pub type Tid = u32;

/// The four kinds of journal I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Journal blocks that the journal thread wrote, and the journal's superblock.
    Commit,
    /// File data that the journal thread wrote inside a commit.
    Ordered,
    /// Metadata that was checkpointed: written to its final location.
    Checkpoint,
    /// Fast-commit blocks, written by the caller of fsync.
    FastCommit,
}

impl Kind {
    /// All kinds, in display order.
    pub const ALL: [Self; 4] = [Self::Commit, Self::Ordered, Self::Checkpoint, Self::FastCommit];

    /// Its name in JSON and metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Ordered => "ordered",
            Self::Checkpoint => "checkpoint",
            Self::FastCommit => "fast_commit",
        }
    }
}

/// A finished commit. Times are nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The file system's device.
    pub dev: DevNo,
    /// The transaction.
    pub tid: Tid,
    /// When the transaction's first handle began.
    pub begin_ns: u64,
    /// When the transaction stopped accepting handles.
    pub start_ns: u64,
    /// When its handles had finished; 0 if that was not observed.
    pub flush_ns: u64,
    /// When writing of its metadata began; 0 if that was not observed.
    pub log_ns: u64,
    /// When all of it was on the device.
    pub end_ns: u64,
    /// Bytes that the journal thread wrote to the journal.
    pub journal_bytes: u64,
    /// Bytes of file data that it wrote.
    pub ordered_bytes: u64,
    /// The cgroup that forced the commit, with the first fsync that needed it. `None` for a commit by the timer, and
    /// until the observer has determined it.
    pub requester: Option<CgroupId>,
    /// The journal thread's cgroup, which the kernel charges for the whole commit. `None` if unknown.
    pub writer: Option<CgroupId>,
    /// Size of a journal block in bytes.
    pub block_bytes: u32,
}

/// A finished fsync, fdatasync or `O_SYNC` write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    /// The file system's device.
    pub dev: DevNo,
    /// The last transaction that changed the file.
    pub tid: Tid,
    /// When it began (ns, monotonic).
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// The caller's cgroup.
    pub cgroup: CgroupId,
}

/// A write to the log of a file system that logs in checkpoints (XFS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogWrite {
    /// The file system's device.
    pub dev: DevNo,
    /// The newest closed checkpoint: the write belongs to this one or to earlier ones.
    pub checkpoint: Tid,
    /// When it was written (ns, monotonic).
    pub at_ns: u64,
    /// The cgroup that forced that checkpoint; `None` if none did, or if that was not observed.
    pub requester: Option<CgroupId>,
    /// Size of the active part of the log, with changes that are not checkpointed, bytes.
    pub active_bytes: u64,
    /// Size of the write, bytes.
    pub bytes: u64,
    /// Upper limit of a checkpoint's overhead, apart from log vectors and record headers, bytes.
    pub overhead_bytes: u64,
    /// Size of a record's header, bytes.
    pub header_bytes: u32,
    /// Size of a full record with its header, bytes.
    pub record_bytes: u32,
}

/// An event, ordered by its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A commit ended.
    Commit(Commit),
    /// An fsync ended.
    Sync(Sync),
    /// A log was written.
    Log(LogWrite),
    /// All blocks of a transaction are checkpointed.
    Dropped {
        /// The file system's device.
        dev: DevNo,
        /// The transaction.
        tid: Tid,
    },
}

/// What a cgroup's share of a transaction counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShareKind {
    /// Journal blocks that the cgroup was the first to dirty.
    DirtiedBlocks,
    /// Bytes of its file data that the journal thread wrote.
    OrderedBytes,
    /// Journal blocks without a known owner, because there was no space to count them for it.
    LostBlocks,
    /// Its dirtied blocks that were already in an earlier transaction, so recently that the timer alone would have put
    /// both into one commit.
    AgainBlocks {
        /// The earlier transaction, or a later one if it was long ago.
        since: Tid,
    },
    /// Blocks that it dirtied first and others dirtied later in the same transaction, in sixths: the part that it
    /// ceded.
    CededSixths,
    /// Blocks that others dirtied first in the same transaction and it dirtied later, in sixths: the part that it took.
    JoinedSixths,
    /// Bytes that the cgroup added to the log vectors of a checkpoint.
    LoggedBytes,
}

/// The key of a sum per transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareKey {
    /// The file system's device.
    pub dev: DevNo,
    /// The transaction.
    pub tid: Tid,
    /// What is counted.
    pub kind: ShareKind,
    /// The owner; `None` if unknown.
    pub cgroup: Option<CgroupId>,
}

/// A journal write outside commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WriteKind {
    /// The journal's superblock.
    Superblock,
    /// Fast-commit blocks.
    FastCommit,
    /// Metadata that was checkpointed.
    Checkpoint,
    /// The log of an XFS. Its [`LogWrite`]s count it as a whole, this sum by the cgroup that the kernel charged.
    Log,
}

/// The key of a sum of writes outside commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteKey {
    /// The file system's device.
    pub dev: DevNo,
    /// The kind of write.
    pub kind: WriteKind,
    /// The cgroup that the kernel charged; `None` if unknown.
    pub cgroup: Option<CgroupId>,
}

/// The key of a sum of device service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// The whole device.
    pub dev: DevNo,
    /// The cgroup that the kernel charged; `None` for flushes, and if unknown.
    pub cgroup: Option<CgroupId>,
    /// The class of requests.
    pub class: ServiceClass,
}

/// Classes of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceClass {
    /// File data.
    Data,
    /// Metadata (`REQ_META`): the journal, and checkpointed metadata.
    Meta,
    /// Flushes of the device's cache.
    Flush,
}

/// A device's service to a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Device time, ns; the sum over all keys of a device is its busy time.
    pub busy_ns: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests.
    pub requests: u64,
}

impl Service {
    /// The increase since an earlier state; the whole sum if it was restarted meanwhile.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        if self.requests < before.requests {
            return self;
        }
        Self {
            busy_ns: self.busy_ns.saturating_sub(before.busy_ns),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            requests: self.requests - before.requests,
        }
    }

    /// Adds another one.
    pub fn add(&mut self, other: Self) {
        self.busy_ns += other.busy_ns;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.requests += other.requests;
    }
}

/// Numbers of events that could not be recorded, because there was no space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records of commits and fsyncs.
    pub records: u64,
    /// Counts of first-dirtied blocks that were recorded without their owner.
    pub owners: u64,
    /// Counts of first-dirtied blocks and of writes that were not recorded.
    pub counts: u64,
    /// Requests.
    pub requests: u64,
}

impl Losses {
    /// Whether anything was lost.
    #[must_use]
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// The result of polling the tracer. The sums were read after the records, so that they are complete for each commit
/// among these.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// When it was taken (ns, monotonic).
    pub now_ns: u64,
    /// Records since the last poll.
    pub records: Vec<Record>,
    /// Current sums per transaction.
    pub shares: Vec<(ShareKey, u64)>,
    /// Current sums of bytes.
    pub writes: Vec<(WriteKey, u64)>,
    /// Current sums of service.
    pub services: Vec<(ServiceKey, Service)>,
    /// Losses since the tracer was loaded.
    pub losses: Losses,
}

impl Batch {
    /// Adds the batch of another tracer, for other file systems, from the same time.
    pub fn merge(&mut self, other: Self) {
        self.records.extend(other.records);
        self.shares.extend(other.shares);
        self.writes.extend(other.writes);
        self.services.extend(other.services);
        self.losses.records += other.losses.records;
        self.losses.owners += other.losses.owners;
        self.losses.counts += other.losses.counts;
        self.losses.requests += other.losses.requests;
    }
}
