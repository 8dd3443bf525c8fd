//! Lasting conditions, set and cleared by the code that notices them: the start is logged once, and the condition is a finding until it is cleared.
//!
//! Problems that checks of objects find are in [`crate::problems`], or are determined on request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bulkhead_core::finding::{Finding, FindingId, Severity};

/// A lasting condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) finding: Finding,
    /// The image concerned, where the code that notices it does not know the volume.
    pub(crate) image: Option<PathBuf>,
}

/// The present conditions, by id and object.
#[derive(Debug, Default)]
pub struct Conditions(Mutex<BTreeMap<(FindingId, String), Condition>>);

impl Conditions {
    /// Sets a condition; a new one is logged.
    pub fn set(&self, finding: Finding) {
        self.note(Condition { finding, image: None });
    }

    /// The same for the volume with this image.
    pub(crate) fn set_for_image(&self, image: &Path, finding: Finding) {
        self.note(Condition { finding, image: Some(image.to_owned()) });
    }

    fn note(&self, condition: Condition) {
        let Finding { id, object, .. } = &condition.finding;
        let before = self.lock().insert((id.clone(), object.clone()), condition.clone());
        if before.as_ref() != Some(&condition) {
            log(&condition.finding);
        }
    }

    /// Clears a condition, if it is set.
    pub fn clear(&self, id: FindingId, object: &str) {
        self.lock().remove(&(id, object.to_owned()));
    }

    /// Keeps only those conditions with this id that are about these images.
    pub(crate) fn keep_for_images(&self, id: &FindingId, is_kept: impl Fn(&Path) -> bool) {
        self.lock().retain(|(of, _), condition| of != id || condition.image.as_deref().is_some_and(&is_kept));
    }

    /// Sets a condition, or clears it.
    pub(crate) fn set_or_clear(&self, id: FindingId, object: &str, now: Option<Finding>) {
        match now {
            Some(finding) => self.set(finding),
            None => self.clear(id, object),
        }
    }

    pub(crate) fn all(&self) -> Vec<Condition> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(FindingId, String), Condition>> {
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
    fn a_condition_is_listed_once_until_it_is_cleared() {
        let finding = |object: &str, evidence: &str| Finding::new(FindingId::ServerGone, object, evidence);
        let conditions = Conditions::default();
        let all = || -> Vec<Finding> { conditions.all().into_iter().map(|condition| condition.finding).collect() };
        conditions.set(finding("volume p/a", "no memory"));
        conditions.set(finding("volume p/a", "no disk"));
        conditions.set(finding("volume p/b", "no memory"));
        assert_eq!(all(), [finding("volume p/a", "no disk"), finding("volume p/b", "no memory")]);
        conditions.set_or_clear(FindingId::ServerGone, "volume p/b", None);
        conditions.clear(FindingId::LayersMany, "volume p/a");
        assert_eq!(all(), [finding("volume p/a", "no disk")]);
    }

    #[test]
    fn conditions_of_images_are_kept_by_name() {
        let conditions = Conditions::default();
        let images = || -> Vec<PathBuf> { conditions.all().into_iter().filter_map(|found| found.image).collect() };
        for image in ["/srv/a.img", "/srv/b.img"] {
            conditions.set_for_image(Path::new(image), Finding::new(FindingId::ServerGone, image, "no memory"));
        }
        conditions.keep_for_images(&FindingId::LayersMany, |_| false);
        assert_eq!(images().len(), 2);
        conditions.keep_for_images(&FindingId::ServerGone, |image| image != Path::new("/srv/a.img"));
        assert_eq!(images(), [PathBuf::from("/srv/b.img")]);
    }
}
