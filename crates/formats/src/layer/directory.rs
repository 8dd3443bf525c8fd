//! The directory of a pool: lists which file depends on which layer, and removes layers that no image depends on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use bulkhead_core::backend::{IMAGE_SUFFIX, INDEX_SUFFIX, LAYER_SUFFIX, NEW_SUFFIX, STAGING_SUFFIX};
use bulkhead_sys::file::{io_error, sync_dir_of};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use uuid::Uuid;

use super::attributes::read_backing;
use super::{LayerError, index_path, layer_path, open};

/// A file in a pool's directory that depends on a layer, or belongs to one.
pub(crate) enum Member {
    /// An image or a staging file.
    Image,
    /// An image that is being created, or was left by an interruption.
    New(PathBuf),
    Layer(PathBuf, Uuid),
    Index(Uuid),
}

/// Lists the files of a pool's directory with their backing layers. A file that is a copy counts as well, so that the layers of its
/// original are kept.
///
/// # Errors
/// [`LayerError`] if any file cannot be read.
pub(crate) fn list(directory: &Path) -> Result<Vec<(Member, Option<Uuid>)>, LayerError> {
    let failed = || io_error("list", directory);
    let mut members = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed())? {
        let path = entry.map_err(failed())?.path();
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let uuid = path.file_stem().and_then(|stem| Uuid::parse_str(stem.to_str()?).ok());
        let member = match (extension, uuid) {
            (IMAGE_SUFFIX | STAGING_SUFFIX, _) => Member::Image,
            (LAYER_SUFFIX, Some(uuid)) => Member::Layer(path.clone(), uuid),
            (NEW_SUFFIX, Some(_)) => Member::New(path.clone()),
            (INDEX_SUFFIX, Some(uuid)) => {
                members.push((Member::Index(uuid), None));
                continue;
            }
            _ => continue,
        };
        let layer = match open(&path, OFlags::RDONLY) {
            // Removed since it was listed: it keeps no layer.
            Err(error) if error.is_not_found() => None,
            opened => read_backing(&opened?, &path)?.and_then(|(backing, _)| backing.layer),
        };
        members.push((member, layer));
    }
    Ok(members)
}

/// Removes the layers of a directory that no image depends on, with their indexes, and files left by an interrupted
/// [`freeze`](super::freeze). Files that a server has open stay, and so do `served`, images whose servers may be restarting. Returns
/// the removed files.
///
/// # Errors
/// [`LayerError`]; nothing is removed if any file cannot be read.
pub fn sweep(directory: &Path, served: &[PathBuf]) -> Result<Vec<PathBuf>, LayerError> {
    let (mut backing, mut needed, mut leftovers) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut indexed = Vec::new();
    for (member, layer) in list(directory)? {
        match member {
            Member::Image => needed.extend(layer),
            Member::New(path) if served.contains(&path) || is_locked(&path)? => needed.extend(layer),
            Member::New(path) => leftovers.push(path),
            Member::Layer(_, uuid) => {
                backing.insert(uuid, layer);
            }
            Member::Index(uuid) => indexed.push(uuid),
        }
    }
    let mut kept = BTreeSet::new();
    while let Some(layer) = needed.pop() {
        if kept.insert(layer) {
            needed.extend(backing.get(&layer).copied().flatten());
        }
    }
    let unused = backing.keys().filter(|layer| !kept.contains(layer)).map(|layer| layer_path(directory, *layer));
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

/// Whether a server has locked a file.
fn is_locked(path: &Path) -> Result<bool, LayerError> {
    match flock(&open(path, OFlags::RDONLY)?, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(Errno::AGAIN) => Ok(true),
        Err(errno) => Err(io_error("lock", path)(errno.into()).into()),
    }
}
