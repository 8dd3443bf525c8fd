//! The guide to all experiments, and the pages of docs/evidence.

pub(crate) mod about;
mod charts;
mod courses;
pub(crate) mod grid;
mod headline;
pub mod markdown;
mod paper;
mod share_over_time;

use bulkhead_measure::nest::summary::OPS_PER_S;
use bulkhead_measure::report::svg::{self, pictures, stem_of};
use bulkhead_measure::report::{Guide, grid as columns, headline as headlines};
use bulkhead_measure::result::Experiment;

use crate::experiments;
use crate::figure as f;

/// The guide to all experiments.
pub const GUIDE: Guide = Guide {
    about: experiments::about,
    headlines: &[
        headlines::PROBE,
        headlines::DATABASE,
        (&[f::FSYNC_A_MEAN_MS], headline::pair),
        (&[f::HELD_SHARE_A_PCT], headline::held),
        (&[f::JOURNAL_BYTES_OF_FEW], headline::costs),
        (&[f::RSS_MIB], headline::churn),
        (&[f::UNATTRIBUTED_PCT], headline::attribution),
        (&[f::RANDOM_IOPS, f::SEQUENTIAL_BYTES_PER_S], headline::overhead),
        (&[f::SECOND_CLONE_BYTES_PER_S], headline::clones),
        (&[f::IOPS], headline::disk_models),
        (&[f::READY_SECONDS], headline::launches),
        (&[f::POD_FSYNC_P99_MS], headline::pods),
        (&[f::PLAN_SECONDS], headline::plan_scale),
        (&[f::PREDICTED_A], headline::mixing),
        (&[f::PREDICTED_PER_S], headline::scaling),
        (&[OPS_PER_S], headline::nested),
    ],
    columns: &[columns::PROBE, columns::DATABASE, grid::PAIR, columns::SHARES, grid::OTHERS],
    charts: &[
        svg::SLOWDOWN,
        svg::DATABASE,
        ("latencies", charts::pair),
        ("volumes", charts::volumes),
        svg::SHARES,
        ("costs", charts::costs),
        ("charges", charts::charges),
        ("footprint", charts::footprint),
        ("held", charts::held),
        ("clones", charts::clone_reads),
        ("launches", charts::launches),
        ("pods", charts::pods),
        ("published", charts::disk_models),
    ],
    plots: &[svg::latencies, share_over_time::pictures, svg::matrices, courses::pictures],
};

/// All pictures of an experiment as files; the first one, with the main result, is named `name`.
#[must_use]
pub fn files(name: &str, experiments: &[Experiment]) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> =
        experiments.iter().flat_map(|experiment| pictures(&GUIDE, experiment)).collect();
    if let Some((stem, _)) = files.first_mut() {
        *stem = stem_of(&[name]);
    }
    let mut taken: Vec<String> = Vec::new();
    for (stem, _) in &mut files {
        let mut n = 1;
        let wanted = stem.clone();
        while taken.contains(stem) {
            n += 1;
            *stem = format!("{wanted}-{n}");
        }
        taken.push(stem.clone());
    }
    files
}
