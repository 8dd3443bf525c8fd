//! The acceptance cases, a module per topic. A new topic: a `mod` line and its name in [`all`].

mod bad_host;
mod blockd;
mod calibration;
mod crash;
mod demo;
mod docker;
mod flush;
mod hold;
mod host;
mod image;
mod lab_self;
mod layers;
mod many;
mod merging;
mod monitoring;
mod observe;
mod observe_faults;
mod service;
mod sharing;
mod slow;
mod suites;
mod systemd;
mod systemd_kills;
mod tenants;
mod thin;
mod transfer;
mod volumes;
mod xfs;

use std::time::Duration;

use crate::case::Case;
use crate::disk::{DiskModel, DiskSpec};

/// The cases of `--all`, in the order in which they are listed and run.
#[must_use]
pub fn all() -> Vec<&'static Case> {
    let topics = [
        lab_self::CASES,
        // The io controller can only be taken away before much has been charged to cgroups: cached inodes keep theirs for minutes.
        bad_host::CASES,
        volumes::CASES,
        blockd::CASES,
        layers::CASES,
        merging::CASES,
        flush::CASES,
        sharing::CASES,
        thin::CASES,
        transfer::CASES,
        image::CASES,
        suites::CASES,
        service::CASES,
        systemd::CASES,
        docker::CASES,
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
        blockd::SOAK,
        crash::SOAK,
        sharing::SOAK,
        calibration::SOAK,
        demo::SOAK,
        systemd::SOAK,
        docker::SOAK,
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

/// Disks for cases that want one of each kind.
const HDD_SSD_FAULTY: &[DiskSpec] =
    &[DiskSpec::new(DiskModel::Hdd, 8192), DiskSpec::new(DiskModel::Ssd, 4096), DiskSpec::new(DiskModel::Faulty, 1024)];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
