//! Options of a request, each a key with a text.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::journal::JournalSize;
use bulkhead_core::model::{Provision, ReadFrom};
use bulkhead_core::units::Latency;

/// How similar an unknown key has to be to a known one (Jaro-Winkler, 0 to 1) to be taken for a misspelling of it: as clap does.
const SIMILAR: f64 = 0.7;

/// The options of one request. Each method fails with `InvalidArgument` for an invalid value, naming the option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given<'a> {
    /// The front end's word for an option.
    word: &'static str,
    values: BTreeMap<&'a str, &'a str>,
}

#[expect(clippy::missing_errors_doc, reason = "said once for all of them, at the top of the type")]
impl<'a> Given<'a> {
    /// Options, which the front end calls `word`. Of several with the same key, the last one counts.
    pub fn new<K, V>(word: &'static str, options: impl IntoIterator<Item = (&'a K, &'a V)>) -> Self
    where
        K: AsRef<str> + ?Sized + 'a,
        V: AsRef<str> + ?Sized + 'a,
    {
        Self { word, values: options.into_iter().map(|(key, value)| (key.as_ref(), value.as_ref())).collect() }
    }

    /// The first key, in order, that is not a known one.
    #[must_use]
    pub fn unknown(&self, known: &[&str]) -> Option<&'a str> {
        self.values.keys().copied().find(|key| !known.contains(key))
    }

    /// The error for an unknown key, with the most similar known one as hint.
    #[must_use]
    pub fn unknown_key(&self, key: &str, known: &[&str]) -> Fault {
        let similar =
            known.iter().map(|word| (strsim::jaro_winkler(word, key), word)).max_by(|a, b| a.0.total_cmp(&b.0));
        let hint = match similar.filter(|(similarity, _)| *similarity > SIMILAR) {
            Some((_, word)) => format!("did you mean {word:?}?"),
            None => format!("the {}s are {}", self.word, known.join(", ")),
        };
        self.invalid(key, format!("no {} has that name", self.word)).hint(hint)
    }

    /// Whether the option is given.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// The text of an option.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.values.get(key).copied()
    }

    /// The value of an option.
    pub fn parsed<T: FromStr<Err: Display>>(&self, key: &str) -> Result<Option<T>, Fault> {
        self.text(key).map(|text| text.parse().map_err(|error| self.invalid(key, error))).transpose()
    }

    /// The value of an option that is one of these words.
    pub fn one_of<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>, Fault> {
        let Some(text) = self.text(key) else { return Ok(None) };
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        let known = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        found.map(Some).ok_or_else(|| self.invalid(key, format!("{text:?} is not one of {}", known())))
    }

    /// The size of a journal: `auto` or a size.
    pub fn journal(&self, key: &str) -> Result<Option<JournalSize>, Fault> {
        match self.text(key) {
            Some("auto") => Ok(Some(JournalSize::Auto)),
            _ => Ok(self.parsed(key)?.map(JournalSize::Bytes)),
        }
    }

    /// A promise for a tenant's fsyncs, as the API's `fsync_p99_us`: `none`, which is 0, or a latency.
    pub fn promise(&self, key: &str) -> Result<Option<u64>, Fault> {
        match self.text(key) {
            Some("none") => Ok(Some(0)),
            _ => Ok(self.parsed(key)?.map(Latency::us)),
        }
    }

    /// `full` or `on-demand`.
    pub fn provision(&self, key: &str) -> Result<Option<Provision>, Fault> {
        self.one_of(key, &[("full", Provision::Full), ("on-demand", Provision::OnDemand)])
    }

    /// Where a clone reads shared blocks from.
    pub fn read_from(&self, key: &str) -> Result<Option<ReadFrom>, Fault> {
        self.one_of(key, &ReadFrom::ALL.map(|mode| (mode.as_str(), mode)))
    }

    /// The error for an option.
    #[must_use]
    pub fn invalid(&self, key: &str, cause: impl Display) -> Fault {
        Fault::new(Code::InvalidArgument, format!("{} {key:?}", self.word), cause)
    }
}
