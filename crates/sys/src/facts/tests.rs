//! On a fake kernel.

use std::fs;

use super::*;

fn write(roots: &Roots, path: &str, text: &str) {
    let path = roots.base.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A disk with a partition.
fn disk(roots: &Roots) {
    for (name, dev, number) in [("vda", "253:0", ""), ("vda/vda1", "253:1", "1")] {
        let path = format!("sys/devices/{name}");
        for (file, text) in [("dev", dev), ("size", "2097152"), ("ro", "0"), ("alignment_offset", "512")] {
            write(roots, &format!("{path}/{file}"), text);
        }
        if !number.is_empty() {
            write(roots, &format!("{path}/partition"), number);
        }
        let name = name.rsplit('/').next().unwrap();
        for (link, to) in [(format!("sys/class/block/{name}"), &path), (format!("sys/dev/block/{dev}"), &path)] {
            fs::create_dir_all(roots.base.join(&link).parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(roots.base.join(to), roots.base.join(link)).unwrap();
        }
    }
    for (file, text) in [
        ("logical_block_size", "512"),
        ("physical_block_size", "4096"),
        ("rotational", "1"),
        ("scheduler", "none [mq-deadline] bfq"),
        ("write_cache", "write back"),
        ("discard_max_bytes", "4096"),
    ] {
        write(roots, &format!("sys/devices/vda/queue/{file}"), text);
    }
}

fn none() -> ImageOf {
    Arc::new(|_| None)
}

#[test]
fn facts_are_read_from_a_host() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    disk(&roots);
    write(&roots, "proc/sys/kernel/osrelease", "6.12.0\n");
    let mounts = "22 1 253:1 / / rw,relatime - ext4 /dev/vda1 rw,data=writeback\n\
                  23 22 0:5 / /proc rw - proc proc rw\n24 22 0:30 / /var/lib/x\\040y rw - overlay overlay rw,upperdir=/u\n";
    write(&roots, "proc/self/mountinfo", mounts);
    write(&roots, "sys/fs/ext4/vda1/errors_count", "2\n");
    write(&roots, "sys/fs/cgroup/cgroup.controllers", "io memory");
    write(&roots, "sys/fs/cgroup/cgroup.subtree_control", "io");
    write(&roots, "sys/fs/cgroup/a/io.weight", "default 300\n253:0 200\n");
    write(&roots, "sys/fs/cgroup/b/io.weight", "default 100\n");
    write(&roots, "sys/fs/cgroup/b/io.max", "253:0 rbps=max wbps=1000 riops=max wiops=max\n");
    write(&roots, "etc/systemd/system/timers.target.wants/fstrim.timer", "");
    let facts = read(&roots, &none());
    assert_eq!(facts.unseen, []);
    assert_eq!((facts.format, facts.kernel.as_str(), facts.trims), (FORMAT, "6.12.0", Some(true)));
    let at: Vec<_> = facts.mounts.iter().map(|mount| (mount.at.as_str(), mount.fs_type.as_str())).collect();
    assert_eq!(at, [("/", "ext4"), ("/var/lib/x y", "overlay")]);
    assert!(facts.mounts[0].has("data=writeback") && facts.mounts[0].has("relatime"));
    let partition = facts.device_of(&facts.mounts[0]).unwrap();
    assert_eq!((partition.name.as_str(), partition.below.as_slice()), ("vda1", &["vda".to_owned()][..]));
    assert_eq!((partition.scheduler.as_deref(), partition.alignment_offset), (Some("mq-deadline"), 512));
    assert_eq!(
        (partition.write_cache.as_deref(), partition.discard_bytes.0, partition.io_cost),
        (Some("write back"), 4096, false)
    );
    assert_eq!((facts.ext4[0].device.as_str(), facts.ext4[0].errors), ("vda1", 2));
    let cgroups = facts.cgroups.unwrap();
    let settings: Vec<_> =
        cgroups.settings.iter().map(|one| (one.path.as_str(), one.weight, one.limited.len())).collect();
    assert_eq!(
        (cgroups.enabled.as_slice(), settings),
        (&["io".to_owned()][..], vec![("/a", Some(300), 0), ("/b", None, 1)])
    );
}

#[test]
fn what_cannot_be_read_is_listed() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    write(&roots, "proc/self/mountinfo", "nonsense\n");
    let facts = read(&roots, &none());
    let unseen: Vec<&str> = facts.unseen.iter().map(|unseen| unseen.what.as_str()).collect();
    assert_eq!(unseen, ["the mounts", "the kernel's release"]);
    assert!(facts.devices.is_empty() && facts.cgroups.is_none() && facts.trims == Some(false));
}

#[test]
fn a_look_that_hangs_is_given_up() {
    let mut look = Look { roots: Roots::host(), unseen: Vec::new() };
    let (end, hangs) = mpsc::channel::<()>();
    assert_eq!(look.at("a device", move |_| hangs.recv().map_err(|error| error.to_string())), None);
    drop(end);
    assert_eq!(look.unseen[0].why, "reading took more than 2 s");
}
