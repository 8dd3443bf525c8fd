//! A stack of the matrix: a file system on a device, or on an image in another file system.
//!
//! Owns: setting it up on a region of the device, and removing it, also what a killed run has left: all objects have names of ours, by which
//! they are found. Does not: measure.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_sys::block;
use bulkhead_sys::loopdev::{self, AttachOptions};
use bulkhead_sys::mount::mountinfo;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::tool::Tool;

use super::file_systems::FileSystem;
use super::{DEVICE, NO_GUEST, Server, THIN, volume};
use crate::cleanup::RUN_DIR;

/// Device-mapper devices, in the order of their removal.
const MAPPED: [&str; 5] = [THIN_VOLUME, THIN_POOL, THIN_DATA, THIN_META, REGION];
const THIN_VOLUME: &str = "bulkhead-nest-thin";
const THIN_POOL: &str = "bulkhead-nest-pool";
const THIN_DATA: &str = "bulkhead-nest-data";
const THIN_META: &str = "bulkhead-nest-meta";
/// The part of the device that is used.
const REGION: &str = "bulkhead-nest";
/// Metadata of the thin pool, and its block size in sectors (64 KiB, `lvmthin(7)`'s default).
const META: Bytes = Bytes::mib(32);
const POOL_BLOCK_SECTORS: u64 = 128;
/// Time limit of each command that does not depend on the disk's speed.
const LIMIT: Duration = Duration::from_secs(60);

/// What a stack is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// The guest's file system, or [`NO_GUEST`].
    pub(super) guest: &'static str,
    /// The host's, or [`DEVICE`] or [`THIN`].
    pub(super) host: &'static str,
    /// What serves the image.
    pub(super) server: Server,
    /// Size of the guest's device.
    pub(super) image: Bytes,
}

/// A stack that is set up. Removed on drop; [`Stack::remove`] does the same and returns errors.
#[derive(Debug)]
pub(super) struct Stack {
    roots: Roots,
    /// The `bulkhead` program, which serves volumes.
    program: PathBuf,
    /// The guest's device.
    pub(super) device: PathBuf,
    /// The same by number, unless it is the physical device.
    pub(super) upper: Option<DevNo>,
    /// Where the guest's file system is mounted, if there is one.
    pub(super) mounted: Option<PathBuf>,
    /// Where the host's file system is mounted, if there is one.
    pub(super) host: Option<PathBuf>,
    /// Why the image is not accessed by direct I/O although it should be.
    pub(super) direct_io_lost: Option<String>,
    removed: bool,
}

fn dir(of: &str) -> PathBuf {
    Path::new(RUN_DIR).join("nest").join(of)
}

/// Room for the host's own metadata, and for copies of what is overwritten.
pub(super) fn host_bytes(image: Bytes) -> Bytes {
    Bytes(image.0 / 2 * 3 + (256 << 20))
}

impl Stack {
    /// Sets up a stack on a device, whose data is lost. Each command has at most `limit`.
    ///
    /// # Errors
    /// If a program or module is missing, or a step fails; nothing is left behind then.
    pub(super) fn set_up(
        (roots, program): (&Roots, &Path),
        device: &Path,
        parts: &Parts,
        limit: Duration,
    ) -> Result<Self> {
        let mut stack = Self {
            roots: roots.clone(),
            program: program.to_owned(),
            device: PathBuf::new(),
            upper: None,
            mounted: None,
            host: None,
            direct_io_lost: None,
            removed: false,
        };
        match stack.build(device, parts, limit) {
            Ok(()) => Ok(stack),
            Err(error) => crate::cleanup::with_removal(Err(error), stack.remove()),
        }
    }

    fn build(&mut self, device: &Path, parts: &Parts, limit: Duration) -> Result<()> {
        let whole = match parts.host {
            DEVICE => parts.image,
            THIN => Bytes(parts.image.0 + 2 * META.0),
            _ => host_bytes(parts.image),
        };
        map(REGION, whole, &format!("linear {} 0", device.display()))?;
        let region = mapped(REGION);
        match parts.host {
            DEVICE => self.device = region,
            THIN => {
                self.device = make_thin(&region, parts.image)?;
                self.upper = Some(block::devno_of(&self.device).context("the thin volume")?);
            }
            host => self.host = Some(make_and_mount(host, &region, dir("host"), limit)?),
        }
        if let Some(host) = self.host.clone() {
            if parts.server == Server::Blockd {
                let volume = volume::make(&self.roots, &self.program, &host, parts.guest, parts.image)?;
                let found = block::by_path(&self.roots, &volume.device).context("the volume")?;
                // A volume may be a partition: flushes are counted, and requests traced, by disk.
                self.upper = Some(found.partition_of.unwrap_or(found.dev));
                (self.device, self.mounted) = (volume.device, Some(volume.mounted_at));
                return Ok(());
            }
            self.make_image(&host, parts)?;
        }
        if parts.guest == NO_GUEST {
            return Ok(());
        }
        self.mounted = Some(make_and_mount(parts.guest, &self.device, dir("guest"), limit)?);
        Ok(())
    }

