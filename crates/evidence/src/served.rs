//! Images served by third-party programs, for comparison: nbdkit, qemu-nbd, and rublk, a plain loop target on ublk.
//!
//! Owns: each device with its process and its mount, and the record from which the next run removes leftovers of a killed one. Does not: create the
//! directory of the images, or measure.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_core::model::FsKind;
use bulkhead_core::units::Bytes;
use bulkhead_measure::cgroup_run::{Cancel, wait_until};
use bulkhead_measure::cleanup::{RUN_DIR, load_record, remove_record, store_record};
use bulkhead_sys::file::read_limited;
use bulkhead_sys::fsutil::{self, MkfsOptions};
use bulkhead_sys::mount::{self, MountError, MountFlags};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::spawn::{Running, SpawnSpec, Stdout, spawn};
use bulkhead_sys::tool::{Tool, find_program};
use bulkhead_sys::ublk::Control;
use serde::{Deserialize, Serialize};

/// Time limit for a device to appear, and for its process to end: emulated CPUs are slow.
const START_LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(30);
/// Interval between polls.
const POLL: Duration = Duration::from_millis(100);
/// Default number of devices of the NBD driver.
const NBD_DEVICES: u32 = 16;
/// Number of devices that are tried for rublk.
const UBLK_DEVICES: u32 = 64;
/// UUID of all file systems: only one is mounted at a time.
const UUID: &str = "6d1f7c0e-5a0b-4a55-9c39-3f2d9d4b7a10";

/// The server of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Server {
    /// nbdkit with its file plugin, and the kernel's NBD client over a Unix socket.
    Nbdkit,
    /// qemu-nbd with direct I/O by `io_uring`, and the kernel's NBD client.
    QemuNbd,
    /// rublk's loop target: a ublk device that passes requests on to a file, by the author of the driver.
    Rublk,
}

/// A device with a mounted file system. Removed on drop; [`Served::remove`] does the same and returns errors.
#[derive(Debug)]
pub(crate) struct Served {
    record: Record,
    process: Option<Running>,
}

/// The record of what to remove.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    server: Server,
    /// Number of the device.
    number: u32,
    mounted_at: PathBuf,
}

impl Server {
    /// All servers.
    pub(crate) const ALL: [Self; 3] = [Self::Nbdkit, Self::QemuNbd, Self::Rublk];

    /// The name in results.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Nbdkit => "nbdkit",
            Self::QemuNbd => "qemu-nbd",
            Self::Rublk => "ublk-loop",
        }
    }

    /// The programs that it requires: the path of each, or its name if it is missing.
    fn programs(self) -> Result<Vec<PathBuf>, &'static str> {
        let names: &[&str] = match self {
            Self::Nbdkit => &["nbdkit", "nbd-client"],
            Self::QemuNbd => &["qemu-nbd"],
            Self::Rublk => &["rublk"],
        };
        names.iter().map(|name| find_program(name).or_else(|| next_to_us(name)).ok_or(*name)).collect()
    }

    /// The version that its program reports.
    pub(crate) fn version(self) -> Option<String> {
        let program = self.programs().ok()?.into_iter().next()?;
        let spec = SpawnSpec { program, args: vec!["--version".into()], ..SpawnSpec::default() };
        match spawn(&spec).ok()?.read_line(START_LIMIT) {
            Stdout::Line(line) => Some(line.trim().to_owned()),
            Stdout::Timeout | Stdout::Closed => None,
        }
    }

    /// What it lacks on this host, if anything.
    pub(crate) fn missing(self) -> Option<String> {
        if let Err(name) = self.programs() {
            return Some(format!("{name} is not installed"));
        }
        let module = if self == Self::Rublk { "ublk_drv" } else { "nbd" };
        Tool::new("modprobe").arg(module).run().err().map(|error| format!("{error:#}"))
    }

    fn node(self, number: u32) -> String {
        if self == Self::Rublk { format!("ublkb{number}") } else { format!("nbd{number}") }
    }

    fn is_free(self, roots: &Roots, number: u32) -> bool {
        let dir = roots.sys.join("block").join(self.node(number));
        // An NBD device always exists, with or without a client; a ublk device is created and removed.
        if self == Self::Rublk { !dir.exists() } else { dir.exists() && !dir.join("pid").exists() }
    }

    /// The command line that serves an image, in the foreground.
    fn arguments(self, image: &Path, number: u32) -> Vec<String> {
        let image = image.display();
        let line = match self {
            Self::Nbdkit => format!("--foreground --exit-with-parent --unix {} file {image}", self.socket().display()),
            // Verbose, because it would daemonise otherwise.
            Self::QemuNbd => {
                format!("--verbose --connect=/dev/nbd{number} --format=raw --cache=none --aio=io_uring {image}")
            }
            Self::Rublk => format!("add loop --foreground --number {number} --file {image}"),
        };
        line.split(' ').map(str::to_owned).collect()
    }

    /// Its command line, for the result.
    pub(crate) fn describe(self) -> String {
        let client = if self == Self::Nbdkit { "; nbd-client -unix SOCKET /dev/nbdN" } else { "" };
        let name = match self {
            Self::Nbdkit => "nbdkit",
            Self::QemuNbd => "qemu-nbd",
            Self::Rublk => "rublk",
        };
        format!("{name} {}{client}", self.arguments(Path::new("IMAGE"), 0).join(" "))
    }

    fn socket(self) -> PathBuf {
        Path::new(RUN_DIR).join(format!("{}.sock", self.as_str()))
    }

    fn record_path(self) -> PathBuf {
        Path::new(RUN_DIR).join(format!("served-{}.json", self.as_str()))
    }
}

