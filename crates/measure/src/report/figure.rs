//! Names of the figures and series that reports know. An experiment may have more; those are kept in the JSON.

use crate::result::{Cell, Spread};

/// Mean latency of the probe's fsync with an idle neighbour, in the same round.
pub const FSYNC_IDLE_MEAN_MS: &str = "fsync_idle_mean_ms";
/// 99th percentile of the probe's fsync with an idle neighbour.
pub const FSYNC_IDLE_P99_MS: &str = "fsync_idle_p99_ms";
/// Mean latency of the probe's fsync beside the busy neighbour.
pub const FSYNC_LOADED_MEAN_MS: &str = "fsync_loaded_mean_ms";
/// 99th percentile of the probe's fsync beside the busy neighbour.
pub const FSYNC_LOADED_P99_MS: &str = "fsync_loaded_p99_ms";
/// Throughput of the neighbour next to the probe.
pub const NEIGHBOUR_BYTES_PER_S: &str = "neighbour_bytes_per_s";
/// Throughput of the neighbour alone.
pub const NEIGHBOUR_ALONE_BYTES_PER_S: &str = "neighbour_alone_bytes_per_s";
/// Operations of a neighbour that is counted in operations (a storm of files).
pub const NEIGHBOUR_OPS_PER_S: &str = "neighbour_ops_per_s";
/// The same neighbour alone.
pub const NEIGHBOUR_ALONE_OPS_PER_S: &str = "neighbour_alone_ops_per_s";
/// The probe's share of device time, 0 to 1.
pub const A_DEVICE_SHARE: &str = "a_device_share";
/// Utilisation of the device, percent.
pub const DEVICE_BUSY_PCT: &str = "device_busy_pct";
/// Inserts of the database.
pub const INSERTS_PER_S: &str = "inserts_per_s";
/// Mean latency of the database's fsync.
pub const FSYNC_MEAN_MS: &str = "fsync_mean_ms";
/// Tenant A's share of the device, percent.
pub const SHARE_A_PCT: &str = "share_a_pct";
/// A's share of the device's time at the end of a hold, as its controller measured it over the last 15 s.
pub const TIME_SHARE_A_PCT: &str = "time_share_a_pct";
/// Tenant B's share of the device, percent.
pub const SHARE_B_PCT: &str = "share_b_pct";
/// Bytes that the device read and wrote.
pub const DEVICE_BYTES_PER_S: &str = "device_bytes_per_s";

/// Series: every latency of the probe beside the busy neighbour.
pub const FSYNC_LOADED_SERIES_MS: &str = "fsync_loaded_ms";

/// A's share and its unit: device time if that was enforced, else bytes.
pub fn share_a(cell: &Cell) -> Option<(Spread, &'static str)> {
    let of_time = cell.figure(TIME_SHARE_A_PCT).map(|share| (share, "time"));
    of_time.or_else(|| Some((cell.figure(SHARE_A_PCT)?, "bytes")))
}
