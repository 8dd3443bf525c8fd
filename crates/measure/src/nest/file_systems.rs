//! The file systems of the matrix: how each is made and mounted. Those whose program or module a host lacks fail, which is recorded.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_sys::tool::Tool;

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileSystem {
    /// Its name, as mount(8) takes it.
    pub(super) name: &'static str,
    mkfs: &'static str,
    /// Quiet, over existing data, without discards, and without work that is left for after the mount.
    arguments: &'static [&'static str],
}

/// Since Linux 6.13, ReiserFS is gone; bcachefs is outside the kernel since 6.18.
pub(super) const ALL: [FileSystem; 10] = [
    FileSystem { name: "ext2", mkfs: "mkfs.ext2", arguments: &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0"] },
    FileSystem {
        name: "ext3",
        mkfs: "mkfs.ext3",
        arguments: &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
    },
    FileSystem {
        name: "ext4",
        mkfs: "mkfs.ext4",
        arguments: &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
    },
    FileSystem { name: "xfs", mkfs: "mkfs.xfs", arguments: &["-q", "-f", "-K"] },
    FileSystem { name: "btrfs", mkfs: "mkfs.btrfs", arguments: &["-q", "-f", "-K"] },
    FileSystem { name: "f2fs", mkfs: "mkfs.f2fs", arguments: &["-q", "-f", "-t", "0"] },
    FileSystem { name: "jfs", mkfs: "mkfs.jfs", arguments: &["-q"] },
    FileSystem { name: "reiserfs", mkfs: "mkfs.reiserfs", arguments: &["-q", "-ff"] },
    FileSystem { name: "nilfs2", mkfs: "mkfs.nilfs2", arguments: &["-q", "-f", "-K"] },
    FileSystem { name: "bcachefs", mkfs: "mkfs.bcachefs", arguments: &["--quiet", "--force"] },
];

impl FileSystem {
    /// The one with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        ALL.into_iter().find(|kind| kind.name == name)
    }

    /// Makes one on a device, whose data is lost.
    ///
    /// # Errors
    /// If its program is missing, fails, or takes too long.
    pub(super) fn make(self, device: &Path, limit: Duration) -> Result<()> {
        let tool = Tool::new(self.mkfs).args(self.arguments).arg(device).limit(limit);
        tool.run().map(drop).with_context(|| format!("cannot make {} on {}", self.name, device.display()))
    }

    /// Mounts one, without access times. By mount(8), because NILFS2 has a helper that starts its cleaner.
    ///
    /// # Errors
    /// If the kernel does not know it, or refuses.
    pub(super) fn mount(self, device: &Path, at: &Path, limit: Duration) -> Result<()> {
        let tool = Tool::new("mount").args(["-t", self.name, "-o", MOUNT_OPTIONS]).arg(device).arg(at).limit(limit);
        tool.run().map(drop).with_context(|| format!("cannot mount {} on {}", self.name, device.display()))
    }

    /// The command lines, for the result.
    pub(super) fn describe(self) -> String {
        format!("{} {} DEVICE; mount -t {} -o {MOUNT_OPTIONS}", self.mkfs, self.arguments.join(" "), self.name)
    }
}

const MOUNT_OPTIONS: &str = "noatime,nosuid,nodev";
