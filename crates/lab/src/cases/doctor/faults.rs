//! The faults, in the order in which they are made.

/// A fault: the id and the object of its finding, how it is made, and how it is fixed. `$disk` and `$dev` are the name and the number of the disk
/// below `/srv/d`, `$loop` is the name of the loop device below `/srv/i`; both are also in objects.
pub(super) struct Fault {
    pub(super) id: &'static str,
    pub(super) object: &'static str,
    pub(super) make: &'static str,
    pub(super) fix: &'static str,
}

/// A command that starts a process with the name of a database in a directory; it works there.
macro_rules! database {
    ($name:literal, $directory:literal) => {
        concat!(
            "cp /bin/sleep /srv/d/",
            $name,
            "; mkdir -p ",
            $directory,
            "; cd ",
            $directory,
            "; setsid /srv/d/",
            $name,
            " 1000 > /dev/null 2>&1 < /dev/null & until [ \"$(cat /proc/$!/comm)\" = ",
            $name,
            " ]; do :; done; echo $! >> /tmp/databases; cd /; "
        )
    };
}

/// Ends the databases.
macro_rules! end_databases {
    () => {
        "for pid in $(cat /tmp/databases); do kill $pid; while [ -e /proc/$pid ]; do :; done; done; rm /tmp/databases; "
    };
}

