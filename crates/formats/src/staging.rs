//! Staging files, into which snapshots are received and bases are imported. A staging file is backed by the layer that the stream is
//! based on, if any, and becomes a layer when it is complete.
//!
//! Its progress is an extended attribute (docs/formats/stream.md) that is written after the data is durable: a transfer that was
//! interrupted resumes there.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use bulkhead_core::backend::INDEX_SUFFIX;
use bulkhead_core::units::Bytes;
use rustix::fs::{AtFlags, FlockOperation, OFlags, XattrFlags, fgetxattr, flock, fsetxattr, linkat};
use rustix::io::Errno;
use uuid::Uuid;

use crate::layer::{self, LayerError, layer_path};
use bulkhead_sys::extents;
use bulkhead_sys::file::{FileError, io_error, is_at, remove_durable, sync_dir_of};

/// The extended attribute with the content that a file receives, and its progress.
pub const ATTRIBUTE: &str = "user.bulkhead.received";

/// The version of its format that is written, and the only one that is read.
const VERSION: &str = "1";

/// Its last word for a complete file.
const COMPLETE: &str = "end";

/// Longest text of the attribute: a version, a UUID and a number.
const MAX_ATTRIBUTE_BYTES: usize = 128;

/// The progress of a staging file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingState {
    /// The content: the UUID of the layer that it becomes.
    pub content: Uuid,
    /// Its backing layer.
    pub base: Option<Uuid>,
    /// Its size.
    pub size: Bytes,
    /// Everything before this offset was received; `None` if it is complete.
    pub received: Option<Bytes>,
    /// Whether a layer of the same content exists.
    pub layer: StagingLayer,
}

/// Which layer has the content of a staging file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagingLayer {
    /// No layer.
    Missing,
    /// Another file: the content was received before.
    Other,
    /// The staging file itself, on which volumes may depend: it must not be written to any more.
    Same,
}

/// Creates an empty staging file, unless one of the same content exists. Returns whether it was created.
///
/// # Errors
/// [`LayerError`]: also if its base is missing, or a staging file of other content has its name.
pub fn create(path: &Path, content: Uuid, base: Option<Uuid>, size: Bytes) -> Result<bool, LayerError> {
    match state(path)? {
        // It was published; only this name was not removed.
        Some(found) if found.layer == StagingLayer::Same => drop(remove(path)?),
        Some(found) if (found.content, found.base, found.size) == (content, base, size) => return Ok(false),
        Some(found) => return Err(LayerError::OtherStaging { path: path.to_owned(), content: found.content }),
        None => {}
    }
    if let Some(base) = base
        && !layer_path(layer::directory_of(path), base).exists()
    {
        return Err(LayerError::NoBase { path: path.to_owned(), layer: base });
    }
    // A file without progress has received nothing: its creation was interrupted.
    match layer::open(path, OFlags::RDONLY) {
        Ok(file) if !extents::has_data(&file).map_err(io_error("look for data in", path))? => {
            remove_durable(path)?;
        }
        _ => {}
    }
    layer::create(path, size, base)?;
    let created = layer::check_depth(path).and_then(|()| {
        let file = layer::open(path, OFlags::RDWR)?;
        set_state(&file, path, content, Some(Bytes(0)))
    });
    if created.is_err() {
        let _ = fs::remove_file(path);
    }
    created.map(|()| true)
}

