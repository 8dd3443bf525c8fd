//! Whether a device is in use, and by whom.

use std::fmt;
use std::path::{Path, PathBuf};

use bulkhead_core::units::DevNo;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, statx};

use super::{BlockError, device_dir, devno_of, kernel_name, list, read_dev, read_optional, related};
use crate::mount;
use crate::roots::Roots;

/// Why a device is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InUse {
    /// It, or a partition of it, is mounted.
    Mounted {
        /// Kernel name of the device that is mounted.
        name: String,
        /// A mount point, in the mount namespace of process `pid`.
        mount_point: PathBuf,
        /// A process that sees the mount; 0 for this process.
        pid: u32,
    },
    /// Other devices are built on it (dm, md, bcache).
    Holders {
        /// Kernel names of these devices.
        names: Vec<String>,
    },
    /// It is swap space.
    Swap {
        /// Kernel name of the device.
        name: String,
    },
    /// The kernel refuses an exclusive open (`O_EXCL`), for no known reason.
    Claimed,
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted { name, mount_point, pid: 0 } => write!(f, "{name} is mounted on {}", mount_point.display()),
            Self::Mounted { name, mount_point, pid } => {
                write!(f, "{name} is mounted on {} in the mount namespace of process {pid}", mount_point.display())
            }
            Self::Holders { names } => write!(f, "it is used by {}", names.join(", ")),
            Self::Swap { name } => write!(f, "{name} is swap space"),
            Self::Claimed => f.write_str("another program or the kernel has claimed it"),
        }
    }
}

/// Whether and how a device, or a partition of it, is in use: holders, swap, a mount in any mount namespace, or an exclusive claim
/// (the kernel refuses `O_EXCL` in each of these cases).
///
/// # Errors
/// [`BlockError::NotFound`], [`BlockError::Read`].
pub fn is_in_use(roots: &Roots, dev: DevNo) -> Result<Option<InUse>, BlockError> {
    let dir = device_dir(roots, dev)?;
    let mut devices = vec![(dev, kernel_name(&dir)?, dir.clone())];
    for (part, part_dir) in partitions(&dir)? {
        devices.push((part, kernel_name(&part_dir)?, part_dir));
    }
    for (_, _, dir) in &devices {
        let names: Vec<String> = related(&dir.join("holders"))?.into_iter().map(|(_, name)| name).collect();
        if !names.is_empty() {
            return Ok(Some(InUse::Holders { names }));
        }
    }
    for swap in swap_devices(roots)? {
        if let Some((_, name, _)) = devices.iter().find(|(dev, _, _)| *dev == swap) {
            return Ok(Some(InUse::Swap { name: name.clone() }));
        }
    }
    // Our own mount namespace first: its paths are valid for the caller.
    let own = mount::mountinfo(roots).map_err(BlockError::mounts)?;
    for mount in own {
        // btrfs has an anonymous number; its source is one of its devices.
        let by_source = || mount.dev.major == 0 && devno_of(&mount.source).is_ok_and(|dev| dev == devices[0].0);
        let hit = devices.iter().find(|(dev, _, _)| mount.dev == *dev);
        if let Some((_, name, _)) = hit.or_else(|| by_source().then_some(&devices[0])) {
            return Ok(Some(InUse::Mounted { name: name.clone(), mount_point: mount.mount_point, pid: 0 }));
        }
    }
    if !claimed(&roots.dev.join(device_node_name(&dir)?))? {
        return Ok(None);
    }
    // The claim has no visible reason: look in other mount namespaces.
    for (dev, name, _) in devices {
        let users = mount::mounts_of_device(roots, dev).map_err(BlockError::mounts)?;
        if let Some(user) = users.mounts.into_iter().next() {
            return Ok(Some(InUse::Mounted { name, mount_point: user.mount.mount_point, pid: user.pid }));
        }
    }
    Ok(Some(InUse::Claimed))
}

