//! Merging a run of layers, of which each is the backing layer of the next one only (`bulkhead_core::merge`, docs/formats/layers.md).
//!
//! The blocks of the other layers are copied into the largest one: those of newer layers replace its own, which they hide already, and
//! those of older layers fill its holes. Reads of the run return the same content during the copy, and after an interruption. Then the
//! merged layer takes the name of the newest. Servers that have the old files open continue to read them.
//!
//! Owns: the copy, and the order of the renames. Does not: decide which layers are merged, or keep others from creating layers meanwhile
//! (the engine does).

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bulkhead_core::cow::{BLOCK_BYTES, BlockMap, Source};
use bulkhead_core::merge::{Layer, LayerTree};
use bulkhead_core::units::Bytes;
use rustix::fs::{AtFlags, FlockOperation, OFlags, linkat};
use uuid::Uuid;

use crate::layer::{self, LayerError, Member, layer_path};
use bulkhead_sys::buffer::{Buffer, CHUNK, to_usize};
use bulkhead_sys::file::{flock_within, io_error, remove_durable, sync_dir_of};
use bulkhead_sys::process;

/// Pause after each chunk, as a multiple of the time that its copy took: no tenant waits for a merge.
const PAUSE_FACTOR: u32 = 3;

/// How long to wait for another process that merges in the same directory and was asked to exit.
const LOCK_LIMIT: Duration = Duration::from_secs(20);

/// The dependencies of the files in a pool's directory.
///
/// # Errors
/// [`LayerError`] if any file cannot be read.
pub fn tree(directory: &Path) -> Result<LayerTree, LayerError> {
    let mut tree = LayerTree::default();
    for (member, below) in layer::list(directory)? {
        match member {
            Member::Image | Member::New(_) => tree.used.extend(below),
            Member::Layer(path, uuid) => {
                let found = fs::metadata(&path).map_err(io_error("stat", &path))?;
                tree.layers.insert(uuid, Layer { parent: below, bytes: Bytes(found.blocks() * 512) });
            }
            Member::Index(_) => {}
        }
    }
    Ok(tree)
}

/// Renames all layers of a run except the newest, so that nothing new can depend on them. Both lists have the newest first, which is the
/// same in both. No layers may be created in the directory meanwhile.
///
/// # Errors
/// [`LayerError`], [`LayerError::RunChanged`] among them. After an interruption at any point it can be repeated with the layers that
/// exist then.
pub fn set_aside(directory: &Path, layers: &[Uuid], names: &[Uuid]) -> Result<(), LayerError> {
    let _lock = lock(directory, Duration::ZERO)?;
    if !tree(directory)?.has_run(layers) || names.len() != layers.len() || names.first() != layers.first() {
        return Err(LayerError::RunChanged { directory: directory.to_owned() });
    }
    for (above, (old, new)) in names.iter().zip(layers.iter().zip(names).skip(1)) {
        let (old, new_path) = (layer_path(directory, *old), layer_path(directory, *new));
        let linked = linkat(rustix::fs::CWD, &old, rustix::fs::CWD, &new_path, AtFlags::empty());
        linked.map_err(|errno| io_error("link", &new_path)(errno.into()))?;
        sync_dir_of(&new_path)?;
        let above = layer_path(directory, *above);
        layer::set_backing(&layer::open(&above, OFlags::RDONLY)?, &above, Some(*new))?;
        remove_durable(&old)?;
    }
    Ok(())
}

/// Copies the blocks of a run that was set aside, newest layer first, into one of its layers, durably. Returns the bytes copied.
///
/// # Errors
/// [`LayerError`]; the run's content is unchanged.
pub fn copy(directory: &Path, layers: &[Uuid], into: Uuid) -> Result<Bytes, LayerError> {
    // Before they are opened, because `set_aside` renames layers.
    let _lock = lock(directory, LOCK_LIMIT)?;
    let run = Run::open(directory, layers, into)?;
    // An interrupted attempt is repeated: it copied the same blocks.
    layer::unseal(&run.into, &run.path)?;
    run.truncate_to_whole_blocks()?;
    let (mut buffer, mut sum) = (Buffer::new(), 0);
    for start in (0..run.map.end()).step_by(to_usize(CHUNK)) {
        let began = Instant::now();
        let copied = run.copy(start..(start + CHUNK).min(run.map.end()), &mut buffer)?;
        sum += copied;
        if copied > 0 {
            process::pause(began.elapsed() * PAUSE_FACTOR);
        }
    }
    run.into.sync_all().map_err(io_error("sync", &run.path))?;
    Ok(Bytes(sum))
}

