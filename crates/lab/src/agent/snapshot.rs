//! A snapshot of the guest as a set of lines. The leak check of the case runner compares two of them.
//!
//! Covers mounts of all mount namespaces, loop devices, device-mapper devices, volume groups and logical volumes,
//! cgroups, processes, I/O schedulers and active I/O cost control. Does not: change anything.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::command::command;

/// Daemons of the guest itself, daemons that LVM starts and keeps by design, and the servers of the lab's disks.
const EXPECTED_DAEMONS: [&str; 4] =
    ["/usr/bin/udevadm", "/usr/sbin/dmeventd", "/lab/bin/bulkhead-lab-disk", "/usr/bin/dbus-daemon"];
/// systemd and its daemons, which start and stop by themselves.
const SYSTEMD: &str = "/usr/lib/systemd/";
/// Cgroups of systemd's own units.
const SYSTEMD_CGROUPS: [&str; 3] = ["system.slice", "init.scope", "user.slice"];
/// Credential directories, which systemd mounts while a service runs.
const SYSTEMD_MOUNTS: &str = "/run/credentials/";
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// Takes a snapshot.
pub(super) fn take() -> Result<BTreeSet<String>> {
    let mut items = BTreeSet::new();
    mounts(&mut items)?;
    block_devices(&mut items)?;
    lvm(&mut items, "vgs", &["vg_name"])?;
    lvm(&mut items, "lvs", &["vg_name", "lv_name"])?;
    cgroups(Path::new(CGROUP_ROOT), &mut items);
    io_cost(&mut items);
    processes(&mut items)?;
    Ok(items)
}

fn process_ids() -> Result<Vec<u32>> {
    let entries = fs::read_dir("/proc").context("cannot list /proc")?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Mounts of the agent's own namespace, and the mounts of other namespaces that the own one lacks.
fn mounts(items: &mut BTreeSet<String>) -> Result<()> {
    let own = fs::read_link("/proc/self/ns/mnt").context("cannot read the agent's mount namespace")?;
    let table = fs::read_to_string("/proc/self/mountinfo").context("cannot read the agent's mounts")?;
    let own_mounts: BTreeSet<String> = table.lines().filter_map(mount_item).collect();
    let mut seen = BTreeSet::from([own]);
    for pid in process_ids()? {
        // A process that exits meanwhile is no error.
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/mnt")) else { continue };
        if !seen.insert(namespace) {
            continue;
        }
        let Ok(table) = fs::read_to_string(format!("/proc/{pid}/mountinfo")) else { continue };
        let others = table.lines().filter_map(mount_item).filter(|mount| !own_mounts.contains(mount));
        items.extend(others.map(|mount| format!("mount {mount} (in another namespace)")));
    }
    items.extend(own_mounts.into_iter().map(|mount| format!("mount {mount}")));
    Ok(())
}

/// Mount point, type and source of one line of mountinfo; ids and options vary without significance.
fn mount_item(line: &str) -> Option<String> {
    let (left, right) = line.split_once(" - ")?;
    let point = left.split(' ').nth(4).filter(|point| !point.starts_with(SYSTEMD_MOUNTS))?;
    let mut right = right.split(' ');
    Some(format!("{point} {} {}", right.next()?, right.next()?))
}

fn block_devices(items: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir("/sys/block").context("cannot list /sys/block")?.flatten() {
        let (dir, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if let Ok(file) = fs::read_to_string(dir.join("loop/backing_file")) {
            items.insert(format!("loop {name} {}", file.trim()));
        } else if let Ok(dm) = fs::read_to_string(dir.join("dm/name")) {
            items.insert(format!("device-mapper {}", dm.trim()));
        } else if name.starts_with("ublkb") || name.starts_with("nbd") && device_has_size(&dir) {
            items.insert(format!("block device {name}"));
        }
        if name.starts_with("vd") {
            for setting in ["scheduler", "wbt_lat_usec", "read_ahead_kb"] {
                if let Ok(value) = fs::read_to_string(dir.join("queue").join(setting)) {
                    items.insert(format!("setting {name} {setting} = {}", chosen(&value)));
                }
            }
        }
    }
    Ok(())
}

/// The bracketed choice of a list: loading a module makes the list longer.
fn chosen(value: &str) -> &str {
    let bracketed = value.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(value.trim(), |(choice, _)| choice)
}

fn device_has_size(dir: &Path) -> bool {
    fs::read_to_string(dir.join("size")).is_ok_and(|size| size.trim() != "0")
}

fn lvm(items: &mut BTreeSet<String>, program: &str, fields: &[&str]) -> Result<()> {
    let output = command(program)
        .args(["--noheadings", "--separator", "/", "-o", &fields.join(",")])
        .env("LVM_SUPPRESS_FD_WARNINGS", "1")
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    items.extend(text.lines().filter(|line| !line.trim().is_empty()).map(|line| format!("{program} {}", line.trim())));
    Ok(())
}

fn cgroups(dir: &Path, items: &mut BTreeSet<String>) {
    // A cgroup may be removed meanwhile.
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let is_systemds = SYSTEMD_CGROUPS.iter().any(|name| entry.path() == Path::new(CGROUP_ROOT).join(name));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !is_systemds {
            items.insert(format!("cgroup {}", entry.path().display()));
            cgroups(&entry.path(), items);
        }
    }
}

/// Devices with I/O cost control enabled; a line with enable=0 cannot be removed from the file again.
fn io_cost(items: &mut BTreeSet<String>) {
    let text = fs::read_to_string(Path::new(CGROUP_ROOT).join("io.cost.qos")).unwrap_or_default();
    items.extend(
        text.lines().filter(|line| line.contains("enable=1")).map(|line| format!("setting io.cost.qos {line}")),
    );
}

/// All processes except kernel threads, the guest's own daemons, and the agent with its ancestors.
fn processes(items: &mut BTreeSet<String>) -> Result<()> {
    let mut family = BTreeSet::new();
    let mut pid = std::process::id();
    while pid != 0 && family.insert(pid) {
        pid = parent(pid).unwrap_or(0);
    }
    for pid in process_ids()? {
        // Kernel threads have no executable, and neither have exited processes.
        let Ok(exe) = fs::read_link(format!("/proc/{pid}/exe")) else { continue };
        let exe = exe.to_string_lossy().into_owned();
        let is_expected = EXPECTED_DAEMONS.contains(&exe.as_str()) || exe.starts_with(SYSTEMD);
        if family.contains(&pid) || is_expected {
            continue;
        }
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
        items.insert(format!("process {exe} ({})", arguments.trim()));
    }
    Ok(())
}

/// Parent of a process, from /proc/PID/stat, whose second field may contain anything up to the last ')'.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_item_keeps_what_identifies_a_mount() {
        let line = "36 25 253:0 / /mnt/a rw,nosuid shared:1 master:2 - ext4 /dev/vda rw,errors=continue";
        assert_eq!(mount_item(line).unwrap(), "/mnt/a ext4 /dev/vda");
        assert_eq!(mount_item("36 25 0:5 / /x rw - tmpfs run rw").unwrap(), "/x tmpfs run");
        assert_eq!(mount_item("nonsense"), None);
    }

    #[test]
    fn only_the_chosen_scheduler_counts() {
        assert_eq!(chosen("none [mq-deadline] bfq\n"), "mq-deadline");
        assert_eq!(chosen("128\n"), "128");
    }

    #[test]
    fn own_parent_is_found() {
        assert_eq!(parent(std::process::id()).unwrap(), std::os::unix::process::parent_id());
    }
}
