//! Activity of the disk and the cgroups in a window: the difference of two snapshots.
//!
//! Owns: the choice of counters. `io.stat` and `diskstats` of the *physical* device only, because stacked devices count the same bytes again. Bytes
//! not charged to any tenant are the root's: the device's total less the top-level cgroups.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_sys::block::{self, Diskstat};
use bulkhead_sys::cgroup::{self, IoStat};
use bulkhead_sys::file::read_limited;
use bulkhead_sys::roots::Roots;

/// Counters at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    at: Instant,
    disk: Diskstat,
    leaves: [IoStat; 4],
    others: u64,
}

/// Reads the counters of one physical device and the leaf cgroups of two tenants.
#[derive(Clone, Debug)]
pub struct Sampler {
    roots: Roots,
    dev: DevNo,
    /// payload of A, journal of A, payload of B, journal of B.
    leaves: [CgroupPath; 4],
}

/// The activity between two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activity {
    /// Length of the window.
    pub seconds: f64,
    /// Fraction of the time with at least one request in flight, percent.
    pub device_busy_pct: f64,
    /// Bytes read and written on the device.
    pub device_bytes: u64,
    /// Writes completed on the device.
    pub device_writes: u64,
    /// Mean time of a write on the device, its queue included, milliseconds; 0 without writes.
    pub device_write_ms: f64,
    /// Flushes completed on the device.
    pub device_flushes: u64,
    /// Bytes charged to A's processes.
    pub a_payload_bytes: u64,
    /// Bytes charged to A's journal threads.
    pub a_journal_bytes: u64,
    /// Bytes charged to B's processes.
    pub b_payload_bytes: u64,
    /// Bytes charged to B's journal threads.
    pub b_journal_bytes: u64,
    /// Bytes charged to the root cgroup only, which contains journal threads by default.
    pub root_bytes: u64,
}

impl Sampler {
    /// `leaves` are the cgroups payload A, journal A, payload B, journal B.
    #[must_use]
    pub fn new(roots: Roots, dev: DevNo, leaves: [CgroupPath; 4]) -> Self {
        Self { roots, dev, leaves }
    }

    /// The counters now.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let mut leaves = [IoStat::default(); 4];
        for (slot, path) in leaves.iter_mut().zip(&self.leaves) {
            *slot = io_of(&self.roots, self.dev, path)?;
        }
        // Cgroups first, the device last: bytes are charged when a bio is submitted, and counted when it completes.
        let others = charged_below_root(&self.roots, self.dev)?;
        let disk = block::diskstat(&self.roots, self.dev).context("the device's counters")?;
        Ok(Snapshot { at: Instant::now(), disk, leaves, others })
    }

    /// Requests in flight on the device.
    ///
    /// # Errors
    /// If the counters cannot be read.
    pub fn in_flight(&self) -> Result<u64> {
        Ok(block::diskstat(&self.roots, self.dev).context("the device's counters")?.in_flight)
    }
}

/// Bytes charged to a cgroup and its descendants on a device.
pub fn io_of(roots: &Roots, dev: DevNo, path: &CgroupPath) -> Result<IoStat> {
    let all = cgroup::io_stat(roots, path).with_context(|| format!("I/O of cgroup {path}"))?;
    Ok(all.get(&dev).copied().unwrap_or_default())
}

/// Bytes on a device that were charged to any cgroup but the root.
pub fn charged_below_root(roots: &Roots, dev: DevNo) -> Result<u64> {
    let tops = cgroup::children(roots, &CgroupPath::root()).context("the top-level cgroups")?;
    // A cgroup can disappear between the two calls, or lack the io controller; then it has no bytes.
    Ok(tops.iter().map(|top| io_of(roots, dev, top).map_or(0, |io| bytes(&io))).sum())
}

pub fn bytes(io: &IoStat) -> u64 {
    io.rbytes + io.wbytes
}

impl Snapshot {
    /// The activity from this snapshot to a later one.
    #[must_use]
    pub fn until(&self, later: &Snapshot) -> Activity {
        let seconds = later.at.saturating_duration_since(self.at).as_secs_f64();
        let grew = |of: fn(&Diskstat) -> u64| of(&later.disk).saturating_sub(of(&self.disk));
        let leaf = |index: usize| bytes(&later.leaves[index]).saturating_sub(bytes(&self.leaves[index]));
        let device_bytes = 512 * grew(|disk| disk.read_sectors + disk.write_sectors);
        let busy_ms = grew(|disk| disk.io_ms) as f64;
        let device_writes = grew(|disk| disk.writes);
        Activity {
            seconds,
            device_busy_pct: if seconds > 0.0 { (busy_ms / seconds / 10.0).min(100.0) } else { 0.0 },
            device_bytes,
            device_writes,
            device_write_ms: grew(|disk| disk.write_ms) as f64 / device_writes.max(1) as f64,
            device_flushes: grew(|disk| disk.flushes),
            a_payload_bytes: leaf(0),
            a_journal_bytes: leaf(1),
            b_payload_bytes: leaf(2),
            b_journal_bytes: leaf(3),
            root_bytes: device_bytes.saturating_sub(later.others.saturating_sub(self.others)),
        }
    }
}

