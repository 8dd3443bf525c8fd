//! Names of the figures and series that judge and reports know, with those that all experiments have in common. An experiment may have
//! more; those are kept in the JSON.

pub(crate) use bulkhead_measure::report::figure::{
    A_DEVICE_SHARE, DEVICE_BUSY_PCT, DEVICE_BYTES_PER_S, FSYNC_IDLE_MEAN_MS, FSYNC_IDLE_P99_MS, FSYNC_LOADED_MEAN_MS,
    FSYNC_LOADED_P99_MS, FSYNC_MEAN_MS, INSERTS_PER_S, NEIGHBOUR_ALONE_BYTES_PER_S, NEIGHBOUR_ALONE_OPS_PER_S,
    NEIGHBOUR_BYTES_PER_S, NEIGHBOUR_OPS_PER_S, SHARE_A_PCT, SHARE_B_PCT, TIME_SHARE_A_PCT, share_a,
};

/// Mean latency of fsync in tenant A, where both tenants are measured.
pub(crate) const FSYNC_A_MEAN_MS: &str = "fsync_a_mean_ms";
/// Mean latency of fsync in tenant B.
pub(crate) const FSYNC_B_MEAN_MS: &str = "fsync_b_mean_ms";
/// 4 KiB random writes, each with an fsync.
pub(crate) const RANDOM_IOPS: &str = "random_iops";
/// Length of the window in which they were counted, s.
pub(crate) const RANDOM_SECONDS: &str = "random_write_seconds";
/// The same from 32 threads at once.
pub(crate) const DEEP_IOPS: &str = "random_iops_32_threads";
/// 128 KiB sequential writes.
pub(crate) const SEQUENTIAL_BYTES_PER_S: &str = "sequential_bytes_per_s";
/// Commits of the host's journal for each fsync on the volume.
pub(crate) const HOST_COMMITS_PER_FSYNC: &str = "host_commits_per_fsync";
/// Commits of the host's journal in a second, meanwhile.
pub(crate) const HOST_COMMITS_PER_S: &str = "host_commits_per_s";
/// Processor time for each I/O, all parties together.
pub(crate) const CPU_US_PER_IO: &str = "cpu_us_per_io";
/// The part of it that the process takes which serves the volume's image.
pub(crate) const SERVER_CPU_US_PER_IO: &str = "server_cpu_us_per_io";
/// What the journal's device was given.
pub(crate) const JOURNAL_BYTES: &str = "journal_bytes";
/// The same for a few calls and a commit.
pub(crate) const JOURNAL_BYTES_OF_FEW: &str = "journal_bytes_of_few";
/// What the device was given and neither charged to anybody nor reported as unattributed.
pub(crate) const NOT_CHARGED_BYTES: &str = "not_charged_bytes";
/// What no owner was found for, percent of all.
pub(crate) const UNATTRIBUTED_PCT: &str = "unattributed_pct";
/// Processor time of the caller for each call while nobody observes it.
pub(crate) const CPU_NS_PER_CALL: &str = "cpu_ns_per_call";
/// Additional processor time of the caller while it is observed, percent.
pub(crate) const OVERHEAD_PCT: &str = "overhead_pct";
/// How long a BPF program runs on average, nanoseconds.
pub(crate) const NS_PER_RUN: &str = "ns_per_run";
/// Instructions of a BPF program that the verifier followed.
pub(crate) const VERIFIED_INSTRUCTIONS: &str = "verified_instructions";
/// Memory of the observing process, MiB.
pub(crate) const RSS_MIB: &str = "rss_mib";
/// Entries in the tables of the BPF programs.
pub(crate) const TABLE_ENTRIES: &str = "table_entries";
/// Tenant A's part of the device while shares are to hold, journal included, percent.
pub(crate) const HELD_SHARE_A_PCT: &str = "held_share_a_pct";
/// What tenant A is to have of it, percent.
pub(crate) const PROMISED_SHARE_A_PCT: &str = "promised_share_a_pct";
/// The furthest that the mean share of any tenant is from what was promised, percentage points.
pub(crate) const OFF_MEAN_POINTS: &str = "off_mean_points";
/// The furthest that the share of any tenant is from it in 5 s, percentage points.
pub(crate) const OFF_WINDOW_POINTS: &str = "off_5s_points";
/// Part of the device's bytes that journal and checkpoints are, percent.
pub(crate) const JOURNAL_PCT: &str = "journal_pct";
/// Processor time of observing and correcting, percent of a core.
pub(crate) const HOLDING_CPU_PCT: &str = "holding_cpu_pct";
/// What the first clone of a base reads a large file with, which nobody has read before.
pub(crate) const FIRST_CLONE_BYTES_PER_S: &str = "first_clone_bytes_per_s";
/// What the second clone reads the same with, for the first time.
pub(crate) const SECOND_CLONE_BYTES_PER_S: &str = "second_clone_bytes_per_s";
/// The same again, from its own cache.
pub(crate) const CACHE_HIT_BYTES_PER_S: &str = "cache_hit_bytes_per_s";
/// What a clone reads it with that siblings had in a cache and have no more.
pub(crate) const STALE_BYTES_PER_S: &str = "stale_bytes_per_s";
/// Reads of the device while the second clone reads.
pub(crate) const SECOND_CLONE_DISK_READS: &str = "second_clone_disk_reads";
/// The same in bytes.
pub(crate) const SECOND_CLONE_DISK_BYTES: &str = "second_clone_disk_bytes";
/// How long `md5sum` takes for what a sibling has read.
pub(crate) const MD5_SECONDS: &str = "md5_seconds";
/// The same again, from the clone's own cache.
pub(crate) const MD5_HIT_SECONDS: &str = "md5_hit_seconds";
/// How often the page cache has what clones share.
pub(crate) const COPIES_IN_MEMORY: &str = "copies_in_memory";
/// From the start of the first service to the last one that is ready.
pub(crate) const READY_SECONDS: &str = "ready_seconds";
/// Reads of the device meanwhile.
pub(crate) const LAUNCH_DISK_READS: &str = "launch_disk_reads";
/// The same in bytes.
pub(crate) const LAUNCH_DISK_BYTES: &str = "launch_disk_bytes";
/// What the index of a base takes of memory, percent of the data that is used.
pub(crate) const INDEX_PCT: &str = "index_pct";
/// Operations in a second of a disk that nothing else uses.
pub(crate) const IOPS: &str = "iops";
/// The same in bytes.
pub(crate) const BYTES_PER_S: &str = "bytes_per_s";
/// How long an operation takes on average, its flush included where there is one.
pub(crate) const LATENCY_MEAN_US: &str = "latency_mean_us";
/// 99th percentile of the same.
pub(crate) const LATENCY_P99_US: &str = "latency_p99_us";

