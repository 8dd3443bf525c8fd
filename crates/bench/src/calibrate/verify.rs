//! `bulkhead device calibrate --verify`: what the stored calibration does, by the probe of TARGETS.md beside its three neighbours.

use anyhow::{Context, Result};
use bulkhead_core::model::{Calibration, QueueSettings};
use bulkhead_engine::client::Client;
use serde::Serialize;

use super::scratch::Scratch;
use super::{OnStep, Request, Told, queue, supported};
use crate::cgroup_run::Starter;
use crate::cleanup::with_removal;
use crate::experiment::fsync_probe::{NEIGHBOURS, beside};
use crate::judge::{fair_part_pct, probe_bounds};
use crate::report::figure as f;
use crate::report::words;
use crate::result::Cell;

/// What a small append + fsync every 100 ms has to bear beside a neighbour, both on volumes of their own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verified {
    /// The neighbour, in words.
    pub neighbour: String,
    /// Mean fsync latency, as a multiple of that alone; and the most that it should be.
    pub mean_ratio: f64,
    /// See `mean_ratio`.
    pub mean_ratio_limit: f64,
    /// The same of the 99th percentile.
    pub p99_ratio: f64,
    /// See `p99_ratio`.
    pub p99_ratio_limit: f64,
    /// What the neighbour got through, percent of what the small load leaves it; and the least that it should be.
    pub neighbour_pct: f64,
    /// See `neighbour_pct`.
    pub neighbour_pct_limit: f64,
}

impl Verified {
    /// Whether all three are as they should be.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.mean_ratio <= self.mean_ratio_limit
            && self.p99_ratio <= self.p99_ratio_limit
            && self.neighbour_pct >= self.neighbour_pct_limit
    }
}

/// Puts a calibration in force on scratch volumes, and measures; takes three minutes. Everything made on the way is removed, and what
/// was in force is put back.
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
    on_step(Told::Step(0, NEIGHBOURS.len() + 1, "setting up volumes and tenants"));
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
    let mut all = Vec::new();
    for (index, (neighbour, kind)) in NEIGHBOURS.into_iter().enumerate() {
        starter.cancel.check()?;
        on_step(Told::Step(index + 1, NEIGHBOURS.len() + 1, &format!("beside {}", words::neighbour(neighbour))));
        // Anew each time, so that debts and vrate of the neighbour before do not reach into this one.
        queue::set(&scratch.roots, scratch.dev, &settings).context("cannot put the calibration in force")?;
        let round = beside(&starter, &scratch.pair, &scratch.places, scratch.volume, kind, false)?;
        let cell = Cell {
            layout: String::new(),
            controller: String::new(),
            neighbour: neighbour.to_owned(),
            rounds: vec![round],
        };
        let middle = |above, below| cell.ratio(above, below).map(|spread| spread.median);
        let [mean_ratio_limit, p99_ratio_limit, neighbour_pct_limit] =
            probe_bounds(neighbour).context("nothing is asked beside this neighbour")?;
        all.push(Verified {
            neighbour: words::neighbour(neighbour).to_owned(),
            mean_ratio: middle(f::FSYNC_LOADED_MEAN_MS, f::FSYNC_IDLE_MEAN_MS).context("the small load did nothing")?,
            mean_ratio_limit,
            p99_ratio: middle(f::FSYNC_LOADED_P99_MS, f::FSYNC_IDLE_P99_MS).context("the small load did nothing")?,
            p99_ratio_limit,
            neighbour_pct: fair_part_pct(&cell).context("the neighbour did nothing")?.median,
            neighbour_pct_limit,
        });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_have_to_be_met() {
        let met = Verified {
            neighbour: "8 buffered writers".to_owned(),
            mean_ratio: 1.5,
            mean_ratio_limit: 1.5,
            p99_ratio: 2.0,
            p99_ratio_limit: 3.0,
            neighbour_pct: 90.0,
            neighbour_pct_limit: 90.0,
        };
        assert!(met.is_met());
        assert!(!Verified { mean_ratio: 1.6, ..met.clone() }.is_met());
        assert!(!Verified { p99_ratio: 3.1, ..met.clone() }.is_met());
        assert!(!Verified { neighbour_pct: 89.0, ..met }.is_met());
    }

    #[test]
    fn every_neighbour_of_the_probe_has_its_limits() {
        assert!(NEIGHBOURS.iter().all(|(name, _)| probe_bounds(name).is_some()));
    }
}
