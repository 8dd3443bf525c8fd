//! Mounts, bind mounts, and the mounts of a device.
//!
//! Owns the calls of the mount API (`fsopen(2)` etc.) and reading `/proc/PID/mountinfo`. Does not create file systems or mount points, or
//! decide what is mounted. A symbolic link in the last component of a target is never followed, because its directory may belong to
//! another user.

mod error;
mod node;
mod place;
mod table;

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_core::units::DevNo;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, fstat, mkdirat, open, openat,
    openat2, statx, syncfs,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

pub use self::error::MountError;
pub use self::node::{bind_node, bound_node, other_binds, unbind_node, unmount_other_binds};
pub use self::place::{Place, PlaceError, PlacesBelow, Usage};
pub use self::table::{
    DeviceUsers, MountInfo, MountPoints, MountUser, mountinfo, mountinfo_of, mounts_of_device, mounts_of_devices,
    parse_mountinfo, split_options, unquote,
};
use crate::block::dev_from_raw;
use crate::raw;
use crate::roots::Roots;

/// Limit on messages read from a file system context (its ring has 8 slots, kernel `struct fc_log`).
const MAX_MESSAGES: usize = 16;

/// Attributes of a mount (`MOUNT_ATTR_*` of `<linux/mount.h>`), all off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountFlags {
    /// Set-user-ID bits and file capabilities are ignored.
    pub nosuid: bool,
    /// Device nodes cannot be opened.
    pub nodev: bool,
    /// Programs cannot be executed.
    pub noexec: bool,
    /// Access times are not updated.
    pub noatime: bool,
    /// Read-only: both the mount and, as far as the file system honours it, the file system itself.
    pub readonly: bool,
}

impl MountFlags {
    fn attributes(self) -> MountAttrFlags {
        let mut attributes = MountAttrFlags::empty();
        attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, self.nosuid);
        attributes.set(MountAttrFlags::MOUNT_ATTR_NODEV, self.nodev);
        attributes.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, self.noexec);
        attributes.set(MountAttrFlags::MOUNT_ATTR_NOATIME, self.noatime);
        attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, self.readonly);
        attributes
    }
}

/// Mounts the file system on `device` at `target`, which must exist and not be a symbolic link.
///
/// `options` are those of the file system (`("data", Some("ordered"))`, `("discard", None)`), `flags` those of the mount. If the device is
/// mounted already, the kernel mounts the same file system a second time; it is up to the caller to check.
///
/// # Errors
/// [`MountError::UnknownFs`], [`MountError::Symlink`], [`MountError::Open`], [`MountError::Option`], or [`MountError::Mount`] with the failed
/// step and the kernel's message.
pub fn mount(
    device: &Path,
    fs_type: &str,
    target: &Path,
    flags: MountFlags,
    options: &[(&str, Option<&str>)],
) -> Result<(), MountError> {
    let place = open_target(target)?;
    let mount = create_mount(device, fs_type, target, flags, options)?;
    attach(mount.as_fd(), place.as_fd()).map_err(|errno| MountError::Mount {
        device: device.to_owned(),
        fs_type: fs_type.to_owned(),
        target: target.to_owned(),
        detail: "move_mount".to_owned(),
        source: errno.into(),
    })
}

/// Creates a detached mount of the file system on `device`: accessible only through the returned descriptor of its root, and unmounted
/// when that descriptor and all files opened through it are closed.
///
/// # Errors
/// [`MountError::UnknownFs`], [`MountError::Option`] or [`MountError::Mount`].
pub fn mount_detached(
    device: &Path,
    fs_type: &str,
    flags: MountFlags,
    options: &[(&str, Option<&str>)],
) -> Result<OwnedFd, MountError> {
    create_mount(device, fs_type, Path::new("a detached mount"), flags, options)
}

fn create_mount(
    device: &Path,
    fs_type: &str,
    target: &Path,
    flags: MountFlags,
    options: &[(&str, Option<&str>)],
) -> Result<OwnedFd, MountError> {
    let context = fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC);
    let error = |detail: String, errno: Errno| MountError::Mount {
        device: device.to_owned(),
        fs_type: fs_type.to_owned(),
        target: target.to_owned(),
        detail,
        source: errno.into(),
    };
    let context = context.map_err(|errno| match errno {
        Errno::NODEV => MountError::UnknownFs { fs_type: fs_type.to_owned() },
        errno => error("fsopen".to_owned(), errno),
    })?;
    let fail = |step: &str, errno: Errno| error(format!("{step}{}", message_suffix(&messages(context.as_fd()))), errno);
    fsconfig_set_string(&context, "source", device).map_err(|errno| fail("source", errno))?;
    if flags.readonly {
        fsconfig_set_flag(&context, "ro").map_err(|errno| fail("option ro", errno))?;
    }
    for &(key, value) in options {
        let set = match value {
            Some(value) => fsconfig_set_string(&context, key, value),
            None => fsconfig_set_flag(&context, key),
        };
        set.map_err(|errno| MountError::Option {
            device: device.to_owned(),
            option: value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}")),
            message: messages(context.as_fd()),
            source: errno.into(),
        })?;
    }
    fsconfig_create(&context).map_err(|errno| fail("reading the file system", errno))?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags.attributes()).map_err(|errno| fail("fsmount", errno))
}

