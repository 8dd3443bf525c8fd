//! Against a fake `/sys` and `/proc`; the values are from Debian 6.12 machines.

use std::os::unix::fs::symlink;

use bulkhead_core::facts::DeviceKind;

use super::diskstat::parse_diskstat;
use super::*;

const QUEUE: [(&str, &str); 6] = [
    ("logical_block_size", "512"),
    ("physical_block_size", "4096"),
    ("rotational", "1"),
    ("scheduler", "[none] mq-deadline"),
    ("nr_requests", "256"),
    ("max_sectors_kb", "1280"),
];

struct Fake {
    _dir: tempfile::TempDir,
    roots: Roots,
}

impl Fake {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::under(&fs::canonicalize(dir.path()).unwrap());
        let fake = Self { _dir: dir, roots };
        fs::create_dir_all(fake.roots.sys.join("dev/block")).unwrap();
        fake.file("../proc/self/mountinfo", "");
        fake
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.roots.sys.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// A device below /sys/devices with its link in /sys/dev/block.
    fn device(&self, path: &str, dev: &str, queue: bool) {
        for (name, text) in [("dev", dev), ("size", "8388608"), ("ro", "0"), ("stat", "1 2 3")] {
            self.file(&format!("devices/{path}/{name}"), text);
        }
        if queue {
            for (name, text) in QUEUE {
                self.file(&format!("devices/{path}/queue/{name}"), text);
            }
        }
        let link = self.roots.sys.join("dev/block").join(dev);
        symlink(self.roots.sys.join("devices").join(path), link).unwrap();
    }

    /// `upper` is built on `lower` (both paths below /sys/devices).
    fn stacked(&self, upper: &str, lower: &str) {
        for (from, kind, to) in [(upper, "slaves", lower), (lower, "holders", upper)] {
            let dir = self.roots.sys.join("devices").join(from).join(kind);
            fs::create_dir_all(&dir).unwrap();
            let target = self.roots.sys.join("devices").join(to);
            symlink(&target, dir.join(target.file_name().unwrap())).unwrap();
        }
    }

    fn mountinfo(&self, text: &str) {
        self.file("../proc/self/mountinfo", text);
    }
}

const VDA: DevNo = DevNo::new(254, 0);
const VDA1: DevNo = DevNo::new(254, 1);
const DM0: DevNo = DevNo::new(253, 0);

/// vda with one partition, a thin LV over a pool over both disks, and loop devices.
fn fake() -> Fake {
    let fake = Fake::new();
    fake.device("pci/block/vda", "254:0", true);
    fake.device("pci/block/vda/vda1", "254:1", false);
    fake.file("devices/pci/block/vda/vda1/partition", "1");
    fake.device("pci/block/vdb", "254:16", true);
    for (n, name) in ["vg-thin", "vg-pool-tpool", "vg-pool_tmeta", "vg-pool_tdata"].iter().enumerate() {
        let path = format!("virtual/block/dm-{n}");
        fake.device(&path, &format!("253:{n}"), true);
        fake.file(&format!("devices/{path}/dm/name"), name);
        fake.file(&format!("devices/{path}/dm/uuid"), "LVM-x");
        fake.file(&format!("devices/{path}/queue/scheduler"), "none");
    }
    for (upper, lower) in [("dm-0", "dm-1"), ("dm-1", "dm-2"), ("dm-1", "dm-3")] {
        fake.stacked(&format!("virtual/block/{upper}"), &format!("virtual/block/{lower}"));
    }
    fake.stacked("virtual/block/dm-2", "pci/block/vda/vda1");
    fake.stacked("virtual/block/dm-3", "pci/block/vda/vda1");
    fake.stacked("virtual/block/dm-3", "pci/block/vdb");
    fake
}

#[test]
fn a_disk_and_its_partition() {
    let fake = fake();
    fake.file("devices/pci/block/vda/device/model", "  QEMU HARDDISK   ");
    let disk = inspect(&fake.roots, VDA).unwrap();
    assert_eq!((disk.name.as_str(), disk.size, disk.partition_of), ("vda", Bytes(4 << 30), None));
    assert_eq!((disk.logical_block_bytes, disk.physical_block_bytes, disk.rotational), (512, 4096, true));
    let scheduler = disk.scheduler.unwrap();
    assert_eq!((scheduler.active.as_str(), scheduler.available.len()), ("none", 2));
    assert_eq!((disk.nr_requests, disk.model.as_deref()), (Some(256), Some("QEMU HARDDISK")));
    assert_eq!(disk.largest_request, Some(Bytes(1_310_720)));
    let partition = inspect(&fake.roots, VDA1).unwrap();
    assert_eq!((partition.partition_of, partition.physical_block_bytes), (Some(VDA), 4096));
    assert_eq!(name_of(&fake.roots, VDA1).unwrap(), "vda1");
    assert!(matches!(inspect(&fake.roots, DevNo::new(9, 9)), Err(BlockError::NotFound { .. })));
}

