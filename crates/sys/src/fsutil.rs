//! File systems on block devices: make, check, grow, shrink, describe (e2fsprogs, xfsprogs).
//!
//! Owns: the command lines of these programs and what their exit codes mean. A device that carries anything is never
//! formatted: the programs themselves overwrite without asking when nobody sits at a terminal.
//! Does not: mount (`mount`), or resize the volume below (`lvm`, `loopdev`).

mod check;
mod erase;
mod error;
mod mkfs;
mod new_journal;
mod report;
pub mod superblock;
mod tree;

use std::path::Path;
use std::time::Duration;

use bulkhead_core::model::FsKind;
use bulkhead_core::units::Bytes;

use self::check::preen;
pub use self::check::{CheckOutcome, Repair, check};
pub use self::erase::{wipe, write_zeroes};
pub use self::error::FsError;
use self::error::{list_signatures, tool_error};
pub use self::mkfs::{MkfsOptions, mkfs};
pub use self::new_journal::{make_journal, remove_journal};
use self::report::{parse_dumpe2fs, parse_minimum_blocks, parse_xfs_db};
pub use self::tree::{TreeOptions, make_of_tree};
use crate::block::{self, BlockError};
use crate::tool::{Tool, ToolOutput};

/// How long mkfs, a check or a look may take: these read or write all metadata of a volume on a busy device.
const LONG_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Block size of the file systems made here, in bytes: the page size, and the unit in which clones share data.
pub const BLOCK_BYTES: u64 = 4096;

/// What [`new_uuid`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UuidOutcome {
    /// It has the new uuid.
    Changed,
    /// It had that uuid already.
    Unchanged,
    /// XFS keeps its uuid: mount the clone with the option `nouuid`.
    MountNouuid,
}

/// A file system as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsInfo {
    /// Which one.
    pub kind: FsKind,
    /// Its uuid.
    pub uuid: String,
    /// Its label; empty when it has none.
    pub label: String,
    /// Its size, which may be less than the device's.
    pub size: Bytes,
    /// Its block size.
    pub block_size: Bytes,
    /// Size of the internal journal (of the log, for XFS), with what is set aside for fast commits; `None` for ext4 without or with an
    /// external journal.
    pub journal_bytes: Option<Bytes>,
    /// Features, as `dumpe2fs -h` and `xfs_db -c version` name them.
    pub features: Vec<String>,
}

impl FsInfo {
    /// Whether it has a feature, for example `fast_commit` or `needs_recovery`.
    #[must_use]
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|found| found == feature)
    }
}

/// Grows a file system to the size of its device; does nothing when it has it.
///
/// ext4 mounted (`mount_point` given) or not, in which case it is checked first; XFS only mounted.
///
/// # Errors
/// [`FsError::Unsupported`] for an unmounted XFS, [`FsError::InUse`] when it is mounted and no mount point was given,
/// [`FsError::HasErrors`], [`FsError::Tool`].
pub fn grow(device: &Path, kind: FsKind, mount_point: Option<&Path>) -> Result<(), FsError> {
    const GROW: &str = "grow";
    let tool = match (kind, mount_point) {
        (FsKind::Ext4, Some(_)) => Tool::new("resize2fs").arg(device),
        (FsKind::Ext4, None) => {
            preen(GROW, device)?;
            Tool::new("resize2fs").arg(device)
        }
        (FsKind::Xfs, Some(mount_point)) => Tool::new("xfs_growfs").arg("-d").arg(mount_point),
        (FsKind::Xfs, None) => {
            let reason = "XFS grows only while it is mounted";
            return Err(FsError::Unsupported { operation: GROW, device: device.to_owned(), reason });
        }
    };
    run_to_end(GROW, device, tool)
}

/// Shrinks an unmounted ext4 to `size` (rounded down to whole blocks), after a check; returns its new size.
///
/// Does nothing when it has that size.
///
/// # Errors
/// [`FsError::TooSmall`] with the smallest possible size, [`FsError::NotSmaller`], [`FsError::Unsupported`] for XFS,
/// [`FsError::InUse`], [`FsError::HasErrors`], [`FsError::Tool`].
pub fn shrink(device: &Path, size: Bytes) -> Result<Bytes, FsError> {
    const SHRINK: &str = "shrink";
    let before = info(device)?;
    if before.kind == FsKind::Xfs {
        let reason = "XFS cannot be made smaller";
        return Err(FsError::Unsupported { operation: SHRINK, device: device.to_owned(), reason });
    }
    let blocks = size.0 / before.block_size.0.max(1);
    let wanted = Bytes(blocks * before.block_size.0);
    match wanted.cmp(&before.size) {
        std::cmp::Ordering::Equal => return Ok(wanted),
        std::cmp::Ordering::Greater => {
            return Err(FsError::NotSmaller { device: device.to_owned(), wanted: size, now: before.size });
        }
        std::cmp::Ordering::Less => {}
    }
    preen(SHRINK, device)?;
    let estimate = run(SHRINK, device, Tool::new("resize2fs").arg("-P").arg(device))?;
    let minimum = parse_minimum_blocks(&estimate.stdout).ok_or_else(|| FsError::Report {
        program: "resize2fs -P",
        device: device.to_owned(),
        missing: "the minimum size",
    })?;
    if blocks < minimum {
        let minimum = Bytes(minimum.saturating_mul(before.block_size.0));
        return Err(FsError::TooSmall { device: device.to_owned(), wanted: size, minimum });
    }
    // A number without unit is in blocks of the file system.
    run_to_end(SHRINK, device, Tool::new("resize2fs").arg(device).arg(blocks.to_string()))?;
    Ok(info(device)?.size)
}

