//! Changes of a host's settings, with which the doctor fixes findings. Each can be undone, and none concerns data.
//!
//! Owns: the vocabulary. Does not: choose changes (`bulkhead_advise`) or make them (`bulkhead_sys::fix`).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::DevNo;

/// A setting of a host. Objects are identified by name and number, so that a change is refused when the name is another object's by then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "setting", rename_all = "snake_case")]
pub enum Setting {
    /// The I/O scheduler of a block device.
    Scheduler {
        /// Its kernel name.
        device: String,
        /// Its number.
        dev: DevNo,
    },
    /// The readahead of a block device, in KiB.
    Readahead {
        /// Its kernel name.
        device: String,
        /// Its number.
        dev: DevNo,
    },
    /// Whether a loop device accesses its file by direct I/O: `on` or `off`.
    DirectIo {
        /// Its kernel name.
        device: String,
        /// Its number.
        dev: DevNo,
    },
    /// An option of a mounted file system, and the one that it replaces: `nobarrier` and `barrier`, `sync` and `async`, `commit=300` and
    /// `commit=5`.
    FileSystemOption {
        /// A mount point of it.
        at: String,
        /// `st_dev` of its files.
        dev: DevNo,
    },
    /// When a mount records times of reads: `strictatime`, `relatime` or `noatime`.
    AccessTimes {
        /// The mount point.
        at: String,
        /// `st_dev` of its files.
        dev: DevNo,
    },
    /// Whether the root cgroup enables a controller for its children: `on` or `off`.
    RootController {
        /// The controller.
        controller: String,
    },
    /// Whether systemd starts a timer: `enabled` or `disabled`. This setting survives a reboot.
    Timer {
        /// The unit.
        unit: String,
    },
}

impl Setting {
    /// Whether it is the same after a reboot.
    #[must_use]
    pub const fn survives_reboot(&self) -> bool {
        matches!(self, Self::Timer { .. })
    }
}

/// `device sda: I/O scheduler`.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheduler { device, .. } => write!(f, "device {device}: I/O scheduler"),
            Self::Readahead { device, .. } => write!(f, "device {device}: readahead in KiB"),
            Self::DirectIo { device, .. } => write!(f, "device {device}: direct I/O"),
            Self::FileSystemOption { at, .. } => write!(f, "file system {at}: option"),
            Self::AccessTimes { at, .. } => write!(f, "mount {at}: times of reads"),
            Self::RootController { controller } => write!(f, "root cgroup: controller {controller}"),
            Self::Timer { unit } => write!(f, "unit {unit}"),
        }
    }
}

/// A change of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The setting.
    #[serde(flatten)]
    pub setting: Setting,
    /// Its value before. A change is refused if it has another one by then.
    pub from: String,
    /// Its value afterwards.
    pub to: String,
}

impl Change {
    /// A change.
    #[must_use]
    pub fn new(setting: Setting, from: impl Into<String>, to: impl Into<String>) -> Self {
        Self { setting, from: from.into(), to: to.into() }
    }

    /// The change back.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self { setting: self.setting.clone(), from: self.to.clone(), to: self.from.clone() }
    }
}

/// `device sda: I/O scheduler: bfq -> none`.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} -> {}", self.setting, self.from, self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_written_as_one_object_and_can_be_reversed() {
        let setting = Setting::Scheduler { device: "sda".to_owned(), dev: DevNo::new(8, 0) };
        let change = Change::new(setting, "bfq", "none");
        let text = r#"{"setting":"scheduler","device":"sda","dev":"8:0","from":"bfq","to":"none"}"#;
        assert_eq!(serde_json::to_string(&change).unwrap(), text);
        assert_eq!(serde_json::from_str::<Change>(text).unwrap(), change);
        assert_eq!(change.reversed().to_string(), "device sda: I/O scheduler: none -> bfq");
        assert_eq!(change.reversed().reversed(), change);
    }
}
