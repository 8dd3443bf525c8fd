//! Merging layers that nothing but the next one needs (`bulkhead_core::merge`, docs/formats/layers.md).
//!
//! The largest layer of a run gets the blocks of the others: those of newer ones in place of its own, which these hid, and those of
//! older ones where it has none. Whoever reads the run while that goes on, or after it was cut off, reads the same as before; then
//! the one layer takes the name of the newest. Servers that have the old files open go on reading those.
//!
//! Owns: the copying, and the order of the renames. Does not: decide what is merged, or that nobody makes layers meanwhile (the
//! engine does).

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

/// After each piece that took some time, so many times that long nothing is copied: it is no tenant's work that waits for it.
const PAUSE_TIMES: u32 = 3;

/// How long it is waited for another process that merges in the same directory, which was told to end.
const LOCK_LIMIT: Duration = Duration::from_secs(20);

/// What lies on what in a pool's directory.
///
/// # Errors
/// [`LayerError`] when one file cannot be read.
pub fn tree(directory: &Path) -> Result<LayerTree, LayerError> {
    let mut tree = LayerTree::default();
    for (member, below) in layer::list(directory)? {
        match member {
            Member::Image | Member::New(_) => tree.needed.extend(below),
            Member::Layer(path, uuid) => {
                let found = fs::metadata(&path).map_err(io_error("stat", &path))?;
                tree.layers.insert(uuid, Layer { below, bytes: Bytes(found.blocks() * 512) });
            }
            Member::Index(_) => {}
        }
    }
    Ok(tree)
}

/// Gives all layers of a run but the newest new names. Both lists have the newest first, and the same in the first place. Nobody may
/// make layers in the directory meanwhile.
///
/// # Errors
/// [`LayerError`], [`LayerError::NotAlone`] among them; cut off at any point, it can be done again with what is there.
pub fn set_apart(directory: &Path, layers: &[Uuid], names: &[Uuid]) -> Result<(), LayerError> {
    let _alone = lock(directory, Duration::ZERO)?;
    if !tree(directory)?.has_run(layers) || names.len() != layers.len() || names.first() != layers.first() {
        return Err(LayerError::NotAlone { directory: directory.to_owned() });
    }
    for (above, (old, new)) in names.iter().zip(layers.iter().zip(names).skip(1)) {
        let (old, new_path) = (layer_path(directory, *old), layer_path(directory, *new));
        let linked = linkat(rustix::fs::CWD, &old, rustix::fs::CWD, &new_path, AtFlags::empty());
        linked.map_err(|errno| io_error("link", &new_path)(errno.into()))?;
        sync_dir_of(&new_path)?;
        let above = layer_path(directory, *above);
        layer::lay_on(&layer::open(&above, OFlags::RDONLY)?, &above, Some(*new))?;
        remove_durable(&old)?;
    }
    Ok(())
}

/// Copies what the layers of a run have that was set apart, the newest first, into one of them, durably. Returns how much was copied.
///
/// # Errors
/// [`LayerError`]; the run holds what it held.
pub fn copy(directory: &Path, layers: &[Uuid], into: Uuid) -> Result<Bytes, LayerError> {
    // Before they are opened: whoever sets layers apart gives them other names.
    let _alone = lock(directory, LOCK_LIMIT)?;
    let run = Run::open(directory, layers, into)?;
    // Also where an earlier attempt was cut off: what it copied is the same.
    layer::unseal(&run.into, &run.path)?;
    run.cut_off_last_part()?;
    let (mut buffer, mut sum) = (Buffer::new(), 0);
    for start in (0..run.map.end()).step_by(to_usize(CHUNK)) {
        let began = Instant::now();
        let copied = run.copy(start..(start + CHUNK).min(run.map.end()), &mut buffer)?;
        sum += copied;
        if copied > 0 {
            process::pause(began.elapsed() * PAUSE_TIMES);
        }
    }
    run.into.sync_all().map_err(io_error("sync", &run.path))?;
    Ok(Bytes(sum))
}

/// Puts the layer into which the others were copied in the place of the newest, on what the oldest lay on. The others are needed by
/// nothing then. Nobody may make layers in the directory meanwhile.
///
/// # Errors
/// [`LayerError`]; cut off at any point, the newest holds what it held.
pub fn replace(directory: &Path, layers: &[Uuid], into: Uuid, below: Option<Uuid>) -> Result<(), LayerError> {
    let _alone = lock(directory, Duration::ZERO)?;
    let not_alone = || LayerError::NotAlone { directory: directory.to_owned() };
    let tree = tree(directory)?;
    let lies_on = layers.last().and_then(|oldest| tree.layers.get(oldest)).map(|oldest| oldest.below);
    let is_run = tree.has_run(layers) && lies_on == Some(below);
    let top = layers.first().filter(|_| is_run && layers.contains(&into)).ok_or_else(not_alone)?;
    let (path, top) = (layer_path(directory, into), layer_path(directory, *top));
    let file = layer::open(&path, OFlags::RDONLY)?;
    layer::lay_on(&file, &path, below)?;
    layer::seal(&file, &path)?;
    if path != top {
        fs::rename(&path, &top).map_err(io_error("rename", &path))?;
        sync_dir_of(&top)?;
    }
    Ok(())
}

/// Locks a directory against others who merge there: a process that was to be killed may still be writing, and must not write to what
/// another one has completed.
fn lock(directory: &Path, limit: Duration) -> Result<File, LayerError> {
    let file = layer::open(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
    match flock_within(&file, FlockOperation::NonBlockingLockExclusive, limit, || ()) {
        Ok(true) => Ok(file),
        Ok(false) => Err(LayerError::NotAlone { directory: directory.to_owned() }),
        Err(error) => Err(io_error("lock", directory)(error).into()),
    }
}

/// The layers of a run, open.
struct Run {
    /// The oldest first, with their paths.
    files: Vec<(PathBuf, File)>,
    /// Which of them has what.
    map: BlockMap,
    into: File,
    path: PathBuf,
    /// Which of them the others are copied into.
    number: u8,
}

impl Run {
    /// Opens layers, each of which has to lie on the next.
    fn open(directory: &Path, layers: &[Uuid], into: Uuid) -> Result<Self, LayerError> {
        let not_alone = || LayerError::NotAlone { directory: directory.to_owned() };
        let mut files = Vec::with_capacity(layers.len());
        for (n, id) in layers.iter().enumerate() {
            let path = layer_path(directory, *id);
            let file = layer::open(&path, OFlags::RDONLY | OFlags::DIRECT)?;
            if layer::below_layer(&file, &path)? != layers.get(n + 1).copied() && n + 1 < layers.len() {
                return Err(not_alone());
            }
            files.push((path, file));
        }
        files.reverse();
        let map = layer::map_of(files.iter().map(|(path, file)| (path.as_path(), file)))?;
        let number = layers.iter().rev().position(|layer| *layer == into).ok_or_else(not_alone)?;
        let number = u8::try_from(number).map_err(|_| not_alone())?;
        let path = layer_path(directory, into);
        let into = layer::open(&path, OFlags::RDWR | OFlags::DIRECT)?;
        Ok(Self { files, map, into, path, number })
    }

    /// What is no whole block at its end was never part of a volume, and would become one when the file becomes longer.
    fn cut_off_last_part(&self) -> Result<(), LayerError> {
        let size = self.into.metadata().map_err(io_error("stat", &self.path))?.len();
        match size % BLOCK_BYTES {
            0 => Ok(()),
            part => Ok(self.into.set_len(size - part).map_err(io_error("cut off", &self.path))?),
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