#[test]
fn a_dm_device_names_its_slaves_and_holders() {
    let fake = fake();
    let pool = inspect(&fake.roots, DevNo::new(253, 1)).unwrap();
    assert_eq!(pool.slaves, [DevNo::new(253, 2), DevNo::new(253, 3)]);
    assert_eq!(pool.dm.unwrap().name, "vg-pool-tpool");
    assert_eq!(holders(&fake.roots, VDA1).unwrap(), [DevNo::new(253, 2), DevNo::new(253, 3)]);
}

#[test]
fn a_stack_ends_at_all_its_disks() {
    let fake = fake();
    let stack = stack(&fake.roots, DM0, &foreign).unwrap();
    assert_eq!(stack.physical, [VDA, DevNo::new(254, 16)]);
    let names: Vec<_> = stack.layers.iter().map(|layer| layer.name.as_str()).collect();
    assert_eq!(names, ["dm-0", "dm-1", "dm-2", "vda1", "vda", "dm-3", "vdb"]);
    assert_eq!((stack.layers[0].kind, stack.layers[3].kind), (DeviceKind::Dm, DeviceKind::Partition));
    assert_eq!(stack.dead_ends, []);
}

/// All ublk devices are those of other programs.
fn foreign(_name: &str) -> Option<PathBuf> {
    None
}

/// Those of the devices that are physical, by their stacks and by [`is_physical`].
fn physical_ones(fake: &Fake, devices: &[DevNo]) -> Vec<DevNo> {
    let physical = |dev: &DevNo| stack(&fake.roots, *dev, &foreign).is_ok_and(|stack| stack.physical == [*dev]);
    let found: Vec<DevNo> = devices.iter().copied().filter(physical).collect();
    let quickly: Vec<DevNo> = devices.iter().copied().filter(|dev| is_physical(&fake.roots, *dev, &foreign)).collect();
    assert_eq!(quickly, found);
    found
}

#[test]
fn physical_devices_are_recognised_without_resolving_their_stack() {
    let fake = fake();
    for (path, dev) in [("nbd0", "43:0"), ("zram0", "251:0"), ("md0", "9:0"), ("bcache0", "252:0"), ("loop0", "7:0")] {
        fake.device(&format!("virtual/block/{path}"), dev, true);
    }
    fake.device("virtual/block/ublkb0", "259:0", true);
    fake.device("virtual/block/ublkb0/ublkb0p1", "259:1", false);
    fake.file("devices/virtual/block/ublkb0/ublkb0p1/partition", "1");
    fake.device("virtual/block/sdx", "8:0", true);
    fake.stacked("virtual/block/sdx", "pci/block/vda");
    let all =
        ["254:0", "254:1", "254:16", "253:0", "253:3", "43:0", "251:0", "9:0", "252:0", "7:0", "259:0", "259:1", "8:0"];
    let all: Vec<DevNo> = all.iter().map(|dev| dev.parse().unwrap()).collect();
    let physical = ["254:0", "254:16", "43:0", "259:0"].map(|dev| dev.parse().unwrap());
    assert_eq!(physical_ones(&fake, &all), physical);
    assert!(!is_physical(&fake.roots, DevNo::new(9, 9), &foreign));
}

#[test]
fn a_cycle_terminates() {
    let fake = Fake::new();
    fake.device("virtual/block/md0", "9:0", true);
    fake.device("virtual/block/md1", "9:1", true);
    fake.stacked("virtual/block/md0", "virtual/block/md1");
    fake.stacked("virtual/block/md1", "virtual/block/md0");
    let stack = stack(&fake.roots, DevNo::new(9, 0), &foreign).unwrap();
    assert_eq!((stack.layers.len(), stack.physical.len()), (2, 0));
}

