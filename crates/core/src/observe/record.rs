//! What the kernel tells, as values: records of commits and fsyncs, and sums that only rise.

use crate::units::DevNo;

/// A cgroup of the unified hierarchy: the number of its node in cgroupfs, which is also its directory's inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupId(pub u64);

/// Number of a transaction of one journal; wraps around (kernel `tid_t`).
pub type Tid = u32;

/// The four kinds of journal I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Blocks of the journal that the journal thread wrote, and its superblock.
    Commit,
    /// File data that the journal thread wrote inside a commit.
    Ordered,
    /// Metadata written to its place in the file system.
    Checkpoint,
    /// Fast-commit blocks, written by the caller of fsync.
    FastCommit,
}

impl Kind {
    /// All kinds, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Commit, Self::Ordered, Self::Checkpoint, Self::FastCommit];

    /// The word for it in JSON and metrics.
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
    /// From here on the transaction took no new handles.
    pub start_ns: u64,
    /// Its handles were finished; 0 if that was not seen.
    pub flush_ns: u64,
    /// Its metadata began to be written; 0 if that was not seen.
    pub log_ns: u64,
    /// All of it is on the device.
    pub end_ns: u64,
    /// What the journal thread wrote to the journal, in bytes.
    pub journal_bytes: u64,
    /// What it wrote of file data, in bytes.
    pub ordered_bytes: u64,
    /// Who forced the commit: the first fsync for it. `None` if the timer did, and until the observer has found it.
    pub requester: Option<CgroupId>,
    /// Where the journal thread is: whom the kernel charges for all of it. `None` if that is not known.
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
    /// Whose thread it was.
    pub cgroup: CgroupId,
}

/// A write to the log of a file system that logs in checkpoints (XFS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogWrite {
    /// The file system's device.
    pub dev: DevNo,
    /// The newest checkpoint that took no more transactions: what was written is of this one, or of those before it.
    pub checkpoint: Tid,
    /// When it was written (ns, monotonic).
    pub at_ns: u64,
    /// Who forced that checkpoint; `None` if nobody did, or if that was not seen.
    pub requester: Option<CgroupId>,
    /// How much of the log holds changes that are not at their places yet, in bytes.
    pub active_bytes: u64,
    /// How much was written.
    pub bytes: u64,
    /// What a checkpoint takes at most besides its log vectors and their records' headers, in bytes.
    pub overhead_bytes: u64,
    /// The part of each record that its header takes.
    pub header_bytes: u32,
    /// Size of a full record, with its header.
    pub record_bytes: u32,
}

/// What happened, in the order of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A commit ended.
    Commit(Commit),
    /// An fsync ended.
    Sync(Sync),
    /// A log was written.
    Log(LogWrite),
    /// All blocks of a transaction are at their places.
    Dropped {
        /// The file system's device.
        dev: DevNo,
        /// The transaction.
        tid: Tid,
    },
}

/// What a share of a transaction counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShareKind {
    /// Journal blocks that the cgroup was the first to dirty.
    DirtiedBlocks,
    /// Bytes of its file data that the journal thread wrote.
    OrderedBytes,
    /// Journal blocks of nobody known, because there was no room to count them for their owner.
    LostBlocks,
    /// Those of its dirtied blocks that an earlier transaction had already, so shortly before that the timer alone would have
    /// put them into one commit.
    AgainBlocks {
        /// That transaction, or a later one if it is long ago.
        since: Tid,
    },
    /// Blocks that others dirtied in the same transaction after it, in sixths: what it gave of them.
    CededSixths,
    /// Blocks that others had dirtied in the same transaction before it, in sixths: what it took of them.
    JoinedSixths,
    /// Bytes by which the cgroup made the log vectors of a checkpoint grow.
    LoggedBytes,
}

/// Whose part of which transaction a sum is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShareKey {
    /// The file system's device.
    pub dev: DevNo,
    /// The transaction.
    pub tid: Tid,
    /// What is counted.
    pub kind: ShareKind,
    /// The owner; `None` when unknown.
    pub cgroup: Option<CgroupId>,
}

/// A journal write outside commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WriteKind {
    /// The journal's superblock.
    Superblock,
    /// Fast-commit blocks.
    FastCommit,
    /// Metadata written to its place.
    Checkpoint,
    /// The log of an XFS: counted by its [`LogWrite`]s, and here by whom the kernel charged.
    Log,
}

/// Whose writes outside commits a sum is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteKey {
    /// The file system's device.
    pub dev: DevNo,
    /// What was written.
    pub kind: WriteKind,
    /// The writer, which the kernel charged; `None` when unknown.
    pub cgroup: Option<CgroupId>,
}

/// Whose requests a sum of device service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// The whole device.
    pub dev: DevNo,
    /// Whom the kernel charged; `None` for flushes and where unknown.
    pub cgroup: Option<CgroupId>,
    /// What for.
    pub class: ServiceClass,
}

/// What a device's time went into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceClass {
    /// File data.
    Data,
    /// Metadata (`REQ_META`): the journal, and metadata on its way to its place.
    Meta,
    /// Flushes of the device's cache.
    Flush,
}

/// What a device did for somebody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Device time in nanoseconds; over all keys of a device the time in which it was not idle.
    pub busy_ns: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests.
    pub requests: u64,
}

impl Service {
    /// What was added since an earlier look; the whole if the sum began anew meanwhile.
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

/// How often something found no room to be counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records of commits and fsyncs.
    pub records: u64,
    /// Counts of first-dirtied blocks that were kept, but not for their owner.
    pub owners: u64,
    /// Counts of first-dirtied blocks and of writes that were not kept.
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

/// What one look at the tracer gives. The sums were read after the records, so that they are complete for each commit among them.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// When it was taken (ns, monotonic).
    pub now_ns: u64,
    /// Since the last look.
    pub records: Vec<Record>,
    /// Sums per transaction, as they stand.
    pub shares: Vec<(ShareKey, u64)>,
    /// Sums of bytes, as they stand.
    pub writes: Vec<(WriteKey, u64)>,
    /// Sums of service, as they stand.
    pub services: Vec<(ServiceKey, Service)>,
    /// Sums since the tracer was loaded.
    pub losses: Losses,
}

impl Batch {
    /// Adds what another tracer, which watches other file systems, saw at the same time.
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
