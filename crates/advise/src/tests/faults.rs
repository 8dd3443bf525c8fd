//! For each rule a host with its fault, and one that differs from it only in what makes it harmless.

use bulkhead_core::facts::{Btrfs, ContainerLog, Paths, Runtime, Swap, ThinPool};

use super::*;

/// A fault: how it is made on [`host`], all findings that it has, and what makes it harmless.
struct Fault {
    make: fn(&mut Facts),
    found: &'static [&'static str],
    mend: fn(&mut Facts),
}

const FAULTS: &[Fault] = &[
    Fault {
        make: |facts| {
            image(facts).direct = Some(false);
            image(facts).cached_bytes = Some(Bytes(Bytes::MIB));
        },
        found: &[
            "warning[image_cached_twice]: device loop0: /run/image is read and written through the page cache, 1 MiB of it are there now, and /mnt is on it",
        ],
        mend: |facts| image(facts).direct = Some(true),
    },
    Fault {
        make: |facts| image(facts).fs_type = Some("ext4".to_owned()),
        found: &["warning[journal_nested]: device loop0: ext4 at /mnt is in /run/image, on ext4"],
        mend: |facts| facts.mounts[2].fs_type = "ext2".to_owned(),
    },
    Fault {
        make: |facts| image(facts).fs_type = Some("zfs".to_owned()),
        found: &["warning[image_copied_on_write]: device loop0: /run/image is on zfs, and /mnt is on it"],
        mend: |facts| device(facts, "loop0").read_only = true,
    },
    Fault {
        make: |facts| {
            image(facts).fs_type = Some("ext4".to_owned());
            image(facts).allocated_bytes = Some(Bytes(Bytes::MIB));
            facts.mounts[2].fs_type = "ext2".to_owned();
        },
        found: &["warning[image_sparse]: device loop0: 1 MiB of 1 GiB of /run/image are allocated, and /mnt is on it"],
        mend: |facts| image(facts).fs_type = Some("tmpfs".to_owned()),
    },
    Fault {
        make: |facts| image(facts).deleted = true,
        found: &["warning[image_deleted]: device loop0: /run/image is deleted, and /mnt is on it"],
        mend: |facts| facts.mounts.truncate(2),
    },
    Fault {
        make: |facts| {
            facts.devices.push(disk("zd0", DevNo::new(230, 0)));
            facts.mounts.push(mount(DevNo::new(230, 0), "ext4", "/zvol", "rw"));
        },
        found: &["warning[journal_on_zvol]: file system /zvol: ext4 is on zd0, a volume of ZFS"],
        mend: |facts| facts.mounts[3].fs_type = "ext2".to_owned(),
    },
    Fault {
        make: |facts| {
            let thin =
                Device { kind: DeviceKind::Dm, below: vec!["sda".to_owned()], ..disk("dm-0", DevNo::new(252, 0)) };
            let names = (Some("vg-thin".to_owned()), Some("thin".to_owned()));
            facts.devices.push(Device { dm_name: names.0, dm_target: names.1, ..thin });
            facts.mounts.push(mount(DevNo::new(252, 0), "btrfs", "/thin", "rw"));
        },
        found: &["warning[copy_on_write_twice]: file system /thin: btrfs is on vg-thin, a thin volume"],
        mend: |facts| device(facts, "dm-0").dm_target = Some("linear".to_owned()),
    },
    Fault {
        make: |facts| facts.mounts[0].fs_options.push("nobarrier".to_owned()),
        found: &["critical[barriers_off]: file system /: it is mounted with nobarrier, and sda has a write cache"],
        mend: |facts| device(facts, "sda").write_cache = Some("write through".to_owned()),
    },
    Fault {
        make: |facts| facts.mounts[1].fs_type = "jfs".to_owned(),
        found: &["critical[cache_never_flushed]: file system /srv: jfs never flushes the write cache of nvme0n1"],
        mend: |facts| device(facts, "nvme0n1").write_cache = Some("write through".to_owned()),
    },
    Fault {
        make: |facts| facts.mounts[0].fs_options.push("data=writeback".to_owned()),
        found: &["warning[data_not_ordered]: file system /: it is mounted with data=writeback"],
        mend: |facts| facts.mounts[0].options.push("ro".to_owned()),
    },
    Fault {
        make: |facts| facts.mounts[0].fs_options.push("data=journal".to_owned()),
        found: &["warning[data_journaled]: file system /: it is mounted with data=journal"],
        mend: |facts| facts.mounts[0].options.push("ro".to_owned()),
    },
    Fault {
        make: |facts| facts.mounts[1].fs_options.push("sync".to_owned()),
        found: &["warning[writes_synchronous]: file system /srv: it is mounted with sync"],
        mend: |facts| facts.mounts[1].options.push("ro".to_owned()),
    },
    Fault {
        make: |facts| facts.mounts[0].fs_options.push("commit=300".to_owned()),
        found: &["info[commits_rare]: file system /: it is mounted with commit=300"],
        mend: |facts| facts.mounts[0].fs_options = vec!["commit=15".to_owned()],
    },
    Fault {
        make: |facts| facts.mounts[1].options = vec!["rw".to_owned()],
        found: &["warning[atime_always]: file system /srv: it has neither relatime nor noatime"],
        mend: |facts| facts.mounts[1].options.push("noatime".to_owned()),
    },
    Fault {
        make: |facts| {
            facts.trims = Some(false);
            device(facts, "nvme0n1").discard_bytes = Bytes(0);
            facts.mounts.pop();
        },
        found: &[
            "info[space_not_trimmed]: file system /: sda1 can discard; the mount has no discard option, and fstrim.timer is not enabled",
        ],
        mend: |facts| facts.mounts[0].fs_options.push("discard".to_owned()),
    },
    Fault {
        make: |facts| {
            let crypt =
                Device { kind: DeviceKind::Dm, below: vec!["sda".to_owned()], ..disk("dm-0", DevNo::new(252, 0)) };
            facts.devices.push(Device { discard_bytes: Bytes(0), dm_target: Some("crypt".to_owned()), ..crypt });
            facts.mounts.push(mount(DevNo::new(252, 0), "ext4", "/secret", "rw"));
        },
        found: &["info[discards_stop]: file system /secret: dm-0 does not pass discards on to sda"],
        mend: |facts| device(facts, "sda").rotational = true,
    },
    Fault {
        make: |facts| facts.ext4[0].errors = 3,
        found: &["critical[file_system_errors]: file system /: ext4 on sda1 has recorded errors: 3"],
        mend: |facts| facts.ext4[0].device = "sdb1".to_owned(),
    },
    Fault {
        make: |facts| {
            facts.mounts[1].fs_type = "btrfs".to_owned();
            facts.btrfs.push(Btrfs { devices: vec!["nvme0n1".to_owned()], errors: 2 });
        },
        found: &["critical[btrfs_errors]: file system /srv: btrfs on nvme0n1 has recorded errors: 2"],
        mend: |facts| facts.btrfs[0].errors = 0,
    },
    Fault {
        make: |facts| {
            weigh(facts, None, None);
            facts.cgroups.as_mut().unwrap().settings[0].limited = vec![SDA];
        },
        found: &[
            "warning[journal_not_limited]: file system /: io.max limits /db.slice, and the journal of sda1 is written by the root cgroup",
        ],
        mend: |facts| facts.ext4[0].journal_cgroup = Some("/db.slice".to_owned()),
    },
    Fault {
        make: |facts| facts.ext4[0].max_transaction_blocks = Some(4096),
        found: &[
            "warning[journal_small]: file system /: it has 100 GiB, and a transaction of its journal has at most 16 MiB",
        ],
        mend: |facts| facts.spaces[0].size_bytes = Bytes(10 * Bytes::GIB),
    },
    Fault {
        make: |facts| facts.ext4[0].has_journal = Some(false),
        found: &["info[ext4_without_journal]: file system /: ext4 on sda1 has no journal"],
        mend: |facts| facts.mounts[0].fs_type = "ext2".to_owned(),
    },
    Fault {
        make: |facts| facts.lazy_init = true,
        found: &["info[lazy_init_running]: host: the kernel thread ext4lazyinit runs"],
        mend: |facts| facts.lazy_init = false,
    },
    Fault {
        make: |facts| facts.spaces[1].free_bytes = Bytes(4 * Bytes::GIB),
        found: &["warning[file_system_nearly_full]: file system /srv: 4 GiB of 100 GiB are free"],
        mend: |facts| facts.mounts[1].options.push("ro".to_owned()),
    },
    Fault {
        make: |facts| facts.spaces[0].free_inodes = 10,
        found: &["warning[inodes_nearly_used]: file system /: 10 of 1000000 inodes are free"],
        mend: |facts| facts.mounts[0].fs_type = "xfs".to_owned(),
    },
    Fault {
        make: |facts| pool(facts).data = (90, 100),
        found: &[
            "warning[pool_nearly_full]: thin pool vg-pool: 90 % of its data are used; when it is full, writes wait for space, then fail",
        ],
        mend: |facts| facts.devices[4].thin_pool.as_mut().unwrap().data = (79, 100),
    },
    Fault {
        make: |facts| pool(facts).metadata = (81, 100),
        found: &["warning[pool_metadata_nearly_full]: thin pool vg-pool: 81 % of its metadata are used"],
        mend: |facts| facts.devices[4].thin_pool.as_mut().unwrap().metadata = (10, 100),
    },
    Fault {
        make: |facts| {
            pool(facts).state = "ro".to_owned();
            facts.devices[4].thin_pool.as_mut().unwrap().needs_check = true;
        },
        found: &["critical[pool_unhealthy]: thin pool vg-pool: its state is ro, and its metadata has to be checked"],
        mend: |facts| {
            let pool = facts.devices[4].thin_pool.as_mut().unwrap();
            (pool.state, pool.needs_check) = ("rw".to_owned(), false);
        },
    },
    Fault {
        make: |facts| {
            pool(facts);
            facts.thin_autoextend = Some(false);
        },
        found: &[
            "warning[thin_pool_not_extended]: thin pool vg-pool: thin_pool_autoextend_threshold in lvm.conf is 100",
        ],
        mend: |facts| facts.thin_autoextend = Some(true),
    },
    Fault {
        make: |facts| {
            device(facts, "nvme0n1").scheduler = Some("bfq".to_owned());
            device(facts, "nvme0n1").io_cost = false;
        },
        found: &["warning[bfq_on_nvme]: device nvme0n1: its I/O scheduler is bfq"],
        mend: |facts| device(facts, "nvme0n1").scheduler = Some("none".to_owned()),
    },
    Fault {
        make: |facts| device(facts, "nvme0n1").io_cost_model = false,
        found: &["warning[io_cost_without_model]: device nvme0n1: io.cost is enabled, and its model has ctrl=auto"],
        mend: |facts| device(facts, "nvme0n1").io_cost = false,
    },
    Fault {
        make: |facts| {
            let sda = device(facts, "sda");
            (sda.io_cost, sda.io_cost_model, sda.scheduler) = (true, true, Some("bfq".to_owned()));
        },
        found: &["warning[two_controllers]: device sda: io.cost is enabled, and its I/O scheduler is bfq"],
        mend: |facts| device(facts, "sda").io_cost = false,
    },
    Fault {
        make: |facts| device(facts, "loop0").scheduler = Some("mq-deadline".to_owned()),
        found: &[
            "info[scheduler_on_stack]: device loop0: its I/O scheduler is mq-deadline, and the disk below it has one of its own",
        ],
        mend: |facts| facts.mounts.truncate(2),
    },
    Fault {
        make: |facts| {
            let sda = device(facts, "sda");
            (sda.rotational, sda.model) = (true, Some("WDC WD40EFRX".to_owned()));
            sda.scheduler = Some("bfq".to_owned());
            weigh(facts, Some(300), Some(300));
        },
        found: &[
            "info[write_cache_of_hard_disk]: device sda: it is a hard disk with its write cache on, and weights are to divide it",
        ],
        mend: |facts| device(facts, "sda").model = Some("QEMU HARDDISK".to_owned()),
    },
    Fault {
        make: |facts| device(facts, "sda").failing = Some("its critical warnings are spare".to_owned()),
        found: &["critical[disk_failing]: device sda: its critical warnings are spare"],
        mend: |facts| device(facts, "sda").failing = None,
    },
    Fault {
        make: |facts| device(facts, "sda").timeouts = 2,
        found: &["warning[disk_timeouts]: device sda: commands that have timed out since it appeared: 2"],
        mend: |facts| device(facts, "sda").timeouts = 0,
    },
    Fault {
        make: |facts| device(facts, "sda1").alignment_offset = 3584,
        found: &[
            "warning[partition_misaligned]: device sda1: it begins 3584 bytes from a physical block of 4096 bytes",
        ],
        mend: |facts| drop(facts.mounts.remove(0)),
    },
    Fault {
        make: |facts| facts.spaces[0].block_bytes = 1024,
        found: &["warning[blocks_small]: file system /: its blocks have 1024 bytes, and those of sda have 4096"],
        mend: |facts| facts.spaces[0].size_bytes = Bytes(512 * Bytes::MIB),
    },
    Fault {
        make: |facts| device(facts, "sda").missing_members = 1,
        found: &["critical[raid_degraded]: device sda: members that are missing: 1"],
        mend: |facts| device(facts, "sda").missing_members = 0,
    },
    Fault {
        make: |facts| device(facts, "sda").raid_action = Some("check".to_owned()),
        found: &["info[raid_rebuilding]: device sda: its members are in check"],
        mend: |facts| device(facts, "sda").raid_action = Some("idle".to_owned()),
    },
    Fault {
        make: |facts| device(facts, "sda").paths = Some(Paths { usable: 3, failed: 1 }),
        found: &["warning[path_lost]: device sda: 1 of its 4 paths have failed"],
        mend: |facts| device(facts, "sda").paths = Some(Paths { usable: 4, failed: 0 }),
    },
    Fault {
        make: |facts| weigh(facts, Some(300), None),
        found: &[
            "warning[weight_without_effect]: device sda: its scheduler is none, io.cost is off, and weights are set for /db.slice",
        ],
        mend: |facts| {
            let sda = device(facts, "sda");
            (sda.io_cost, sda.io_cost_model) = (true, true);
        },
    },
    Fault {
        make: |facts| {
            let sda = device(facts, "sda");
            (sda.io_cost, sda.io_cost_model) = (true, true);
            weigh(facts, Some(300), None);
            let settings = &mut facts.cgroups.as_mut().unwrap().settings[0];
            (settings.path, settings.siblings) = ("/db.slice/pod/main".to_owned(), Some(0));
        },
        found: &[
            "warning[weight_of_only_child]: cgroup /db.slice/pod/main: its weight is 300, and /db.slice/pod has no other child",
        ],
        mend: |facts| {
            weigh(facts, Some(200), None);
            facts.cgroups.as_mut().unwrap().settings[1].siblings = Some(4);
        },
    },
    Fault {
        make: |facts| facts.cgroups.as_mut().unwrap().enabled = vec!["io".to_owned()],
        found: &["warning[writeback_not_attributed]: host: cgroup.subtree_control of the root has io"],
        mend: |facts| facts.cgroups.as_mut().unwrap().enabled.push("memory".to_owned()),
    },
    Fault {
        make: |facts| {
            facts.mounts[1].fs_type = "reiserfs".to_owned();
            weigh(facts, None, None);
        },
        found: &[
            "warning[writeback_not_supported]: file system /srv: reiserfs does not charge buffered writes to cgroups, and some have weights or limits",
        ],
        mend: |facts| facts.mounts[1].fs_type = "btrfs".to_owned(),
    },
    Fault {
        make: |facts| facts.cgroup_v1_io = true,
        found: &["warning[cgroup_v1_io]: host: blkio is mounted as a controller of cgroup v1"],
        mend: |facts| facts.cgroup_v1_io = false,
    },
    Fault {
        make: |facts| {
            device(facts, "nvme0n1").io_cost = false;
            facts.swaps = vec![Swap { path: "/dev/nvme0n1".to_owned(), dev: NVME, used_bytes: Bytes(Bytes::MIB) }];
        },
        found: &[
            "warning[swap_beside_database]: swap /dev/nvme0n1: 1 MiB are swapped out to nvme0n1, on which the data of postgres is",
        ],
        mend: |facts| device(facts, "nvme0n1").io_cost = true,
    },
    Fault {
        make: |facts| facts.swaps = vec![Swap { path: "/dev/loop0".to_owned(), dev: LOOP, ..Swap::default() }],
        found: &["warning[swap_above_image]: swap /dev/loop0: it is on loop0, which needs memory to write"],
        mend: |facts| facts.swaps[0].dev = SDA1,
    },
    Fault {
        make: |facts| {
            facts.databases[0].dev = SDA1;
            device(facts, "sda").rotational = true;
        },
        found: &[
            "info[dirty_limit_high]: host: writers are throttled from 4 GiB of dirty data on, and the data of postgres is on a hard disk without a controller",
        ],
        mend: |facts| facts.dirty_limit = Some(Bytes(256 * Bytes::MIB)),
    },
    Fault {
        make: |facts| facts.databases[0].fs_type = "overlay".to_owned(),
        found: &[
            "warning[database_on_overlay]: database postgres: process 0 in  has its data in , which is on overlay",
        ],
        mend: |facts| facts.databases[0].fs_type = "ext4".to_owned(),
    },
    Fault {
        make: |facts| {
            facts.databases[0].cgroup = "/system.slice/docker-1.scope".to_owned();
            for name in ["a", "b"] {
                let at = format!("/var/lib/docker/{name}");
                let options = format!("rw,lowerdir=/l,upperdir=/srv/{name}/diff");
                facts.mounts.push(mount(DevNo::new(0, 40), "overlay", &at, &options));
            }
        },
        found: &["warning[database_shares_journal]: file system /srv: postgres and another container write to its xfs"],
        // The one that is left is the database's own.
        mend: |facts| drop(facts.mounts.pop()),
    },
    Fault {
        make: |facts| {
            facts.databases[0].fs_type = "btrfs".to_owned();
            facts.databases[0].no_copy_on_write = Some(false);
        },
        found: &["warning[database_copied_on_write]: database postgres: process 0 has its data in , on btrfs"],
        mend: |facts| facts.databases[0].no_copy_on_write = Some(true),
    },
    Fault {
        make: |facts| device(facts, "nvme0n1").raid_level = Some("raid6".to_owned()),
        found: &["info[database_on_parity_raid]: device nvme0n1: the data of postgres is on it, and it is raid6"],
        mend: |facts| device(facts, "nvme0n1").raid_level = Some("raid10".to_owned()),
    },
    Fault {
        make: |facts| device(facts, "nvme0n1").readahead_bytes = Some(Bytes(4 * Bytes::MIB)),
        found: &["info[readahead_large]: device nvme0n1: its readahead is 4 MiB, and the data of postgres is on it"],
        mend: |facts| device(facts, "nvme0n1").readahead_bytes = Some(Bytes(128 << 10)),
    },
    Fault {
        make: |facts| facts.logs = vec![log("json-file", false, "/var/lib/docker/containers/1")],
        found: &["warning[logs_unlimited]: runtime docker: the logs of web have driver json-file and no max-size"],
        mend: |facts| facts.logs[0].limited = true,
    },
    Fault {
        make: |facts| facts.logs = vec![log("local", true, "/srv/docker/containers/1")],
        found: &["warning[logs_beside_database]: file system /srv: it has the logs of web, and the data of postgres"],
        mend: |facts| facts.logs[0].directory = "/var/lib/docker/containers/1".to_owned(),
    },
    Fault {
        make: |facts| {
            device(facts, "nvme0n1").io_cost = false;
            facts.runtimes = vec![runtime("kubelet", "/srv/kubelet")];
        },
        found: &[
            "warning[runtime_beside_database]: runtime kubelet: /srv/kubelet is on nvme0n1, as the data of postgres, and no I/O controller divides that disk",
        ],
        mend: |facts| facts.runtimes = vec![runtime("kubelet", "/var/lib/kubelet")],
    },
    Fault {
        make: |facts| {
            let storage_driver = Some("vfs".to_owned());
            facts.runtimes = vec![Runtime { storage_driver, ..runtime("docker", "/var/lib/docker") }];
        },
        found: &["warning[images_copied_whole]: runtime docker: the storage driver in /var/lib/docker is vfs"],
        mend: |facts| facts.runtimes[0].storage_driver = Some("overlay2".to_owned()),
    },
    Fault {
        make: |facts| facts.mounts.push(mount(DevNo::new(0, 41), "fuse.fuse-overlayfs", "/home/u/merged", "rw")),
        found: &["info[overlay_in_user_space]: host: fuse-overlayfs serves /home/u/merged"],
        mend: |facts| facts.mounts[3].fs_type = "overlay".to_owned(),
    },
    Fault {
        make: |facts| {
            let cgroup_driver = Some("cgroupfs".to_owned());
            facts.runtimes = vec![Runtime { cgroup_driver, ..runtime("containerd", "/var/lib/containerd") }];
        },
        found: &[
            "warning[cgroups_managed_twice]: runtime containerd: its cgroup driver is cgroupfs, and systemd is the init process",
        ],
        mend: |facts| facts.systemd = false,
    },
];

