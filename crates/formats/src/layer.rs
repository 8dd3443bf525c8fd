//! Layers: what an image held at one moment, read-only from then on, below images that hold what was written since.
//!
//! An image that lies on a layer is sparse. What it has data for is its own; the rest is the layer's, at the same offsets, and so
//! on. The only other thing that is written down is which layer is below, in an extended attribute of each file
//! (docs/formats/layers.md). It also names the file's inode, so that a copy is refused: few programs that copy files keep holes
//! exactly.
//!
//! Owns: the attribute, and the one moment in which an image becomes a layer. Does not: know volumes, or serve.

use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_core::backend::{INDEX_SUFFIX, LAYER_SUFFIX, NEW_SUFFIX};
use bulkhead_core::cow::{BLOCK_BYTES, BlockMap, LayerView, LayersView, MAX_LAYERS};
use bulkhead_core::units::Bytes;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, linkat, statfs};
use rustix::io::Errno;
use uuid::Uuid;

use bulkhead_sys::extents::{self, Kind};
use bulkhead_sys::file::{FileError, flock_within, io_error, sync_dir_of};

pub use self::attributes::{ATTRIBUTE, leave};
use self::attributes::{Mark, mark_of, set_mark};
pub(crate) use self::attributes::{below, below_layer, lay_on, seal, unseal};
pub use self::directory::sweep;
pub(crate) use self::directory::{Member, list};
pub use self::error::LayerError;

mod attributes;
mod directory;
mod error;

/// Where [`check_exact`] writes its block: not beside anything.
const PROBE_AT: u64 = (1 << 20) + BLOCK_BYTES;

const _: () = assert!(BLOCK_BYTES == 4096);

/// Path of a layer in a directory of images.
#[must_use]
pub fn layer_path(directory: &Path, layer: Uuid) -> PathBuf {
    directory.join(format!("{layer}.{LAYER_SUFFIX}"))
}

/// Where the index of a layer is, if it has one (docs/formats/index.md).
#[must_use]
pub fn index_path(directory: &Path, layer: Uuid) -> PathBuf {
    directory.join(format!("{layer}.{INDEX_SUFFIX}"))
}

/// The layers below an image, the newest first; `None` for an image that was never copied, and was never a copy.
///
/// # Errors
/// [`LayerError`].
pub fn chain(image: &Path) -> Result<Option<Vec<PathBuf>>, LayerError> {
    match follow(image) {
        // It may have been merged into another since the name of it was read.
        Err(LayerError::Missing { .. }) => follow(image),
        found => found,
    }
}

fn follow(image: &Path) -> Result<Option<Vec<PathBuf>>, LayerError> {
    let Some(mut mark) = mark_of(&open(image, OFlags::RDONLY)?, image)? else { return Ok(None) };
    let mut layers: Vec<PathBuf> = Vec::new();
    while let Some(below) = mark.below {
        let path = layer_path(directory_of(image), below);
        let above = layers.last().map_or(image, PathBuf::as_path);
        if layers.len() >= MAX_LAYERS {
            return Err(LayerError::TooMany { path: image.to_owned() });
        }
        let file = match open(&path, OFlags::RDONLY) {
            Err(error) if error.is_not_found() => {
                return Err(LayerError::Missing { path: above.to_owned(), layer: path });
            }
            opened => opened?,
        };
        mark = Mark { below: below_layer(&file, &path)? };
        layers.push(path);
    }
    Ok(Some(layers))
}

/// Which of some layers has what, the oldest first. What is not a whole block at the end of one was never part of a volume.
///
/// # Errors
/// [`LayerError`].
pub fn map_of<'a>(layers: impl IntoIterator<Item = (&'a Path, &'a File)>) -> Result<BlockMap, LayerError> {
    let mut sized = Vec::new();
    for (path, file) in layers {
        let size = file.metadata().map_err(io_error("stat", path))?.len();
        sized.push((path, file, size / BLOCK_BYTES * BLOCK_BYTES));
    }
    let mut map = BlockMap::new(Bytes(sized.iter().map(|(_, _, size)| *size).max().unwrap_or(0)));
    for (number, (path, file, size)) in sized.into_iter().enumerate() {
        let number = u8::try_from(number).ok().filter(|number| usize::from(*number) < MAX_LAYERS);
        let number = number.ok_or_else(|| LayerError::TooMany { path: path.to_owned() })?;
        extents::extents(file, 0..size, |range, kind| {
            if kind == Kind::Data {
                map.set_layer(range, number);
            }
            Ok(())
        })
        .map_err(io_error("look for data in", path))?;
    }
    Ok(map)
}

