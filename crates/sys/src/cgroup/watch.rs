//! Repeated checks of a process's cgroup or of a cgroup file, with one system call each.

use std::fs::File;
use std::os::unix::fs::FileExt;

use bulkhead_core::cgroup::CgroupPath;

use super::{CgroupError, file_of, missing, unreadable};
use crate::roots::Roots;

/// Size of a read of `/proc/PID/cgroup`: a page, the kernel's maximum.
const PROC_CGROUP_BYTES: usize = 4096;

/// Largest cgroup file that a [`FileWatch`] compares.
pub(super) const MAX_WATCHED_BYTES: usize = 1024;

/// Checks repeatedly whether a process is in a cgroup, with one system call per check. Never confuses the process with a later one of
/// the same pid.
#[derive(Debug)]
pub struct Membership {
    /// Its `/proc/PID/cgroup`, which is unreadable once the process has exited.
    file: File,
    /// The expected line.
    line: String,
}

impl Membership {
    /// A check for this process and cgroup, whether it is a member now or not ([`Membership::holds`]).
    ///
    /// # Errors
    /// [`CgroupError::NoProcess`], [`CgroupError::ReadProc`].
    pub fn open(roots: &Roots, pid: u32, cgroup: &CgroupPath) -> Result<Self, CgroupError> {
        let path = roots.proc.join(pid.to_string()).join("cgroup");
        let file = File::open(path).map_err(|source| unreadable(pid, source))?;
        Ok(Self { file, line: format!("0::/{}", cgroup.to_string().trim_start_matches('/')) })
    }

    /// Whether the process is alive and in the cgroup.
    #[must_use]
    pub fn holds(&self) -> bool {
        let mut content = [0; PROC_CGROUP_BYTES];
        // The read fails if the process has exited. A line longer than the buffer is not that of a cgroup of ours.
        let Ok(n @ 1..) = self.file.read_at(&mut content, 0) else { return false };
        content[..n].split(|byte| *byte == b'\n').any(|line| line == self.line.as_bytes())
    }
}

/// Checks repeatedly whether a cgroup file has the expected content, with one system call per check. Never confuses the cgroup with a
/// later one of the same name.
#[derive(Debug)]
pub struct FileWatch {
    file: File,
    expected: Expected,
}

#[derive(Debug)]
enum Expected {
    Line(String),
    Words(Vec<String>),
}

impl FileWatch {
    /// A check for a line of the file, whether it is present now or not ([`FileWatch::holds`]).
    ///
    /// # Errors
    /// Those of [`read`](super::read).
    pub fn line(roots: &Roots, path: &CgroupPath, file: &str, line: &str) -> Result<Self, CgroupError> {
        Self::open(roots, path, file, Expected::Line(line.to_owned()))
    }

    /// A check that the file contains all of these words, whether it does now or not ([`FileWatch::holds`]).
    ///
    /// # Errors
    /// Those of [`read`](super::read).
    pub fn words(roots: &Roots, path: &CgroupPath, file: &str, words: &[&str]) -> Result<Self, CgroupError> {
        Self::open(roots, path, file, Expected::Words(words.iter().map(|&word| word.to_owned()).collect()))
    }

    fn open(roots: &Roots, path: &CgroupPath, file: &str, expected: Expected) -> Result<Self, CgroupError> {
        let opened = File::open(file_of(roots, path, file)?).map_err(|source| {
            missing(roots, path, file, &source).unwrap_or_else(|| CgroupError::Read {
                cgroup: path.clone(),
                file: file.to_owned(),
                source,
            })
        })?;
        Ok(Self { file: opened, expected })
    }

    /// Whether the cgroup exists and the file has the expected content.
    #[must_use]
    pub fn holds(&self) -> bool {
        let mut content = [0; MAX_WATCHED_BYTES];
        // The read fails (`ENODEV`) if the cgroup was removed or has lost the controller. Content beyond the buffer is not found.
        let Ok(n @ 1..) = self.file.read_at(&mut content, 0) else { return false };
        let content = &content[..n];
        match &self.expected {
            Expected::Line(line) => {
                content.split(|byte| *byte == b'\n').any(|found| found.trim_ascii() == line.as_bytes())
            }
            Expected::Words(words) => {
                let has = |word: &String| content.split(u8::is_ascii_whitespace).any(|found| found == word.as_bytes());
                words.iter().all(has)
            }
        }
    }
}
