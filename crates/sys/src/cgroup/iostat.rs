//! I/O of a cgroup: `io.stat`, `io.max`, `io.pressure`.

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::units::DevNo;

use super::{CgroupError, read};
use crate::roots::Roots;

/// What the block layer did for a cgroup and its descendants on one device, since the cgroup exists (file `io.stat`).
///
/// Stacked devices count once per layer: sums over layers mean nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStat {
    /// Bytes read.
    pub rbytes: u64,
    /// Bytes written.
    pub wbytes: u64,
    /// Number of read bios.
    pub rios: u64,
    /// Number of write bios.
    pub wios: u64,
    /// Bytes discarded.
    pub dbytes: u64,
    /// Number of discard bios.
    pub dios: u64,
    /// Time of the device that io.cost has taken for it, by its model and at the rate that was in force then, in microseconds
    /// (kernel `ioc_pd_stat`); 0 where it does not work.
    pub cost_usage_us: u64,
}

/// For how long some task of a cgroup, or below it, has waited for I/O since the cgroup was made (`io.pressure`, `some`). `None`
/// where the kernel does not tell: without pressure stall information, or when the cgroup is gone.
#[must_use]
pub fn io_waited(roots: &Roots, path: &CgroupPath) -> Option<Duration> {
    let text = read(roots, path, "io.pressure").ok()?;
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split(' ').find_map(|word| word.strip_prefix("total="))?;
    total.trim().parse().ok().map(Duration::from_micros)
}

/// The I/O of the cgroup and its descendants per device (file `io.stat`). Devices without any I/O are not listed.
///
/// # Errors
/// [`CgroupError::NoFile`] when the io controller is not enabled there, [`CgroupError::NotFound`] or [`CgroupError::Read`].
pub fn io_stat(roots: &Roots, path: &CgroupPath) -> Result<BTreeMap<DevNo, IoStat>, CgroupError> {
    read(roots, path, "io.stat").map(|text| parse_io_stat(&text))
}

/// The counters of `io.stat`. Keys that are unknown (such as `cost.vrate`) are passed over, and so are values that are not
/// numbers. Some kernels print the number of a device without I/O on the same line as the next device; that is understood.
#[must_use]
pub fn parse_io_stat(text: &str) -> BTreeMap<DevNo, IoStat> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let mut dev: Option<DevNo> = None;
        for word in line.split_ascii_whitespace() {
            if let Ok(number) = word.parse::<DevNo>() {
                dev = Some(number);
                continue;
            }
            let (Some(dev), Some((key, value))) = (dev, word.split_once('=')) else { continue };
            let Ok(value) = value.parse::<u64>() else { continue };
            let entry: &mut IoStat = found.entry(dev).or_default();
            match key {
                "rbytes" => entry.rbytes = value,
                "wbytes" => entry.wbytes = value,
                "rios" => entry.rios = value,
                "wios" => entry.wios = value,
                "dbytes" => entry.dbytes = value,
                "dios" => entry.dios = value,
                "cost.usage" => entry.cost_usage_us = value,
                _ => {}
            }
        }
    }
    found
}

/// What a cgroup is allowed on a device per second; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoLimits {
    /// Bytes that are read.
    pub rbps: Option<u64>,
    /// Bytes that are written.
    pub wbps: Option<u64>,
    /// Reads.
    pub riops: Option<u64>,
    /// Writes.
    pub wiops: Option<u64>,
}

/// What the cgroup is allowed on a device (file `io.max`).
///
/// # Errors
/// [`CgroupError::NoFile`] when the io controller is not enabled there or the kernel cannot limit, [`CgroupError::NotFound`] or
/// [`CgroupError::Read`].
pub fn io_limits(roots: &Roots, path: &CgroupPath, dev: DevNo) -> Result<IoLimits, CgroupError> {
    read(roots, path, "io.max").map(|text| parse_io_limits(&text, dev))
}

pub(super) fn parse_io_limits(text: &str, dev: DevNo) -> IoLimits {
    let is_of = |line: &&str| line.split_ascii_whitespace().next().is_some_and(|word| word.parse() == Ok(dev));
    let line = text.lines().find(is_of).unwrap_or_default();
    let limit = |key: &str| line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.parse().ok());
    IoLimits { rbps: limit("rbps="), wbps: limit("wbps="), riops: limit("riops="), wiops: limit("wiops=") }
}
