//! Batches of system calls, to measure the cost of observing them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, chmodat, mkdirat, openat, unlinkat};
use rustix::io::{Result, pread, pwrite};
use rustix::time::{ClockId, clock_gettime};

/// Calls per batch, enough that the clock's resolution does not matter.
const N: u32 = 1000;
/// Size of reads and writes.
const BLOCK: usize = 4096;

/// Groups of batches.
pub(crate) const METADATA: &str = "metadata calls";
pub(crate) const OTHER: &str = "other calls";

/// The kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Batch {
    /// Creating and removing directories.
    MkdirRmdir,
    /// Creating and removing files.
    CreatUnlink,
    /// Changing permissions.
    Chmod,
    /// Writing 4 KiB over dirty pages in the page cache.
    Overwrite,
    /// Reading 4 KiB from the page cache.
    Read,
    /// The cheapest system call.
    Getppid,
}

impl Batch {
    pub(crate) const ALL: [Self; 6] =
        [Self::MkdirRmdir, Self::CreatUnlink, Self::Chmod, Self::Overwrite, Self::Read, Self::Getppid];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MkdirRmdir => "mkdir + rmdir",
            Self::CreatUnlink => "creat + unlink",
            Self::Chmod => "chmod",
            Self::Overwrite => "overwrite 4 KiB",
            Self::Read => "read 4 KiB",
            Self::Getppid => "getppid",
        }
    }

    /// [`METADATA`] if it changes metadata, so that journal handles are observed; else [`OTHER`].
    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::MkdirRmdir | Self::CreatUnlink | Self::Chmod => METADATA,
            Self::Overwrite | Self::Read | Self::Getppid => OTHER,
        }
    }

    /// Creates the files that the calls need, below a directory on ext4.
    pub(crate) fn prepare(self, root: BorrowedFd<'_>) -> Result<Subject> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(root, "subject", flags, Mode::RUSR | Mode::WUSR)?;
        for block in 0..N {
            pwrite(&file, &[1; BLOCK], offset(block))?;
        }
        Ok(Subject { batch: self, root: root.try_clone_to_owned().map_err(|_| rustix::io::Errno::MFILE)?, file })
    }
}

/// The files that the calls of a batch work on.
pub(crate) struct Subject {
    batch: Batch,
    root: OwnedFd,
    file: OwnedFd,
}

impl Subject {
    /// Runs the batch; returns the number of calls.
    pub(crate) fn run(&self) -> Result<u32> {
        let names: Vec<String> = (0..N).map(|n| format!("entry-{n}")).collect();
        let mut buffer = [2; BLOCK];
        for (block, name) in (0..N).zip(&names) {
            match self.batch {
                Batch::MkdirRmdir => mkdirat(&self.root, name, Mode::RWXU)?,
                Batch::CreatUnlink => {
                    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
                    drop(openat(&self.root, name, flags, Mode::RUSR)?);
                }
                Batch::Chmod => {
                    let mode = if block % 2 == 0 { Mode::RUSR } else { Mode::RWXU };
                    chmodat(self.root.as_fd(), "subject", mode, AtFlags::empty())?;
                }
                Batch::Overwrite => drop(pwrite(&self.file, &buffer, offset(block))?),
                Batch::Read => drop(pread(&self.file, &mut buffer, offset(block))?),
                Batch::Getppid => drop(rustix::process::getppid()),
            }
        }
        let flags = match self.batch {
            Batch::MkdirRmdir => AtFlags::REMOVEDIR,
            Batch::CreatUnlink => AtFlags::empty(),
            _ => return Ok(N),
        };
        names.iter().try_for_each(|name| unlinkat(&self.root, name, flags))?;
        Ok(2 * N)
    }
}

fn offset(block: u32) -> u64 {
    u64::from(block) * BLOCK as u64
}

/// CPU time of the calling thread so far, in user space and kernel.
pub(crate) fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// CPU time of this process, all threads.
pub(crate) fn process_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}
