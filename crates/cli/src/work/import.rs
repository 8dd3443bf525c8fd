//! Builds a base from the archive in a client's stream, in a staging file that the daemon creates.

use std::io;
use std::path::Path;

use bulkhead_blockd::base;
use bulkhead_blockd::index::{self, IndexFileError};
use bulkhead_blockd::transfer::TransferError;
use bulkhead_core::base::IMPORTING;
use bulkhead_core::cow::BLOCK_BYTES;
use bulkhead_core::error::{Code, Fault, chain};
use bulkhead_core::model::FsKind;
use bulkhead_core::units::Bytes;
use bulkhead_core::work::{ImportTask, MIN_BASE_BYTES, Order, Outcome, Report, Staged};
use bulkhead_engine::kernel::layer_errors;
use bulkhead_formats::layer::LayerError;
use bulkhead_formats::staging::{StagingFile, index_path};
use bulkhead_image::{ImportError, Platform, StageOptions, Tree, stage};
use bulkhead_sys::fsutil::{self, FsError, TreeOptions};
use bulkhead_sys::loopdev::LoopError;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::tool::ToolError;
use uuid::Uuid;

use super::transfer::io_kind;
use super::{Daemon, disconnected};

/// The granularity of a base's default size.
const ROUND_TO: Bytes = Bytes::mib(64);

pub(super) fn run(task: ImportTask, daemon: &mut Daemon) -> Result<Outcome, Fault> {
    let ImportTask { volume, source, size_bytes, platform, reference, strict, staging } = task;
    let platform = match platform {
        None => Platform::host(),
        Some(text) => text.parse::<Platform>().map_err(|error| Fault::new(Code::InvalidArgument, "platform", error))?,
    };
    let image = StageOptions { platform, reference, strict };
    let stream = daemon.stream()?;
    let tree = stage(stream, &source, &staging, &image, |bytes| daemon.report_progress(bytes, None));
    let tree = tree.map_err(|error| error.fault(format!("source {source}")))?;
    let whole = |size: Bytes| size.round_up(Bytes(BLOCK_BYTES)).unwrap_or(size);
    let size_bytes = size_bytes.map_or_else(|| size_for(tree.entries(), tree.bytes()), whole);
    daemon.say(&Report::Staged(Staged { size_bytes, data_bytes: tree.bytes() }))?;
    let Order::Make { staging_file: part } = daemon.next_order()? else {
        return Err(disconnected(&io::ErrorKind::InvalidData.into()));
    };
    let made = make(&part, &tree, size_bytes, |bytes| daemon.report_progress(bytes, None));
    let content = made.map_err(|error| error.fault(&format!("volume {volume}")))?;
    Ok(Outcome::Imported { content, entries: tree.entries(), left_out: tree.left_out().to_vec() })
}

/// Why no base could be built.
#[derive(Debug, thiserror::Error)]
enum MakeError {
    #[error(transparent)]
    Staging(#[from] LayerError),
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error(transparent)]
    Seal(#[from] TransferError),
    #[error(transparent)]
    Index(#[from] IndexFileError),
    #[error(transparent)]
    Scratch(#[from] ImportError),
    #[error("cannot {0}")]
    Io(&'static str, #[source] io::Error),
}

impl MakeError {
    /// Whether another worker uses the staging file or has replaced it; the file must not be discarded then.
    fn is_used_elsewhere(&self) -> bool {
        use LayerError::{Discarded, OtherStaging, StagingLocked};
        matches!(self, Self::Staging(StagingLocked { .. } | OtherStaging { .. } | Discarded { .. }))
    }

    fn fault(&self, object: &str) -> Fault {
        let (code, hint) = match (self, io_kind(self)) {
            (Self::Scratch(error), _) => return error.fault(object),
            (_, Some(io::ErrorKind::PermissionDenied)) => {
                (Code::PermissionDenied, "run it as root, which owns the pool's files")
            }
            (_, Some(io::ErrorKind::StorageFull)) => {
                (Code::NoSpace, "free up space in the pool, or in the staging directory")
            }
            (Self::Fs(FsError::Tool { source: ToolError::Missing { .. }, .. }), _) => {
                (Code::Unsupported, "apt-get install e2fsprogs")
            }
            (Self::Fs(FsError::TreeTooLarge { .. }), _) => {
                (Code::NoSpace, "give a larger `--size`, or free up space in the pool")
            }
            (Self::Index(IndexFileError::Loop(LoopError::Unavailable { .. })), _) => {
                (Code::Unsupported, "`modprobe loop`")
            }
            (error, _) if error.is_used_elsewhere() => {
                (Code::InUse, "wait until the other import has ended, or choose another name")
            }
            (Self::Staging(error @ (LayerError::Missing { .. } | LayerError::Changed { .. })), _) => {
                layer_errors::code_and_hint(error)
            }
            _ => (Code::Internal, "import it again"),
        };
        Fault::new(code, object, chain(self)).hint(hint)
    }
}

/// Builds a file system from a tree in a staging file, and completes the file.
fn make(part: &Path, tree: &Tree, size: Bytes, mut progress: impl FnMut(Bytes)) -> Result<Uuid, MakeError> {
    let scratch = tree.scratch()?;
    // Opened first, because opening takes the lock.
    let (opened, _) = StagingFile::resume(part, IMPORTING, None, size, Bytes(0))?;
    // Remains of an interrupted import.
    let emptied = opened.file().set_len(0).and_then(|()| opened.file().set_len(size.0));
    emptied.map_err(|error| MakeError::Io("empty the staging file", error))?;
    let options = TreeOptions { tree: tree.path(), entries: tree.entries(), size, scratch: &scratch };
    fsutil::make_of_tree(part, &options)?;
    let content = base::seal(&opened, size, &mut progress)?;
    index::build(&Roots::host(), part, FsKind::Ext4, content, &index_path(part), |hashed| progress(Bytes(hashed)))?;
    // Only now is it complete.
    opened.checkpoint(content, None)?;
    Ok(content)
}

/// The default size of a base: half of it is free.
fn size_for(entries: u64, bytes: Bytes) -> Bytes {
    // An inode, a directory entry, and the unused part of a file's last block.
    let needed = bytes.0.saturating_add(entries.saturating_mul(4096 + 512));
    let size = Bytes(needed.saturating_mul(2).max(MIN_BASE_BYTES.0));
    size.round_up(ROUND_TO).unwrap_or(size)
}
