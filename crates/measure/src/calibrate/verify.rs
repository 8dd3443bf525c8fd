//! `bulkhead device calibrate --verify`: measures the effect of the stored calibration with the experiment `fsync-probe`, next to its three
//! neighbours.

use anyhow::{Context, Result};
use bulkhead_api::client::Client;
use bulkhead_core::isolation::Verified;
use bulkhead_core::model::{Calibration, QueueSettings};
use bulkhead_sys::block;

use super::scratch::Scratch;
use super::{Event, OnStep, Request, queue, supported};
use crate::cgroup_run::Starter;
use crate::cleanup::with_removal;
use crate::experiment::fsync_probe::{NEIGHBOURS, beside};
use crate::isolation::{fair_part_pct, limits};
use crate::report::figure as f;
use crate::report::labels;
use crate::result::Cell;

/// Enables a calibration and measures on scratch volumes; takes three minutes. The set-up is removed, and the previous settings are restored.
///
/// # Errors
/// As [`super::run`].
pub fn verify(
    client: Client,
    request: &Request,
    calibration: &Calibration,
    on_step: OnStep<'_>,
) -> Result<Vec<Verified>> {
    supported(&request.device)?;
    on_step(Event::Step(0, NEIGHBOURS.len() + 1, "setting up volumes and tenants"));
    let scratch = Scratch::set_up(client, &request.device, request.pool.as_ref())?;
    let verified = measure(&scratch, request, calibration, on_step);
    with_removal(verified, scratch.remove())
}

fn measure(
    scratch: &Scratch,
    request: &Request,
    calibration: &Calibration,
    on_step: OnStep<'_>,
) -> Result<Vec<Verified>> {
    let settings = QueueSettings {
        scheduler: String::new(),
        cost_model: Some(calibration.model.clone()),
        cost_qos: Some(calibration.qos.clone()),
    };
    let starter = Starter { program: request.program.clone(), cancel: request.cancel.clone() };
    let has_arm = block::inspect(&scratch.roots, scratch.dev).context("cannot inspect the device")?.rotational;
    let mut all = Vec::new();
    for (index, (neighbour, kind)) in NEIGHBOURS.into_iter().enumerate() {
        starter.cancel.check()?;
        on_step(Event::Step(index + 1, NEIGHBOURS.len() + 1, &format!("beside {}", labels::neighbour(neighbour))));
        // Enabled again each time, so that debts and vrate of the previous neighbour do not affect this one.
        queue::set(&scratch.roots, scratch.dev, &settings).context("cannot enable the calibration")?;
        let round = beside(&starter, &scratch.pair, &scratch.places, scratch.volume, kind, false)?;
        let cell = Cell {
            layout: String::new(),
            controller: String::new(),
            neighbour: neighbour.to_owned(),
            rounds: vec![round],
        };
        let middle = |above, below| cell.ratio(above, below).map(|spread| spread.median);
        let limits = limits(neighbour).context("nothing is asked beside this neighbour")?;
        all.push(Verified {
            neighbour: labels::neighbour(neighbour).to_owned(),
            mean_ratio: middle(f::FSYNC_LOADED_MEAN_MS, f::FSYNC_IDLE_MEAN_MS).context("the small load did nothing")?,
            mean_ratio_limit: limits.mean_on(has_arm),
            p99_ratio: middle(f::FSYNC_LOADED_P99_MS, f::FSYNC_IDLE_P99_MS).context("the small load did nothing")?,
            p99_ratio_limit: limits.p99,
            neighbour_pct: fair_part_pct(&cell).context("the neighbour did nothing")?.median,
            neighbour_pct_limit: limits.neighbour_pct,
        });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_neighbour_of_the_probe_has_its_limits() {
        for (name, _) in NEIGHBOURS {
            let limits = limits(name).unwrap();
            assert!(limits.mean_on(false) < limits.mean_on(true), "{name}: {limits:?}");
        }
    }
}
