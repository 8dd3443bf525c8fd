//! Rules about cgroups.

use bulkhead_core::facts::{CgroupSettings, Device, Facts};
use bulkhead_core::finding::{Finding, FindingId};

use super::devices::disks_in_use;

/// Most cgroups that a finding names.
const MAX_NAMED: usize = 3;

/// The names of cgroups, the first few of them.
fn named(settings: &[&CgroupSettings]) -> String {
    let mut text =
        settings.iter().take(MAX_NAMED).map(|settings| settings.path.as_str()).collect::<Vec<_>>().join(", ");
    if settings.len() > MAX_NAMED {
        text += &format!(" and {} more", settings.len() - MAX_NAMED);
    }
    text
}

pub(super) fn weight_without_effect(facts: &Facts) -> Vec<Finding> {
    let Some(cgroups) = &facts.cgroups else { return Vec::new() };
    let finding = |device: &Device| {
        let is_bfq = device.scheduler.as_deref() == Some("bfq");
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
        let evidence =
            format!("its scheduler is {scheduler}, io.cost is {io_cost}, and weights are set for {}", named(&idle));
        let advice = format!(
            "`bulkhead device control {0} --policy iocost` after `bulkhead device calibrate {0}` (or `--policy bfq`); without Bulkhead: write \
             `bfq` to /sys/block/{0}/queue/scheduler",
            device.name
        );
        Some(Finding::new(FindingId::WeightWithoutEffect, format!("device {}", device.name), evidence).advise(advice))
    };
    disks_in_use(facts).filter_map(finding).collect()
}

pub(super) fn writeback_not_attributed(facts: &Facts) -> Vec<Finding> {
    let Some(cgroups) = &facts.cgroups else { return Vec::new() };
    let has = |controller: &str| cgroups.enabled.iter().any(|enabled| enabled == controller);
    if !has("io") || has("memory") {
        return Vec::new();
    }
    let evidence = format!("cgroup.subtree_control of the root has {}", cgroups.enabled.join(" "));
    let advice = "enable the memory controller (`cgroup_enable=memory` on the kernel's command line, where a distribution disables it)";
    vec![Finding::new(FindingId::WritebackNotAttributed, "host", evidence).advise(advice)]
}
