//! The doctor's rules: from facts about a host's storage to findings; what workloads achieve together
//! ([`predict`]), and where each belongs ([`place`]).
//!
//! Owns: what is judged, why it matters, where the knowledge is from, and which changes fix what; the model of a host. Does not: read a host
//! (`bulkhead_sys::facts`), define findings ([`bulkhead_core::finding`], one list for all), or make changes (`bulkhead_sys::fix`).

#![forbid(unsafe_code)]

pub mod course;
pub mod fleet;
pub mod outlook;
pub mod place;
pub mod predict;
mod rules;

use bulkhead_core::facts::Facts;
use bulkhead_core::finding::{Finding, FindingId, in_order};
use bulkhead_core::fix::Change;

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
    /// What fixes its findings.
    pub fix: Fix,
    find: fn(&Facts) -> Vec<Finding>,
}

/// What fixes a finding, besides following its advice.
#[derive(Clone, Copy, Debug)]
pub enum Fix {
    /// Changes of settings; none on hosts where that would not help.
    Changes(fn(&Facts, &Finding) -> Vec<Change>),
    /// Nothing that could be undone, for this reason.
    None(&'static str),
}

/// The changes that fix a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The finding.
    pub finding: Finding,
    /// The changes, in this order.
    pub changes: Vec<Change>,
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

/// The changes that fix findings of this host; findings that cannot be fixed by changes are left out.
#[must_use]
pub fn plan(facts: &Facts, findings: &[Finding]) -> Vec<Step> {
    let step = |finding: &Finding| {
        let changes = match rule(finding.id.word())?.fix {
            Fix::Changes(changes) => changes(facts, finding),
            Fix::None(_) => return None,
        };
        (!changes.is_empty()).then(|| Step { finding: finding.clone(), changes })
    };
    findings.iter().filter_map(step).collect()
}

#[cfg(test)]
mod tests;
