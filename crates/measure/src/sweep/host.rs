//! What a host does while copies run: its processors, devices, and pressure.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::slices;
use bulkhead_core::units::DevNo;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{block, cgroup};

use super::figure as f;
use crate::experiment::set_figure;
use crate::result::Round;
use crate::sample::busy_cpu_us;

/// Size of a sector of the kernel's counters.
const SECTOR: f64 = 512.0;

/// The host's counters at a moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    at: Instant,
    cpu_us: u64,
    disks: Vec<block::Diskstat>,
    /// Pages of the tenants that were read again, because they had been evicted.
    refaults: u64,
    /// Time in which something in each copy waited for I/O; empty without pressure stall information.
    waited: Vec<Duration>,
}

/// What is sampled: devices, and the cgroups of copies.
#[derive(Clone, Debug)]
pub(super) struct Watched<'a> {
    pub(super) roots: &'a Roots,
    pub(super) devices: &'a [DevNo],
    pub(super) payloads: Vec<CgroupPath>,
}

/// Takes a sample.
///
/// # Errors
/// If the kernel's counters cannot be read.
pub(super) fn sample(watched: &Watched<'_>) -> Result<Sample> {
    let Watched { roots, devices, payloads } = watched;
    let memory = cgroup::read(roots, &slices::root(), "memory.stat").unwrap_or_default();
    let refaults = cgroup::keyed(&memory, "workingset_refault_file").and_then(|value| value.parse().ok());
    Ok(Sample {
        at: Instant::now(),
        cpu_us: busy_cpu_us()?,
        disks: devices.iter().map(|dev| block::diskstat(roots, *dev)).collect::<Result<_, _>>().context("a device")?,
        refaults: refaults.unwrap_or(0),
        waited: payloads.iter().map_while(|payload| cgroup::io_waited(roots, payload)).collect(),
    })
}

impl Sample {
    /// When it was taken.
    pub(super) fn at(&self) -> Instant {
        self.at
    }

    /// Adds what happened until a later sample.
    pub(super) fn figures(&self, later: &Self, round: &mut Round) {
        let seconds = (later.at - self.at).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let cpus = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
        let part = |us: u64| 100.0 * us as f64 / 1e6 / seconds;
        let each = || self.disks.iter().zip(&later.disks);
        let bytes = |of: fn(&block::Diskstat) -> u64| {
            each().map(|(before, after)| of(after).saturating_sub(of(before)) as f64).sum::<f64>() * SECTOR / seconds
        };
        let busy = each().map(|(before, after)| 0.1 * after.io_ms.saturating_sub(before.io_ms) as f64 / seconds);
        set_figure(round, f::CPU_PCT, (part(later.cpu_us.saturating_sub(self.cpu_us)) / cpus).min(100.0));
        set_figure(round, f::BUSY_PCT, busy.fold(0.0, f64::max).min(100.0));
        set_figure(round, f::READ_BYTES_PER_S, bytes(|disk| disk.read_sectors));
        set_figure(round, f::WRITTEN_BYTES_PER_S, bytes(|disk| disk.write_sectors));
        set_figure(round, f::REFAULTS_PER_S, later.refaults.saturating_sub(self.refaults) as f64 / seconds);
        let stalls = self.waited.iter().zip(&later.waited).map(|(before, after)| after.saturating_sub(*before));
        let n_stalls = stalls.len();
        let stall = stalls.map(|stall| stall.as_secs_f64()).sum::<f64>() / n_stalls as f64;
        set_figure(round, f::IO_STALL_PCT, (100.0 * stall / seconds).min(100.0));
        set_figure(round, f::WINDOW_S, seconds);
    }
}

/// Size of a page of this host.
pub(super) fn page_bytes() -> f64 {
    rustix::param::page_size() as f64
}

/// Numbers of the devices below a pool.
///
/// # Errors
/// If one of them is not found.
pub(super) fn devices(roots: &Roots, names: &[String]) -> Result<Vec<DevNo>> {
    let number = |name: &String| {
        block::by_path(roots, &Path::new("/dev").join(name)).map(|found| found.dev).with_context(|| name.clone())
    };
    names.iter().map(number).collect()
}