impl Activity {
    /// Bytes charged to tenant A's slice.
    #[must_use]
    pub fn a_bytes(&self) -> u64 {
        self.a_payload_bytes + self.a_journal_bytes
    }

    /// Bytes charged to tenant B's slice.
    #[must_use]
    pub fn b_bytes(&self) -> u64 {
        self.b_payload_bytes + self.b_journal_bytes
    }

    /// An amount per second of the window.
    #[must_use]
    pub fn per_s(&self, amount: u64) -> f64 {
        if self.seconds > 0.0 { amount as f64 / self.seconds } else { 0.0 }
    }

    /// An amount as percent of the device's bytes.
    #[must_use]
    pub fn pct_of_device(&self, amount: u64) -> f64 {
        if self.device_bytes > 0 { amount as f64 / self.device_bytes as f64 * 100.0 } else { 0.0 }
    }
}

/// Non-idle time of all CPUs, in microseconds.
///
/// # Errors
/// If it cannot be read.
pub fn busy_cpu_us() -> Result<u64> {
    let stat = read_limited(Path::new("/proc/stat"), Bytes(1 << 20)).context("processor times")?;
    parse_busy_us(&String::from_utf8_lossy(&stat)).context("/proc/stat is not understood")
}

/// `cpu user nice system idle iowait irq softirq steal guest guest_nice` in hundredths of a second; guest is within user.
fn parse_busy_us(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    let busy = ticks.iter().take(7).sum::<u64>().checked_sub(*ticks.get(3)? + *ticks.get(4)?)?;
    Some(busy * 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    #[test]
    fn a_window_is_the_difference_of_two_snapshots() {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        let leaves = ["a/payload", "a/journal", "b/payload", "b/journal"];
        let write = |payload: u64, journal: u64, sectors: u64, busy_ms: u64| {
            for (leaf, bytes) in leaves.iter().zip([payload, journal, 0, 0]) {
                let dir = roots.cgroup.join(leaf);
                fs::create_dir_all(&dir).unwrap();
                fs::write(dir.join("io.stat"), format!("8:0 rbytes=0 wbytes={bytes} rios=0 wios=1 dbytes=0 dios=0\n"))
                    .unwrap();
            }
            for (top, bytes) in [("a", payload + journal), ("b", 0)] {
                fs::write(
                    roots.cgroup.join(top).join("io.stat"),
                    format!("8:0 rbytes=0 wbytes={bytes} rios=0 wios=1\n"),
                )
                .unwrap();
            }
            let dir = roots.sys.join("dev/block/8:0");
            fs::create_dir_all(&dir).unwrap();
            let stat = format!("0 0 0 0 {payload} 0 {sectors} 0 0 {busy_ms} 0 0 0 0 0 3 0\n");
            fs::write(dir.join("stat"), stat).unwrap();
        };
        let watch = Sampler::new(roots.clone(), DevNo::new(8, 0), leaves.map(|leaf| leaf.parse().unwrap()));
        write(0, 0, 0, 0);
        let mut before = watch.snapshot().unwrap();
        write(4096, 8192, 32, 500);
        let after = watch.snapshot().unwrap();
        before.at = after.at - Duration::from_secs(2);
        let found = before.until(&after);
        assert_eq!((found.a_payload_bytes, found.a_journal_bytes, found.b_bytes()), (4096, 8192, 0));
        assert_eq!((found.device_bytes, found.root_bytes), (16384, 4096));
        assert!(
            (found.device_busy_pct - 25.0).abs() < 0.01 && (found.pct_of_device(found.a_bytes()) - 75.0).abs() < 0.01
        );
        assert!((found.per_s(found.device_bytes) - 8192.0).abs() < 1.0);
    }

    #[test]
    fn idle_time_and_waiting_for_io_are_not_busy() {
        assert_eq!(parse_busy_us("cpu  100 1 50 9000 700 2 3 40 0 0\ncpu0 1 2\n"), Some(156 * 10_000));
        assert_eq!(parse_busy_us("intr 5"), None);
    }
}
