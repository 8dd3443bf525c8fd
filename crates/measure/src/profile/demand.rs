//! Windows of counters, and the demand that follows from them. Pure.

use std::collections::BTreeMap;

use bulkhead_core::demand::{Access, Demand, Durable, MissRatio, MissRatios, Purpose, Requests};
use bulkhead_core::units::Bytes;
use serde::Serialize;

/// Half of a figure's interval, as a part of it, up to which it is stable.
const STABLE: f64 = 0.1;
/// A figure that is that small a part of all of its kind need not be stable.
const SMALL_PART: f64 = 0.1;
/// Fewest operations per second of a kind, to count as the container's operations.
const LEAST_PER_S: f64 = 1.0;
/// Processor time per second of a container that is not idle.
const LEAST_CPU: f64 = 0.001;
/// Calls read that many times as much as devices do, if they read from the page cache.
const CACHED: f64 = 1.05;
/// Bytes of a cached read without a request to the device to say how large one is.
const PAGE: f64 = 4096.0;
/// Part of fsyncs that wait for a commit from which on clients share commits.
const SHARED: f64 = 0.05;

/// A kind of requests to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    pub(super) write: bool,
    pub(super) sequential: bool,
    /// Nobody waits for it.
    pub(super) back: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Requested {
    pub(super) requests: u64,
    pub(super) bytes: u64,
}

/// What was counted in a window.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) requested: BTreeMap<Kind, Requested>,
    /// Durable writes, and those of them that waited for a commit.
    pub(super) durables: u64,
    pub(super) commits: u64,
    /// Calls that read or wrote, what they read, and what of it devices did.
    pub(super) calls: u64,
    pub(super) read_by_calls: Bytes,
    pub(super) read_from_devices: Bytes,
    /// Mean number of threads that ran, wanted to run, or waited for a device, and the number of threads that ever did.
    pub(super) busy_threads: f64,
    pub(super) n_threads: usize,
    /// Memory that is not page cache, and page cache.
    pub(super) memory: Bytes,
    pub(super) cache: Bytes,
}

/// What is counted as an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// A durable write: fsync, fdatasync.
    DurableWrite,
    /// A call that reads or writes.
    Call,
    /// A request to the device, of a container whose calls are not seen: it maps files.
    Request,
    /// A millisecond of processor time.
    CpuMillisecond,
}

impl Operation {
    /// Its name in text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DurableWrite => "durable write",
            Self::Call => "read or write call",
            Self::Request => "request to the device",
            Self::CpuMillisecond => "millisecond of processor time",
        }
    }

    fn of(self, window: &Window) -> f64 {
        match self {
            Self::DurableWrite => window.durables as f64,
            Self::Call => window.calls as f64,
            Self::Request => window.requested.values().map(|it| it.requests).sum::<u64>() as f64,
            Self::CpuMillisecond => window.cpu_seconds * 1e3,
        }
    }
}

/// A mean over the windows, and half of its interval of 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The mean.
    pub mean: f64,
    /// Half of the interval: the mean of more windows is within this much of it, with 95 % confidence.
    pub half: f64,
}

impl Figure {
    fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        let deviation = (squares / (n - 1.0).max(1.0)).sqrt();
        Self { mean, half: student(values.len()) * deviation / n.sqrt() }
    }

    fn is_stable(&self) -> bool {
        self.half <= STABLE * self.mean
    }
}

/// Quantile of 97.5 % of Student's distribution for the mean of `n` values (Hill, CACM 13(10), 1970, algorithm 396, two terms).
fn student(n: usize) -> f64 {
    const NORMAL: f64 = 1.959_963_985;
    match n {
        0..=2 => 12.706,
        3 => 4.303,
        4 => 3.182,
        _ => {
            let freedom = n as f64 - 1.0;
            let cube = NORMAL.powi(3);
            NORMAL
                + (cube + NORMAL) / (4.0 * freedom)
                + (5.0 * NORMAL.powi(5) + 16.0 * cube + 3.0 * NORMAL) / (96.0 * freedom * freedom)
        }
    }
}

