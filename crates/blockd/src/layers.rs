//! What lies below an image that was copied, or is a copy.
//!
//! Layers are read through the host's page cache: all volumes on a layer share one copy of it in memory.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use bulkhead_core::cow::{BLOCK_BYTES, BlockMap, MAX_LAYERS};
use bulkhead_core::units::Bytes;
use bulkhead_sys::extents::{self, Kind};
use bulkhead_sys::layer::{self, LayerError};
use rustix::fs::{FlockOperation, Mode, OFlags, open};

use crate::image::{Image, ImageError, lock};

/// The layers below an image, and which of them has what.
#[derive(Debug)]
pub(crate) struct Layers {
    /// The oldest first.
    files: Vec<File>,
    pub(crate) map: BlockMap,
}

impl Layers {
    /// Opens what lies below an image, which nobody else may serve; `None` where nothing does.
    pub(crate) fn open(image: &Image, path: &Path, layered: bool) -> Result<Option<Self>, ImageError> {
        let failed = |path: &Path, operation| {
            let image = path.to_owned();
            move |source: io::Error| ImageError::Io { operation, image, source }
        };
        let mut paths = match layer::chain(path)? {
            None if layered => {
                let reason = format!(
                    "it was copied, and has lost its attribute {}: its holes may be data of a layer",
                    layer::ATTRIBUTE
                );
                return Err(ImageError::Unsuitable { image: path.to_owned(), reason });
            }
            None => return Ok(None),
            Some(paths) if paths.is_empty() => return Ok(None),
            Some(paths) => paths,
        };
        paths.reverse();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOATIME;
        let opened = Self::of(paths, |path| {
            Ok(File::from(open(path, flags, Mode::empty()).map_err(|e| failed(path, "open")(e.into()))?))
        })?;
        layer::give_back_unwritten(image.file(), opened.map.end()).map_err(failed(path, "look for data in"))?;
        opened.look_at_image(image, 0..opened.map.end()).map_err(failed(path, "look for data in"))?;
        tracing::info!(layers = opened.files.len(), map = %opened.map.memory(), "the image lies on layers");
        Ok(Some(opened))
    }

    /// Opens layers, the oldest first, and works out which of them has what.
    pub(crate) fn of(
        paths: Vec<PathBuf>,
        open: impl Fn(&Path) -> Result<File, ImageError>,
    ) -> Result<Self, ImageError> {
        let failed = |path: &Path, operation| {
            let image = path.to_owned();
            move |source: io::Error| ImageError::Io { operation, image, source }
        };
        let layers: Vec<(PathBuf, File, u64)> = paths
            .into_iter()
            .map(|path| {
                let file = open(&path)?;
                lock(&file, &path, FlockOperation::NonBlockingLockShared)?;
                let size = file.metadata().map_err(failed(&path, "examine"))?.len();
                // What is not a whole block at the end was never part of a volume.
                Ok((path, file, size / BLOCK_BYTES * BLOCK_BYTES))
            })
            .collect::<Result<_, ImageError>>()?;
        let mut map = BlockMap::new(Bytes(layers.iter().map(|(_, _, size)| *size).max().unwrap_or(0)));
        for (number, (path, file, size)) in layers.iter().enumerate() {
            let number = u8::try_from(number).ok().filter(|number| usize::from(*number) < MAX_LAYERS);
            let number = number.ok_or_else(|| LayerError::TooMany { path: path.clone() })?;
            extents::extents(file, 0..*size, |range, kind| {
                if kind == Kind::Data {
                    map.set_layer(range, number);
                }
                Ok(())
            })
            .map_err(failed(path, "look for data in"))?;
        }
        Ok(Self { files: layers.into_iter().map(|(_, file, _)| file).collect(), map })
    }

    pub(crate) fn file(&self, layer: u8) -> &File {
        &self.files[usize::from(layer)]
    }

    pub(crate) fn fd(&self, layer: u8) -> BorrowedFd<'_> {
        self.file(layer).as_fd()
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
