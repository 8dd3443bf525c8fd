//! Creating a file system (mkfs.ext4(8), mkfs.xfs(8)).

use std::path::Path;

use bulkhead_core::journal;
use bulkhead_core::model::FsKind;
use bulkhead_core::units::Bytes;

use super::error::tool_error;
use super::{BLOCK_BYTES, FsError, LONG_LIMIT, check_uuid, refuse_in_use};
use crate::block::{self, BlockError};
use crate::tool::Tool;

/// Longest label of ext4 and XFS in bytes.
const EXT4_LABEL_BYTES: usize = 16;

const XFS_LABEL_BYTES: usize = 12;

/// Parameters of a new file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkfsOptions {
    /// Its type.
    pub kind: FsKind,
    /// Its uuid, in the form with dashes.
    pub uuid: String,
    /// Its label, at most 16 bytes for ext4 and 12 for XFS; empty for none.
    pub label: String,
    /// Enables ext4's fast commits; an error for XFS.
    pub fast_commit: bool,
    /// Size of the journal; `None`: [`journal::size_for`] for ext4, the choice of `mkfs.xfs` for XFS.
    pub journal_size: Option<Bytes>,
    /// The device is known to read as zeroes: a new thin volume, a new sparse image, or an image written with zeroes. mkfs then does not
    /// zero ext4's inode tables and journal, so that a sparse device stays sparse, and written extents stay written (zeroing through loop
    /// converts them to unwritten ones). If it is set wrongly, the file system interprets old data as inodes.
    pub reads_zero: bool,
}

/// Creates a file system on a blank device, without lazy initialisation and without discards.
///
/// A discard would deallocate an image that was written on purpose (and a new thin volume has nothing allocated yet). ext4 gets 4 KiB
/// blocks, no blocks reserved for root, and `metadata_csum_seed`, which makes changing a clone's uuid a single write.
///
/// # Errors
/// [`FsError::HasSignature`] if the device is not blank, [`FsError::InUse`], [`FsError::BadOption`], [`FsError::Device`] (also if it is
/// not a block device), [`FsError::Tool`].
pub fn mkfs(device: &Path, options: &MkfsOptions) -> Result<(), FsError> {
    const FORMAT: &str = "format";
    let examine = |source| FsError::Device { device: device.to_owned(), source: Box::new(source) };
    // If the device is missing, mkfs would create a regular file in /dev.
    block::devno_of(device).map_err(examine)?;
    let size = device_size(device)?;
    let tool = mkfs_tool(device, options, size)?;
    let found = block::signatures(device).map_err(examine)?;
    if !found.is_empty() {
        return Err(FsError::HasSignature { device: device.to_owned(), found });
    }
    refuse_in_use(FORMAT, device)?;
    tool.run().map(drop).map_err(|source| tool_error(FORMAT, device, source))
}

pub(super) fn mkfs_tool(device: &Path, options: &MkfsOptions, size: Bytes) -> Result<Tool, FsError> {
    let MkfsOptions { kind, uuid, label, .. } = options;
    let bad =
        |what, value: &str, reason| Err(FsError::BadOption { what, value: value.to_owned(), kind: *kind, reason });
    check_uuid(*kind, uuid)?;
    if label.starts_with('-') || label.chars().any(char::is_control) {
        return bad("label", label, "it starts with a dash or has control characters");
    }
    let longest = match kind {
        FsKind::Ext4 => EXT4_LABEL_BYTES,
        FsKind::Xfs => XFS_LABEL_BYTES,
    };
    if label.len() > longest {
        return bad("label", label, "it is too long (16 bytes for ext4, 12 for XFS)");
    }
    let mut tool = match kind {
        FsKind::Ext4 => Tool::new("mkfs.ext4"),
        FsKind::Xfs => Tool::new("mkfs.xfs"),
    };
    tool = tool.arg("-q").limit(LONG_LIMIT);
    if !label.is_empty() {
        tool = tool.args(["-L", label]);
    }
    match kind {
        FsKind::Ext4 => {
            let journal = options.journal_size.unwrap_or_else(|| journal::size_for(size));
            if journal < journal::MIN || journal.0 > size.0 / 2 {
                return bad(
                    "journal size",
                    &journal.to_string(),
                    "it must be at least 4 MiB and at most half of the volume",
                );
            }
            let fast_commit = if options.fast_commit { ",fast_commit" } else { "" };
            let zeroed = if options.reads_zero { ",assume_storage_prezeroed=1" } else { "" };
            tool = tool
                .args(["-b", &BLOCK_BYTES.to_string(), "-m", "0", "-U", uuid])
                .args(["-J", &format!("size={}", journal.0 / Bytes::MIB)])
                .args(["-O", &format!("metadata_csum,metadata_csum_seed{fast_commit}")])
                .args(["-E", &format!("lazy_itable_init=0,lazy_journal_init=0,nodiscard{zeroed}")]);
        }
        FsKind::Xfs => {
            if options.fast_commit {
                return bad("fast_commit", "true", "only ext4 supports it");
            }
            tool = tool.args(["-K", "-m", &format!("uuid={uuid}")]);
            if let Some(journal) = options.journal_size {
                tool = tool.args(["-l", &format!("size={}", journal.0 / BLOCK_BYTES * BLOCK_BYTES)]);
            }
        }
    }
    Ok(tool.arg(device))
}

/// Size of a block device, by seeking to its end.
pub(super) fn device_size(device: &Path) -> Result<Bytes, FsError> {
    use std::io::{Seek, SeekFrom};
    let size = std::fs::File::open(device).and_then(|mut file| file.seek(SeekFrom::End(0)));
    size.map(Bytes).map_err(|source| FsError::Device {
        device: device.to_owned(),
        source: Box::new(BlockError::Read { path: device.to_owned(), source }),
    })
}