/// What a container demands.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// Watched time, seconds.
    pub seconds: f64,
    /// What is counted as an operation.
    pub operation: Operation,
    /// Operations per second, beside whatever ran meanwhile.
    pub per_s: Figure,
    /// Processor time for each operation, microseconds.
    pub cpu_us: Figure,
    /// Requests to the device for each operation.
    pub requests: Figure,
    /// Durable writes for each operation.
    pub durables: Figure,
    /// Figures that are not stable within 10 %, by name.
    pub unstable: Vec<&'static str>,
    /// The demand for each operation.
    pub demand: Demand,
    /// What could not be seen, or was assumed.
    pub notes: Vec<&'static str>,
}

/// The profile of a container by windows of equal length; `None` if it was idle.
pub(super) fn profile(windows: &[Window]) -> Option<Profile> {
    let seconds: f64 = windows.iter().map(|window| window.seconds).sum();
    let rate = |of: &dyn Fn(&Window) -> f64| windows.iter().map(of).sum::<f64>() / seconds;
    let kinds = [Operation::DurableWrite, Operation::Call, Operation::Request];
    let cpu = rate(&|window| window.cpu_seconds);
    let found = kinds.into_iter().find(|kind| rate(&|window| kind.of(window)) >= LEAST_PER_S);
    let operation = found.or((cpu >= LEAST_CPU).then_some(Operation::CpuMillisecond))?;
    let per = |of: &dyn Fn(&Window) -> f64| {
        let active = windows.iter().filter(|window| operation.of(window) > 0.0);
        Figure::of(&active.map(|window| of(window) / operation.of(window)).collect::<Vec<_>>())
    };
    let per_s = Figure::of(&windows.iter().map(|window| operation.of(window) / window.seconds).collect::<Vec<_>>());
    let cpu_us = per(&|window| window.cpu_seconds * 1e6);
    let requests = per(&|window| Operation::Request.of(window));
    let durables = per(&|window| window.durables as f64);
    let whole = Sums::of(windows, operation.of_all(windows));
    let busy_part = cpu / rate(&|window| window.busy_threads * window.seconds).max(f64::MIN_POSITIVE);
    let figures = [
        ("operations", per_s, true),
        ("processor time", cpu_us, operation != Operation::CpuMillisecond && busy_part > SMALL_PART),
        ("requests", requests, requests.mean * per_s.mean >= LEAST_PER_S && operation != Operation::Request),
    ];
    let unstable = figures.iter().filter(|(_, figure, counts)| *counts && !figure.is_stable());
    let unstable = unstable.map(|(name, ..)| *name).collect();
    let (demand, notes) = whole.demand(per_s.mean, cpu_us.mean / 1e6, durables.mean);
    Some(Profile { seconds, operation, per_s, cpu_us, requests, durables, unstable, demand, notes })
}

impl Operation {
    fn of_all(self, windows: &[Window]) -> f64 {
        windows.iter().map(|window| self.of(window)).sum()
    }
}

/// Sums over all windows.
struct Sums {
    operations: f64,
    requested: BTreeMap<Kind, Requested>,
    durables: f64,
    commits: f64,
    calls: f64,
    read_by_calls: f64,
    read_from_devices: f64,
    /// Means.
    busy_threads: f64,
    memory: f64,
    cache: f64,
    /// The most in a window.
    n_threads: usize,
}

