//! The extended attributes of layers and of the files that depend on them (docs/formats/layers.md): the backing layer, and the seal, by
//! which a layer that was written to is detected.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use bulkhead_sys::file::io_error;
use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;
use uuid::Uuid;

use super::LayerError;

/// The extended attribute that names the backing layer of a file.
pub const ATTRIBUTE: &str = "user.bulkhead.below";

/// The version of its format that is written, and the only one that is read.
const VERSION: &str = "1";

/// Longest text of the attribute: a version, a UUID and a number.
const MAX_ATTRIBUTE_BYTES: usize = 128;

/// The extended attribute with the modification time and size of a layer.
pub(super) const SEAL: &str = "user.bulkhead.sealed";

/// The content of [`ATTRIBUTE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Backing {
    /// The backing layer; `None` at the end of a chain.
    pub(super) layer: Option<Uuid>,
}

/// The backing layer of a layer.
///
/// # Errors
/// [`LayerError`], also if the file is no layer, or was changed since it became one.
pub(crate) fn backing_of_layer(file: &File, path: &Path) -> Result<Option<Uuid>, LayerError> {
    let missing = || LayerError::Attribute { name: ATTRIBUTE, path: path.to_owned(), text: String::new() };
    let backing = backing_of(file, path)?.ok_or_else(missing)?;
    check_seal(file, path)?;
    Ok(backing.layer)
}

/// Records that an image has no backing layer any more, because it owns all blocks. Durable.
///
/// # Errors
/// [`LayerError`].
pub fn detach(image: &File, path: &Path) -> Result<(), LayerError> {
    set_backing(image, path, None)
}

/// Sets the backing layer of a file. Durable.
pub(crate) fn set_backing(file: &File, path: &Path, layer: Option<Uuid>) -> Result<(), LayerError> {
    let inode = file.metadata().map_err(io_error("stat", path))?.ino();
    let layer = layer.map_or_else(|| "none".to_owned(), |layer| layer.to_string());
    let text = format!("{VERSION} {layer} {inode}");
    match fsetxattr(file, ATTRIBUTE, text.as_bytes(), XattrFlags::empty()) {
        Err(Errno::OPNOTSUPP) => {
            let reason = "its file system does not support user extended attributes".to_owned();
            Err(LayerError::Unsupported { path: path.to_owned(), reason })
        }
        set => {
            set.map_err(|errno| io_error("set an attribute of", path)(errno.into()))?;
            Ok(file.sync_all().map_err(io_error("sync", path))?)
        }
    }
}

/// The backing attribute of a file; `None` if it has none.
///
/// # Errors
/// [`LayerError`], [`LayerError::Copied`] among them.
pub(super) fn backing_of(file: &File, path: &Path) -> Result<Option<Backing>, LayerError> {
    let Some((backing, recorded)) = read_backing(file, path)? else { return Ok(None) };
    let inode = file.metadata().map_err(io_error("stat", path))?.ino();
    if inode != recorded {
        return Err(LayerError::Copied { path: path.to_owned(), recorded, inode });
    }
    Ok(Some(backing))
}

/// Makes a file durable, and records its modification time and size. It must not be written to from then on.
pub(crate) fn seal(file: &File, path: &Path) -> Result<(), LayerError> {
    let text = format!("{VERSION} {}", last_write(file, path)?);
    fsetxattr(file, SEAL, text.as_bytes(), XattrFlags::empty())
        .map_err(|errno| io_error("set an attribute of", path)(errno.into()))?;
    Ok(file.sync_all().map_err(io_error("sync", path))?)
}

/// Removes the seal, so that a layer can be written to. A layer without a seal is not checked.
pub(crate) fn unseal(file: &File, path: &Path) -> Result<(), LayerError> {
    match fremovexattr(file, SEAL) {
        Err(Errno::NODATA) => Ok(()),
        removed => {
            removed.map_err(|errno| io_error("remove an attribute of", path)(errno.into()))?;
            Ok(file.sync_all().map_err(io_error("sync", path))?)
        }
    }
}

/// Refuses a layer that was written to after it was sealed. A layer without a seal is not checked.
fn check_seal(file: &File, path: &Path) -> Result<(), LayerError> {
    let Some(text) = attribute(file, path, SEAL)? else { return Ok(()) };
    let found = last_write(file, path)?;
    match text.split_once(' ') {
        Some((VERSION, sealed)) if sealed == found => Ok(()),
        Some((VERSION, sealed)) => Err(LayerError::Changed { path: path.to_owned(), found, sealed: sealed.to_owned() }),
        _ => Err(LayerError::Attribute { name: SEAL, path: path.to_owned(), text }),
    }
}

/// The modification time of a file, in seconds since 1970, and its size.
fn last_write(file: &File, path: &Path) -> Result<String, LayerError> {
    let metadata = file.metadata().map_err(io_error("stat", path))?;
    Ok(format!("{}.{:09} {}", metadata.mtime(), metadata.mtime_nsec(), metadata.len()))
}

/// An attribute of a file as text; `None` if it is not set.
pub(super) fn attribute(file: &File, path: &Path, name: &str) -> Result<Option<String>, LayerError> {
    let mut buffer = [0; MAX_ATTRIBUTE_BYTES];
    let read = match fgetxattr(file, name, &mut buffer[..]) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
        // Longer than any valid value.
        Err(Errno::RANGE) => 0,
        read => read.map_err(|errno| io_error("read an attribute of", path)(errno.into()))?,
    };
    Ok(Some(String::from_utf8_lossy(&buffer[..read]).into_owned()))
}

/// The backing attribute of a file, and the inode that it was written for.
pub(super) fn read_backing(file: &File, path: &Path) -> Result<Option<(Backing, u64)>, LayerError> {
    let Some(text) = attribute(file, path, ATTRIBUTE)? else { return Ok(None) };
    match parse_backing(&text) {
        Some(backing) => Ok(Some(backing)),
        None => Err(LayerError::Attribute { name: ATTRIBUTE, path: path.to_owned(), text }),
    }
}

pub(super) fn parse_backing(text: &str) -> Option<(Backing, u64)> {
    let words: Vec<&str> = text.split(' ').collect();
    let [VERSION, layer, inode] = words[..] else { return None };
    let layer = match layer {
        "none" => None,
        layer => Some(Uuid::try_parse(layer).ok()?),
    };
    Some((Backing { layer }, inode.parse().ok()?))
}

/// The backing layer of a file.
pub(crate) fn backing_layer(file: &File, path: &Path) -> Result<Option<Uuid>, LayerError> {
    Ok(backing_of(file, path)?.and_then(|backing| backing.layer))
}
