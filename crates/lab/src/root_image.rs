//! The guest's root as a file system in the memory of a device (virtio-pmem).
//!
//! While a guest in virtual time waits for a file of the host, its clock leaps: with its root on 9p the start of a program takes 10 to
//! 50 ms of its time, and no two alike. From this image, mapped where it lies (DAX), it takes 2. The host's page cache holds it once
//! for all machines. Owns the images in the cache, one for each kernel; does not boot.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cache::{Cache, CacheLock};
use crate::command::{command, output};
use crate::guest_root::GuestRoot;
use crate::kernels::Kernel;
use crate::say;

const BUILD_LIMIT: Duration = Duration::from_secs(600);
/// Sizes are a multiple of this: Linux adds memory of a device in blocks.
const ALIGNMENT_MIB: u64 = 128;
/// An image in the cache.
#[derive(Debug)]
pub(crate) struct RootImage {
    path: PathBuf,
    size_bytes: u64,
    _in_use: CacheLock,
}

impl RootImage {
    /// The image for a kernel that the root has already, made first if there is none. The caller holds the build lock.
    pub(crate) async fn provide(cache: &Cache, root: &GuestRoot, kernel: Kernel) -> Result<Self> {
        let folder = format!("{}-images", root.name());
        let in_use = cache.lock_for_use(&folder)?;
        let folder = cache.path(&folder);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(format!("{kernel}.ext4"));
        if !path.exists() {
            build(root.dir(), &path).await?;
        }
        let size_bytes = std::fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?.len();
        Ok(Self { path, size_bytes, _in_use: in_use })
    }

    /// Options for QEMU, for a guest with so much memory, and so much of further devices.
    pub(crate) fn qemu_options(&self, memory_mib: u32, further_mib: u64) -> Vec<String> {
        let image_mib = self.size_bytes >> 20;
        let slots = if further_mib == 0 { 1 } else { 2 };
        let max_mib = u64::from(memory_mib) + image_mib + further_mib + slots * ALIGNMENT_MIB;
        let path = self.path.display();
        vec![
            "-m".to_owned(),
            format!("size={memory_mib}M,slots={slots},maxmem={max_mib}M"),
            "-object".to_owned(),
            format!("memory-backend-file,id=root,size={image_mib}M,mem-path={path},share=on,readonly=on"),
            "-device".to_owned(),
            "virtio-pmem-pci,memdev=root".to_owned(),
        ]
    }
}

async fn build(root: &Path, path: &Path) -> Result<()> {
    say::progress(format!("making an image of the guest root, {}", path.display()));
    let mut du = command("du");
    du.args(["--summarize", "--block-size=1M"]).arg(root);
    let said = output(du, "measuring the guest root", BUILD_LIMIT).await?;
    let used_mib: u64 = said
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .with_context(|| format!("du says {said:?} of {}", root.display()))?;
    let unfinished = path.with_extension("unfinished");
    let file = std::fs::File::create(&unfinished).with_context(|| format!("cannot create {}", unfinished.display()))?;
    file.set_len(size_mib(used_mib) << 20).with_context(|| format!("cannot size {}", unfinished.display()))?;
    let mut make = command("mke2fs");
    // Blocks of a page, or nothing can be mapped; never written, so no journal.
    make.args(["-q", "-t", "ext4", "-b", "4096", "-m", "0", "-O", "^has_journal", "-d"]).arg(root).arg(&unfinished);
    output(make, "mke2fs of the guest root", BUILD_LIMIT).await?;
    std::fs::rename(&unfinished, path).with_context(|| format!("cannot rename to {}", path.display()))
}

/// Room for files of so much, with what the file system itself needs.
fn size_mib(used_mib: u64) -> u64 {
    (used_mib + used_mib / 8 + 64).next_multiple_of(ALIGNMENT_MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_room_and_are_aligned() {
        assert_eq!(size_mib(1), 128);
        assert_eq!(size_mib(1900), 2304);
    }
}
