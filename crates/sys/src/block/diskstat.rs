//! I/O counters of a block device (kernel `Documentation/block/stat.rst`).

use std::fs;
use std::time::Duration;

use bulkhead_core::units::DevNo;

use super::{BlockError, device_dir, read};
use crate::roots::Roots;

/// The counters of `/sys/dev/block/M:m/stat` (kernel `Documentation/block/stat.rst`), since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Diskstat {
    /// Reads completed.
    pub reads: u64,
    /// Reads merged into others.
    pub read_merges: u64,
    /// 512-byte sectors read.
    pub read_sectors: u64,
    /// Duration of reads in milliseconds, summed over requests.
    pub read_ms: u64,
    /// Writes completed.
    pub writes: u64,
    /// Writes merged into others.
    pub write_merges: u64,
    /// 512-byte sectors written.
    pub write_sectors: u64,
    /// Duration of writes in milliseconds, summed over requests.
    pub write_ms: u64,
    /// Requests in flight (the only value that can decrease).
    pub in_flight: u64,
    /// Milliseconds with at least one request in flight.
    pub io_ms: u64,
    /// Milliseconds weighted by requests in flight.
    pub weighted_ms: u64,
    /// Discards completed.
    pub discards: u64,
    /// Discards merged into others.
    pub discard_merges: u64,
    /// 512-byte sectors discarded.
    pub discard_sectors: u64,
    /// Duration of discards in milliseconds.
    pub discard_ms: u64,
    /// Flushes completed; not counted for partitions.
    pub flushes: u64,
    /// Duration of flushes in milliseconds.
    pub flush_ms: u64,
}

/// Busy time of the device with this kernel name (`io_ticks` of its `stat` file).
///
/// # Errors
/// [`BlockError::Read`], also if the device is gone or the content is malformed.
pub fn busy(roots: &Roots, name: &str) -> Result<Duration, BlockError> {
    /// Its index among the fields (kernel `Documentation/block/stat.rst`).
    const IO_TICKS: usize = 9;
    let path = roots.sys.join("class/block").join(name.replace('/', "!")).join("stat");
    let text = fs::read_to_string(&path).map_err(|source| BlockError::Read { path: path.clone(), source })?;
    let ticks = text.split_ascii_whitespace().nth(IO_TICKS).and_then(|word| word.parse().ok());
    ticks.map(Duration::from_millis).ok_or_else(|| {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, format!("unexpected content {text:?}"));
        BlockError::Read { path, source }
    })
}

/// A device's I/O counters.
///
/// # Errors
/// [`BlockError::NotFound`], [`BlockError::Read`], [`BlockError::Malformed`] (kernels before 5.5 have fewer counters).
pub fn diskstat(roots: &Roots, dev: DevNo) -> Result<Diskstat, BlockError> {
    let path = device_dir(roots, dev)?.join("stat");
    let text = read(&path)?;
    parse_diskstat(&text).ok_or(BlockError::Malformed { path, text })
}

pub(super) fn parse_diskstat(text: &str) -> Option<Diskstat> {
    let fields: Vec<u64> = text.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
    // Newer kernels may append fields.
    let &[
        reads,
        read_merges,
        read_sectors,
        read_ms,
        writes,
        write_merges,
        write_sectors,
        write_ms,
        in_flight,
        io_ms,
        weighted_ms,
        discards,
        discard_merges,
        discard_sectors,
        discard_ms,
        flushes,
        flush_ms,
        ..,
    ] = fields.as_slice()
    else {
        return None;
    };
    Some(Diskstat {
        reads,
        read_merges,
        read_sectors,
        read_ms,
        writes,
        write_merges,
        write_sectors,
        write_ms,
        in_flight,
        io_ms,
        weighted_ms,
        discards,
        discard_merges,
        discard_sectors,
        discard_ms,
        flushes,
        flush_ms,
    })
}