/// Gives a clone its own uuid; where more than the superblock depends on it, after a check that replays the journal. The clone must not be mounted.
///
/// XFS keeps its uuid: changing it means rewriting the log, and may turn on an incompatible feature; see [`UuidOutcome::MountNouuid`].
///
/// # Errors
/// [`FsError::BadOption`] for something that is not a uuid, [`FsError::InUse`], [`FsError::HasErrors`], [`FsError::Tool`].
pub fn new_uuid(device: &Path, kind: FsKind, uuid: &str) -> Result<UuidOutcome, FsError> {
    const CHANGE: &str = "change the uuid of";
    check_uuid(kind, uuid)?;
    if kind == FsKind::Xfs {
        return Ok(UuidOutcome::MountNouuid);
    }
    let info = ext4_info(device)?;
    if info.uuid == uuid {
        return Ok(UuidOutcome::Unchanged);
    }
    refuse_in_use(CHANGE, device)?;
    // Where checksums do not depend on the UUID it is the superblock alone that is written, and nothing else has to be right.
    if info.has("needs_recovery") || !info.has("metadata_csum_seed") {
        preen(CHANGE, device)?;
    }
    run_to_end(CHANGE, device, Tool::new("tune2fs").args(["-U", uuid]).arg(device))?;
    Ok(UuidOutcome::Changed)
}

/// What is on the device, from its superblock. Works also while it is mounted, but a mounted XFS writes its superblock late:
/// its size and label may be old.
///
/// # Errors
/// [`FsError::UnknownFs`], [`FsError::Device`], [`FsError::Tool`], [`FsError::Report`].
pub fn info(device: &Path) -> Result<FsInfo, FsError> {
    let found = block::signatures(device)
        .map_err(|source| FsError::Device { device: device.to_owned(), source: Box::new(source) })?;
    match found.as_slice() {
        [only] if only.kind == "ext4" => ext4_info(device),
        [only] if only.kind == "xfs" => xfs_info(device),
        [] => Err(FsError::UnknownFs { device: device.to_owned(), found: "nothing".to_owned() }),
        found => Err(FsError::UnknownFs { device: device.to_owned(), found: list_signatures(found) }),
    }
}

/// Where the file system on a device ends, also that of an XFS that is mounted at `mounted_at`: behind that the device is nobody's.
///
/// # Errors
/// As [`info`]; [`FsError::Device`] when what is mounted there cannot be looked at.
pub fn end(device: &Path, mounted_at: Option<&Path>) -> Result<Bytes, FsError> {
    let found = info(device)?;
    let Some(mounted_at) = mounted_at.filter(|_| found.kind == FsKind::Xfs) else { return Ok(found.size) };
    let counted = rustix::fs::statvfs(mounted_at).map_err(|errno| FsError::Device {
        device: device.to_owned(),
        source: Box::new(BlockError::Read { path: mounted_at.to_owned(), source: errno.into() }),
    })?;
    // It does not count its log (kernel `xfs_statvfs_data`).
    let counted = counted.f_blocks.saturating_mul(counted.f_frsize);
    let log = found.journal_bytes.unwrap_or_default();
    Ok(found.size.max(Bytes(counted.saturating_add(log.0))))
}

fn ext4_info(device: &Path) -> Result<FsInfo, FsError> {
    let output = run("describe", device, Tool::new("dumpe2fs").arg("-h").arg(device))?;
    parse_dumpe2fs(&output.stdout).map_err(|missing| FsError::Report {
        program: "dumpe2fs",
        device: device.to_owned(),
        missing,
    })
}

fn xfs_info(device: &Path) -> Result<FsInfo, FsError> {
    let commands = ["-r", "-c", "sb 0", "-c", "p uuid fname blocksize dblocks logblocks", "-c", "version"];
    let output = run("describe", device, Tool::new("xfs_db").args(commands).arg(device))?;
    parse_xfs_db(&output.stdout).map_err(|missing| FsError::Report {
        program: "xfs_db",
        device: device.to_owned(),
        missing,
    })
}

fn refuse_in_use(operation: &'static str, device: &Path) -> Result<(), FsError> {
    match block::claimed(device) {
        Ok(false) => Ok(()),
        Ok(true) => Err(FsError::InUse { operation, device: device.to_owned() }),
        Err(source) => Err(FsError::Device { device: device.to_owned(), source: Box::new(source) }),
    }
}

/// The form with dashes only: `tune2fs -U` and `mkfs` also take words such as `random`.
fn check_uuid(kind: FsKind, uuid: &str) -> Result<(), FsError> {
    let parts: Vec<&str> = uuid.split('-').collect();
    let lengths = [8, 4, 4, 4, 12];
    let good = parts.len() == lengths.len()
        && parts.iter().zip(lengths).all(|(part, n)| part.len() == n && part.bytes().all(|b| b.is_ascii_hexdigit()));
    if good {
        return Ok(());
    }
    let reason = "a uuid has the form 01234567-89ab-cdef-0123-456789abcdef";
    Err(FsError::BadOption { what: "uuid", value: uuid.to_owned(), kind, reason })
}

fn run(operation: &'static str, device: &Path, tool: Tool) -> Result<ToolOutput, FsError> {
    tool.limit(LONG_LIMIT).run().map_err(|source| tool_error(operation, device, source))
}

/// Without a time limit: a program that moves blocks or rewrites checksums leaves a broken file system when it is killed.
fn run_to_end(operation: &'static str, device: &Path, tool: Tool) -> Result<(), FsError> {
    tool.unlimited().run().map(drop).map_err(|source| tool_error(operation, device, source))
}

#[cfg(test)]
mod tests;
