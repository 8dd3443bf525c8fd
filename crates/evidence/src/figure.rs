//! Names of the figures and series that judge and reports use, including those common to all experiments. An experiment can have more, which
//! the JSON contains.

pub(crate) use bulkhead_measure::report::figure::{
    A_DEVICE_SHARE, DEVICE_BUSY_PCT, DEVICE_BYTES_PER_S, FSYNC_IDLE_MEAN_MS, FSYNC_IDLE_P99_MS, FSYNC_LOADED_MEAN_MS,
    FSYNC_LOADED_P99_MS, FSYNC_MEAN_MS, INSERTS_PER_S, NEIGHBOUR_ALONE_BYTES_PER_S, NEIGHBOUR_ALONE_OPS_PER_S,
    NEIGHBOUR_BYTES_PER_S, NEIGHBOUR_OPS_PER_S, SHARE_A_PCT, SHARE_B_PCT, TIME_SHARE_A_PCT, share_a,
};

/// Mean fsync latency of tenant A, if both tenants are measured.
pub(crate) const FSYNC_A_MEAN_MS: &str = "fsync_a_mean_ms";
/// Mean fsync latency of tenant B.
pub(crate) const FSYNC_B_MEAN_MS: &str = "fsync_b_mean_ms";
/// 4 KiB random writes, each with an fsync.
pub(crate) const RANDOM_IOPS: &str = "random_iops";
/// Length of the window in which they were counted, s.
pub(crate) const RANDOM_SECONDS: &str = "random_write_seconds";
/// The same with 32 threads.
pub(crate) const DEEP_IOPS: &str = "random_iops_32_threads";
/// 128 KiB sequential writes.
pub(crate) const SEQUENTIAL_BYTES_PER_S: &str = "sequential_bytes_per_s";
/// Commits of the host's journal for each fsync on the volume.
pub(crate) const HOST_COMMITS_PER_FSYNC: &str = "host_commits_per_fsync";
/// Commits of the host's journal per second in the same window.
pub(crate) const HOST_COMMITS_PER_S: &str = "host_commits_per_s";
/// CPU time per I/O, of all processes.
pub(crate) const CPU_US_PER_IO: &str = "cpu_us_per_io";
/// The part of it used by the process that serves the volume's image.
pub(crate) const SERVER_CPU_US_PER_IO: &str = "server_cpu_us_per_io";
/// Bytes written to the journal's device.
pub(crate) const JOURNAL_BYTES: &str = "journal_bytes";
/// The same for a few calls with one commit.
pub(crate) const JOURNAL_BYTES_OF_FEW: &str = "journal_bytes_of_few";
/// Bytes written to the device that were neither charged nor reported as unattributed.
pub(crate) const NOT_CHARGED_BYTES: &str = "not_charged_bytes";
/// Unattributed bytes, percent of all.
pub(crate) const UNATTRIBUTED_PCT: &str = "unattributed_pct";
/// CPU time of the caller per call without observation.
pub(crate) const CPU_NS_PER_CALL: &str = "cpu_ns_per_call";
/// Additional CPU time of the caller with observation, percent.
pub(crate) const OVERHEAD_PCT: &str = "overhead_pct";
/// Average run time of a BPF program, nanoseconds.
pub(crate) const NS_PER_RUN: &str = "ns_per_run";
/// Instructions of a BPF program that the verifier processed.
pub(crate) const VERIFIED_INSTRUCTIONS: &str = "verified_instructions";
/// Memory of the observing process, MiB.
pub(crate) const RSS_MIB: &str = "rss_mib";
/// Entries in the maps of the BPF programs.
pub(crate) const TABLE_ENTRIES: &str = "table_entries";
/// Tenant A's share of the device while shares are enforced, journal included, percent.
pub(crate) const HELD_SHARE_A_PCT: &str = "held_share_a_pct";
/// Tenant A's target share, percent.
pub(crate) const PROMISED_SHARE_A_PCT: &str = "promised_share_a_pct";
/// Maximum deviation of any tenant's mean share from its target, percentage points.
pub(crate) const OFF_MEAN_POINTS: &str = "off_mean_points";
/// Maximum deviation of any tenant's share over 5 s from its target, percentage points.
pub(crate) const OFF_WINDOW_POINTS: &str = "off_5s_points";
/// Journal and checkpoints, percent of the device's bytes.
pub(crate) const JOURNAL_PCT: &str = "journal_pct";
/// CPU time of observation and correction, percent of a core.
pub(crate) const HOLDING_CPU_PCT: &str = "holding_cpu_pct";
/// Throughput of the first clone of a base on a large file that no clone has read before.
pub(crate) const FIRST_CLONE_BYTES_PER_S: &str = "first_clone_bytes_per_s";
/// Throughput of the second clone on the same file, for the first time.
pub(crate) const SECOND_CLONE_BYTES_PER_S: &str = "second_clone_bytes_per_s";
/// The same again, from its own cache.
pub(crate) const CACHE_HIT_BYTES_PER_S: &str = "cache_hit_bytes_per_s";
/// Throughput of a clone on a file that its peers had in their caches and no longer have.
pub(crate) const STALE_BYTES_PER_S: &str = "stale_bytes_per_s";
/// Reads of the device while the second clone reads.
pub(crate) const SECOND_CLONE_DISK_READS: &str = "second_clone_disk_reads";
/// The same in bytes.
pub(crate) const SECOND_CLONE_DISK_BYTES: &str = "second_clone_disk_bytes";
/// Duration of `md5sum` on a file that a peer has read.
pub(crate) const MD5_SECONDS: &str = "md5_seconds";
/// The same again, from the clone's own cache.
pub(crate) const MD5_HIT_SECONDS: &str = "md5_hit_seconds";
/// Number of copies of shared data in the page cache.
pub(crate) const COPIES_IN_MEMORY: &str = "copies_in_memory";
/// Time from the start of the first service until the last one is ready.
pub(crate) const READY_SECONDS: &str = "ready_seconds";
/// Reads of the device in that time.
pub(crate) const LAUNCH_DISK_READS: &str = "launch_disk_reads";
/// The same in bytes.
pub(crate) const LAUNCH_DISK_BYTES: &str = "launch_disk_bytes";
/// Memory of the index of a base, percent of the used data.
pub(crate) const INDEX_PCT: &str = "index_pct";
/// Operations per second of an otherwise idle disk.
pub(crate) const IOPS: &str = "iops";
/// The same in bytes.
pub(crate) const BYTES_PER_S: &str = "bytes_per_s";
/// Average duration of an operation, including its flush, if any.
pub(crate) const LATENCY_MEAN_US: &str = "latency_mean_us";
/// 99th percentile of the same.
pub(crate) const LATENCY_P99_US: &str = "latency_p99_us";

