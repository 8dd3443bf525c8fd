//! Each rule on a well-configured host, and on one with a single fault.

mod captured;
mod faults;

use bulkhead_core::facts::{
    CgroupSettings, Cgroups, Database, Device, DeviceKind, Ext4, FORMAT, Facts, Image, Mount, Space,
};
use bulkhead_core::units::{Bytes, DevNo};

use super::*;

const SDA: DevNo = DevNo::new(8, 0);
const SDA1: DevNo = DevNo::new(8, 1);
const NVME: DevNo = DevNo::new(259, 0);
const LOOP: DevNo = DevNo::new(7, 0);

fn disk(name: &str, dev: DevNo) -> Device {
    Device {
        name: name.to_owned(),
        dev,
        size_bytes: Bytes(Bytes::GIB),
        scheduler: Some("none".to_owned()),
        write_cache: Some("write back".to_owned()),
        logical_block_bytes: 512,
        physical_block_bytes: 4096,
        discard_bytes: Bytes(Bytes::GIB),
        ..Device::default()
    }
}

fn mount(dev: DevNo, fs_type: &str, at: &str, options: &str) -> Mount {
    let words = |text: &str| text.split(',').map(str::to_owned).collect();
    Mount {
        dev,
        fs_type: fs_type.to_owned(),
        at: at.to_owned(),
        root: "/".to_owned(),
        options: words("rw,relatime"),
        fs_options: words(options),
    }
}

fn space(dev: DevNo) -> Space {
    Space {
        dev,
        block_bytes: 4096,
        size_bytes: Bytes(100 * Bytes::GIB),
        free_bytes: Bytes(50 * Bytes::GIB),
        inodes: 1_000_000,
        free_inodes: 900_000,
    }
}

/// A host on which nothing is wrong: a partition for the system, io.cost with a model on the drive with the data, and a loop device with
/// direct I/O over an image on tmpfs.
fn host() -> Facts {
    let partition = Device { kind: DeviceKind::Partition, below: vec!["sda".to_owned()], ..disk("sda1", SDA1) };
    let image = Image {
        path: "/run/image".to_owned(),
        fs_type: Some("tmpfs".to_owned()),
        direct: Some(true),
        size_bytes: Some(Bytes(Bytes::GIB)),
        allocated_bytes: Some(Bytes(Bytes::GIB)),
        ..Image::default()
    };
    let on_image = Device { kind: DeviceKind::Loop, image: Some(image), ..disk("loop0", LOOP) };
    Facts {
        format: FORMAT,
        kernel: "6.12.0".to_owned(),
        mounts: vec![
            mount(SDA1, "ext4", "/", "rw,errors=remount-ro"),
            mount(NVME, "xfs", "/srv", "rw,attr2"),
            mount(LOOP, "ext4", "/mnt", "rw"),
        ],
        devices: vec![
            disk("sda", SDA),
            partition,
            Device { io_cost: true, io_cost_model: true, ..disk("nvme0n1", NVME) },
            on_image,
        ],
        ext4: vec![Ext4 {
            device: "sda1".to_owned(),
            has_journal: Some(true),
            max_transaction_blocks: Some(65536),
            journal_cgroup: Some("/".to_owned()),
            ..Ext4::default()
        }],
        spaces: vec![space(SDA1), space(NVME)],
        dirty_limit: Some(Bytes(4 * Bytes::GIB)),
        systemd: true,
        cgroups: Some(Cgroups { enabled: ["cpu", "io", "memory"].map(str::to_owned).into(), settings: vec![] }),
        databases: vec![Database {
            name: "postgres".to_owned(),
            fs_type: "xfs".to_owned(),
            dev: NVME,
            ..Database::default()
        }],
        trims: Some(true),
        ..Facts::default()
    }
}

fn device<'a>(facts: &'a mut Facts, name: &str) -> &'a mut Device {
    facts.devices.iter_mut().find(|device| device.name == name).unwrap()
}

fn image(facts: &mut Facts) -> &mut Image {
    device(facts, "loop0").image.as_mut().unwrap()
}

fn weigh(facts: &mut Facts, weight: Option<u32>, bfq_weight: Option<u32>) {
    let settings = CgroupSettings { path: "/db.slice".to_owned(), weight, bfq_weight, ..CgroupSettings::default() };
    facts.cgroups.as_mut().unwrap().settings.push(settings);
}

/// The findings of a host after a change, as text.
fn after(change: impl FnOnce(&mut Facts)) -> Vec<String> {
    let mut facts = host();
    change(&mut facts);
    judge(&facts).iter().map(ToString::to_string).collect()
}

#[test]
fn a_well_configured_host_has_no_findings() {
    assert_eq!(after(|_| ()), [""; 0]);
    assert_eq!(judge(&Facts::default()), []);
}

#[test]
fn an_image_in_the_page_cache_is_found_if_it_is_written() {
    let found = "warning[image_cached_twice]: device loop0: /run/image is read and written through the page cache, and /mnt is on it";
    assert_eq!(after(|facts| image(facts).direct = Some(false)), [found]);
    assert_eq!(after(|facts| image(facts).direct = None), [""; 0]);
    let read_only = |facts: &mut Facts| {
        image(facts).direct = Some(false);
        device(facts, "loop0").read_only = true;
    };
    assert_eq!(after(read_only), [""; 0]);
    let unused = |facts: &mut Facts| {
        image(facts).direct = Some(false);
        facts.mounts.pop();
    };
    assert_eq!(after(unused), [""; 0]);
}

