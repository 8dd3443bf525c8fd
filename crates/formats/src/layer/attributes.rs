//! The extended attributes of layers and of the files that depend on them (docs/formats/layers.md): the layer below, and the seal, which
//! proves that a layer has not been written to.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use bulkhead_sys::file::io_error;
use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;
use uuid::Uuid;

use super::LayerError;

/// The extended attribute that says what is below a file.
pub const ATTRIBUTE: &str = "user.bulkhead.below";

/// The version of its format that is written, and the only one that is read.
const VERSION: &str = "1";

/// Longest text of the attribute: a version, a UUID and a number.
const MAX_ATTRIBUTE_BYTES: usize = 128;

/// Name of the attribute that says when a layer was written to last, and how large it is.
pub(super) const SEAL: &str = "user.bulkhead.sealed";

/// What a file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// The layer below; `None` at the bottom.
    pub(super) below: Option<Uuid>,
}

/// The layer that a layer lies on.
///
/// # Errors
/// [`LayerError`], also when it is no layer, or is not what it was when it became one.
pub(crate) fn below_layer(file: &File, path: &Path) -> Result<Option<Uuid>, LayerError> {
    let unmarked = || LayerError::Attribute { name: ATTRIBUTE, path: path.to_owned(), text: String::new() };
    let mark = mark_of(file, path)?.ok_or_else(unmarked)?;
    check_seal(file, path)?;
    Ok(mark.below)
}

/// Says of an image that it lies on no layer any more; it owns all that they had, durably.
///
/// # Errors
/// [`LayerError`].
pub fn leave(image: &File, path: &Path) -> Result<(), LayerError> {
    lay_on(image, path, None)
}

/// Says of a file which layer it lies on, durably.
pub(crate) fn lay_on(file: &File, path: &Path, below: Option<Uuid>) -> Result<(), LayerError> {
    set_mark(file, path, Mark { below })
}

pub(super) fn set_mark(file: &File, path: &Path, mark: Mark) -> Result<(), LayerError> {
    let inode = file.metadata().map_err(io_error("stat", path))?.ino();
    let below = mark.below.map_or_else(|| "none".to_owned(), |below| below.to_string());
    let text = format!("{VERSION} {below} {inode}");
    match fsetxattr(file, ATTRIBUTE, text.as_bytes(), XattrFlags::empty()) {
        Err(Errno::OPNOTSUPP) => {
            let reason = "its file system has no extended attributes of users".to_owned();
            Err(LayerError::Coarse { path: path.to_owned(), reason })
        }
        set => {
            set.map_err(|errno| io_error("set an attribute of", path)(errno.into()))?;
            Ok(file.sync_all().map_err(io_error("sync", path))?)
        }
    }
}

pub(super) fn mark_of(file: &File, path: &Path) -> Result<Option<Mark>, LayerError> {
    let Some((mark, marked)) = read_mark(file, path)? else { return Ok(None) };
    let inode = file.metadata().map_err(io_error("stat", path))?.ino();
    if inode != marked {
        return Err(LayerError::Copied { path: path.to_owned(), marked, inode });
    }
    Ok(Some(mark))
}

/// Notes of a file that nobody will write to any more when it was written to last; makes that durable, and all that it holds.
pub(crate) fn seal(file: &File, path: &Path) -> Result<(), LayerError> {
    let text = format!("{VERSION} {}", last_write(file, path)?);
    fsetxattr(file, SEAL, text.as_bytes(), XattrFlags::empty())
        .map_err(|errno| io_error("set an attribute of", path)(errno.into()))?;
    Ok(file.sync_all().map_err(io_error("sync", path))?)
}

/// Lets a layer be written to. One that is cut off before it is sealed again is taken as it is.
pub(crate) fn unseal(file: &File, path: &Path) -> Result<(), LayerError> {
    match fremovexattr(file, SEAL) {
        Err(Errno::NODATA) => Ok(()),
        removed => {
            removed.map_err(|errno| io_error("remove an attribute of", path)(errno.into()))?;
            Ok(file.sync_all().map_err(io_error("sync", path))?)
        }
    }
}

/// Refuses a layer that was written to since it was sealed; one that never was is taken as it is.
fn check_seal(file: &File, path: &Path) -> Result<(), LayerError> {
    let Some(text) = attribute(file, path, SEAL)? else { return Ok(()) };
    let found = last_write(file, path)?;
    match text.split_once(' ') {
        Some((VERSION, sealed)) if sealed == found => Ok(()),
        Some((VERSION, sealed)) => Err(LayerError::Changed { path: path.to_owned(), found, sealed: sealed.to_owned() }),
        _ => Err(LayerError::Attribute { name: SEAL, path: path.to_owned(), text }),
    }
}

/// When a file was written to last, in seconds since 1970, and its size.
fn last_write(file: &File, path: &Path) -> Result<String, LayerError> {
    let metadata = file.metadata().map_err(io_error("stat", path))?;
    Ok(format!("{}.{:09} {}", metadata.mtime(), metadata.mtime_nsec(), metadata.len()))
}

/// An attribute of a file as text; `None` when it has none.
pub(super) fn attribute(file: &File, path: &Path, name: &str) -> Result<Option<String>, LayerError> {
    let mut buffer = [0; MAX_ATTRIBUTE_BYTES];
    let read = match fgetxattr(file, name, &mut buffer[..]) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
        // It is longer than any of ours.
        Err(Errno::RANGE) => 0,
        read => read.map_err(|errno| io_error("read an attribute of", path)(errno.into()))?,
    };
    Ok(Some(String::from_utf8_lossy(&buffer[..read]).into_owned()))
}

/// What a file says of itself, and the inode that it was written for.
pub(super) fn read_mark(file: &File, path: &Path) -> Result<Option<(Mark, u64)>, LayerError> {
    let Some(text) = attribute(file, path, ATTRIBUTE)? else { return Ok(None) };
    match parse_mark(&text) {
        Some(mark) => Ok(Some(mark)),
        None => Err(LayerError::Attribute { name: ATTRIBUTE, path: path.to_owned(), text }),
    }
}

pub(super) fn parse_mark(text: &str) -> Option<(Mark, u64)> {
    let words: Vec<&str> = text.split(' ').collect();
    let [VERSION, below, inode] = words[..] else { return None };
    let below = match below {
        "none" => None,
        below => Some(Uuid::try_parse(below).ok()?),
    };
    Some((Mark { below }, inode.parse().ok()?))
}

/// The layer that a file lies on.
pub(crate) fn below(file: &File, path: &Path) -> Result<Option<Uuid>, LayerError> {
    Ok(mark_of(file, path)?.and_then(|mark| mark.below))
}
