//! The kernel name of a block device, validated once.
//!
//! Owns: validating such names, and their spelling in sysfs. Does not: accept paths below `/dev`, or check whether the
//! device exists.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name in bytes: a disk's (kernel `DISK_NAME_LEN` - 1 = 31), then `p` and a number below `DISK_MAX_PARTS` (256)
/// for a partition.
const MAX_NAME_BYTES: usize = 31 + 4;

/// The kernel name of a block device, as in `/proc/diskstats`: for example `sda1`, `dm-3` or `cciss/c0d0`.
///
/// A few drivers have slashes in their names, which sysfs spells as `!`; both spellings are read, and mean the same name.
/// Has no empty, `.` or `..` part and no control character, so that joining it to a directory never leaves that directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DevName(String);

/// An invalid kernel name of a block device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not the kernel name of a block device: {reason}")]
pub struct DevNameError {
    /// The text as given.
    pub name: String,
    /// The rule that it breaks.
    pub reason: &'static str,
}

impl DevName {
    /// The name as the kernel prints it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as sysfs spells it, with `!` for `/`: a single path component.
    #[must_use]
    pub fn sysfs_name(&self) -> String {
        self.0.replace('/', "!")
    }
}

impl FromStr for DevName {
    type Err = DevNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |reason| Err(DevNameError { name: text.to_owned(), reason });
        if text.is_empty() {
            return error("it is empty");
        }
        if text.len() > MAX_NAME_BYTES {
            return error("it is longer than 35 bytes");
        }
        if text.contains(char::is_control) {
            return error("it contains a control character");
        }
        let name = text.replace('!', "/");
        for part in name.split('/') {
            match part {
                "" => return error("it has an empty part"),
                "." | ".." => return error("'.' and '..' are not allowed"),
                _ => {}
            }
        }
        Ok(Self(name))
    }
}

impl TryFrom<String> for DevName {
    type Error = DevNameError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<DevName> for String {
    fn from(name: DevName) -> String {
        name.0
    }
}

impl fmt::Display for DevName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    #[test]
    fn kernel_names_are_read_in_both_spellings() {
        for name in ["sda", "nvme0n1p15", "dm-3", "ublkb0", "cciss/c0d0"] {
            let read: DevName = name.parse().unwrap();
            assert_eq!(read.as_str(), name);
            assert_eq!(read.sysfs_name().parse(), Ok(read));
        }
        assert_eq!("cciss!c0d0".parse::<DevName>().map(|name| name.to_string()), Ok("cciss/c0d0".to_owned()));
    }

    #[test]
    fn bad_names_say_why() {
        let long = "s".repeat(36);
        for (name, part) in [
            ("", "it is empty"),
            ("/dev/sda", "an empty part"),
            ("a//b", "an empty part"),
            ("a!", "an empty part"),
            ("..", "'..' are not allowed"),
            ("a/../b", "'..' are not allowed"),
            ("a\nb", "a control character"),
            ("a\0b", "a control character"),
            (long.as_str(), "longer than 35 bytes"),
        ] {
            let error = name.parse::<DevName>().expect_err(name).to_string();
            assert!(error.contains(part), "{name:?}: {error}");
        }
    }

    #[test]
    fn json_is_the_text_and_bad_names_are_refused() {
        let json = serde_json::to_string("sda").unwrap();
        assert_eq!(serde_json::to_string(&"sda".parse::<DevName>().unwrap()).unwrap(), json);
        let error = serde_json::from_str::<DevName>("\"..\"").unwrap_err().to_string();
        assert!(error.contains("\"..\" is not the kernel name of a block device"), "{error}");
    }

    proptest! {
        #[test]
        fn the_sysfs_name_is_one_plain_path_component(text in any::<String>()) {
            if let Ok(name) = text.parse::<DevName>() {
                let sysfs = name.sysfs_name();
                prop_assert!(std::path::Path::new(&sysfs).components().count() == 1, "{}", sysfs);
                prop_assert_eq!(sysfs.parse::<DevName>().unwrap(), name);
            }
        }
    }
}
