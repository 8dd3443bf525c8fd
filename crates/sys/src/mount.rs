//! Mounts, bind mounts, and who has a device mounted.
//!
//! Owns the calls of the mount API (`fsopen(2)` and its kin) and the reading of `/proc/PID/mountinfo`. Does not make file
//! systems or mount points, and does not decide what is mounted. A symbolic link in the last part of a target is never
//! followed, because the directory above may belong to somebody else.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulkhead_core::units::DevNo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, StatxAttributes, StatxFlags, fstat, mkdirat, open, openat, statx, syncfs,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use crate::block::dev_from_raw;
use crate::raw;
use crate::roots::Roots;

/// Most messages that are read from a file system context (its ring has 8 slots, kernel `struct fc_log`).
const MAX_MESSAGES: usize = 16;

/// How a file system is mounted (`MOUNT_ATTR_*` of `<linux/mount.h>`). The default is none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountFlags {
    /// Set-user-ID bits and file capabilities have no effect.
    pub nosuid: bool,
    /// Device nodes cannot be opened.
    pub nodev: bool,
    /// Programs cannot be started.
    pub noexec: bool,
    /// Access times are not written.
    pub noatime: bool,
    /// Nothing can be written: neither through this mount nor, as far as the file system honours it, by the file system.
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

/// One line of `/proc/PID/mountinfo` (man page proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfo {
    /// Number of the mount, unique while it exists; may be used again afterwards.
    pub mount_id: u32,
    /// Number of the mount that this one is mounted on.
    pub parent: u32,
    /// `st_dev` of the files. Not a block device for file systems such as btrfs, overlay or tmpfs.
    pub dev: DevNo,
    /// The directory of the file system that is seen at the mount point; not `/` for a bind mount of a directory.
    pub root: PathBuf,
    /// Where it is mounted, as seen from the root directory of the process.
    pub mount_point: PathBuf,
    /// Options of the mount, separated by commas.
    pub options: String,
    /// Propagation, for example `shared:1 master:3`; empty for a private mount.
    pub propagation: String,
    /// Type of the file system.
    pub fs_type: String,
    /// What is mounted, for example `/dev/dm-0`.
    pub source: PathBuf,
    /// Options of the file system, separated by commas.
    pub super_options: String,
}

impl MountInfo {
    /// Whether nothing can be written through this mount.
    #[must_use]
    pub fn is_readonly(&self) -> bool {
        [&self.options, &self.super_options].iter().any(|options| options.split(',').any(|option| option == "ro"))
    }
}

/// Where something is mounted in our own mount namespace. The kernel's table is read again only when it has changed: a system call tells.
#[derive(Debug)]
pub struct MountPoints {
    path: PathBuf,
    file: File,
    /// `None` until it was read, and when that failed.
    points: Option<Arc<BTreeSet<PathBuf>>>,
}

impl MountPoints {
    /// Opens the table; it is read when somebody asks.
    ///
    /// # Errors
    /// [`MountError::Read`].
    pub fn open(roots: &Roots) -> Result<Self, MountError> {
        Self::at(roots.proc.join("self/mountinfo"))
    }

    fn at(path: PathBuf) -> Result<Self, MountError> {
        let file = File::open(&path).map_err(|source| MountError::Read { path: path.clone(), source })?;
        Ok(Self { path, file, points: None })
    }

    /// All mount points, as they are now.
    ///
    /// # Errors
    /// [`MountError::Read`] or [`MountError::Parse`].
    pub fn now(&mut self) -> Result<Arc<BTreeSet<PathBuf>>, MountError> {
        // Once for each change since the file was opened or asked of it last (kernel `mounts_poll`). What changes while the table is read
        // is told the next time.
        let no_time = Timespec::default();
        let has_changed = poll(&mut [PollFd::new(&self.file, PollFlags::PRI)], Some(&no_time)) != Ok(0);
        if let Some(points) = self.points.as_ref().filter(|_| !has_changed) {
            return Ok(Arc::clone(points));
        }
        self.points = None;
        let mut text = Vec::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_end(&mut text));
        read.map_err(|source| MountError::Read { path: self.path.clone(), source })?;
        let points = parse_mount_points(&text).map_err(|line| MountError::Parse { path: self.path.clone(), line })?;
        let points = Arc::new(points);
        Ok(Arc::clone(self.points.insert(points)))
    }
}

