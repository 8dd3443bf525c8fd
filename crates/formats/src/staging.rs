//! Staging files: images in the making, into which a snapshot from another host is received. A staging file lies on the layer that the
//! stream is based on, if any, and becomes a layer itself when it is whole.
//!
//! How far it is, is an extended attribute of it (docs/formats/stream.md), which is written after the data that it speaks of is
//! durable: whoever goes on after a crash begins there.

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

/// The extended attribute that says what is received into a file, and how far that is.
pub const ATTRIBUTE: &str = "user.bulkhead.received";

/// The version of its format that is written, and the only one that is read.
const VERSION: &str = "1";

/// What its last word is when nothing is missing.
const WHOLE: &str = "end";

/// Longest text of the attribute: a version, a UUID and a number.
const MAX_ATTRIBUTE_BYTES: usize = 128;

/// How far the receiver of a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingState {
    /// What is received: the UUID of the layer that it becomes.
    pub content: Uuid,
    /// The layer that it lies on.
    pub base: Option<Uuid>,
    /// Its size.
    pub size: Bytes,
    /// Everything before this offset is there; `None` when nothing is missing.
    pub received: Option<Bytes>,
    /// Whether there is a layer of the same content.
    pub layer: StagingLayer,
}

/// What layer there is of the content of a staging file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagingLayer {
    /// None.
    Missing,
    /// Another file: it was received before.
    Other,
    /// The file of the staging file, on which volumes lie: nobody may write to it any more.
    Same,
}

/// Makes an empty staging file, if it is not there; one of the same content stays as it is. Returns whether it was made.
///
/// # Errors
/// [`LayerError`]: also when its base is missing, or something else is being received under its name.
pub fn create(path: &Path, content: Uuid, base: Option<Uuid>, size: Bytes) -> Result<bool, LayerError> {
    match state(path)? {
        // All was done with it but to remove this name of it.
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
    // What has no state has received nothing: its making was cut off.
    match layer::open(path, OFlags::RDONLY) {
        Ok(file) if !extents::has_data(&file).map_err(io_error("look for data in", path))? => {
            remove_durable(path)?;
        }
        _ => {}
    }
    layer::create(path, size, base)?;
    let made = layer::check_depth(path).and_then(|()| {
        let file = layer::open(path, OFlags::RDWR)?;
        set_state(&file, path, content, Some(Bytes(0)))
    });
    if made.is_err() {
        let _ = fs::remove_file(path);
    }
    made.map(|()| true)
}

/// How far a staging file is; `None` when there is none.
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
        // It was being made.
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
        // It is longer than any of ours.
        Err(Errno::RANGE) => 0,
        read => read.map_err(|errno| io_error("read an attribute of", path)(errno.into()))?,
    };
    let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
    let Some((content, received)) = parse(&text) else {
        return Err(LayerError::Attribute { name: ATTRIBUTE, path: path.to_owned(), text });
    };
    let base = layer::below(&file, path)?;
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

/// Where the index is made of what is in a staging file.
#[must_use]
pub fn index_of(staging: &Path) -> PathBuf {
    let mut name = staging.as_os_str().to_owned();
    name.push(".");
    name.push(INDEX_SUFFIX);
    name.into()
}

/// Makes a layer of a staging file that is whole, with its index if it has one, and an empty image on it. The staging file stays.
///
/// # Errors
/// [`LayerError`]; cut off at any point, it can be called again.
pub fn publish(path: &Path, image: &Path) -> Result<(), LayerError> {
    let staging = StagingFile::open(path)?;
    let found = state(path)?.filter(|state| state.received.is_none());
    let state = found.ok_or_else(|| LayerError::Incomplete { path: path.to_owned() })?;
    let directory = layer::directory_of(path);
    let layer = layer_path(directory, state.content);
    // What has the same UUID holds the same.
    if !layer.exists() {
        let file = staging.file;
        layer::seal(&file, path)?;
        file.set_permissions(Permissions::from_mode(0o400)).map_err(io_error("protect", path))?;
        let linked = linkat(rustix::fs::CWD, path, rustix::fs::CWD, &layer, AtFlags::empty());
        linked.map_err(|errno| io_error("link", &layer)(errno.into()))?;
        sync_dir_of(&layer)?;
    }
    let (made, index) = (index_of(path), layer::index_path(directory, state.content));
    if made.exists() && !index.exists() {
        fs::rename(&made, &index).map_err(io_error("rename", &made))?;
        sync_dir_of(&index)?;
    }
    layer::create(image, state.size, Some(state.content))
}

/// Removes a staging file, unless somebody writes to it. Returns whether there was one.
///
/// # Errors
/// [`LayerError`]: also for a file that has data and does not say that it is a staging file.
pub fn remove(path: &Path) -> Result<bool, LayerError> {
    let found = state(path);
    // Nobody writes to a layer, and those who read it have locked it.
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
    remove_durable(&index_of(path))?;
    Ok(remove_durable(path)?)
}

