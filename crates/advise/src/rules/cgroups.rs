//! Rules about cgroups.

use bulkhead_core::facts::{CgroupSettings, Device, Facts, Mount};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::fix::{Change, Setting};
use bulkhead_core::slices;

use super::{MOVE_DATA, change_scheduler, device_of, disks_in_use, has_bfq, named, on_device, on_mount, written};
use crate::{Fix, Measured, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: FindingId::WeightWithoutEffect,
        why: "The kernel stores any weight; only io.cost and BFQ act on one, each on its own file, and only on the physical disk.",
        measured: Some(Measured {
            figure: "without a controller, an fsync on a volume of its own took 3150 ms beside 8 buffered writers on the lab's NVMe drive, and 51 to 78 ms with io.cost",
            section: "fsync-probe",
        }),
        source: "kernel Documentation/admin-guide/cgroup-v2.rst, IO Interface Files; Documentation/block/bfq-iosched.rst",
        fix: Fix::Changes(use_bfq),
        find: weight_without_effect,
    },
    Rule {
        id: FindingId::WeightOfOnlyChild,
        why: "A weight divides what the parent has among its children. An only child has all of it, with any weight.",
        measured: None,
        source: "kernel Documentation/admin-guide/cgroup-v2.rst, Weights",
        fix: Fix::None("which cgroup is meant is the owner's decision"),
        find: weight_of_only_child,
    },
    Rule {
        id: FindingId::WritebackNotAttributed,
        why: "The kernel charges a dirty page to the memory cgroup that owns it, and finds the io cgroup from there.",
        measured: None,
        source: "kernel Documentation/admin-guide/cgroup-v2.rst, Writeback",
        fix: Fix::Changes(enable_memory),
        find: writeback_not_attributed,
    },
    Rule {
        id: FindingId::WritebackNotSupported,
        why: "A file system has to tell the kernel for which cgroup it writes. ext2, ext4, XFS, btrfs and F2FS do.",
        measured: None,
        source: "kernel Documentation/admin-guide/cgroup-v2.rst, Filesystem Support for Writeback; SB_I_CGROUPWB",
        fix: Fix::None(MOVE_DATA),
        find: writeback_not_supported,
    },
    Rule {
        id: FindingId::CgroupV1Io,
        why: "cgroup v1 has no writeback by cgroup: its limits and weights act on reads and direct I/O only.",
        measured: None,
        source: "kernel Documentation/admin-guide/cgroup-v1/blkio-controller.rst; Documentation/admin-guide/cgroup-v2.rst, Issues with v1",
        fix: Fix::None("the host has to be restarted"),
        find: cgroup_v1_io,
    },
];

/// BFQ acts on its own weights without a calibration, and suits slow disks.
fn use_bfq(facts: &Facts, finding: &Finding) -> Vec<Change> {
    let is_for_bfq = |settings: &CgroupSettings| settings.bfq_weight.is_some() || settings.weight.is_none();
    let all_are = facts.cgroups.as_ref().is_some_and(|cgroups| cgroups.settings.iter().all(is_for_bfq));
    let device = device_of(facts, finding).filter(|device| all_are && device.rotational && !device.io_cost);
    device.map(|device| change_scheduler(device, "bfq")).unwrap_or_default()
}

fn enable_memory(_: &Facts, _: &Finding) -> Vec<Change> {
    vec![Change::new(Setting::RootController { controller: "memory".to_owned() }, "off", "on")]
}

