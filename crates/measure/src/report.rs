//! Reports of experiments: a table for the terminal, pictures, and a page of HTML.
//!
//! Owns: what a reader learns and how it looks, and the [`Guide`] to what the demo measures. All words about success or failure are
//! computed from the figures. Does not: measure, run anything, write files, or judge.

pub mod about;
pub mod figure;
pub mod grid;
pub mod headline;
pub mod html;
pub mod paper;
pub mod svg;
pub mod table;
pub mod text;
pub mod words;

use about::About;

use crate::experiment::{dbms_consolidation, fsync_probe};

/// What reports can say and show. What an experiment has decides what is shown of it: its figures, and its name.
#[derive(Clone, Copy, Debug)]
pub struct Guide {
    /// What is said of the experiment with a name; nothing of one that is unknown.
    pub about: fn(&str) -> About,
    /// The first that fits is taken.
    pub headlines: &'static [headline::Rule],
    /// From left to right; those without a figure are omitted.
    pub columns: &'static [&'static [grid::Column]],
    /// Bars, in their order.
    pub charts: &'static [svg::Kind],
    /// Lines, after the bars.
    pub plots: &'static [svg::Plots],
}

/// The guide to what the demo measures.
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