/// Adds a thin pool to a host, in a state in which nothing is wrong.
fn pool(facts: &mut Facts) -> &mut ThinPool {
    let pool =
        ThinPool { data: (1, 100), metadata: (1, 100), state: "rw".to_owned(), needs_check: false, queues: true };
    let device = Device { kind: DeviceKind::Dm, thin_pool: Some(pool), ..disk("dm-9", DevNo::new(252, 9)) };
    facts.devices.push(Device { dm_name: Some("vg-pool-tpool".to_owned()), ..device });
    facts.devices[4].thin_pool.as_mut().unwrap()
}

fn runtime(name: &str, directory: &str) -> Runtime {
    Runtime { name: name.to_owned(), directory: directory.to_owned(), ..Runtime::default() }
}

fn log(driver: &str, limited: bool, directory: &str) -> ContainerLog {
    ContainerLog { container: "web".to_owned(), driver: driver.to_owned(), limited, directory: directory.to_owned() }
}

#[test]
fn each_fault_is_found_alone_and_not_once_it_is_mended() {
    for Fault { make, found, mend } in FAULTS {
        assert_eq!(after(make), *found);
        let mended = after(|facts| {
            make(facts);
            mend(facts);
        });
        assert_eq!(mended, [""; 0], "{found:?}");
    }
}