pub(super) const FAULTS: &[Fault] = &[
    Fault { id: "image_sparse", object: "device $loop", make: "true", fix: "fallocate --length 200M /srv/d/image" },
    Fault {
        id: "image_cached_twice",
        object: "device $loop",
        make: "losetup --direct-io=off /dev/$loop",
        fix: "losetup --direct-io=on /dev/$loop",
    },
    Fault {
        id: "scheduler_on_stack",
        object: "device $loop",
        make: "echo mq-deadline > /sys/block/$loop/queue/scheduler",
        fix: "echo none > /sys/block/$loop/queue/scheduler",
    },
    Fault {
        id: "image_deleted",
        object: "device $loop",
        make: "ln /srv/d/image /srv/d/kept; rm /srv/d/image",
        fix: "umount /srv/i; losetup -d /dev/$loop; while [ -e /sys/block/$loop/loop/backing_file ]; do :; done; mv /srv/d/kept /srv/d/image; \
              losetup --sector-size 4096 --direct-io=on /dev/$loop /srv/d/image; mount /dev/$loop /srv/i",
    },
    Fault { id: "journal_nested", object: "device $loop", make: "true", fix: "umount /srv/i" },
    Fault {
        id: "swap_above_image",
        object: "swap /dev/$loop",
        make: "mkswap /dev/$loop; swapon /dev/$loop",
        fix: "swapoff /dev/$loop; losetup -d /dev/$loop; while [ -e /sys/block/$loop/loop/backing_file ]; do :; done; rm /srv/d/image",
    },
    Fault {
        id: "weight_without_effect",
        object: "device $disk",
        make: "mkdir /sys/fs/cgroup/w; echo +io +memory > /sys/fs/cgroup/cgroup.subtree_control; echo 300 > /sys/fs/cgroup/w/io.weight",
        fix: "modprobe bfq; echo bfq > /sys/block/$disk/queue/scheduler; echo 300 > /sys/fs/cgroup/w/io.bfq.weight",
    },
    Fault {
        id: "weight_of_only_child",
        object: "cgroup /p/only",
        make: "mkdir -p /sys/fs/cgroup/p/only; echo +io > /sys/fs/cgroup/p/cgroup.subtree_control; echo 300 > /sys/fs/cgroup/p/only/io.bfq.weight",
        fix: "echo 300 > /sys/fs/cgroup/p/io.bfq.weight",
    },
    Fault {
        id: "two_controllers",
        object: "device $disk",
        make: "echo $dev enable=1 > /sys/fs/cgroup/io.cost.qos",
        fix: "echo none > /sys/block/$disk/queue/scheduler",
    },
    Fault {
        id: "io_cost_without_model",
        object: "device $disk",
        make: "true",
        fix: "echo $dev ctrl=user model=linear rbps=1000000000 rseqiops=10000 rrandiops=10000 wbps=1000000000 wseqiops=10000 wrandiops=10000 \
              > /sys/fs/cgroup/io.cost.model",
    },
    Fault {
        id: "writeback_not_attributed",
        object: "host",
        make: "echo $dev enable=0 > /sys/fs/cgroup/io.cost.qos; rmdir /sys/fs/cgroup/w /sys/fs/cgroup/p/only /sys/fs/cgroup/p; \
               echo -memory > /sys/fs/cgroup/cgroup.subtree_control",
        fix: "echo +memory > /sys/fs/cgroup/cgroup.subtree_control",
    },
    Fault {
        id: "journal_not_limited",
        object: "file system /srv/d",
        make: "mkdir /sys/fs/cgroup/l; echo $dev wbps=1000000 > /sys/fs/cgroup/l/io.max",
        fix: "read pid < /sys/fs/ext4/$disk/journal_task; echo $pid > /sys/fs/cgroup/l/cgroup.procs",
    },
    Fault {
        id: "barriers_off",
        object: "file system /srv/d",
        make: "read pid < /sys/fs/ext4/$disk/journal_task; echo $pid > /sys/fs/cgroup/cgroup.procs; rmdir /sys/fs/cgroup/l; \
               mount -o remount,barrier=0 /srv/d",
        fix: "mount -o remount,barrier=1 /srv/d",
    },
    Fault {
        id: "cache_never_flushed",
        object: "file system /srv/jfs",
        make: "truncate -s 64M /srv/d/jfs; mkfs.jfs -q /srv/d/jfs > /dev/null; mkdir /srv/jfs; mount -o loop /srv/d/jfs /srv/jfs",
        fix: "umount /srv/jfs; rmdir /srv/jfs; rm /srv/d/jfs",
    },
    Fault {
        id: "atime_always",
        object: "file system /srv/d",
        make: "mount -o remount,strictatime /srv/d",
        fix: "mount -o remount,relatime /srv/d",
    },
    Fault {
        id: "writes_synchronous",
        object: "file system /srv/d",
        make: "mount -o remount,sync /srv/d",
        fix: "mount -o remount,async /srv/d",
    },
    Fault {
        id: "commits_rare",
        object: "file system /srv/d",
        make: "mount -o remount,commit=300 /srv/d",
        fix: "mount -o remount,commit=5 /srv/d",
    },
    Fault {
        id: "data_not_ordered",
        object: "file system /srv/d",
        make: "umount /srv/d; mount -o data=writeback /dev/$disk /srv/d",
        fix: "umount /srv/d; mount /dev/$disk /srv/d",
    },
    Fault {
        id: "data_journaled",
        object: "file system /srv/d",
        make: "umount /srv/d; mount -o data=journal /dev/$disk /srv/d",
        fix: "umount /srv/d; mount /dev/$disk /srv/d",
    },
    Fault {
        id: "file_system_errors",
        object: "file system /srv/d",
        make: "echo planted > /sys/fs/ext4/$disk/trigger_fs_error",
        fix: "umount /srv/d; e2fsck -f -y /dev/$disk > /dev/null || [ $? = 1 ]; mount /dev/$disk /srv/d",
    },
    Fault {
        id: "ext4_without_journal",
        object: "file system /srv/d",
        make: "umount /srv/d; tune2fs -O ^has_journal /dev/$disk; mount /dev/$disk /srv/d",
        fix: "umount /srv/d; tune2fs -O has_journal /dev/$disk; mount /dev/$disk /srv/d",
    },
    Fault {
        id: "file_system_nearly_full",
        object: "file system /srv/d",
        make: "fallocate --length $(df --output=avail --block-size=1 /srv/d | tail -n 1) /srv/d/full",
        fix: "rm /srv/d/full",
    },
    Fault {
        id: "inodes_nearly_used",
        object: "file system /srv/i",
        make: "truncate -s 8M /run/few; mke2fs -q -t ext2 -N 16 /run/few; mount -o loop /run/few /srv/i; n=0; while touch /srv/i/$n 2> /dev/null; do n=$((n + 1)); done",
        fix: "rm /srv/i/[0-9]*",
    },
    Fault {
        id: "pool_nearly_full",
        object: "thin pool pool",
        make: "umount /srv/i; rm /run/few; truncate -s 4M /run/meta; truncate -s 32M /run/data; meta=$(losetup -f --show /run/meta); data=$(losetup -f --show /run/data); \
               modprobe dm_thin_pool; dmsetup create pool --table \"0 65536 thin-pool $meta $data 128 0\"; dmsetup message pool 0 'create_thin 0'; \
               dmsetup create thin --table '0 65536 thin /dev/mapper/pool 0'; dd if=/dev/zero of=/dev/mapper/thin bs=1M count=27 oflag=direct 2> /dev/null",
        fix: "blkdiscard /dev/mapper/thin",
    },
    Fault {
        id: "thin_pool_not_extended",
        object: "thin pool pool",
        make: "grep -q 'thin_pool_autoextend_threshold = ' /etc/lvm/lvm.conf",
        fix: "echo 'activation { \n thin_pool_autoextend_threshold = 70 \n }' > /etc/lvm/lvmlocal.conf",
    },
    Fault {
        id: "path_lost",
        object: "device dm-0",
        make: "dmsetup remove thin; dmsetup remove pool; modprobe dm_multipath; modprobe dm_round_robin; set -- $(for file in /run/meta /run/data; do losetup -j $file -n -O MAJ:MIN; done); \
               dmsetup create paths --table \"0 8192 multipath 0 0 1 1 round-robin 0 2 0 $1 $2\"; \
               dmsetup message paths 0 fail_path $2",
        fix: "dmsetup remove paths; losetup -j /run/meta -n -O NAME | xargs losetup -d; losetup -j /run/data -n -O NAME | xargs losetup -d; rm /run/meta /run/data",
    },
    Fault {
        id: "database_on_overlay",
        object: "database postgres",
        make: concat!(
            "mkdir -p /srv/o /srv/d/lower /srv/d/upper /srv/d/work; \
             mount -t overlay -o lowerdir=/srv/d/lower,upperdir=/srv/d/upper,workdir=/srv/d/work overlay /srv/o; ",
            database!("postgres", "/srv/o"),
        ),
        fix: concat!(end_databases!(), database!("postgres", "/srv/d/db")),
    },
    Fault {
        id: "database_shares_journal",
        object: "file system /srv/d",
        make: "true",
        fix: "umount /srv/o; rmdir /srv/o",
    },
    Fault {
        id: "readahead_large",
        object: "device $disk",
        make: "blockdev --setra 8192 /dev/$disk",
        fix: "blockdev --setra 256 /dev/$disk",
    },
    Fault {
        id: "runtime_beside_database",
        object: "runtime kubelet",
        make: "mkfifo /tmp/wait; printf '#!/bin/sh\nread end < /tmp/wait\n' > /srv/d/kubelet; chmod +x /srv/d/kubelet; \
               setsid /srv/d/kubelet --root-dir=/srv/d/kubelet.d > /dev/null 2>&1 < /dev/null & echo $! > /tmp/kubelet; \
               until [ \"$(cat /proc/$!/comm)\" = kubelet ]; do :; done",
        fix: "modprobe bfq; echo bfq > /sys/block/$disk/queue/scheduler",
    },
    Fault {
        id: "logs_beside_database",
        object: "file system /srv/d",
        make: "mkdir -p /srv/d/docker/containers/1 /etc/docker; echo '{\"data-root\": \"/srv/d/docker\"}' > /etc/docker/daemon.json; \
               echo '{\"Name\": \"/web\", \"State\": {\"Running\": true}}' > /srv/d/docker/containers/1/config.v2.json; \
               echo '{\"LogConfig\": {\"Type\": \"json-file\", \"Config\": {}}}' > /srv/d/docker/containers/1/hostconfig.json",
        fix: concat!("echo end > /tmp/wait; ", end_databases!()),
    },
    Fault {
        id: "logs_unlimited",
        object: "runtime docker",
        make: "true",
        fix: "echo '{\"LogConfig\": {\"Type\": \"json-file\", \"Config\": {\"max-size\": \"10m\"}}}' > /srv/d/docker/containers/1/hostconfig.json",
    },
    Fault {
        id: "images_copied_whole",
        object: "runtime podman",
        make: "rm -r /srv/d/docker /etc/docker/daemon.json; mkdir -p /var/lib/containers/storage/vfs-containers/1",
        fix: "rm -r /var/lib/containers/storage",
    },
    Fault {
        id: "space_not_trimmed",
        object: "file system /srv/d",
        make: "rm -f /etc/systemd/system/timers.target.wants/fstrim.timer",
        fix: "mkdir -p /etc/systemd/system/timers.target.wants; ln -s /dev/null /etc/systemd/system/timers.target.wants/fstrim.timer",
    },
];