/// The progress of a staging file; `None` if there is no such file.
///
/// # Errors
/// [`LayerError`].
pub fn state(path: &Path) -> Result<Option<StagingState>, LayerError> {
    let file = match layer::open(path, OFlags::RDONLY) {
        Err(error) if error.is_not_found() => return Ok(None),
        opened => opened?,
    };
    let mut buffer = [0; MAX_ATTRIBUTE_BYTES];
    let read = match fgetxattr(&file, ATTRIBUTE, &mut buffer[..]) {
        // Its creation was interrupted.
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
        // Longer than any valid value.
        Err(Errno::RANGE) => 0,
        read => read.map_err(|errno| io_error("read an attribute of", path)(errno.into()))?,
    };
    let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
    let Some((content, received)) = parse(&text) else {
        return Err(LayerError::Attribute { name: ATTRIBUTE, path: path.to_owned(), text });
    };
    let base = layer::backing_layer(&file, path)?;
    let metadata = file.metadata().map_err(io_error("stat", path))?;
    let layer = layer_path(layer::directory_of(path), content);
    let layer = match fs::symlink_metadata(&layer) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => StagingLayer::Missing,
        Err(error) => return Err(io_error("stat", &layer)(error).into()),
        Ok(layer) if (layer.dev(), layer.ino()) == (metadata.dev(), metadata.ino()) => StagingLayer::Same,
        Ok(_) => StagingLayer::Other,
    };
    Ok(Some(StagingState { content, base, size: Bytes(metadata.len()), received, layer }))
}

/// The index of a staging file, before it is published.
#[must_use]
pub fn index_path(staging: &Path) -> PathBuf {
    let mut name = staging.as_os_str().to_owned();
    name.push(".");
    name.push(INDEX_SUFFIX);
    name.into()
}

/// Makes a layer of a complete staging file, with its index if it has one, and an empty image backed by it. The staging file stays.
///
/// # Errors
/// [`LayerError`]; after an interruption at any point it can be called again.
pub fn publish(path: &Path, image: &Path) -> Result<(), LayerError> {
    let staging = StagingFile::open(path)?;
    let found = state(path)?.filter(|state| state.received.is_none());
    let state = found.ok_or_else(|| LayerError::Incomplete { path: path.to_owned() })?;
    let directory = layer::directory_of(path);
    let layer = layer_path(directory, state.content);
    // A layer of the same UUID has the same content.
    if !layer.exists() {
        let file = staging.file;
        layer::seal(&file, path)?;
        file.set_permissions(Permissions::from_mode(0o400)).map_err(io_error("protect", path))?;
        let linked = linkat(rustix::fs::CWD, path, rustix::fs::CWD, &layer, AtFlags::empty());
        linked.map_err(|errno| io_error("link", &layer)(errno.into()))?;
        sync_dir_of(&layer)?;
    }
    let (built, index) = (index_path(path), layer::index_path(directory, state.content));
    if built.exists() && !index.exists() {
        fs::rename(&built, &index).map_err(io_error("rename", &built))?;
        sync_dir_of(&index)?;
    }
    layer::create(image, state.size, Some(state.content))
}

/// Removes a staging file that no process is writing to. Returns whether it existed.
///
/// # Errors
/// [`LayerError`]: also for a file that has data and is not marked as a staging file.
pub fn remove(path: &Path) -> Result<bool, LayerError> {
    let found = state(path);
    // A published file is a layer: it is not written to, and servers have locked it.
    let is_layer = matches!(&found, Ok(Some(found)) if found.layer == StagingLayer::Same);
    let locked = match StagingFile::open(path) {
        Err(LayerError::File(error)) if error.is_not_found() => return Ok(false),
        Err(LayerError::StagingLocked { .. }) if is_layer => None,
        opened => Some(opened?),
    };
    if let (Some(staging), Ok(None)) = (&locked, found)
        && extents::has_data(staging.file()).map_err(io_error("look for data in", path))?
    {
        return Err(LayerError::NotStaging { path: path.to_owned() });
    }
    remove_durable(&index_path(path))?;
    Ok(remove_durable(path)?)
}