/// A program in the directory of this one, where the lab installs programs that the guest's distribution lacks.
fn next_to_us(name: &str) -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.with_file_name(name);
    path.is_file().then_some(path)
}

impl Served {
    /// Serves an image, creates a file system on it like that of volumes, and mounts it.
    ///
    /// # Errors
    /// If a program fails, or its device does not appear; nothing is left behind then.
    pub(crate) fn start(roots: &Roots, server: Server, image: &Path, cancel: &Cancel) -> Result<Self> {
        let programs = server.programs().map_err(|name| anyhow::anyhow!("{name} is not installed"))?;
        let limit = if server == Server::Rublk { UBLK_DEVICES } else { NBD_DEVICES };
        let free = (0..limit).find(|number| server.is_free(roots, *number));
        let number = free.with_context(|| format!("no device is free for {}", server.as_str()))?;
        let record = Record { server, number, mounted_at: Path::new(RUN_DIR).join("served").join(server.as_str()) };
        store_record(&server.record_path(), &record)?;
        let mut served = Self { record, process: None };
        let made = served.make(roots, &programs, image, cancel);
        made.with_context(|| format!("an image served by {}", server.as_str()))?;
        Ok(served)
    }

    fn make(&mut self, roots: &Roots, programs: &[PathBuf], image: &Path, cancel: &Cancel) -> Result<()> {
        let Record { server, number, ref mounted_at } = self.record;
        let [program, ..] = programs else { bail!("a server is a program") };
        let args = server.arguments(image, number).into_iter().map(Into::into).collect();
        // A leftover socket would prevent the server from listening.
        let _ = fs::remove_file(server.socket());
        let mut process =
            spawn(&SpawnSpec { program: program.clone(), args, ..SpawnSpec::default() }).context("cannot start it")?;
        let node = roots.dev.join(server.node(number));
        if server == Server::Nbdkit {
            await_or_bail(&mut process, cancel, "it listens", || server.socket().exists())?;
            Tool::new("nbd-client").arg("-unix").arg(server.socket()).arg(&node).run().context("cannot connect")?;
        }
        let size = roots.sys.join("block").join(server.node(number)).join("size");
        let is_there = || {
            let sectors = read_limited(&size, Bytes(64)).ok();
            node.exists() && sectors.is_some_and(|text| text.iter().any(|c| (b'1'..=b'9').contains(c)))
        };
        await_or_bail(&mut process, cancel, "its device appears", is_there)?;
        self.process = Some(process);
        let options = MkfsOptions {
            kind: FsKind::Ext4,
            uuid: UUID.to_owned(),
            label: String::new(),
            fast_commit: false,
            journal_size: None,
            reads_zero: true,
        };
        fsutil::mkfs(&node, &options).context("cannot make a file system")?;
        fs::create_dir_all(mounted_at).with_context(|| format!("cannot create {}", mounted_at.display()))?;
        let flags = MountFlags { noatime: true, ..MountFlags::default() };
        mount::mount(&node, "ext4", mounted_at, flags, &[]).context("cannot mount it")?;
        Ok(())
    }

