//! The temporary directory of one run of the lab: sockets, the directories shared with guests, and the list of its
//! processes.
//!
//! It is removed when the run ends. A killed run leaves it behind; the next run finds it, kills the recorded processes
//! that still use it, and removes it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

use crate::command::GroupKiller;
use crate::say;

const PREFIX: &str = "bulkhead-lab-";
const OWNER: &str = "owner";
const GROUPS: &str = "process-groups";

/// The directory of this run.
#[derive(Debug)]
pub(crate) struct RunDir {
    dir: PathBuf,
    next_number: AtomicU32,
}

impl RunDir {
    /// Creates the directory, after removing those of killed runs.
    pub(crate) fn create() -> Result<Self> {
        let base = std::env::temp_dir();
        sweep(&base);
        let pid = std::process::id();
        let dir = base.join(format!("{PREFIX}{pid}"));
        let text = dir.to_string_lossy();
        // The path becomes part of QEMU options, and of a socket's address.
        if text.len() > 70 || !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b)) {
            bail!("{text} cannot hold the lab's sockets: set TMPDIR to a short path without special characters");
        }
        if dir.exists() {
            // Left by a killed process that had the same pid.
            std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        }
        std::fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let start = start_time(pid).context("cannot read this process's start time from /proc")?;
        let owner = dir.join(OWNER);
        std::fs::write(&owner, format!("{pid} {start}"))
            .with_context(|| format!("cannot write {}", owner.display()))?;
        Ok(Self { dir, next_number: AtomicU32::new(1) })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A number that is unique in this run.
    pub(crate) fn next_number(&self) -> u32 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Records a process group, so that the next run finds it if this one is killed.
    pub(crate) fn record_group(&self, leader: u32) -> Result<()> {
        let path = self.path(GROUPS);
        let mut file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        writeln!(file, "{leader}").with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            say::progress(format!("cannot remove {}: {error}", self.dir.display()));
        }
    }
}

/// Removes the directories of runs whose owner has ended, and kills the processes that they left.
fn sweep(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let dir = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) || owner_lives(&dir) {
            continue;
        }
        say::progress(format!("removing leftovers of a killed run: {}", dir.display()));
        let groups = std::fs::read_to_string(dir.join(GROUPS)).unwrap_or_default();
        for leader in groups.lines().filter_map(|line| line.trim().parse::<u32>().ok()) {
            if group_uses(leader, &dir) {
                GroupKiller::new(Some(leader)).kill();
            }
        }
        if let Err(error) = std::fs::remove_dir_all(&dir) {
            say::progress(format!("cannot remove {}: {error}", dir.display()));
        }
    }
}

fn owner_lives(dir: &Path) -> bool {
    let text = std::fs::read_to_string(dir.join(OWNER)).unwrap_or_default();
    let Some((pid, start)) = text.split_once(' ') else {
        // Being created, or damaged: a directory younger than a minute counts as owned.
        let age = std::fs::metadata(dir).and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
        return age.is_some_and(|age| age.as_secs() < 60);
    };
    let current = pid.parse().ok().and_then(start_time);
    current.is_some_and(|current| current == start)
}

/// Whether a member of the process group names the directory in its arguments: pids are reused, directories are not.
fn group_uses(leader: u32, dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else { return false };
    let dir = dir.to_string_lossy();
    entries.flatten().any(|entry| {
        let in_group = stat_field(&entry.path(), 4).and_then(|group| group.parse().ok()) == Some(leader);
        let arguments = || std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        in_group && String::from_utf8_lossy(&arguments()).contains(dir.as_ref())
    })
}

/// Start time of a process in clock ticks since boot, which identifies it together with its pid.
fn start_time(pid: u32) -> Option<String> {
    stat_field(&PathBuf::from(format!("/proc/{pid}")), 21)
}

/// A field of /proc/PID/stat, counted from 0 as in proc(5) minus one; only fields after the program's name.
fn stat_field(process: &Path, index: usize) -> Option<String> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(index.checked_sub(2)?).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_removes_only_directories_without_a_living_owner() {
        let base = tempfile::tempdir().unwrap();
        let make = |name: &str, owner: &str| {
            let dir = base.path().join(format!("{PREFIX}{name}"));
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join(OWNER), owner).unwrap();
            dir
        };
        let me = std::process::id();
        let alive = make("alive", &format!("{me} {}", start_time(me).unwrap()));
        let reused = make("reused", &format!("{me} 1"));
        let gone = make("gone", "4294967294 1");
        let stranger = base.path().join("something-else");
        std::fs::create_dir(&stranger).unwrap();
        sweep(base.path());
        assert!(alive.exists() && stranger.exists());
        assert!(!reused.exists() && !gone.exists());
    }

    #[test]
    fn a_group_is_recognised_by_its_arguments() {
        let me = std::process::id();
        let group = stat_field(Path::new("/proc/self"), 4).unwrap().parse().unwrap();
        let own = std::env::args().next().unwrap();
        assert!(group_uses(group, Path::new(&own)), "pid {me}");
        assert!(!group_uses(group, Path::new("/no/such/folder")));
    }
}
