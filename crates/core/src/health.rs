//! Findings that follow from facts about pools, volumes, tenants, devices and holds.
//!
//! Owns: the thresholds, and the wording of evidence and advice. Does not: look up the facts; the engine does.

use std::fmt;
use std::path::PathBuf;

use uuid::Uuid;

use crate::base::is_base;
use crate::cgroup::CgroupPath;
use crate::cow::{LayersView, MANY_LAYERS, MAX_LAYERS};
use crate::devname::DevName;
use crate::error::Fault;
use crate::finding::{Finding, FindingId};
use crate::identity::{self, Identity};
use crate::journal::{self, Accounting};
use crate::model::{Pool, PoolSource, Provision, Tenant, Volume, VolumeRef};
use crate::name::Name;
use crate::reason::Reason;
use crate::slices;
use crate::units::Bytes;

/// Usage from which on the file system of a directory pool is nearly full, in percent.
const FILE_POOL_NEARLY_FULL_PCT: u64 = 90;

/// Usage from which on a thin pool is nearly full, in percent.
const THIN_POOL_NEARLY_FULL_PCT: f64 = 80.0;

/// The object of findings about the host as a whole.
pub const HOST: &str = "host";

/// Space in a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    /// Size of the pool's file system, volume group or thin pool.
    pub total: Bytes,
    /// Space available to a fully provisioned volume.
    pub free: Bytes,
    /// Allocation unit (the extent size of a volume group).
    pub extent: Bytes,
    /// Usage of a thin pool's data, in percent; `None` for other pools.
    pub data_pct: Option<f64>,
    /// Usage of a thin pool's metadata, in percent; `None` for other pools.
    pub metadata_pct: Option<f64>,
    /// LVM's report on an unhealthy thin pool (`lv_health_status`); empty for a healthy one, and for other pools.
    pub health: String,
    /// Whether a physical volume of the volume group is missing.
    pub is_partial: bool,
}

impl Space {
    /// Space of a pool without further details.
    #[must_use]
    pub fn new(total: Bytes, free: Bytes, extent: Bytes) -> Self {
        Self { total, free, extent, data_pct: None, metadata_pct: None, health: String::new(), is_partial: false }
    }
}

/// Findings about the space in a pool.
#[must_use]
pub fn pool_findings(pool: &Pool, space: &Space) -> Vec<Finding> {
    let finding = |id, evidence: String| Finding::new(id, format!("pool {}", pool.name), evidence);
    let mut findings = Vec::new();
    match &pool.source {
        PoolSource::File { .. } => {
            if space.free.0 < space.total.0 / 100 * (100 - FILE_POOL_NEARLY_FULL_PCT) {
                let evidence = format!("{} of {} are free", space.free, space.total);
                findings.push(finding(FindingId::PoolNearlyFull, evidence).advise(
                    "free up space: once it is full, writes to clones and to volumes provisioned on demand fail",
                ));
            }
        }
        PoolSource::Lvm { vg, thin_pool, .. } => {
            if space.is_partial {
                let evidence = format!("a physical volume of volume group {vg} is missing");
                findings.push(
                    finding(FindingId::PhysicalVolumeMissing, evidence).advise("`vgs -o+pv_name,pv_missing` names it"),
                );
            }
            let Some(thin) = thin_pool.as_ref().map(|lv| format!("{vg}/{lv}")) else { return findings };
            let is_much = |pct: &f64| *pct >= THIN_POOL_NEARLY_FULL_PCT;
            if let Some(pct) = space.data_pct.filter(is_much) {
                let evidence = format!("thin pool {thin} is {pct:.0} % full");
                let advice = format!("extend it before it runs full: `lvextend -L +SIZE {thin}`");
                findings.push(finding(FindingId::PoolNearlyFull, evidence).advise(advice));
            }
            if let Some(pct) = space.metadata_pct.filter(is_much) {
                let evidence = format!("the metadata of thin pool {thin} is {pct:.0} % full");
                let advice = format!("remove snapshots, or `lvextend --poolmetadatasize +1G {thin}`");
                findings.push(finding(FindingId::PoolMetadataNearlyFull, evidence).advise(advice));
            }
            if !space.health.is_empty() {
                findings.push(finding(
                    FindingId::PoolUnhealthy,
                    format!("LVM reports for thin pool {thin}: {}", space.health),
                ));
            }
        }
    }
    findings
}

/// A volume whose import or transfer is not complete.
#[derive(Clone, Copy, Debug)]
pub struct Unfinished<'a> {
    /// The future volume.
    pub volume: &'a VolumeRef,
    /// UUID of its content.
    pub content: Uuid,
    /// Offset up to which everything was received.
    pub received: Bytes,
    /// Its size.
    pub size: Bytes,
}

/// The finding about an incomplete volume.
#[must_use]
pub fn unfinished_finding(Unfinished { volume, content, received, size }: Unfinished<'_>) -> Finding {
    let object = format!("volume {volume}");
    if is_base(content) {
        return Finding::new(
            FindingId::ImportUnfinished,
            object,
            "it is being imported, or its import was interrupted",
        )
        .advise("if it was interrupted, the next import under that name discards it");
    }
    let evidence = format!("it has been received up to {received} of {size}");
    Finding::new(FindingId::ReceiveUnfinished, object, evidence)
        .reason(Reason::ReceiveUnfinished { volume: volume.clone() })
}

