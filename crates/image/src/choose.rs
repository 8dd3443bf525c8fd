//! Selection of one image among those that match `--reference`: the best match for the platform, unless images with different names match it.

use std::collections::{BTreeMap, BTreeSet};

use crate::StageOptions;
use crate::error::{ImageError, shown};
use crate::platform::Platform;

/// Limit of images that an error lists.
const LISTED: usize = 20;

/// An image that could be selected.
pub(crate) struct Candidate<T> {
    /// A digest, because an image can have several names.
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    pub(crate) platform: Platform,
    pub(crate) image: T,
}

/// The images found so far.
pub(crate) struct Candidates<T> {
    candidates: Vec<Candidate<T>>,
    /// Platforms of images that do not run on the selected one.
    others: BTreeSet<String>,
    /// The first missing document of an image that could be selected.
    missing: Option<String>,
}

impl<T> Candidates<T> {
    pub(crate) fn new() -> Self {
        Self { candidates: Vec::new(), others: BTreeSet::new(), missing: None }
    }

    /// Adds an image.
    pub(crate) fn add(&mut self, candidate: Candidate<T>, options: &StageOptions) {
        match options.platform.rank(&candidate.platform) {
            _ if candidate.platform.is_unknown() => {}
            Some(_) => self.candidates.push(candidate),
            None => self.add_other_platform(&candidate.platform),
        }
    }

    /// Notes an image for another platform.
    pub(crate) fn add_other_platform(&mut self, platform: &Platform) {
        self.others.insert(shown(platform.to_string().as_bytes()));
    }

    /// Notes a missing document.
    pub(crate) fn add_missing(&mut self, what: String) {
        self.missing.get_or_insert(what);
    }

    /// Selects an image. Another architecture that the processor can run (386 on amd64) is considered only if there is no image for its own.
    /// Of images with one name, the best match is selected; different images with different names are ambiguous.
    pub(crate) fn choose(mut self, options: &StageOptions) -> Result<T, ImageError> {
        let rank = |candidate: &Candidate<T>| options.platform.rank(&candidate.platform);
        let is_own = |candidate: &Candidate<T>| options.platform.has_architecture_of(&candidate.platform);
        if self.candidates.iter().any(is_own) {
            self.candidates.retain(is_own);
        }
        let mut best = BTreeMap::new();
        for candidate in &self.candidates {
            let rank = rank(candidate);
            let found = best.entry(candidate.name.clone()).or_insert(rank);
            *found = rank.min(*found);
        }
        self.candidates.retain(|candidate| best.get(&candidate.name) == Some(&rank(candidate)));
        self.candidates.sort_by(|one, other| one.id.cmp(&other.id));
        self.candidates.dedup_by(|one, other| one.id == other.id);
        if self.candidates.len() > 1 {
            let each = self.candidates.iter().map(|candidate| {
                let name = candidate.name.as_deref().unwrap_or(&candidate.id);
                format!("{} ({})", shown(name.as_bytes()), shown(candidate.platform.to_string().as_bytes()))
            });
            return Err(ImageError::Ambiguous(join_limited(each)));
        }
        match (self.candidates.pop(), self.missing) {
            (Some(candidate), _) => Ok(candidate.image),
            (None, _) if !self.others.is_empty() => {
                Err(ImageError::NoPlatform { wanted: options.platform.to_string(), found: join_limited(self.others) })
            }
            (None, Some(what)) => Err(ImageError::Missing(what)),
            (None, None) => Err(ImageError::Empty),
        }
    }
}

/// A list for an error, of limited length.
pub(crate) fn join_limited(items: impl IntoIterator<Item = String>) -> String {
    let mut items: Vec<String> = items.into_iter().collect();
    if items.is_empty() {
        return "images without a name".to_owned();
    }
    let more = items.len().saturating_sub(LISTED);
    items.truncate(LISTED);
    let listed = items.join(", ");
    if more == 0 { listed } else { format!("{listed} and {more} more") }
}