/// Whether no process has had a staging file open for this time. Its creator opens it at once and keeps it open.
///
/// # Errors
/// [`LayerError`].
pub fn is_abandoned(path: &Path, for_at_least: Duration) -> Result<bool, LayerError> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found.map_err(io_error("stat", path))?,
    };
    let changed = UNIX_EPOCH + Duration::from_secs(found.ctime().try_into().unwrap_or(0));
    // A clock that was set back only delays this. A new file is not probed by a lock, because its creator is about to lock it.
    if changed.elapsed().unwrap_or_default() < for_at_least {
        return Ok(false);
    }
    match StagingFile::open(path) {
        Ok(_) => Ok(true),
        Err(LayerError::StagingLocked { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A staging file locked for writing.
#[derive(Debug)]
pub struct StagingFile {
    file: File,
    path: PathBuf,
}

impl StagingFile {
    /// Opens a staging file, for direct I/O if its file system supports it.
    ///
    /// # Errors
    /// [`LayerError`]: also if another process has it open.
    pub fn open(path: &Path) -> Result<Self, LayerError> {
        let file = open_direct(path, OFlags::RDWR)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { file, path: path.to_owned() }),
            Err(Errno::AGAIN) => Err(LayerError::StagingLocked { path: path.to_owned() }),
            Err(errno) => Err(io_error("lock", path)(errno.into()).into()),
        }
    }

    /// Opens a staging file to resume at `start`. Returns its progress, too.
    ///
    /// # Errors
    /// [`LayerError`]: also if it is no longer the staging file of this content, or `start` is beyond its progress.
    pub fn resume(
        path: &Path,
        content: Uuid,
        base: Option<Uuid>,
        size: Bytes,
        start: Bytes,
    ) -> Result<(Self, StagingState), LayerError> {
        let staging = Self::open(path)?;
        let discarded = || LayerError::Discarded { path: path.to_owned() };
        // It may have been discarded and created again before it was locked.
        if !is_at(&staging.file, path)? {
            return Err(discarded());
        }
        let found = state(path)?.filter(|found| found.layer != StagingLayer::Same).ok_or_else(discarded)?;
        if (found.content, found.base, found.size) != (content, base, size) {
            return Err(LayerError::OtherStaging { path: path.to_owned(), content: found.content });
        }
        if found.received.is_some_and(|received| received < start) {
            return Err(discarded());
        }
        Ok((staging, found))
    }

    /// Its file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes to it.
    ///
    /// # Errors
    /// [`LayerError::File`].
    pub fn write(&self, bytes: &[u8], offset: u64) -> Result<(), LayerError> {
        Ok(self.file.write_all_at(bytes, offset).map_err(io_error("write to", &self.path))?)
    }

    /// Makes the written data durable, and then records the progress: everything before `received`, or all with `None`.
    ///
    /// # Errors
    /// [`LayerError`].
    pub fn checkpoint(&self, content: Uuid, received: Option<Bytes>) -> Result<(), LayerError> {
        self.file.sync_all().map_err(io_error("sync", &self.path))?;
        set_state(&self.file, &self.path, content, received)
    }
}

/// Opens a file for direct I/O, so that it takes no page cache; buffered if its file system does not support direct I/O.
///
/// # Errors
/// [`LayerError::File`].
pub fn open_direct(path: &Path, flags: OFlags) -> Result<File, LayerError> {
    let is_refused = |error: &io::Error| error.raw_os_error() == Some(Errno::INVAL.raw_os_error());
    match layer::open(path, flags | OFlags::DIRECT) {
        Err(FileError::Io(error)) if is_refused(&error.source) => Ok(layer::open(path, flags)?),
        opened => Ok(opened?),
    }
}

fn set_state(file: &File, path: &Path, content: Uuid, received: Option<Bytes>) -> Result<(), LayerError> {
    let received = received.map_or_else(|| COMPLETE.to_owned(), |bytes| bytes.0.to_string());
    let text = format!("{VERSION} {content} {received}");
    fsetxattr(file, ATTRIBUTE, text.as_bytes(), XattrFlags::empty())
        .map_err(|errno| io_error("set an attribute of", path)(errno.into()))?;
    Ok(file.sync_all().map_err(io_error("sync", path))?)
}

fn parse(text: &str) -> Option<(Uuid, Option<Bytes>)> {
    let words: Vec<&str> = text.split(' ').collect();
    let [VERSION, content, received] = words[..] else { return None };
    let received = if received == COMPLETE { None } else { Some(Bytes(received.parse().ok()?)) };
    Some((Uuid::try_parse(content).ok()?, received))
}

#[cfg(test)]
mod tests;
