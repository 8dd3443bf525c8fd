//! Conditions on a cgroup that are checked repeatedly, with one system call each.

use std::fs::File;
use std::os::unix::fs::FileExt;

use bulkhead_core::cgroup::CgroupPath;

use super::{CgroupError, file_of, missing, unreadable};
use crate::roots::Roots;

/// As much of `/proc/PID/cgroup` as is read at a time: a page, which is what the kernel gives at most.
const PROC_CGROUP_BYTES: usize = 4096;

/// As much of a cgroup's file as [`Said`] looks at.
pub(super) const SAID_BYTES: usize = 1024;

/// That a process is in a cgroup, to be asked again and again: one system call each time. It is the process that it was asked of, never a
/// later one of the same pid.
#[derive(Debug)]
pub struct Membership {
    /// Its `/proc/PID/cgroup`: it cannot be read any more when the process is gone.
    file: File,
    /// What that says.
    line: String,
}

impl Membership {
    /// Of this process in this cgroup, be it so or not: [`Membership::holds`] tells.
    ///
    /// # Errors
    /// [`CgroupError::NoProcess`], [`CgroupError::ReadProc`].
    pub fn of(roots: &Roots, pid: u32, cgroup: &CgroupPath) -> Result<Self, CgroupError> {
        let path = roots.proc.join(pid.to_string()).join("cgroup");
        let file = File::open(path).map_err(|source| unreadable(pid, source))?;
        Ok(Self { file, line: format!("0::/{}", cgroup.to_string().trim_start_matches('/')) })
    }

    /// Whether the process is there now, and in that cgroup.
    #[must_use]
    pub fn holds(&self) -> bool {
        let mut said = [0; PROC_CGROUP_BYTES];
        // A process that is gone, or a line that is longer than that of any cgroup of ours: it is not so.
        let Ok(n @ 1..) = self.file.read_at(&mut said, 0) else { return false };
        said[..n].split(|byte| *byte == b'\n').any(|line| line == self.line.as_bytes())
    }
}

/// What a file of a cgroup says, to be asked again and again: one system call each time. It is the cgroup that it was asked of, never a later
/// one of the same name.
#[derive(Debug)]
pub struct Said {
    file: File,
    wanted: Wanted,
}

#[derive(Debug)]
enum Wanted {
    Line(String),
    Words(Vec<String>),
}

impl Said {
    /// That one line of the file is this, be it so or not: [`Said::holds`] tells.
    ///
    /// # Errors
    /// Those of [`read`].
    pub fn line(roots: &Roots, path: &CgroupPath, file: &str, line: &str) -> Result<Self, CgroupError> {
        Self::open(roots, path, file, Wanted::Line(line.to_owned()))
    }

    /// That these words are in the file, be it so or not: [`Said::holds`] tells.
    ///
    /// # Errors
    /// Those of [`read`].
    pub fn words(roots: &Roots, path: &CgroupPath, file: &str, words: &[&str]) -> Result<Self, CgroupError> {
        Self::open(roots, path, file, Wanted::Words(words.iter().map(|&word| word.to_owned()).collect()))
    }

    fn open(roots: &Roots, path: &CgroupPath, file: &str, wanted: Wanted) -> Result<Self, CgroupError> {
        let opened = File::open(file_of(roots, path, file)?).map_err(|source| {
            missing(roots, path, file, &source).unwrap_or_else(|| CgroupError::Read {
                cgroup: path.clone(),
                file: file.to_owned(),
                source,
            })
        })?;
        Ok(Self { file: opened, wanted })
    }

    /// Whether the cgroup is there now, and says so.
    #[must_use]
    pub fn holds(&self) -> bool {
        let mut said = [0; SAID_BYTES];
        // The file of a cgroup that is gone, or has lost its controller, cannot be read (`ENODEV`). What does not fit is not believed.
        let Ok(n @ 1..) = self.file.read_at(&mut said, 0) else { return false };
        let said = &said[..n];
        match &self.wanted {
            Wanted::Line(line) => said.split(|byte| *byte == b'\n').any(|said| said.trim_ascii() == line.as_bytes()),
            Wanted::Words(words) => {
                let has = |word: &String| said.split(u8::is_ascii_whitespace).any(|said| said == word.as_bytes());
                words.iter().all(has)
            }
        }
    }
}
