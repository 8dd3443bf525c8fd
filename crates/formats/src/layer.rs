//! Layers: the content of an image at one moment, read-only from then on, and the backing chain of images that store later writes.
//!
//! An image with a backing layer is sparse. Its data blocks are its own; for holes, the layer's blocks at the same offsets apply, and so
//! on down the chain. The only metadata is an extended attribute of each file that names its backing layer (docs/formats/layers.md) and
//! the file's own inode: a copy is refused, because few programs preserve holes exactly.
//!
//! Owns: the step in which an image becomes a layer; `layer/attributes.rs` has the attributes: the backing layer, and the seal by which a
//! modified layer is recognised. Does not: know volumes, or serve.

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

use self::attributes::backing_of;
pub use self::attributes::{ATTRIBUTE, detach};
pub(crate) use self::attributes::{backing_layer, backing_of_layer, seal, set_backing, unseal};
pub use self::directory::sweep;
pub(crate) use self::directory::{Member, list};
pub use self::error::LayerError;

mod attributes;
mod directory;
mod error;

/// Offset of the block that [`check_hole_granularity`] writes, away from other data.
const PROBE_AT: u64 = (1 << 20) + BLOCK_BYTES;

const _: () = assert!(BLOCK_BYTES == 4096);

/// The file of a layer in a pool's directory.
#[must_use]
pub fn layer_path(directory: &Path, layer: Uuid) -> PathBuf {
    directory.join(format!("{layer}.{LAYER_SUFFIX}"))
}

/// The index of a layer, if it has one (docs/formats/index.md).
#[must_use]
pub fn index_path(directory: &Path, layer: Uuid) -> PathBuf {
    directory.join(format!("{layer}.{INDEX_SUFFIX}"))
}

/// The backing chain of an image, newest layer first; `None` if the image never was the source or target of a copy.
///
/// # Errors
/// [`LayerError`].
pub fn chain(image: &Path) -> Result<Option<Vec<PathBuf>>, LayerError> {
    match walk_chain(image) {
        // It may have been merged into another after its name was read.
        Err(LayerError::Missing { .. }) => walk_chain(image),
        found => found,
    }
}

fn walk_chain(image: &Path) -> Result<Option<Vec<PathBuf>>, LayerError> {
    let Some(backing) = backing_of(&open(image, OFlags::RDONLY)?, image)? else { return Ok(None) };
    let mut next = backing.layer;
    let mut layers: Vec<PathBuf> = Vec::new();
    while let Some(layer) = next {
        let path = layer_path(directory_of(image), layer);
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
        next = backing_of_layer(&file, &path)?;
        layers.push(path);
    }
    Ok(Some(layers))
}

/// Maps the blocks of layers, oldest first. A partial block at the end of a layer was never part of a volume, and is ignored.
///
/// # Errors
/// [`LayerError`].
pub fn block_map<'a>(layers: impl IntoIterator<Item = (&'a Path, &'a File)>) -> Result<BlockMap, LayerError> {
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

/// Turns an image into a layer, and replaces it with an empty image backed by that layer. An image that has a backing chain and no data
/// of its own stays unchanged. Returns whether anything changed.
///
/// `stop` has to stop the image's server, if there is one, and is called repeatedly until the image is unlocked, for up to `limit`. If
/// this is interrupted at any point, the content of the image is unchanged, and an unused layer may be left ([`sweep`] removes it).
///
/// # Errors
/// [`LayerError`]; the image is unchanged.
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
        set_backing(&file, image, None)?;
    }
    let switched = lock(&file, image, limit, stop).and_then(|()| {
        // Later flushes of the volume no longer reach this file; sealing makes its acknowledged writes durable.
        seal(&file, image)?;
        let linked = linkat(rustix::fs::CWD, image, rustix::fs::CWD, &path, AtFlags::empty());
        linked.map_err(|errno| io_error("link", &path)(errno.into()))?;
        sync_dir_of(&path)?;
        fs::rename(&new, image).map_err(io_error("replace", image))?;
        sync_dir_of(image)?;
        Ok(file.set_permissions(Permissions::from_mode(0o400)).map_err(io_error("protect", &path))?)
    });
    if switched.is_err() {
        // Only the first error is returned; `sweep` removes what is left.
        let _ = fs::remove_file(&new);
    }
    switched.map(|()| true)
}

/// Writes zeroes over the blocks that layers have between the end of an image and `to`, which grows the image up to the last of them.
/// Otherwise an image that was shrunk would expose its old content when it grows. If this is interrupted at any point, no old content is
/// exposed within the image's size. Does nothing to an image without layers.
///
/// # Errors
/// [`LayerError`].
pub fn mask_layers_beyond_end(image: &Path, to: Bytes) -> Result<(), LayerError> {
    let Some(layers) = chain(image)? else { return Ok(()) };
    let file = open(image, OFlags::RDWR)?;
    let end = file.metadata().map_err(io_error("stat", image))?.len();
    let mut exposed = Vec::new();
    for path in &layers {
        let layer = open(path, OFlags::RDONLY)?;
        extents::extents(&layer, end..to.0, |range, kind| {
            exposed.extend((kind == Kind::Data).then_some(range));
            Ok(())
        })
        .map_err(io_error("look for data in", path))?;
    }
    // In ascending order, so that an interruption leaves no block exposed below the image's new end.
    exposed.sort_by_key(|range| range.start);
    let zeroes = vec![0; 1 << 20];
    for range in &exposed {
        let mut at = range.start.max(end);
        while at < range.end {
            let n = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(zeroes.len());
            file.write_all_at(&zeroes[..n], at).map_err(io_error("write to", image))?;
            at += n as u64;
        }
    }
    if !exposed.is_empty() {
        file.sync_all().map_err(io_error("sync", image))?;
    }
    Ok(())
}

