//! What limits an observation, as findings.

use super::Totals;
use super::activity::LossView;
use crate::error::Fault;
use crate::finding::{Finding, FindingId};

/// What these findings are about.
const OBJECT: &str = "observation";

/// A finding about the observation.
#[must_use]
pub fn finding(id: FindingId, evidence: impl std::fmt::Display) -> Finding {
    Finding::new(id, OBJECT, evidence)
}

/// Why there is no observation.
#[must_use]
pub fn not_observed(fault: Fault) -> Finding {
    Finding::of_fault(FindingId::NotObserved, fault)
}

/// What was lost since the sums began.
#[must_use]
pub fn losses(totals: &Totals) -> LossView {
    let losses = totals.losses;
    LossView {
        records: losses.records,
        owners: losses.owners,
        counts: losses.counts,
        requests: losses.requests,
        unseen_commits: totals.unseen_commits,
    }
}

impl LossView {
    /// Whether anything was lost.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// What that means for the figures; `None` when nothing was lost.
    #[must_use]
    pub fn finding(&self) -> Option<Finding> {
        let lost = [
            (self.records, "records (waits and journal)"),
            (self.counts, "counts (journal)"),
            (self.requests, "requests (device time)"),
            (self.unseen_commits, "commits"),
            (self.owners, "owners of what others wrote"),
        ];
        let lost: Vec<String> =
            lost.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        self.any().then(|| {
            let evidence = format!("the figures are partial since the observation began; lost: {}", lost.join(", "));
            finding(FindingId::ObservationPartial, evidence)
        })
    }
}
