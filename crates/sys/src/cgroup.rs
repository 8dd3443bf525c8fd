//! The cgroup v2 hierarchy: paths, creation and removal, processes, freezing, killing, `io.stat`.
//!
//! Owns every read and write below the cgroup root and the reading of `/proc/PID/cgroup`. Does not decide which cgroup a
//! process belongs in, nor which weights to write; knows nothing of the v1 controllers beyond telling that they are there
//! (kernel `Documentation/admin-guide/cgroup-v2.rst`).

mod error;
mod ids;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::units::DevNo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;

pub use self::error::CgroupError;
pub use self::ids::{all_ids, io_weights};
use crate::roots::Roots;

/// Longest wait between two looks at `cgroup.events`: a lost notification costs no more than this.
const RECHECK: Duration = Duration::from_millis(200);

/// How often a cgroup is created once more when one above it is gone.
const CREATE_TRIES: usize = 100;

/// As much of `/proc/PID/cgroup` as is read at a time: a page, which is what the kernel gives at most.
const PROC_CGROUP_BYTES: usize = 4096;

/// As much of a cgroup's file as [`Said`] looks at.
const SAID_BYTES: usize = 1024;

/// That a process is in a cgroup, to be asked again and again: one system call each time. It is the process that it was asked of, never a
/// later one of the same pid.
#[derive(Debug)]
pub struct Membership {
    /// Its `/proc/PID/cgroup`: it cannot be read any more when the process is gone.
    file: File,
    /// What that says.
    line: String,
}

impl Membership {
    /// Of this process in this cgroup, be it so or not: [`Membership::holds`] tells.
    ///
    /// # Errors
    /// [`CgroupError::NoProcess`], [`CgroupError::ReadProc`].
    pub fn of(roots: &Roots, pid: u32, cgroup: &CgroupPath) -> Result<Self, CgroupError> {
        let path = roots.proc.join(pid.to_string()).join("cgroup");
        let file = File::open(path).map_err(|source| unreadable(pid, source))?;
        Ok(Self { file, line: format!("0::/{}", cgroup.to_string().trim_start_matches('/')) })
    }

    /// Whether the process is there now, and in that cgroup.
    #[must_use]
    pub fn holds(&self) -> bool {
        let mut said = [0; PROC_CGROUP_BYTES];
        // A process that is gone, or a line that is longer than that of any cgroup of ours: it is not so.
        let Ok(n @ 1..) = self.file.read_at(&mut said, 0) else { return false };
        said[..n].split(|byte| *byte == b'\n').any(|line| line == self.line.as_bytes())
    }
}

/// What a file of a cgroup says, to be asked again and again: one system call each time. It is the cgroup that it was asked of, never a later
/// one of the same name.
#[derive(Debug)]
pub struct Said {
    file: File,
    wanted: Wanted,
}

#[derive(Debug)]
enum Wanted {
    Line(String),
    Words(Vec<String>),
}

impl Said {
    /// That one line of the file is this, be it so or not: [`Said::holds`] tells.
    ///
    /// # Errors
    /// Those of [`read`].
    pub fn line(roots: &Roots, path: &CgroupPath, file: &str, line: &str) -> Result<Self, CgroupError> {
        Self::open(roots, path, file, Wanted::Line(line.to_owned()))
    }

    /// That these words are in the file, be it so or not: [`Said::holds`] tells.
    ///
    /// # Errors
    /// Those of [`read`].
    pub fn words(roots: &Roots, path: &CgroupPath, file: &str, words: &[&str]) -> Result<Self, CgroupError> {
        Self::open(roots, path, file, Wanted::Words(words.iter().map(|&word| word.to_owned()).collect()))
    }

    fn open(roots: &Roots, path: &CgroupPath, file: &str, wanted: Wanted) -> Result<Self, CgroupError> {
        let opened = File::open(file_of(roots, path, file)?).map_err(|source| {
            missing(roots, path, file, &source).unwrap_or_else(|| CgroupError::Read {
                cgroup: path.clone(),
                file: file.to_owned(),
                source,
            })
        })?;
        Ok(Self { file: opened, wanted })
    }

    /// Whether the cgroup is there now, and says so.
    #[must_use]
    pub fn holds(&self) -> bool {
        let mut said = [0; SAID_BYTES];
        // The file of a cgroup that is gone, or has lost its controller, cannot be read (`ENODEV`). What does not fit is not believed.
        let Ok(n @ 1..) = self.file.read_at(&mut said, 0) else { return false };
        let said = &said[..n];
        match &self.wanted {
            Wanted::Line(line) => said.split(|byte| *byte == b'\n').any(|said| said.trim_ascii() == line.as_bytes()),
            Wanted::Words(words) => {
                let has = |word: &String| said.split(u8::is_ascii_whitespace).any(|said| said == word.as_bytes());
                words.iter().all(has)
            }
        }
    }
}

