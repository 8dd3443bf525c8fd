//! `bulkhead image import`: a directory, a tar archive or an OCI image becomes a snapshot, of which clones are made.
//!
//! The file system is made in this process and its helpers, which are the operator's to slow down and to end; the daemon makes
//! the file before, and a volume of it afterwards, as it does with a snapshot that is received (docs/formats/stream.md).

use std::io;
use std::path::Path;

use bulkhead_blockd::base;
use bulkhead_blockd::index::{self, IndexFileError};
use bulkhead_blockd::transfer::TransferError;
use bulkhead_core::base::{IMPORTING, is_base};
use bulkhead_core::cow::BLOCK_BYTES;
use bulkhead_core::error::{Code, Fault, chain};
use bulkhead_core::model::{FsKind, VolumeRef};
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::units::Bytes;
use bulkhead_engine::client::Client;
use bulkhead_image::{ImportError, Platform, Tree, Wanted};
use bulkhead_sys::fsutil::{self, FsError, TreeOptions};
use bulkhead_sys::layer::LayerError;
use bulkhead_sys::loopdev::LoopError;
use bulkhead_sys::part::{Part, index_of};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::tool::ToolError;
use uuid::Uuid;

use crate::args::ImageImportArgs;
use crate::output::Output;
use crate::parse;
use crate::progress;
use crate::show;
use crate::transfer::io_kind;

/// The smallest base that is made by itself.
const MIN_SIZE: Bytes = Bytes::mib(256);

/// What a base's size is a multiple of when nobody gives it.
const ROUND_TO: Bytes = Bytes::mib(64);

/// Imports an image.
///
/// # Errors
/// Wrong arguments, what is wrong with the source, the daemon's faults.
pub(crate) async fn import(args: ImageImportArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    let volume = parse::volume_ref(&args.volume)?;
    let object = format!("volume {volume}");
    let whole = |size: Bytes| size.round_up(Bytes(BLOCK_BYTES)).unwrap_or(size);
    let size = args.size.as_deref().map(parse::size).transpose()?.map(whole);
    let wanted = Wanted { platform: platform(args.platform.as_deref())?, reference: args.reference };
    give_up_interrupted(client, &volume, args.write.dry_run).await?;
    // What the daemon refuses in any case, it refuses before anything is unpacked.
    client.volume_receive(&volume, &header(&args.source, size.unwrap_or(MIN_SIZE), Bytes(0)), true).await?;
    let bar = progress::bytes("read", None, output);
    let tree = bulkhead_image::stage(&args.source, &args.staging, &wanted, |bytes| bar.set_position(bytes.0));
    bar.finish_and_clear();
    let tree = tree.map_err(|error| source_fault(&args.source, &error))?;
    let size = size.unwrap_or_else(|| size_for(tree.entries(), tree.bytes()));
    let header = header(&args.source, size, tree.bytes());
    let done = client.volume_receive(&volume, &header, args.write.dry_run).await?;
    let Some(view) = &done.object else { return show::steps(output, &object, "", &done) };
    let completed = match make(&view.part, &tree, size, output) {
        Ok(content) => {
            let received = client.volume_received(&volume, &StreamHeader { content, ..header }, false).await;
            received.map(|done| (content, done))
        }
        // What is there is somebody else's.
        Err(error) if error.is_of_another() => return Err(error.fault(&object)),
        Err(error) => Err(error.fault(&object)),
    };
    match completed {
        Ok((content, done)) => {
            show::done(output, &object, &format!("imported {} entries as base {content}", tree.entries()), &done)
        }
        Err(fault) => {
            // Why it failed is what to tell; what this leaves, the next import gives up, or the daemon.
            let _ = client.volume_receive_abort(&volume, false).await;
            Err(fault)
        }
    }
}

/// What the daemon is told of a base that is to be made.
fn header(source: &Path, size_bytes: Bytes, data_bytes: Bytes) -> StreamHeader {
    StreamHeader {
        content: IMPORTING,
        base: None,
        size_bytes,
        start_bytes: Bytes(0),
        // As much as there is room for is needed at most.
        data_bytes: data_bytes.min(size_bytes),
        fs: FsKind::Ext4,
        snapshot: source.display().to_string(),
    }
}

fn platform(text: Option<&str>) -> Result<Platform, Fault> {
    let Some(text) = text else { return Ok(Platform::of_host()) };
    text.parse().map_err(|error| parse::invalid("--platform", error))
}