/// Makes a layer of what an image holds now: from then on the image is empty and lies on it. An image that holds nothing of its
/// own stays as it is. Returns whether anything changed.
///
/// `stop` has to end the image's server, if there is one, and is called again and again until nobody serves the image, as long as
/// `limit`. Cut off at any point, the image holds the same as before, and the name of the layer may be there in vain ([`sweep`]
/// removes it).
///
/// # Errors
/// [`LayerError`]; the image is what it was.
pub fn freeze(image: &Path, layer: Uuid, limit: Duration, stop: impl FnMut()) -> Result<bool, LayerError> {
    let directory = directory_of(image);
    let file = open(image, OFlags::RDWR)?;
    let chain = chain(image)?;
    let path = layer_path(directory, layer);
    if let Some(chain) = &chain {
        let is_empty = || extents::has_data(&file).map(|data| !data).map_err(io_error("look for data in", image));
        if chain.first() == Some(&path) || !chain.is_empty() && is_empty()? {
            return Ok(false);
        }
        if chain.len() >= MAX_LAYERS {
            return Err(LayerError::TooMany { path: image.to_owned() });
        }
    }
    let new = directory.join(format!("{layer}.{NEW_SUFFIX}"));
    create(&new, Bytes(file.metadata().map_err(io_error("stat", image))?.len()), Some(layer))?;
    if chain.is_none() {
        set_mark(&file, image, Mark { below: None })?;
    }
    let switched = lock(&file, image, limit, stop).and_then(|()| {
        // What was acknowledged and not yet made durable is now beyond the reach of the volume's flushes: sealing makes it so.
        seal(&file, image)?;
        let linked = linkat(rustix::fs::CWD, image, rustix::fs::CWD, &path, AtFlags::empty());
        linked.map_err(|errno| io_error("link", &path)(errno.into()))?;
        sync_dir_of(&path)?;
        fs::rename(&new, image).map_err(io_error("replace", image))?;
        sync_dir_of(image)?;
        Ok(file.set_permissions(Permissions::from_mode(0o400)).map_err(io_error("protect", &path))?)
    });
    if switched.is_err() {
        // The first error is the one to tell, and leftovers are swept up.
        let _ = fs::remove_file(&new);
    }
    switched.map(|()| true)
}

/// Makes an image that lies on layers larger, up to the last block before `to` that one of them has beyond its end: these blocks are the
/// image's, and zero. Without that an image that was made smaller, and then larger, would show what it had before. Cut off at any
/// point, the image shows nothing of that as far as it reaches. Does nothing to one that lies on none.
///
/// # Errors
/// [`LayerError`].
pub fn hide_below(image: &Path, to: Bytes) -> Result<(), LayerError> {
    let Some(layers) = chain(image)? else { return Ok(()) };
    let file = open(image, OFlags::RDWR)?;
    let end = file.metadata().map_err(io_error("stat", image))?.len();
    let mut shown = Vec::new();
    for path in &layers {
        let layer = open(path, OFlags::RDONLY)?;
        extents::extents(&layer, end..to.0, |range, kind| {
            shown.extend((kind == Kind::Data).then_some(range));
            Ok(())
        })
        .map_err(io_error("look for data in", path))?;
    }
    // In order: what lies beyond the image's end is not its own yet.
    shown.sort_by_key(|range| range.start);
    let zeroes = vec![0; 1 << 20];
    for range in &shown {
        let mut at = range.start.max(end);
        while at < range.end {
            let n = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(zeroes.len());
            file.write_all_at(&zeroes[..n], at).map_err(io_error("write to", image))?;
            at += n as u64;
        }
    }
    if !shown.is_empty() {
        file.sync_all().map_err(io_error("sync", image))?;
    }
    Ok(())
}

/// Creates an empty image on the same layer as another, which has one. Its size is the other's.
///
/// # Errors
/// [`LayerError`]: also when there is a file of that name.
pub fn create_beside(path: &Path, other: &Path) -> Result<(), LayerError> {
    let file = open(other, OFlags::RDONLY)?;
    let below = mark_of(&file, other)?.and_then(|mark| mark.below);
    let below =
        below.ok_or_else(|| LayerError::Attribute { name: ATTRIBUTE, path: other.to_owned(), text: String::new() })?;
    create(path, Bytes(file.metadata().map_err(io_error("stat", other))?.len()), Some(below))
}

/// Puts an image in the place of another, which is lost; neither may be served. Returns `false` when it was done already.
///
/// # Errors
/// [`LayerError`].
pub fn replace(image: &Path, by: &Path) -> Result<bool, LayerError> {
    let new = match open(by, OFlags::RDONLY) {
        Err(error) if error.is_not_found() && image.exists() => return Ok(false),
        opened => opened?,
    };
    // What was written to it has to be there when its name is.
    new.sync_all().map_err(io_error("sync", by))?;
    fs::rename(by, image).map_err(io_error("replace", image))?;
    sync_dir_of(image)?;
    Ok(true)
}

