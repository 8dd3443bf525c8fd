//! Validated names of pools, volumes and tenants.
//!
//! A name becomes a file name, a cgroup name, an LVM logical volume name and an LVM tag, so it satisfies the strictest
//! rules of these: letters, digits, `_`, `.`, `-`, not starting with `.` or `-`, at most 64 bytes, no word that LVM
//! reserves.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name in bytes: leaves room for prefixes inside LVM's 127 and the kernel's file name limit of 255.
pub const MAX_NAME_BYTES: usize = 64;

/// Name parts that LVM reserves for its own hidden volumes (lvm(8), "VALID NAMES").
const LVM_RESERVED: [&str; 15] = [
    "_cdata", "_cmeta", "_corig", "_cpool", "_cvol", "_imeta", "_iorig", "_mimage", "_mlog", "_pmspare", "_rimage",
    "_rmeta", "_tdata", "_tmeta", "_vorigin",
];

/// Why a text is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is empty.
    #[error("a name cannot be empty")]
    Empty,
    /// Longer than [`MAX_NAME_BYTES`].
    #[error("the name is {0} bytes long: at most {MAX_NAME_BYTES} are allowed")]
    TooLong(usize),
    /// A character outside the allowed set.
    #[error("name {name:?} contains {found:?}: only letters, digits, '_', '.' and '-' are allowed")]
    BadCharacter {
        /// The name as given.
        name: String,
        /// The first character that is not allowed.
        found: char,
    },
    /// Starts with a dot or a dash.
    #[error("name {0:?} starts with '.' or '-': start it with a letter, a digit or '_'")]
    BadStart(String),
    /// A word that LVM or the cgroup file system uses itself.
    #[error("name {0:?} is reserved: choose another one")]
    Reserved(String),
}

/// A validated name; the module has the rules.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "schema", schema(value_type = String, pattern = "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"))]
pub struct Name(String);

impl Name {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > MAX_NAME_BYTES {
            return Err(NameError::TooLong(text.len()));
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if let Some(found) = text.chars().find(|&c| !allowed(c)) {
            return Err(NameError::BadCharacter { name: text.to_owned(), found });
        }
        if text.starts_with(['.', '-']) {
            return Err(NameError::BadStart(text.to_owned()));
        }
        let lvm = LVM_RESERVED.iter().any(|word| text.contains(word));
        if lvm || text.starts_with("snapshot") || text.starts_with("pvmove") {
            return Err(NameError::Reserved(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, proptest};

    #[test]
    fn usual_names_pass() {
        for name in ["db", "a", "web-1", "pg_15.2", "0", "_x", &"n".repeat(64)] {
            assert!(name.parse::<Name>().is_ok(), "{name}");
        }
    }

    #[test]
    fn bad_names_say_why() {
        let long = "n".repeat(300);
        for (name, part) in [
            ("", "empty"),
            ("a/b", "'/'"),
            ("..", "starts with"),
            (".hidden", "starts with"),
            ("-rf", "starts with"),
            ("a\nb", "'\\n'"),
            ("a\u{1b}[31m", "'\\u{1b}'"),
            ("ümlaut", "'ü'"),
            ("x_tmeta", "reserved"),
            ("snapshot1", "reserved"),
            (long.as_str(), "300 bytes"),
        ] {
            let error = name.parse::<Name>().expect_err(name).to_string();
            assert!(error.contains(part), "{name:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_name_is_one_plain_path_component(text in any::<String>()) {
            if let Ok(name) = text.parse::<Name>() {
                prop_assert!(std::path::Path::new(name.as_str()).components().count() == 1);
                prop_assert!(name.as_str() != "." && name.as_str() != "..");
            }
        }
    }
}