#[test]
fn a_loop_device_leads_to_the_device_of_its_image() {
    let fake = fake();
    let image = fake.roots.sys.join("image");
    fs::write(&image, "x").unwrap();
    fake.device("virtual/block/loop0", "7:0", true);
    fake.file("devices/virtual/block/loop0/loop/backing_file", image.to_str().unwrap());
    let host = dev_from_raw(fs::metadata(&image).unwrap().dev());
    if host.major == 0 {
        let stack = stack(&fake.roots, DevNo::new(7, 0), &foreign).unwrap();
        assert!(stack.dead_ends[0].reason.contains("is not mounted here"), "{stack:?}");
    } else {
        if name_of(&fake.roots, host).is_err() {
            fake.device("pci/block/host", &host.to_string(), true);
        }
        let stack = stack(&fake.roots, DevNo::new(7, 0), &foreign).unwrap();
        assert_eq!((stack.layers[0].kind, stack.layers[1].dev), (DeviceKind::Loop, host));
        assert_eq!(stack.dead_ends, []);
    }
    fake.device("virtual/block/loop1", "7:1", true);
    fake.file("devices/virtual/block/loop1/loop/backing_file", "/no/such/image (deleted)");
    let stack = stack(&fake.roots, DevNo::new(7, 1), &foreign).unwrap();
    assert!(stack.dead_ends[0].reason.contains("/no/such/image cannot be examined"), "{stack:?}");
    assert_eq!(stack.physical, []);
}

#[test]
fn memory_is_a_dead_end_with_a_reason() {
    let fake = Fake::new();
    fake.device("virtual/block/zram0", "251:0", true);
    let stack = stack(&fake.roots, DevNo::new(251, 0), &foreign).unwrap();
    assert!(stack.physical.is_empty() && stack.dead_ends[0].reason.contains("memory"), "{stack:?}");
}

#[test]
fn a_ublk_device_of_another_program_counts_as_a_disk() {
    let fake = Fake::new();
    fake.device("virtual/block/ublkb0", "259:0", true);
    let stack = stack(&fake.roots, DevNo::new(259, 0), &foreign).unwrap();
    assert_eq!((stack.physical, stack.dead_ends), (vec![DevNo::new(259, 0)], vec![]));
}

#[test]
fn anonymous_devices_are_resolved_by_the_mount_table() {
    use super::stack::holder_by_dev;
    let fake = fake();
    fake.mountinfo(
        "22 1 0:20 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/nonexistent/upper,workdir=/w\n\
         23 22 0:21 / /tmp rw - tmpfs tmpfs rw\n\
         24 22 0:22 / /lab rw - 9p virtme.initmount0 rw\n\
         25 22 254:1 / /srv rw - ext4 /dev/vda1 rw",
    );
    let holder = |path: &str, dev| holder_by_dev(&fake.roots, Path::new(path), dev, 0).unwrap();
    assert_eq!(holder("/srv/x", VDA1), Holder::Devices(vec![VDA1]));
    for (path, dev, part) in [
        ("/tmp/x", DevNo::new(0, 21), "tmpfs, which has no block device"),
        ("/lab/x", DevNo::new(0, 22), "9p, which has no block device"),
        ("/x", DevNo::new(0, 20), "upper directory is not visible"),
        // btrfs: a number that the table does not have, found by the mount point.
        ("/tmp/y", DevNo::new(0, 99), "tmpfs"),
    ] {
        match holder(path, dev) {
            Holder::None { reason } => assert!(reason.contains(part), "{reason}"),
            other @ Holder::Devices(_) => panic!("{path}: {other:?}"),
        }
    }
}

#[test]
fn schedulers_are_set_and_verified() {
    let fake = fake();
    assert_eq!(set_scheduler(&fake.roots, VDA1, "none").unwrap(), "none");
    // Afterwards the fake file has one word, as for a device with a single scheduler.
    assert_eq!(set_scheduler(&fake.roots, VDA1, "mq-deadline").unwrap(), "none");
    assert_eq!(inspect(&fake.roots, VDA).unwrap().scheduler.unwrap().active, "mq-deadline");
    for wanted in ["-r", "made-up", ""] {
        let error = set_scheduler(&fake.roots, DevNo::new(254, 16), wanted).unwrap_err();
        assert!(matches!(error, BlockError::SchedulerUnavailable { source: None, .. }), "{error}");
    }
    assert_eq!(parse_scheduler("mq-deadline kyber [bfq] none\n").unwrap().active, "bfq");
    assert_eq!(parse_scheduler("none\n").unwrap().active, "none");
    assert_eq!(parse_scheduler("a b"), None);
    assert_eq!(parse_scheduler(""), None);
}