/// A mount of a device in one mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountUser {
    /// The lowest pid of the mount namespace.
    pub pid: u32,
    /// Inode number of the mount namespace, as in `/proc/PID/ns/mnt`.
    pub namespace: u64,
    /// The mount, with its path as that process sees it.
    pub mount: MountInfo,
}

/// Who has a device mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsers {
    /// The mounts, by mount namespace.
    pub mounts: Vec<MountUser>,
    /// Processes that could not be looked at. Not empty means that the answer may be incomplete.
    pub unreadable: Vec<u32>,
}

/// A failed operation on a mount.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The target, or the source of a bind mount, cannot be opened.
    #[error("cannot open {path} to mount on or from it")]
    Open {
        /// The path.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The target is a symbolic link.
    #[error("{path} is a symbolic link: nothing is mounted through one")]
    Symlink {
        /// The target.
        path: PathBuf,
    },
    /// The kernel does not know the file system.
    #[error("the kernel does not support file system {fs_type}")]
    UnknownFs {
        /// Type of the file system.
        fs_type: String,
    },
    /// The file system could not be mounted.
    #[error("cannot mount {device} as {fs_type} on {target} ({detail})")]
    Mount {
        /// What was to be mounted.
        device: PathBuf,
        /// Type of the file system.
        fs_type: String,
        /// Where.
        target: PathBuf,
        /// The step that failed, for example `option data=journal`, and what the kernel wrote about it to the file system
        /// context (often nothing: ext4 and XFS say more in the kernel log).
        detail: String,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A directory or file could not be bind-mounted.
    #[error("cannot bind {from} to {target} ({step})")]
    Bind {
        /// What was to be seen there.
        from: PathBuf,
        /// Where.
        target: PathBuf,
        /// The step that failed.
        step: &'static str,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// Something still uses the mount: an open file, a working directory, or a mount below it.
    #[error("{target} is in use")]
    Busy {
        /// The mount point.
        target: PathBuf,
    },
    /// Nothing is mounted there.
    #[error("nothing is mounted on {target}")]
    NotMounted {
        /// The path.
        target: PathBuf,
    },
    /// The unmount failed for another reason.
    #[error("cannot unmount {target}")]
    Unmount {
        /// The mount point.
        target: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The properties of a mount could not be changed.
    #[error("cannot make {target} {what}{}", said(.message))]
    Change {
        /// The mount point.
        target: PathBuf,
        /// What it was to become, for example `private`.
        what: &'static str,
        /// What the kernel wrote to the file system context.
        message: String,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A list of mounts cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A list of mounts has a line that cannot be understood.
    #[error("{path} has a line that cannot be read: {line:?}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line.
        line: String,
    },
}

/// Mounts the file system on `device` at `target`, which must exist and not be a symbolic link.
///
/// `options` are those of the file system (`("data", Some("ordered"))`, `("discard", None)`); what is a property of the mount
/// goes into `flags`. When the device is mounted elsewhere already, the kernel gives the same file system a second time: the
/// caller looks first.
///
/// # Errors
/// [`MountError::UnknownFs`], [`MountError::Symlink`], [`MountError::Open`], or [`MountError::Mount`] with the step that failed
/// and what the kernel said about it.
pub fn mount(
    device: &Path,
    fs_type: &str,
    target: &Path,
    flags: MountFlags,
    options: &[(&str, Option<&str>)],
) -> Result<(), MountError> {
    let place = open_target(target)?;
    let mount = make(device, fs_type, target, flags, options)?;
    attach(mount.as_fd(), place.as_fd()).map_err(|errno| MountError::Mount {
        device: device.to_owned(),
        fs_type: fs_type.to_owned(),
        target: target.to_owned(),
        detail: "move_mount".to_owned(),
        source: errno.into(),
    })
}

/// Mounts the file system on `device` nowhere: it is reached through the returned descriptor of its root only, and unmounted
/// when that and all that was opened below it is closed.
///
/// # Errors
/// [`MountError::UnknownFs`] or [`MountError::Mount`].
pub fn mount_nowhere(
    device: &Path,
    fs_type: &str,
    flags: MountFlags,
    options: &[(&str, Option<&str>)],
) -> Result<OwnedFd, MountError> {
    make(device, fs_type, Path::new("(nowhere)"), flags, options)
}

fn make(
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
    let fail = |step: &str, errno: Errno| error(format!("{step}{}", said(&messages(context.as_fd()))), errno);
    fsconfig_set_string(&context, "source", device).map_err(|errno| fail("source", errno))?;
    if flags.readonly {
        fsconfig_set_flag(&context, "ro").map_err(|errno| fail("option ro", errno))?;
    }
    for &(key, value) in options {
        match value {
            Some(value) => fsconfig_set_string(&context, key, value)
                .map_err(|errno| fail(&format!("option {key}={value}"), errno))?,
            None => fsconfig_set_flag(&context, key).map_err(|errno| fail(&format!("option {key}"), errno))?,
        }
    }
    fsconfig_create(&context).map_err(|errno| fail("reading the file system", errno))?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags.attributes()).map_err(|errno| fail("fsmount", errno))
}

/// The `st_dev` of what is mounted at `target` itself (its topmost mount); `None` when nothing is, or there is no such file. One system
/// call, however many mounts there are. Does not follow a symbolic link, trigger an automount, or wait for I/O.
///
/// # Errors
/// Those of [`mountinfo`], which is read where the file system does not answer: one that was shut down.
pub fn mounted_at(roots: &Roots, target: &Path) -> Result<Option<DevNo>, MountError> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match statx(CWD, target, flags, StatxFlags::empty()) {
        // Kernels tell since 5.8, which is older than any that is supported.
        Ok(found) => {
            let is_mount = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
            Ok(is_mount.then(|| DevNo::new(found.stx_dev_major, found.stx_dev_minor)))
        }
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(_) => {
            let mounts = mountinfo(roots)?;
            Ok(mounts.iter().rfind(|mount| mount.mount_point == target).map(|mount| mount.dev))
        }
    }
}

/// Unmounts what is mounted at `target` (its topmost mount). Never lazily: after success the file system is not in use
/// through this mount.
///
/// # Errors
/// [`MountError::Busy`], [`MountError::NotMounted`] or [`MountError::Unmount`].
pub fn unmount(target: &Path) -> Result<(), MountError> {
    // Not through a descriptor of the target, which would itself keep the mount busy.
    rustix::mount::unmount(target, UnmountFlags::NOFOLLOW).map_err(|errno| match errno {
        Errno::BUSY => MountError::Busy { target: target.to_owned() },
        Errno::INVAL => MountError::NotMounted { target: target.to_owned() },
        errno => MountError::Unmount { target: target.to_owned(), source: errno.into() },
    })
}

/// Shows the directory or file `from` (without the mounts below it) at `target` too, which must exist, be of the same kind and
/// not be a symbolic link. A read-only bind is read-only from its first instant.
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

/// Has the mount at `target` show a directory of its file system in place of the root: `name` right below it, which is created if it is
/// missing, and is no symbolic link. The directory may be anybody's: nothing in it is followed. Nobody may use the mount yet.
///
/// # Errors
/// [`MountError::Bind`], [`MountError::Busy`], [`MountError::Symlink`] or [`MountError::Open`].
pub fn narrow(target: &Path, name: &str) -> Result<(), MountError> {
    let from = target.join(name);
    let error = |step: &'static str| {
        let (from, target) = (from.clone(), target.to_owned());
        move |errno: Errno| MountError::Bind { from, target, step, source: errno.into() }
    };
    let tree = {
        let root = open_target(target)?;
        match mkdirat(&root, name, Mode::from_raw_mode(0o755)) {
            // Where nothing can be written, it may be there.
            Ok(()) | Err(Errno::EXIST | Errno::ROFS) => {}
            Err(errno) => return Err(error("mkdir")(errno)),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(&root, name, flags, Mode::empty()).map_err(error("open"))?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        open_tree(&directory, "", flags).map_err(error("open_tree"))?
    };
    // The file system stays mounted: as that directory, so far at no place.
    unmount(target)?;
    attach(tree.as_fd(), open_target(target)?.as_fd()).map_err(error("move_mount"))
}

/// Lets the mount at `target` and those below it receive mounts from their peers, and send none (`mount --make-rslave`).
///
/// # Errors
/// [`MountError::Change`] (`EINVAL`: not a mount point), [`MountError::Symlink`] or [`MountError::Open`].
pub fn make_slave(target: &Path) -> Result<(), MountError> {
    propagate(target, MountPropagationFlags::DOWNSTREAM, "a slave")
}

/// Writes out what is dirty in the file system on a device, through one of its mounts in our own mount namespace; `false`
/// when there is none, or it could not be done.
pub fn sync_device(roots: &Roots, dev: DevNo) -> bool {
    let mounts = mountinfo(roots).unwrap_or_default();
    mounts.iter().filter(|mount| mount.dev == dev).any(|mount| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(fd) = open(&mount.mount_point, flags, Mode::empty()) else { return false };
        // Another file system may be mounted over it.
        let is_it = fstat(&fd).is_ok_and(|stat| dev_from_raw(stat.st_dev) == dev);
        is_it && syncfs(&fd).is_ok()
    })
}