/// How the host mounts its control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One cgroup v2 hierarchy at the root: the only mode in which Bulkhead manages shares.
    V2,
    /// v1 controllers, and beside them a v2 hierarchy in `unified` (systemd's "hybrid").
    Hybrid,
    /// v1 controllers only.
    V1,
    /// Nothing is mounted.
    None,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mode::V2 => "v2",
            Mode::Hybrid => "hybrid",
            Mode::V1 => "v1",
            Mode::None => "none",
        })
    }
}

/// What the block layer did for a cgroup and its descendants on one device, since the cgroup exists (file `io.stat`).
///
/// Stacked devices count once per layer: sums over layers mean nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStat {
    /// Bytes read.
    pub rbytes: u64,
    /// Bytes written.
    pub wbytes: u64,
    /// Number of read bios.
    pub rios: u64,
    /// Number of write bios.
    pub wios: u64,
    /// Bytes discarded.
    pub dbytes: u64,
    /// Number of discard bios.
    pub dios: u64,
    /// Time of the device that io.cost has taken for it, by its model and at the rate that was in force then, in microseconds
    /// (kernel `ioc_pd_stat`); 0 where it does not work.
    pub cost_usage_us: u64,
}

/// How the host mounts its control groups, judged by the files that are there.
#[must_use]
pub fn mode(roots: &Roots) -> Mode {
    let has = |file: &str| roots.cgroup.join(file).exists();
    if has("cgroup.controllers") {
        Mode::V2
    } else if has("unified/cgroup.controllers") {
        Mode::Hybrid
    } else if ["blkio", "memory", "cpu", "pids", "devices", "systemd"].iter().any(|c| has(&format!("{c}/tasks"))) {
        Mode::V1
    } else {
        Mode::None
    }
}

/// Where the v2 hierarchy is mounted: below the v1 ones on a hybrid host.
#[must_use]
pub fn v2_root(roots: &Roots) -> PathBuf {
    match mode(roots) {
        Mode::Hybrid => roots.cgroup.join("unified"),
        Mode::V2 | Mode::V1 | Mode::None => roots.cgroup.clone(),
    }
}

/// The controllers that the v2 hierarchy has to give; empty where there is no such hierarchy.
///
/// # Errors
/// The operating system's reason when the file is there and cannot be read.
pub fn controllers(roots: &Roots) -> io::Result<BTreeSet<String>> {
    match mode(roots) {
        Mode::V2 | Mode::Hybrid => Ok(words(&fs::read_to_string(v2_root(roots).join("cgroup.controllers"))?)),
        Mode::V1 | Mode::None => Ok(BTreeSet::new()),
    }
}

/// Creates a cgroup with its parents, and enables `controllers` for it in `cgroup.subtree_control` of every cgroup above,
/// from the root down (never in the cgroup itself, so that it can hold processes). Returns whether it was created.
///
/// Idempotent. What was made before a failure stays: calling again goes on from there.
///
/// # Errors
/// [`CgroupError::MissingController`], [`CgroupError::Occupied`], or a failed read, write or `mkdir`.
pub fn create(roots: &Roots, path: &CgroupPath, controllers: &[&str]) -> Result<bool, CgroupError> {
    // Somebody may remove one above it that is empty until this one is there.
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
    // A cgroup has the controllers that are enabled in the one above it, which can enable only those that it has itself: with one look
    // at the lowest one, all is known.
    if read(roots, path, "cgroup.controllers").is_ok_and(|has| controllers.iter().all(|c| words(&has).contains(*c))) {
        return Ok(false);
    }
    for above in path.ancestors() {
        make_dir(roots, &above)?;
        enable(roots, &above, controllers)?;
    }
    make_dir(roots, path)
}

/// Enables controllers for the children of a cgroup (`cgroup.subtree_control`), all or none. Returns what was enabled before;
/// `None` when nothing was to be done. Idempotent.
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
        // Available, and not taken: the processes below cannot be moved to it (kernel `cpu_cgroup_can_attach`).
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

/// The cgroups directly below, sorted. Names that are not UTF-8 are left out.
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

/// Removes one cgroup that has no children and no processes. Returns `false` when it did not exist.
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

/// Removes a cgroup and everything below it, deepest first. Removes nothing when there is a process in any of them.
/// Returns `false` when it did not exist.
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

/// The content of one file of a cgroup.
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

