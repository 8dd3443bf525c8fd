//! What limits an observation, as findings.

use super::Totals;
use super::view::{LossView, Observation};
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

impl Observation {
    /// All that limits the figures: what cannot be observed here, and what was lost.
    #[must_use]
    pub fn limits(&self) -> Vec<Finding> {
        let lost = self.losses.finding().filter(|_| self.partial);
        self.findings.iter().cloned().chain(lost).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_limits_the_figures() {
        let xfs = finding(FindingId::XfsNotObserved, "no such tracepoint");
        let mut seen = Observation { findings: vec![xfs.clone()], ..Observation::default() };
        assert_eq!(seen.limits(), std::slice::from_ref(&xfs));
        let mut totals = Totals { unseen_commits: 2, ..Totals::default() };
        totals.losses.requests = 7;
        (seen.losses, seen.partial) = (losses(&totals), true);
        let partial = finding(
            FindingId::ObservationPartial,
            "the figures are partial since the observation began; lost: 7 requests (device time), 2 commits",
        );
        assert_eq!(seen.limits(), [xfs, partial]);
        assert_eq!(losses(&Totals::default()).finding(), None);
    }
}