fn weight_without_effect(facts: &Facts) -> Vec<Finding> {
    let Some(cgroups) = &facts.cgroups else { return Vec::new() };
    let finding = |device: &Device| {
        let is_bfq = has_bfq(device);
        // systemd and Bulkhead set both weights; each controller acts on one of them.
        let is_idle = |settings: &&CgroupSettings| {
            let has_effect = settings.weight.is_some() && device.io_cost || settings.bfq_weight.is_some() && is_bfq;
            (settings.weight.is_some() || settings.bfq_weight.is_some()) && !has_effect
        };
        let idle: Vec<&CgroupSettings> = cgroups.settings.iter().filter(is_idle).collect();
        if idle.is_empty() {
            return None;
        }
        let scheduler = device.scheduler.as_deref().unwrap_or("none");
        let io_cost = if device.io_cost { "on" } else { "off" };
        let idle = named(idle.into_iter().map(|settings| settings.path.as_str()));
        let evidence = format!("its scheduler is {scheduler}, io.cost is {io_cost}, and weights are set for {idle}");
        let advice = format!(
            "`bulkhead device control {0} --policy iocost` after `bulkhead device calibrate {0}` (or `--policy bfq`); without Bulkhead: write \
             `bfq` to /sys/block/{0}/queue/scheduler",
            device.name
        );
        Some(on_device(FindingId::WeightWithoutEffect, device, evidence).advise(advice))
    };
    disks_in_use(facts).filter_map(finding).collect()
}

fn weight_of_only_child(facts: &Facts) -> Vec<Finding> {
    let Some(cgroups) = &facts.cgroups else { return Vec::new() };
    let finding = |settings: &CgroupSettings| {
        let weight = settings.weight.or(settings.bfq_weight)?;
        let (parent, name) = settings.path.rsplit_once('/').filter(|(parent, _)| !parent.is_empty())?;
        // An ancestor with a weight competes for it.
        let is_weighted = cgroups.settings.iter().any(|other| {
            let has_weight = other.weight.or(other.bfq_weight).is_some();
            has_weight && (parent == other.path || parent.starts_with(&format!("{}/", other.path)))
        });
        // Tenants of Bulkhead's come and go.
        let is_tenant = parent.strip_prefix('/') == Some(slices::ROOT);
        let evidence = format!("its weight is {weight}, and {parent} has no other child");
        let advice = format!("set the weight of {parent}, which competes with others: {name} is alone in it");
        (settings.siblings == Some(0) && !is_weighted && !is_tenant).then(|| {
            Finding::new(FindingId::WeightOfOnlyChild, format!("cgroup {}", settings.path), evidence).advise(advice)
        })
    };
    cgroups.settings.iter().filter_map(finding).collect()
}

fn writeback_not_attributed(facts: &Facts) -> Vec<Finding> {
    let Some(cgroups) = &facts.cgroups else { return Vec::new() };
    let has = |controller: &str| cgroups.enabled.iter().any(|enabled| enabled == controller);
    if !has("io") || has("memory") {
        return Vec::new();
    }
    let evidence = format!("cgroup.subtree_control of the root has {}", cgroups.enabled.join(" "));
    let advice = "enable the memory controller (`cgroup_enable=memory` on the kernel's command line, where a distribution disables it)";
    vec![Finding::new(FindingId::WritebackNotAttributed, "host", evidence).advise(advice)]
}

/// File systems that keep the data of containers or databases, and whose writeback is charged to the root cgroup.
const WITHOUT_CGROUP_WRITEBACK: [&str; 5] = ["bcachefs", "jfs", "nilfs2", "reiserfs", "zfs"];

fn writeback_not_supported(facts: &Facts) -> Vec<Finding> {
    let has_settings = facts.cgroups.as_ref().is_some_and(|cgroups| !cgroups.settings.is_empty());
    let is_concerned = |mount: &&Mount| has_settings && WITHOUT_CGROUP_WRITEBACK.contains(&mount.fs_type.as_str());
    let finding = |mount: &Mount| {
        let evidence =
            format!("{} does not charge buffered writes to cgroups, and some have weights or limits", mount.fs_type);
        on_mount(FindingId::WritebackNotSupported, mount, evidence)
            .advise("use ext4, XFS or btrfs for data of containers with limits")
    };
    written(facts).filter(is_concerned).map(finding).collect()
}

fn cgroup_v1_io(facts: &Facts) -> Vec<Finding> {
    if !facts.cgroup_v1_io {
        return Vec::new();
    }
    let advice = "boot with `systemd.unified_cgroup_hierarchy=1`, the default of current distributions; Docker and Kubernetes support cgroup v2";
    vec![Finding::new(FindingId::CgroupV1Io, "host", "blkio is mounted as a controller of cgroup v1").advise(advice)]
}
