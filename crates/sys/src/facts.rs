//! Reads the facts that the doctor's rules judge ([`bulkhead_core::facts`]).
//!
//! Owns: which files are read, and that a look that takes too long is given up. Sends no I/O to any device: `/proc`, `/sys`, cgroups, and links
//! below `/etc/systemd`. Does not: judge.

mod cgroups;
mod databases;
mod devices;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bulkhead_core::facts::{Ext4, FORMAT, Facts, Mount, Unseen};
use bulkhead_core::identity::printable;

use crate::block::devno_of;
use crate::mount::{self, MountInfo};
use crate::roots::Roots;

/// How long one look may take: a file in sysfs can wait for a device that hangs.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// The image of a ublk device, by the device's kernel name.
pub type ImageOf = Arc<dyn Fn(&str) -> Option<PathBuf> + Send + Sync>;

/// The facts of the host below `roots`. What cannot be read is listed among them.
#[must_use]
pub fn read(roots: &Roots, image_of: &ImageOf) -> Facts {
    let mut look = Look { roots: roots.clone(), unseen: Vec::new() };
    let mounts = look.at("the mounts", |roots| mount::mountinfo(roots).map_err(|error| error.to_string()));
    let mounts: Vec<Mount> = mounts.unwrap_or_default().into_iter().filter_map(fact_of).collect();
    let (image_of, on) = (Arc::clone(image_of), mounts.clone());
    let devices = look.at("the block devices", move |roots| devices::read(roots, &image_of, &on)).unwrap_or_default();
    let ext4 = look.at("the ext4 file systems", |roots| Ok(ext4(roots))).unwrap_or_default();
    let facts = Facts {
        format: FORMAT,
        kernel: look.at("the kernel's release", kernel).unwrap_or_default(),
        cgroups: look.at("the cgroups", cgroups::read).flatten(),
        databases: look.at("the processes", |roots| Ok(databases::read(roots))).unwrap_or_default(),
        trims: look.at("systemd's timers", |roots| Ok(Some(trims(roots)))).flatten(),
        unseen: Vec::new(),
        ext4: ext4.into_iter().filter(|fs| devices.iter().any(|device| device.name == fs.device)).collect(),
        mounts,
        devices,
    };
    Facts { unseen: look.unseen, ..facts }
}

/// Looks at a host, and keeps what it could not see.
struct Look {
    roots: Roots,
    unseen: Vec<Unseen>,
}

impl Look {
    /// What a look finds; `None` if it fails or takes too long. A thread that hangs is left behind.
    fn at<T: Send + 'static>(
        &mut self,
        what: &str,
        look: impl FnOnce(&Roots) -> Result<T, String> + Send + 'static,
    ) -> Option<T> {
        let (found, result) = mpsc::channel();
        let roots = self.roots.clone();
        // Nobody waits for it any more if its result cannot be sent.
        thread::spawn(move || drop(found.send(look(&roots))));
        let why = match result.recv_timeout(LOOK_LIMIT) {
            Ok(Ok(value)) => return Some(value),
            Ok(Err(why)) => why,
            Err(mpsc::RecvTimeoutError::Timeout) => format!("reading took more than {} s", LOOK_LIMIT.as_secs()),
            Err(mpsc::RecvTimeoutError::Disconnected) => "reading failed".to_owned(),
        };
        self.unseen.push(Unseen { what: what.to_owned(), why: printable(&why) });
        None
    }
}

/// File systems whose `st_dev` is no block device, and that can hold data of containers.
const ANONYMOUS: [&str; 4] = ["bcachefs", "btrfs", "overlay", "zfs"];

/// A mount as a fact; `None` for one that holds no data.
fn fact_of(mount: MountInfo) -> Option<Mount> {
    let is_block = mount.dev.major != 0;
    if !is_block && !ANONYMOUS.contains(&mount.fs_type.as_str()) {
        return None;
    }
    let words = |text: &str| text.split(',').map(printable).collect();
    let dev = if is_block { mount.dev } else { devno_of(&mount.source).unwrap_or(mount.dev) };
    Some(Mount {
        dev,
        fs_type: printable(&mount.fs_type),
        at: printable(&mount.mount_point.to_string_lossy()),
        root: printable(&mount.root.to_string_lossy()),
        options: words(&mount.options),
        fs_options: words(&mount.super_options),
    })
}

fn kernel(roots: &Roots) -> Result<String, String> {
    let path = roots.proc.join("sys/kernel/osrelease");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(printable(text.trim()))
}

/// Mounted ext4 file systems (kernel `Documentation/ABI/testing/sysfs-fs-ext4`).
fn ext4(roots: &Roots) -> Vec<Ext4> {
    let Ok(entries) = std::fs::read_dir(roots.sys.join("fs/ext4")) else { return Vec::new() };
    let of = |entry: std::fs::DirEntry| {
        let number = |file: &str| std::fs::read_to_string(entry.path().join(file)).ok()?.trim().parse::<u64>().ok();
        let errors = number("errors_count")?;
        Some(Ext4 { device: entry.file_name().to_string_lossy().replace('!', "/"), errors })
    };
    let mut found: Vec<Ext4> = entries.flatten().filter_map(of).collect();
    found.sort_by(|a, b| a.device.cmp(&b.device));
    found
}

/// Whether systemd starts fstrim periodically.
fn trims(roots: &Roots) -> bool {
    ["etc", "usr/lib", "lib"].iter().any(|directory| {
        let link = roots.base.join(directory).join("systemd/system/timers.target.wants/fstrim.timer");
        link.symlink_metadata().is_ok()
    })
}

#[cfg(test)]
mod tests;
