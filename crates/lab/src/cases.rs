//! The acceptance cases, one module per topic. To add a topic, add a `mod` line and its name in [`all`]. Does not: run
//! cases (`runner`).

mod arbiter;
mod bad_host;
mod blockd;
mod calibration;
mod crash;
mod crowd;
mod csi;
mod demo;
mod docker;
mod doctor;
mod flush;
mod hold;
mod host;
mod image;
mod kubernetes;
mod lab_self;
mod layers;
mod many;
mod merging;
mod monitoring;
mod nest;
mod observe;
mod observe_faults;
mod plain;
mod plan;
mod raw;
mod service;
mod sharing;
mod slow;
mod suites;
mod systemd;
mod systemd_kills;
mod tenants;
mod thin;
mod transfer;
mod trim;
mod tutorial;
mod volumes;
mod xfs;

use std::time::Duration;

pub use self::kubernetes::kubernetes_on;
use crate::case::Case;
use crate::disk::{DiskModel, DiskSpec};

/// Cases that are not run at every change, each with a shorter one on the same subject: measurements over minutes,
/// interruptions and loads at random moments instead of at each step, further combinations of pool and file system, and
/// properties that only experiments depend on.
const LONG: &[(&str, &str)] = &[
    ("arbiter_faults", "arbiter_on_an_arm"),
    ("crash_at_random", "crash_after_each_step"),
    ("csi_parallel", "csi_sanity"),
    ("csi_sanity_block", "csi_sanity"),
    ("csi_sanity_thick", "csi_sanity"),
    ("csi_selinux", "csi_sanity"),
    ("docker_events", "docker_volumes"),
    ("docker_parallel", "docker_volumes"),
    ("docker_runtime", "docker_in_slice"),
    ("doctor_power_cut", "doctor_faults"),
    ("fsync_p99_held", "shares_held_by_caps"),
    ("lab_self_sealed", "lab_self_virtual"),
    ("layers_hold", "volume_copies"),
    ("layers_power_cut", "volume_flushes"),
    ("layers_power_cut_loses", "volume_flushes"),
    ("nest_continued", "doctor_faults"),
    ("observation_under_stress", "journal_attribution"),
    ("peers_hold", "peers_share"),
    ("plain_processes", "systemd_slices"),
    ("plan_costs", "doctor_faults"),
    ("plan_profile", "doctor_faults"),
    ("plan_sweep", "doctor_faults"),
    ("podman_runtime", "docker_in_slice"),
    ("podman_volumes", "docker_volumes"),
    ("send_receive_others", "send_receive"),
    ("shares_held_with_journal", "shares_held_by_caps"),
    ("suites_on_volumes", "blockd_killed"),
    ("systemd_package", "systemd_slices"),
    ("systemd_reboot", "systemd_slices"),
    ("thin_clones_share", "peers_share"),
    ("volume_copies_others", "volume_copies"),
    ("volume_life_others", "volume_life"),
    ("volume_raw_others", "volume_raw"),
    ("which_container", "docker_in_slice"),
    ("xfs_attribution_internal", "xfs_attribution"),
];

/// The cases of `--quick`: those of [`all`] without the long ones.
#[must_use]
pub fn quick() -> Vec<&'static Case> {
    all().into_iter().filter(|case| !LONG.iter().any(|(name, _)| *name == case.name)).collect()
}

/// The cases of `--all`, in the order in which they are listed and run.
#[must_use]
pub fn all() -> Vec<&'static Case> {
    let topics = [
        lab_self::CASES,
        bad_host::CASES,
        volumes::CASES,
        raw::CASES,
        arbiter::CASES,
        blockd::CASES,
        layers::CASES,
        merging::CASES,
        flush::CASES,
        sharing::CASES,
        thin::CASES,
        trim::CASES,
        transfer::CASES,
        image::CASES,
        suites::CASES,
        service::CASES,
        systemd::CASES,
        plain::CASES,
        docker::CASES,
        doctor::CASES,
        nest::CASES,
        plan::CASES,
        csi::CASES,
        slow::CASES,
        tenants::CASES,
        observe::CASES,
        observe_faults::CASES,
        monitoring::CASES,
        xfs::CASES,
        hold::CASES,
        crash::CASES,
    ];
    topics.into_iter().flatten().collect()
}

/// Cases that take too long for every run, or whose spread is not known; they are run by name.
#[must_use]
pub fn soak() -> Vec<&'static Case> {
    [
        arbiter::SOAK,
        blockd::SOAK,
        crash::SOAK,
        sharing::SOAK,
        calibration::SOAK,
        demo::SOAK,
        systemd::SOAK,
        docker::SOAK,
        kubernetes::SOAK,
        csi::SOAK,
        many::SOAK,
        systemd_kills::SOAK,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Suites in rounds on volumes for this long (`cargo xtask lab soak`).
#[must_use]
pub fn soak_of_suites(duration: Duration) -> Case {
    suites::soak(duration)
}

/// One disk of each kind.
const HDD_SSD_FAULTY: &[DiskSpec] =
    &[DiskSpec::new(DiskModel::Hdd, 8192), DiskSpec::new(DiskModel::Ssd, 4096), DiskSpec::new(DiskModel::Faulty, 1024)];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn each_long_case_has_a_shorter_one() {
        let (all, quick) = (super::all(), super::quick());
        let has = |cases: &[&super::Case], name: &str| cases.iter().any(|case| case.name == name);
        for (long, shorter) in super::LONG {
            assert!(has(&all, long) && !has(&quick, long), "{long}");
            assert!(has(&quick, shorter), "{shorter}");
        }
        assert_eq!(quick.len() + super::LONG.len(), all.len());
    }

    #[test]
    fn names_are_unique_and_every_case_has_a_kernel() {
        let mut names = BTreeSet::new();
        for case in super::all().into_iter().chain(super::soak()) {
            assert!(names.insert(case.name), "{} twice", case.name);
            assert!(!case.kernels.is_empty(), "{}", case.name);
            assert!(case.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
        }
    }
}
