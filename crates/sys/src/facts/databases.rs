//! Processes of databases, as facts. A server's working directory is that of its data (PostgreSQL, MySQL and MariaDB change to it).

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use bulkhead_core::facts::Database;
use bulkhead_core::identity::printable;
use bulkhead_core::units::DevNo;

use crate::mount;
use crate::roots::Roots;

/// Names of servers that change to the directory of their data.
const SERVERS: [&str; 4] = ["mariadbd", "mysqld", "postgres", "postmaster"];

/// The servers: one process for each cgroup and directory.
pub(super) fn read(roots: &Roots) -> Vec<Database> {
    let Ok(entries) = fs::read_dir(&roots.proc) else { return Vec::new() };
    let mut pids: Vec<u32> = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let mut found: Vec<Database> = pids.into_iter().filter_map(|pid| server(roots, pid)).collect();
    found.sort_by(|a, b| (&a.cgroup, &a.directory, a.pid).cmp(&(&b.cgroup, &b.directory, b.pid)));
    found.dedup_by(|a, b| (&a.cgroup, &a.directory) == (&b.cgroup, &b.directory));
    found
}

fn server(roots: &Roots, pid: u32) -> Option<Database> {
    let process = roots.proc.join(pid.to_string());
    let name = fs::read_to_string(process.join("comm")).ok()?.trim().to_owned();
    if !SERVERS.contains(&name.as_str()) {
        return None;
    }
    let directory = fs::read_link(process.join("cwd")).ok()?;
    let dev = fs::metadata(process.join("cwd")).ok()?.dev();
    let dev = DevNo::new(rustix::fs::major(dev), rustix::fs::minor(dev));
    let mounts = mount::mountinfo_of(roots, pid).ok()?;
    let fs_type = mounts.into_iter().rfind(|mount| mount.dev == dev)?.fs_type;
    let cgroup = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
    let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    Some(Database {
        pid,
        name,
        cgroup: printable(cgroup),
        directory: printable(&directory.to_string_lossy()),
        fs_type: printable(&fs_type),
    })
}
