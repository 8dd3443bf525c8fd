//! Names of the figures and series that judge and reports know. An experiment may have more; those are kept in the JSON.

use crate::result::{Cell, Spread};

/// Mean latency of the probe's fsync with an idle neighbour, in the same round.
pub const FSYNC_IDLE_MEAN_MS: &str = "fsync_idle_mean_ms";
/// 99th percentile of the probe's fsync with an idle neighbour.
pub const FSYNC_IDLE_P99_MS: &str = "fsync_idle_p99_ms";
/// Mean latency of the probe's fsync beside the busy neighbour.
pub const FSYNC_LOADED_MEAN_MS: &str = "fsync_loaded_mean_ms";
/// 99th percentile of the probe's fsync beside the busy neighbour.
pub const FSYNC_LOADED_P99_MS: &str = "fsync_loaded_p99_ms";
/// What the neighbour got through beside the probe.
pub const NEIGHBOUR_BYTES_PER_S: &str = "neighbour_bytes_per_s";
/// What the neighbour gets through alone.
pub const NEIGHBOUR_ALONE_BYTES_PER_S: &str = "neighbour_alone_bytes_per_s";
/// Operations of a neighbour that is better counted so (a storm of files).
pub const NEIGHBOUR_OPS_PER_S: &str = "neighbour_ops_per_s";
/// The same neighbour alone.
pub const NEIGHBOUR_ALONE_OPS_PER_S: &str = "neighbour_alone_ops_per_s";
/// The probe's part of the device's time, 0 to 1.
pub const A_DEVICE_SHARE: &str = "a_device_share";
/// How busy the device was, percent.
pub const DEVICE_BUSY_PCT: &str = "device_busy_pct";
/// Inserts of the database.
pub const INSERTS_PER_S: &str = "inserts_per_s";
/// Mean latency of the database's fsync.
pub const FSYNC_MEAN_MS: &str = "fsync_mean_ms";
/// Tenant A's part of the device, percent.
pub const SHARE_A_PCT: &str = "share_a_pct";
/// A's share of the device's time at the end of a hold, as its controller measured it over the last 15 s.
pub const TIME_SHARE_A_PCT: &str = "time_share_a_pct";
/// Tenant B's part of the device, percent.
pub const SHARE_B_PCT: &str = "share_b_pct";
/// Mean latency of fsync in tenant A, where both tenants are measured.
pub const FSYNC_A_MEAN_MS: &str = "fsync_a_mean_ms";
/// Mean latency of fsync in tenant B.
pub const FSYNC_B_MEAN_MS: &str = "fsync_b_mean_ms";
/// 4 KiB random writes, each with an fsync.
pub const RANDOM_IOPS: &str = "random_iops";
/// Length of the window in which they were counted, s.
pub const RANDOM_SECONDS: &str = "random_write_seconds";
/// The same from 32 threads at once.
pub const DEEP_IOPS: &str = "random_iops_32_threads";
/// 128 KiB sequential writes.
pub const SEQUENTIAL_BYTES_PER_S: &str = "sequential_bytes_per_s";
/// Commits of the host's journal for each fsync on the volume.
pub const HOST_COMMITS_PER_FSYNC: &str = "host_commits_per_fsync";
/// Commits of the host's journal in a second, meanwhile.
pub const HOST_COMMITS_PER_S: &str = "host_commits_per_s";
/// Processor time for each I/O, all parties together.
pub const CPU_US_PER_IO: &str = "cpu_us_per_io";
/// The part of it that the process takes which serves the volume's image.
pub const SERVER_CPU_US_PER_IO: &str = "server_cpu_us_per_io";
/// What the journal's device was given.
pub const JOURNAL_BYTES: &str = "journal_bytes";
/// The same for a few calls and a commit.
pub const JOURNAL_BYTES_OF_FEW: &str = "journal_bytes_of_few";
/// What the device was given and neither charged to anybody nor reported as unattributed.
pub const NOT_CHARGED_BYTES: &str = "not_charged_bytes";
/// What no owner was found for, percent of all.
pub const UNATTRIBUTED_PCT: &str = "unattributed_pct";
/// Processor time of the caller for each call while nobody observes it.
pub const CPU_NS_PER_CALL: &str = "cpu_ns_per_call";
/// Additional processor time of the caller while it is observed, percent.
pub const OVERHEAD_PCT: &str = "overhead_pct";
/// How long a BPF program runs on average, nanoseconds.
pub const NS_PER_RUN: &str = "ns_per_run";
/// Instructions of a BPF program that the verifier followed.
pub const VERIFIED_INSTRUCTIONS: &str = "verified_instructions";
/// Memory of the observing process, MiB.
pub const RSS_MIB: &str = "rss_mib";
/// Entries in the tables of the BPF programs.
pub const TABLE_ENTRIES: &str = "table_entries";
/// Tenant A's part of the device while shares are to hold, journal included, percent.
pub const HELD_SHARE_A_PCT: &str = "held_share_a_pct";
/// What tenant A is to have of it, percent.
pub const PROMISED_SHARE_A_PCT: &str = "promised_share_a_pct";
/// The furthest that the mean share of any tenant is from what was promised, percentage points.
pub const OFF_MEAN_POINTS: &str = "off_mean_points";
/// The furthest that the share of any tenant is from it in 5 s, percentage points.
pub const OFF_WINDOW_POINTS: &str = "off_5s_points";
/// Part of the device's bytes that journal and checkpoints are, percent.
pub const JOURNAL_PCT: &str = "journal_pct";
/// Processor time of observing and correcting, percent of a core.
pub const HOLDING_CPU_PCT: &str = "holding_cpu_pct";
/// Bytes that the device read and wrote.
pub const DEVICE_BYTES_PER_S: &str = "device_bytes_per_s";

