//! Findings: lasting conditions of a host and of Bulkhead's objects on it, each with a stable id.
//!
//! Owns: the closed list of ids with their severities and meanings (docs/findings.md is generated from it), and the
//! order in which findings are shown. Does not: detect conditions; [`crate::health`] derives findings from facts about
//! pools, volumes and tenants.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Fault;
use crate::model::VolumeRef;
use crate::reason::{self, Reason};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Expected: it ends by itself, or is a property of the host or of how an object was created.
    Info,
    /// Isolation, accounting or observation is weaker than it could be, or something will fail without intervention.
    Warning,
    /// Something is not as recorded and the daemon could not repair it, or data cannot be read or written.
    Critical,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        })
    }
}

macro_rules! ids {
    ($($variant:ident $word:literal $severity:ident $meaning:literal;)+) => {
        /// The kind of a finding. Ids are part of the API: one is never renamed, and never gets another meaning.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FindingId {
            $(#[doc = $meaning] $variant,)+
            /// An id that only a newer daemon knows.
            Other(String),
        }

        impl FindingId {
            /// All ids of this version, by subject.
            pub const ALL: &'static [FindingId] = &[$(FindingId::$variant),+];

            /// The id in JSON, metrics and output.
            #[must_use]
            pub fn word(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)+
                    Self::Other(word) => word,
                }
            }

            /// The severity of its findings.
            #[must_use]
            pub const fn severity(&self) -> Severity {
                match self {
                    $(Self::$variant => Severity::$severity,)+
                    Self::Other(_) => Severity::Warning,
                }
            }

            /// Its meaning, in a sentence or two.
            #[must_use]
            pub const fn meaning(&self) -> &'static str {
                match self {
                    $(Self::$variant => $meaning,)+
                    Self::Other(_) => "Not known to this version.",
                }
            }

            fn from_word(word: String) -> Self {
                match word.as_str() {
                    $($word => Self::$variant,)+
                    _ => Self::Other(word),
                }
            }
        }
    };
}