impl Sums {
    fn of(windows: &[Window], operations: f64) -> Self {
        let mut requested: BTreeMap<Kind, Requested> = BTreeMap::new();
        for (kind, more) in windows.iter().flat_map(|window| &window.requested) {
            let sum = requested.entry(*kind).or_default();
            sum.requests += more.requests;
            sum.bytes += more.bytes;
        }
        let sum = |of: &dyn Fn(&Window) -> f64| windows.iter().map(of).sum::<f64>();
        let mean = |of: &dyn Fn(&Window) -> f64| sum(of) / windows.len() as f64;
        Self {
            operations,
            requested,
            durables: sum(&|window| window.durables as f64),
            commits: sum(&|window| window.commits as f64),
            calls: sum(&|window| window.calls as f64),
            read_by_calls: sum(&|window| window.read_by_calls.0 as f64),
            read_from_devices: sum(&|window| window.read_from_devices.0 as f64),
            busy_threads: mean(&|window| window.busy_threads),
            memory: mean(&|window| window.memory.0 as f64),
            cache: mean(&|window| window.cache.0 as f64),
            n_threads: windows.iter().map(|window| window.n_threads).max().unwrap_or(0),
        }
    }

    fn demand(&self, per_s: f64, cpu_seconds: f64, durables: f64) -> (Demand, Vec<&'static str>) {
        let mut notes = Vec::new();
        let clients = (self.n_threads as f64).max(self.busy_threads).max(1.0);
        let chain = 1.0 + self.commits / self.durables.max(1.0);
        if self.durables > 0.0 && self.commits == 0.0 {
            notes.push(
                "no fsync waited for a commit of ext4: each is taken for one durable write; on other file systems that is not seen",
            );
        }
        let (requests, miss_ratios) = self.requests(&mut notes);
        let demand = Demand {
            clients,
            think_seconds: ((clients - self.busy_threads) / per_s).max(0.0),
            cpu_seconds,
            requests,
            durable: (durables > 0.0).then_some(Durable {
                per_operation: durables,
                chain,
                is_shared: chain > 1.0 + SHARED,
            }),
            miss_ratios,
            memory: Bytes(to_bytes(self.memory)),
            correction_seconds: 0.0,
        };
        (demand, notes)
    }

