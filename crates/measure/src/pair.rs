//! Loads of one or both tenants in one window, with the counters before and after it; and idle periods between windows.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_core::name::Name;
use bulkhead_core::slices;
use bulkhead_core::units::DevNo;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::tool::Tool;

use crate::cgroup_run::{Load, Starter, wait_until};
use crate::load::{LoadArgs, LoadResult};
use crate::sample::{Activity, Sampler};

/// Time limit for the device to become idle, and how long it must stay idle.
const CALM_LIMIT: Duration = Duration::from_secs(30);
const CALM: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(100);

/// Two tenants on one physical device, to measure.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Directory of tenant A's payload cgroup.
    pub payload_a: PathBuf,
    /// Directory of tenant B's payload cgroup.
    pub payload_b: PathBuf,
    /// The counters of both.
    pub watch: Sampler,
    /// A directory on each file system that the loads write to.
    pub file_systems: Vec<PathBuf>,
}

impl Pair {
    /// Two tenants, whose slices must exist.
    pub fn new(roots: &Roots, dev: DevNo, (a, b): (&Name, &Name), file_systems: Vec<PathBuf>) -> Self {
        let (payload_a, payload_b) = (slices::payload(a), slices::payload(b));
        Self {
            payload_a: roots.cgroup_dir(&payload_a),
            payload_b: roots.cgroup_dir(&payload_b),
            watch: Sampler::new(roots.clone(), dev, [payload_a, slices::journal(a), payload_b, slices::journal(b)]),
            file_systems,
        }
    }
}

/// The measurements of a window.
#[derive(Debug)]
pub struct Measured {
    pub a: Option<LoadResult>,
    pub b: Option<LoadResult>,
    pub activity: Activity,
}

/// A window, with additional readings right before and after it.
#[derive(Debug)]
pub struct MeasuredWith<T> {
    pub measured: Measured,
    pub around: (T, T),
}

/// Runs a load in A, in B, or in both, started together. Both have the same warm-up and window.
pub fn measure(
    starter: &Starter,
    pair: &Pair,
    a: Option<&LoadArgs>,
    b: Option<&LoadArgs>,
    seconds: (f64, f64),
) -> Result<Measured> {
    Ok(measure_with(starter, pair, a, b, seconds, || Ok(()))?.measured)
}

/// As [`measure`], with additional readings around the window.
pub fn measure_with<T>(
    starter: &Starter,
    pair: &Pair,
    a: Option<&LoadArgs>,
    b: Option<&LoadArgs>,
    seconds: (f64, f64),
    read: impl Fn() -> Result<T>,
) -> Result<MeasuredWith<T>> {
    let (warm_up_seconds, window_seconds) = seconds;
    let timed = |args: &LoadArgs| LoadArgs { warm_up_seconds, seconds: window_seconds, ..args.clone() };
    let start = |args: Option<&LoadArgs>, cgroup: &Path| -> Result<Option<Load>> {
        args.map(|args| starter.load(&timed(args), cgroup)).transpose()
    };
    let mut a = start(a, &pair.payload_a)?;
    let mut b = start(b, &pair.payload_b)?;
    for load in [&a, &b].into_iter().flatten() {
        load.await_prepared()?;
    }
    for load in [&mut a, &mut b].into_iter().flatten() {
        load.begin()?;
    }
    for load in [&a, &b].into_iter().flatten() {
        load.await_window(Duration::from_secs_f64(warm_up_seconds))?;
    }
    let (other_before, before) = (read()?, pair.watch.snapshot()?);
    wait_until(Instant::now() + Duration::from_secs_f64(window_seconds), &starter.cancel)?;
    let activity = before.until(&pair.watch.snapshot()?);
    let other_after = read()?;
    // A first, so that its last operation, which may still be in progress, has its neighbour to the end.
    let a = a.map(Load::finish).transpose()?;
    let b = b.map(Load::finish).transpose()?;
    calm(starter, pair)?;
    Ok(MeasuredWith { measured: Measured { a, b, activity }, around: (other_before, other_after) })
}

/// Writes out dirty data, and waits until the device has been idle for a while.
pub fn calm(starter: &Starter, pair: &Pair) -> Result<()> {
    for dir in &pair.file_systems {
        Tool::new("sync")
            .arg("-f")
            .arg(dir)
            .limit(Duration::from_secs(300))
            .run()
            .context("cannot write out what is dirty")?;
    }
    let (start, mut since) = (Instant::now(), None);
    while start.elapsed() < CALM_LIMIT {
        let idle = pair.watch.in_flight()? == 0;
        since = if idle { since.or(Some(Instant::now())) } else { None };
        if since.is_some_and(|since: Instant| since.elapsed() >= CALM) {
            break;
        }
        wait_until(Instant::now() + POLL, &starter.cancel)?;
    }
    Ok(())
}
