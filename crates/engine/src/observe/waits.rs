//! The longest waits as the API shows them: cgroups by the names of their containers, times in seconds.

use bulkhead_api::wire::{CausesView, CommitView, CulpritView, WaitList, WaitView};
use bulkhead_core::identity::Identity;
use bulkhead_core::observe::blame::Cause;
use bulkhead_core::observe::naming::Names;
use bulkhead_core::observe::record::Commit;
use bulkhead_core::observe::waits::{Longest, Part, Wait};
use bulkhead_core::units::seconds;

/// Adds names to waits. `now_ns` is the time of the request (monotonic).
pub(super) fn wait_list(longest: &Longest<'_>, now_ns: u64, names: &Names) -> WaitList {
    WaitList {
        waits: longest.waits.iter().map(|wait| wait_view(wait, now_ns, names)).collect(),
        left_out: longest.n_omitted,
        left_out_seconds: seconds(longest.longest_omitted_ns),
    }
}

fn wait_view(wait: &Wait, now_ns: u64, names: &Names) -> WaitView {
    let facts = names.file_system(wait.sync.dev);
    // A container may have several cgroups.
    let mut culprits: Vec<(Option<Identity>, Part)> = Vec::new();
    for culprit in &wait.culprits {
        let identity = culprit.cgroup.map(|cgroup| names.cgroup(cgroup));
        match culprits.iter_mut().find(|(other, _)| *other == identity) {
            Some((_, part)) => part.add(&culprit.part),
            None => culprits.push((identity, culprit.part)),
        }
    }
    culprits.sort_by_key(|(_, part)| std::cmp::Reverse(part.total_ns()));
    let culprits = culprits.into_iter().map(|(culprit, part)| CulpritView { culprit, causes: causes(&part) });
    WaitView {
        victim: names.cgroup(wait.sync.cgroup),
        device: facts.device,
        mount_point: facts.mount_point,
        began_seconds_ago: seconds(now_ns.saturating_sub(wait.sync.start_ns)),
        seconds: seconds(wait.duration_ns()),
        device_seconds: seconds(wait.device_ns),
        commit_seconds: seconds(wait.commit_ns),
        tid: wait.sync.tid,
        commits: wait.commits.iter().map(|commit| commit_view(commit, names)).collect(),
        n_commits: wait.n_commits,
        culprits: culprits.collect(),
        n_others: wait.n_others,
        others: causes(&wait.others),
    }
}

fn commit_view(commit: &Commit, names: &Names) -> CommitView {
    let phase = |from_ns: u64, to_ns: u64| (from_ns > 0 && to_ns > 0).then(|| seconds(to_ns.saturating_sub(from_ns)));
    CommitView {
        tid: commit.tid,
        requester: commit.requester.map(|requester| names.cgroup(requester)),
        locked_seconds: phase(commit.start_ns, commit.flush_ns),
        flushing_seconds: phase(commit.flush_ns, commit.log_ns),
        logging_seconds: phase(commit.log_ns, commit.end_ns),
        seconds: seconds(commit.end_ns.saturating_sub(commit.start_ns)),
        journal_bytes: commit.journal_bytes,
        ordered_bytes: commit.ordered_bytes,
    }
}

fn causes(part: &Part) -> CausesView {
    let of = |cause: Cause| seconds(part.ns[cause as usize]);
    CausesView {
        seconds: seconds(part.total_ns()),
        journal_seconds: of(Cause::Journal),
        ordered_seconds: of(Cause::Ordered),
        queue_seconds: of(Cause::Queue),
        flush_seconds: of(Cause::Flush),
        journal_bytes: part.journal_bytes,
        ordered_bytes: part.ordered_bytes,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use bulkhead_core::identity::identify;
    use bulkhead_core::observe::naming::FileSystemFacts;
    use bulkhead_core::observe::record::{CgroupId, Sync};
    use bulkhead_core::observe::waits::Culprit;
    use bulkhead_core::units::DevNo;

    use super::*;

    const FS: DevNo = DevNo::new(254, 1);

    fn names() -> Names {
        let cgroup = |id, path| (CgroupId(id), identify(path));
        let facts =
            FileSystemFacts { device: "dm-1".into(), mount_point: Some("/srv".into()), disks: vec!["sda".into()] };
        Names {
            cgroups: HashMap::from([
                cgroup(2, "/bulkhead.slice/bulkhead-db.slice/bulkhead-db-payload.slice"),
                cgroup(3, "/bulkhead.slice/bulkhead-db.slice/bulkhead-db-journal.slice"),
                cgroup(4, "/system.slice/noise.service"),
            ]),
            file_systems: HashMap::from([(FS, facts)]),
            ..Names::default()
        }
    }

    #[test]
    fn a_wait_lists_its_commits_and_causes_by_container() {
        let commit = Commit {
            dev: FS,
            tid: 4711,
            begin_ns: 0,
            start_ns: 1_000_000_000,
            flush_ns: 0,
            log_ns: 1_500_000_000,
            end_ns: 2_000_000_000,
            journal_bytes: 8192,
            ordered_bytes: 512,
            requester: Some(CgroupId(2)),
            writer: None,
            block_bytes: 4096,
        };
        let culprit = |id, journal_ns, queue_ns, journal_bytes| Culprit {
            cgroup: id,
            part: Part { ns: [journal_ns, 0, queue_ns, 0, 0], journal_bytes, ordered_bytes: 0 },
        };
        let noise = culprit(Some(CgroupId(4)), 0, 500_000_000, 0);
        let halves =
            [culprit(Some(CgroupId(2)), 300_000_000, 0, 4096), culprit(Some(CgroupId(3)), 0, 250_000_000, 100)];
        let wait = Wait {
            sync: Sync { dev: FS, tid: 4711, start_ns: 900_000_000, end_ns: 2_000_000_000, cgroup: CgroupId(2) },
            device_ns: 750_000_000,
            commit_ns: 300_000_000,
            commits: vec![commit],
            n_commits: 3,
            culprits: vec![noise, halves[0], halves[1], culprit(None, 0, 50_000_000, 0)],
            others: Part::default(),
            n_others: 0,
        };
        let longest = Longest { waits: vec![&wait], n_omitted: 9, longest_omitted_ns: 1_000_000 };
        let list = wait_list(&longest, 3_000_000_000, &names());
        assert_eq!((list.left_out, list.left_out_seconds), (9, 0.001));
        let view = &list.waits[0];
        assert_eq!((view.victim.name.as_str(), view.mount_point.as_deref()), ("db", Some("/srv")));
        assert_eq!((view.began_seconds_ago, view.seconds, view.n_commits), (2.1, 1.1, 3));
        // The phase whose end was not seen is unknown, and so is the next.
        let commit = &view.commits[0];
        assert_eq!((commit.locked_seconds, commit.flushing_seconds, commit.logging_seconds), (None, None, Some(0.5)));
        assert_eq!(commit.requester.as_ref().map(|requester| requester.name.as_str()), Some("db"));
        let shown: Vec<_> = view
            .culprits
            .iter()
            .map(|view| (view.culprit.as_ref().map(|id| id.name.as_str()), view.causes.seconds))
            .collect();
        assert_eq!(shown, [(Some("db"), 0.55), (Some("noise.service"), 0.5), (None, 0.05)]);
        let db = &view.culprits[0].causes;
        assert_eq!((db.journal_seconds, db.queue_seconds, db.journal_bytes), (0.3, 0.25, 4196));
    }
}