/// For how long some task of a cgroup, or below it, has waited for I/O since the cgroup was made (`io.pressure`, `some`). `None`
/// where the kernel does not tell: without pressure stall information, or when the cgroup is gone.
#[must_use]
pub fn io_waited(roots: &Roots, path: &CgroupPath) -> Option<Duration> {
    let text = read(roots, path, "io.pressure").ok()?;
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split(' ').find_map(|word| word.strip_prefix("total="))?;
    total.trim().parse().ok().map(Duration::from_micros)
}

/// Writes one file of a cgroup, in one `write(2)`. Returns what the file said before, without the final line break; empty
/// for files that can only be written.
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

/// The processes (kernel threads included) that are in this cgroup itself (file `cgroup.procs`), sorted. Processes outside
/// our PID namespace, which the kernel shows as 0, are left out.
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

/// Kills every process in the cgroup and below (file `cgroup.kill`), and waits until none is left (`populated 0`).
///
/// Kernel threads are not killed by the kernel: a cgroup that holds one runs into the time limit.
///
/// # Errors
/// [`CgroupError::TimedOut`] with the processes that are left, or a failed read or write.
pub fn kill_all(roots: &Roots, path: &CgroupPath, limit: Duration) -> Result<(), CgroupError> {
    let ended = write(roots, path, "cgroup.kill", "1").and_then(|_| wait_for(roots, path, "populated 0", limit));
    match ended {
        // Somebody removed it meanwhile, so nobody was left in it.
        Err(CgroupError::NotFound { .. }) => Ok(()),
        other => other,
    }
}

/// Whether there is a process in the cgroup or below it.
///
/// # Errors
/// [`CgroupError::NotFound`], [`CgroupError::Read`] or [`CgroupError::Parse`].
pub fn is_populated(roots: &Roots, path: &CgroupPath) -> Result<bool, CgroupError> {
    event(roots, path, "populated")
}

/// Stops all processes in the cgroup and below (file `cgroup.freeze`), and waits until they are stopped (`frozen 1`).
///
/// After an error the request still stands: call [`thaw`] to withdraw it. A kernel thread inside never freezes.
///
/// # Errors
/// [`CgroupError::TimedOut`], or a failed read or write.
pub fn freeze(roots: &Roots, path: &CgroupPath, limit: Duration) -> Result<(), CgroupError> {
    write(roots, path, "cgroup.freeze", "1")?;
    wait_for(roots, path, "frozen 1", limit)
}

/// Lets the processes run again and waits until the kernel says so (`frozen 0`).
///
/// # Errors
/// [`CgroupError::TimedOut`] (a cgroup above is frozen), or a failed read or write.
pub fn thaw(roots: &Roots, path: &CgroupPath, limit: Duration) -> Result<(), CgroupError> {
    write(roots, path, "cgroup.freeze", "0")?;
    wait_for(roots, path, "frozen 0", limit)
}

/// Whether all processes in the cgroup and below are stopped.
///
/// # Errors
/// [`CgroupError::NotFound`], [`CgroupError::Read`] or [`CgroupError::Parse`].
pub fn is_frozen(roots: &Roots, path: &CgroupPath) -> Result<bool, CgroupError> {
    event(roots, path, "frozen")
}

/// The I/O of the cgroup and its descendants per device (file `io.stat`). Devices without any I/O are not listed.
///
/// # Errors
/// [`CgroupError::NoFile`] when the io controller is not enabled there, [`CgroupError::NotFound`] or [`CgroupError::Read`].
pub fn io_stat(roots: &Roots, path: &CgroupPath) -> Result<BTreeMap<DevNo, IoStat>, CgroupError> {
    read(roots, path, "io.stat").map(|text| parse_io_stat(&text))
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
    // The kernel marks it so (proc_cgroup_show); no live cgroup that Bulkhead makes has a space in its name.
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

/// The counters of `io.stat`. Keys that are unknown (such as `cost.vrate`) are passed over, and so are values that are not
/// numbers. Some kernels print the number of a device without I/O on the same line as the next device; that is understood.
#[must_use]
pub fn parse_io_stat(text: &str) -> BTreeMap<DevNo, IoStat> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let mut dev: Option<DevNo> = None;
        for word in line.split_ascii_whitespace() {
            if let Ok(number) = word.parse::<DevNo>() {
                dev = Some(number);
                continue;
            }
            let (Some(dev), Some((key, value))) = (dev, word.split_once('=')) else { continue };
            let Ok(value) = value.parse::<u64>() else { continue };
            let entry: &mut IoStat = found.entry(dev).or_default();
            match key {
                "rbytes" => entry.rbytes = value,
                "wbytes" => entry.wbytes = value,
                "rios" => entry.rios = value,
                "wios" => entry.wios = value,
                "dbytes" => entry.dbytes = value,
                "dios" => entry.dios = value,
                "cost.usage" => entry.cost_usage_us = value,
                _ => {}
            }
        }
    }
    found
}

