//! Images whose blocks are all written, so that no measurement includes their allocation.

use std::path::Path;

use anyhow::{Context, Result};
use bulkhead_core::model::Provision;
use bulkhead_core::units::Bytes;
use bulkhead_sys::image::{self, Filler};
use rustix::fs::{Mode, OFlags};

/// Creates an image with all blocks written.
///
/// # Errors
/// A lack of space, or a failed write.
pub fn write_image(path: &Path, size: Bytes) -> Result<()> {
    image::create(path, size, Provision::Full)?;
    write_out(path)
}

/// Writes all unwritten blocks of an image, which must not be in use.
///
/// # Errors
/// A failed write.
pub fn write_out(path: &Path) -> Result<()> {
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty());
    let filler = Filler::new(file.with_context(|| format!("cannot open {}", path.display()))?.into(), path);
    let mut at = 0;
    while let Some(part) = filler.next(at, Bytes(u64::MAX))? {
        at = part.end;
        filler.fill(part)?;
    }
    filler.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_written_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        write_image(&path, Bytes::mib(3)).unwrap();
        assert_eq!(image::unwritten(&path).unwrap(), Bytes(0));
    }
}