/// Creates an empty image with the backing layer and size of another image.
///
/// # Errors
/// [`LayerError`]: also if the other image has no backing layer, or the file exists.
pub fn create_with_backing_of(path: &Path, other: &Path) -> Result<(), LayerError> {
    let file = open(other, OFlags::RDONLY)?;
    let layer = backing_layer(&file, other)?;
    let layer =
        layer.ok_or_else(|| LayerError::Attribute { name: ATTRIBUTE, path: other.to_owned(), text: String::new() })?;
    create(path, Bytes(file.metadata().map_err(io_error("stat", other))?.len()), Some(layer))
}

/// Replaces an image with another one; neither may be served. Returns `false` if that was done before.
///
/// # Errors
/// [`LayerError`].
pub fn replace(image: &Path, by: &Path) -> Result<bool, LayerError> {
    let new = match open(by, OFlags::RDONLY) {
        Err(error) if error.is_not_found() && image.exists() => return Ok(false),
        opened => opened?,
    };
    // Its content has to be durable before it is renamed.
    new.sync_all().map_err(io_error("sync", by))?;
    fs::rename(by, image).map_err(io_error("replace", image))?;
    sync_dir_of(image)?;
    Ok(true)
}

/// The space that an image and each of its layers occupy; `None` as for [`chain`].
///
/// # Errors
/// [`LayerError`].
pub fn space(image: &Path) -> Result<Option<LayersView>, LayerError> {
    let Some(layers) = chain(image)? else { return Ok(None) };
    let allocated =
        |path: &Path| fs::metadata(path).map(|found| Bytes(found.blocks() * 512)).map_err(io_error("stat", path));
    let below = layers.iter().map(|path| {
        let id = path.file_stem().and_then(|stem| Uuid::parse_str(stem.to_str()?).ok()).unwrap_or_default();
        Ok(LayerView { id, bytes: allocated(path)? })
    });
    Ok(Some(LayersView { own_bytes: allocated(image)?, below: below.collect::<Result<_, LayerError>>()? }))
}

/// Locks a file against servers and readers; calls `stop` before each attempt.
pub(crate) fn lock(file: &File, path: &Path, limit: Duration, stop: impl FnMut()) -> Result<(), LayerError> {
    // Before each attempt, because a successor may have taken the lock first.
    match flock_within(file, FlockOperation::NonBlockingLockExclusive, limit, stop) {
        Ok(true) => Ok(()),
        Ok(false) => Err(LayerError::Locked { path: path.to_owned() }),
        Err(error) => Err(io_error("lock", path)(error).into()),
    }
}

/// Creates an empty file with this backing layer, or with none.
///
/// # Errors
/// [`LayerError`]; no file is left, unless it existed before.
pub(crate) fn create(path: &Path, size: Bytes, layer: Option<Uuid>) -> Result<(), LayerError> {
    let directory = directory_of(path);
    // The file is linked when it is complete, so that an interruption leaves nothing.
    let opened = rustix::fs::open(directory, OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    let file = match opened {
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let reason = "its file system does not support O_TMPFILE".to_owned();
            return Err(LayerError::Unsupported { path: path.to_owned(), reason });
        }
        opened => File::from(opened.map_err(|errno| io_error("create", path)(errno.into()))?),
    };
    check_hole_granularity(&file, path, directory)?;
    file.set_len(size.0).map_err(io_error("size", path))?;
    set_backing(&file, path, layer)?;
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(rustix::fs::CWD, &unnamed, rustix::fs::CWD, path, AtFlags::SYMLINK_FOLLOW).map_err(|errno| match errno {
        Errno::EXIST => FileError::Exists { path: path.to_owned() },
        errno => io_error("create", path)(errno.into()),
    })?;
    Ok(sync_dir_of(path)?)
}

/// Checks on an empty file that its file system tracks holes per block of [`BLOCK_BYTES`]. Leaves the file empty.
fn check_hole_granularity(file: &File, path: &Path, directory: &Path) -> Result<(), LayerError> {
    let unsupported = |reason: String| LayerError::Unsupported { path: path.to_owned(), reason };
    let found = statfs(directory).map_err(|errno| io_error("examine the file system of", path)(errno.into()))?;
    if u64::try_from(found.f_bsize) != Ok(BLOCK_BYTES) {
        let size = found.f_bsize;
        return Err(unsupported(format!("its file system has blocks of {size} bytes, but {BLOCK_BYTES} are required")));
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
        return Err(unsupported(format!("its file system reports data at {data:?} after a write to {wanted:?}")));
    }
    Ok(())
}

/// Refuses a file whose backing chain is too long for it to become a layer.
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

/// Repeats an operation while something is locked: a child that another test has forked inherits our locks until it calls execve.
#[cfg(test)]
pub(crate) fn retry_while_locked<T>(mut operation: impl FnMut() -> Result<T, LayerError>) -> Result<T, LayerError> {
    let give_up = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        match operation() {
            Err(LayerError::StagingLocked { .. } | LayerError::RunChanged { .. })
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
