//! I/O of a cgroup: `io.stat`, `io.max`, `io.pressure`.

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::units::DevNo;

use super::{CgroupError, read};
use crate::roots::Roots;

/// I/O of a cgroup and its descendants on one device, since the cgroup was created (file `io.stat`).
///
/// Stacked devices count once per layer: sums over layers are meaningless.
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
    /// Device time charged by io.cost, by its model and the vrate at that time, in microseconds (kernel `ioc_pd_stat`); 0 if io.cost
    /// is not active.
    pub cost_usage_us: u64,
}

/// Total time in which some task of a cgroup or its descendants was stalled on I/O (`io.pressure`, `some`), since the cgroup was created.
/// `None` without pressure stall information, or if the cgroup was removed.
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
/// [`CgroupError::NoFile`] if the io controller is not enabled there, [`CgroupError::NotFound`] or [`CgroupError::Read`].
pub fn io_stat(roots: &Roots, path: &CgroupPath) -> Result<BTreeMap<DevNo, IoStat>, CgroupError> {
    read(roots, path, "io.stat").map(|text| parse_io_stat(&text))
}

/// Parses `io.stat`. Unknown keys (such as `cost.vrate`) and values that are not numbers are skipped. Some kernels print the number of a
/// device without I/O on the same line as the next device; this is handled.
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

/// Limits of a cgroup on a device, per second; `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoLimits {
    /// Bytes read.
    pub rbps: Option<u64>,
    /// Bytes written.
    pub wbps: Option<u64>,
    /// Reads.
    pub riops: Option<u64>,
    /// Writes.
    pub wiops: Option<u64>,
}

/// The limits of a cgroup on a device (file `io.max`).
///
/// # Errors
/// [`CgroupError::NoFile`] if the io controller is not enabled there or the kernel does not support limits,
/// [`CgroupError::NotFound`] or [`CgroupError::Read`].
pub fn io_limits(roots: &Roots, path: &CgroupPath, dev: DevNo) -> Result<IoLimits, CgroupError> {
    read(roots, path, "io.max").map(|text| parse_io_limits(&text, dev))
}

pub(super) fn parse_io_limits(text: &str, dev: DevNo) -> IoLimits {
    let is_of = |line: &&str| line.split_ascii_whitespace().next().is_some_and(|word| word.parse() == Ok(dev));
    let line = text.lines().find(is_of).unwrap_or_default();
    let limit = |key: &str| line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.parse().ok());
    IoLimits { rbps: limit("rbps="), wbps: limit("wbps="), riops: limit("riops="), wiops: limit("wiops=") }
}