#[test]
fn counters_are_read() {
    let text = "     451       12    22610      390       57        3      832       20        2      310      430        5 \
                6 7 8 11 9\n";
    let stat = parse_diskstat(text).unwrap();
    assert_eq!((stat.reads, stat.read_sectors, stat.read_ms), (451, 22610, 390));
    assert_eq!((stat.writes, stat.write_merges, stat.write_sectors, stat.write_ms), (57, 3, 832, 20));
    assert_eq!((stat.in_flight, stat.io_ms, stat.weighted_ms), (2, 310, 430));
    assert_eq!((stat.discards, stat.discard_ms, stat.flushes, stat.flush_ms), (5, 8, 11, 9));
    let fake = fake();
    assert!(matches!(diskstat(&fake.roots, VDA), Err(BlockError::Malformed { .. })));
}

#[test]
fn a_device_is_in_use_if_it_has_holders_or_a_partition_is_mounted() {
    let fake = fake();
    let used = |dev| is_in_use(&fake.roots, dev).unwrap();
    assert_eq!(used(VDA), Some(InUse::Holders { names: vec!["dm-2".into(), "dm-3".into()] }));
    assert_eq!(used(DM0), None);
    fake.mountinfo("25 22 253:0 / /srv/my\\040data rw - ext4 /dev/mapper/vg-thin rw");
    let reason = used(DM0).unwrap();
    assert_eq!(reason.to_string(), "dm-0 is mounted on /srv/my data");
    fake.device("pci/block/vdc", "254:32", true);
    fake.device("pci/block/vdc/vdc1", "254:33", false);
    fake.file("devices/pci/block/vdc/vdc1/partition", "1");
    fake.mountinfo("25 22 254:33 / /x rw - ext4 /dev/vdc1 rw");
    let reason = used(DevNo::new(254, 32)).unwrap();
    assert_eq!(reason, InUse::Mounted { name: "vdc1".into(), mount_point: "/x".into(), pid: 0 });
}

/// The nodes are those of this machine, and are not opened.
#[test]
fn whoever_has_a_device_open_is_found() {
    let entries = fs::read_dir("/dev").unwrap().map(|entry| entry.unwrap().path());
    let is_block = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    let nodes: Vec<PathBuf> = entries.filter(is_block).take(2).collect();
    let [node, other] = nodes.as_slice() else {
        println!("skipped: there are no two block devices");
        return;
    };
    let fake = Fake::new();
    let [dev, of_other] = [node, other].map(|node| dev_from_raw(fs::metadata(node).unwrap().rdev()));
    fake.device("pci/block/whole", &of_other.to_string(), true);
    fake.device("pci/block/whole/part", &dev.to_string(), false);
    fake.file("devices/pci/block/whole/part/partition", "1");
    let process = |pid: u32, files: &[&Path]| {
        let fds = fake.roots.proc.join(pid.to_string()).join("fd");
        fs::create_dir_all(&fds).unwrap();
        files.iter().enumerate().for_each(|(n, file)| symlink(file, fds.join(n.to_string())).unwrap());
    };
    let (null, gone) = (Path::new("/dev/null"), Path::new("/nonexistent"));
    process(7, &[null, gone, node]);
    process(8, &[null, &fake.roots.sys]);
    process(9, &[other]);
    process(std::process::id(), &[node]);
    fs::create_dir_all(fake.roots.proc.join("10")).unwrap();
    fs::create_dir_all(fake.roots.proc.join("sys/fd")).unwrap();
    let mut both = openers(&fake.roots, of_other).unwrap();
    both.sort_unstable();
    assert_eq!((openers(&fake.roots, dev).unwrap(), both), (vec![7], vec![7, 9]), "of a disk, also its partitions");
}

#[test]
fn only_block_devices_are_block_devices() {
    let fake = fake();
    let error = by_path(&fake.roots, &fake.roots.sys).unwrap_err();
    assert!(matches!(error, BlockError::NotABlockDevice { .. }), "{error}");
    assert!(matches!(by_path(&fake.roots, Path::new("/dev/null")), Err(BlockError::NotABlockDevice { .. })));
    assert!(matches!(by_path(&fake.roots, Path::new("/nonexistent")), Err(BlockError::Read { .. })));
}

#[test]
fn devices_of_this_host_can_be_inspected() {
    let roots = Roots::host();
    for entry in fs::read_dir("/sys/block").unwrap() {
        let dev: DevNo = fs::read_to_string(entry.unwrap().path().join("dev")).unwrap().parse().unwrap();
        let device = inspect(&roots, dev).unwrap();
        stack(&roots, dev, &foreign).unwrap_or_else(|error| panic!("{}: {error}", device.name));
        diskstat(&roots, dev).unwrap();
    }
}
