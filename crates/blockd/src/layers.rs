//! What lies below an image that was copied, or is a copy, or what a thin volume has in common with another one.
//!
//! Layers are read through the host's page cache, so that all volumes on a layer share one copy of it in memory, or with direct I/O.

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

/// How often layers are opened that are merged meanwhile; it takes milliseconds until another run is.
const OPEN_TRIES: usize = 10;

/// The layers below an image, and which of them has what.
#[derive(Debug)]
pub(crate) struct Layers {
    /// The oldest first.
    paths: Vec<PathBuf>,
    files: Vec<File>,
    /// The same files, for direct I/O, where what is read from them is not to be cached.
    direct: Vec<File>,
    pub(crate) map: BlockMap,
    /// The image has everything itself, and what lies below it is only the better place to read some of that from.
    is_thin: bool,
}

impl Layers {
    /// Opens what lies below an image, which nobody else may serve; `None` where nothing does.
    pub(crate) fn open(image: &Image, path: &Path, layered: bool, cached: bool) -> Result<Option<Self>, ImageError> {
        let failed = |path: &Path, operation| {
            let image = path.to_owned();
            move |source: io::Error| ImageError::Io { operation, image, source }
        };
        let chain = || match layer::chain(path)? {
            None if layered => Err(ImageError::from(LayerError::Unmarked { path: path.to_owned() })),
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
            match Self::of(paths, |path| file(path, flags)) {
                Ok(opened) if opened.is_still(&chain()?)? => break opened,
                // Layers were merged while they were being opened.
                Ok(_) if tries < OPEN_TRIES => {}
                Err(ImageError::Io { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && tries < OPEN_TRIES => {}
                Ok(_) => {
                    return Err(LayerError::NotAlone { directory: path.parent().unwrap_or(path).to_owned() }.into());
                }
                Err(error) => return Err(error),
            }
        };
        // What lies beyond the image's end is hidden by blocks of its own when it grows to there (`layer::hide_below`), which are not to
        // become holes again.
        opened.map.own(image.size().0..opened.map.end());
        if !cached {
            let direct = opened.paths.iter().map(|path| file(path, flags | OFlags::DIRECT));
            opened.direct = direct.collect::<Result<_, ImageError>>()?;
        }
        bulkhead_sys::image::give_back_unwritten(image.file(), opened.map.end())
            .map_err(failed(path, "look for data in"))?;
        opened.look_at_image(image, 0..opened.map.end()).map_err(failed(path, "look for data in"))?;
        tracing::info!(layers = opened.files.len(), map = %opened.map.memory(), "the image lies on layers");
        Ok(Some(opened))
    }

    /// Whether the names under which they were opened, which a chain has the newest first, still are theirs.
    fn is_still(&self, chain: &[PathBuf]) -> Result<bool, ImageError> {
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

    /// Opens layers, the oldest first, and works out which of them has what.
    pub(crate) fn of(
        paths: Vec<PathBuf>,
        open: impl Fn(&Path) -> Result<File, ImageError>,
    ) -> Result<Self, ImageError> {
        let mut files = Vec::with_capacity(paths.len());
        for path in &paths {
            let file = open(path)?;
            lock(&file, path, FlockOperation::NonBlockingLockShared)?;
            files.push(file);
        }
        let map = layer::map_of(paths.iter().map(PathBuf::as_path).zip(&files))?;
        Ok(Self { paths, files, direct: Vec::new(), map, is_thin: false })
    }

    /// What a thin volume has in common with another one of its pool, to be read through the host's page cache. Nothing where that
    /// cannot be found out in time, or can change: no byte depends on it.
    pub(crate) fn in_common(roots: &Roots, base: &Path, volume: &Path, patience: Duration) -> Option<Self> {
        let found = Self::compare(roots, base, volume, patience);
        if let Err(why) = &found {
            tracing::warn!(base = %base.display(), why, "no memory is shared with it");
        }
        found.ok()
    }

    fn compare(roots: &Roots, base: &Path, volume: &Path, patience: Duration) -> Result<Self, String> {
        let device = block::by_path(roots, base).map_err(|error| chain(&error))?;
        if !device.read_only {
            return Err("it can be written to".to_owned());
        }
        let common = thin::compare(roots, base, volume, patience).map_err(|error| chain(&error))?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOATIME;
        let file = File::from(open(base, flags, Mode::empty()).map_err(|errno| errno.to_string())?);
        let mut map = BlockMap::new(device.size);
        for range in common.same.iter().chain(&common.own) {
            map.set_layer(range.clone(), 0);
        }
        common.own.into_iter().for_each(|range| map.own(range));
        let bytes: u64 = common.same.iter().map(|range| range.end - range.start).sum();
        tracing::info!(base = %base.display(), in_common = %Bytes(bytes), map = %map.memory(), "the volume shares memory");
        Ok(Self::of_device(base, file, map))
    }

    /// A device that has what the map says.
    pub(crate) fn of_device(path: &Path, file: File, map: BlockMap) -> Self {
        Self { paths: vec![path.to_owned()], files: vec![file], direct: Vec::new(), map, is_thin: true }
    }

    /// The oldest first.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    pub(crate) fn file(&self, layer: u8) -> &File {
        &self.files[usize::from(layer)]
    }

    /// From where the volume reads a layer.
    pub(crate) fn fd(&self, layer: u8) -> BorrowedFd<'_> {
        self.direct.get(usize::from(layer)).unwrap_or_else(|| self.file(layer)).as_fd()
    }

    /// Whether reading a range of a layer takes no read of the disk.
    pub(crate) fn is_cached(&self, layer: u8, range: &Range<u64>) -> bool {
        let pages = (range.end - range.start).div_ceil(BLOCK_BYTES);
        self.direct.is_empty() && pagecache::stat(self.file(layer), range).is_ok_and(|stat| stat.cached >= pages)
    }

    /// Has the image own what got there of a write to a range that failed.
    pub(crate) fn own_what_was_written(&self, image: &Image, range: Range<u64>) -> io::Result<()> {
        if self.is_thin {
            self.map.own(range);
            return Ok(());
        }
        self.look_at_image(image, range)
    }

    /// Has the image own what it has data for in a range.
    pub(crate) fn look_at_image(&self, image: &Image, range: Range<u64>) -> io::Result<()> {
        extents::extents(image.file(), range, |range, kind| {
            if kind == Kind::Data {
                self.map.own(range);
            }
            Ok(())
        })
    }
}