/// The mounts of our own mount namespace.
///
/// # Errors
/// [`MountError::Read`] or [`MountError::Parse`].
pub fn mountinfo(roots: &Roots) -> Result<Vec<MountInfo>, MountError> {
    read_mountinfo(roots.proc.join("self/mountinfo"))
}

/// The mounts that a process sees.
///
/// # Errors
/// [`MountError::Read`] or [`MountError::Parse`].
pub fn mountinfo_of(roots: &Roots, pid: u32) -> Result<Vec<MountInfo>, MountError> {
    read_mountinfo(roots.proc.join(pid.to_string()).join("mountinfo"))
}

/// Who has the block device mounted, in any mount namespace that a process is in.
///
/// Not seen: mount namespaces that only a file descriptor, a bind mount or a single thread keeps alive, and mounts that a
/// process's root directory hides. Processes that end meanwhile are passed over.
///
/// # Errors
/// [`MountError::Read`] when the processes cannot be listed, [`MountError::Parse`].
pub fn mounts_of_device(roots: &Roots, dev: DevNo) -> Result<DeviceUsers, MountError> {
    let error = |source| MountError::Read { path: roots.proc.clone(), source };
    let mut pids: Vec<u32> = Vec::new();
    for entry in fs::read_dir(&roots.proc).map_err(error)? {
        pids.extend(entry.map_err(error)?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    pids.sort_unstable();
    let mut users = DeviceUsers::default();
    let mut seen: BTreeSet<u64> = BTreeSet::new();
    for pid in pids {
        let link = fs::read_link(roots.proc.join(pid.to_string()).join("ns/mnt"));
        let namespace = match link {
            Ok(link) => parse_namespace(&link.to_string_lossy()),
            Err(source) if is_gone(&source) => continue,
            Err(_) => None,
        };
        let Some(namespace) = namespace else {
            users.unreadable.push(pid);
            continue;
        };
        if seen.contains(&namespace) {
            continue;
        }
        match mountinfo_of(roots, pid) {
            Ok(mounts) => {
                seen.insert(namespace);
                let of_device = mounts.into_iter().filter(|mount| mount.dev == dev);
                users.mounts.extend(of_device.map(|mount| MountUser { pid, namespace, mount }));
            }
            // Another process of the namespace is tried.
            Err(MountError::Read { source, .. }) if is_gone(&source) => {}
            Err(MountError::Read { .. }) => users.unreadable.push(pid),
            Err(error) => return Err(error),
        }
    }
    Ok(users)
}

/// The mounts in a text in the form of `/proc/PID/mountinfo`.
///
/// # Errors
/// The first line that cannot be read.
pub fn parse_mountinfo(text: &[u8]) -> Result<Vec<MountInfo>, String> {
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| parse_line(line).ok_or_else(|| String::from_utf8_lossy(line).into_owned())).collect()
}

/// The mount points alone: a table of a thousand mounts is read at each change.
fn parse_mount_points(text: &[u8]) -> Result<BTreeSet<PathBuf>, String> {
    let point = |line: &[u8]| {
        let field = line.split(|&byte| byte == b' ').nth(4).filter(|field| field.starts_with(b"/"));
        let point = field.map(|field| PathBuf::from(OsString::from_vec(unescape(field))));
        point.ok_or_else(|| String::from_utf8_lossy(line).into_owned())
    };
    text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).map(point).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse_line(line: &[u8]) -> Option<MountInfo> {
    // A space inside a field is written \040, so every space separates; the source may be empty.
    let mut fields = line.split(|&byte| byte == b' ');
    let text = |field: &[u8]| String::from_utf8(unescape(field)).ok();
    let path = |field: &[u8]| PathBuf::from(OsString::from_vec(unescape(field)));
    let mount_id = text(fields.next()?)?.parse().ok()?;
    let parent = text(fields.next()?)?.parse().ok()?;
    let dev = text(fields.next()?)?.parse().ok()?;
    let root = path(fields.next()?);
    let mount_point = path(fields.next()?);
    let lossy = |field: &[u8]| String::from_utf8_lossy(&unescape(field)).into_owned();
    let options = lossy(fields.next()?);
    let mut propagation = Vec::new();
    loop {
        match fields.next()? {
            b"-" => break,
            field => propagation.push(text(field)?),
        }
    }
    let fs_type = lossy(fields.next()?);
    let source = path(fields.next()?);
    let super_options = lossy(fields.next()?);
    let propagation = propagation.join(" ");
    Some(MountInfo { mount_id, parent, dev, root, mount_point, options, propagation, fs_type, source, super_options })
}

/// Decodes `\040` and the like (kernel `mangle_path`, `seq_escape`). What is not a full escape stays as it is.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'\\'
            && let Some(&[a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7']) = after.first_chunk()
        {
            decoded.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
            rest = &after[3..];
        } else {
            decoded.push(byte);
            rest = after;
        }
    }
    decoded
}

/// The number in `mnt:[4026531841]`.
fn parse_namespace(link: &str) -> Option<u64> {
    link.strip_prefix("mnt:[")?.strip_suffix(']')?.parse().ok()
}

fn read_mountinfo(path: PathBuf) -> Result<Vec<MountInfo>, MountError> {
    match fs::read(&path) {
        Ok(text) => parse_mountinfo(&text).map_err(|line| MountError::Parse { path, line }),
        Err(source) => Err(MountError::Read { path, source }),
    }
}

/// Whether the answer means that the process has ended (a zombie has no namespaces: `EINVAL`).
fn is_gone(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::NOENT, Errno::SRCH, Errno::INVAL].iter().any(|errno| code == Some(errno.raw_os_error()))
}

