//! Metrics as Prometheus reads them.

mod monitoring;

use bulkhead_core::error::Code;
use bulkhead_core::finding::FindingId;
use bulkhead_core::identity::ContainerKind;
use bulkhead_core::observe::activity::REMOVED;
use expect_test::expect;

use super::*;
use crate::observe::Observe as _;

fn rendered_as(observed: Result<Observation, Fault>, format: Format) -> String {
    render(
        Scrape {
            observed,
            holds: Vec::new(),
            shared_reads: Vec::new(),
            pools: Vec::new(),
            trimmed: BTreeMap::new(),
            problems: BTreeMap::new(),
            findings: Vec::new(),
        },
        format,
    )
}

/// In the newer format, without the version of the day.
fn rendered(seen: Result<Observation, Fault>) -> String {
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    rendered_as(seen, Format::OpenMetrics).replace(&version, "version=\"x.y.z\"")
}

#[test]
fn each_figure_has_its_name_and_labels() {
    let text = rendered(crate::sim::Observed::default().observe(std::time::Duration::ZERO));
    expect![[r##"
        # HELP bulkhead_build_info The daemon's version; always 1
        # TYPE bulkhead_build_info gauge
        bulkhead_build_info{version="x.y.z"} 1
        # HELP bulkhead_observing Whether the journals of this host are observed, by which method, and why not at all or not by a better method
        # TYPE bulkhead_observing gauge
        bulkhead_observing{method="tp_btf",reason=""} 1
        # HELP bulkhead_volume_info Observed file systems; always 1
        # TYPE bulkhead_volume_info gauge
        bulkhead_volume_info{volume="vda1",mount_point="/",disks="vda"} 1
        # HELP bulkhead_journal_commits Commits of a journal, or checkpoints of an XFS log
        # TYPE bulkhead_journal_commits counter
        bulkhead_journal_commits_total{volume="vda1"} 11
        # HELP bulkhead_journal_bytes Journal bytes caused by a tenant, whoever wrote them; without a tenant, those that cannot be attributed
        # TYPE bulkhead_journal_bytes counter
        # UNIT bulkhead_journal_bytes bytes
        bulkhead_journal_bytes_total{tenant="db",tenant_kind="tenant",volume="vda1",kind="commit"} 40960
        bulkhead_journal_bytes_total{tenant="noise\\u{1b}[2J.service",tenant_kind="unit",volume="vda1",kind="commit"} 2097152
        bulkhead_journal_bytes_total{tenant="noise\\u{1b}[2J.service",tenant_kind="unit",volume="vda1",kind="ordered"} 1048576
        bulkhead_journal_bytes_total{tenant="",tenant_kind="",volume="vda1",kind="commit"} 4096
        # HELP bulkhead_fsync_duration_seconds Latency of a tenant's fsync, fdatasync and O_SYNC writes
        # TYPE bulkhead_fsync_duration_seconds histogram
        # UNIT bulkhead_fsync_duration_seconds seconds
        bulkhead_fsync_duration_seconds_sum{tenant="db",tenant_kind="tenant"} 1.2
        bulkhead_fsync_duration_seconds_count{tenant="db",tenant_kind="tenant"} 11
        bulkhead_fsync_duration_seconds_bucket{le="0.000064",tenant="db",tenant_kind="tenant"} 0
        bulkhead_fsync_duration_seconds_bucket{le="0.000128",tenant="db",tenant_kind="tenant"} 0
        bulkhead_fsync_duration_seconds_bucket{le="0.000256",tenant="db",tenant_kind="tenant"} 0
        bulkhead_fsync_duration_seconds_bucket{le="0.000512",tenant="db",tenant_kind="tenant"} 0
        bulkhead_fsync_duration_seconds_bucket{le="0.001024",tenant="db",tenant_kind="tenant"} 0
        bulkhead_fsync_duration_seconds_bucket{le="0.002048",tenant="db",tenant_kind="tenant"} 0
        bulkhead_fsync_duration_seconds_bucket{le="0.004096",tenant="db",tenant_kind="tenant"} 0
        bulkhead_fsync_duration_seconds_bucket{le="0.008192",tenant="db",tenant_kind="tenant"} 0
        bulkhead_fsync_duration_seconds_bucket{le="0.016384",tenant="db",tenant_kind="tenant"} 0
        bulkhead_fsync_duration_seconds_bucket{le="0.032768",tenant="db",tenant_kind="tenant"} 10
        bulkhead_fsync_duration_seconds_bucket{le="0.065536",tenant="db",tenant_kind="tenant"} 10
        bulkhead_fsync_duration_seconds_bucket{le="0.131072",tenant="db",tenant_kind="tenant"} 10
        bulkhead_fsync_duration_seconds_bucket{le="0.262144",tenant="db",tenant_kind="tenant"} 10
        bulkhead_fsync_duration_seconds_bucket{le="0.524288",tenant="db",tenant_kind="tenant"} 10
        bulkhead_fsync_duration_seconds_bucket{le="1.048576",tenant="db",tenant_kind="tenant"} 11
        bulkhead_fsync_duration_seconds_bucket{le="2.097152",tenant="db",tenant_kind="tenant"} 11
        bulkhead_fsync_duration_seconds_bucket{le="4.194304",tenant="db",tenant_kind="tenant"} 11
        bulkhead_fsync_duration_seconds_bucket{le="8.388608",tenant="db",tenant_kind="tenant"} 11
        bulkhead_fsync_duration_seconds_bucket{le="16.777216",tenant="db",tenant_kind="tenant"} 11
        bulkhead_fsync_duration_seconds_bucket{le="33.554432",tenant="db",tenant_kind="tenant"} 11
        bulkhead_fsync_duration_seconds_bucket{le="+Inf",tenant="db",tenant_kind="tenant"} 11
        # HELP bulkhead_fsync_blame_seconds Time a tenant waited in fsync because of another tenant or itself; without a culprit, the unattributed rest
        # TYPE bulkhead_fsync_blame_seconds counter
        # UNIT bulkhead_fsync_blame_seconds seconds
        bulkhead_fsync_blame_seconds_total{victim="db",victim_kind="tenant",culprit="db",culprit_kind="tenant"} 0.02
        bulkhead_fsync_blame_seconds_total{victim="db",victim_kind="tenant",culprit="noise\\u{1b}[2J.service",culprit_kind="unit"} 0.27
        bulkhead_fsync_blame_seconds_total{victim="db",victim_kind="tenant",culprit="",culprit_kind=""} 0.01
        # HELP bulkhead_fsync_blame_pairs_left_out Pairs of victim and culprit that are omitted because there are too many: those with the least time
        # TYPE bulkhead_fsync_blame_pairs_left_out gauge
        bulkhead_fsync_blame_pairs_left_out 0
        # HELP bulkhead_device_io_bytes Bytes read from and written to devices for a tenant, as charged by the kernel
        # TYPE bulkhead_device_io_bytes counter
        # UNIT bulkhead_device_io_bytes bytes
        bulkhead_device_io_bytes_total{tenant="db",tenant_kind="tenant",direction="read"} 0
        bulkhead_device_io_bytes_total{tenant="db",tenant_kind="tenant",direction="write"} 163840
        bulkhead_device_io_bytes_total{tenant="noise\\u{1b}[2J.service",tenant_kind="unit",direction="read"} 0
        bulkhead_device_io_bytes_total{tenant="noise\\u{1b}[2J.service",tenant_kind="unit",direction="write"} 94371840
        # HELP bulkhead_device_time_seconds Device time taken by a tenant's requests
        # TYPE bulkhead_device_time_seconds counter
        # UNIT bulkhead_device_time_seconds seconds
        bulkhead_device_time_seconds_total{tenant="db",tenant_kind="tenant",device="vda"} 0.05
        bulkhead_device_time_seconds_total{tenant="noise\\u{1b}[2J.service",tenant_kind="unit",device="vda"} 0.9
        # HELP bulkhead_device_target_seconds Device time due to a tenant by the weights of the tenants that were active at the same time
        # TYPE bulkhead_device_target_seconds counter
        # UNIT bulkhead_device_target_seconds seconds
        bulkhead_device_target_seconds_total{tenant="db",tenant_kind="tenant",device="vda"} 0.76
        # HELP bulkhead_device_busy_seconds Time a device was busy, by class of request
        # TYPE bulkhead_device_busy_seconds counter
        # UNIT bulkhead_device_busy_seconds seconds
        # HELP bulkhead_observed_seconds Time for which the host was observed since the daemon started
        # TYPE bulkhead_observed_seconds counter
        # UNIT bulkhead_observed_seconds seconds
        bulkhead_observed_seconds_total 1.0
        # HELP bulkhead_observation_lost Events that could not be counted for lack of space; they are missing from the other figures
        # TYPE bulkhead_observation_lost counter
        bulkhead_observation_lost_total{what="records"} 0
        bulkhead_observation_lost_total{what="owners"} 0
        bulkhead_observation_lost_total{what="counts"} 0
        bulkhead_observation_lost_total{what="requests"} 0
        bulkhead_observation_lost_total{what="commits"} 0
        # EOF
    "##]].assert_eq(&text);
}

#[test]
fn containers_of_the_same_name_are_distinct() {
    let ids = ["a".repeat(64), "b".repeat(64)];
    let mut seen = crate::sim::Observed::default().observe(std::time::Duration::ZERO).unwrap();
    for (view, id) in seen.containers.iter_mut().zip(&ids) {
        let path = format!("/system.slice/docker-{id}.scope");
        view.identity = Identity { name: "web".to_owned(), ..bulkhead_core::identity::identify(&path) };
    }
    let text = rendered_as(Ok(seen), Format::Text);
    for id in &ids {
        let line = format!(
            "bulkhead_device_time_seconds_total{{tenant=\"web\",tenant_kind=\"docker\",container_id=\"{id}\",device=\"vda\"}} "
        );
        assert_eq!(text.matches(&line).count(), 1, "{text}");
    }
    // No two samples have the same labels.
    let mut series: Vec<&str> =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| &line[..line.rfind(' ').unwrap()]).collect();
    let n_samples = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), n_samples, "{text}");
}

