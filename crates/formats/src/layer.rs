//! Layers: what an image held at one moment, read-only from then on, below images that hold what was written since.
//!
//! An image that lies on a layer is sparse. What it has data for is its own; the rest is the layer's, at the same offsets, and so
//! on. The only other thing that is written down is which layer is below, in an extended attribute of each file
//! (docs/formats/layers.md). It also names the file's inode, so that a copy is refused: few programs that copy files keep holes
//! exactly.
//!
//! Owns: the attribute, and the one moment in which an image becomes a layer. Does not: know volumes, or serve.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_core::backend::{IMAGE_SUFFIX, INDEX_SUFFIX, LAYER_SUFFIX, NEW_SUFFIX, PART_SUFFIX};
use bulkhead_core::cow::{BLOCK_BYTES, BlockMap, LayerView, LayersView, MAX_LAYERS};
use bulkhead_core::units::Bytes;
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, XattrFlags, fgetxattr, flock, fremovexattr, fsetxattr, linkat, statfs,
};
use rustix::io::Errno;
use uuid::Uuid;

use bulkhead_sys::extents::{self, Kind};
use bulkhead_sys::file::{FileError, flock_within, io_error, sync_dir_of};

/// The extended attribute that says what is below a file.
pub const ATTRIBUTE: &str = "user.bulkhead.below";

/// The version of its format that is written, and the only one that is read.
const VERSION: &str = "1";

/// Longest text of the attribute: a version, a UUID and a number.
const MAX_ATTRIBUTE_BYTES: usize = 128;

/// Where [`check_exact`] writes its block: not beside anything.
const PROBE_AT: u64 = (1 << 20) + BLOCK_BYTES;

const _: () = assert!(BLOCK_BYTES == 4096);

/// What can be wrong with an image and its layers.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// An operation on a file failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The attribute of a file is there and says nothing that is known.
    #[error("the attribute {name} of {path} cannot be read: {text:?}")]
    Attribute {
        /// The attribute.
        name: &'static str,
        /// The file.
        path: PathBuf,
        /// What it says.
        text: String,
    },
    /// The image was copied by Bulkhead, and does not say any more what is below it.
    #[error("{path} has lost its attribute {ATTRIBUTE}: its holes may be data of a layer")]
    Unmarked {
        /// The image.
        path: PathBuf,
    },
    /// The file lies on layers, and was copied.
    #[error(
        "{path} is a copy (its {ATTRIBUTE} is that of inode {marked}, it has inode {inode}): its holes may not be those that it had"
    )]
    Copied {
        /// The file.
        path: PathBuf,
        /// The inode that the attribute was written for.
        marked: u64,
        /// Its inode.
        inode: u64,
    },
    /// A layer was written to, which nobody does.
    #[error("the layer {path} was changed: {found}, and when it became a layer {sealed}")]
    Changed {
        /// The layer.
        path: PathBuf,
        /// When it was written to last, and its size.
        found: String,
        /// The same as it was then.
        sealed: String,
    },
    /// A layer that is needed is not there.
    #[error("{path} lies on the layer {layer}, which is not there")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The layer.
        layer: PathBuf,
    },
    /// Too many layers, or a ring of them.
    #[error("{path} lies on {MAX_LAYERS} layers, and no more are possible")]
    TooMany {
        /// The file.
        path: PathBuf,
    },
    /// The file system cannot tell data from holes as exactly as is needed.
    #[error("{path} cannot have layers: {reason}")]
    Coarse {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Somebody else has the file locked.
    #[error("{path} is still being served")]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The layer that a part is to lie on is not there.
    #[error("there is no layer {layer} for {path} to lie on")]
    NoBase {
        /// The part.
        path: PathBuf,
        /// The layer.
        layer: Uuid,
    },
    /// Something else is being received.
    #[error("{path} is what was received of {content} so far")]
    OtherPart {
        /// The part.
        path: PathBuf,
        /// What is being received.
        content: Uuid,
    },
    /// Another process receives into a part.
    #[error("another process receives into {path}")]
    PartLocked {
        /// The part.
        path: PathBuf,
    },
    /// What was received so far is not there any more.
    #[error("what was received so far into {path} was given up meanwhile")]
    GivenUp {
        /// The part.
        path: PathBuf,
    },
    /// A file has the name of a part, and is somebody else's.
    #[error("{path} has data and does not say that it is a part")]
    NoPart {
        /// The file.
        path: PathBuf,
    },
    /// Layers are not what is to be merged any more: something else lies on one of them, or one is gone.
    #[error("layers in {directory} that were to be merged are needed, gone, or being merged by another process")]
    NotAlone {
        /// Where they are.
        directory: PathBuf,
    },
    /// A part is not there, or not whole.
    #[error("{path} is not whole")]
    NotWhole {
        /// The part.
        path: PathBuf,
    },
}