    fn requests(&self, notes: &mut Vec<&'static str>) -> (Vec<Requests>, MissRatios) {
        let is_cached = self.read_by_calls > CACHED * self.read_from_devices && self.read_by_calls > 0.0;
        let miss = if is_cached { (self.read_from_devices / self.read_by_calls).clamp(0.0, 1.0) } else { 1.0 };
        let mut all = Vec::new();
        // What an fsync writes itself is its own.
        let mut of_fsyncs = self.durables + self.commits;
        for (kind, requested) in &self.requested {
            let mut n = requested.requests as f64;
            let bytes = requested.bytes as f64 / n;
            let access = match (kind.write, kind.sequential) {
                (false, false) => Access::RandomRead,
                (false, true) => Access::SequentialRead,
                (true, false) => Access::RandomWrite,
                (true, true) => Access::SequentialWrite,
            };
            let purpose = match (kind.write, kind.back) {
                (true, true) => Purpose::WriteBack,
                (true, false) => {
                    let own = n.min(of_fsyncs);
                    of_fsyncs -= own;
                    n -= own;
                    Purpose::Direct
                }
                (false, _) if is_cached && miss > 0.0 => {
                    n /= miss;
                    Purpose::Cached
                }
                (false, _) => Purpose::Direct,
            };
            if n > 0.0 {
                all.push(Requests { access, bytes, per_operation: n / self.operations, purpose });
            }
        }
        if !is_cached {
            return (all, MissRatios::default());
        }
        if !all.iter().any(|requests| requests.purpose == Purpose::Cached) {
            // None missed. They need their memory all the same.
            let bytes = (self.read_by_calls / self.calls.max(1.0)).max(PAGE);
            let per_operation = self.read_by_calls / bytes / self.operations;
            all.push(Requests { access: Access::RandomRead, bytes, per_operation, purpose: Purpose::Cached });
        }
        notes.push("reads by calls include those of pipes and terminals, and those of mapped files are not seen");
        notes.push("the miss ratio is known for the page cache of today only: less is taken to miss in proportion, more not to help");
        let cache = self.cache.max(PAGE);
        (all, MissRatios(vec![MissRatio { bytes: 0.0, miss: 1.0 }, MissRatio { bytes: cache, miss }]))
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a mean of sizes is one")]
fn to_bytes(mean: f64) -> u64 {
    mean.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: Kind = Kind { write: true, sequential: false, back: false };
    const READ: Kind = Kind { write: false, sequential: false, back: false };

    fn window(operations: u64) -> Window {
        let requests = [
            (SYNC, Requested { requests: 3 * operations, bytes: 3 * operations * 8192 }),
            (READ, Requested { requests: operations / 2, bytes: operations / 2 * 16_384 }),
        ];
        Window {
            seconds: 5.0,
            cpu_seconds: operations as f64 * 1e-4,
            requested: requests.into(),
            durables: operations,
            commits: operations / 2,
            calls: 10 * operations,
            read_by_calls: Bytes(operations * 32_768),
            read_from_devices: Bytes(operations * 8192),
            busy_threads: 2.0,
            n_threads: 4,
            memory: Bytes::mib(64),
            cache: Bytes::mib(100),
        }
    }

    #[test]
    fn the_demand_of_an_operation_follows_from_the_counters() {
        let profile = profile(&vec![window(500); 6]).unwrap();
        assert_eq!((profile.operation, profile.unstable.as_slice()), (Operation::DurableWrite, [].as_slice()));
        assert!((profile.per_s.mean - 100.0).abs() < 1e-9 && profile.per_s.half < 1e-9, "{profile:?}");
        let demand = profile.demand;
        demand.check().unwrap();
        assert!((demand.cpu_seconds - 1e-4).abs() < 1e-12);
        // Two of four threads are busy: two think for 20 ms of each operation's 40.
        assert_eq!((demand.clients, demand.memory), (4.0, Bytes::mib(64)));
        assert!((demand.think_seconds - 0.02).abs() < 1e-12);
        let durable = demand.durable.unwrap();
        assert_eq!((durable.per_operation, durable.chain, durable.is_shared), (1.0, 1.5, true));
        let [read, write] = &demand.requests[..] else { panic!("{:?}", demand.requests) };
        // A quarter of the reads by calls reaches the device.
        assert_eq!((read.purpose, read.bytes, read.per_operation), (Purpose::Cached, 16_384.0, 2.0));
        assert_eq!(demand.miss_ratios.at(Bytes::mib(100).0 as f64), 0.25);
        // Three writes, of which one and a half are the fsync's.
        assert_eq!((write.purpose, write.per_operation), (Purpose::Direct, 1.5));
    }

    #[test]
    fn a_changing_load_is_not_stable() {
        let windows: Vec<Window> = [500, 100, 500, 100, 900, 300].map(window).into();
        assert_eq!(profile(&windows).unwrap().unstable, ["operations"]);
        assert_eq!(profile(&vec![window(0); 6]), None);
    }

    #[test]
    fn operations_are_what_there_is_of() {
        let calls = Window { durables: 0, commits: 0, ..window(500) };
        let operation = |window: Window| profile(&vec![window; 6]).map(|profile| profile.operation);
        assert_eq!(operation(calls.clone()), Some(Operation::Call));
        let mapped = Window { calls: 0, ..calls };
        assert_eq!(operation(mapped.clone()), Some(Operation::Request));
        let computes = Window { requested: BTreeMap::new(), ..mapped };
        assert_eq!(operation(computes.clone()), Some(Operation::CpuMillisecond));
        assert_eq!(operation(Window { cpu_seconds: 0.0, ..computes }), None);
    }

    #[test]
    fn intervals_are_students() {
        for (n, wanted) in [(3, 4.303), (6, 2.571), (10, 2.262), (60, 2.001)] {
            assert!((student(n) - wanted).abs() < 0.03, "{n}: {}", student(n));
        }
        let figure = Figure::of(&[1.0, 2.0, 3.0]);
        assert!((figure.mean - 2.0).abs() < 1e-12 && (figure.half - 4.303 / 3f64.sqrt()).abs() < 1e-9);
    }
}