/// What the first clone of a base reads a large file with, which nobody has read before.
pub const FIRST_CLONE_BYTES_PER_S: &str = "first_clone_bytes_per_s";
/// What the second clone reads the same with, for the first time.
pub const SECOND_CLONE_BYTES_PER_S: &str = "second_clone_bytes_per_s";
/// The same again, from its own cache.
pub const CACHE_HIT_BYTES_PER_S: &str = "cache_hit_bytes_per_s";
/// What a clone reads it with that siblings had in a cache and have no more.
pub const STALE_BYTES_PER_S: &str = "stale_bytes_per_s";
/// Reads of the device while the second clone reads.
pub const SECOND_CLONE_DISK_READS: &str = "second_clone_disk_reads";
/// The same in bytes.
pub const SECOND_CLONE_DISK_BYTES: &str = "second_clone_disk_bytes";
/// How long `md5sum` takes for what a sibling has read.
pub const MD5_SECONDS: &str = "md5_seconds";
/// The same again, from the clone's own cache.
pub const MD5_HIT_SECONDS: &str = "md5_hit_seconds";
/// How often the page cache has what clones share.
pub const COPIES_IN_MEMORY: &str = "copies_in_memory";
/// From the start of the first service to the last one that is ready.
pub const READY_SECONDS: &str = "ready_seconds";
/// Reads of the device meanwhile.
pub const LAUNCH_DISK_READS: &str = "launch_disk_reads";
/// The same in bytes.
pub const LAUNCH_DISK_BYTES: &str = "launch_disk_bytes";
/// What the index of a base takes of memory, percent of the data that is used.
pub const INDEX_PCT: &str = "index_pct";

/// Operations in a second of a disk that nothing else uses.
pub const IOPS: &str = "iops";
/// The same in bytes.
pub const BYTES_PER_S: &str = "bytes_per_s";
/// How long an operation takes on average, its flush included where there is one.
pub const LATENCY_MEAN_US: &str = "latency_mean_us";
/// 99th percentile of the same.
pub const LATENCY_P99_US: &str = "latency_p99_us";

/// How far a container's charge is from its Shapley value, percent of that.
#[must_use]
pub fn off_shapley(container: &str) -> String {
    format!("{container}_off_shapley_pct")
}

/// What a container would be charged by numbers of calls, percent of all that was written.
#[must_use]
pub fn estimate(container: &str) -> String {
    format!("{container}_estimate_pct")
}

/// The same with the weights of the paper.
#[must_use]
pub fn paper_estimate(container: &str) -> String {
    format!("{container}_paper_estimate_pct")
}

/// Series: what a tenant moved on the device in each second, its journal included, MiB; tenants count from 1.
#[must_use]
pub fn moved_mib(tenant: usize) -> String {
    format!("moved_{tenant}_mib")
}

/// Series: every latency of the probe beside the busy neighbour.
pub const FSYNC_LOADED_SERIES_MS: &str = "fsync_loaded_ms";

/// A's share, and of what it is one: of the device's time where that was held, else of its bytes.
pub(crate) fn share_a(cell: &Cell) -> Option<(Spread, &'static str)> {
    let of_time = cell.figure(TIME_SHARE_A_PCT).map(|share| (share, "time"));
    of_time.or_else(|| Some((cell.figure(SHARE_A_PCT)?, "bytes")))
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
