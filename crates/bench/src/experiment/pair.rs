//! Loads of one or both tenants over one window, with the counters before and after it; and the calm between windows.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_sys::tool::Tool;

use crate::cgroup_run::{Load, Starter, wait_until};
use crate::layout::Bench;
use crate::load::{LoadArgs, LoadResult};
use crate::sample::{Activity, Watch};

/// How long the device is waited for to become calm, and how long calm lasts to count.
const CALM_LIMIT: Duration = Duration::from_secs(30);
const CALM: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(100);

/// What a window showed.
pub(super) struct Measured {
    pub(super) a: Option<LoadResult>,
    pub(super) b: Option<LoadResult>,
    pub(super) activity: Activity,
}

/// A window with something else read right before and after it.
pub(super) struct MeasuredWith<T> {
    pub(super) measured: Measured,
    pub(super) around: (T, T),
}

/// Runs a load in A, in B, or in both, started together. Both have the same warm-up and window.
pub(super) fn measure(
    starter: &Starter,
    bench: &Bench,
    a: Option<&LoadArgs>,
    b: Option<&LoadArgs>,
    seconds: (f64, f64),
) -> Result<Measured> {
    Ok(measure_with(starter, bench, a, b, seconds, || Ok(()))?.measured)
}

/// [`measure`], and reads something else around the window.
pub(super) fn measure_with<T>(
    starter: &Starter,
    bench: &Bench,
    a: Option<&LoadArgs>,
    b: Option<&LoadArgs>,
    seconds: (f64, f64),
    read: impl Fn() -> Result<T>,
) -> Result<MeasuredWith<T>> {
    let (warm_up_seconds, window_seconds) = seconds;
    let timed = |args: &LoadArgs| LoadArgs { warm_up_seconds, seconds: window_seconds, ..args.clone() };
    let watch = bench.watch()?;
    let start = |args: Option<&LoadArgs>, cgroup: &Path| -> Result<Option<Load>> {
        args.map(|args| starter.load(&timed(args), cgroup)).transpose()
    };
    let mut a = start(a, &bench.payload_a()?)?;
    let mut b = start(b, &bench.payload_b()?)?;
    for load in [&a, &b].into_iter().flatten() {
        load.await_prepared()?;
    }
    for load in [&mut a, &mut b].into_iter().flatten() {
        load.begin()?;
    }
    for load in [&a, &b].into_iter().flatten() {
        load.await_window(Duration::from_secs_f64(warm_up_seconds))?;
    }
    let (other_before, before) = (read()?, watch.snapshot()?);
    wait_until(Instant::now() + Duration::from_secs_f64(window_seconds), &starter.cancel)?;
    let activity = before.until(&watch.snapshot()?);
    let other_after = read()?;
    // A first: its last operation, which may still be under way, keeps its neighbour to the end.
    let a = a.map(Load::finish).transpose()?;
    let b = b.map(Load::finish).transpose()?;
    calm(starter, bench, &watch)?;
    Ok(MeasuredWith { measured: Measured { a, b, activity }, around: (other_before, other_after) })
}

/// Writes out what is dirty and waits until the device has had nothing to do for a while.
pub(super) fn calm(starter: &Starter, bench: &Bench, watch: &Watch) -> Result<()> {
    for dir in [
        &bench.places(crate::layout::Layout::Shared).a,
        &bench.places(crate::layout::Layout::Own).a,
        &bench.places(crate::layout::Layout::Own).b,
    ] {
        Tool::new("sync")
            .arg("-f")
            .arg(dir)
            .limit(Duration::from_secs(300))
            .run()
            .context("cannot write out what is dirty")?;
    }
    let (start, mut since) = (Instant::now(), None);
    while start.elapsed() < CALM_LIMIT {
        let idle = watch.in_flight()? == 0;
        since = if idle { since.or(Some(Instant::now())) } else { None };
        if since.is_some_and(|since: Instant| since.elapsed() >= CALM) {
            break;
        }
        wait_until(Instant::now() + LOOK, &starter.cancel)?;
    }
    Ok(())
}
