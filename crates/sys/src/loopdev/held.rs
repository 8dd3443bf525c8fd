//! Loop devices that are detached when the value that holds them is dropped.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bulkhead_core::units::{Bytes, DevNo};
use rustix::fs::{MemfdFlags, Mode, OFlags, fstat, ftruncate, memfd_create};
use rustix::io::Errno;

use super::uapi::LO_FLAGS_AUTOCLEAR;
use super::{AttachOptions, LoopError, block_bytes_for, config, configure};
use crate::block::dev_from_raw;
use crate::roots::Roots;

/// A loop device that is detached on drop, and if the process is killed.
#[derive(Debug)]
pub struct HeldDevice {
    /// Its node in `/dev`.
    pub path: PathBuf,
    /// Its number.
    pub dev: DevNo,
    // Keeps the device attached: it is cleared at its last close.
    node: OwnedFd,
}

impl HeldDevice {
    /// Writes back what was written to its node (`fsync(2)`).
    ///
    /// # Errors
    /// The operating system's reason.
    pub fn sync(&self) -> std::io::Result<()> {
        Ok(rustix::fs::fsync(&self.node)?)
    }
}

/// Creates a block device of this size in memory, which is swappable and allocated on write.
///
/// # Errors
/// [`LoopError`], with `memory` as the image.
pub fn attach_memory(roots: &Roots, size: Bytes) -> Result<HeldDevice, LoopError> {
    let image = Path::new("memory");
    let image_error = |error: Errno| LoopError::Image { image: image.to_owned(), source: error.into() };
    let memory = memfd_create("bulkhead", MemfdFlags::CLOEXEC).map_err(image_error)?;
    ftruncate(&memory, size.0).map_err(image_error)?;
    held(roots, &memory, image, size, AttachOptions::default())
}

/// Attaches an image to a read-only loop device.
///
/// # Errors
/// [`LoopError`].
pub fn attach_read_only(roots: &Roots, image: &Path) -> Result<HeldDevice, LoopError> {
    let image_error = |error: Errno| LoopError::Image { image: image.to_owned(), source: error.into() };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(image, flags, Mode::empty()).map_err(image_error)?;
    let size = u64::try_from(fstat(&file).map_err(image_error)?.st_size).unwrap_or(0);
    held(roots, &file, image, Bytes(size), AttachOptions { read_only: true, ..AttachOptions::default() })
}

fn held(
    roots: &Roots,
    file: &OwnedFd,
    image: &Path,
    size: Bytes,
    options: AttachOptions,
) -> Result<HeldDevice, LoopError> {
    let image_error = |error: Errno| LoopError::Image { image: image.to_owned(), source: error.into() };
    let mut config = config(file, image, block_bytes_for(size.0, None), options)?;
    config.info.lo_flags |= LO_FLAGS_AUTOCLEAR;
    let (_, node) = configure(roots, image, file, config)?;
    let dev = dev_from_raw(fstat(&node.fd).map_err(image_error)?.st_rdev);
    Ok(HeldDevice { path: node.path, dev, node: node.fd })
}
