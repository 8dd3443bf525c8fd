//! The doctor's rules: from facts about a host's storage to findings.
//!
//! Owns: what is judged, why it matters, and where the knowledge is from. Does not: read a host (`bulkhead_sys::facts`), define findings
//! ([`bulkhead_core::finding`], one list for all), or change anything.

#![forbid(unsafe_code)]

mod rules;

use bulkhead_core::facts::Facts;
use bulkhead_core::finding::{Finding, FindingId, in_order};

pub use self::rules::rules;

/// A rule: when a finding holds for a host, and why it matters.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The kind of its findings, which also has their severity and meaning.
    pub id: FindingId,
    /// Why it matters.
    pub why: &'static str,
    /// A figure that this project has measured, and the section of docs/EVIDENCE.md with it; `None` if it has not been measured here.
    pub measured: Option<Measured>,
    /// Where the knowledge is from: documentation, or a symbol of the kernel.
    pub source: &'static str,
    find: fn(&Facts) -> Vec<Finding>,
}

/// A figure of this project's own.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// The figure, in a sentence.
    pub figure: &'static str,
    /// The section of docs/EVIDENCE.md.
    pub section: &'static str,
}

impl Rule {
    /// Its findings on a host.
    #[must_use]
    pub fn findings(&self, facts: &Facts) -> Vec<Finding> {
        (self.find)(facts)
    }
}

/// The rule of a finding's id.
#[must_use]
pub fn rule(id: &str) -> Option<&'static Rule> {
    rules().find(|rule| rule.id.word() == id)
}

/// The findings of all rules, most severe first.
#[must_use]
pub fn judge(facts: &Facts) -> Vec<Finding> {
    in_order(rules().flat_map(|rule| rule.findings(facts)).collect())
}

#[cfg(test)]
mod tests;
