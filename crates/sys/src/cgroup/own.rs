//! The weight of the slice that this process is in, read again and again after it has dropped its mounts.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use bulkhead_core::tenant::WEIGHT_FILES;
use rustix::fs::{Mode, OFlags, open, openat};

use super::v2_root;
use crate::roots::Roots;

/// Size of a read: a page, the kernel's maximum for `/proc/PID/cgroup`.
const BYTES: usize = 4096;

/// This process's cgroup, and the root of the hierarchy.
#[derive(Debug)]
pub struct OwnCgroup {
    /// Its `/proc/PID/cgroup`.
    line: File,
    root: OwnedFd,
}

impl OwnCgroup {
    /// Opens both. Call it before the process drops its mounts.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(roots: &Roots) -> std::io::Result<Self> {
        let line = File::open(roots.proc.join(std::process::id().to_string()).join("cgroup"))?;
        let root = open(v2_root(roots), OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { line, root })
    }

    /// Its path, without the slash at the front; `None` if it cannot be read.
    #[must_use]
    pub fn path(&self) -> Option<String> {
        let text = read(&self.line)?;
        text.lines().find_map(|line| line.strip_prefix("0::/")).map(str::to_owned)
    }

    /// The content of the weight file of a cgroup, as [`io_weights`](super::io_weights); `None` without the controller.
    #[must_use]
    pub fn io_weights(&self, path: &str) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let open = |file: &&str| openat(&self.root, format!("{path}/{file}"), flags, Mode::empty()).ok();
        read(&File::from(WEIGHT_FILES.iter().find_map(open)?))
    }
}

fn read(file: &File) -> Option<String> {
    let mut content = [0; BYTES];
    let n = file.read_at(&mut content, 0).ok()?;
    Some(String::from_utf8_lossy(&content[..n]).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_own_cgroup_is_followed_after_its_files_were_opened() {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        let own = roots.proc.join(std::process::id().to_string());
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(roots.cgroup.join("a.slice/b")).unwrap();
        fs::write(own.join("cgroup"), "1:cpu:/x\n0::/a.slice/b\n").unwrap();
        let cgroup = OwnCgroup::open(&roots).unwrap();
        assert_eq!(cgroup.path().as_deref(), Some("a.slice/b"));
        assert_eq!(cgroup.io_weights("a.slice"), None);
        fs::write(roots.cgroup.join("a.slice/io.weight"), "default 70\n8:0 30\n").unwrap();
        assert_eq!(cgroup.io_weights("a.slice").as_deref(), Some("default 70\n8:0 30\n"));
        fs::write(own.join("cgroup"), "1:cpu:/x\n").unwrap();
        assert_eq!(cgroup.path(), None);
    }
}