    fn make_image(&mut self, at: &Path, parts: &Parts) -> Result<()> {
        let mut image = at.join("image");
        write_image(&image, parts.image).context("cannot write the image")?;
        if parts.server == Server::Reflink {
            let copy = at.join("copy");
            reflink(&image, &copy)?;
            image = copy;
        }
        let direct_io = parts.server != Server::LoopBuffered;
        // 512 bytes, as losetup(8) has it.
        let options = AttachOptions { read_only: false, direct_io, block_bytes: Some(512) };
        let info = loopdev::attach(&self.roots, &image, options).context("the image")?;
        (self.device, self.upper, self.direct_io_lost) = (info.dev_path, Some(info.dev), info.direct_io_lost);
        Ok(())
    }

    /// Directories on its file systems, the guest's first.
    pub(super) fn file_systems(&self) -> impl Iterator<Item = &Path> {
        [&self.mounted, &self.host].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Removes it.
    ///
    /// # Errors
    /// If an object is busy; the next run tries again.
    pub(super) fn remove(mut self) -> Result<()> {
        self.removed = true;
        remove_all(&self.roots, &self.program)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if !self.removed
            && let Err(error) = remove_all(&self.roots, &self.program)
        {
            tracing::error!(error = format!("{error:#}"), "a stack was not removed; the next run tries again");
        }
    }
}

/// Removes the objects of any stack. Idempotent.
///
/// # Errors
/// If one is busy.
pub(super) fn remove_all(roots: &Roots, program: &Path) -> Result<()> {
    volume::remove(roots, program)?;
    let (guest, host) = (dir("guest"), dir("host"));
    unmount(roots, &guest)?;
    for info in loopdev::list(roots).context("the loop devices")? {
        if info.backing_file.starts_with(&host) {
            loopdev::detach(roots, &info).context("the image's device")?;
        }
    }
    unmount(roots, &host)?;
    for name in MAPPED.into_iter().filter(|name| mapped(name).exists()) {
        let tool = Tool::new("dmsetup").args(["remove", "--retry", name]).limit(LIMIT);
        tool.run().with_context(|| format!("cannot remove device {name}"))?;
    }
    Ok(())
}

/// By umount(8), which stops the cleaner of NILFS2.
fn unmount(roots: &Roots, at: &Path) -> Result<()> {
    let mounts = mountinfo(roots).context("the mounts")?;
    for _ in mounts.iter().filter(|mount| mount.mount_point == at) {
        let tool = Tool::new("umount").arg(at).limit(Duration::from_secs(600));
        tool.run().with_context(|| format!("cannot unmount {}", at.display()))?;
    }
    Ok(())
}

/// Makes a file system on a device, and mounts it.
fn make_and_mount(name: &str, device: &Path, at: PathBuf, limit: Duration) -> Result<PathBuf> {
    let kind = FileSystem::named(name).with_context(|| format!("{name} is no file system"))?;
    kind.make(device, limit)?;
    fs::create_dir_all(&at).with_context(|| format!("cannot create {}", at.display()))?;
    kind.mount(device, &at, limit)?;
    Ok(at)
}

fn mapped(name: &str) -> PathBuf {
    Path::new("/dev/mapper").join(name)
}

/// Creates a device-mapper device with one target.
fn map(name: &str, size: Bytes, target: &str) -> Result<()> {
    let table = format!("0 {} {target}", size.0 / 512);
    let tool = Tool::new("dmsetup").args(["create", name, "--table", &table]).limit(LIMIT);
    tool.run().with_context(|| format!("cannot create device {name}"))?;
    if !mapped(name).exists() {
        bail!("device {name} has no node: is udev running?");
    }
    Ok(())
}

/// A thin volume on a region, with nothing allocated.
fn make_thin(region: &Path, size: Bytes) -> Result<PathBuf> {
    map(THIN_META, META, &format!("linear {} 0", region.display()))?;
    map(THIN_DATA, Bytes(size.0 + META.0), &format!("linear {} {}", region.display(), META.0 / 512))?;
    // The pool is new if its superblock is zero.
    let erased = fs::OpenOptions::new().write(true).open(mapped(THIN_META)).and_then(|mut file| {
        file.write_all(&[0; 4096])?;
        file.sync_all()
    });
    erased.context("cannot erase the pool's metadata")?;
    let (meta, data) = (mapped(THIN_META), mapped(THIN_DATA));
    let pool = format!("thin-pool {} {} {POOL_BLOCK_SECTORS} 0", meta.display(), data.display());
    map(THIN_POOL, Bytes(size.0 + META.0), &pool)?;
    let message = Tool::new("dmsetup").args(["message", THIN_POOL, "0", "create_thin 0"]).limit(LIMIT);
    message.run().context("cannot create the thin volume")?;
    map(THIN_VOLUME, size, &format!("thin {} 0", mapped(THIN_POOL).display()))?;
    Ok(mapped(THIN_VOLUME))
}

/// Writes an image completely, in order: not every host has fallocate(2), by which [`crate::image`] does it.
fn write_image(path: &Path, size: Bytes) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let chunk = vec![0; 1 << 20];
    for _ in 0..size.0 >> 20 {
        file.write_all(&chunk)?;
    }
    file.sync_all()
}

fn reflink(image: &Path, copy: &Path) -> Result<()> {
    let shared = File::open(image).and_then(|from| {
        let to = File::create(copy)?;
        rustix::fs::ioctl_ficlone(&to, &from)?;
        to.sync_all()
    });
    shared.with_context(|| format!("cannot share the blocks of {}", image.display()))
}
