//! The layers of an image's backing chain, or the blocks that a thin volume shares with its base.
//!
//! Layers are read through the host's page cache, so that all volumes on a layer share one copy in memory, or with direct I/O.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_core::cow::{BLOCK_BYTES, BlockMap};
use bulkhead_core::error::chain;
use bulkhead_core::units::Bytes;
use bulkhead_formats::layer::{self, LayerError};
use bulkhead_sys::extents::{self, Kind};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{block, file, pagecache, thin};
use rustix::fs::{FlockOperation, Mode, OFlags, open};

use crate::image::{Image, ImageError, lock};

/// Attempts to open layers that are merged meanwhile. A merge takes milliseconds to replace them.
const OPEN_TRIES: usize = 10;

/// The layers of an image, and the map of which has which block.
#[derive(Debug)]
pub(crate) struct Layers {
    /// Oldest first.
    paths: Vec<PathBuf>,
    files: Vec<File>,
    /// The same files opened for direct I/O; empty if layers are read through the page cache.
    direct: Vec<File>,
    pub(crate) map: BlockMap,
    /// The image is a thin volume, which has all blocks itself; its base is read only to share page cache.
    is_thin: bool,
}

impl Layers {
    /// Opens the layers of a locked image; `None` if it has none.
    pub(crate) fn open(image: &Image, path: &Path, layered: bool, cached: bool) -> Result<Option<Self>, ImageError> {
        let failed = |path: &Path, operation| {
            let image = path.to_owned();
            move |source: io::Error| ImageError::Io { operation, image, source }
        };
        let chain = || match layer::chain(path)? {
            None if layered => Err(ImageError::from(LayerError::AttributeLost { path: path.to_owned() })),
            found => Ok(found.unwrap_or_default()),
        };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOATIME;
        let file = |path: &Path, flags| {
            Ok(File::from(open(path, flags, Mode::empty()).map_err(|e| failed(path, "open")(e.into()))?))
        };
        let mut tries = 0;
        let mut opened = loop {
            let mut paths = chain()?;
            if paths.is_empty() {
                return Ok(None);
            }
            paths.reverse();
            tries += 1;
            match Self::open_files(paths, |path| file(path, flags)) {
                Ok(opened) if opened.matches(&chain()?)? => break opened,
                // Layers were merged while they were being opened.
                Ok(_) if tries < OPEN_TRIES => {}
                Err(ImageError::Io { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && tries < OPEN_TRIES => {}
                Ok(_) => {
                    return Err(LayerError::RunChanged { directory: path.parent().unwrap_or(path).to_owned() }.into());
                }
                Err(error) => return Err(error),
            }
        };
        // Blocks of layers beyond the image's end are masked by blocks of its own when it grows (`layer::mask_layers_beyond_end`). These
        // must not become holes again.
        opened.map.set_owned(image.size().0..opened.map.end());
        if !cached {
            let direct = opened.paths.iter().map(|path| file(path, flags | OFlags::DIRECT));
            opened.direct = direct.collect::<Result<_, ImageError>>()?;
        }
        bulkhead_sys::image::punch_unwritten(image.file(), opened.map.end())
            .map_err(failed(path, "look for data in"))?;
        opened.own_data(image, 0..opened.map.end()).map_err(failed(path, "look for data in"))?;
        tracing::info!(layers = opened.files.len(), map = %opened.map.memory(), "opened the layers of the image");
        Ok(Some(opened))
    }

    /// Whether the opened files are those of `chain`, which is ordered newest first.
    fn matches(&self, chain: &[PathBuf]) -> Result<bool, ImageError> {
        if !self.paths.iter().rev().eq(chain) {
            return Ok(false);
        }
        for (path, file) in self.paths.iter().zip(&self.files) {
            if !file::is_at(file, path)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Opens layers, oldest first, and maps their blocks.
    pub(crate) fn open_files(
        paths: Vec<PathBuf>,
        open: impl Fn(&Path) -> Result<File, ImageError>,
    ) -> Result<Self, ImageError> {
        let mut files = Vec::with_capacity(paths.len());
        for path in &paths {
            let file = open(path)?;
            lock(&file, path, FlockOperation::NonBlockingLockShared)?;
            files.push(file);
        }
        let map = layer::block_map(paths.iter().map(PathBuf::as_path).zip(&files))?;
        Ok(Self { paths, files, direct: Vec::new(), map, is_thin: false })
    }

    /// The blocks that a thin volume shares with its base, to be read through the host's page cache. `None` if they cannot be determined
    /// in time, or if the base is writable; the volume then reads all blocks itself.
    pub(crate) fn shared_with_base(roots: &Roots, base: &Path, volume: &Path, patience: Duration) -> Option<Self> {
        let found = Self::compare(roots, base, volume, patience);
        if let Err(why) = &found {
            tracing::warn!(base = %base.display(), why, "the volume shares no page cache with its base");
        }
        found.ok()
    }

    fn compare(roots: &Roots, base: &Path, volume: &Path, patience: Duration) -> Result<Self, String> {
        let device = block::by_path(roots, base).map_err(|error| chain(&error))?;
        if !device.read_only {
            return Err("it is writable".to_owned());
        }
        let common = thin::compare(roots, base, volume, patience).map_err(|error| chain(&error))?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOATIME;
        let file = File::from(open(base, flags, Mode::empty()).map_err(|errno| errno.to_string())?);
        let mut map = BlockMap::new(device.size);
        for range in common.same.iter().chain(&common.own) {
            map.set_layer(range.clone(), 0);
        }
        common.own.into_iter().for_each(|range| map.set_owned(range));
        let bytes: u64 = common.same.iter().map(|range| range.end - range.start).sum();
        tracing::info!(base = %base.display(), in_common = %Bytes(bytes), map = %map.memory(), "the volume shares page cache with its base");
        Ok(Self::of_device(base, file, map))
    }

    /// A device, with the map of its blocks.
    pub(crate) fn of_device(path: &Path, file: File, map: BlockMap) -> Self {
        Self { paths: vec![path.to_owned()], files: vec![file], direct: Vec::new(), map, is_thin: true }
    }

    /// Oldest first.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    pub(crate) fn file(&self, layer: u8) -> &File {
        &self.files[usize::from(layer)]
    }

    /// The descriptor from which the volume reads a layer.
    pub(crate) fn fd(&self, layer: u8) -> BorrowedFd<'_> {
        self.direct.get(usize::from(layer)).unwrap_or_else(|| self.file(layer)).as_fd()
    }

    /// Whether a range of a layer is completely in the page cache from which it is read.
    pub(crate) fn is_cached(&self, layer: u8, range: &Range<u64>) -> bool {
        let pages = (range.end - range.start).div_ceil(BLOCK_BYTES);
        self.direct.is_empty() && pagecache::stat(self.file(layer), range).is_ok_and(|stat| stat.cached >= pages)
    }

    /// Marks blocks that a failed write may have written as owned by the image.
    pub(crate) fn own_after_error(&self, image: &Image, range: Range<u64>) -> io::Result<()> {
        if self.is_thin {
            self.map.set_owned(range);
            return Ok(());
        }
        self.own_data(image, range)
    }

    /// Marks the blocks in a range that the image has data for as its own.
    pub(crate) fn own_data(&self, image: &Image, range: Range<u64>) -> io::Result<()> {
        extents::extents(image.file(), range, |range, kind| {
            if kind == Kind::Data {
                self.map.set_owned(range);
            }
            Ok(())
        })
    }
}
