//! Reports of experiments: a table for the terminal, pictures, and a page of HTML.
//!
//! Owns: content and appearance of reports, and the [`Guide`] to the demo's experiments. All statements about success or failure are computed from
//! the figures. Does not: measure, run anything, write files, or judge.

pub mod about;
pub mod figure;
pub mod grid;
pub mod headline;
pub mod html;
pub mod labels;
pub mod nested;
pub mod paper;
pub mod svg;
pub mod table;
pub mod text;

use about::About;

use crate::experiment::{dbms_consolidation, fsync_probe};

/// The elements of reports. The figures and the name of an experiment decide which of them are shown.
#[derive(Clone, Copy, Debug)]
pub struct Guide {
    /// The text about an experiment by name; empty for an unknown one.
    pub about: fn(&str) -> About,
    /// The first match is used.
    pub headlines: &'static [headline::Rule],
    /// From left to right; columns without figures are omitted.
    pub columns: &'static [&'static [grid::Column]],
    /// Bars, in their order.
    pub charts: &'static [svg::Kind],
    /// Lines, after the bars.
    pub plots: &'static [svg::Plots],
}

/// The guide to the demo's experiments.
pub const DEMO: Guide = Guide {
    about,
    headlines: &[headline::PROBE, headline::DATABASE],
    columns: &[grid::PROBE, grid::DATABASE, grid::SHARES],
    charts: &[svg::SLOWDOWN, svg::DATABASE, svg::SHARES],
    plots: &[svg::latencies],
};

fn about(name: &str) -> About {
    match name {
        _ if name == fsync_probe::METHOD.name => about::FSYNC_PROBE,
        _ if name == dbms_consolidation::METHOD.name => about::DBMS_CONSOLIDATION,
        _ => About::default(),
    }
}