#[test]
fn an_image_on_another_file_system_is_judged_by_both() {
    let on = |fs: &str| {
        after(|facts| image(facts).fs_type = Some(fs.to_owned()))
            .iter()
            .map(|text| text[..30].to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(on("ext4"), ["warning[journal_nested]: devic"]);
    assert_eq!(on("btrfs"), ["warning[journal_nested]: devic", "warning[image_copied_on_write]"]);
    assert_eq!(on("zfs"), ["warning[image_copied_on_write]"]);
    assert_eq!(on("ext2"), [""; 0]);
    let inner = |facts: &mut Facts| {
        image(facts).fs_type = Some("ext4".to_owned());
        facts.mounts[2].fs_type = "ext2".to_owned();
    };
    assert_eq!(after(inner), [""; 0]);
}

#[test]
fn barriers_matter_where_the_disk_has_a_write_cache() {
    let set = |option: &str, cache: &str| {
        let (option, cache) = (option.to_owned(), Some(cache.to_owned()));
        after(|facts| {
            facts.mounts[0].fs_options.push(option);
            device(facts, "sda").write_cache = cache;
        })
    };
    let found = "critical[barriers_off]: file system /: it is mounted with nobarrier, and sda has a write cache";
    assert_eq!(set("nobarrier", "write back"), [found]);
    assert_eq!(set("barrier=0", "write back").len(), 1);
    assert_eq!(set("nobarrier", "write through"), [""; 0]);
    assert_eq!(set("barrier=1", "write back"), [""; 0]);
}

#[test]
fn a_weight_needs_the_controller_that_acts_on_it() {
    let found = |controller: &str| {
        format!(
            "warning[weight_without_effect]: device sda: its scheduler is {controller}, io.cost is off, and weights are set for /db.slice"
        )
    };
    // io.cost acts on io.weight on the NVMe drive.
    assert_eq!(after(|facts| weigh(facts, Some(300), None)), [found("none")]);
    assert_eq!(after(|facts| weigh(facts, Some(300), Some(300))), [found("none")]);
    let with_bfq = |weight, bfq_weight| {
        after(|facts| {
            device(facts, "sda").scheduler = Some("bfq".to_owned());
            weigh(facts, weight, bfq_weight);
        })
    };
    assert_eq!(with_bfq(Some(300), None), [found("bfq")]);
    assert_eq!(with_bfq(Some(300), Some(300)), [""; 0]);
    assert_eq!(after(|facts| weigh(facts, None, Some(300))).len(), 2, "neither disk has BFQ");
    let many = after(|facts| (0..5).for_each(|_| weigh(facts, Some(300), None)));
    assert!(many[0].ends_with("/db.slice, /db.slice, /db.slice and 2 more"), "{many:?}");
}

#[test]
fn space_is_trimmed_by_the_timer_or_the_mount() {
    let without_timer = |change: &dyn Fn(&mut Facts)| {
        after(|facts| {
            facts.trims = Some(false);
            device(facts, "nvme0n1").discard_bytes = Bytes(0);
            facts.mounts.pop();
            change(facts);
        })
    };
    let found = "info[space_not_trimmed]: file system /: sda1 can discard; the mount has no discard option, and fstrim.timer is not enabled";
    assert_eq!(without_timer(&|_| ()), [found]);
    assert_eq!(without_timer(&|facts| facts.mounts[0].fs_options.push("discard".to_owned())), [""; 0]);
    assert_eq!(without_timer(&|facts| device(facts, "sda1").rotational = true), [""; 0]);
    assert_eq!(without_timer(&|facts| facts.trims = None), [""; 0]);
}

#[test]
fn the_only_tenant_of_bulkhead_is_not_an_only_child() {
    let alone = |path: &str| {
        after(|facts| {
            let sda = device(facts, "sda");
            (sda.io_cost, sda.io_cost_model) = (true, true);
            weigh(facts, Some(300), None);
            let settings = &mut facts.cgroups.as_mut().unwrap().settings[0];
            (settings.path, settings.siblings) = (path.to_owned(), Some(0));
        })
        .len()
    };
    assert_eq!([alone("/bulkhead.slice/bulkhead-db.slice"), alone("/pods.slice/pod"), alone("/pods.slice")], [0, 1, 0]);
}

#[test]
fn every_rule_has_an_id_of_its_own_and_says_why() {
    for rule in rules() {
        let id = rule.id.word();
        assert_eq!(super::rule(id).map(|rule| rule.why), Some(rule.why), "{id}");
        assert!(rule.why.ends_with('.') && !rule.source.is_empty(), "{id}");
        assert!(rule.measured.is_none_or(|measured| !measured.figure.ends_with('.')), "{id}");
    }
}

#[test]
fn the_evidence_of_rules_exists() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/EVIDENCE.md")).unwrap();
    for measured in rules().filter_map(|rule| rule.measured) {
        assert!(page.contains(&format!("\n## {}\n", measured.section)), "{measured:?}");
    }
}

#[test]
fn facts_survive_a_capture() {
    let facts = host();
    let text = serde_json::to_string(&facts).unwrap();
    assert_eq!(serde_json::from_str::<Facts>(&text).unwrap(), facts);
}
