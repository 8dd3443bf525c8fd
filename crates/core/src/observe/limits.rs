//! Findings about the limits of an observation.

use super::Totals;
use super::activity::LossView;
use crate::error::Fault;
use crate::finding::{Finding, FindingId};

/// The object of these findings.
const OBJECT: &str = "observation";

/// A finding about the observation.
#[must_use]
pub fn finding(id: FindingId, evidence: impl std::fmt::Display) -> Finding {
    Finding::new(id, OBJECT, evidence)
}

/// The finding that there is no observation.
#[must_use]
pub fn not_observed(fault: Fault) -> Finding {
    Finding::from_fault(FindingId::NotObserved, fault)
}

/// Events lost since the sums began.
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

    /// The finding about lost events; `None` if nothing was lost.
    #[must_use]
    pub fn finding(&self) -> Option<Finding> {
        let lost = [
            (self.records, "records (waits and journal)"),
            (self.counts, "counts (journal)"),
            (self.requests, "requests (device time)"),
            (self.unseen_commits, "commits"),
            (self.owners, "owners of blocks (their bytes are unattributed)"),
        ];
        let lost: Vec<String> =
            lost.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        self.any().then(|| {
            let evidence = format!("the figures are incomplete; lost since the observation began: {}", lost.join(", "));
            finding(FindingId::ObservationPartial, evidence)
        })
    }
}
