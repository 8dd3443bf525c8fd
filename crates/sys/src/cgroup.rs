//! The cgroup v2 hierarchy: paths, creation and removal, processes, freezing, killing, `io.stat`
//! (kernel `Documentation/admin-guide/cgroup-v2.rst`).
//!
//! Owns all reads and writes below the cgroup root, and reading `/proc/PID/cgroup`. Does not decide which cgroup a process belongs
//! to or which weights to write; of v1 controllers it only detects the presence.

mod error;
mod events;
mod ids;
mod iostat;
mod mode;
mod own;
mod watch;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use bulkhead_core::cgroup::CgroupPath;
use rustix::io::Errno;

pub use self::error::CgroupError;
pub use self::events::{freeze, is_frozen, is_populated, keyed, kill_all, thaw};
pub use self::ids::{all_ids, io_weights};
pub use self::iostat::{IoLimits, IoStat, io_limits, io_stat, io_waited, parse_io_stat};
pub use self::mode::{Mode, controllers, mode, v2_root};
pub use self::own::OwnCgroup;
pub use self::watch::{FileWatch, Membership};
use crate::roots::Roots;

/// Attempts to create a cgroup while an ancestor is being removed.
const CREATE_TRIES: usize = 100;

/// Creates a cgroup with its ancestors, and enables `controllers` for it in `cgroup.subtree_control` of all ancestors, from the root
/// down (never in the cgroup itself, so that it can contain processes). Returns whether it was created.
///
/// Idempotent. A failure leaves the steps done so far; calling again continues from there.
///
/// # Errors
/// [`CgroupError::MissingController`], [`CgroupError::Occupied`], or a failed read, write or `mkdir`.
pub fn create(roots: &Roots, path: &CgroupPath, controllers: &[&str]) -> Result<bool, CgroupError> {
    // An empty ancestor may be removed concurrently until this cgroup exists.
    for _ in 0..CREATE_TRIES {
        match create_once(roots, path, controllers) {
            Err(CgroupError::NotFound { .. }) => {}
            Err(CgroupError::Create { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
    }
    create_once(roots, path, controllers)
}

fn create_once(roots: &Roots, path: &CgroupPath, controllers: &[&str]) -> Result<bool, CgroupError> {
    // A cgroup has the controllers that its parent enables, which can enable only those that it has itself. So checking the cgroup
    // covers its ancestors.
    if read(roots, path, "cgroup.controllers").is_ok_and(|has| controllers.iter().all(|c| words(&has).contains(*c))) {
        return Ok(false);
    }
    for above in path.ancestors() {
        make_dir(roots, &above)?;
        enable(roots, &above, controllers)?;
    }
    make_dir(roots, path)
}

/// Enables controllers for the children of a cgroup (`cgroup.subtree_control`), all or none. Returns those that were enabled before;
/// `None` if nothing had to be done. Idempotent.
///
/// # Errors
/// [`CgroupError::MissingController`], [`CgroupError::Occupied`], [`CgroupError::Refused`], or a failed read or write.
pub fn enable(roots: &Roots, path: &CgroupPath, controllers: &[&str]) -> Result<Option<String>, CgroupError> {
    if controllers.is_empty() {
        return Ok(None);
    }
    let available = words(&read(roots, path, "cgroup.controllers")?);
    if let Some(&controller) = controllers.iter().find(|&&c| !available.contains(c)) {
        return Err(CgroupError::MissingController {
            cgroup: path.clone(),
            controller: controller.to_owned(),
            available: available.into_iter().collect::<Vec<_>>().join(" "),
        });
    }
    let enabled = words(&read(roots, path, "cgroup.subtree_control")?);
    let wanted: Vec<&str> = controllers.iter().copied().filter(|&c| !enabled.contains(c)).collect();
    if wanted.is_empty() {
        return Ok(None);
    }
    let value: Vec<String> = wanted.iter().map(|controller| format!("+{controller}")).collect();
    match write(roots, path, "cgroup.subtree_control", &value.join(" ")) {
        Ok(old) => Ok(Some(old)),
        Err(CgroupError::Write { cgroup, source, .. }) if is(&source, Errno::BUSY) => {
            let pids = procs(roots, path).unwrap_or_default();
            Err(CgroupError::Occupied { cgroup, pids })
        }
        // Available but refused: processes below cannot be attached to the controller (kernel `cpu_cgroup_can_attach`).
        Err(CgroupError::Write { cgroup, source, .. }) if is(&source, Errno::INVAL) => {
            Err(CgroupError::Refused { cgroup, controllers: wanted.join(" "), source })
        }
        Err(error) => Err(error),
    }
}

/// Whether the cgroup exists.
#[must_use]
pub fn exists(roots: &Roots, path: &CgroupPath) -> bool {
    roots.cgroup_dir(path).is_dir()
}

/// The children of a cgroup, sorted. Names that are not UTF-8 are omitted.
///
/// # Errors
/// [`CgroupError::NotFound`] or [`CgroupError::Read`].
pub fn children(roots: &Roots, path: &CgroupPath) -> Result<Vec<CgroupPath>, CgroupError> {
    let error = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => CgroupError::NotFound { cgroup: path.clone() },
        _ => CgroupError::Read { cgroup: path.clone(), file: "the list of children".to_owned(), source },
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(roots.cgroup_dir(path)).map_err(error)? {
        let entry = entry.map_err(error)?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Some(child) = entry.file_name().to_str().and_then(|name| path.join(name).ok())
        {
            found.push(child);
        }
    }
    found.sort();
    Ok(found)
}

/// Removes a cgroup that has no children and no processes. Returns `false` if it did not exist.
///
/// # Errors
/// [`CgroupError::Busy`] with the processes, or [`CgroupError::Remove`].
pub fn remove(roots: &Roots, path: &CgroupPath) -> Result<bool, CgroupError> {
    match fs::remove_dir(roots.cgroup_dir(path)) {
        Ok(()) => Ok(true),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) if is(&source, Errno::BUSY) => {
            let pids = procs_below(roots, path);
            if pids.is_empty() {
                // Busy without processes: it has children.
                return Err(CgroupError::Remove { cgroup: path.clone(), source });
            }
            Err(CgroupError::Busy { cgroup: path.clone(), pids })
        }
        Err(source) => Err(CgroupError::Remove { cgroup: path.clone(), source }),
    }
}

/// Removes a cgroup and its descendants, deepest first. Removes nothing if any of them contains a process. Returns `false` if it did
/// not exist.
///
/// # Errors
/// [`CgroupError::Busy`] with the processes, or [`CgroupError::Remove`]. The root is never removed.
pub fn remove_tree(roots: &Roots, path: &CgroupPath) -> Result<bool, CgroupError> {
    if path.is_root() {
        let source = io::Error::from(io::ErrorKind::InvalidInput);
        return Err(CgroupError::Remove { cgroup: path.clone(), source });
    }
    let pids = procs_below(roots, path);
    if !pids.is_empty() {
        return Err(CgroupError::Busy { cgroup: path.clone(), pids });
    }
    remove_below(roots, path)
}

/// The content of a cgroup file.
///
/// # Errors
/// [`CgroupError::NotFound`], [`CgroupError::NoFile`] or [`CgroupError::Read`].
pub fn read(roots: &Roots, path: &CgroupPath, file: &str) -> Result<String, CgroupError> {
    fs::read_to_string(file_of(roots, path, file)?).map_err(|source| {
        missing(roots, path, file, &source).unwrap_or_else(|| CgroupError::Read {
            cgroup: path.clone(),
            file: file.to_owned(),
            source,
        })
    })
}

/// Writes a cgroup file in one `write(2)`. Returns its previous content without the final newline; empty for write-only files.
///
/// # Errors
/// [`CgroupError::NotFound`], [`CgroupError::NoFile`] or [`CgroupError::Write`] (with the kernel's errno as its source).
pub fn write(roots: &Roots, path: &CgroupPath, file: &str, value: &str) -> Result<String, CgroupError> {
    let name = file_of(roots, path, file)?;
    let old = fs::read_to_string(&name).unwrap_or_default();
    write_once(&name, value).map_err(|source| {
        missing(roots, path, file, &source).unwrap_or_else(|| CgroupError::Write {
            cgroup: path.clone(),
            file: file.to_owned(),
            value: value.to_owned(),
            source,
        })
    })?;
    Ok(old.trim_end_matches('\n').to_owned())
}

/// The processes, kernel threads included, in this cgroup itself (file `cgroup.procs`), sorted. Processes outside our PID namespace,
/// which the kernel reports as 0, are omitted.
///
/// # Errors
/// [`CgroupError::NotFound`], [`CgroupError::Read`] or [`CgroupError::Parse`].
pub fn procs(roots: &Roots, path: &CgroupPath) -> Result<Vec<u32>, CgroupError> {
    let text = read(roots, path, "cgroup.procs")?;
    parse_procs(&text).map_err(|line| parse_error(path, "cgroup.procs", line))
}

/// Moves a process with all its threads, or a kernel thread, into a cgroup.
///
/// # Errors
/// [`CgroupError::NoProcess`], [`CgroupError::NotFound`], or [`CgroupError::Write`]: `EBUSY` when controllers are enabled
/// below the cgroup, `EINVAL` for a kernel thread that is bound to its CPUs.
pub fn move_pid(roots: &Roots, pid: u32, path: &CgroupPath) -> Result<(), CgroupError> {
    let name = file_of(roots, path, "cgroup.procs")?;
    write_once(&name, &pid.to_string()).map_err(|source| {
        if is(&source, Errno::SRCH) {
            return CgroupError::NoProcess { pid };
        }
        missing(roots, path, "cgroup.procs", &source).unwrap_or_else(|| CgroupError::Write {
            cgroup: path.clone(),
            file: "cgroup.procs".to_owned(),
            value: pid.to_string(),
            source,
        })
    })
}

/// The cgroup that a process is in (line `0::` of `/proc/PID/cgroup`).
///
/// # Errors
/// [`CgroupError::NoProcess`], [`CgroupError::NotUnified`], [`CgroupError::Removed`], [`CgroupError::Unnameable`] or
/// [`CgroupError::ReadProc`].
pub fn cgroup_of(roots: &Roots, pid: u32) -> Result<CgroupPath, CgroupError> {
    let file = roots.proc.join(pid.to_string()).join("cgroup");
    let text = fs::read_to_string(file).map_err(|source| unreadable(pid, source))?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::")).ok_or(CgroupError::NotUnified { pid })?;
    // The kernel appends this mark (proc_cgroup_show); no live cgroup created by Bulkhead has a space in its name.
    if path.ends_with(" (deleted)") {
        return Err(CgroupError::Removed { pid });
    }
    path.parse().map_err(|source| CgroupError::Unnameable { pid, source })
}

fn unreadable(pid: u32, source: io::Error) -> CgroupError {
    if source.kind() == io::ErrorKind::NotFound || is(&source, Errno::SRCH) {
        CgroupError::NoProcess { pid }
    } else {
        CgroupError::ReadProc { pid, source }
    }
}

fn parse_procs(text: &str) -> Result<Vec<u32>, String> {
    let mut pids = Vec::new();
    for line in text.lines() {
        pids.push(line.trim().parse().map_err(|_| line.to_owned())?);
    }
    pids.retain(|&pid| pid != 0);
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

fn words(text: &str) -> BTreeSet<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn parse_error(path: &CgroupPath, file: &str, line: String) -> CgroupError {
    CgroupError::Parse { cgroup: path.clone(), file: file.to_owned(), line }
}

/// The error for a missing cgroup or cgroup file; `None` if `source` is another error.
fn missing(roots: &Roots, path: &CgroupPath, file: &str, source: &io::Error) -> Option<CgroupError> {
    // kernfs returns ENODEV for an open file of a removed cgroup.
    if source.kind() != io::ErrorKind::NotFound && !is(source, Errno::NODEV) {
        return None;
    }
    let cgroup = path.clone();
    if !exists(roots, path) {
        Some(CgroupError::NotFound { cgroup })
    } else if source.kind() == io::ErrorKind::NotFound {
        Some(CgroupError::NoFile { cgroup, file: file.to_owned() })
    } else {
        // In a live cgroup, io.* files return ENODEV for an unknown device.
        None
    }
}

fn file_of(roots: &Roots, path: &CgroupPath, file: &str) -> Result<PathBuf, CgroupError> {
    if file.is_empty() || file.contains(['/', '\0']) || file.starts_with("..") || file == "." {
        return Err(CgroupError::BadFile { file: file.to_owned() });
    }
    Ok(roots.cgroup_dir(path).join(file))
}

/// The kernel's files ignore truncation; the regular files of a fake kernel need it.
fn write_once(name: &PathBuf, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).truncate(true).open(name)?.write_all(value.as_bytes())
}

fn make_dir(roots: &Roots, path: &CgroupPath) -> Result<bool, CgroupError> {
    match fs::create_dir(roots.cgroup_dir(path)) {
        Ok(()) => Ok(true),
        Err(source) if source.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(source) => Err(CgroupError::Create { cgroup: path.clone(), source }),
    }
}

/// The processes in a cgroup and its descendants, as far as they can be read: for error messages, and for refusing early.
fn procs_below(roots: &Roots, path: &CgroupPath) -> Vec<u32> {
    let mut pids = procs(roots, path).unwrap_or_default();
    for child in children(roots, path).unwrap_or_default() {
        pids.extend(procs_below(roots, &child));
    }
    pids.sort_unstable();
    pids.dedup();
    pids
}

fn remove_below(roots: &Roots, path: &CgroupPath) -> Result<bool, CgroupError> {
    match children(roots, path) {
        Ok(found) => {
            for child in found {
                remove_below(roots, &child)?;
            }
        }
        Err(CgroupError::NotFound { .. }) => return Ok(false),
        Err(error) => return Err(error),
    }
    remove(roots, path)
}

#[cfg(test)]
mod tests;