#[test]
fn each_rule_has_a_fault() {
    let of_rules: Vec<&str> = rules().map(|rule| rule.id.word()).collect();
    let id = |found: &str| found.split(['[', ']']).nth(1).unwrap().to_owned();
    let of_faults: Vec<String> = FAULTS.iter().flat_map(|fault| fault.found).map(|found| id(found)).collect();
    assert_eq!(of_rules, of_faults);
}

#[test]
fn faults_of_settings_have_fixes() {
    let planned: Vec<String> = FAULTS
        .iter()
        .flat_map(|fault| {
            let mut facts = host();
            (fault.make)(&mut facts);
            plan(&facts, &judge(&facts))
        })
        .flat_map(|step| step.changes.into_iter().map(move |change| format!("{}: {change}", step.finding.id)))
        .collect();
    assert_eq!(
        planned,
        [
            "image_cached_twice: device loop0: direct I/O: off -> on",
            "barriers_off: file system /: option: nobarrier -> barrier",
            "writes_synchronous: file system /srv: option: sync -> async",
            "commits_rare: file system /: option: commit=300 -> commit=5",
            "atime_always: mount /srv: times of reads: strictatime -> relatime",
            "space_not_trimmed: unit fstrim.timer: disabled -> enabled",
            "bfq_on_nvme: device nvme0n1: I/O scheduler: bfq -> none",
            "two_controllers: device sda: I/O scheduler: bfq -> none",
            "scheduler_on_stack: device loop0: I/O scheduler: mq-deadline -> none",
            "writeback_not_attributed: root cgroup: controller memory: off -> on",
            "readahead_large: device nvme0n1: readahead in KiB: 4096 -> 128",
        ]
    );
}

#[test]
fn a_timer_is_enabled_where_there_is_systemd() {
    let mut facts = host();
    (facts.trims, facts.systemd) = (Some(false), false);
    let found = judge(&facts);
    assert!(found.iter().all(|finding| finding.id.word() == "space_not_trimmed") && !found.is_empty(), "{found:?}");
    assert_eq!(plan(&facts, &found), []);
}

#[test]
fn bfq_is_chosen_for_hard_disks_with_its_weights() {
    let fixes = |rotational: bool, weight: Option<u32>, bfq_weight: Option<u32>| {
        let mut facts = host();
        device(&mut facts, "sda").rotational = rotational;
        weigh(&mut facts, weight, bfq_weight);
        let on_sda = |step: &Step| step.finding.object == "device sda";
        plan(&facts, &judge(&facts)).into_iter().filter(on_sda).flat_map(|step| step.changes).count()
    };
    assert_eq!([fixes(true, Some(300), Some(300)), fixes(true, None, Some(300))], [1, 1]);
    assert_eq!([fixes(false, Some(300), Some(300)), fixes(true, Some(300), None)], [0, 0]);
}
