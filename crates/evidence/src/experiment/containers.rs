//! The slice of experiments that make containers of their own, without volumes.
//!
//! Owns: the slice, from what an earlier run left to its removal. Does not: make the containers in it.

use anyhow::{Context, Result};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_measure::cleanup::{lock, with_removal};
use bulkhead_measure::experiment::{Frame, OnProgress, Options};
use bulkhead_measure::result::Experiment;
use bulkhead_sys::cgroup;
use bulkhead_sys::roots::Roots;

/// The cgroup of all containers.
const SLICE: &str = "bulkhead-bench.slice";

/// Runs an experiment in the slice, and removes the slice with the containers that are left in it.
pub(super) fn in_slice(
    (name, about): (&str, &str),
    options: &Options,
    progress: OnProgress<'_>,
    work: impl FnOnce(&mut Frame<'_, '_>, &Roots, &CgroupPath) -> Result<()>,
) -> Result<Experiment> {
    let mut frame = Frame::new(name, about, options, progress);
    let _lock = lock()?;
    let roots = Roots::host();
    let slice: CgroupPath = SLICE.parse()?;
    // A killed run may have left it.
    cgroup::remove_tree(&roots, &slice).context("the cgroup of an earlier run")?;
    let worked = work(&mut frame, &roots, &slice);
    with_removal(worked, cgroup::remove_tree(&roots, &slice).map(drop).context("the containers' cgroups"))?;
    frame.write()?;
    Ok(frame.experiment)
}
