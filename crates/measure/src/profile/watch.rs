//! Reading the kernel's counters of a cgroup and of its processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::observe::record::CgroupId;
use bulkhead_core::slices;
use bulkhead_core::units::Bytes;
use bulkhead_formats::servers;
use bulkhead_sys::bpf::profile::{Asked, Durables, Profiler};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{cgroup, process};

use super::demand::{Kind, Requested, Window};

/// Counters of a process that only grow.
#[derive(Clone, Copy, Debug, Default)]
struct Io {
    calls: u64,
    read_by_calls: u64,
    read_from_devices: u64,
}

/// The counters at the begin of a window.
struct Before {
    at: Instant,
    cpu_us: u64,
    asked: Vec<Asked>,
    durables: Durables,
}

pub(super) struct Watcher {
    roots: Roots,
    path: CgroupPath,
    profiler: Profiler,
    /// Processes by number and start time, with their counters.
    processes: BTreeMap<(u32, u64), Io>,
    before: Option<Before>,
    n_samples: u32,
    /// Samples in which each thread was busy.
    busy: BTreeMap<u32, u32>,
    threads: Vec<(u32, u32)>,
    /// Where volumes of the container are served and journaled, if it is a tenant: not what it demands, but what serves that.
    services: Vec<CgroupPath>,
}

impl Watcher {
    pub(super) fn start(roots: &Roots, path: &CgroupPath) -> Result<Self> {
        if !cgroup::exists(roots, path) {
            bail!("{path}: there is no such cgroup");
        }
        let profiler = Profiler::start(roots)?;
        let mut watcher = Self {
            roots: roots.clone(),
            path: path.clone(),
            profiler,
            processes: BTreeMap::new(),
            before: None,
            n_samples: 0,
            busy: BTreeMap::new(),
            threads: Vec::new(),
            services: Vec::new(),
        };
        watcher.find_members()?;
        watcher.processes = watcher.read_processes();
        Ok(watcher)
    }

    /// As [`Profiler::sees_calls`].
    pub(super) fn sees_calls(&self) -> bool {
        self.profiler.sees_calls()
    }

    /// Cgroups and threads of the container.
    fn find_members(&mut self) -> Result<()> {
        let (own, below) = (self.path.to_string(), format!("{}/", self.path));
        let all = cgroup::all_ids(&self.roots).context("the cgroups")?;
        let is_member = |path: &str| {
            let path = path.trim_start_matches('/');
            path == own.trim_start_matches('/') || path.starts_with(below.trim_start_matches('/'))
        };
        let below = all.into_iter().filter(|(_, path)| is_member(path));
        let (services, members): (Vec<_>, Vec<(CgroupId, String)>) =
            below.partition(|(_, path)| slices::is_of_volumes(path) && path.trim_start_matches('/') != own);
        if members.is_empty() {
            bail!("{}: it has ended", self.path);
        }
        let services: Vec<&str> = services.iter().map(|(_, path)| path.trim_start_matches('/')).collect();
        // The counters of a cgroup contain those below it.
        let is_outermost = |path: &&&str| !services.iter().any(|other| path.starts_with(&format!("{other}/")));
        self.services = services.iter().filter(is_outermost).filter_map(|path| path.parse().ok()).collect();
        self.profiler.set_members(&members.iter().map(|(id, _)| *id).collect::<BTreeSet<_>>())?;
        self.threads = members.iter().flat_map(|(_, path)| self.threads_of(path)).collect();
        Ok(())
    }

    /// The threads of one cgroup, each with its process.
    fn threads_of(&self, path: &str) -> Vec<(u32, u32)> {
        let Ok(path) = path.parse::<CgroupPath>() else { return Vec::new() };
        // The kernel does not list threads by process; that of a thread is in its own directory.
        let Ok(text) = cgroup::read(&self.roots, &path, "cgroup.threads") else { return Vec::new() };
        let process = |thread: u32| -> Option<(u32, u32)> {
            let status = fs::read_to_string(self.roots.proc.join(format!("{thread}/status"))).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
            Some((line.trim().parse().ok()?, thread))
        };
        text.lines().filter_map(|line| line.parse().ok()).filter_map(process).collect()
    }

    pub(super) fn begin(&mut self) -> Result<()> {
        self.find_members()?;
        (self.n_samples, self.busy) = (0, BTreeMap::new());
        self.before = Some(Before {
            at: Instant::now(),
            cpu_us: self.cpu_us()?,
            asked: self.profiler.asked()?,
            durables: self.profiler.durables()?,
        });
        Ok(())
    }

    /// Counts which threads run, want to run, or wait for a device.
    pub(super) fn sample(&mut self) {
        self.n_samples += 1;
        for (process, thread) in &self.threads {
            let path = self.roots.proc.join(format!("{process}/task/{thread}/stat"));
            let state = fs::read_to_string(path).ok().and_then(|stat| {
                // The name before it can contain anything.
                stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
            });
            if let Some('R' | 'D') = state {
                *self.busy.entry(*thread).or_default() += 1;
            }
        }
    }