/// What provides a volume's block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A logical volume.
    LogicalVolume,
    /// A loop device on its image.
    Loop {
        /// Whether it bypasses the page cache.
        direct_io: bool,
        /// Why there is no block server, unless that is by choice.
        no_ublk: Option<String>,
    },
    /// A block server.
    Served {
        /// Whether its process is running.
        has_server: bool,
        /// The device with which it shared memory, if that is gone.
        lost_base: Option<PathBuf>,
        /// The part of the image that is not yet written in advance.
        unprepared: Bytes,
    },
}

/// Facts about a volume; `None` for those that were not looked up.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeFacts<'a> {
    /// Its device, while it has one.
    pub backing: Option<&'a Backing>,
    /// Its backing chain, if it was copied or is a copy.
    pub layers: Option<&'a LayersView>,
    /// Whether an operator has mapped its device.
    pub is_mapped: bool,
    /// Size of its journal.
    pub journal: Option<Bytes>,
    /// How its journal is charged.
    pub accounting: Option<&'a Accounting>,
}

/// Findings about a volume.
#[must_use]
pub fn volume_findings(volume: &Volume, facts: &VolumeFacts<'_>) -> Vec<Finding> {
    let reference = volume.reference();
    let finding = |id, evidence: String| Finding::new(id, format!("volume {reference}"), evidence);
    let mut findings = Vec::new();
    let n_layers = facts.layers.map_or(0, |layers| layers.below.len());
    if n_layers >= MANY_LAYERS {
        let evidence =
            format!("it depends on {n_layers} of at most {MAX_LAYERS} layers, and its snapshots add to them");
        findings
            .push(finding(FindingId::LayersMany, evidence).reason(Reason::LayersMany { volume: reference.clone() }));
    }
    findings.extend(facts.is_mapped.then(|| mapping_finding(&reference)));
    findings.extend(facts.backing.into_iter().flat_map(|backing| backing_findings(&reference, backing)));
    if n_layers > 0 {
        if volume.flatten {
            let evidence = if facts.backing.is_some() {
                "the blocks it shares are being copied into its own image"
            } else {
                "the blocks it shares will be copied into its own image while it is in use; it is not in use now"
            };
            findings.push(finding(FindingId::Flattening, evidence.to_owned()));
        }
        if volume.provision == Provision::Full {
            let evidence = "it was copied: since then, the first write to each block allocates new space in the pool, and may find none; the \
                            fsync that follows commits the host file system's journal";
            findings.push(finding(FindingId::FullProvisionLost, evidence.to_owned()));
        }
    }
    if let Some(Accounting::None { reason }) = facts.accounting {
        findings.push(finding(FindingId::JournalNotCharged, reason.clone()));
    }
    findings.extend(facts.journal.and_then(|size| journal::small(volume, size)));
    findings
}

/// How many containers a finding names.
const MAX_NAMED: usize = 3;

/// The finding about containers that use a volume outside of its tenant's slice, by the cgroups of all of its users; `None` if there are none.
#[must_use]
pub fn outside_finding(volume: &VolumeRef, tenant: &Name, users: &[CgroupPath]) -> Option<Finding> {
    let slice = slices::tenant(tenant);
    let outside: Vec<&CgroupPath> = users.iter().filter(|cgroup| !cgroup.starts_with(&slice)).collect();
    let named = outside.iter().take(MAX_NAMED).map(|cgroup| {
        let Identity { kind, name, .. } = identity::identify(cgroup.relative());
        format!("{} {name} in /{}", kind.word(), identity::printable(cgroup.relative()))
    });
    let named = named.collect::<Vec<_>>().join(", ");
    let more = outside.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let evidence =
        format!("used outside of the slice of tenant {tenant}, which does not pay for that I/O: {named}{more}");
    let reason = Reason::OutsideSlice { slice: slices::unit(tenant) };
    (!outside.is_empty())
        .then(|| Finding::new(FindingId::OutsideSlice, format!("volume {volume}"), evidence).reason(reason))
}

/// The finding about a mapped volume.
#[must_use]
pub fn mapping_finding(volume: &VolumeRef) -> Finding {
    let evidence = "it is mapped: an operator is working on its device, and it cannot be attached to a tenant";
    Finding::new(FindingId::VolumeMapped, format!("volume {volume}"), evidence)
        .reason(Reason::VolumeMapped { volume: volume.clone() })
}

