//! What lasts, as whoever notices it says: the begin is logged once, and it is a finding until the end is noticed.
//!
//! What a look at an object finds is in [`crate::problems`], or is worked out again for each question.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bulkhead_core::finding::{Finding, FindingId, Severity};

/// The conditions that last now, by id and object.
#[derive(Debug, Default)]
pub struct Conditions(Mutex<BTreeMap<(FindingId, String), Finding>>);

impl Conditions {
    /// It is so, from now on or still; what was not known yet is logged.
    pub fn set(&self, finding: Finding) {
        let key = (finding.id.clone(), finding.object.clone());
        let before = self.lock().insert(key, finding.clone());
        if before.as_ref() != Some(&finding) {
            log(&finding);
        }
    }

    /// It is so no longer, if it ever was.
    pub fn clear(&self, id: FindingId, object: &str) {
        self.lock().remove(&(id, object.to_owned()));
    }

    /// Of these ids, only those about these objects are left.
    pub(crate) fn keep(&self, id: &FindingId, is_kept: impl Fn(&str) -> bool) {
        self.lock().retain(|(of, object), _| of != id || is_kept(object));
    }

    /// It is so, or it is not.
    pub(crate) fn is(&self, id: FindingId, object: &str, now: Option<Finding>) {
        match now {
            Some(finding) => self.set(finding),
            None => self.clear(id, object),
        }
    }

    pub(crate) fn all(&self) -> Vec<Finding> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(FindingId, String), Finding>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a finding to the log, at the level of its severity.
pub(crate) fn log(finding: &Finding) {
    let Finding { id, object, evidence, advice, reason, .. } = finding;
    let advice = advice.as_deref().unwrap_or_default();
    let reason = reason.as_deref().map(tracing::field::debug);
    match finding.severity {
        Severity::Critical => tracing::error!(%id, object, evidence, advice, reason, "finding"),
        Severity::Warning => tracing::warn!(%id, object, evidence, advice, reason, "finding"),
        Severity::Info => tracing::info!(%id, object, evidence, advice, reason, "finding"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_lasts_until_it_is_over_and_is_there_once() {
        let finding = |object: &str, evidence: &str| Finding::new(FindingId::ServerGone, object, evidence);
        let conditions = Conditions::default();
        conditions.set(finding("volume p/a", "no memory"));
        conditions.set(finding("volume p/a", "no disk"));
        conditions.set(finding("volume p/b", "no memory"));
        assert_eq!(conditions.all(), [finding("volume p/a", "no disk"), finding("volume p/b", "no memory")]);
        conditions.is(FindingId::ServerGone, "volume p/b", None);
        conditions.clear(FindingId::LayersMany, "volume p/a");
        assert_eq!(conditions.all(), [finding("volume p/a", "no disk")]);
        conditions.keep(&FindingId::LayersMany, |_| false);
        assert_eq!(conditions.all().len(), 1);
        conditions.keep(&FindingId::ServerGone, |object| object != "volume p/a");
        assert_eq!(conditions.all(), []);
    }
}
