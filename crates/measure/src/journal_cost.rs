//! `bulkhead journal calibrate`: the cost of each system call in journal bytes, on a scratch ext4 or XFS with its journal on a separate
//! device.
//!
//! Owns: the calls, and the order of the runs. A run counts the bytes written to the journal's device, from the first call to the end of the
//! commit that `syncfs` forces; the commit timer does not expire in between. Does not: judge or use the figures.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use bulkhead_core::observe::cost::{Call, CallCost, CostRun};
use bulkhead_core::units::Bytes;
use bulkhead_sys::file::write_back;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::scratch::{Scratch, ScratchError};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, XattrFlags, chmodat, fsetxattr, fsync, ftruncate, linkat, mkdirat, mknodat,
    openat, renameat, symlinkat, unlinkat,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::cgroup_run::Cancel;

/// Large enough that a full journal forces no commit; memory is used only for written blocks.
const JOURNAL: Bytes = Bytes::mib(256);
/// Longer than any run, in seconds.
const COMMIT_INTERVAL: &str = "3000";
/// Number of calls in the short part of a run, which separates the cost of a commit from that of a call.
pub const N_FEW: u32 = 10;

/// A kind of file system: an ext4 by the features that `mke2fs` is given, or an XFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Features {
    /// Defaults of mke2fs
    Default,
    /// With fast commits
    #[value(name = "fast_commit")]
    FastCommit,
    /// With small files and directories inside their inodes
    #[value(name = "inline_data")]
    InlineData,
    /// XFS instead of ext4, as mkfs.xfs makes it for sectors of 4 KiB
    Xfs,
}

impl Features {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Default, Self::FastCommit, Self::InlineData, Self::Xfs];

    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::FastCommit => "fast_commit",
            Self::InlineData => "inline_data",
            Self::Xfs => "xfs",
        }
    }

    /// Its name in headings.
    #[must_use]
    pub fn title(self) -> String {
        match self {
            Self::Xfs => "XFS".to_owned(),
            ext4 => format!("ext4, {}", ext4.name()),
        }
    }

    /// The program that creates it, and its Debian package.
    #[must_use]
    pub fn mkfs(self) -> (&'static str, &'static str) {
        match self {
            Self::Xfs => ("mkfs.xfs", "xfsprogs"),
            _ => ("mke2fs", "e2fsprogs"),
        }
    }

    fn make(self, roots: &Roots) -> Result<Scratch, ScratchError> {
        let options = match self {
            Self::Default => &[][..],
            Self::FastCommit => &["-O", "fast_commit"],
            Self::InlineData => &["-O", "inline_data"],
            // The interval of its log timer has no option; a run ends long before it expires, 30 s after the mount.
            Self::Xfs => return Scratch::xfs(roots),
        };
        Scratch::ext4(roots, JOURNAL, options, &[("commit", Some(COMMIT_INTERVAL))])
    }
}

/// A measurement to perform.
#[derive(Clone, Debug)]
pub struct Request {
    /// The kinds of file systems.
    pub features: Vec<Features>,
    /// Number of runs, at least 1.
    pub n_runs: u32,
    /// Number of calls of each kind per run, more than [`N_FEW`] and at most [`MAX_CALLS`].
    pub n_calls: u32,
    /// Cancels it.
    pub cancel: Cancel,
}

/// Maximum number of calls of each kind per run: the scratch file system has room for these.
pub const MAX_CALLS: u32 = 1000;
/// Minimum number of calls, which separates the cost of a call from that of a commit.
pub const MIN_CALLS: u32 = 10 * N_FEW;

/// The result of one call in one run. Order: all calls on all kinds of file systems, then the next run.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// The kind of file system, of [`Request::features`].
    pub features: Features,
    /// The call.
    pub call: Call,
    /// Its cost.
    pub run: CostRun,
}

/// Number of results ([`Measured`]) of a request.
#[must_use]
pub fn n_steps(request: &Request) -> usize {
    request.features.len() * Call::ALL.len() * usize::try_from(request.n_runs).unwrap_or(usize::MAX)
}