#[test]
fn clients_that_do_not_accept_openmetrics_get_the_text_format() {
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    assert_eq!([Format::accepted(Some(accept)), Format::accepted(Some("*/*"))], [Format::OpenMetrics, Format::Text]);
    let text = rendered_as(crate::sim::Observed::default().observe(std::time::Duration::ZERO), Format::Text);
    assert!(text.contains("\n# TYPE bulkhead_journal_bytes_total counter\nbulkhead_journal_bytes_total{"), "{text}");
    assert!(text.contains("\n# TYPE bulkhead_fsync_duration_seconds histogram\n"), "{text}");
    assert!(!text.contains("UNIT") && !text.contains("EOF"), "{text}");
}

#[test]
fn sums_of_removed_containers_are_not_exported() {
    let mut seen = crate::sim::Observed::default().observe(std::time::Duration::ZERO).unwrap();
    let removed = Identity { kind: ContainerKind::Cgroup, name: REMOVED.to_owned(), id: None, pod_uid: None };
    let machine = Identity { kind: ContainerKind::Machine, ..removed.clone() };
    for identity in [removed.clone(), machine] {
        seen.containers.push(ContainerView { identity, ..seen.containers[0].clone() });
    }
    let [pair, ..] = &seen.blame[..] else { panic!("no blame") };
    let as_victim = BlameView { victim: removed.clone(), ..pair.clone() };
    let as_culprit = BlameView { culprit: Some(removed), ..pair.clone() };
    seen.blame.extend([as_victim, as_culprit]);
    let text = rendered_as(Ok(seen), Format::OpenMetrics);
    assert!(text.contains("tenant=\"db\"") && !text.contains("kind=\"cgroup\""), "{text}");
    // A container with that name is exported.
    assert!(text.contains("tenant=\"(removed containers)\",tenant_kind=\"machine\""), "{text}");
}