/// What an image and each layer below it takes on the disk; `None` as for [`chain`].
///
/// # Errors
/// [`LayerError`].
pub fn space(image: &Path) -> Result<Option<LayersView>, LayerError> {
    let Some(layers) = chain(image)? else { return Ok(None) };
    let taken =
        |path: &Path| fs::metadata(path).map(|found| Bytes(found.blocks() * 512)).map_err(io_error("stat", path));
    let below = layers.iter().map(|path| {
        let id = path.file_stem().and_then(|stem| Uuid::parse_str(stem.to_str()?).ok()).unwrap_or_default();
        Ok(LayerView { id, bytes: taken(path)? })
    });
    Ok(Some(LayersView { own_bytes: taken(image)?, below: below.collect::<Result<_, LayerError>>()? }))
}

/// Locks a file against everybody who serves it.
pub(crate) fn lock(file: &File, path: &Path, limit: Duration, stop: impl FnMut()) -> Result<(), LayerError> {
    // Stopped before each try: also a successor that was there first.
    match flock_within(file, FlockOperation::NonBlockingLockExclusive, limit, stop) {
        Ok(true) => Ok(()),
        Ok(false) => Err(LayerError::Locked { path: path.to_owned() }),
        Err(error) => Err(io_error("lock", path)(error).into()),
    }
}

/// Creates an empty file on a layer, or on none.
///
/// # Errors
/// [`LayerError`]; the new file is removed again, unless it was there before.
pub(crate) fn create(path: &Path, size: Bytes, below: Option<Uuid>) -> Result<(), LayerError> {
    let directory = directory_of(path);
    // It gets its name when it is what it is to be: nothing half-made is left when this is cut off.
    let opened = rustix::fs::open(directory, OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    let file = match opened {
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let reason = "its file system makes no files without a name".to_owned();
            return Err(LayerError::Coarse { path: path.to_owned(), reason });
        }
        opened => File::from(opened.map_err(|errno| io_error("create", path)(errno.into()))?),
    };
    check_exact(&file, path, directory)?;
    file.set_len(size.0).map_err(io_error("size", path))?;
    set_mark(&file, path, Mark { below })?;
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(rustix::fs::CWD, &unnamed, rustix::fs::CWD, path, AtFlags::SYMLINK_FOLLOW).map_err(|errno| match errno {
        Errno::EXIST => FileError::Exists { path: path.to_owned() },
        errno => io_error("create", path)(errno.into()),
    })?;
    Ok(sync_dir_of(path)?)
}

/// Checks with an empty file that its file system knows of each block of ours whether it is a hole. Leaves the file empty.
fn check_exact(file: &File, path: &Path, directory: &Path) -> Result<(), LayerError> {
    let coarse = |reason: String| LayerError::Coarse { path: path.to_owned(), reason };
    let found = statfs(directory).map_err(|errno| io_error("look at the file system of", path)(errno.into()))?;
    if u64::try_from(found.f_bsize) != Ok(BLOCK_BYTES) {
        let size = found.f_bsize;
        return Err(coarse(format!("the blocks of its file system have {size} bytes, and must have {BLOCK_BYTES}")));
    }
    let mut data = Vec::new();
    file.write_all_at(&[0; 4096], PROBE_AT)
        .and_then(|()| file.set_len(2 * PROBE_AT))
        .and_then(|()| {
            extents::extents(file, 0..2 * PROBE_AT, |range, kind| {
                data.extend((kind == Kind::Data).then_some(range));
                Ok(())
            })
        })
        .and_then(|()| file.set_len(0))
        .map_err(io_error("look for data in", path))?;
    let wanted = PROBE_AT..PROBE_AT + BLOCK_BYTES;
    if data != [wanted.clone()] {
        return Err(coarse(format!(
            "of a written block {wanted:?} its file system says that there is data at {data:?}"
        )));
    }
    Ok(())
}

/// Refuses a file that could not become a layer.
pub(crate) fn check_depth(path: &Path) -> Result<(), LayerError> {
    if chain(path)?.is_some_and(|layers| layers.len() >= MAX_LAYERS) {
        return Err(LayerError::TooMany { path: path.to_owned() });
    }
    Ok(())
}

pub(crate) fn open(path: &Path, flags: OFlags) -> Result<File, FileError> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, rustix::fs::Mode::empty());
    opened.map(File::from).map_err(|errno| io_error("open", path)(errno.into()))
}

pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or_else(|| Path::new("."))
}

/// Repeats an operation while something is locked: a child that another test has forked holds our locks, too, until it executes its program.
#[cfg(test)]
pub(crate) fn patiently<T>(mut operation: impl FnMut() -> Result<T, LayerError>) -> Result<T, LayerError> {
    let give_up = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        match operation() {
            Err(LayerError::StagingLocked { .. } | LayerError::NotAlone { .. })
                if std::time::Instant::now() < give_up =>
            {
                std::thread::yield_now();
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests;