/// Measures. Each run of each call has a new file system, because the layout of free blocks that previous calls leave affects the cost of
/// appending.
///
/// # Errors
/// When the scratch file system cannot be made or used, or when it is cancelled.
pub fn measure(roots: &Roots, request: &Request, on_run: &mut dyn FnMut(Measured) -> Result<()>) -> Result<()> {
    for _ in 0..request.n_runs {
        for &features in &request.features {
            for call in Call::ALL {
                request.cancel.check()?;
                let run = measure_call(roots, features, call, request.n_calls)
                    .with_context(|| format!("{} on a scratch file system ({})", call.word(), features.title()))?;
                on_run(Measured { features, call, run })?;
            }
        }
    }
    Ok(())
}

/// The costs by call and kind of file system.
#[must_use]
pub fn costs(request: &Request, measured: &[Measured]) -> Vec<CallCost> {
    let of = |features: Features, call: Call| {
        let runs = measured.iter().filter(|one| one.features == features && one.call == call).map(|one| one.run);
        CallCost::of(features.name(), call, request.n_calls, N_FEW, runs.collect())
    };
    request
        .features
        .iter()
        .flat_map(|&features| Call::ALL.into_iter().filter_map(move |call| of(features, call)))
        .collect()
}

fn measure_call(roots: &Roots, features: Features, call: Call, n_calls: u32) -> Result<CostRun> {
    let scratch = features.make(roots)?;
    let _pinned = Pinned::here().context("cannot stay on one processor")?;
    let subject = Subject::prepare(scratch.root(), call, N_FEW + n_calls).context("cannot prepare")?;
    scratch.settle().context("cannot write it out")?;
    let cost = |numbers: std::ops::Range<u32>| -> Result<u64> {
        let before = scratch.journal_written(roots)?;
        for number in numbers.clone() {
            subject.call(number)?;
        }
        subject.write_data(numbers)?;
        scratch.settle().context("cannot write it out")?;
        Ok(scratch.journal_written(roots)?.saturating_sub(before))
    };
    Ok(CostRun { few_bytes: cost(0..N_FEW)?, bytes: cost(N_FEW..N_FEW + n_calls)? })
}

/// Pins this thread to one CPU until dropped. ext4 preallocates blocks of small files per CPU: a file that grows while its thread migrates is
/// fragmented, and needs an extent block in each commit.
struct Pinned {
    before: CpuSet,
}

