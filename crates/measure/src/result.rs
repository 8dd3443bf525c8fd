//! The result of an experiment: conditions, and all raw figures. This is the JSON of docs/evidence.
//!
//! Figures are named with their unit (`fsync_loaded_p99_ms`), so that tables and plots need no further schema.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of the JSON.
pub const FORMAT: u32 = 1;

/// One experiment on one disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Version of this format, [`FORMAT`].
    pub format: u32,
    /// Name as `cargo xtask evidence` takes it, for example `fsync-probe`.
    pub name: String,
    /// Question and method, in a few sentences.
    pub about: String,
    /// Whether this is the short form.
    pub quick: bool,
    /// The machine that it ran on.
    pub machine: Machine,
    /// The disk that it ran on.
    pub disk: Disk,
    /// The commands and parameters that produced the figures, in order.
    pub commands: Vec<String>,
    /// The compared cells.
    pub cells: Vec<Cell>,
    /// Notes for the reader: unsaturated loads, skipped and failed cells.
    pub notes: Vec<String>,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// `uname -r`.
    pub kernel: String,
    /// Number of processors.
    pub n_cpus: u32,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// `tcg`, `kvm`, another hypervisor, or `none`.
    pub virtualisation: String,
    /// Description of its clock, if it is not real time; empty in older results.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub clock: String,
    /// Versions of the programs that were measured or used to measure.
    pub programs: BTreeMap<String, String>,
}

/// The disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// `hdd`, `ssd`, `fast`, or the model of a real disk.
    pub model: String,
    /// Parameters of the simulated disk.
    pub parameters: String,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Scheduler, queue depth and the like as found in sysfs.
    pub queue: BTreeMap<String, String>,
}

impl Disk {
    /// Whether the kernel considers it rotational (`queue/rotational`).
    #[must_use]
    pub fn is_rotational(&self) -> bool {
        self.queue.get("rotational").is_some_and(|word| word == "1")
    }
}

/// One configuration with one neighbour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The layout of the tenants' files, for example `shared`, `own`, `own+accounting`.
    pub layout: String,
    /// The controller: `none`, `bfq`, `iocost`.
    pub controller: String,
    /// The load of the other tenant, for example `idle`, `streams`, `fsyncs`, `storm`.
    pub neighbour: String,
    /// The rounds; those of all cells were interleaved.
    pub rounds: Vec<Round>,
}

/// One round of one cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Named figures.
    pub figures: BTreeMap<String, f64>,
    /// Named raw series, for example every latency of the probe.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub series: BTreeMap<String, Vec<f64>>,
}

/// Smallest, middle and largest value over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Smallest.
    pub min: f64,
    /// Median.
    pub median: f64,
    /// Largest.
    pub max: f64,
}

impl Cell {
    /// `layout/controller/neighbour`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}/{}/{}", self.layout, self.controller, self.neighbour)
    }

    /// The spread of a figure over the rounds that have it, if any.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<Spread> {
        spread(self.rounds.iter().filter_map(|round| round.figures.get(name).copied()))
    }

    /// The mean of a figure over the rounds that have it, if any.
    #[must_use]
    pub fn mean(&self, name: &str) -> Option<f64> {
        let values: Vec<f64> = self.rounds.iter().filter_map(|round| round.figures.get(name).copied()).collect();
        #[expect(clippy::cast_precision_loss, reason = "an experiment has few rounds")]
        let n_values = values.len() as f64;
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / n_values)
    }

    /// The spread of the quotient of two figures of the same round.
    #[must_use]
    pub fn ratio(&self, above: &str, below: &str) -> Option<Spread> {
        spread(self.rounds.iter().filter_map(|round| {
            let (above, below) = (round.figures.get(above)?, round.figures.get(below)?);
            (*below > 0.0).then(|| above / below)
        }))
    }
}

impl Experiment {
    /// The cell of a configuration.
    #[must_use]
    pub fn cell(&self, layout: &str, controller: &str, neighbour: &str) -> Option<&Cell> {
        self.cells.iter().find(|c| {
            (c.layout.as_str(), c.controller.as_str(), c.neighbour.as_str()) == (layout, controller, neighbour)
        })
    }
}

/// The spread of the finite values; `None` if there are none.
pub fn spread(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    Some(Spread { min: *values.first()?, median: percentile(&values, 50.0)?, max: *values.last()? })
}

/// The value below which `percent` of the sorted values lie (nearest rank); `None` without values.
#[must_use]
pub fn percentile(sorted: &[f64], percent: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    #[expect(clippy::cast_precision_loss, reason = "a series has far fewer than 2^52 values")]
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() - 1.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the slice's range")]
    let index = rank.max(0.0) as usize;
    Some(sorted[index.min(last)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_of_the_series() {
        let series: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&series, 50.0), Some(50.0));
        assert_eq!(percentile(&series, 99.0), Some(99.0));
        assert_eq!(percentile(&series, 100.0), Some(100.0));
        assert_eq!(percentile(&[7.0], 99.0), Some(7.0));
        assert_eq!(percentile(&[], 99.0), None);
    }

    #[test]
    fn a_ratio_is_taken_within_a_round() {
        let round = |a, b| Round { figures: [("a".to_owned(), a), ("b".to_owned(), b)].into(), ..Round::default() };
        let cell = Cell {
            layout: "own".into(),
            controller: "none".into(),
            neighbour: "streams".into(),
            rounds: vec![round(10.0, 1.0), round(40.0, 2.0), round(9.0, 3.0), round(1.0, 0.0)],
        };
        assert_eq!(cell.ratio("a", "b"), Some(Spread { min: 3.0, median: 10.0, max: 20.0 }));
    }
}
