//! Mount points that another program names, below one directory: those of an orchestrator's containers.
//!
//! Owns: resolving such a path without a symbolic link, a magic link or `..`, and without entering a container's volume; bind mounts
//! there, and removing them, of directories and of the nodes of devices. Does not: decide what is mounted where.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};

use bulkhead_core::units::{Bytes, DevNo};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, fstatvfs, mkdirat, open, openat, openat2, statvfs,
    unlinkat,
};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, UnmountFlags, open_tree};

use super::{MountFlags, attach};
use crate::block::dev_from_raw;
use crate::raw;

/// How each part of a path is resolved.
const NO_LINKS: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// A path that cannot be mounted on, or what cannot be done there.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The path is not absolute, is not below the directory, or contains `..`.
    #[error("{path} is not an absolute path below {dir} without `..`")]
    Outside {
        /// The path.
        path: PathBuf,
        /// The directory.
        dir: PathBuf,
    },
    /// A part of the path is a symbolic link.
    #[error("a part of {path} is a symbolic link")]
    Link {
        /// The path.
        path: PathBuf,
    },
    /// A directory on the way is a mount point, and not the first one.
    #[error("a directory above {path} is a mount point; only one directly in {dir} may be")]
    OtherMount {
        /// The path.
        path: PathBuf,
        /// The directory.
        dir: PathBuf,
    },
    /// The path, or a part of it, is not a directory.
    #[error("{path}, or a part of it, is not a directory")]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// What a device is to be bound to is not a file.
    #[error("{path} is not a file, which the node of a device needs in its place")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// What is to be bound as a device is none.
    #[error("{path} is not the node of a block device")]
    NotADevice {
        /// The path.
        path: PathBuf,
    },
    /// A directory or file that is to be mounted on or removed contains something.
    #[error("{path} is not empty: a mount would hide what is in it")]
    HasFiles {
        /// The directory or file.
        path: PathBuf,
    },
    /// The mount is in use.
    #[error("{path} is in use")]
    Busy {
        /// The mount point.
        path: PathBuf,
    },
    /// Another failure.
    #[error("cannot {step} {path}")]
    Failed {
        /// The path.
        path: PathBuf,
        /// The failed step.
        step: &'static str,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
}

/// A directory whose mount points another program names. Symbolic links in its own path are followed.
#[derive(Debug)]
pub struct PlacesBelow {
    dir: PathBuf,
    real: PathBuf,
    fd: OwnedFd,
}

/// A path below it, whose parent exists. The parent stays the same directory, also if its path changes.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    real: PathBuf,
    parent: OwnedFd,
    name: OsString,
}

impl PlacesBelow {
    /// Opens the directory.
    ///
    /// # Errors
    /// [`PlaceError::Failed`].
    pub fn open(dir: &Path) -> Result<Self, PlaceError> {
        let failed = |source: io::Error| PlaceError::Failed { path: dir.to_owned(), step: "open", source };
        let real = std::fs::canonicalize(dir).map_err(failed)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = open(&real, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        Ok(Self { dir: dir.to_owned(), real, fd })
    }

    /// Its path without symbolic links, as in the mount table.
    #[must_use]
    pub fn real_path(&self) -> &Path {
        &self.real
    }

    /// The place at an absolute path; `None` if a directory on the way does not exist. The first directory on the way may be a mount of its
    /// own, which operators make of the kubelet's `pods`; one further below may be a container's volume.
    ///
    /// # Errors
    /// Any [`PlaceError`] but those of changes.
    pub fn place(&self, path: &Path) -> Result<Option<Place>, PlaceError> {
        let outside = || PlaceError::Outside { path: path.to_owned(), dir: self.dir.clone() };
        let below = path.strip_prefix(&self.dir).map_err(|_| outside())?;
        if !path.is_absolute() || below.components().any(|part| !matches!(part, Component::Normal(_))) {
            return Err(outside());
        }
        let (Some(above), Some(name)) = (below.parent(), below.file_name()) else { return Err(outside()) };
        match self.directory(above) {
            Ok(parent) => {
                let (path, real) = (path.to_owned(), self.real.join(below));
                Ok(Some(Place { path, real, parent, name: name.to_owned() }))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::XDEV) => Err(PlaceError::OtherMount { path: path.to_owned(), dir: self.dir.clone() }),
            Err(errno) => Err(unreachable(path, errno)),
        }
    }

    fn directory(&self, below: &Path) -> Result<OwnedFd, Errno> {
        let mut parts = below.components();
        let first = parts.next().map_or(Path::new("."), |part| Path::new(part.as_os_str()));
        let rest = if parts.as_path().as_os_str().is_empty() { Path::new(".") } else { parts.as_path() };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let first = openat2(&self.fd, first, flags, Mode::empty(), NO_LINKS)?;
        openat2(&first, rest, flags, Mode::empty(), NO_LINKS | ResolveFlags::NO_XDEV)
    }
}

impl Place {
    /// Its path without symbolic links, as in the mount table.
    #[must_use]
    pub fn real_path(&self) -> &Path {
        &self.real
    }