/// Replaces the newest layer of a run with the layer that the others were copied into, backed by the backing layer of the oldest.
/// Nothing depends on the others then. No layers may be created in the directory meanwhile.
///
/// # Errors
/// [`LayerError`]; after an interruption at any point the content of the newest is unchanged.
pub fn replace(directory: &Path, layers: &[Uuid], into: Uuid, below: Option<Uuid>) -> Result<(), LayerError> {
    let _lock = lock(directory, Duration::ZERO)?;
    let run_changed = || LayerError::RunChanged { directory: directory.to_owned() };
    let tree = tree(directory)?;
    let backing = layers.last().and_then(|oldest| tree.layers.get(oldest)).map(|oldest| oldest.parent);
    let is_run = tree.has_run(layers) && backing == Some(below);
    let top = layers.first().filter(|_| is_run && layers.contains(&into)).ok_or_else(run_changed)?;
    let (path, top) = (layer_path(directory, into), layer_path(directory, *top));
    let file = layer::open(&path, OFlags::RDONLY)?;
    layer::set_backing(&file, &path, below)?;
    layer::seal(&file, &path)?;
    if path != top {
        fs::rename(&path, &top).map_err(io_error("rename", &path))?;
        sync_dir_of(&top)?;
    }
    Ok(())
}

/// Locks a directory against other merges: a process that was to be killed may still be copying, and must not write to a layer that
/// another process has completed.
fn lock(directory: &Path, limit: Duration) -> Result<File, LayerError> {
    let file = layer::open(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
    match flock_within(&file, FlockOperation::NonBlockingLockExclusive, limit, || ()) {
        Ok(true) => Ok(file),
        Ok(false) => Err(LayerError::RunChanged { directory: directory.to_owned() }),
        Err(error) => Err(io_error("lock", directory)(error).into()),
    }
}

/// The layers of a run, open.
struct Run {
    /// Oldest first, with their paths.
    files: Vec<(PathBuf, File)>,
    /// Which of them has which block.
    map: BlockMap,
    into: File,
    path: PathBuf,
    /// The position of `into` in `files`.
    number: u8,
}

impl Run {
    /// Opens layers, each of which has to be backed by the next.
    fn open(directory: &Path, layers: &[Uuid], into: Uuid) -> Result<Self, LayerError> {
        let run_changed = || LayerError::RunChanged { directory: directory.to_owned() };
        let mut files = Vec::with_capacity(layers.len());
        for (n, id) in layers.iter().enumerate() {
            let path = layer_path(directory, *id);
            let file = layer::open(&path, OFlags::RDONLY | OFlags::DIRECT)?;
            if layer::backing_of_layer(&file, &path)? != layers.get(n + 1).copied() && n + 1 < layers.len() {
                return Err(run_changed());
            }
            files.push((path, file));
        }
        files.reverse();
        let map = layer::block_map(files.iter().map(|(path, file)| (path.as_path(), file)))?;
        let number = layers.iter().rev().position(|layer| *layer == into).ok_or_else(run_changed)?;
        let number = u8::try_from(number).map_err(|_| run_changed())?;
        let path = layer_path(directory, into);
        let into = layer::open(&path, OFlags::RDWR | OFlags::DIRECT)?;
        Ok(Self { files, map, into, path, number })
    }

    /// Removes a partial block at the end, which was never part of a volume and would become visible when the file grows.
    fn truncate_to_whole_blocks(&self) -> Result<(), LayerError> {
        let size = self.into.metadata().map_err(io_error("stat", &self.path))?.len();
        match size % BLOCK_BYTES {
            0 => Ok(()),
            part => Ok(self.into.set_len(size - part).map_err(io_error("truncate", &self.path))?),
        }
    }

    fn copy(&self, part: Range<u64>, buffer: &mut Buffer) -> Result<u64, LayerError> {
        let mut sum = 0;
        for (run, source) in self.map.runs(part) {
            let Source::Layer(number) = source else { continue };
            if number == self.number {
                continue;
            }
            let Some((path, file)) = self.files.get(usize::from(number)) else { continue };
            let bytes = buffer.first(to_usize(run.end - run.start));
            file.read_exact_at(bytes, run.start).map_err(io_error("read", path))?;
            self.into.write_all_at(bytes, run.start).map_err(io_error("write to", &self.path))?;
            sum += run.end - run.start;
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests;
