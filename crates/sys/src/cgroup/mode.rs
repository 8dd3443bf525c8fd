//! How the host mounts its control groups.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;

use serde::Serialize;

use super::words;
use crate::roots::Roots;

/// How the host mounts its control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One cgroup v2 hierarchy at the root: the only mode in which Bulkhead manages shares.
    V2,
    /// v1 controllers, plus a v2 hierarchy in `unified` (systemd's "hybrid").
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

/// How the host mounts its control groups, by the files that exist.
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

/// The controllers available in the v2 hierarchy; empty without such a hierarchy.
///
/// # Errors
/// The operating system's if the file exists but cannot be read.
pub fn controllers(roots: &Roots) -> io::Result<BTreeSet<String>> {
    match mode(roots) {
        Mode::V2 | Mode::Hybrid => Ok(words(&fs::read_to_string(v2_root(roots).join("cgroup.controllers"))?)),
        Mode::V1 | Mode::None => Ok(BTreeSet::new()),
    }
}