    pub(super) fn end(&mut self) -> Result<Window> {
        let before = self.before.take().context("the window has no begin")?;
        let cpu_us = self.cpu_us()?;
        let (asked, durables) = (self.profiler.asked()?, self.profiler.durables()?);
        let now = self.read_processes();
        let mut io = Io::default();
        for (process, counters) in &now {
            let was = self.processes.get(process).copied().unwrap_or_default();
            io.calls += counters.calls.saturating_sub(was.calls);
            io.read_by_calls += counters.read_by_calls.saturating_sub(was.read_by_calls);
            io.read_from_devices += counters.read_from_devices.saturating_sub(was.read_from_devices);
        }
        self.processes = now;
        let (memory, cache) = self.memory();
        let n_samples = f64::from(self.n_samples.max(1));
        Ok(Window {
            seconds: before.at.elapsed().as_secs_f64(),
            cpu_seconds: cpu_us.saturating_sub(before.cpu_us) as f64 / 1e6,
            requested: self.requested(&before.asked, &asked),
            durables: durables.calls - before.durables.calls,
            commits: durables.commits - before.durables.commits,
            calls: io.calls,
            read_by_calls: Bytes(io.read_by_calls),
            read_from_devices: Bytes(io.read_from_devices),
            busy_threads: self.busy.values().map(|n| f64::from(*n)).sum::<f64>() / n_samples,
            // Once may be chance.
            n_threads: self.busy.values().filter(|n| **n > 1).count(),
            memory,
            cache,
        })
    }

    /// New requests by kind: those to disks, or, without any, those to devices that are served or stacked.
    fn requested(&self, before: &[Asked], now: &[Asked]) -> BTreeMap<Kind, Requested> {
        let kind =
            |asked: &Asked| Kind { write: asked.is_write, sequential: asked.is_sequential, back: asked.is_background };
        let mut sums: [BTreeMap<Kind, Requested>; 2] = [BTreeMap::new(), BTreeMap::new()];
        for asked in now {
            let is_same = |other: &&Asked| other.dev == asked.dev && kind(other) == kind(asked);
            let was = before.iter().find(is_same);
            let requests = asked.requests - was.map_or(0, |was| was.requests);
            let bytes = asked.bytes - was.map_or(0, |was| was.bytes);
            if requests > 0 {
                let sum = &mut sums[usize::from(!servers::is_physical(&self.roots, asked.dev))];
                let one = sum.entry(kind(asked)).or_default();
                one.requests += requests;
                one.bytes += bytes;
            }
        }
        let [physical, other] = sums;
        if physical.is_empty() { other } else { physical }
    }

    fn cpu_us(&self) -> Result<u64> {
        let usage = |path: &CgroupPath| {
            let text = cgroup::read(&self.roots, path, "cpu.stat").ok()?;
            value(&text, "usage_usec")
        };
        let all = usage(&self.path).with_context(|| format!("{}: cpu.stat has no usage", self.path))?;
        Ok(all.saturating_sub(self.services.iter().filter_map(usage).sum()))
    }

    /// Memory that is not page cache, and page cache; 0 without the controller.
    fn memory(&self) -> (Bytes, Bytes) {
        let read = |path: &CgroupPath| {
            let text = cgroup::read(&self.roots, path, "memory.stat").unwrap_or_default();
            let of = |key: &str| value(&text, key).unwrap_or(0);
            (of("anon") + of("kernel"), of("file"))
        };
        let services = self.services.iter().map(read);
        let (other, cache) = services
            .fold(read(&self.path), |(other, cache), its| (other.saturating_sub(its.0), cache.saturating_sub(its.1)));
        (Bytes(other), Bytes(cache))
    }

    /// The counters of all processes. They are lost when one ends: what it did last is not counted.
    fn read_processes(&self) -> BTreeMap<(u32, u64), Io> {
        let processes: BTreeSet<u32> = self.threads.iter().map(|(process, _)| *process).collect();
        let read = |pid: u32| {
            let text = fs::read_to_string(self.roots.proc.join(pid.to_string()).join("io")).ok()?;
            let started = process::start_time(&self.roots, pid)?;
            let of = |key: &str| value(&text, key).unwrap_or(0);
            let io = Io {
                calls: of("syscr:") + of("syscw:"),
                read_by_calls: of("rchar:"),
                read_from_devices: of("read_bytes:"),
            };
            Some(((pid, started), io))
        };
        processes.into_iter().filter_map(read).collect()
    }
}

/// The number of a key in a flat keyed file.
fn value(text: &str, key: &str) -> Option<u64> {
    cgroup::keyed(text, key)?.parse().ok()
}