#[test]
fn only_the_pairs_with_the_most_time_are_exported() {
    let seen = crate::sim::Observed::default().observe(std::time::Duration::ZERO).unwrap();
    let seconds = |most| {
        let (shown, n_left_out) = pairs(&seen.blame, most);
        (shown.iter().map(|view| view.seconds).collect::<Vec<_>>(), n_left_out)
    };
    assert_eq!(seconds(3), (vec![0.02, 0.27, 0.01], 0));
    assert_eq!(seconds(2), (vec![0.27, 0.02], 1));
    assert!(rendered_as(Ok(seen), Format::Text).contains("\nbulkhead_fsync_blame_pairs_left_out 0\n"));
}

#[test]
fn limits_of_the_observation_are_reported() {
    let seen = crate::sim::Observed::default().observe(std::time::Duration::ZERO).unwrap();
    let findings = vec![
        limits::finding(FindingId::SelfTestNotMade, "no scratch file system"),
        limits::finding(FindingId::EarlyCommitsNotCharged, "no fentry"),
    ];
    let text = rendered_as(Ok(Observation { findings, ..seen }), Format::Text);
    let line = "bulkhead_observing{method=\"tp_btf\",reason=\"no scratch file system; no fentry\"} 1";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("\nbulkhead_findings{id=\"self_test_not_made\",severity=\"warning\"} 1\n"), "{text}");
}

#[test]
fn a_host_that_cannot_be_observed_says_why() {
    let fault = Fault::new(Code::Unsupported, "observation", "the kernel has \"no\" BTF");
    let text = rendered(Err(fault));
    expect![[r##"
        # HELP bulkhead_build_info The daemon's version; always 1
        # TYPE bulkhead_build_info gauge
        bulkhead_build_info{version="x.y.z"} 1
        # HELP bulkhead_observing Whether the journals of this host are observed, by which method, and why not at all or not by a better method
        # TYPE bulkhead_observing gauge
        bulkhead_observing{method="none",reason="the kernel has \"no\" BTF"} 0
        # HELP bulkhead_findings Findings about the host and its objects, by id and severity
        # TYPE bulkhead_findings gauge
        bulkhead_findings{id="not_observed",severity="warning"} 1
        # EOF
    "##]]
    .assert_eq(&text);
}
