//! The platform of an image: operating system and architecture in Go's terms, compared as containerd compares them.

use std::env::consts::ARCH;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// The platform that an image runs on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Platform {
    /// The operating system.
    #[serde(default)]
    pub os: String,
    /// The architecture.
    #[serde(default)]
    pub architecture: String,
    /// The variant of the architecture.
    #[serde(default)]
    pub variant: Option<String>,
}

impl Platform {
    /// The platform of this host.
    #[must_use]
    pub fn host() -> Self {
        let architecture = match ARCH {
            "x86" => "386",
            "loongarch64" => "loong64",
            "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
            other => other,
        };
        Self::new("linux", architecture, None).normalized()
    }

    fn new(os: &str, architecture: &str, variant: Option<String>) -> Self {
        Self { os: os.to_owned(), architecture: architecture.to_owned(), variant }
    }

    /// Whether this is the platform of attestations, which are not images.
    pub(crate) fn is_unknown(&self) -> bool {
        self.os == "unknown" || self.architecture == "unknown"
    }

    /// How well an image for another platform runs on this one: 0 is best, `None` if it does not run.
    pub(crate) fn rank(&self, other: &Self) -> Option<usize> {
        let other = other.normalized();
        self.choices().iter().position(|choice| *choice == other)
    }

    /// Whether another platform has the same architecture, in any variant.
    pub(crate) fn has_architecture_of(&self, other: &Self) -> bool {
        self.normalized().architecture == other.normalized().architecture
    }

    /// The platform in Go's terms: `amd64` for `x86_64`, and without the baseline variant of an architecture.
    fn normalized(&self) -> Self {
        let lower = |text: &str| text.to_ascii_lowercase();
        let variant = self.variant.as_deref().map(lower).filter(|variant| !variant.is_empty());
        let (architecture, variant) = match (lower(&self.architecture).as_str(), variant.as_deref()) {
            ("i386", _) => ("386".to_owned(), None),
            ("amd64" | "x86_64" | "x86-64", Some("v1") | None) => ("amd64".to_owned(), None),
            ("x86_64" | "x86-64", _) => ("amd64".to_owned(), variant),
            ("arm64" | "aarch64", Some("8" | "v8") | None) => ("arm64".to_owned(), None),
            ("aarch64", _) => ("arm64".to_owned(), variant),
            ("armhf", _) | ("arm", None) => ("arm".to_owned(), Some("v7".to_owned())),
            ("armel", _) => ("arm".to_owned(), Some("v6".to_owned())),
            ("arm", Some(number @ ("5" | "6" | "7" | "8"))) => ("arm".to_owned(), Some(format!("v{number}"))),
            (architecture, _) => (architecture.to_owned(), variant),
        };
        let os = match lower(&self.os).as_str() {
            "" => "linux".to_owned(),
            "macos" => "darwin".to_owned(),
            os => os.to_owned(),
        };
        Self { os, architecture, variant }
    }

    /// The platforms whose images run on this one, best first.
    fn choices(&self) -> Vec<Self> {
        let own = self.normalized();
        let of = |architecture: &str, variant: String| Self::new(&own.os, architecture, Some(variant)).normalized();
        let version = own.variant.as_deref().and_then(version);
        let lower: Vec<Self> = match (own.architecture.as_str(), version) {
            ("amd64", version) => {
                let major = version.map_or(1, |(major, _)| major);
                let versions = (1..major).rev().map(|major| of("amd64", format!("v{major}")));
                versions.chain([Self::new(&own.os, "386", None)]).collect()
            }
            ("arm", Some((major, 0))) => (5..major).rev().map(|major| of("arm", format!("v{major}"))).collect(),
            ("arm64", version) => {
                let of = |(major, minor): (u32, u32)| match minor {
                    0 => of("arm64", format!("v{major}")),
                    minor => of("arm64", format!("v{major}.{minor}")),
                };
                let older = (5..=8).rev().map(|major| Self::new(&own.os, "arm", Some(format!("v{major}"))));
                older_arm64(version.unwrap_or((8, 0))).into_iter().map(of).chain(older).collect()
            }
            _ => Vec::new(),
        };
        std::iter::once(own).chain(lower).collect()
    }
}

/// Parses a variant such as `v8` or `v8.2`. No version has more than two digits.
fn version(variant: &str) -> Option<(u32, u32)> {
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number < 100);
    let text = variant.strip_prefix('v')?;
    let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
    Some((number(major)?, number(minor)?))
}

