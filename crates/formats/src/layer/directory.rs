//! A pool's directory as a whole: which file depends on which layer, and removing layers that no image depends on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use bulkhead_core::backend::{IMAGE_SUFFIX, INDEX_SUFFIX, LAYER_SUFFIX, NEW_SUFFIX, PART_SUFFIX};
use bulkhead_sys::file::{io_error, sync_dir_of};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use uuid::Uuid;

use super::attributes::read_mark;
use super::{LayerError, index_path, layer_path, open};

/// A file of a pool's directory that lies on a layer, or belongs to one.
pub(crate) enum Member {
    /// An image or a staging file.
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

/// Removes the layers of a directory that no image lies on, with their indexes, and what an interrupted [`freeze`](super::freeze) left. What a server
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
