//! On a fake kernel.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use bulkhead_core::facts::{DeviceKind, Image};
use bulkhead_core::units::{Bytes, DevNo};

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
        ("read_ahead_kb", "4096"),
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
    write(&roots, "sys/devices/vda/device/iotmo_cnt", "0x1f");
    write(&roots, "sys/devices/vda/device/model", "QEMU HARDDISK   \n");
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
    assert_eq!(partition.readahead_bytes, Some(Bytes(4 << 20)));
    let disk = facts.device("vda").unwrap();
    assert_eq!((disk.timeouts, disk.model.as_deref()), (31, Some("QEMU HARDDISK")));
    assert_eq!((facts.ext4[0].device.as_str(), facts.ext4[0].errors), ("vda1", 2));
    let cgroups = facts.cgroups.unwrap();
    let settings: Vec<_> =
        cgroups.settings.iter().map(|one| (one.path.as_str(), one.weight, one.limited.len())).collect();
    assert_eq!(
        (cgroups.enabled.as_slice(), settings),
        (&["io".to_owned()][..], vec![("/a", Some(300), 0), ("/b", None, 1)])
    );
    assert_eq!(cgroups.settings[0].siblings, Some(1));
}

#[test]
fn file_systems_report_their_state() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    write(&roots, "sys/fs/ext4/cciss!c0d0/errors_count", "0\n");
    write(&roots, "sys/fs/ext4/cciss!c0d0/journal_task", "77\n");
    write(&roots, "proc/77/cgroup", "0::/db.slice\n");
    write(&roots, "sys/fs/cgroup/cgroup.controllers", "io");
    let info = "2 transactions (1 requested), each up to 4096 blocks\naverage: \n  0ms waiting for transaction\n";
    write(&roots, "proc/fs/jbd2/cciss!c0d0-8/info", info);
    write(&roots, "sys/fs/ext4/vda1/errors_count", "1\n");
    write(&roots, "sys/fs/ext4/vda1/journal_task", "<none>\n");
    let [with, without] = file_systems::ext4(&roots).try_into().unwrap();
    assert_eq!(
        (with.device.as_str(), with.has_journal, with.max_transaction_blocks),
        ("cciss/c0d0", Some(true), Some(4096))
    );
    assert!(with.journal_cgroup.is_some_and(|cgroup| cgroup.ends_with("db.slice")));
    assert_eq!((without.has_journal, without.max_transaction_blocks, without.errors), (Some(false), None, 1));

    write(&roots, "sys/fs/btrfs/features/extref", "0");
    for (device, errors) in [("1", "write_errs 0\nread_errs 2\n"), ("2", "corruption_errs 3\n")] {
        write(&roots, &format!("sys/fs/btrfs/2d6a/devices/vd{device}"), "");
        write(&roots, &format!("sys/fs/btrfs/2d6a/devinfo/{device}/error_stats"), errors);
    }
    let btrfs = file_systems::btrfs(&roots);
    let found: Vec<_> = btrfs.iter().map(|fs| (fs.devices.join(" "), fs.errors)).collect();
    assert_eq!(found, [("vd1 vd2".to_owned(), 5)]);
}

#[test]
fn space_is_that_of_the_mount_and_not_of_what_hides_it() {
    let base = tempfile::tempdir().unwrap();
    let dev = crate::block::dev_from_raw(fs::metadata(base.path()).unwrap().dev());
    let mount = |dev| Mount { dev, at: base.path().to_string_lossy().into_owned(), ..Mount::default() };
    let hidden = DevNo::new(dev.major + 1, 0);
    let spaces = file_systems::spaces(&[mount(hidden), mount(DevNo::new(0, 1)), mount(dev), mount(dev)]);
    let expected: &[DevNo] = if dev.major == 0 { &[] } else { &[dev] };
    assert_eq!(spaces.iter().map(|space| space.dev).collect::<Vec<_>>(), expected);
    assert!(spaces.iter().all(|space| space.size_bytes > space.free_bytes && space.block_bytes > 0));
}

#[test]
fn swap_and_the_limit_on_dirty_pages_are_read() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    assert_eq!((memory::swaps(&roots), memory::dirty_limit(&roots)), (vec![], None));
    let path = base.path().join("swapfile");
    fs::write(&path, "").unwrap();
    let line = format!(
        "Filename Type Size Used Priority\n{} file 1048572 16 -2\n/dev/none partition 1 0 -3\n",
        path.display()
    );
    write(&roots, "proc/swaps", &line);
    write(&roots, "proc/vmstat", "nr_dirty 1\nnr_dirty_threshold 1000\n");
    let swaps = memory::swaps(&roots);
    assert_eq!((swaps.len(), swaps[0].used_bytes, swaps[1].dev), (2, Bytes(16 << 10), DevNo::default()));
    assert_eq!(swaps[0].dev, crate::block::dev_from_raw(fs::metadata(&path).unwrap().dev()));
    assert!(memory::dirty_limit(&roots).is_some_and(|limit| limit.0 >= 4096 * 1000));
}