/// The earlier versions that a version of arm64 is compatible with, latest first. Version 9.0 includes 8.5.
fn older_arm64((major, minor): (u32, u32)) -> Vec<(u32, u32)> {
    let below = |major, minor| (0..minor).rev().map(move |minor| (major, minor));
    match major {
        9 => below(9, minor).chain(below(8, minor + 6)).collect(),
        8 => below(8, minor).collect(),
        _ => Vec::new(),
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

/// A malformed platform.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a platform: write OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, for example linux/arm64")]
pub struct BadPlatform(String);

impl FromStr for Platform {
    type Err = BadPlatform;

    fn from_str(text: &str) -> Result<Self, BadPlatform> {
        let parts: Vec<&str> = text.split('/').collect();
        let is_word = |part: &&str| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
        };
        match parts[..] {
            [os, architecture, ref variant @ ..] if variant.len() < 2 && parts.iter().all(is_word) => {
                Ok(Self::new(os, architecture, variant.first().map(|variant| (*variant).to_owned())))
            }
            _ => Err(BadPlatform(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        text.parse().unwrap()
    }

    #[test]
    fn platforms_round_trip() {
        for text in ["linux/amd64", "linux/arm/v7"] {
            assert_eq!(platform(text).to_string(), text);
        }
        for bad in ["", "linux", "linux/", "linux/arm/v7/x", "linux/a b", "/amd64"] {
            assert!(bad.parse::<Platform>().is_err(), "{bad:?}");
        }
        let (any, seven) = (platform("linux/arm"), platform("linux/arm/v7"));
        assert!(any.rank(&seven).is_some() && seven.rank(&seven).is_some());
        assert!(Platform::host().rank(&platform("plan9/386")).is_none());
    }

    #[test]
    fn an_architecture_has_several_names() {
        for (one, other) in [
            ("linux/x86_64", "linux/amd64"),
            ("Linux/x86-64", "linux/amd64/v1"),
            ("linux/aarch64", "linux/arm64/v8"),
            ("linux/arm64/8", "linux/arm64"),
            ("linux/armhf", "linux/arm/v7"),
            ("linux/arm/7", "linux/arm"),
            ("linux/armel", "linux/arm/v6"),
            ("linux/i386", "linux/386"),
            ("macos/arm64", "darwin/aarch64"),
        ] {
            let (one, other) = (platform(one), platform(other));
            assert_eq!((one.rank(&other), other.rank(&one)), (Some(0), Some(0)), "{one} and {other}");
        }
        let empty = Platform::new("", "amd64", Some(String::new()));
        assert_eq!(platform("linux/amd64").rank(&empty), Some(0));
    }

    #[test]
    fn a_processor_runs_what_earlier_ones_of_its_kind_run() {
        for (wanted, others) in [
            ("linux/amd64", &["linux/amd64", "linux/386"][..]),
            ("linux/amd64/v3", &["linux/amd64/v3", "linux/amd64/v2", "linux/amd64", "linux/386"]),
            ("linux/arm", &["linux/arm/v7", "linux/arm/v6", "linux/arm/v5"]),
            ("linux/arm/v6", &["linux/arm/v6", "linux/arm/v5"]),
            ("linux/arm64", &["linux/arm64", "linux/arm/v8", "linux/arm/v7", "linux/arm/v6", "linux/arm/v5"]),
            ("linux/arm64/v8.2", &["linux/arm64/v8.2", "linux/arm64/v8.1", "linux/arm64", "linux/arm/v8"]),
            ("linux/arm64/v9.1", &["linux/arm64/v9.1", "linux/arm64/v9", "linux/arm64/v8.6", "linux/arm64/v8.5"]),
            ("linux/riscv64", &["linux/riscv64"]),
        ] {
            let ranks: Vec<_> = others.iter().map(|other| platform(wanted).rank(&platform(other))).collect();
            let expected: Vec<_> = (0..others.len()).map(Some).collect();
            assert_eq!(ranks, expected, "{wanted}");
        }
        for (wanted, other) in [
            ("linux/amd64", "linux/amd64/v3"),
            ("linux/amd64", "linux/arm64"),
            ("linux/amd64", "windows/amd64"),
            ("linux/arm/v6", "linux/arm"),
            ("linux/arm", "linux/arm64"),
            ("linux/386", "linux/amd64"),
            ("linux/arm64", "linux/arm64/v9"),
            ("linux/amd64", "unknown/unknown"),
        ] {
            assert_eq!(platform(wanted).rank(&platform(other)), None, "{wanted} and {other}");
        }
        // The number of choices is bounded, whatever the version.
        assert!(platform("linux/arm64/v9.99").choices().len() < 250);
        assert_eq!(platform("linux/amd64/v4000000000").choices().len(), 2);
    }
}