    /// Mount point of the file system.
    pub(crate) fn mounted_at(&self) -> &Path {
        &self.record.mounted_at
    }

    /// The process that serves it.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Running::pid)
    }

    /// Unmounts it, and removes the device with its process.
    ///
    /// # Errors
    /// The first failure; the next run tries again.
    pub(crate) fn remove(mut self) -> Result<()> {
        self.take_away()
    }

    fn take_away(&mut self) -> Result<()> {
        remove(&Roots::host(), &self.record)?;
        if let Some(mut process) = self.process.take() {
            // nbdkit waits for the next client; the others exit with their device.
            if self.record.server == Server::Nbdkit {
                process.terminate()?;
            }
            process.wait(END_LIMIT)?.with_context(|| format!("{} does not end", self.record.server.as_str()))?;
        }
        remove_record(&self.record.server.record_path())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.record.server.record_path().exists()
            && let Err(error) = self.take_away()
        {
            tracing::error!(error = format!("{error:#}"), "a device could not be removed; the next run tries again");
        }
    }
}

/// Removes leftovers of a killed run, whose processes have ended with it.
///
/// # Errors
/// The first failure.
pub(crate) fn remove_leftovers(roots: &Roots) -> Result<()> {
    for server in Server::ALL {
        let path = server.record_path();
        if let Some(record) = load_record::<Record>(&path)? {
            remove(roots, &record)?;
            remove_record(&path)?;
        }
    }
    Ok(())
}

fn remove(roots: &Roots, record: &Record) -> Result<()> {
    match mount::unmount(&record.mounted_at) {
        Ok(()) | Err(MountError::NotMounted { .. }) => {}
        Err(_) if !record.mounted_at.exists() => {}
        Err(error) => return Err(error).context("an image's file system"),
    }
    let node = record.server.node(record.number);
    if record.server == Server::Rublk {
        let mut control = Control::open(roots)?;
        if let Some(device) = control.info(record.number)? {
            let removed = control.stop(roots, &device).and_then(|stopped| {
                control.delete(&stopped)?;
                stopped.wait_for_server()
            });
            removed.with_context(|| format!("cannot remove {node}"))?;
        }
    } else if !record.server.is_free(roots, record.number) {
        let disconnected = match record.server {
            Server::QemuNbd => Tool::new("qemu-nbd").arg("--disconnect").arg(roots.dev.join(&node)).run(),
            _ => Tool::new("nbd-client").arg("-d").arg(roots.dev.join(&node)).run(),
        };
        disconnected.with_context(|| format!("cannot disconnect {node}"))?;
    }
    Ok(())
}

fn await_or_bail(process: &mut Running, cancel: &Cancel, what: &str, is_so: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + START_LIMIT;
    while !is_so() {
        if let Some(code) = process.wait(Duration::ZERO)? {
            bail!("it ended with code {code}: {}", process.stderr());
        }
        if Instant::now() >= deadline {
            bail!("it was waited for {} s in vain until {what}: {}", START_LIMIT.as_secs(), process.stderr());
        }
        wait_until(Instant::now() + POLL, cancel)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expert_would_serve_an_image_so() {
        assert_eq!(
            Server::QemuNbd.describe(),
            "qemu-nbd --verbose --connect=/dev/nbd0 --format=raw --cache=none --aio=io_uring IMAGE"
        );
        assert!(Server::Nbdkit.describe().ends_with("nbdkit.sock file IMAGE; nbd-client -unix SOCKET /dev/nbdN"));
        assert_eq!(Server::Rublk.describe(), "rublk add loop --foreground --number 0 --file IMAGE");
    }

    #[test]
    fn a_device_is_free_when_nobody_has_it() {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        assert!(!Server::QemuNbd.is_free(&roots, 0) && Server::Rublk.is_free(&roots, 0));
        let block = roots.sys.join("block");
        fs::create_dir_all(block.join("nbd0")).unwrap();
        fs::create_dir_all(block.join("ublkb0")).unwrap();
        assert!(Server::QemuNbd.is_free(&roots, 0) && !Server::Rublk.is_free(&roots, 0));
        fs::write(block.join("nbd0/pid"), "7").unwrap();
        assert!(!Server::Nbdkit.is_free(&roots, 0));
    }
}