fn backing_findings(volume: &VolumeRef, backing: &Backing) -> Vec<Finding> {
    let finding = |id, evidence: String| Finding::new(id, format!("volume {volume}"), evidence);
    let mut findings = Vec::new();
    match backing {
        Backing::LogicalVolume => {}
        Backing::Loop { direct_io, no_ublk } => {
            let mut evidence =
                "loop device: every flush is an fsync of the image, which commits the host file system's journal too \
                                (shared by all volumes of this pool)"
                    .to_owned();
            evidence.extend(no_ublk.iter().map(|why| format!("; {why}")));
            findings.push(finding(FindingId::ServedByLoop, evidence));
            if !direct_io {
                let evidence = "direct I/O is off: the image is cached twice".to_owned();
                findings.push(finding(FindingId::ImageCachedTwice, evidence));
            }
        }
        Backing::Served { has_server, lost_base, unprepared } => {
            if !has_server {
                findings.push(server_gone(
                    format!("volume {volume}"),
                    "its block server is gone: I/O waits until the daemon has started another",
                ));
            }
            if let Some(base) = lost_base {
                let evidence =
                    format!("it shared memory with {}, which is gone: it no longer shares memory", base.display());
                findings.push(finding(FindingId::MemoryNotShared, evidence));
            }
            if *unprepared > Bytes(0) {
                let evidence = format!(
                    "{unprepared} of its image are still being written in advance: until then, the first write to each part commits the \
                     host file system's journal"
                );
                findings.push(finding(FindingId::ImageUnprepared, evidence));
            }
        }
    }
    findings
}

/// The finding about a volume whose block server is gone.
#[must_use]
pub fn server_gone(object: impl fmt::Display, evidence: impl fmt::Display) -> Finding {
    Finding::new(FindingId::ServerGone, object, evidence)
        .advise("the daemon keeps trying; its log and that of the block server say why it fails")
}

/// Facts about a tenant beside its record.
#[derive(Clone, Copy, Debug)]
pub struct TenantFacts<'a> {
    /// Whether the kernel has a file for weights.
    pub has_weight_files: bool,
    /// Whether the host has the cpu controller on cgroup v2.
    pub has_cpu: bool,
    /// Why the kernel refused that controller to the tenant.
    pub cpu_refused: Option<&'a Fault>,
    /// Why the promised latency of its fsyncs is not enforced.
    pub unkept_promise: Option<&'a Fault>,
}

/// Findings about a tenant; a condition that all tenants share has the host as its object.
#[must_use]
pub fn tenant_findings(tenant: &Tenant, facts: &TenantFacts<'_>) -> Vec<Finding> {
    let object = format!("tenant {}", tenant.name);
    let mut findings = Vec::new();
    if tenant.removing {
        let evidence = "its removal was interrupted and is completed when its processes have ended";
        findings.push(Finding::new(FindingId::TenantRemovalPending, &object, evidence));
    }
    if !facts.has_weight_files {
        let evidence = "the kernel has no io.weight file: shares have no effect";
        findings.push(Finding::new(FindingId::ShareWithoutEffect, HOST, evidence));
    }
    if !facts.has_cpu {
        findings.push(no_cpu_controller());
    } else if let Some(fault) = facts.cpu_refused {
        let evidence = format!("its journal threads and block servers are scheduled like its processes: {fault}");
        let finding = Finding::new(FindingId::CpuControllerRefused, object, evidence);
        findings.push(Finding { advice: (!fault.hint.is_empty()).then(|| fault.hint.clone()), ..finding });
    }
    if let Some(fault) = facts.unkept_promise {
        findings.push(Finding {
            object: format!("tenant {}", tenant.name),
            evidence: fault.to_string(),
            ..Finding::from_fault(FindingId::PromiseNotEnforced, fault.clone())
        });
    }
    findings
}

/// The finding about a physical device on which weights have no effect.
#[must_use]
pub fn no_controller(device: &DevName, evidence: impl fmt::Display) -> Finding {
    Finding::new(FindingId::NoController, format!("device {device}"), evidence)
        .reason(Reason::NoController { device: device.to_string() })
}

/// The state of a hold whose last step failed.
pub const HOLD_FAILED: &str = "failed";
/// The state of a hold under which fsyncs take longer than promised, and no further step helps.
pub const PROMISE_MISSED: &str = "latency_missed";

/// The finding about a hold, by its device, state and reason, if its last step failed or it misses a promise.
#[must_use]
pub fn hold_finding(device: &DevName, state: &str, reason: &str) -> Option<Finding> {
    match state {
        HOLD_FAILED => Some(hold_failed(device, reason)),
        PROMISE_MISSED => Some(Finding::new(FindingId::PromiseMissed, format!("device {device}"), reason)),
        _ => None,
    }
}

/// The finding about a device on which shares are not enforced.
#[must_use]
pub fn hold_failed(device: &DevName, evidence: impl fmt::Display) -> Finding {
    Finding::new(FindingId::HoldFailed, format!("device {device}"), evidence)
}

/// The finding about a host without the cpu controller on cgroup v2.
#[must_use]
pub fn no_cpu_controller() -> Finding {
    let evidence =
        "no cpu controller on cgroup v2: journal threads and block servers are scheduled like processes of tenants";
    Finding::new(FindingId::CpuControllerMissing, HOST, evidence).advise(
        "boot without `cgroup_disable=cpu`, and unmount a cgroup v1 hierarchy that has taken it (`findmnt -t cgroup`)",
    )
}

#[cfg(test)]
mod tests;
