//! SELinux contexts, as a mount has them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest context in bytes: the kernel takes 255 for a mount option (`fsconfig(2)`, `FSCONFIG_SET_STRING`).
pub const MAX_SELINUX_CONTEXT_BYTES: usize = 255;

/// Why a text is not an SELinux context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelinuxContextError {
    /// Longer than [`MAX_SELINUX_CONTEXT_BYTES`].
    #[error("an SELinux context of {0} bytes is too long: at most {MAX_SELINUX_CONTEXT_BYTES} are allowed")]
    TooLong(usize),
    /// A character that no context has.
    #[error("an SELinux context contains {0:?}: only letters, digits, '_', '.', '-', ':' and ',' are allowed")]
    BadCharacter(char),
    /// User, role or type is missing, or the level is empty.
    #[error("an SELinux context is USER:ROLE:TYPE or USER:ROLE:TYPE:LEVEL")]
    BadParts,
}

/// The SELinux context that all files of a mount have (mount option `context`), such as `system_u:object_r:container_file_t:s0:c1,c2`.
///
/// Whether the loaded policy knows it is up to the kernel. Two that name the same context in different words are different here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(
    feature = "schema",
    schema(value_type = String, max_length = 255, pattern = "^[A-Za-z0-9_.,-]+:[A-Za-z0-9_.,-]+:[A-Za-z0-9_.,-]+(:[A-Za-z0-9_.,:-]+)?$")
)]
pub struct SelinuxContext(String);

impl SelinuxContext {
    /// The context as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SelinuxContext {
    type Err = SelinuxContextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > MAX_SELINUX_CONTEXT_BYTES {
            return Err(SelinuxContextError::TooLong(text.len()));
        }
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | ':' | ',');
        if let Some(found) = text.chars().find(|c| !is_allowed(*c)) {
            return Err(SelinuxContextError::BadCharacter(found));
        }
        // A level has colons of its own.
        let parts: Vec<&str> = text.splitn(4, ':').collect();
        if parts.len() < 3 || parts.iter().any(|part| part.is_empty()) {
            return Err(SelinuxContextError::BadParts);
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for SelinuxContext {
    type Error = SelinuxContextError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<SelinuxContext> for String {
    fn from(context: SelinuxContext) -> String {
        context.0
    }
}

impl fmt::Display for SelinuxContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_with_and_without_a_level_are_read() {
        let longest = format!("u:r:{}", "t".repeat(MAX_SELINUX_CONTEXT_BYTES - 4));
        for text in [
            "system_u:object_r:container_file_t",
            "system_u:object_r:container_file_t:s0",
            "system_u:object_r:container_file_t:s0:c1,c2",
            "u:r:t:s0-s15:c0.c1023",
            &longest,
        ] {
            assert_eq!(text.parse::<SelinuxContext>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_context_or_would_be_more_than_one_option_is_refused() {
        use SelinuxContextError as E;
        for (text, error) in [
            ("", E::BadParts),
            ("container_file_t", E::BadParts),
            ("u:r", E::BadParts),
            ("u::t", E::BadParts),
            ("u:r:t:", E::BadParts),
            (":r:t", E::BadParts),
            ("u:r:t\"", E::BadCharacter('"')),
            ("u:r:t\\", E::BadCharacter('\\')),
            ("u:r:t s0", E::BadCharacter(' ')),
            ("u:r:t\0", E::BadCharacter('\0')),
            ("u:r:t\n", E::BadCharacter('\n')),
            ("u:r:t,suid=x", E::BadCharacter('=')),
            ("u:r:ü", E::BadCharacter('ü')),
            (&"u:r:t".repeat(64), E::TooLong(320)),
        ] {
            assert_eq!(text.parse::<SelinuxContext>(), Err(error), "{text:?}");
        }
    }
}
