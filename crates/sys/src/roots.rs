//! Mount points of the kernel's file systems, and the root directory. They are always a parameter, so that a temporary directory can
//! serve as a fake kernel.

use std::path::{Path, PathBuf};

use bulkhead_core::cgroup::CgroupPath;

/// The roots of the file systems that this crate reads and writes.
#[derive(Clone, Debug)]
pub struct Roots {
    /// The host's root directory, `/`.
    pub base: PathBuf,
    /// cgroup v2 hierarchy, `/sys/fs/cgroup`.
    pub cgroup: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// `/dev`.
    pub dev: PathBuf,
}

impl Roots {
    /// The running host.
    #[must_use]
    pub fn host() -> Self {
        Self::under(Path::new("/"))
    }

    /// The same layout below `base`, for tests against a fake kernel.
    #[must_use]
    pub fn under(base: &Path) -> Self {
        Self {
            base: base.to_owned(),
            cgroup: base.join("sys/fs/cgroup"),
            proc: base.join("proc"),
            sys: base.join("sys"),
            dev: base.join("dev"),
        }
    }

    /// The directory of a cgroup.
    #[must_use]
    pub fn cgroup_dir(&self, path: &CgroupPath) -> PathBuf {
        self.cgroup.join(path.relative())
    }
}