/// Opens a target without following a symbolic link and without touching what is there.
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

/// What the kernel wrote to a file system context: one message per read, `e `, `w ` or `i ` in front (kernel `fscontext_read`).
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

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": the kernel says: {message}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};

    /// Written by hand after show_mountinfo: a volume, a bind mount of a directory, names that need escaping, no source.
    const SAVED: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
36 35 254:3 / /var/lib/bulkhead/mnt/db rw,nosuid,nodev,noatime shared:12 master:3 - ext4 /dev/dm-3 rw,stripe=16
37 36 254:3 /sub\\040dir /srv/a\\134b\\011c ro,relatime - ext4 /dev/mapper/pool-db rw
38 35 0:30 / /tmp rw - tmpfs  rw,size=1024k
";

    #[test]
    fn mountinfo_is_read() {
        let mounts = parse_mountinfo(SAVED.as_bytes()).unwrap();
        assert_eq!(mounts.len(), 4);
        let volume = &mounts[1];
        assert_eq!((volume.mount_id, volume.parent, volume.dev), (36, 35, DevNo::new(254, 3)));
        assert_eq!(volume.mount_point, Path::new("/var/lib/bulkhead/mnt/db"));
        assert_eq!((volume.propagation.as_str(), volume.fs_type.as_str()), ("shared:12 master:3", "ext4"));
        assert!(!volume.is_readonly());
        assert_eq!(mounts[2].root, Path::new("/sub dir"));
        assert_eq!(mounts[2].mount_point, Path::new("/srv/a\\b\tc"));
        assert!(mounts[2].is_readonly());
        assert_eq!((mounts[3].source.as_path(), mounts[3].super_options.as_str()), (Path::new(""), "rw,size=1024k"));
    }

    #[test]
    fn broken_lines_are_errors_not_panics() {
        for line in ["x", "36 35 254 / / rw - ext4 d rw", "36 35 254:3 / / rw ext4 d rw", "36 35 254:3 / / rw - ext4 d"]
        {
            assert_eq!(parse_mountinfo(line.as_bytes()), Err(line.to_owned()));
        }
        assert_eq!(parse_mountinfo(b""), Ok(Vec::new()));
        assert!(parse_mountinfo(b"1 2 3:4 /\xff / rw - x y z").unwrap()[0].root.as_os_str().as_bytes() == b"/\xff");
    }

    #[test]
    fn escapes_are_decoded_once() {
        for (from, to) in
            [("a\\040b", "a b"), ("\\134040", "\\040"), ("a\\", "a\\"), ("\\04", "\\04"), ("\\999", "\\999")]
        {
            assert_eq!(unescape(from.as_bytes()), to.as_bytes(), "{from}");
        }
    }

    #[test]
    fn kernel_messages_lose_their_mark() {
        assert_eq!(clean_message(b"e ext4: Unknown parameter 'x'\n"), "ext4: Unknown parameter 'x'");
        assert_eq!(clean_message(b"plain\x1b[31m."), "plain[31m");
    }

    #[test]
    fn users_of_a_device_are_found_once_per_namespace() {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        let process = |pid: u32, namespace: &str, mounts: Option<&str>| {
            let dir = roots.proc.join(pid.to_string());
            fs::create_dir_all(dir.join("ns")).unwrap();
            symlink(namespace, dir.join("ns/mnt")).unwrap();
            if let Some(text) = mounts {
                fs::write(dir.join("mountinfo"), text).unwrap();
            }
        };
        // The lowest process of the first namespace has ended but for its directory.
        process(5, "mnt:[100]", None);
        process(9, "mnt:[100]", Some(SAVED));
        process(10, "mnt:[100]", Some(SAVED));
        process(20, "mnt:[200]", Some("1 0 254:3 / /data rw - ext4 /dev/dm-3 rw\n"));
        process(30, "mnt:[300]", Some("1 0 254:4 / /data rw - ext4 /dev/dm-4 rw\n"));
        process(31, "odd", Some(""));
        fs::create_dir_all(roots.proc.join("sys")).unwrap();
        let users = mounts_of_device(&roots, DevNo::new(254, 3)).unwrap();
        let seen: Vec<_> = users.mounts.iter().map(|u| (u.pid, u.namespace, u.mount.mount_id)).collect();
        assert_eq!(seen, [(9, 100, 36), (9, 100, 37), (20, 200, 1)]);
        assert_eq!(users.unreadable, [31]);
    }

    #[test]
    fn a_mounted_file_system_is_written_out() {
        let roots = Roots::host();
        // The uppermost, where several are mounted over each other.
        let proc = mountinfo(&roots).unwrap().into_iter().rfind(|mount| mount.mount_point == roots.proc).unwrap();
        assert!(sync_device(&roots, proc.dev));
        assert!(!sync_device(&roots, DevNo::new(4095, 1_048_575)));
    }

    /// Runs `test` in a thread with a mount namespace of its own, so that nothing is seen outside.
    fn in_own_namespace(test: impl FnOnce(&Path) + Send) {
        let base = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: CLONE_NEWNS unshares no descriptor table; it concerns this thread only, which ends with the test.
                match unsafe { unshare_unsafe(UnshareFlags::NEWNS) } {
                    Ok(()) => {
                        make_slave(Path::new("/")).unwrap();
                        test(base.path());
                    }
                    Err(errno) => println!("skipped: cannot unshare the mount namespace: {errno}"),
                }
            });
        });
    }

    fn mount_at(path: &Path) -> Option<MountInfo> {
        let tid = u32::try_from(gettid().as_raw_nonzero().get()).unwrap();
        mountinfo_of(&Roots::host(), tid).unwrap().into_iter().rfind(|mount| mount.mount_point == path)
    }

    #[test]
    fn root_mount_bind_and_unmount_on_the_real_kernel() {
        in_own_namespace(|base| {
            let (volume, view) = (base.join("volume"), base.join("view"));
            fs::create_dir(&volume).unwrap();
            fs::create_dir(&view).unwrap();
            let flags = MountFlags { nosuid: true, nodev: true, noatime: true, ..MountFlags::default() };
            mount(Path::new("none"), "tmpfs", &volume, flags, &[("size", Some("1M"))]).unwrap();
            let info = mount_at(&volume).unwrap();
            let dev_at = |path: &Path| mounted_at(&Roots::host(), path).unwrap();
            assert_eq!((dev_at(&volume), dev_at(&view), dev_at(&base.join("none"))), (Some(info.dev), None, None));
            assert_eq!((info.options.as_str(), info.fs_type.as_str()), ("rw,nosuid,nodev,noatime", "tmpfs"));
            assert!(info.super_options.contains("size=1024k"), "{info:?}");

            fs::write(volume.join("file"), "x").unwrap();
            bind(&volume, &view, true).unwrap();
            let view_info = mount_at(&view).unwrap();
            std::os::unix::fs::symlink(&view, base.join("link")).unwrap();
            assert_eq!((dev_at(&view), dev_at(&base.join("link"))), (Some(info.dev), None));
            // The flags of the source stay, and read-only is added.
            assert_eq!(view_info.options, "ro,nosuid,nodev,noatime");
            assert_eq!(view_info.dev, info.dev);
            assert_eq!(fs::read(view.join("file")).unwrap(), b"x");
            assert!(fs::write(view.join("file"), "y").is_err());
            bind(&volume.join("file"), &view.join("file"), false).unwrap();
            assert_eq!(mount_at(&view.join("file")).unwrap().root, Path::new("/file"));

            // In place of its root, a directory of it.
            let inner = base.join("inner");
            fs::create_dir(&inner).unwrap();
            bind(&volume, &inner, false).unwrap();
            std::os::unix::fs::symlink("/etc", volume.join("link")).unwrap();
            for wrong in ["link", "file"] {
                assert!(matches!(narrow(&inner, wrong), Err(MountError::Bind { .. })), "{wrong}");
            }
            narrow(&inner, "data").unwrap();
            fs::write(inner.join("new"), "z").unwrap();
            let info = mount_at(&inner).unwrap();
            assert_eq!((info.root.as_path(), info.options.as_str()), (Path::new("/data"), "rw,nosuid,nodev,noatime"));
            assert_eq!(fs::read(volume.join("data/new")).unwrap(), b"z");
            unmount(&inner).unwrap();
            assert_eq!(dev_at(&inner), None);

            assert!(matches!(unmount(&view), Err(MountError::Busy { .. })));
            unmount(&view.join("file")).unwrap();
            unmount(&view).unwrap();
            make_slave(&volume).unwrap();
            unmount(&volume).unwrap();
            assert_eq!(mount_at(&volume), None);
        });
    }

    #[test]
    fn root_the_mount_points_are_read_again_when_they_have_changed() {
        in_own_namespace(|base| {
            let target = base.join("t");
            fs::create_dir(&target).unwrap();
            let tid = gettid().as_raw_nonzero().get();
            let mut points = MountPoints::at(format!("/proc/{tid}/mountinfo").into()).unwrap();
            let before = points.now().unwrap();
            assert!(!before.contains(&target) && before.contains(Path::new("/")));
            assert!(Arc::ptr_eq(&before, &points.now().unwrap()), "nothing has changed");
            mount(Path::new("none"), "tmpfs", &target, MountFlags::default(), &[]).unwrap();
            let mounted = points.now().unwrap();
            assert!(mounted.contains(&target));
            assert!(Arc::ptr_eq(&mounted, &points.now().unwrap()));
            unmount(&target).unwrap();
            assert_eq!(points.now().unwrap(), before);
        });
    }

    #[test]
    fn root_errors_say_what_the_kernel_said() {
        in_own_namespace(|base| {
            let target = base.join("t");
            fs::create_dir(&target).unwrap();
            let plain = MountFlags::default();
            let error = mount(Path::new("none"), "tmpfs", &target, plain, &[("no_such", Some("1"))]).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("(option no_such=1: the kernel says: tmpfs: Unknown parameter 'no_such')"), "{text}");
            let error = mount(Path::new("none"), "nosuchfs", &target, plain, &[]).unwrap_err();
            assert!(matches!(error, MountError::UnknownFs { .. }), "{error}");

            let link = base.join("link");
            symlink(&target, &link).unwrap();
            for path in [link.clone(), base.join("link/")] {
                let error = mount(Path::new("none"), "tmpfs", &path, plain, &[]).unwrap_err();
                assert!(matches!(error, MountError::Symlink { .. }), "{error}");
                assert!(matches!(bind(base, &path, false), Err(MountError::Symlink { .. })));
            }
            assert!(matches!(
                mount(Path::new("none"), "tmpfs", &base.join("no"), plain, &[]),
                Err(MountError::Open { .. })
            ));
            assert!(matches!(bind(&base.join("no"), &target, false), Err(MountError::Open { .. })));
            assert!(matches!(unmount(&target), Err(MountError::NotMounted { .. })));
            assert!(matches!(make_slave(&target), Err(MountError::Change { .. })));
        });
    }
}
