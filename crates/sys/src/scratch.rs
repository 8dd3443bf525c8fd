//! A file system in memory with its journal on a separate device, to measure journal writes.
//!
//! Owns two loop devices over memory and a detached mount. All are held by descriptors only, so that they are removed on drop, and if
//! the process is killed. Only the nodes in `/dev` are visible.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bulkhead_core::units::{Bytes, DevNo};
use rustix::fs::{Mode, OFlags, fsync, mkdirat, openat, syncfs};
use rustix::ioctl::{Opcode, Setter, ioctl};

use crate::block::{self, BlockError};
use crate::loopdev::{self, HeldDevice, LoopError};
use crate::mount::{self, MountError, MountFlags};
use crate::roots::Roots;
use crate::tool::{Tool, ToolError};

/// Size of the file system, sufficient for 16 000 files.
const FS_SIZE: Bytes = Bytes(64 << 20);
/// The smallest size that `mkfs.xfs` supports. Unwritten parts take no memory.
const XFS_SIZE: Bytes = Bytes(300 << 20);
/// The smallest log for that size.
const XFS_LOG: Bytes = Bytes(64 << 20);
/// Number of operations in [`Scratch::exercise`].
const DIRECTORIES: u32 = 64;
const SYNCS: u32 = 8;

/// The scratch file system could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ScratchError {
    /// A device could not be created.
    #[error("cannot create a block device in memory")]
    Device(#[from] LoopError),
    /// mkfs failed.
    #[error("cannot create the scratch file system")]
    Make(#[from] ToolError),
    /// The new journal could not be written back.
    #[error("cannot write to the scratch file system's journal")]
    Write(#[source] std::io::Error),
    /// It cannot be mounted.
    #[error("cannot mount the scratch file system")]
    Mount(#[from] MountError),
    /// It is mounted, but cannot be used.
    #[error("cannot open the scratch file system")]
    Open(#[source] std::io::Error),
}

/// A mounted scratch file system.
#[derive(Debug)]
pub struct Scratch {
    // Drop order: the root, the mount, the devices.
    root: OwnedFd,
    _mount: OwnedFd,
    fs: HeldDevice,
    journal: HeldDevice,
    is_xfs: bool,
}

impl Scratch {
    /// Creates an ext4 with a journal of this size. `mkfs` are additional arguments of `mke2fs`, for example `["-O", "fast_commit"]`,
    /// `options` those of the mount.
    ///
    /// # Errors
    /// [`ScratchError`].
    pub fn ext4(
        roots: &Roots,
        journal: Bytes,
        mkfs: &[&str],
        options: &[(&str, Option<&str>)],
    ) -> Result<Self, ScratchError> {
        let journal = loopdev::attach_memory(roots, journal)?;
        let fs = loopdev::attach_memory(roots, FS_SIZE)?;
        Tool::new("mke2fs").args(["-q", "-F", "-b", "4096", "-O", "journal_dev"]).arg(&journal.path).run()?;
        let lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        let on_journal = format!("device={}", journal.path.display());
        let make = Tool::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-b", "4096", "-E", lazy, "-J", &on_journal]);
        make.args(mkfs).arg(&fs.path).run()?;
        // mke2fs leaves the journal's list of file systems dirty in the page cache; its writeback would distort measurements.
        journal.sync().map_err(ScratchError::Write)?;
        Self::mount("ext4", fs, journal, options)
    }

    /// Creates an XFS with its log on a separate device.
    ///
    /// # Errors
    /// [`ScratchError`].
    pub fn xfs(roots: &Roots) -> Result<Self, ScratchError> {
        let journal = loopdev::attach_memory(roots, XFS_LOG)?;
        let fs = loopdev::attach_memory(roots, XFS_SIZE)?;
        let on_journal = format!("logdev={},size={},sectsize=4096", journal.path.display(), XFS_LOG.0);
        Tool::new("mkfs.xfs").args(["-q", "-f", "-s", "size=4096", "-l", &on_journal]).arg(&fs.path).run()?;
        let log = journal.path.display().to_string();
        // In a cloned virtual machine its UUID may be that of another XFS.
        Self::mount("xfs", fs, journal, &[("logdev", Some(&log)), ("nouuid", None)])
    }

    /// Creates an XFS with an internal log; the journal device is unused.
    #[cfg(test)]
    pub(crate) fn xfs_with_internal_log(roots: &Roots) -> Result<Self, ScratchError> {
        let journal = loopdev::attach_memory(roots, Bytes(1 << 20))?;
        let fs = loopdev::attach_memory(roots, XFS_SIZE)?;
        Tool::new("mkfs.xfs").args(["-q", "-f", "-s", "size=4096"]).arg(&fs.path).run()?;
        Self::mount("xfs", fs, journal, &[("nouuid", None)])
    }

    /// Remounts an XFS with an external log.
    #[cfg(test)]
    pub(crate) fn xfs_remounted(self) -> Result<Self, ScratchError> {
        let Self { root, _mount: mount, fs, journal, .. } = self;
        drop((root, mount));
        let log = journal.path.display().to_string();
        Self::mount("xfs", fs, journal, &[("logdev", Some(&log)), ("nouuid", None)])
    }

    fn mount(
        fs_type: &str,
        fs: HeldDevice,
        journal: HeldDevice,
        options: &[(&str, Option<&str>)],
    ) -> Result<Self, ScratchError> {
        let flags = MountFlags { nosuid: true, nodev: true, noexec: true, noatime: true, readonly: false };
        let mount = mount::mount_detached(&fs.path, fs_type, flags, options)?;
        // The mount's descriptor is an O_PATH one.
        let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(&mount, ".", directory, Mode::empty()).map_err(|errno| ScratchError::Open(errno.into()))?;
        Ok(Self { root, _mount: mount, fs, journal, is_xfs: fs_type == "xfs" })
    }

    /// Its root directory.
    #[must_use]
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The data device.
    #[must_use]
    pub fn fs_dev(&self) -> DevNo {
        self.fs.dev
    }

    /// The journal device.
    #[must_use]
    pub fn journal_dev(&self) -> DevNo {
        self.journal.dev
    }

    /// Writes out all dirty data, and finishes background work.
    ///
    /// # Errors
    /// The operating system's.
    pub fn settle(&self) -> std::io::Result<()> {
        if self.is_xfs {
            flush_inodegc(self.root.as_fd())?;
        }
        Ok(syncfs(&self.root)?)
    }

    /// Creates directories, appends with fsync, and writes out all dirty data: causes both asynchronous and synchronous commits.
    ///
    /// # Errors
    /// The operating system's.
    pub fn exercise(&self) -> std::io::Result<()> {
        for i in 0..DIRECTORIES {
            mkdirat(&self.root, format!("d{i}"), Mode::RWXU)?;
        }
        let file = openat(&self.root, "file", OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR)?;
        for _ in 0..SYNCS {
            rustix::io::write(&file, &[1; 4096])?;
            fsync(&file)?;
        }
        self.settle()
    }

    /// Bytes written to the journal device.
    ///
    /// # Errors
    /// [`BlockError`].
    pub fn journal_written(&self, roots: &Roots) -> Result<u64, BlockError> {
        Ok(block::diskstat(roots, self.journal.dev)?.write_sectors * 512)
    }
}

/// Waits until XFS has inactivated the inodes of removed files, which happens in the background, and is not awaited by syncfs.
fn flush_inodegc(root: BorrowedFd<'_>) -> std::io::Result<()> {
    // No file is that large: only the flush of inodegc takes effect.
    let blocks = FsEofBlocks {
        version: 1,
        flags: XFS_EOF_FLAGS_MIN_FILE_SIZE,
        min_file_size: u64::MAX,
        ..FsEofBlocks::default()
    };
    // SAFETY: `FsEofBlocks` has the size and layout that XFS_IOC_FREE_EOFBLOCKS reads (asserted below).
    let request = unsafe { Setter::<XFS_IOC_FREE_EOFBLOCKS, FsEofBlocks>::new(blocks) };
    // SAFETY: the descriptor refers to an XFS, which reads the struct and writes nothing to our memory.
    Ok(unsafe { ioctl(root, request) }?)
}

/// `XFS_IOC_FREE_EOFBLOCKS` (fs/xfs/libxfs/xfs_fs.h): frees speculatively preallocated blocks, and flushes inodegc.
const XFS_IOC_FREE_EOFBLOCKS: Opcode = rustix::ioctl::opcode::read::<FsEofBlocks>(b'X', 58);
/// `XFS_EOF_FLAGS_MINFILESIZE` (fs/xfs/libxfs/xfs_fs.h).
const XFS_EOF_FLAGS_MIN_FILE_SIZE: u32 = 1 << 4;

/// `struct xfs_fs_eofblocks` (fs/xfs/libxfs/xfs_fs.h).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct FsEofBlocks {
    version: u32,
    flags: u32,
    uid: u32,
    gid: u32,
    prid: u32,
    pad32: u32,
    min_file_size: u64,
    pad64: [u64; 12],
}

const _: () = assert!(size_of::<FsEofBlocks>() == 128 && std::mem::offset_of!(FsEofBlocks, min_file_size) == 24);