fn source_fault(source: &Path, error: &ImportError) -> Fault {
    error.fault(format!("source {}", source.display()))
}

/// Why no base could be made.
#[derive(Debug, thiserror::Error)]
enum MakeError {
    #[error(transparent)]
    Part(#[from] LayerError),
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
    /// Whether somebody else uses the part, or has made another of it.
    fn is_of_another(&self) -> bool {
        use LayerError::{GivenUp, OtherPart, PartLocked};
        matches!(self, Self::Part(PartLocked { .. } | OtherPart { .. } | GivenUp { .. }))
    }

    fn fault(&self, object: &str) -> Fault {
        let (code, cure) = match (self, io_kind(self)) {
            (Self::Scratch(error), _) => return error.fault(object),
            (_, Some(io::ErrorKind::PermissionDenied)) => {
                (Code::PermissionDenied, "run it as root, whose the pool's files are")
            }
            (_, Some(io::ErrorKind::StorageFull)) => {
                (Code::NoSpace, "make room in the pool, or in the staging directory")
            }
            (Self::Fs(FsError::Tool { source: ToolError::Missing { .. }, .. }), _) => {
                (Code::Unsupported, "apt-get install e2fsprogs")
            }
            (Self::Fs(FsError::TreeTooLarge { .. }), _) => {
                (Code::NoSpace, "give a larger `--size`, or make room in the pool")
            }
            (Self::Index(IndexFileError::Loop(LoopError::Unavailable { .. })), _) => {
                (Code::Unsupported, "`modprobe loop`")
            }
            (error, _) if error.is_of_another() => (Code::InUse, "wait for it, or choose another name"),
            (Self::Part(error @ (LayerError::Missing { .. } | LayerError::Changed { .. })), _) => error.code_and_cure(),
            _ => (Code::Internal, "import it again"),
        };
        Fault::new(code, object, chain(self)).cure(cure)
    }
}

/// Makes a file system of a tree in a part, and completes it.
fn make(part: &Path, tree: &Tree, size: Bytes, output: &Output) -> Result<Uuid, MakeError> {
    let scratch = tree.scratch()?;
    // Opened first, because it locks.
    let (opened, _) = Part::resume(part, IMPORTING, None, size, Bytes(0))?;
    // What an import that was cut off left.
    let emptied = opened.file().set_len(0).and_then(|()| opened.file().set_len(size.0));
    emptied.map_err(|error| MakeError::Io("empty the part", error))?;
    let options = TreeOptions { tree: tree.path(), entries: tree.entries(), size, scratch: &scratch };
    fsutil::make_of_tree(part, &options)?;
    let bar = progress::bytes("hashed", None, output);
    let content = base::seal(&opened, size, |bytes| bar.set_position(bytes.0))?;
    index::build(&Roots::host(), part, FsKind::Ext4, content, &index_of(part), |hashed| bar.set_position(hashed))?;
    bar.finish_and_clear();
    // Only now it is whole.
    opened.reached(content, None)?;
    Ok(content)
}

/// Gives up what an import that was cut off left under the name of this one.
async fn give_up_interrupted(client: &Client, volume: &VolumeRef, dry_run: bool) -> Result<(), Fault> {
    match client.volume_receiving(volume).await {
        Ok(view) if is_base(view.content) => client.volume_receive_abort(volume, dry_run).await.map(drop),
        Ok(view) => {
            let cause = format!("a snapshot is being received under that name, {}", view.content);
            let cure =
                format!("wait for it, choose another name, or give it up: `bulkhead volume receive {volume} --abort`");
            Err(Fault::new(Code::InUse, format!("volume {volume}"), cause).cure(cure))
        }
        Err(fault) if fault.code == Code::NotFound || fault.code == Code::Unsupported => Ok(()),
        Err(fault) => Err(fault),
    }
}

/// The size of a base for what is in it: as much again is free.
fn size_for(entries: u64, bytes: Bytes) -> Bytes {
    // An inode, a place in a directory, and what of its last block a file does not need.
    let needed = bytes.0.saturating_add(entries.saturating_mul(4096 + 512));
    let size = Bytes(needed.saturating_mul(2).max(MIN_SIZE.0));
    size.round_up(ROUND_TO).unwrap_or(size)
}