/// Name of the attribute that says when a layer was written to last, and how large it is.
const SEAL: &str = "user.bulkhead.sealed";

/// What a file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    /// The layer below; `None` at the bottom.
    below: Option<Uuid>,
}

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

/// A file of a pool's directory that lies on a layer, or belongs to one.
pub(crate) enum Member {
    /// An image or a part.
    Image,
    /// An image that is being made, or was left.
    New(PathBuf),
    Layer(PathBuf, Uuid),
    Index(Uuid),
}

/// Lists a pool's directory: what is there of layers, and which layer each lies on. Of a copy that counts as well: what it was made on
/// stays.
///
/// # Errors
/// [`LayerError`] when one file cannot be read.
pub(crate) fn list(directory: &Path) -> Result<Vec<(Member, Option<Uuid>)>, LayerError> {
    let failed = || io_error("list", directory);
    let mut members = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed())? {
        let path = entry.map_err(failed())?.path();
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let uuid = path.file_stem().and_then(|stem| Uuid::parse_str(stem.to_str()?).ok());
        let member = match (extension, uuid) {
            (IMAGE_SUFFIX | PART_SUFFIX, _) => Member::Image,
            (LAYER_SUFFIX, Some(uuid)) => Member::Layer(path.clone(), uuid),
            (NEW_SUFFIX, Some(_)) => Member::New(path.clone()),
            (INDEX_SUFFIX, Some(uuid)) => {
                members.push((Member::Index(uuid), None));
                continue;
            }
            _ => continue,
        };
        let below = match open(&path, OFlags::RDONLY) {
            // It was removed since it was listed, and what it lay on may go with it.
            Err(error) if error.is_not_found() => None,
            opened => read_mark(&opened?, &path)?.and_then(|(mark, _)| mark.below),
        };
        members.push((member, below));
    }
    Ok(members)
}

/// Removes the layers of a directory that no image lies on, with their indexes, and what an interrupted [`freeze`] left. What a server
/// still has open stays until it has ended, and so do the images that are told to be `served`. Returns what was removed.
///
/// # Errors
/// [`LayerError`]; nothing is removed when one file cannot be read.
pub fn sweep(directory: &Path, served: &[PathBuf]) -> Result<Vec<PathBuf>, LayerError> {
    let (mut below, mut needed, mut leftovers) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut indexed = Vec::new();
    for (member, on) in list(directory)? {
        match member {
            Member::Image => needed.extend(on),
            Member::New(path) if served.contains(&path) || is_locked(&path)? => needed.extend(on),
            Member::New(path) => leftovers.push(path),
            Member::Layer(_, uuid) => {
                below.insert(uuid, on);
            }
            Member::Index(uuid) => indexed.push(uuid),
        }
    }
    let mut kept = BTreeSet::new();
    while let Some(layer) = needed.pop() {
        if kept.insert(layer) {
            needed.extend(below.get(&layer).copied().flatten());
        }
    }
    let unused = below.keys().filter(|layer| !kept.contains(layer)).map(|layer| layer_path(directory, *layer));
    leftovers.extend(unused);
    leftovers.extend(indexed.iter().filter(|layer| !kept.contains(layer)).map(|layer| index_path(directory, *layer)));
    for path in &leftovers {
        fs::remove_file(path).map_err(io_error("remove", path))?;
    }
    if !leftovers.is_empty() {
        sync_dir_of(&directory.join(LAYER_SUFFIX))?;
    }
    Ok(leftovers)
}

