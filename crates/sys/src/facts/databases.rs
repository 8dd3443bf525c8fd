//! Processes of databases, as facts.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bulkhead_core::facts::Database;
use bulkhead_core::identity::printable;
use rustix::fs::{IFlags, Mode, OFlags, ioctl_getflags, open};

use crate::block::dev_from_raw;
use crate::mount;
use crate::roots::Roots;

/// How the directory of a server's data is found.
#[derive(Clone, Copy)]
enum Data {
    /// It is the working directory.
    WorkingDirectory,
    /// An open file has this in its path, after the directory.
    Holds(&'static str),
}

/// Servers, by the names of their processes.
const SERVERS: [(&str, Data); 7] = [
    ("etcd", Data::Holds("/member/")),
    ("mariadbd", Data::WorkingDirectory),
    ("mongod", Data::Holds("/WiredTiger.")),
    ("mysqld", Data::WorkingDirectory),
    ("postgres", Data::WorkingDirectory),
    ("postmaster", Data::WorkingDirectory),
    ("redis-server", Data::WorkingDirectory),
];

/// The servers among processes: one for each cgroup and directory.
pub(super) fn read(roots: &Roots, processes: &[(u32, String)]) -> Vec<Database> {
    let mut found: Vec<Database> = processes.iter().filter_map(|(pid, name)| server(roots, *pid, name)).collect();
    found.sort_by(|a, b| (&a.cgroup, &a.directory, a.pid).cmp(&(&b.cgroup, &b.directory, b.pid)));
    found.dedup_by(|a, b| (&a.cgroup, &a.directory) == (&b.cgroup, &b.directory));
    found
}

fn server(roots: &Roots, pid: u32, name: &str) -> Option<Database> {
    let (_, data) = SERVERS.into_iter().find(|(server, _)| *server == name)?;
    let process = roots.proc.join(pid.to_string());
    // The link is followed by the kernel: what is there can be seen from here, also in another mount namespace.
    let (directory, link) = match data {
        Data::WorkingDirectory => (fs::read_link(process.join("cwd")).ok()?, process.join("cwd")),
        Data::Holds(part) => open_below(&process, part)?,
    };
    let dev = dev_from_raw(fs::metadata(&link).ok()?.dev());
    let mounts = mount::mountinfo_of(roots, pid).ok()?;
    let mount = super::fact_of(mounts.into_iter().rfind(|mount| mount.dev == dev)?);
    let cgroup = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
    let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    Some(Database {
        pid,
        name: printable(name),
        cgroup: printable(cgroup),
        directory: printable(&directory.to_string_lossy()),
        dev: mount.dev,
        no_copy_on_write: (mount.fs_type == "btrfs").then(|| is_no_copy_on_write(&link)).flatten(),
        fs_type: mount.fs_type,
    })
}

/// The directory before `part` in the path of an open file, and the link to that file.
fn open_below(process: &Path, part: &str) -> Option<(PathBuf, PathBuf)> {
    fs::read_dir(process.join("fd")).ok()?.flatten().find_map(|entry| {
        let target = fs::read_link(entry.path()).ok()?;
        let (directory, _) = target.to_str()?.split_once(part)?;
        Some((PathBuf::from(directory), entry.path()))
    })
}

/// Whether a file, or new files in a directory, are not copied on write.
fn is_no_copy_on_write(path: &Path) -> Option<bool> {
    let file = open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()?;
    ioctl_getflags(file).ok().map(|flags| flags.contains(IFlags::NOCOW))
}
