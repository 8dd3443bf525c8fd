//! The table of all experiments: method, disks of the target, judge, and text for reports.
//!
//! Owns: the list, and looking up an entry by name. Does not: measure (`experiment`), judge (`judge`), or write reports (`report`).

use anyhow::{Context, Result};
use bulkhead_measure::cleanup::lock;
use bulkhead_measure::experiment::{Method, OnProgress, Options, dbms_consolidation, fsync_probe};
use bulkhead_measure::nest;
use bulkhead_measure::report::about::{About, DBMS_CONSOLIDATION, FSYNC_PROBE};
use bulkhead_measure::result::Experiment;
use bulkhead_sys::roots::Roots;

pub use crate::experiment::attribution::OVERHEAD;
use crate::experiment::{
    attribution, churn, clone_read, disk_models, journal_cost, journal_fsync, kubernetes, launch_storm, mixing,
    plan_scale, scaling, share_correction, volume_overhead,
};
use crate::judge::{Case, charges, clones, isolation, nested, planning, volumes};
use crate::report::about;
use crate::served;

/// One experiment.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its method.
    pub method: Method,
    /// The lab's disk models in its target; none if it runs on this machine, without a disk.
    pub disks: &'static [&'static str],
    /// Its judge.
    pub(crate) judge: fn(&mut Case<'_>, &[&Experiment]),
    /// Text about it for reports.
    pub about: About,
}

/// The experiment that needs a Kubernetes, which the lab starts before.
pub const IN_KUBERNETES: &str = kubernetes::METHOD.name;

impl Entry {
    /// Removes leftovers of third-party programs of a killed run, and runs it; see [`Method::run`].
    ///
    /// # Errors
    /// As [`Method::run`].
    pub fn run(&self, options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
        let locked = lock()?;
        served::remove_leftovers(&Roots::host())?;
        drop(locked);
        self.method.run(options, progress)
    }
}

/// All experiments, in the order of docs/EVIDENCE.md.
pub const ALL: &[Entry] = &[
    Entry {
        method: fsync_probe::METHOD,
        // The cost of a flush is decisive here.
        disks: &["hdd", "hdd-nocache", "ssd", "nvme-slow"],
        judge: isolation::fsync_probe,
        about: FSYNC_PROBE,
    },
    Entry {
        method: dbms_consolidation::METHOD,
        // Not on nvme: 10^9 instructions a second would be the bottleneck, not the disk. The same applies to the next one.
        disks: &["hdd", "ssd", "nvme-slow"],
        judge: isolation::dbms,
        about: DBMS_CONSOLIDATION,
    },
    Entry {
        method: journal_fsync::METHOD,
        disks: &["hdd", "ssd", "nvme-slow"],
        judge: isolation::journal_fsync,
        about: about::JOURNAL_FSYNC,
    },
    Entry {
        method: volume_overhead::METHOD,
        disks: &["hdd", "ssd", "nvme"],
        judge: volumes::volume_overhead,
        about: about::VOLUME_OVERHEAD,
    },
    Entry {
        method: journal_cost::METHOD,
        // In memory, as the next two.
        disks: &["fast"],
        judge: charges::journal_cost,
        about: about::JOURNAL_COST,
    },
    Entry { method: attribution::METHOD, disks: &["fast"], judge: charges::attribution, about: about::ATTRIBUTION },
    Entry { method: churn::METHOD, disks: &["fast"], judge: charges::churn, about: about::CHURN },
    Entry {
        method: share_correction::METHOD,
        // It computes as much as it reads: on a faster disk, 10^9 instructions a second would be the bottleneck.
        disks: &["hdd-slow", "ssd-slow"],
        judge: isolation::share_correction,
        about: about::SHARE_CORRECTION,
    },
    Entry {
        method: clone_read::METHOD,
        // For the same reason.
        disks: &["hdd-slow", "ssd"],
        judge: clones::clone_read,
        about: about::CLONE_READ,
    },
    Entry {
        method: launch_storm::METHOD,
        disks: &["hdd-slow"],
        judge: clones::launch_storm,
        about: about::LAUNCH_STORM,
    },
    Entry { method: nest::METHOD, disks: &["hdd", "nvme"], judge: nested::matrix, about: about::NESTED_MATRIX },
    Entry { method: scaling::METHOD, disks: &["hdd", "ssd", "nvme"], judge: planning::scaling, about: about::SCALING },
    Entry { method: mixing::METHOD, disks: &["hdd", "ssd", "nvme"], judge: planning::mixing, about: about::MIXING },
    // On this machine: it computes only.
    Entry { method: plan_scale::METHOD, disks: &[], judge: planning::plan_scale, about: about::PLAN_SCALE },
    Entry { method: kubernetes::METHOD, disks: &["hdd"], judge: isolation::kubernetes, about: about::KUBERNETES },
    Entry {
        method: disk_models::METHOD,
        disks: &disk_models::DISKS,
        judge: volumes::disk_models,
        about: about::DISK_MODELS,
    },
];