/// The `st_dev` of the topmost mount at `target`; `None` if `target` is not a mount point or does not exist. A single system call,
/// independent of the number of mounts. Does not follow a symbolic link, trigger an automount, or wait for I/O.
///
/// # Errors
/// Those of [`mountinfo`], which is the fallback if `statx` fails, as it does on a file system that was shut down.
pub fn mounted_at(roots: &Roots, target: &Path) -> Result<Option<DevNo>, MountError> {
    match mounted_below(CWD, target) {
        Ok(found) => Ok(found),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(_) => {
            let mounts = mountinfo(roots)?;
            Ok(mounts.iter().rfind(|mount| mount.mount_point == target).map(|mount| mount.dev))
        }
    }
}

/// The `st_dev` of the topmost mount at a path below an open directory.
fn mounted_below(directory: BorrowedFd<'_>, path: &Path) -> Result<Option<DevNo>, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = statx(directory, path, flags, StatxFlags::empty())?;
    // Reported since Linux 5.8, which is older than any supported kernel.
    let is_mount = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    Ok(is_mount.then(|| DevNo::new(found.stx_dev_major, found.stx_dev_minor)))
}

/// Unmounts the topmost mount at `target`. Never lazily: after success the file system is not in use through this mount.
///
/// # Errors
/// [`MountError::Busy`], [`MountError::NotMounted`] or [`MountError::Unmount`].
pub fn unmount(target: &Path) -> Result<(), MountError> {
    unmount_by(target, target)
}

/// As [`unmount`], by another path than the one that errors name.
fn unmount_by(path: &Path, target: &Path) -> Result<(), MountError> {
    // By path, as a descriptor of the target would keep the mount busy.
    rustix::mount::unmount(path, UnmountFlags::NOFOLLOW).map_err(|errno| match errno {
        Errno::BUSY => MountError::Busy { target: target.to_owned() },
        Errno::INVAL => MountError::NotMounted { target: target.to_owned() },
        errno => MountError::Unmount { target: target.to_owned(), source: errno.into() },
    })
}

/// Unmounts those mounts of a device that are in this table, the latest first, but for the one at `kept`. Never lazily. A path at which
/// something else is mounted by now, or that leads over a symbolic link, stays as it is.
///
/// # Errors
/// [`MountError::Busy`] or [`MountError::Unmount`]; later ones are unmounted then, earlier ones are not.
pub fn unmount_others(table: &[MountInfo], dev: DevNo, kept: &Path) -> Result<(), MountError> {
    unmount_where(table, dev, kept, |mount| mount.dev == dev)
}

/// As [`unmount_others`], of those mounts with this `st_dev` that are chosen.
fn unmount_where(
    table: &[MountInfo],
    dev: DevNo,
    kept: &Path,
    is_chosen: impl Fn(&MountInfo) -> bool,
) -> Result<(), MountError> {
    for target in table.iter().rev().filter(|mount| is_chosen(mount)).map(|mount| &mount.mount_point) {
        let (Some(above), Some(name)) = (target.parent(), target.file_name()) else { continue };
        let no_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(above) = openat2(CWD, above, flags, Mode::empty(), no_links) else { continue };
        if target == kept || mounted_below(above.as_fd(), Path::new(name)) != Ok(Some(dev)) {
            continue;
        }
        let path = Path::new("/proc/self/fd").join(above.as_raw_fd().to_string()).join(name);
        unmount_by(&path, target)?;
    }
    Ok(())
}

/// Bind-mounts the directory or file `from`, without the mounts below it, at `target`, which must exist, be of the same kind and not be a
/// symbolic link. A read-only bind is never writable, not even briefly.
///
/// # Errors
/// [`MountError::Symlink`], [`MountError::Open`] or [`MountError::Bind`].
pub fn bind(from: &Path, target: &Path, readonly: bool) -> Result<(), MountError> {
    let place = open_target(target)?;
    let error = |step: &'static str, source: io::Error| MountError::Bind {
        from: from.to_owned(),
        target: target.to_owned(),
        step,
        source,
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_NO_AUTOMOUNT;
    let tree = open_tree(CWD, from, flags).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP => {
            MountError::Open { path: from.to_owned(), source: errno.into() }
        }
        errno => error("open_tree", errno.into()),
    })?;
    if readonly {
        let attr_set = u64::from(MountAttrFlags::MOUNT_ATTR_RDONLY.bits());
        let attr = raw::MountAttr { attr_set, ..raw::MountAttr::default() };
        raw::mount_setattr(tree.as_fd(), 0, &attr).map_err(|source| error("mount_setattr", source))?;
    }
    attach(tree.as_fd(), place.as_fd()).map_err(|errno| error("move_mount", errno.into()))
}

