//! Selection of one image among several, by name and platform.

use std::collections::{BTreeMap, BTreeSet};

use crate::Wanted;
use crate::error::{ImageError, shown};
use crate::platform::Platform;

/// How many of what there is an error lists.
const LISTED: usize = 20;

/// An image that may be the one, and what it is made of.
pub(crate) struct Candidate<T> {
    /// A digest: an image may have several names.
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    pub(crate) platform: Platform,
    pub(crate) image: T,
}

/// What was found that may be meant.
pub(crate) struct Found<T> {
    candidates: Vec<Candidate<T>>,
    /// Platforms for which there is something else.
    others: BTreeSet<String>,
    /// What is listed, would do, and is not there.
    missing: Option<String>,
}

impl<T> Found<T> {
    pub(crate) fn new() -> Self {
        Self { candidates: Vec::new(), others: BTreeSet::new(), missing: None }
    }

    /// Takes an image in, if it will do.
    pub(crate) fn add(&mut self, candidate: Candidate<T>, wanted: &Wanted) {
        match wanted.platform.rank(&candidate.platform) {
            _ if candidate.platform.is_unknown() => {}
            Some(_) => self.candidates.push(candidate),
            None => self.add_other(&candidate.platform),
        }
    }

    /// Notes that there is an image for something else.
    pub(crate) fn add_other(&mut self, platform: &Platform) {
        self.others.insert(shown(platform.to_string().as_bytes()));
    }

    /// Notes what is not there.
    pub(crate) fn add_missing(&mut self, what: String) {
        self.missing.get_or_insert(what);
    }

    /// The image that is meant. One of another architecture, of which the processor runs programs as well, is so only where there is no
    /// other. Of those of one name it is the one that does best; those of several names are several images, unless it is the same.
    pub(crate) fn choose(mut self, wanted: &Wanted) -> Result<T, ImageError> {
        let rank = |candidate: &Candidate<T>| wanted.platform.rank(&candidate.platform);
        let is_own = |candidate: &Candidate<T>| wanted.platform.has_architecture_of(&candidate.platform);
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
            return Err(ImageError::Ambiguous(listed(each)));
        }
        match (self.candidates.pop(), self.missing) {
            (Some(candidate), _) => Ok(candidate.image),
            (None, _) if !self.others.is_empty() => {
                Err(ImageError::NoPlatform { wanted: wanted.platform.to_string(), found: listed(self.others) })
            }
            (None, Some(what)) => Err(ImageError::Missing(what)),
            (None, None) => Err(ImageError::Empty),
        }
    }
}

/// What there is, as an error says it.
pub(crate) fn listed(items: impl IntoIterator<Item = String>) -> String {
    let mut items: Vec<String> = items.into_iter().collect();
    if items.is_empty() {
        return "such without a name".to_owned();
    }
    let more = items.len().saturating_sub(LISTED);
    items.truncate(LISTED);
    let listed = items.join(", ");
    if more == 0 { listed } else { format!("{listed} and {more} more") }
}