    /// Whether there is a directory, mounted on or not.
    ///
    /// # Errors
    /// [`PlaceError::Link`], [`PlaceError::NotADirectory`] or [`PlaceError::Failed`].
    pub fn exists(&self) -> Result<bool, PlaceError> {
        match self.directory(OFlags::PATH) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(unreachable(&self.path, errno)),
        }
    }

    /// Creates the directory if it is missing, and bind-mounts another one there, without the mounts below that. Flags are added to those of
    /// the mount `from`; the mount never lacks them, not even briefly.
    ///
    /// # Errors
    /// As [`Place::exists`], and [`PlaceError::HasFiles`] for a directory whose files would be hidden.
    pub fn bind(&self, from: &Path, flags: MountFlags) -> Result<(), PlaceError> {
        match mkdirat(&self.parent, &self.name, Mode::from_raw_mode(0o750)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(self.failed("create", errno.into())),
        }
        let target = self.directory(OFlags::RDONLY).map_err(|errno| unreachable(&self.path, errno))?;
        let mut entries = Dir::read_from(&target).map_err(|errno| self.failed("read", errno.into()))?;
        if entries.any(|entry| entry.is_ok_and(|entry| !matches!(entry.file_name().to_bytes(), b"." | b".."))) {
            return Err(PlaceError::HasFiles { path: self.path.clone() });
        }
        let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_NO_AUTOMOUNT;
        let tree = open_tree(CWD, from, clone | OpenTreeFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|errno| PlaceError::Failed { path: from.to_owned(), step: "bind", source: errno.into() })?;
        let attr_set = u64::from(flags.attributes().bits());
        if attr_set != 0 {
            let attr = raw::MountAttr { attr_set, ..raw::MountAttr::default() };
            raw::mount_setattr(tree.as_fd(), 0, &attr).map_err(|error| self.failed("set the flags of", error))?;
        }
        attach(tree.as_fd(), target.as_fd()).map_err(|errno| self.failed("mount on", errno.into()))
    }