/// Replaces the mount at `target` by a mount of its subdirectory `name`, which is created if it is missing and must not be a symbolic
/// link. The root directory may be writable by anyone: no link in it is followed. The mount must not be in use yet.
///
/// # Errors
/// [`MountError::Bind`], [`MountError::Busy`], [`MountError::Symlink`] or [`MountError::Open`].
pub fn mount_subdirectory(target: &Path, name: &str) -> Result<(), MountError> {
    let from = target.join(name);
    let error = |step: &'static str| {
        let (from, target) = (from.clone(), target.to_owned());
        move |errno: Errno| MountError::Bind { from, target, step, source: errno.into() }
    };
    let tree = {
        let root = open_target(target)?;
        match mkdirat(&root, name, Mode::from_raw_mode(0o755)) {
            // On a read-only file system it may exist already.
            Ok(()) | Err(Errno::EXIST | Errno::ROFS) => {}
            Err(errno) => return Err(error("mkdir")(errno)),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(&root, name, flags, Mode::empty()).map_err(error("open"))?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        open_tree(&directory, "", flags).map_err(error("open_tree"))?
    };
    // The file system stays mounted, through the detached mount of the directory.
    unmount(target)?;
    attach(tree.as_fd(), open_target(target)?.as_fd()).map_err(error("move_mount"))
}

/// Makes the mount at `target` and those below it slaves: they receive propagated mounts and propagate none (`mount --make-rslave`).
///
/// # Errors
/// [`MountError::Change`] (`EINVAL`: not a mount point), [`MountError::Symlink`] or [`MountError::Open`].
pub fn make_slave(target: &Path) -> Result<(), MountError> {
    propagate(target, MountPropagationFlags::DOWNSTREAM, "a slave")
}

/// Writes out dirty data of the file system on a device, through one of its mounts in our own mount namespace; `false` if there is no such
/// mount, or if it failed.
pub fn sync_device(roots: &Roots, dev: DevNo) -> bool {
    let mounts = mountinfo(roots).unwrap_or_default();
    mounts.iter().filter(|mount| mount.dev == dev).any(|mount| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(fd) = open(&mount.mount_point, flags, Mode::empty()) else { return false };
        // Another file system may be mounted on top.
        let is_it = fstat(&fd).is_ok_and(|stat| dev_from_raw(stat.st_dev) == dev);
        is_it && syncfs(&fd).is_ok()
    })
}

/// Opens a target by `O_PATH`, without following a symbolic link.
fn open_target(target: &Path) -> Result<OwnedFd, MountError> {
    let error = |errno: Errno| MountError::Open { path: target.to_owned(), source: errno.into() };
    // `link/` would be followed in spite of O_NOFOLLOW; `components` drops the slash.
    let plain: PathBuf = target.components().collect();
    let fd = open(&plain, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).map_err(error)?;
    match FileType::from_raw_mode(fstat(&fd).map_err(error)?.st_mode) {
        FileType::Symlink => Err(MountError::Symlink { path: target.to_owned() }),
        _ => Ok(fd),
    }
}

/// Sets when a mount records times of reads: `MOUNT_ATTR_NOATIME`, `MOUNT_ATTR_STRICTATIME`, or neither for `relatime`.
pub(crate) fn set_access_times(target: &Path, times: MountAttrFlags) -> io::Result<()> {
    /// `MOUNT_ATTR__ATIME` of `<linux/mount.h>`: the bits of all modes.
    const MODES: u64 = 0x70;
    let place = open_target(target).map_err(io::Error::other)?;
    let attr = raw::MountAttr { attr_set: u64::from(times.bits()), attr_clr: MODES, ..raw::MountAttr::default() };
    raw::mount_setattr(place.as_fd(), 0, &attr)
}

fn attach(mount: BorrowedFd<'_>, place: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", place, "", flags)
}

fn propagate(target: &Path, kind: MountPropagationFlags, what: &'static str) -> Result<(), MountError> {
    let place = open_target(target)?;
    let attr = raw::MountAttr { propagation: u64::from(kind.bits()), ..raw::MountAttr::default() };
    raw::mount_setattr(place.as_fd(), OpenTreeFlags::AT_RECURSIVE.bits(), &attr).map_err(|source| MountError::Change {
        target: target.to_owned(),
        what,
        message: String::new(),
        source,
    })
}

/// The kernel's messages in a file system context: one message per read, prefixed by `e `, `w ` or `i ` (kernel `fscontext_read`).
fn messages(context: BorrowedFd<'_>) -> String {
    let mut found: Vec<String> = Vec::new();
    let mut buffer = [0u8; 512];
    for _ in 0..MAX_MESSAGES {
        // ENODATA ends the list; a message longer than the buffer (EMSGSIZE) is lost.
        let Ok(n) = rustix::io::read(context, &mut buffer) else { break };
        found.push(clean_message(&buffer[..n]));
    }
    found.retain(|message| !message.is_empty());
    found.join("; ")
}

fn clean_message(bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes).trim().chars().filter(|c| !c.is_control()).collect();
    let text = ["e ", "w ", "i "].iter().find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(&text);
    text.trim_end_matches('.').to_owned()
}

fn message_suffix(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": kernel message: {message}") }
}

#[cfg(test)]
mod tests;