impl Pinned {
    fn here() -> rustix::io::Result<Self> {
        let before = sched_getaffinity(None)?;
        let mut one = CpuSet::new();
        one.set(sched_getcpu());
        sched_setaffinity(None, &one)?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The previous affinity was permitted.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// A separate directory with the files that a call needs.
struct Subject {
    call: Call,
    directory: OwnedFd,
    /// The file that [`Call::AppendFsync`] appends to.
    log: OwnedFd,
}

impl Subject {
    fn prepare(root: BorrowedFd<'_>, call: Call, n: u32) -> rustix::io::Result<Self> {
        mkdirat(root, call.word(), Mode::RWXU)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(root, call.word(), flags, Mode::empty())?;
        let log = create(directory.as_fd(), "log")?;
        for number in 0..n {
            match call {
                Call::Mkdir | Call::Creat | Call::Mknod | Call::Symlink | Call::AppendFsync => break,
                Call::Rmdir => mkdirat(&directory, name(number), Mode::RWXU)?,
                Call::Truncate
                | Call::Unlink
                | Call::Write
                | Call::Rename
                | Call::Link
                | Call::Setxattr
                | Call::Chmod => {
                    create(directory.as_fd(), &name(number)).map(drop)?;
                }
            }
        }
        Ok(Self { call, directory, log })
    }

    fn open(&self, name: &str) -> rustix::io::Result<OwnedFd> {
        openat(&self.directory, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Writes and allocates the data before the commit: syncfs would start a commit while it still allocates, resulting in one or two commits
    /// at random.
    fn write_data(&self, mut numbers: std::ops::Range<u32>) -> Result<()> {
        match self.call {
            Call::Write => numbers.try_for_each(|number| Ok(write_back(self.open(&name(number))?)?)),
            _ => Ok(()),
        }
    }

    fn call(&self, number: u32) -> rustix::io::Result<()> {
        let (directory, name) = (&self.directory, name(number));
        let open = || self.open(&name);
        let other = || format!("other-{number}");
        match self.call {
            Call::Mkdir => mkdirat(directory, &name, Mode::RWXU),
            Call::Creat => create(directory.as_fd(), &name).map(drop),
            Call::Mknod => mknodat(directory, &name, FileType::Fifo, Mode::RUSR, 0),
            Call::Truncate => ftruncate(open()?, 4096),
            Call::Unlink => unlinkat(directory, &name, AtFlags::empty()),
            Call::Write => rustix::io::write(open()?, &[1; 4096]).map(drop),
            Call::Rmdir => unlinkat(directory, &name, AtFlags::REMOVEDIR),
            Call::Rename => renameat(directory, &name, directory, other()),
            Call::Link => linkat(directory, &name, directory, other(), AtFlags::empty()),
            Call::Symlink => symlinkat("elsewhere", directory, &name),
            Call::Setxattr => fsetxattr(open()?, "user.bulkhead", &[1; 16], XattrFlags::empty()),
            Call::Chmod => chmodat(directory, &name, Mode::RUSR | Mode::RGRP, AtFlags::empty()),
            Call::AppendFsync => {
                rustix::io::write(&self.log, &[1; 4096])?;
                fsync(&self.log)
            }
        }
    }
}

fn create(directory: BorrowedFd<'_>, name: &str) -> rustix::io::Result<OwnedFd> {
    openat(directory, name, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
}

/// Names have one length, so that directories have the same number of blocks in each run.
fn name(number: u32) -> String {
    format!("file-{number:06}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two short runs of all calls; `None`, with the reason printed, where there is no scratch file system.
    fn measured(features: Features) -> Option<Vec<CallCost>> {
        if let Err(error) = features.make(&Roots::host()) {
            println!("skipped: {error}: {:?}", std::error::Error::source(&error));
            return None;
        }
        let request = Request { features: vec![features], n_runs: 2, n_calls: MIN_CALLS, cancel: Cancel::new() };
        let mut measured = Vec::new();
        measure(&Roots::host(), &request, &mut |one| {
            measured.push(one);
            Ok(())
        })
        .unwrap();
        assert_eq!(measured.len(), n_steps(&request));
        let costs = costs(&request, &measured);
        for cost in &costs {
            // Tolerates a busy machine; the experiment has the exact limit.
            assert!(cost.mean_kib > 8.0 && cost.variation < 0.25, "{cost:?}");
        }
        Some(costs)
    }

    fn cost_of(costs: &[CallCost], call: Call) -> &CallCost {
        costs.iter().find(|cost| cost.call == call).expect("every call has a cost")
    }

    #[test]
    fn root_costs_of_calls_are_found_on_a_real_journal() {
        let Some(costs) = measured(Features::Default) else { return };
        let of = |call| cost_of(&costs, call);
        // A directory's block is journalled whole, a file's inode shares its block with 15 others.
        assert!(of(Call::Mkdir).per_call_bytes > 4096.0, "{:?}", of(Call::Mkdir));
        assert!((256.0..1024.0).contains(&of(Call::Creat).per_call_bytes), "{:?}", of(Call::Creat));
        // Each is a commit of at least a descriptor, an inode and a commit block.
        assert!(of(Call::AppendFsync).per_call_bytes > 3.0 * 4096.0, "{:?}", of(Call::AppendFsync));
    }

    #[test]
    fn root_costs_of_calls_are_found_on_a_real_log() {
        let Some(costs) = measured(Features::Xfs) else { return };
        let of = |call| cost_of(&costs, call);
        // XFS logs the changed regions, not whole blocks.
        assert!((128.0..1024.0).contains(&of(Call::Mkdir).per_call_bytes), "{:?}", of(Call::Mkdir));
        // Each is a checkpoint of at least one sector.
        assert!(of(Call::AppendFsync).per_call_bytes >= 4096.0, "{:?}", of(Call::AppendFsync));
    }
}
