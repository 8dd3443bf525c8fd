//! Reports of experiments: a table for the terminal, pictures, a page of HTML and the Markdown of docs/evidence.
//!
//! Owns: what a reader is told and how it looks. All words about success or failure are computed from the figures.
//! Does not: measure, run anything, write files, or know thresholds (those are in [`crate::judge`]).

pub mod about;
pub mod figure;
pub(crate) mod grid;
pub(crate) mod headline;
pub mod html;
pub mod markdown;
pub(crate) mod paper;
pub mod svg;
pub mod table;
pub(crate) mod text;
pub(crate) mod words;