/// What a cgroup is allowed on a device per second; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoLimits {
    /// Bytes that are read.
    pub rbps: Option<u64>,
    /// Bytes that are written.
    pub wbps: Option<u64>,
    /// Reads.
    pub riops: Option<u64>,
    /// Writes.
    pub wiops: Option<u64>,
}

/// What the cgroup is allowed on a device (file `io.max`).
///
/// # Errors
/// [`CgroupError::NoFile`] when the io controller is not enabled there or the kernel cannot limit, [`CgroupError::NotFound`] or
/// [`CgroupError::Read`].
pub fn io_limits(roots: &Roots, path: &CgroupPath, dev: DevNo) -> Result<IoLimits, CgroupError> {
    read(roots, path, "io.max").map(|text| parse_io_limits(&text, dev))
}

fn parse_io_limits(text: &str, dev: DevNo) -> IoLimits {
    let is_of = |line: &&str| line.split_ascii_whitespace().next().is_some_and(|word| word.parse() == Ok(dev));
    let line = text.lines().find(is_of).unwrap_or_default();
    let limit = |key: &str| line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.parse().ok());
    IoLimits { rbps: limit("rbps="), wbps: limit("wbps="), riops: limit("riops="), wiops: limit("wiops=") }
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

/// The value of one key of a flat keyed file such as `cgroup.events`.
fn parse_flag(text: &str, key: &str) -> Option<bool> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    match value.trim() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
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

/// The error for a cgroup, or a file of it, that is not there; `None` when `source` says something else.
fn missing(roots: &Roots, path: &CgroupPath, file: &str, source: &io::Error) -> Option<CgroupError> {
    // ENODEV is what an open file of a removed cgroup answers (kernfs).
    if source.kind() != io::ErrorKind::NotFound && !is(source, Errno::NODEV) {
        return None;
    }
    let cgroup = path.clone();
    if !exists(roots, path) {
        Some(CgroupError::NotFound { cgroup })
    } else if source.kind() == io::ErrorKind::NotFound {
        Some(CgroupError::NoFile { cgroup, file: file.to_owned() })
    } else {
        // ENODEV from a living cgroup is the answer of io.* files about a device.
        None
    }
}

fn file_of(roots: &Roots, path: &CgroupPath, file: &str) -> Result<PathBuf, CgroupError> {
    if file.is_empty() || file.contains(['/', '\0']) || file.starts_with("..") || file == "." {
        return Err(CgroupError::BadFile { file: file.to_owned() });
    }
    Ok(roots.cgroup_dir(path).join(file))
}

/// Truncation means nothing to the kernel's files; it keeps a fake kernel's files right.
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

/// The processes in a cgroup and below, as far as they can be read: used to explain, and to refuse early.
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

fn event(roots: &Roots, path: &CgroupPath, key: &str) -> Result<bool, CgroupError> {
    let text = read(roots, path, "cgroup.events")?;
    parse_flag(&text, key).ok_or_else(|| parse_error(path, "cgroup.events", text.replace('\n', "; ")))
}

/// Waits until `cgroup.events` has the line `line`.
///
/// The kernel wakes a poll for POLLPRI when the file changed since it was last read (`kernfs_generic_poll`). A regular file,
/// as in a fake kernel, never does: there the file is read again every [`RECHECK`].
fn wait_for(roots: &Roots, path: &CgroupPath, line: &'static str, limit: Duration) -> Result<(), CgroupError> {
    let key = line.split(' ').next().unwrap_or_default();
    let deadline = Instant::now() + limit;
    let error = |source: io::Error| {
        missing(roots, path, "cgroup.events", &source).unwrap_or_else(|| CgroupError::Read {
            cgroup: path.clone(),
            file: "cgroup.events".to_owned(),
            source,
        })
    };
    let file = File::open(file_of(roots, path, "cgroup.events")?).map_err(error)?;
    loop {
        let mut buffer = [0u8; 512];
        let n = file.read_at(&mut buffer, 0).map_err(error)?;
        let text = String::from_utf8_lossy(&buffer[..n]);
        if text.lines().any(|found| found == line) {
            return Ok(());
        }
        if parse_flag(&text, key).is_none() {
            return Err(parse_error(path, "cgroup.events", text.replace('\n', "; ")));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(CgroupError::TimedOut {
                cgroup: path.clone(),
                wanted: line,
                limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
                pids: procs_below(roots, path),
            });
        }
        let pause = Timespec::try_from(left.min(RECHECK)).map_err(|_| error(io::ErrorKind::InvalidInput.into()))?;
        match poll(&mut [PollFd::new(&file, PollFlags::PRI)], Some(&pause)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(error(errno.into())),
        }
    }
}

#[cfg(test)]
mod tests;
