//! The guest's root as a file system in device memory (virtio-pmem).
//!
//! While a guest in virtual time waits for a file of the host, its clock leaps: with its root on 9p, starting a program
//! takes 10 to 50 ms of guest time, and no two starts are alike. From this image, mapped directly (DAX), it takes 2 ms.
//! The host's page cache holds the image once for all machines. Owns the images in the cache, one for each kernel. Does
//! not: boot.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cache::{Cache, CacheLock};
use crate::command::{command, output};
use crate::guest_root::GuestRoot;
use crate::kernels::Kernel;
use crate::say;

const BUILD_LIMIT: Duration = Duration::from_secs(600);
/// Sizes are a multiple of this: Linux adds device memory in blocks.
const ALIGNMENT_MIB: u64 = 128;
/// An image in the cache.
#[derive(Debug)]
pub(crate) struct RootImage {
    path: PathBuf,
    size_bytes: u64,
    _in_use: CacheLock,
}

impl RootImage {
    /// The image for a kernel that the root already contains, built first if absent. The caller holds the build lock.
    pub(crate) async fn provide(cache: &Cache, root: &GuestRoot, kernel: Kernel) -> Result<Self> {
        let dir = format!("{}-images", root.name());
        let in_use = cache.lock_for_use(&dir)?;
        let dir = cache.path(&dir);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let path = dir.join(format!("{kernel}.ext4"));
        if !path.exists() {
            build(root.dir(), &path).await?;
        }
        let size_bytes = std::fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?.len();
        Ok(Self { path, size_bytes, _in_use: in_use })
    }

    /// QEMU options for a guest with this much memory and this much further device memory.
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
    let printed = output(du, "measuring the guest root", BUILD_LIMIT).await?;
    let used_mib: u64 = printed
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .with_context(|| format!("du printed {printed:?} for {}", root.display()))?;
    let unfinished = path.with_extension("unfinished");
    let file = std::fs::File::create(&unfinished).with_context(|| format!("cannot create {}", unfinished.display()))?;
    file.set_len(size_mib(used_mib) << 20).with_context(|| format!("cannot size {}", unfinished.display()))?;
    let mut make = command("mke2fs");
    // DAX needs blocks of page size; no journal, because the image is never written to.
    make.args(["-q", "-t", "ext4", "-b", "4096", "-m", "0", "-O", "^has_journal", "-d"]).arg(root).arg(&unfinished);
    output(make, "mke2fs of the guest root", BUILD_LIMIT).await?;
    std::fs::rename(&unfinished, path).with_context(|| format!("cannot rename to {}", path.display()))
}

/// Size of an image for files of `used_mib`, with the overhead of the file system.
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
