//! The slice of experiments with their own containers, without volumes.
//!
//! Owns: the slice, including leftovers of an earlier run. Does not: create the containers in it.

use anyhow::{Context, Result};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_measure::cleanup::{lock, with_removal};
use bulkhead_measure::experiment::{Frame, OnProgress, Options};
use bulkhead_measure::result::Experiment;
use bulkhead_sys::cgroup;
use bulkhead_sys::roots::Roots;

/// The parent cgroup of all containers.
const SLICE: &str = "bulkhead-bench.slice";

/// Runs an experiment in the slice, and removes the slice with remaining containers.
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
    // It may be left from a killed run.
    cgroup::remove_tree(&roots, &slice).context("the cgroup of an earlier run")?;
    let worked = work(&mut frame, &roots, &slice);
    with_removal(worked, cgroup::remove_tree(&roots, &slice).map(drop).context("the containers' cgroups"))?;
    frame.write()?;
    Ok(frame.experiment)
}