/// The experiment with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.method.name == name)
}

/// The experiment with this name.
///
/// # Errors
/// The known names.
pub fn named(name: &str) -> Result<&'static Entry> {
    find(name).with_context(|| {
        let known: Vec<&str> = ALL.iter().map(|entry| entry.method.name).collect();
        format!("there is no experiment {name}: choose from {}", known.join(", "))
    })
}

/// Text about the experiment with this name; empty if it is unknown.
pub(crate) fn about(name: &str) -> About {
    find(name).map(|entry| entry.about).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use bulkhead_measure::layout::Target;

    fn options() -> Options {
        Options::new(Target::Directory("/nonexistent".into()))
    }

    #[test]
    fn unknown_choices_are_refused_by_name() {
        let of = |neighbour: &str, config: &str| {
            let words = |word: &str| if word.is_empty() { vec![] } else { vec![word.to_owned()] };
            Options { neighbours: words(neighbour), configs: words(config), ..options() }
        };
        let check = |name: &str, neighbour: &str, config: &str| {
            named(name).unwrap().method.check_choice(&of(neighbour, config))
        };
        assert!(check("fsync-probe", "streams", "shared/none").is_ok());
        assert!(check("clone-read", "", "").is_ok());
        assert!(check("disk-models", "depth-32", "random-read").is_ok());
        assert!(OVERHEAD.iter().all(|group| check("attribution", group, "").is_ok()));
        let refused = |name, neighbour, config| check(name, neighbour, config).unwrap_err().to_string();
        assert!(refused("fsync-probe", "nobody", "").contains("no neighbour \"nobody\""));
        assert!(refused("dbms-consolidation", "", "own").contains("own+accounting/iocost"));
        // Experiments that always run as a whole refuse any choice.
        for name in ["clone-read", "launch-storm", "volume-overhead", "journal-cost", "churn"] {
            assert!(refused(name, "anything", "").contains("no neighbour \"anything\", nor another"), "{name}");
            assert!(refused(name, "", "drr").contains("no configuration \"drr\", nor another"), "{name}");
        }
        assert!(refused("disk-models", "depth-3", "").contains("choose from depth-1, "));
        assert!(refused("attribution", "", "shared/none").contains("no configuration"));
        // Both exist, but not in combination.
        assert!(refused("dbms-consolidation", "none", "own+accounting+hold/iocost").contains("no cell"));
    }

    #[test]
    fn short_forms_stay_within_ten_minutes() {
        let quick = Options { quick: true, ..options() };
        for Entry { method, .. } in ALL {
            let (name, expected) = (method.name, method.expected_duration(&quick));
            assert!(expected <= Duration::from_secs(600), "{name}: {expected:?}");
            let full = method.expected_duration(&options());
            // An hour, to the minute; the limits of fsync-probe are enforced for 75 s before they are measured, and on a disk with an arm there
            // are six and eight more cells.
            let most = match name {
                "dbms-consolidation" => 3660 + 8 * 3 * 46,
                "fsync-probe" => 3660 + 9 * 75 + 6 * 3 * 36,
                // Run in parts, a few hosts at a time.
                "nested-matrix" => 24 * 3600,
                _ => 3660,
            };
            assert!(full < Duration::from_secs(most), "{name}: {full:?}");
        }
        assert!(find("nothing").is_none());
    }

    #[test]
    fn an_unknown_experiment_names_the_known_ones() {
        let error = named("nothing").unwrap_err().to_string();
        assert!(error.contains("fsync-probe"), "{error}");
    }
}
