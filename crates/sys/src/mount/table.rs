//! The mount table of a process (`/proc/PID/mountinfo`), and the mounts of a device in all mount namespaces.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use bulkhead_core::units::DevNo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::MountError;
use crate::roots::Roots;

/// A line of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfo {
    /// Mount id, unique while the mount exists; may be reused afterwards.
    pub mount_id: u32,
    /// Mount id of the parent.
    pub parent: u32,
    /// `st_dev` of the files. Not a block device for file systems such as btrfs, overlay or tmpfs.
    pub dev: DevNo,
    /// The directory of the file system that is mounted; not `/` for a bind mount of a directory.
    pub root: PathBuf,
    /// Mount point, relative to the root directory of the process.
    pub mount_point: PathBuf,
    /// Options of the mount, separated by commas.
    pub options: String,
    /// Propagation, for example `shared:1 master:3`; empty for a private mount.
    pub propagation: String,
    /// Type of the file system.
    pub fs_type: String,
    /// Source of the mount, for example `/dev/dm-0`.
    pub source: PathBuf,
    /// Options of the file system, separated by commas.
    pub super_options: String,
}

impl MountInfo {
    /// The SELinux context that all files of the file system have (mount option `context`), in the kernel's words, which may differ from those
    /// of the mount.
    #[must_use]
    pub fn selinux_context(&self) -> Option<&str> {
        split_options(&self.super_options).find_map(|option| option.strip_prefix("context=")).map(unquote)
    }

    /// Whether the mount or its file system is read-only.
    #[must_use]
    pub fn is_readonly(&self) -> bool {
        [&self.options, &self.super_options].iter().any(|options| options.split(',').any(|option| option == "ro"))
    }
}

/// The options in a text that separates them by commas. A comma in double quotes separates none: SELinux contexts have commas (kernel
/// `show_sid`).
pub fn split_options(text: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    text.split(move |c| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    })
}

/// The value of an option, without the double quotes around it.
#[must_use]
pub fn unquote(value: &str) -> &str {
    value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value)
}

/// Mount points in our own mount namespace. The kernel's table is read again only after a change, which a poll detects.
#[derive(Debug)]
pub struct MountPoints {
    path: PathBuf,
    file: File,
    /// `None` before the first read, and after a failed one.
    points: Option<Arc<BTreeSet<PathBuf>>>,
}

impl MountPoints {
    /// Opens the table; it is read on demand.
    ///
    /// # Errors
    /// [`MountError::Read`].
    pub fn open(roots: &Roots) -> Result<Self, MountError> {
        Self::open_path(roots.proc.join("self/mountinfo"))
    }

    pub(super) fn open_path(path: PathBuf) -> Result<Self, MountError> {
        let file = File::open(&path).map_err(|source| MountError::Read { path: path.clone(), source })?;
        Ok(Self { path, file, points: None })
    }

    /// The current mount points.
    ///
    /// # Errors
    /// [`MountError::Read`] or [`MountError::Parse`].
    pub fn current(&mut self) -> Result<Arc<BTreeSet<PathBuf>>, MountError> {
        // Reports a change since the file was opened or polled last (kernel `mounts_poll`). A change while the table is being read is
        // reported by the next poll.
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
    /// The lowest pid in the mount namespace.
    pub pid: u32,
    /// Inode number of the mount namespace, as in `/proc/PID/ns/mnt`.
    pub namespace: u64,
    /// The mount, with paths as that process sees them.
    pub mount: MountInfo,
}

/// The mounts of a device in all mount namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsers {
    /// The mounts, by mount namespace.
    pub mounts: Vec<MountUser>,
    /// Processes that could not be examined. If there are any, the result may be incomplete.
    pub unreadable: Vec<u32>,
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

/// The mounts of a block device in the mount namespaces of all processes, as [`mounts_of_devices`].
///
/// # Errors
/// Those of [`mounts_of_devices`].
pub fn mounts_of_device(roots: &Roots, dev: DevNo) -> Result<DeviceUsers, MountError> {
    mounts_of_devices(roots, &BTreeSet::from([dev]))
}

/// The mounts of block devices in the mount namespaces of all processes: one look at each process, and at each mount table.
///
/// Not detected: mount namespaces kept alive only by a file descriptor, a bind mount or a single thread, and mounts outside a process's
/// root directory. Processes that exit meanwhile are skipped.
///
/// # Errors
/// [`MountError::Read`] if the processes cannot be listed, [`MountError::Parse`].
pub fn mounts_of_devices(roots: &Roots, devs: &BTreeSet<DevNo>) -> Result<DeviceUsers, MountError> {
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
                let of_devices = mounts.into_iter().filter(|mount| devs.contains(&mount.dev));
                users.mounts.extend(of_devices.map(|mount| MountUser { pid, namespace, mount }));
            }
            // Another process in the namespace is tried.
            Err(MountError::Read { source, .. }) if is_gone(&source) => {}
            Err(MountError::Read { .. }) => users.unreadable.push(pid),
            Err(error) => return Err(error),
        }
    }
    Ok(users)
}

/// Parses `/proc/PID/mountinfo`.
///
/// # Errors
/// The first malformed line.
pub fn parse_mountinfo(text: &[u8]) -> Result<Vec<MountInfo>, String> {
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| parse_line(line).ok_or_else(|| String::from_utf8_lossy(line).into_owned())).collect()
}

/// Parses only the mount points, since a table of a thousand mounts is read at each change.
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
    // A space in a field is escaped as \040, so every space is a separator; the source may be empty.
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

/// Decodes octal escapes such as `\040` (kernel `mangle_path`, `seq_escape`). Incomplete escapes are kept.
pub(super) fn unescape(field: &[u8]) -> Vec<u8> {
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

/// The inode number in `mnt:[4026531841]`.
fn parse_namespace(link: &str) -> Option<u64> {
    link.strip_prefix("mnt:[")?.strip_suffix(']')?.parse().ok()
}

fn read_mountinfo(path: PathBuf) -> Result<Vec<MountInfo>, MountError> {
    match fs::read(&path) {
        Ok(text) => parse_mountinfo(&text).map_err(|line| MountError::Parse { path, line }),
        Err(source) => Err(MountError::Read { path, source }),
    }
}

/// Whether the error means that the process has exited (a zombie has no namespaces: `EINVAL`).
fn is_gone(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::NOENT, Errno::SRCH, Errno::INVAL].iter().any(|errno| code == Some(errno.raw_os_error()))
}