/// The processes that have a device or a partition of it open, whether they have claimed it or not, by pid; this process is left out. Not
/// detected: processes that open it meanwhile, and openers inside the kernel (loop devices).
///
/// # Errors
/// [`BlockError::NotFound`], [`BlockError::Read`].
pub fn openers(roots: &Roots, dev: DevNo) -> Result<Vec<u32>, BlockError> {
    let dir = device_dir(roots, dev)?;
    let mut wanted = vec![dev];
    wanted.extend(partitions(&dir)?.into_iter().map(|(part, _)| part));
    let has_open = |fds: &Path| {
        // A process that has exited meanwhile has nothing open.
        let entries = std::fs::read_dir(fds).into_iter().flatten().filter_map(Result::ok);
        // What a link leads to is examined without waiting for it, as for a file on a server that is gone.
        let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        let found = entries.filter_map(|entry| statx(CWD, entry.path(), flags, StatxFlags::TYPE).ok());
        found.into_iter().any(|stat| {
            FileType::from_raw_mode(stat.stx_mode.into()) == FileType::BlockDevice
                && wanted.contains(&DevNo::new(stat.stx_rdev_major, stat.stx_rdev_minor))
        })
    };
    let processes = list(&roots.proc)?;
    let pids = processes.iter().filter_map(|dir| dir.file_name()?.to_str()?.parse::<u32>().ok());
    let others = pids.filter(|pid| *pid != std::process::id());
    Ok(others.filter(|pid| has_open(&roots.proc.join(pid.to_string()).join("fd"))).collect())
}

/// Writes what the page cache has of a device, and waits for completion, including the device's own cache.
///
/// # Errors
/// [`BlockError::Read`]; also for an earlier write that failed.
pub fn sync(node: &Path) -> Result<(), BlockError> {
    let error = |errno: rustix::io::Errno| BlockError::Read { path: node.to_owned(), source: errno.into() };
    let device = rustix::fs::open(node, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(error)?;
    rustix::fs::fsync(&device).map_err(error)
}

/// Whether the kernel refuses an exclusive open of a device node: it is mounted, swap, or part of another device.
///
/// A node that does not exist is not claimed.
///
/// # Errors
/// [`BlockError::Read`] if the node cannot be opened for another reason.
pub fn claimed(node: &Path) -> Result<bool, BlockError> {
    // O_EXCL without O_CREAT claims a block device (open(2)); on other files it is ignored.
    match rustix::fs::open(node, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()) {
        Ok(_) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NXIO | rustix::io::Errno::NOMEDIUM) => Ok(false),
        Err(rustix::io::Errno::BUSY) => Ok(true),
        Err(error) => Err(BlockError::Read { path: node.to_owned(), source: error.into() }),
    }
}

/// Path of the node below `/dev`, by `DEVNAME=` in `uevent`.
fn device_node_name(dir: &Path) -> Result<String, BlockError> {
    let uevent = read_optional(&dir.join("uevent"))?.unwrap_or_default();
    match uevent.lines().find_map(|line| line.strip_prefix("DEVNAME=")) {
        Some(name) => Ok(name.to_owned()),
        None => kernel_name(dir),
    }
}

fn partitions(dir: &Path) -> Result<Vec<(DevNo, PathBuf)>, BlockError> {
    let mut found = Vec::new();
    for entry in list(dir)? {
        if entry.join("partition").exists() {
            found.push((read_dev(&entry)?, entry));
        }
    }
    Ok(found)
}

/// Swap partitions (`/proc/swaps`). A swap file keeps its file system busy, which is detected as a mount.
fn swap_devices(roots: &Roots) -> Result<Vec<DevNo>, BlockError> {
    let text = read_optional(&roots.proc.join("swaps"))?.unwrap_or_default();
    let partitions = text.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace();
        let path = words.next()?;
        (words.next()? == "partition").then_some(path)
    });
    Ok(partitions.filter_map(|path| devno_of(Path::new(path)).ok()).collect())
}
