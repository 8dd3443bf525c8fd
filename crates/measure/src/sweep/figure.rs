//! Names of a sweep's figures and series in its result, with their units.

/// Operations per second of all copies together.
pub const OPS_PER_S: &str = "ops_per_s";
/// The mean of the 99th percentiles that copies have printed.
pub const P99_MS: &str = "p99_ms";
/// The processors' use.
pub const CPU_PCT: &str = "cpu_pct";
/// Time in which the busiest device below the pool had a request.
pub const BUSY_PCT: &str = "device_busy_pct";
/// Bytes that these devices have read.
pub const READ_BYTES_PER_S: &str = "device_read_bytes_per_s";
/// Bytes that these devices have written.
pub const WRITTEN_BYTES_PER_S: &str = "device_written_bytes_per_s";
/// Pages of tenants that were read again, because they had been evicted.
pub const REFAULTS_PER_S: &str = "refaults_per_s";
/// Time in which something in a copy waited for I/O, the mean of all copies.
pub const IO_STALL_PCT: &str = "io_stall_pct";
/// When all copies had become steady, since their start.
pub const WARM_UP_S: &str = "warm_up_s";
/// Length of the window behind.
pub const WINDOW_S: &str = "window_s";
/// 1 if all rates were steady and known as exactly as wanted, else 0.
pub const STEADY: &str = "steady";
/// Series: operations per second of each copy, in the order of the workloads in the cell's name.
pub const EACH_PER_S: &str = "each_per_s";
/// Series: half of the width of the 95 % confidence interval of each of these.
pub const HALF_OF_EACH: &str = "half_of_each_per_s";
/// Series: the 99th percentile that each copy has printed.
pub const P99_OF_EACH_MS: &str = "p99_of_each_ms";