ids! {
    VolumeNotMounted "volume_not_mounted" Critical
        "A volume of a tenant, or of a running command, cannot be mounted, or its mount cannot be maintained.";
    VolumeDamaged "volume_damaged" Critical
        "The file system or the image of a volume is damaged. The volume is not mounted until it has been checked.";
    RecordUnreadable "record_unreadable" Critical
        "A state file is damaged, or cannot be read. What it describes is left untouched.";
    PoolUnreachable "pool_unreachable" Critical
        "The directory or volume group of a pool is missing, or is not the one that the pool was created on. Its volumes cannot be used.";
    TenantNotAsRecorded "tenant_not_as_recorded" Critical
        "Cgroups, weights or limits of a tenant are not as recorded, or its removal cannot be completed.";
    LeaseNotEnded "lease_not_ended" Critical
        "The volumes of a run that died cannot be released.";
    FlatteningNotEnded "flattening_not_ended" Critical
        "A flattened volume cannot release the layers that it no longer needs.";
    VolumeStillInUse "volume_still_in_use" Critical
        "A volume that is attached to no tenant is still in use. It is closed when that use ends.";
    NotRecovered "not_recovered" Critical
        "An operation that was interrupted could neither be completed nor undone. The next start of the daemon tries again.";
    DeviceNotRestored "device_not_restored" Critical
        "A device does not have the I/O controller that is recorded for it.";

    PhysicalVolumeMissing "physical_volume_missing" Critical
        "A physical volume of a pool's volume group is missing.";
    PoolUnhealthy "pool_unhealthy" Critical
        "LVM reports a problem with a thin pool.";
    PoolNearlyFull "pool_nearly_full" Warning
        "A directory pool is 90 % full, or a thin pool 80 %. When it is full, writes that need new space fail.";
    PoolMetadataNearlyFull "pool_metadata_nearly_full" Warning
        "The metadata of a thin pool is 80 % full. When it is full, all of its volumes refuse writes.";
    LayersNotMerged "layers_not_merged" Warning
        "Layers of a directory pool that are due to be merged cannot be merged. They take up space, and volumes still depend on them.";
    LayersNotRemoved "layers_not_removed" Warning
        "Layers that nothing depends on cannot be removed. They take up space in their pool.";
    ImportUnfinished "import_unfinished" Info
        "A volume is being imported, or its import was interrupted.";
    ReceiveUnfinished "receive_unfinished" Info
        "A volume has been received only in part.";

    ServerGone "server_gone" Critical
        "The block server of a volume is gone and no successor has started. I/O on the volume waits.";
    LayersMany "layers_many" Warning
        "A volume depends on at least half of the maximum number of layers. At the maximum it can no longer be copied.";
    JournalSmallAfterGrowth "journal_small_after_growth" Warning
        "A volume has grown and its journal has not. fsync waits for checkpoints sooner than in a new volume of that size.";
    JournalNotCharged "journal_not_charged" Warning
        "The journal I/O of a mounted volume is not charged to its tenant.";
    OutsideSlice "outside_slice" Warning
        "A container uses a volume on LVM outside of the slice of the volume's tenant. Its I/O is not charged to the tenant, and not limited by the tenant's share.";
    ServedByLoop "served_by_loop" Warning
        "A volume of a directory pool is served by a loop device. Each of its flushes commits the journal that all volumes of the pool share.";
    ImageCachedTwice "image_cached_twice" Warning
        "A loop device does not use direct I/O. Data is held in the page cache twice.";
    MemoryNotShared "memory_not_shared" Warning
        "The snapshot with which a clone shared memory is gone.";
    VolumeMapped "volume_mapped" Info
        "An operator is working on the device of a volume. It cannot be attached to a tenant in the meantime.";
    Flattening "flattening" Info
        "The blocks that a volume shares with its layers are to be copied into its own image.";
    FullProvisionLost "full_provision_lost" Info
        "A volume that was provisioned in full has been copied. Its first write to each block allocates new space in the pool.";
    ImageUnprepared "image_unprepared" Info
        "The image of a volume is still being written in advance. First writes commit the host file system's journal.";

    TenantRemovalPending "tenant_removal_pending" Warning
        "The removal of a tenant was interrupted. It is completed when its processes have ended.";
    ShareWithoutEffect "share_without_effect" Warning
        "The kernel has no io.weight file. Shares of tenants have no effect.";
    CpuControllerMissing "cpu_controller_missing" Warning
        "The host has no cpu controller on cgroup v2. Journal threads and block servers are scheduled like processes of tenants.";
    CpuControllerRefused "cpu_controller_refused" Warning
        "The kernel refuses a tenant the cpu controller. Its journal threads and block servers are scheduled like its processes.";

    NoController "no_controller" Warning
        "Neither io.cost nor BFQ is enabled on a device. Shares of tenants have no effect there.";
    DeviceNotIsolated "device_not_isolated" Warning
        "The calibration of a device found no speed at which io.cost isolates it. An fsync waits for what other tenants write.";
    HoldFailed "hold_failed" Warning
        "Shares are not enforced on a device, because the last step failed. The next step tries again.";

    PromiseNotEnforced "promise_not_enforced" Warning
        "The promised latency of a tenant's fsyncs is not enforced on a device.";
    PromiseMissed "promise_missed" Warning
        "Fsyncs of a tenant take longer than promised, and throttling other tenants further does not help.";

    ServersUnlisted "servers_unlisted" Warning
        "The block servers of this host cannot be listed. A server that dies is not replaced until they can.";
    ServersMayDeadlock "servers_may_deadlock" Warning
        "The thread that starts block servers cannot be marked as an I/O flusher (`PR_SET_IO_FLUSHER`). When memory is short, it may wait for I/O that needs the block server it is about to start.";
    SystemBusMissing "system_bus_missing" Warning
        "systemd runs without a system bus. Tenants are not systemd units, and volumes are not unmounted before a shutdown.";
    CheckHeldUp "check_held_up" Warning
        "A periodic check of the host against the recorded state has not finished for a while. Another check covers the other objects.";
    MetricsNotServed "metrics_not_served" Warning
        "Metrics are no longer served to Prometheus. The daemon has to be restarted.";
    FactUnreadable "fact_unreadable" Warning
        "A fact about the host could not be read when the daemon started. It is treated as absent.";
    LookupFailed "lookup_failed" Warning
        "A look-up of an object failed. The information about it may be incomplete.";
    PhysicalDevicesUnknown "physical_devices_unknown" Warning
        "The physical devices below a pool are not all known. Weights may have no effect on the others.";

    BarriersOff "barriers_off" Critical
        "A file system does not flush the write cache of its disk. A power cut loses what fsync has confirmed, and can destroy the file system.";
    CacheNeverFlushed "cache_never_flushed" Critical
        "A file system that never flushes is on a disk with a write cache. A power cut loses what fsync has confirmed.";
    FileSystemErrors "file_system_errors" Critical
        "An ext4 file system has recorded errors. Some of its files may be damaged or lost.";
    DiskFailing "disk_failing" Critical
        "A disk reports that it fails (SMART). Its data can be lost soon.";
    RaidDegraded "raid_degraded" Critical
        "A software RAID lacks a member. The loss of another one can lose its data.";
    BtrfsErrors "btrfs_errors" Critical
        "A btrfs file system has recorded I/O or checksum errors. A device is failing, or its data was damaged.";
    DataNotOrdered "data_not_ordered" Warning
        "An ext4 file system is mounted with `data=writeback`. After a crash, files can contain old blocks of other files.";
    DataJournaled "data_journaled" Warning
        "An ext4 file system is mounted with `data=journal`. All data is written twice, and buffered writes are charged to the root cgroup.";
    WritesSynchronous "writes_synchronous" Warning
        "A file system is mounted with `sync` or `dirsync`. Writes that no program waits for wait for the disk.";
    CommitsRare "commits_rare" Info
        "An ext4 file system commits less often than every 30 s. fsync commits more at once, and a crash loses more.";
    JournalNotLimited "journal_not_limited" Warning
        "Cgroups have I/O limits on a disk, and the journal of a file system there is written by the root cgroup. What they cause in it is not limited.";
    JournalSmall "journal_small" Warning
        "An ext4 file system has grown and its journal has not. Transactions are short, and fsync waits for checkpoints.";
    LazyInitRunning "lazy_init_running" Info
        "The kernel is reading bitmaps of an ext4 file system that was mounted recently, or writing inode tables of a new one. Its I/O is charged to no container; it ends by itself.";
    FileSystemNearlyFull "file_system_nearly_full" Warning
        "A file system is 95 % full. When it is full, writes fail.";
    InodesNearlyUsed "inodes_nearly_used" Warning
        "95 % of the inodes of a file system are in use. When all are, no file can be created.";
    ThinPoolNotExtended "thin_pool_not_extended" Warning
        "LVM does not extend thin pools before they are full.";
    JournalNested "journal_nested" Warning
        "A journaling file system is in an image on another one. Each of its flushes also commits the journal of the outer one, which all files there share.";
    ImageCopiedOnWrite "image_copied_on_write" Warning
        "An image is on a file system that writes each block to a new place. Its file becomes fragmented, and each flush writes metadata.";
    ImageSparse "image_sparse" Warning
        "An image has blocks that are not allocated. First writes allocate them and commit the journal of the outer file system.";
    ImageDeleted "image_deleted" Warning
        "An image in use has been deleted. Its data is lost when it is detached.";
    JournalOnZvol "journal_on_zvol" Warning
        "A journaling file system is on a volume of ZFS, which never overwrites a block. Its journal protects nothing, and costs writes.";
    CopyOnWriteTwice "copy_on_write_twice" Warning
        "A copy-on-write file system is on thin storage, which copies on write itself.";
    WeightWithoutEffect "weight_without_effect" Warning
        "Cgroups have I/O weights, and a disk has no controller that uses them. They have no effect there.";
    WeightOfOnlyChild "weight_of_only_child" Warning
        "A cgroup has an I/O weight and no sibling. Weights divide I/O between siblings only: it has no effect.";
    BfqOnNvme "bfq_on_nvme" Warning
        "BFQ is active on an NVMe disk. io.cost isolates fsyncs better there, and takes less processor time.";
    IoCostWithoutModel "io_cost_without_model" Warning
        "io.cost is enabled on a disk without a model of it. Weights divide what the kernel guesses from the disk's kind.";
    TwoControllers "two_controllers" Warning
        "Both io.cost and BFQ are enabled on a disk. Neither divides it as the weights say.";
    SchedulerOnStack "scheduler_on_stack" Info
        "A device over an image has an I/O scheduler. Requests are sorted twice.";
    WriteCacheOfHardDisk "write_cache_of_hard_disk" Info
        "A hard disk that weights divide has its write cache on. An fsync waits until what others have written is on the platter.";
    DiskTimeouts "disk_timeouts" Warning
        "Commands to a disk have timed out. All I/O on it waited meanwhile.";
    RaidRebuilding "raid_rebuilding" Info
        "A software RAID is copying or checking its members. Its I/O is charged to no container; it ends by itself.";
    PathLost "path_lost" Warning
        "A multipath device has lost a path. When the last one fails, its I/O waits or fails.";
    WritebackNotAttributed "writeback_not_attributed" Warning
        "The io controller is enabled without the memory controller. Buffered writes are charged to the root cgroup, and no weight or limit restricts them.";
    WritebackNotSupported "writeback_not_supported" Warning
        "A file system does not charge buffered writes to cgroups. No weight or limit restricts them.";
    CgroupV1Io "cgroup_v1_io" Warning
        "The io controller is cgroup v1's. Buffered writes and journal writes are charged to the root cgroup, and no weight or limit restricts them.";
    SwapBesideDatabase "swap_beside_database" Warning
        "Memory is swapped out to the disk with a database's data, and no I/O controller divides that disk.";
    SwapAboveImage "swap_above_image" Warning
        "Swap is on a device that needs memory to write. When memory is short, the host can stop.";
    DirtyLimitHigh "dirty_limit_high" Info
        "At least 1 GiB of dirty data can accumulate before writers are throttled, beside a database on a hard disk.";
    DatabaseOnOverlay "database_on_overlay" Warning
        "A database stores its data in a container's overlay file system. It shares the journal of the engine's directory with all containers.";
    DatabaseSharesJournal "database_shares_journal" Warning
        "A database's data is on a file system to which other containers or databases write. Its fsync waits for what they write.";
    DatabaseCopiedOnWrite "database_copied_on_write" Warning
        "A database's data is on a file system that writes each block to a new place. Its files become fragmented.";
    DatabaseOnParityRaid "database_on_parity_raid" Info
        "A database's data is on a RAID with parity. Each small write becomes two reads and two writes.";
    ReadaheadLarge "readahead_large" Info
        "The device of a database has a readahead of at least 2 MiB. Most of what is read in advance is not used.";
    RuntimeBesideDatabase "runtime_beside_database" Warning
        "A container runtime, or the kubelet, has its data on the disk of a database, and no I/O controller divides that disk.";
    LogsBesideDatabase "logs_beside_database" Warning
        "Docker writes logs of containers to the file system of a database. Its fsync waits for them.";
    LogsUnlimited "logs_unlimited" Warning
        "Docker writes logs of containers without a limit. They end when the file system is full.";
    ImagesCopiedWhole "images_copied_whole" Warning
        "A container runtime uses the storage driver vfs. It copies the whole image for each container.";
    OverlayInUserSpace "overlay_in_user_space" Info
        "A process serves the overlays of containers (fuse-overlayfs). The kernel's overlay is faster.";
    CgroupsManagedTwice "cgroups_managed_twice" Warning
        "A container runtime manages cgroups itself on a host whose init process is systemd. Each can undo what the other sets.";
    PartitionMisaligned "partition_misaligned" Warning
        "A device does not begin at a physical block of its disk. Each write of a block becomes two reads and two writes.";
    BlocksSmall "blocks_small" Warning
        "A file system has smaller blocks than its disk. Each write of one becomes a read and a write.";
    AtimeAlways "atime_always" Warning
        "A file system records the time of each read (`strictatime`). Reads become writes, and journal commits.";
    SpaceNotTrimmed "space_not_trimmed" Info
        "Free space of a file system on flash or thin storage is never discarded. The device keeps copying blocks that nobody needs.";
    DiscardsStop "discards_stop" Info
        "A layer of the storage stack does not pass discards on. The drive keeps copying blocks that nobody needs.";

    NotObserved "not_observed" Warning
        "This host cannot be observed. Journal I/O is not attributed, and shares cannot be enforced.";
    ObservationPartial "observation_partial" Warning
        "Events have been lost since the observation began. The figures are too low.";
    ObservationUntyped "observation_untyped" Warning
        "Only plain tracepoints can be used. Device time is not known, and a container that forces commits early is not charged for the blocks that are logged again.";
    EarlyCommitsNotCharged "early_commits_not_charged" Warning
        "The kernel refuses fentry programs. A container that forces commits early is not charged for the blocks that are logged again.";
    SelfTestNotMade "self_test_not_made" Warning
        "The observation could not be verified on a scratch file system.";
    Ext4NotObserved "ext4_not_observed" Warning
        "The journal I/O of ext4 is not attributed.";
    XfsNotObserved "xfs_not_observed" Warning
        "The log I/O of XFS is not attributed.";
    BtrfsNotObserved "btrfs_not_observed" Info
        "A btrfs file system is mounted. Its log trees are not attributed.";
    Ext4WithoutJournal "ext4_without_journal" Info
        "An ext4 file system without a journal is mounted. Nothing on it is attributed.";
    IoControllerMissing "io_controller_missing" Warning
        "cgroup v2 has no io controller on this host. Data, device time and blame for requests are not known.";
}