/// How far a container's charge is from its Shapley value, percent of that.
#[must_use]
pub(crate) fn off_shapley(container: &str) -> String {
    format!("{container}_off_shapley_pct")
}

/// What a container would be charged by numbers of calls, percent of all that was written.
#[must_use]
pub(crate) fn estimate(container: &str) -> String {
    format!("{container}_estimate_pct")
}

/// The same with the weights of the paper.
#[must_use]
pub(crate) fn paper_estimate(container: &str) -> String {
    format!("{container}_paper_estimate_pct")
}

/// Series: what a tenant moved on the device in each second, its journal included, MiB; tenants count from 1.
#[must_use]
pub(crate) fn moved_mib(tenant: usize) -> String {
    format!("moved_{tenant}_mib")
}

/// All figures that are judged or stand in a column.
pub(crate) const KNOWN: [&str; 40] = [
    FSYNC_IDLE_MEAN_MS,
    FSYNC_IDLE_P99_MS,
    FSYNC_LOADED_MEAN_MS,
    FSYNC_LOADED_P99_MS,
    NEIGHBOUR_BYTES_PER_S,
    NEIGHBOUR_ALONE_BYTES_PER_S,
    NEIGHBOUR_OPS_PER_S,
    NEIGHBOUR_ALONE_OPS_PER_S,
    A_DEVICE_SHARE,
    DEVICE_BUSY_PCT,
    INSERTS_PER_S,
    FSYNC_MEAN_MS,
    SHARE_A_PCT,
    TIME_SHARE_A_PCT,
    SHARE_B_PCT,
    FSYNC_A_MEAN_MS,
    FSYNC_B_MEAN_MS,
    RANDOM_IOPS,
    DEEP_IOPS,
    SEQUENTIAL_BYTES_PER_S,
    HOST_COMMITS_PER_FSYNC,
    CPU_US_PER_IO,
    JOURNAL_BYTES,
    JOURNAL_BYTES_OF_FEW,
    NOT_CHARGED_BYTES,
    UNATTRIBUTED_PCT,
    OVERHEAD_PCT,
    HELD_SHARE_A_PCT,
    OFF_MEAN_POINTS,
    OFF_WINDOW_POINTS,
    FIRST_CLONE_BYTES_PER_S,
    SECOND_CLONE_BYTES_PER_S,
    CACHE_HIT_BYTES_PER_S,
    STALE_BYTES_PER_S,
    SECOND_CLONE_DISK_READS,
    READY_SECONDS,
    LAUNCH_DISK_READS,
    LAUNCH_DISK_BYTES,
    IOPS,
    BYTES_PER_S,
];