    /// Creates an empty file if it is missing, and binds the node of a block device there. The device itself is not opened.
    ///
    /// # Errors
    /// [`PlaceError::Link`]; [`PlaceError::NotAFile`] for a directory in the way, [`PlaceError::HasFiles`] for a file with content;
    /// [`PlaceError::NotADevice`] or [`PlaceError::Failed`].
    pub fn bind_device(&self, from: &Path) -> Result<(), PlaceError> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.parent, &self.name, flags, Mode::from_raw_mode(0o600)) {
            Ok(_) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(self.failed("create", errno.into())),
        }
        let target = self.open().map_err(|errno| unreachable(&self.path, errno))?;
        self.check_empty_file(&target)?;
        let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_NO_AUTOMOUNT;
        let tree = open_tree(CWD, from, clone | OpenTreeFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|errno| PlaceError::Failed { path: from.to_owned(), step: "bind", source: errno.into() })?;
        if block_device(&tree).is_none() {
            return Err(PlaceError::NotADevice { path: from.to_owned() });
        }
        attach(tree.as_fd(), target.as_fd()).map_err(|errno| self.failed("mount on", errno.into()))
    }

    /// The device whose node is there; `None` if there is none.
    #[must_use]
    pub fn device(&self) -> Option<DevNo> {
        self.open().ok().and_then(|found| block_device(&found))
    }

    fn check_empty_file(&self, found: &OwnedFd) -> Result<(), PlaceError> {
        let stat = fstat(found).map_err(|errno| self.failed("examine", errno.into()))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if stat.st_size == 0 => Ok(()),
            FileType::RegularFile => Err(PlaceError::HasFiles { path: self.path.clone() }),
            FileType::Symlink => Err(PlaceError::Link { path: self.path.clone() }),
            _ => Err(PlaceError::NotAFile { path: self.path.clone() }),
        }
    }

    /// What is there, which is not opened itself.
    fn open(&self) -> Result<OwnedFd, Errno> {
        openat2(&self.parent, &self.name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), NO_LINKS)
    }

    /// Unmounts the topmost mount there, never lazily.
    ///
    /// # Errors
    /// [`PlaceError::Busy`] or [`PlaceError::Failed`].
    pub fn unmount(&self) -> Result<(), PlaceError> {
        // By path, as a descriptor of the mount would keep it busy; the link to the parent is the kernel's own.
        let path = Path::new("/proc/self/fd").join(self.parent.as_raw_fd().to_string()).join(&self.name);
        rustix::mount::unmount(&path, UnmountFlags::NOFOLLOW).map_err(|errno| match errno {
            Errno::BUSY => PlaceError::Busy { path: self.path.clone() },
            errno => self.failed("unmount", errno.into()),
        })
    }

    /// Removes the directory, or the file below a device's node, which must be empty and not be mounted on. Succeeds if there is none.
    ///
    /// # Errors
    /// [`PlaceError::HasFiles`], [`PlaceError::NotADirectory`], [`PlaceError::Busy`] or [`PlaceError::Failed`].
    pub fn remove(&self) -> Result<(), PlaceError> {
        let removed = match self.open() {
            Ok(found) if self.check_empty_file(&found).is_ok() => unlinkat(&self.parent, &self.name, AtFlags::empty()),
            _ => unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR),
        };
        match removed {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY) => Err(PlaceError::HasFiles { path: self.path.clone() }),
            Err(Errno::BUSY) => Err(PlaceError::Busy { path: self.path.clone() }),
            Err(Errno::NOTDIR) => Err(PlaceError::NotADirectory { path: self.path.clone() }),
            Err(errno) => Err(self.failed("remove", errno.into())),
        }
    }

    /// How full the file system is that is mounted there.
    ///
    /// # Errors
    /// As [`Place::exists`].
    pub fn usage(&self) -> Result<Usage, PlaceError> {
        let directory = self.directory(OFlags::PATH).map_err(|errno| unreachable(&self.path, errno))?;
        fstatvfs(&directory).map(Usage::of).map_err(|errno| self.failed("examine", errno.into()))
    }

    fn directory(&self, access: OFlags) -> Result<OwnedFd, Errno> {
        let flags = access | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(&self.parent, &self.name, flags, Mode::empty(), NO_LINKS)
    }

    fn failed(&self, step: &'static str, source: io::Error) -> PlaceError {
        PlaceError::Failed { path: self.path.clone(), step, source }
    }
}

/// The number of a block device whose node is open.
fn block_device(node: &OwnedFd) -> Option<DevNo> {
    let stat = fstat(node).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice).then(|| dev_from_raw(stat.st_rdev))
}

fn unreachable(path: &Path, errno: Errno) -> PlaceError {
    let path = path.to_owned();
    match errno {
        Errno::LOOP => PlaceError::Link { path },
        Errno::NOTDIR => PlaceError::NotADirectory { path },
        errno => PlaceError::Failed { path, step: "open", source: errno.into() },
    }
}

/// How full a file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Its size, without what it keeps for itself.
    pub total: Bytes,
    /// What is not allocated.
    pub free: Bytes,
    /// What of that unprivileged users can allocate.
    pub available: Bytes,
    /// Its inodes.
    pub n_inodes: u64,
    /// Those that are free.
    pub n_free_inodes: u64,
}

impl Usage {
    /// How full the file system is that contains a path.
    ///
    /// # Errors
    /// [`PlaceError::Failed`].
    pub fn at(path: &Path) -> Result<Self, PlaceError> {
        let failed = |errno: Errno| PlaceError::Failed { path: path.to_owned(), step: "examine", source: errno.into() };
        statvfs(path).map(Self::of).map_err(failed)
    }

    fn of(found: rustix::fs::StatVfs) -> Self {
        let bytes = |blocks: u64| Bytes(blocks.saturating_mul(found.f_frsize));
        Self {
            total: bytes(found.f_blocks),
            free: bytes(found.f_bfree),
            available: bytes(found.f_bavail),
            n_inodes: found.f_files,
            n_free_inodes: found.f_ffree,
        }
    }
}
