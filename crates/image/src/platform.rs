//! What an image is for: an operating system and an architecture, as Go calls them.

use std::env::consts::ARCH;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// What an image is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Platform {
    /// The operating system.
    pub os: String,
    /// The architecture.
    pub architecture: String,
    /// Which of its kind.
    #[serde(default)]
    pub variant: Option<String>,
}

impl Platform {
    /// What this host runs.
    #[must_use]
    pub fn of_host() -> Self {
        let architecture = match ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: None }
    }

    /// Whether an image of another platform will do for this one.
    pub(crate) fn takes(&self, other: &Self) -> bool {
        self.os == other.os
            && self.architecture == other.architecture
            && (self.variant.is_none() || self.variant == other.variant)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

/// A text that is no platform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no platform: write OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, for example linux/arm64")]
pub struct BadPlatform(String);

impl FromStr for Platform {
    type Err = BadPlatform;

    fn from_str(text: &str) -> Result<Self, BadPlatform> {
        let parts: Vec<&str> = text.split('/').collect();
        let is_word = |part: &&str| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
        };
        match parts[..] {
            [os, architecture, ref variant @ ..] if variant.len() < 2 && parts.iter().all(is_word) => Ok(Self {
                os: os.to_owned(),
                architecture: architecture.to_owned(),
                variant: variant.first().map(|variant| (*variant).to_owned()),
            }),
            _ => Err(BadPlatform(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_read_as_they_are_printed() {
        for text in ["linux/amd64", "linux/arm/v7"] {
            assert_eq!(text.parse::<Platform>().unwrap().to_string(), text);
        }
        for bad in ["", "linux", "linux/", "linux/arm/v7/x", "linux/a b", "/amd64"] {
            assert!(bad.parse::<Platform>().is_err(), "{bad:?}");
        }
        let (any, seven): (Platform, Platform) = ("linux/arm".parse().unwrap(), "linux/arm/v7".parse().unwrap());
        assert!(any.takes(&seven) && !seven.takes(&any) && seven.takes(&seven) && !Platform::of_host().takes(&seven));
    }
}
