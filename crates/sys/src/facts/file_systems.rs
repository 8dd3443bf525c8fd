//! Mounted file systems, as facts: what ext4, btrfs and jbd2 report of themselves, and the space.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use bulkhead_core::facts::{Btrfs, Ext4, Mount, Space};
use bulkhead_core::identity::printable;
use bulkhead_core::units::Bytes;
use rustix::fs::statvfs;

use crate::block::dev_from_raw;
use crate::cgroup;
use crate::roots::Roots;

/// Mounted ext4 file systems (kernel `Documentation/ABI/testing/sysfs-fs-ext4`).
pub(super) fn ext4(roots: &Roots) -> Vec<Ext4> {
    let Ok(entries) = fs::read_dir(roots.sys.join("fs/ext4")) else { return Vec::new() };
    let of = |entry: fs::DirEntry| {
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).ok();
        let name = entry.file_name().to_string_lossy().into_owned();
        let task = read("journal_task");
        let thread = task.as_deref().and_then(|task| task.trim().parse().ok());
        Some(Ext4 {
            errors: read("errors_count")?.trim().parse().ok()?,
            has_journal: task.as_deref().map(|task| task.trim() != "<none>"),
            max_transaction_blocks: max_transaction_blocks(roots, &name),
            journal_cgroup: thread
                .and_then(|pid| cgroup::cgroup_of(roots, pid).ok())
                .map(|cgroup| printable(&cgroup.to_string())),
            device: printable(&name.replace('!', "/")),
        })
    };
    let mut found: Vec<Ext4> = entries.flatten().filter_map(of).collect();
    found.sort_by(|a, b| a.device.cmp(&b.device));
    found
}

/// Number of the inode of a journal in its own file system (kernel `EXT4_JOURNAL_INO`).
const JOURNAL_INODE: u32 = 8;

/// The limit in the first line of jbd2's statistics: `12 transactions (9 requested), each up to 4096 blocks`.
fn max_transaction_blocks(roots: &Roots, name: &str) -> Option<u64> {
    let path = roots.proc.join(format!("fs/jbd2/{name}-{JOURNAL_INODE}/info"));
    let text = fs::read_to_string(path).ok()?;
    text.lines().next()?.strip_suffix(" blocks")?.rsplit(' ').next()?.parse().ok()
}

/// Mounted btrfs file systems (kernel `fs/btrfs/sysfs.c`).
pub(super) fn btrfs(roots: &Roots) -> Vec<Btrfs> {
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<BTreeSet<_>>()
    };
    let directory = roots.sys.join("fs/btrfs");
    let of = |uuid: String| {
        let fs_dir = directory.join(uuid);
        let devices: Vec<String> =
            names(&fs_dir.join("devices")).into_iter().map(|name| printable(&name.replace('!', "/"))).collect();
        let infos = fs_dir.join("devinfo");
        let errors = names(&infos).into_iter().map(|id| {
            let text = fs::read_to_string(infos.join(id).join("error_stats")).unwrap_or_default();
            text.lines().filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
        });
        Some(Btrfs { errors: errors.sum(), devices }).filter(|fs| !fs.devices.is_empty())
    };
    names(&directory).into_iter().filter_map(of).collect()
}

/// The space of file systems, each once. One that another mount hides is left out.
pub(super) fn spaces(mounts: &[Mount]) -> Vec<Space> {
    let mut seen = BTreeSet::new();
    let of = |mount: &Mount| {
        let path = Path::new(&mount.at);
        let is_it = mount.fs_type == "btrfs" || dev_from_raw(fs::metadata(path).ok()?.dev()) == mount.dev;
        if !is_it || seen.contains(&mount.dev) {
            return None;
        }
        let found = statvfs(path).ok()?;
        seen.insert(mount.dev);
        let bytes = |blocks: u64| Bytes(blocks.saturating_mul(found.f_frsize));
        Some(Space {
            dev: mount.dev,
            block_bytes: found.f_bsize,
            size_bytes: bytes(found.f_blocks),
            free_bytes: bytes(found.f_bavail),
            inodes: found.f_files,
            free_inodes: found.f_ffree,
        })
    };
    mounts.iter().filter(|mount| mount.dev.major != 0).filter_map(of).collect()
}
