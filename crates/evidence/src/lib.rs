//! The evidence of docs/evidence: experiments, what is judged of their results, and the pages about them. Not shipped.
//!
//! Owns: the table of experiments, those that `bulkhead demo` does not have, the judge's thresholds, and the pages.
//! Does not: boot machines (`lab`), or own loads, layouts, results and the reports' machinery (`measure`).

#![forbid(unsafe_code)]

mod additions;
mod calls;
mod clones;
mod estimate;
mod experiment;
pub mod experiments;
mod figure;
pub mod judge;
mod raw;
pub mod report;
mod served;
mod shapley;
