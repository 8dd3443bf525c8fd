//! Replacing the journal of an unmounted ext4 (`tune2fs -O ^has_journal`, then `tune2fs -J size=`).
//!
//! In between the file system has no journal. The caller must prevent it from being mounted then.

use std::path::Path;

use bulkhead_core::journal;
use bulkhead_core::units::Bytes;

use super::report::parse_free_and_fast_commit;
use super::{FsError, FsInfo, refuse_in_use, run, run_to_end};
use crate::tool::{Tool, ToolError};

const REPLACE: &str = "replace the journal of";

/// A file system and its journal.
struct State {
    info: FsInfo,
    /// Size with which the journal was created; `None` without a journal.
    journal: Option<Bytes>,
    free: Bytes,
    /// Size of the fast-commit area.
    fast_commit: Bytes,
}

/// Removes the journal of an unmounted ext4 that was checked, unless it has the size `wanted`. Returns whether it was removed. Keeps
/// all other features, including `fast_commit`.
///
/// # Errors
/// [`FsError::NoRoom`] if a journal of that size would not fit, [`FsError::LogDirty`], [`FsError::InUse`], [`FsError::Unsupported`] for an
/// external journal, [`FsError::Report`], [`FsError::Tool`]. The file system is then unchanged, or needs a check.
pub fn remove_journal(device: &Path, wanted: Bytes) -> Result<bool, FsError> {
    refuse_in_use(REPLACE, device)?;
    let found = examine(device)?;
    let Some(journal) = found.journal.filter(|journal| *journal != wanted) else { return Ok(false) };
    if found.info.has("needs_recovery") {
        return Err(FsError::LogDirty { operation: REPLACE, device: device.to_owned() });
    }
    let free = Bytes(found.free.0.saturating_add(journal.0).saturating_add(found.fast_commit.0));
    let fast_commit = if found.info.has("fast_commit") { fast_commit_of(found.info.size) } else { Bytes(0) };
    // The maximum that `tune2fs` accepts (`figure_journal_size`).
    if wanted.0.saturating_add(fast_commit.0) > free.0 / 2 {
        return Err(FsError::NoRoom { device: device.to_owned(), wanted, free });
    }
    run_to_end(REPLACE, device, Tool::new("tune2fs").args(["-O", "^has_journal"]).arg(device))?;
    Ok(true)
}

/// Creates a journal in an unmounted ext4 that was checked and has none. If the size does not fit, it is halved until it does. Returns
/// whether a journal was created.
///
/// # Errors
/// [`FsError::NoRoom`] if not even the smallest fits, [`FsError::InUse`], [`FsError::Report`], [`FsError::Tool`].
pub fn make_journal(device: &Path, wanted: Bytes) -> Result<bool, FsError> {
    refuse_in_use(REPLACE, device)?;
    let found = examine(device)?;
    if found.journal.is_some() {
        return Ok(false);
    }
    let mut size = wanted;
    loop {
        let option = format!("size={}", size.0 / Bytes::MIB);
        match run_to_end(REPLACE, device, Tool::new("tune2fs").args(["-J", &option]).arg(device)) {
            Err(FsError::Tool { source: ToolError::Failed { stderr, .. }, .. }) if says_no_room(&stderr) => {
                if size <= journal::MIN {
                    return Err(FsError::NoRoom { device: device.to_owned(), wanted, free: found.free });
                }
                size = Bytes(size.0 / 2 / Bytes::MIB * Bytes::MIB).max(journal::MIN);
            }
            made => return made.map(|()| true),
        }
    }
}

/// Upper bound of the fast-commit area in a file system of that size: 1/64 of the journal that `mke2fs` would create
/// (`ext2fs_get_journal_params`).
fn fast_commit_of(size: Bytes) -> Bytes {
    Bytes((size.0 / 512).min(16 * Bytes::MIB))
}

/// Whether `tune2fs` reports that a journal does not fit, by its estimate or for lack of blocks (`EXT2_ET_BLOCK_ALLOC_FAIL`).
fn says_no_room(stderr: &str) -> bool {
    ["too big for filesystem", "Could not allocate block"].iter().any(|text| stderr.contains(text))
}

fn examine(device: &Path) -> Result<State, FsError> {
    let output = run("describe", device, Tool::new("dumpe2fs").arg("-h").arg(device))?;
    let report = |missing| FsError::Report { program: "dumpe2fs", device: device.to_owned(), missing };
    let info = super::parse_dumpe2fs(&output.stdout).map_err(report)?;
    let (free, fast_commit) = parse_free_and_fast_commit(&output.stdout).map_err(report)?;
    if info.has("has_journal") && info.journal_bytes.is_none() {
        let reason = "its journal is on another device";
        return Err(FsError::Unsupported { operation: REPLACE, device: device.to_owned(), reason });
    }
    let journal = info.journal_bytes.filter(|_| info.has("has_journal"));
    let journal = journal.map(|bytes| Bytes(bytes.0.saturating_sub(fast_commit.0)));
    Ok(State { info, journal, free, fast_commit })
}

#[cfg(test)]
mod tests;