#[test]
fn an_image_is_examined_unless_it_is_deleted() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("image");
    fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let image = |path: &str, deleted| Image { path: path.to_owned(), deleted, ..Image::default() };
    let on = |image| Device { kind: DeviceKind::Loop, image: Some(image), ..Device::default() };
    let path = path.to_string_lossy();
    let link = base.path().join("link");
    std::os::unix::fs::symlink(&*path, &link).unwrap();
    let mut devices = [on(image(&path, false)), on(image(&path, true)), on(image(&link.to_string_lossy(), false))];
    devices::examine_images(&mut devices);
    let sizes = devices.map(|device| device.image.unwrap().size_bytes);
    assert_eq!(sizes, [Some(Bytes(1 << 20)), None, None]);
}

#[test]
fn runtimes_are_known_by_their_daemons_and_configuration() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    write(&roots, "proc/10/cmdline", "dockerd\0--data-root\0/srv/docker\0--exec-opt=native.cgroupdriver=cgroupfs\0");
    write(&roots, "proc/11/cmdline", "containerd\0");
    write(&roots, "proc/12/cmdline", "kubelet\0--config=/etc/kubelet.yaml\0");
    write(&roots, "etc/docker/daemon.json", r#"{"data-root": "/other"}"#);
    write(&roots, "srv/docker/image/vfs/repositories.json", "");
    write(&roots, "etc/containerd/config.toml", "root = \"/srv/containerd\"\n[plugins]\n  SystemdCgroup = true\n");
    write(&roots, "etc/kubelet.yaml", "kind: KubeletConfiguration\ncgroupDriver: systemd\n");
    write(&roots, "var/lib/containers/storage/overlay-containers/containers.json", "[]");
    let processes = |names: &[&str]| {
        [(10, "dockerd"), (11, "containerd"), (12, "kubelet"), (13, "sh")]
            .into_iter()
            .filter(|(_, name)| names.contains(name))
            .map(|(pid, name)| (pid, name.to_owned()))
            .collect::<Vec<_>>()
    };
    let found = |names: &[&str]| {
        let found = runtimes::read(&roots, &processes(names));
        found
            .iter()
            .map(|runtime| {
                let of = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
                format!(
                    "{} {} {} {}",
                    runtime.name,
                    runtime.directory,
                    of(&runtime.cgroup_driver),
                    of(&runtime.storage_driver)
                )
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(
        found(&["dockerd", "containerd", "kubelet"]),
        [
            "docker /srv/docker cgroupfs vfs",
            "containerd /srv/containerd systemd -",
            "kubelet /var/lib/kubelet systemd -"
        ]
    );
    assert_eq!(found(&["containerd"]), ["containerd /srv/containerd - -"]);
    write(&roots, "etc/kubelet.yaml", "containerRuntimeEndpoint: unix:///run/crio/crio.sock\n");
    assert_eq!(found(&["containerd", "kubelet"])[0], "containerd /srv/containerd - -");
    write(&roots, "var/lib/containers/storage/vfs-containers/1/userdata", "");
    assert_eq!(found(&["sh"]), ["podman /var/lib/containers/storage - vfs"]);
}

#[test]
fn a_database_is_where_it_works_or_what_it_has_open() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    for path in ["data/member/wal", "proc/20/fd", "proc/21", "proc/22"] {
        fs::create_dir_all(base.path().join(path)).unwrap();
    }
    fs::write(base.path().join("data/member/wal/0.wal"), "").unwrap();
    let link = |from: &str, to: &str| std::os::unix::fs::symlink(base.path().join(to), base.path().join(from)).unwrap();
    link("proc/20/fd/3", "data/member/wal/0.wal");
    link("proc/21/cwd", "data");
    let dev = crate::block::dev_from_raw(fs::metadata(base.path()).unwrap().dev());
    let mounts = format!("22 1 {dev} / / rw,relatime - ext4 /dev/vda1 rw\n");
    for pid in [20, 21, 22] {
        write(&roots, &format!("proc/{pid}/mountinfo"), &mounts);
        write(&roots, &format!("proc/{pid}/cgroup"), &format!("0::/system.slice/{pid}.scope\n"));
    }
    let processes =
        [(20, "etcd"), (21, "postgres"), (22, "mysqld"), (21, "sh")].map(|(pid, name)| (pid, name.to_owned()));
    let found = databases::read(&roots, &processes);
    let shown: Vec<_> =
        found.iter().map(|one| (one.name.as_str(), one.cgroup.as_str(), one.fs_type.as_str())).collect();
    assert_eq!(shown, [("etcd", "/system.slice/20.scope", "ext4"), ("postgres", "/system.slice/21.scope", "ext4")]);
    let directory = base.path().join("data").to_string_lossy().into_owned();
    assert!(found.iter().all(|database| database.directory == directory));
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