impl fmt::Display for FindingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl Serialize for FindingId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

impl<'de> Deserialize<'de> for FindingId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from_word)
    }
}

/// A lasting condition: its object, the evidence, and advice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Finding {
    /// The kind of finding, for example `pool_nearly_full`; docs/findings.md lists them.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub id: FindingId,
    /// Its severity.
    pub severity: Severity,
    /// The object, by kind and name, for example `volume db/data`; `host` or `observation` for the host as a whole.
    pub object: String,
    /// The evidence, in one sentence without a full stop.
    pub evidence: String,
    /// What to do about it; absent if there is no useful advice. With a reason, its remedy in words that suit every
    /// front end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The situation, if front ends word its remedy themselves. A value that this version does not know is read as
    /// `null`.
    #[serde(default, deserialize_with = "reason::if_known", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(nullable = false))]
    pub reason: Option<Box<Reason>>,
    /// The volumes that are not available to their tenants because of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeRef>,
}

impl Finding {
    /// A finding without advice, with the severity of its id; add advice with [`Finding::advise`].
    #[must_use]
    pub fn new(id: FindingId, object: impl fmt::Display, evidence: impl fmt::Display) -> Self {
        let (object, evidence) = (object.to_string(), evidence.to_string());
        Self { severity: id.severity(), id, object, evidence, advice: None, reason: None, volumes: Vec::new() }
    }

