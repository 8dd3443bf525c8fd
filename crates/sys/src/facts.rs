//! Reads the facts that the doctor's rules judge ([`bulkhead_core::facts`]).
//!
//! Owns: which files are read, and that a look that takes too long is given up. Sends no I/O to any device: `/proc`, `/sys`, cgroups,
//! `statvfs(2)`, `cachestat(2)`, `dmsetup status` without a flush, and configuration of runtimes, LVM and systemd. Does not: judge.

mod cgroups;
mod databases;
mod devices;
mod dm;
mod file_systems;
mod memory;
mod runtimes;
mod smart;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bulkhead_core::facts::{Database, Device, FORMAT, Facts, Mount, Runtime, Unseen};
use bulkhead_core::identity::printable;

use self::devices::Context;
use crate::block::devno_of;
use crate::mount::{self, MountInfo};
use crate::process;
use crate::roots::Roots;

/// How long one look may take: a file in sysfs can wait for a device that hangs.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// The image of a ublk device, by the device's kernel name.
pub type ImageOf = Arc<dyn Fn(&str) -> Option<PathBuf> + Send + Sync>;

/// The facts of the host below `roots`. What cannot be read is listed among them.
#[must_use]
pub fn read(roots: &Roots, image_of: &ImageOf) -> Facts {
    let mut look = Look { roots: roots.clone(), unseen: Vec::new() };
    let table = look.at("the mounts", |roots| mount::mountinfo(roots).map_err(|error| error.to_string()));
    let table = table.unwrap_or_default();
    let cgroup_v1_io = table.iter().any(is_cgroup_v1_io);
    let mounts: Vec<Mount> = table.into_iter().filter(holds_data).map(fact_of).collect();
    let devices = devices(&mut look, image_of, &mounts);
    let ext4 = look.at("the ext4 file systems", |roots| Ok(file_systems::ext4(roots))).unwrap_or_default();
    let here = mounts.clone();
    let processes = look.at("the processes", Processes::read).unwrap_or_default();
    let facts = Facts {
        format: FORMAT,
        kernel: look.at("the kernel's release", kernel).unwrap_or_default(),
        btrfs: look.at("the btrfs file systems", |roots| Ok(file_systems::btrfs(roots))).unwrap_or_default(),
        spaces: look.at("the space of file systems", move |_| Ok(file_systems::spaces(&here))).unwrap_or_default(),
        swaps: look.at("the swap areas", |roots| Ok(memory::swaps(roots))).unwrap_or_default(),
        dirty_limit: look.at("the limit on dirty pages", |roots| Ok(memory::dirty_limit(roots))).flatten(),
        cgroups: look.at("the cgroups", cgroups::read).flatten(),
        logs: look.at("the logs of containers", |roots| Ok(runtimes::logs(roots))).unwrap_or_default(),
        trims: look.at("systemd's timers", |roots| Ok(Some(trims(roots)))).flatten(),
        thin_autoextend: look.at("LVM's configuration", |roots| Ok(dm::thin_autoextend(roots))).flatten(),
        // As sd_booted(3).
        systemd: roots.base.join("run/systemd/system").is_dir(),
        lazy_init: processes.lazy_init,
        databases: processes.databases,
        runtimes: processes.runtimes,
        unseen: Vec::new(),
        ext4: ext4.into_iter().filter(|fs| devices.iter().any(|device| device.name == fs.device)).collect(),
        cgroup_v1_io,
        mounts,
        devices,
    };
    Facts { unseen: look.unseen, ..facts }
}

/// The block devices. What is known of images and of device-mapper is added where it can be seen.
fn devices(look: &mut Look, image_of: &ImageOf, mounts: &[Mount]) -> Vec<Device> {
    let dm = look.at("the state of device-mapper devices", dm::read).unwrap_or_default();
    let failing = look.at("the state of disks (udisks)", smart::failing).unwrap_or_default();
    let context = Context { image_of: Arc::clone(image_of), mounts: mounts.to_vec(), dm, failing };
    let devices = look.at("the block devices", move |roots| devices::read(roots, &context)).unwrap_or_default();
    let mut examined = devices.clone();
    let examine = move |_: &Roots| {
        devices::examine_images(&mut examined);
        Ok(examined)
    };
    look.at("the images of loop devices", examine).unwrap_or(devices)
}

/// What is known of processes.
#[derive(Default)]
struct Processes {
    databases: Vec<Database>,
    runtimes: Vec<Runtime>,
    lazy_init: bool,
}

impl Processes {
    fn read(roots: &Roots) -> Result<Self, String> {
        let entries = std::fs::read_dir(&roots.proc).map_err(|error| format!("{}: {error}", roots.proc.display()))?;
        let mut pids: Vec<u32> =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        pids.sort_unstable();
        let named: Vec<(u32, String)> =
            pids.into_iter().filter_map(|pid| Some((pid, process::name(roots, pid)?))).collect();
        Ok(Self {
            databases: databases::read(roots, &named),
            runtimes: runtimes::read(roots, &named),
            lazy_init: named.iter().any(|(_, name)| name == "ext4lazyinit"),
        })
    }
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
const ANONYMOUS: [&str; 5] = ["bcachefs", "btrfs", "fuse.fuse-overlayfs", "overlay", "zfs"];

/// Whether files of users can be on a mount.
fn holds_data(mount: &MountInfo) -> bool {
    mount.dev.major != 0 || ANONYMOUS.contains(&mount.fs_type.as_str())
}

/// Whether it is the io controller of cgroup v1.
fn is_cgroup_v1_io(mount: &MountInfo) -> bool {
    mount.fs_type == "cgroup" && mount.super_options.split(',').any(|option| option == "blkio")
}

/// A mount as a fact.
fn fact_of(mount: MountInfo) -> Mount {
    let words = |text: &str| text.split(',').map(printable).collect();
    let dev = if mount.dev.major == 0 { devno_of(&mount.source).unwrap_or(mount.dev) } else { mount.dev };
    Mount {
        dev,
        fs_type: printable(&mount.fs_type),
        at: printable(&mount.mount_point.to_string_lossy()),
        root: printable(&mount.root.to_string_lossy()),
        options: words(&mount.options),
        fs_options: words(&mount.super_options),
    }
}

fn kernel(roots: &Roots) -> Result<String, String> {
    let path = roots.proc.join("sys/kernel/osrelease");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(printable(text.trim()))
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
