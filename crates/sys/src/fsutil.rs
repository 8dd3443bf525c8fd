//! File systems on block devices: create, check, grow, shrink, describe (e2fsprogs, xfsprogs).
//!
//! Owns: the command lines of these programs and the meaning of their exit codes. A device with signatures is never formatted: without a
//! terminal the programs themselves overwrite it without asking.
//! Does not: mount (`mount`), or resize the underlying volume (`lvm`, `loopdev`).

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

/// Time limit of mkfs, checks and queries: they read or write all metadata of a volume, on a device that may be busy.
const LONG_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Block size of the file systems created here, in bytes: the page size, and the unit in which clones share data.
pub const BLOCK_BYTES: u64 = 4096;

/// Outcome of [`new_uuid`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UuidOutcome {
    /// The uuid was changed.
    Changed,
    /// It had that uuid already.
    Unchanged,
    /// XFS keeps its uuid: mount the clone with the option `nouuid`.
    MountNouuid,
}

/// A file system's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsInfo {
    /// Its type.
    pub kind: FsKind,
    /// Its uuid.
    pub uuid: String,
    /// Its label; empty if it has none.
    pub label: String,
    /// Its size, which may be less than the device's.
    pub size: Bytes,
    /// Its block size.
    pub block_size: Bytes,
    /// Size of the internal journal (the log of XFS), including the fast-commit area; `None` for ext4 without a journal or with an external
    /// one.
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

/// Grows a file system to the size of its device. Idempotent.
///
/// ext4 can be mounted (`mount_point` given) or unmounted, in which case it is checked first; XFS must be mounted.
///
/// # Errors
/// [`FsError::Unsupported`] for an unmounted XFS, [`FsError::InUse`] if it is mounted and no mount point was given,
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
/// Idempotent.
///
/// # Errors
/// [`FsError::TooSmall`] with the smallest possible size, [`FsError::NotSmaller`], [`FsError::Unsupported`] for XFS,
/// [`FsError::InUse`], [`FsError::HasErrors`], [`FsError::Tool`].
pub fn shrink(device: &Path, size: Bytes) -> Result<Bytes, FsError> {
    const SHRINK: &str = "shrink";
    let before = info(device)?;
    if before.kind == FsKind::Xfs {
        let reason = "XFS cannot be shrunk";
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

/// Sets a clone's uuid. If more than the superblock depends on the uuid, a check first replays the journal. The clone must not be mounted.
///
/// XFS keeps its uuid: changing it would rewrite the log, and may enable an incompatible feature; see [`UuidOutcome::MountNouuid`].
///
/// # Errors
/// [`FsError::BadOption`] for an invalid uuid, [`FsError::InUse`], [`FsError::HasErrors`], [`FsError::Tool`].
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
    // If checksums do not depend on the uuid, only the superblock is written, and other metadata need not be consistent.
    if info.has("needs_recovery") || !info.has("metadata_csum_seed") {
        preen(CHANGE, device)?;
    }
    run_to_end(CHANGE, device, Tool::new("tune2fs").args(["-U", uuid]).arg(device))?;
    Ok(UuidOutcome::Changed)
}

/// Describes the file system on a device, from its superblock. Works also while it is mounted, but a mounted XFS writes its superblock
/// late: size and label may be outdated.
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

/// Offset of the end of the file system on a device, beyond which the device is unused. For a mounted XFS, `mounted_at` is its mount
/// point.
///
/// # Errors
/// As [`info`]; [`FsError::Device`] if the mount point cannot be examined.
pub fn end_of_fs(device: &Path, mounted_at: Option<&Path>) -> Result<Bytes, FsError> {
    let found = info(device)?;
    let Some(mounted_at) = mounted_at.filter(|_| found.kind == FsKind::Xfs) else { return Ok(found.size) };
    let counted = rustix::fs::statvfs(mounted_at).map_err(|errno| FsError::Device {
        device: device.to_owned(),
        source: Box::new(BlockError::Read { path: mounted_at.to_owned(), source: errno.into() }),
    })?;
    // statvfs does not include the log (kernel `xfs_statvfs_data`).
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

/// Accepts only the form with dashes: `tune2fs -U` and `mkfs` also accept words such as `random`.
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

/// Runs without a time limit: killing a program that moves blocks or rewrites checksums would corrupt the file system.
fn run_to_end(operation: &'static str, device: &Path, tool: Tool) -> Result<(), FsError> {
    tool.unlimited().run().map(drop).map_err(|source| tool_error(operation, device, source))
}

#[cfg(test)]
mod tests;