/// Whether somebody serves a file.
fn is_locked(path: &Path) -> Result<bool, LayerError> {
    match flock(&open(path, OFlags::RDONLY)?, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(Errno::AGAIN) => Ok(true),
        Err(errno) => Err(io_error("lock", path)(errno.into()).into()),
    }
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

fn set_mark(file: &File, path: &Path, mark: Mark) -> Result<(), LayerError> {
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

fn mark_of(file: &File, path: &Path) -> Result<Option<Mark>, LayerError> {
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
fn attribute(file: &File, path: &Path, name: &str) -> Result<Option<String>, LayerError> {
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
fn read_mark(file: &File, path: &Path) -> Result<Option<(Mark, u64)>, LayerError> {
    let Some(text) = attribute(file, path, ATTRIBUTE)? else { return Ok(None) };
    match parse_mark(&text) {
        Some(mark) => Ok(Some(mark)),
        None => Err(LayerError::Attribute { name: ATTRIBUTE, path: path.to_owned(), text }),
    }
}

fn parse_mark(text: &str) -> Option<(Mark, u64)> {
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
            Err(LayerError::PartLocked { .. } | LayerError::NotAlone { .. }) if std::time::Instant::now() < give_up => {
                std::thread::yield_now();
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_core::model::Provision;
    use bulkhead_sys::image;
    use rustix::fs::fremovexattr;

    const LIMIT: Duration = Duration::from_millis(50);

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn write(path: &Path, byte: u8, at: u64) {
        fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[byte; 4096], at).unwrap();
    }

    /// An image on the layer `…1`, which has what was written to it.
    fn frozen() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let image = image(dir.path(), "v.img");
        write(&image, 7, 0);
        freeze(&image, Uuid::from_u128(1), LIMIT, || ()).unwrap();
        (dir, image)
    }

    fn image(directory: &Path, name: &str) -> PathBuf {
        let path = directory.join(name);
        image::create(&path, Bytes::mib(4), Provision::OnDemand).unwrap();
        path
    }

    #[test]
    fn an_image_becomes_a_layer_and_lies_on_it() {
        let dir = tempfile::tempdir().unwrap();
        let image = image(dir.path(), "v.img");
        write(&image, 7, 8192);
        assert_eq!(chain(&image).unwrap(), None);
        let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut stopped = 0;
        assert!(freeze(&image, first, LIMIT, || stopped += 1).unwrap());
        assert_eq!(chain(&image).unwrap(), Some(vec![layer_path(dir.path(), first)]));
        assert!(!extents::has_data(&File::open(&image).unwrap()).unwrap());
        assert_eq!(fs::metadata(&image).unwrap().len(), Bytes::mib(4).0);
        let layer = fs::metadata(layer_path(dir.path(), first)).unwrap();
        assert_eq!((layer.permissions().mode() & 0o777, layer.nlink()), (0o400, 1));
        // Again, and for another while it is empty: there is nothing to be done.
        assert!(!freeze(&image, first, LIMIT, || stopped += 1).unwrap());
        assert!(!freeze(&image, second, LIMIT, || stopped += 1).unwrap());
        assert_eq!(stopped, 1);
        write(&image, 8, 0);
        assert!(freeze(&image, second, LIMIT, || stopped += 1).unwrap());
        assert_eq!(chain(&image).unwrap(), Some([second, first].map(|id| layer_path(dir.path(), id)).to_vec()));
        let copy = dir.path().join("copy.img");
        create_beside(&copy, &image).unwrap();
        assert_eq!(chain(&copy).unwrap(), chain(&image).unwrap());
        assert!(matches!(create_beside(&copy, &image), Err(LayerError::File(FileError::Exists { .. }))));
        assert_eq!(names(dir.path()).len(), 4);
    }

    /// With a snapshot while it was small, and without.
    #[test]
    fn an_image_that_was_small_shows_nothing_of_what_it_had_before() {
        for with_snapshot in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let image = image(dir.path(), "v.img");
            for at in [8192, 3 << 20, (3 << 20) + 8192] {
                write(&image, 7, at);
            }
            freeze(&image, Uuid::from_u128(1), LIMIT, || ()).unwrap();
            image::shrink(&image, Bytes::mib(2)).unwrap();
            if with_snapshot {
                write(&image, 8, 4096);
                freeze(&image, Uuid::from_u128(2), LIMIT, || ()).unwrap();
            }
            hide_below(&image, Bytes::mib(4)).unwrap();
            image::grow(&image, Bytes::mib(4), Provision::OnDemand).unwrap();
            let mut own = Vec::new();
            extents::extents(&File::open(&image).unwrap(), 0..Bytes::mib(4).0, |range, kind| {
                own.extend((kind == Kind::Data).then_some(range));
                Ok(())
            })
            .unwrap();
            let at = 3 << 20;
            assert_eq!(own, [at..at + 4096, at + 8192..at + 12288]);
            let mut block = [1; 4096];
            File::open(&image).unwrap().read_exact_at(&mut block, at).unwrap();
            assert_eq!(block, [0; 4096]);
        }
    }

    #[test]
    fn one_that_is_served_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let image = image(dir.path(), "v.img");
        write(&image, 7, 8192);
        let serve = || {
            let server = File::open(&image).unwrap();
            rustix::fs::flock(&server, FlockOperation::LockExclusive).unwrap();
            Some(server)
        };
        let mut server = serve();
        let refused = freeze(&image, Uuid::from_u128(1), LIMIT, || ());
        assert!(matches!(refused, Err(LayerError::Locked { .. })), "{refused:?}");
        assert_eq!((names(dir.path()), chain(&image).unwrap()), (vec!["v.img".to_owned()], Some(vec![])));
        // A server that is ended, and a successor that was started at once.
        let mut successors = 1;
        let stop = || {
            server = None;
            if successors > 0 {
                successors -= 1;
                server = serve();
            }
        };
        assert!(freeze(&image, Uuid::from_u128(1), LIMIT, stop).unwrap());
    }

    #[test]
    fn layers_stay_as_long_as_an_image_lies_on_them() {
        let (dir, image) = frozen();
        let copy = dir.path().join("copy.img");
        create_beside(&copy, &image).unwrap();
        write(&image, 8, 0);
        freeze(&image, Uuid::from_u128(2), LIMIT, || ()).unwrap();
        // What a crash between link and rename leaves, and one before.
        fs::hard_link(&image, layer_path(dir.path(), Uuid::from_u128(3))).unwrap();
        fs::write(dir.path().join(format!("{}.new", Uuid::from_u128(4))), "").unwrap();
        fs::write(dir.path().join("other.layer"), "").unwrap();
        assert_eq!(sweep(dir.path(), &[]).unwrap().len(), 2);
        assert_eq!(sweep(dir.path(), &[]).unwrap(), Vec::<PathBuf>::new());
        assert_eq!(chain(&image).unwrap().map(|chain| chain.len()), Some(2));
        fs::remove_file(&image).unwrap();
        assert_eq!(sweep(dir.path(), &[]).unwrap(), [layer_path(dir.path(), Uuid::from_u128(2))]);
        // One that cannot be read keeps all.
        let bad = dir.path().join("bad.img");
        fs::write(&bad, "").unwrap();
        fsetxattr(File::open(&bad).unwrap(), ATTRIBUTE, b"2 none 1", XattrFlags::empty()).unwrap();
        fs::remove_file(&copy).unwrap();
        assert!(matches!(sweep(dir.path(), &[]), Err(LayerError::Attribute { .. })));
        fs::remove_file(&bad).unwrap();
        assert_eq!(sweep(dir.path(), &[]).unwrap(), [layer_path(dir.path(), Uuid::from_u128(1))]);
        assert_eq!(names(dir.path()), ["other.layer"]);
    }

    #[test]
    fn what_is_served_stays_with_what_it_lies_on() {
        let (dir, image) = frozen();
        let new = dir.path().join(format!("{}.new", Uuid::from_u128(4)));
        create_beside(&new, &image).unwrap();
        let served = File::open(&new).unwrap();
        lock(&served, &new, LIMIT, || ()).unwrap();
        fs::remove_file(&image).unwrap();
        assert_eq!(sweep(dir.path(), &[]).unwrap(), Vec::<PathBuf>::new());
        assert!(chain(&new).unwrap().is_some());
        drop(served);
        // Its server is gone, and has yet to get a successor.
        assert_eq!(sweep(dir.path(), std::slice::from_ref(&new)).unwrap(), Vec::<PathBuf>::new());
        // A process that another test has just started has the lock as well, until it executes its program.
        let give_up = std::time::Instant::now() + LIMIT;
        let mut removed = sweep(dir.path(), &[]).unwrap();
        while removed.is_empty() && std::time::Instant::now() < give_up {
            removed = sweep(dir.path(), &[]).unwrap();
        }
        assert_eq!(removed, [new, layer_path(dir.path(), Uuid::from_u128(1))]);
    }

    #[test]
    fn copies_and_gaps_are_refused() {
        let (dir, image) = frozen();
        let copy = dir.path().join("copy.img");
        fs::copy(&image, &copy).unwrap();
        let mut text = [0; 100];
        let n = fgetxattr(File::open(&image).unwrap(), ATTRIBUTE, &mut text[..]).unwrap();
        fsetxattr(File::open(&copy).unwrap(), ATTRIBUTE, &text[..n], XattrFlags::empty()).unwrap();
        assert!(matches!(chain(&copy), Err(LayerError::Copied { .. })));
        fs::remove_file(layer_path(dir.path(), Uuid::from_u128(1))).unwrap();
        assert!(matches!(chain(&image), Err(LayerError::Missing { .. })));
        // A ring.
        let layer = layer_path(dir.path(), Uuid::from_u128(1));
        fs::write(&layer, "").unwrap();
        set_mark(&File::open(&layer).unwrap(), &layer, Mark { below: Some(Uuid::from_u128(1)) }).unwrap();
        assert!(matches!(chain(&image), Err(LayerError::TooMany { .. })));
    }

    #[test]
    fn a_layer_that_was_written_to_is_refused() {
        let (dir, image) = frozen();
        let layer = layer_path(dir.path(), Uuid::from_u128(1));
        let sealed = fs::metadata(&layer).unwrap().modified().unwrap();
        // As docs/formats/layers.md has it.
        let since = sealed.duration_since(std::time::UNIX_EPOCH).unwrap();
        let text = format!("1 {}.{:09} 4194304", since.as_secs(), since.subsec_nanos());
        assert_eq!(attribute(&File::open(&layer).unwrap(), &layer, SEAL).unwrap(), Some(text));
        // What does not change what it holds is nobody's concern.
        fs::set_permissions(&layer, Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&layer, dir.path().join("link")).unwrap();
        assert_eq!(chain(&image).unwrap().map(|chain| chain.len()), Some(1));
        write(&layer, 8, 0);
        assert!(matches!(chain(&image), Err(LayerError::Changed { .. })));
        // Brought back with its old time, as those do who restore it.
        File::open(&layer).unwrap().set_modified(sealed).unwrap();
        assert_eq!(chain(&image).unwrap().map(|chain| chain.len()), Some(1));
        let file = File::open(&layer).unwrap();
        fsetxattr(&file, SEAL, b"2 something", XattrFlags::empty()).unwrap();
        assert!(matches!(chain(&image), Err(LayerError::Attribute { name: SEAL, .. })));
        fremovexattr(&file, SEAL).unwrap();
        assert_eq!(chain(&image).unwrap().map(|chain| chain.len()), Some(1));
    }

    #[test]
    fn the_attribute_is_read_as_it_is_documented() {
        let id = "00000000-0000-0000-0000-000000000001";
        let mark = |below| Some((Mark { below }, 42));
        assert_eq!(parse_mark(&format!("1 {id} 42")), mark(Some(Uuid::from_u128(1))));
        assert_eq!(parse_mark("1 none 42"), mark(None));
        for bad in
            ["", "1", "1 none", "1 none 42 ", "2 none 42", "1 some 42", "1 none -42", "1  none 42", "1 none 42\n"]
        {
            assert_eq!(parse_mark(bad), None, "{bad:?}");
        }
    }
}
