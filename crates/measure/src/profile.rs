//! What a running container demands of its host, watched from outside: the demand from which `bulkhead plan` predicts.
//!
//! Owns: the watching: windows of equal length, until their figures are stable. [`watch`] reads the kernel, [`demand`] computes. Does not:
//! touch the container, or find it by name.

mod demand;
mod watch;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_sys::roots::Roots;

use self::demand::Window;
pub use self::demand::{Figure, Operation, Profile};
use self::watch::Watcher;
use crate::cgroup_run::{Cancel, wait_until};

/// Length of a window.
const WINDOW: Duration = Duration::from_secs(5);
/// Mean time between two samples of the states of threads. They are not equally far apart: a load of that period would be met at the same point
/// each time.
const SAMPLE: Duration = Duration::from_millis(100);
/// Fractional parts of its multiples are spread evenly: the golden ratio.
const SPREAD: f64 = 0.618_033_988_75;
/// Fewest windows: the interval of fewer says little.
const MIN_WINDOWS: usize = 6;

/// What is to be profiled.
#[derive(Clone, Debug)]
pub struct Request {
    /// The container's cgroup; those below belong to it.
    pub cgroup: CgroupPath,
    /// Longest time; less if the figures are stable before.
    pub limit: Duration,
    /// Cancels it.
    pub cancel: Cancel,
}

/// Watches a container until its figures are stable, but for no longer than the limit and at least for half a minute. `on_window` is called
/// after each window with the seconds so far.
///
/// # Errors
/// If the kernel refuses the programs, the cgroup does not exist or ends meanwhile, it was idle, or it is cancelled.
pub fn run(request: &Request, on_window: &mut dyn FnMut(u64)) -> Result<Profile> {
    let roots = Roots::host();
    let mut watcher = Watcher::start(&roots, &request.cgroup)?;
    let mut windows: Vec<Window> = Vec::new();
    let begin = Instant::now();
    let n_most = usize::try_from(request.limit.as_secs() / WINDOW.as_secs())?.max(MIN_WINDOWS);
    while windows.len() < n_most {
        let end = begin + WINDOW * u32::try_from(windows.len() + 1)?;
        windows.push(window(&mut watcher, end, &request.cancel)?);
        on_window(begin.elapsed().as_secs());
        if windows.len() >= MIN_WINDOWS && demand::profile(&windows).is_some_and(|profile| profile.unstable.is_empty())
        {
            break;
        }
    }
    let Some(mut profile) = demand::profile(&windows) else {
        bail!("{}: it was idle: it used neither processor nor device", request.cgroup);
    };
    if !watcher.sees_calls() {
        profile.notes.push(
            "fsyncs are seen on ext4 alone: the kernel has no tracepoints of system calls, or tracefs is not mounted",
        );
    }
    Ok(profile)
}

fn window(watcher: &mut Watcher, end: Instant, cancel: &Cancel) -> Result<Window> {
    watcher.begin()?;
    let (mut next, mut part) = (Instant::now(), 0.0f64);
    while next < end {
        watcher.sample();
        part = (part + SPREAD).fract();
        next += SAMPLE.mul_f64(0.5 + part);
        wait_until(next.min(end), cancel)?;
    }
    watcher.end().context("the container cannot be watched")
}
