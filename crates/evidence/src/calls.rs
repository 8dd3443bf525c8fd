//! Batches of system calls, to measure what observing them costs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, chmodat, mkdirat, openat, unlinkat};
use rustix::io::{Result, pread, pwrite};
use rustix::time::{ClockId, clock_gettime};

/// Calls of a batch: long enough that the clock's resolution does not matter.
const N: u32 = 1000;
/// Size of what is read and written.
const BLOCK: usize = 4096;

/// Groups of batches.
pub(crate) const METADATA: &str = "metadata calls";
pub(crate) const OTHER: &str = "other calls";

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Batch {
    /// Directories made and removed.
    MkdirRmdir,
    /// Files made and removed.
    CreatUnlink,
    /// Other permissions.
    Chmod,
    /// 4 KiB over what is in the page cache, dirty already.
    Overwrite,
    /// 4 KiB out of the page cache.
    Read,
    /// The cheapest call there is.
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

    /// [`METADATA`] if it changes metadata, so that the journal's handles are counted; else [`OTHER`].
    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::MkdirRmdir | Self::CreatUnlink | Self::Chmod => METADATA,
            Self::Overwrite | Self::Read | Self::Getppid => OTHER,
        }
    }

    /// Makes what the calls need below a directory of an ext4.
    pub(crate) fn prepare(self, root: BorrowedFd<'_>) -> Result<Subject> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(root, "subject", flags, Mode::RUSR | Mode::WUSR)?;
        for block in 0..N {
            pwrite(&file, &[1; BLOCK], offset(block))?;
        }
        Ok(Subject { batch: self, root: root.try_clone_to_owned().map_err(|_| rustix::io::Errno::MFILE)?, file })
    }
}

/// Where the calls of a batch work.
pub(crate) struct Subject {
    batch: Batch,
    root: OwnedFd,
    file: OwnedFd,
}

impl Subject {
    /// Makes all calls of the batch; returns their number.
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

/// Processor time of the calling thread since it began, in user space and kernel.
pub(crate) fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Processor time of this process, all its threads together.
pub(crate) fn process_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}