    /// The same finding with advice that every front end shows as it is.
    #[must_use]
    pub fn advise(self, advice: impl fmt::Display) -> Self {
        Self { advice: Some(advice.to_string()), reason: None, ..self }
    }

    /// The same finding with a reason and its advice.
    #[must_use]
    pub fn reason(self, reason: Reason) -> Self {
        Self { advice: Some(reason.remedy()), reason: Some(Box::new(reason)), ..self }
    }

    /// A finding from an error: its object, cause, hint and reason.
    #[must_use]
    pub fn from_fault(id: FindingId, fault: Fault) -> Self {
        let advice = (!fault.hint.is_empty()).then_some(fault.hint);
        Self { advice, reason: fault.reason, ..Self::new(id, fault.object, fault.cause) }
    }
}

/// One line, without the advice: `warning[pool_nearly_full]: pool files: 9 GiB of 100 GiB are free`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]: {}: {}", self.severity, self.id, self.object, self.evidence)
    }
}

/// Sorts findings for display: by severity, most severe first, then by object; removes duplicates.
#[must_use]
pub fn in_order(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by(|a, b| {
        let rest = |finding: &Finding| (finding.object.clone(), finding.id.clone(), finding.evidence.clone());
        b.severity.cmp(&a.severity).then_with(|| rest(a).cmp(&rest(b)))
    });
    findings.dedup();
    findings
}

/// The number of findings of each id and severity.
#[must_use]
pub fn counts(findings: &[Finding]) -> BTreeMap<(&str, Severity), usize> {
    let mut counts = BTreeMap::new();
    for finding in findings {
        *counts.entry((finding.id.word(), finding.severity)).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests;