/// Inserts per second of the database in a pod.
pub(crate) const POD_INSERTS_PER_S: &str = "pod_inserts_per_s";
/// Mean latency of its fsync and fdatasync calls.
pub(crate) const POD_FSYNC_MEAN_MS: &str = "pod_fsync_mean_ms";
/// 99th percentile of the same.
pub(crate) const POD_FSYNC_P99_MS: &str = "pod_fsync_p99_ms";
/// Files that the noisy pod has written, in the time of its load.
pub(crate) const POD_NEIGHBOUR_BYTES_PER_S: &str = "pod_neighbour_bytes_per_s";

/// Deviation of a container's charge from its Shapley value, percent of that.
#[must_use]
pub(crate) fn off_shapley(container: &str) -> String {
    format!("{container}_off_shapley_pct")
}

/// A container's charge estimated from its numbers of calls, percent of all bytes written.
#[must_use]
pub(crate) fn estimate(container: &str) -> String {
    format!("{container}_estimate_pct")
}

/// The same with the weights of the paper.
#[must_use]
pub(crate) fn paper_estimate(container: &str) -> String {
    format!("{container}_paper_estimate_pct")
}

/// Series: a tenant's I/O on the device per second, journal included, MiB; tenants are numbered from 1.
#[must_use]
pub(crate) fn moved_mib(tenant: usize) -> String {
    format!("moved_{tenant}_mib")
}

/// All figures that are judged or shown in a column.
pub(crate) const KNOWN: [&str; 43] = [
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
    POD_INSERTS_PER_S,
    POD_FSYNC_MEAN_MS,
    POD_FSYNC_P99_MS,
];
/// Operations per second of all copies of a workload together.
pub(crate) const OPS_PER_S: &str = "ops_per_s";
/// Those of the slowest copy.
pub(crate) const LEAST_OPS_PER_S: &str = "least_ops_per_s";
/// Jain's index of the copies' throughputs, 0 to 1.
pub(crate) const FAIRNESS: &str = "fairness";
/// 99th percentile of their operations, mean of the copies.
pub(crate) const P99_MS: &str = "p99_ms";
/// Reads of the device for each operation.
pub(crate) const DEVICE_READS_PER_OP: &str = "device_reads_per_op";
/// Predictions, made before the run that they are compared with.
pub(crate) const PREDICTED_PER_S: &str = "predicted_ops_per_s";
pub(crate) const PREDICTED_P99_MS: &str = "predicted_p99_ms";
pub(crate) const PREDICTED_MISS: &str = "predicted_miss_ratio";
pub(crate) const PREDICTED_BUSY_PCT: &str = "predicted_device_busy_pct";
pub(crate) const PREDICTED_CPU_PCT: &str = "predicted_cpu_pct";
/// Throughput of a copy of the first and of the second workload of a pair, as parts of those alone; and as predicted.
pub(crate) const NORMALISED_A: &str = "normalised_a";
pub(crate) const NORMALISED_B: &str = "normalised_b";
pub(crate) const PREDICTED_A: &str = "predicted_a";
pub(crate) const PREDICTED_B: &str = "predicted_b";
/// Sum of the three copies' normalised throughputs, as measured and as predicted; and on how many of four devices the planner put these three.
pub(crate) const NORMALISED_SUM: &str = "normalised_sum";
pub(crate) const PREDICTED_SUM: &str = "predicted_sum";
pub(crate) const PLANNED: &str = "planned";
/// Duration of a plan, and its sum as a part of the one that no placement exceeds.
pub(crate) const PLAN_SECONDS: &str = "plan_seconds";
pub(crate) const PLAN_OF_BOUND_PCT: &str = "plan_of_bound_pct";
/// Sum of a searched placement as a part of that of the best one, mean and least of all small fleets.
pub(crate) const SEARCHED_OF_BEST_PCT: &str = "searched_of_best_pct";
pub(crate) const LEAST_SEARCHED_OF_BEST_PCT: &str = "least_searched_of_best_pct";
/// 99th percentiles of the extender's answers, and of the first ones of both kinds.
pub(crate) const FILTER_P99_MS: &str = "filter_p99_ms";
pub(crate) const PRIORITIZE_P99_MS: &str = "prioritize_p99_ms";
pub(crate) const FIRST_P99_MS: &str = "first_p99_ms";