/// Faults that a host has at the same time: the ids of their findings.
pub(super) const TOGETHER: [&str; 18] = [
    "atime_always",
    "barriers_off",
    "commits_rare",
    "database_shares_journal",
    "image_cached_twice",
    "image_sparse",
    "images_copied_whole",
    "journal_nested",
    "journal_not_limited",
    "logs_beside_database",
    "logs_unlimited",
    "readahead_large",
    "runtime_beside_database",
    "scheduler_on_stack",
    "weight_of_only_child",
    "weight_without_effect",
    "writeback_not_attributed",
    "writes_synchronous",
];

/// Those of them that `--fix` fixes.
pub(super) const FIXED: [&str; 8] = [
    "atime_always",
    "barriers_off",
    "commits_rare",
    "image_cached_twice",
    "readahead_large",
    "scheduler_on_stack",
    "writeback_not_attributed",
    "writes_synchronous",
];

/// Makes them.
pub(super) const MAKE_TOGETHER: &str = concat!(
    "echo none > /sys/block/$disk/queue/scheduler; mount -o remount,strictatime,sync,barrier=0,commit=300 /srv/d; \
     truncate -s 200M /srv/d/image; losetup --sector-size 4096 /dev/$loop /srv/d/image; mkfs.ext4 -q -E lazy_itable_init=0 /dev/$loop; mount /dev/$loop /srv/i; \
     echo mq-deadline > /sys/block/$loop/queue/scheduler; blockdev --setra 8192 /dev/$disk; mkdir -p /sys/fs/cgroup/p/only /sys/fs/cgroup/l; \
     echo +io > /sys/fs/cgroup/p/cgroup.subtree_control; echo 300 > /sys/fs/cgroup/p/only/io.weight; echo $dev wbps=1000000 > /sys/fs/cgroup/l/io.max; \
     echo -memory > /sys/fs/cgroup/cgroup.subtree_control; mkdir -p /srv/d/docker/containers/1 /etc/docker /var/lib/containers/storage/vfs-containers/1; \
     echo '{\"data-root\": \"/srv/d/docker\"}' > /etc/docker/daemon.json; \
     echo '{\"Name\": \"/web\", \"State\": {\"Running\": true}}' > /srv/d/docker/containers/1/config.v2.json; \
     echo '{\"LogConfig\": {\"Type\": \"json-file\", \"Config\": {}}}' > /srv/d/docker/containers/1/hostconfig.json; \
     setsid /srv/d/kubelet --root-dir=/srv/d/kubelet.d > /dev/null 2>&1 < /dev/null & until [ \"$(cat /proc/$!/comm)\" = kubelet ]; do :; done; ",
    database!("postgres", "/srv/d/db"),
    database!("mariadbd", "/srv/d/db2"),
);

/// Removes them.
pub(super) const FIX_TOGETHER: &str = concat!(
    "echo end > /tmp/wait; rm /tmp/wait; ",
    end_databases!(),
    "echo +memory > /sys/fs/cgroup/cgroup.subtree_control; rm -r /srv/d/docker /etc/docker/daemon.json /var/lib/containers/storage; rmdir /sys/fs/cgroup/p/only /sys/fs/cgroup/p /sys/fs/cgroup/l; \
     umount /srv/i; losetup -d /dev/$loop; blockdev --setra 256 /dev/$disk; mount -o remount,relatime,async,barrier=1,commit=5 /srv/d",
);