/// Whether nobody has had a staging file open for as long: who makes one opens it at once, and keeps it open.
///
/// # Errors
/// [`LayerError`].
pub fn is_abandoned(path: &Path, for_at_least: Duration) -> Result<bool, LayerError> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found.map_err(io_error("stat", path))?,
    };
    let changed = UNIX_EPOCH + Duration::from_secs(found.ctime().try_into().unwrap_or(0));
    // A clock that was set back only delays it. What is new is not even locked for a moment: its maker is about to.
    if changed.elapsed().unwrap_or_default() < for_at_least {
        return Ok(false);
    }
    match StagingFile::open(path) {
        Ok(_) => Ok(true),
        Err(LayerError::StagingLocked { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A staging file that this process alone writes to.
#[derive(Debug)]
pub struct StagingFile {
    file: File,
    path: PathBuf,
}

impl StagingFile {
    /// Opens a staging file for direct I/O where its file system has that.
    ///
    /// # Errors
    /// [`LayerError`]: also when another process has it.
    pub fn open(path: &Path) -> Result<Self, LayerError> {
        let file = open_direct(path, OFlags::RDWR)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { file, path: path.to_owned() }),
            Err(Errno::AGAIN) => Err(LayerError::StagingLocked { path: path.to_owned() }),
            Err(errno) => Err(io_error("lock", path)(errno.into()).into()),
        }
    }

    /// Opens a staging file to go on with it from `start`. Returns how far it is, too.
    ///
    /// # Errors
    /// [`LayerError`]: also when it is not the staging file of this content any more, or `start` is beyond what it has.
    pub fn resume(
        path: &Path,
        content: Uuid,
        base: Option<Uuid>,
        size: Bytes,
        start: Bytes,
    ) -> Result<(Self, StagingState), LayerError> {
        let staging = Self::open(path)?;
        let gone = || LayerError::Discarded { path: path.to_owned() };
        // It may have been given up, and another one made, before it was locked.
        if !is_at(&staging.file, path)? {
            return Err(gone());
        }
        let found = state(path)?.filter(|found| found.layer != StagingLayer::Same).ok_or_else(gone)?;
        if (found.content, found.base, found.size) != (content, base, size) {
            return Err(LayerError::OtherStaging { path: path.to_owned(), content: found.content });
        }
        if found.received.is_some_and(|received| received < start) {
            return Err(gone());
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

    /// Makes durable what was written, and then that all before this offset is there; with `None`, that nothing is missing.
    ///
    /// # Errors
    /// [`LayerError`].
    pub fn reached(&self, content: Uuid, offset: Option<Bytes>) -> Result<(), LayerError> {
        self.file.sync_all().map_err(io_error("sync", &self.path))?;
        set_state(&self.file, &self.path, content, offset)
    }
}

/// Opens a file for direct I/O, which leaves the page cache to others; in the usual way where its file system has none.
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
    let received = received.map_or_else(|| WHOLE.to_owned(), |bytes| bytes.0.to_string());
    let text = format!("{VERSION} {content} {received}");
    fsetxattr(file, ATTRIBUTE, text.as_bytes(), XattrFlags::empty())
        .map_err(|errno| io_error("set an attribute of", path)(errno.into()))?;
    Ok(file.sync_all().map_err(io_error("sync", path))?)
}

fn parse(text: &str) -> Option<(Uuid, Option<Bytes>)> {
    let words: Vec<&str> = text.split(' ').collect();
    let [VERSION, content, received] = words[..] else { return None };
    let received = if received == WHOLE { None } else { Some(Bytes(received.parse().ok()?)) };
    Some((Uuid::try_parse(content).ok()?, received))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::patiently;

    const CONTENT: Uuid = Uuid::from_u128(0x1234);

    #[test]
    fn a_part_goes_on_where_it_was_and_becomes_a_layer() {
        let dir = tempfile::tempdir().unwrap();
        let (path, image) = (dir.path().join("v.part"), dir.path().join("v.img"));
        assert_eq!(state(&path).unwrap(), None);
        assert!(create(&path, CONTENT, None, Bytes::mib(8)).unwrap());
        let staging = StagingFile::open(&path).unwrap();
        assert!(matches!(StagingFile::open(&path), Err(LayerError::StagingLocked { .. })));
        assert!(matches!(remove(&path), Err(LayerError::StagingLocked { .. })));
        let state_of =
            |received, layer| Some(StagingState { content: CONTENT, base: None, size: Bytes::mib(8), received, layer });
        let at = |received| state_of(received, StagingLayer::Missing);
        assert_eq!(state(&path).unwrap(), at(Some(Bytes(0))));
        staging.reached(CONTENT, Some(Bytes(4096))).unwrap();
        fs::write(index_of(&path), "index").unwrap();
        assert!(!is_abandoned(&path, Duration::ZERO).unwrap());
        drop(staging);
        patiently(|| match is_abandoned(&path, Duration::ZERO)? {
            true => Ok(()),
            false => Err(LayerError::StagingLocked { path: path.clone() }),
        })
        .unwrap();
        assert!(!is_abandoned(&path, Duration::from_secs(60)).unwrap());
        assert!(!is_abandoned(&dir.path().join("none"), Duration::ZERO).unwrap());
        assert!(!create(&path, CONTENT, None, Bytes::mib(8)).unwrap());
        assert_eq!(state(&path).unwrap(), at(Some(Bytes(4096))));
        let publish = || patiently(|| publish(&path, &image));
        assert!(matches!(publish(), Err(LayerError::Incomplete { .. })));
        let other = create(&path, Uuid::from_u128(5), None, Bytes::mib(8));
        assert!(matches!(other, Err(LayerError::OtherStaging { content: CONTENT, .. })));
        patiently(|| StagingFile::open(&path)).unwrap().reached(CONTENT, None).unwrap();
        publish().unwrap();
        assert_eq!(layer::chain(&image).unwrap(), Some(vec![layer_path(dir.path(), CONTENT)]));
        // As long as the daemon has not removed it, it is a second name of the layer.
        assert_eq!(state(&path).unwrap(), state_of(None, StagingLayer::Same));
        let again = |start| {
            patiently(|| StagingFile::resume(&path, CONTENT, None, Bytes::mib(8), Bytes(start)).map(|(_, found)| found))
        };
        assert!(matches!(again(0), Err(LayerError::Discarded { .. })));
        // Also while it is served.
        let served = File::open(layer_path(dir.path(), CONTENT)).unwrap();
        flock(&served, FlockOperation::LockShared).unwrap();
        assert!(patiently(|| create(&path, CONTENT, None, Bytes::mib(8))).unwrap());
        assert_eq!(state(&path).unwrap(), state_of(Some(Bytes(0)), StagingLayer::Other));
        assert!(layer_path(dir.path(), CONTENT).exists());
        assert_eq!(again(0).unwrap().received, Some(Bytes(0)));
        assert!(matches!(again(4096), Err(LayerError::Discarded { .. })));
        // What a staging file lies on is needed, and what it has become as well when an image lies on it.
        assert!(patiently(|| remove(&path)).unwrap() && !remove(&path).unwrap());
        assert_eq!(layer::sweep(dir.path(), &[]).unwrap(), Vec::<PathBuf>::new());
        fs::remove_file(&image).unwrap();
        let of_layer = [layer_path(dir.path(), CONTENT), layer::index_path(dir.path(), CONTENT)];
        assert_eq!(layer::sweep(dir.path(), &[]).unwrap(), of_layer);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_part_keeps_its_base_and_is_nothing_without_it() {
        let dir = tempfile::tempdir().unwrap();
        let (path, image) = (dir.path().join("v.part"), dir.path().join("base.img"));
        let base = Uuid::from_u128(9);
        let missing = create(&path, CONTENT, Some(base), Bytes::mib(8));
        assert!(matches!(missing, Err(LayerError::NoBase { layer, .. }) if layer == base));
        assert!(!path.exists());
        let file = File::create_new(&image).unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(&[7; 4096], 0).unwrap();
        layer::freeze(&image, base, std::time::Duration::from_secs(5), || ()).unwrap();
        create(&path, CONTENT, Some(base), Bytes::mib(8)).unwrap();
        fs::remove_file(&image).unwrap();
        assert_eq!(layer::sweep(dir.path(), &[]).unwrap(), Vec::<PathBuf>::new());
        remove(&path).unwrap();
        assert_eq!(layer::sweep(dir.path(), &[]).unwrap(), [layer_path(dir.path(), base)]);
    }

    #[test]
    fn what_is_no_part_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup.part");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(remove(&path), Err(LayerError::NotStaging { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::write(&path, "").unwrap();
        assert!(patiently(|| remove(&path)).unwrap());
    }

    #[test]
    fn what_says_nothing_known_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.part");
        create(&path, CONTENT, None, Bytes::mib(8)).unwrap();
        let file = File::open(&path).unwrap();
        for text in
            ["", "2 00000000-0000-0000-0000-000000001234 0", "1 x 0", "1 00000000-0000-0000-0000-000000001234 -1"]
        {
            fsetxattr(&file, ATTRIBUTE, text.as_bytes(), XattrFlags::empty()).unwrap();
            assert!(matches!(state(&path), Err(LayerError::Attribute { .. })), "{text:?}");
        }
    }
}
