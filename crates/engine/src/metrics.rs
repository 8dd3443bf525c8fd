//! The observation as Prometheus metrics, built from the sums for each scrape.
//!
//! Owns: the names and labels of the metrics. Does not: observe, or listen (`http.rs`, `daemon.rs`).

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use bulkhead_api::wire::{HeatRow, HoldView, Observation, StandingView};
use bulkhead_core::error::Fault;
use bulkhead_core::finding::{self, Finding, in_order};
use bulkhead_core::health::Space;
use bulkhead_core::identity::Identity;
use bulkhead_core::name::Name;
use bulkhead_core::observe::activity::{BlameView, ContainerView, DeviceShare, JournalBytes, is_removed};
use bulkhead_core::observe::cost::as_f64;
use bulkhead_core::observe::histogram::Histogram;
use bulkhead_core::observe::limits;
use bulkhead_core::observe::record::Kind;
use bulkhead_core::units::Bytes;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0, which Prometheus asks for.
    OpenMetrics,
    /// The older text format of Prometheus, which `curl` gets and `promtool check metrics` reads.
    Text,
}

impl Format {
    /// The format that a client accepts.
    #[must_use]
    pub fn accepted(accept: Option<&str>) -> Self {
        let wants = accept.is_some_and(|accept| accept.contains("application/openmetrics-text"));
        if wants { Self::OpenMetrics } else { Self::Text }
    }

    /// Its media type.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Maximum number of pairs of victim and culprit: those of a hundred containers that all wait for each other.
const MAX_PAIRS: usize = 10_000;
/// Bounds of the latency buckets: powers of two, from 2^6 (64 us) to 2^25 us (34 s).
const BOUNDS: std::ops::RangeInclusive<u32> = 6..=25;

/// The data of a scrape.
#[derive(Debug)]
pub struct Scrape {
    /// Journals, containers and devices, or why they are not observed.
    pub observed: Result<Observation, Fault>,
    /// The enforced shares.
    pub holds: Vec<HoldView>,
    /// Reads of shared blocks.
    pub shared_reads: Vec<HeatRow>,
    /// The space in pools, by name.
    pub pools: Vec<(Name, Space)>,
    /// Bytes trimmed in pools, by name.
    pub trimmed: BTreeMap<Name, Bytes>,
    /// Number of problems by kind.
    pub problems: BTreeMap<&'static str, usize>,
    /// Findings about the host and its objects, except the limits of the observation.
    pub findings: Vec<Finding>,
}

/// All metrics. If the host cannot be observed, they include the reason.
#[must_use]
pub fn render(scrape: Scrape, format: Format) -> String {
    let mut registry = Registry::with_prefix("bulkhead");
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    match format {
        Format::OpenMetrics => text,
        Format::Text => to_text_format(&text),
    }
}

/// Converts OpenMetrics to the older text format, in which `_total` is part of a counter's name, and UNIT and EOF lines do not exist.
fn to_text_format(text: &str) -> String {
    let is_counter = |name: &str| text.contains(&format!("# TYPE {name} counter\n"));
    let mut lines = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("UNIT" | "EOF"), ..) => continue,
            (Some("#"), Some(what), Some(name), Some(rest)) if is_counter(name) => {
                lines.push_str(&format!("# {what} {name}_total {rest}"));
            }
            _ => lines.push_str(line),
        }
        lines.push('\n');
    }
    lines
}

type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

/// Labels that identify a container: name, kind, and its id if it has one, because names are not unique. Prometheus drops empty labels,
/// so that the other series keep their label sets.
const TENANT: [&str; 3] = ["tenant", "tenant_kind", "container_id"];
const VICTIM: [&str; 3] = ["victim", "victim_kind", "victim_container_id"];
const CULPRIT: [&str; 3] = ["culprit", "culprit_kind", "culprit_container_id"];

impl Scrape {
    fn all_findings(&self) -> Vec<Finding> {
        let observed = match &self.observed {
            Ok(seen) => seen.limits(),
            Err(fault) => vec![limits::not_observed(fault.clone())],
        };
        in_order([observed, self.findings.clone()].concat())
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let encoder = &mut encoder;
        // Gauges, because promtool does not know the type info.
        let mut build =
            encoder.encode_descriptor("build_info", "The daemon's version; always 1", None, MetricType::Gauge)?;
        build.encode_family(&[("version", env!("CARGO_PKG_VERSION"))])?.encode_gauge(&1_i64)?;
        let (method, reason) = match &self.observed {
            Ok(seen) => (seen.method.as_str(), evidence(&seen.findings)),
            Err(fault) => ("none", fault.cause.clone()),
        };
        let mut observing = encoder.encode_descriptor(
            "observing",
            "Whether the journals of this host are observed, by which method, and why not at all or not by a better method",
            None,
            MetricType::Gauge,
        )?;
        let labels: Labels<'_, 2> = [("method", method), ("reason", &reason)];
        observing.encode_family(&labels)?.encode_gauge(&i64::from(self.observed.is_ok()))?;
        holds(encoder, &self.holds)?;
        shared_reads(encoder, &self.shared_reads)?;
        pools(encoder, &self.pools)?;
        trimmed(encoder, &self.trimmed)?;
        problems(encoder, &self.problems)?;
        findings(encoder, &self.all_findings())?;
        let Ok(seen) = &self.observed else { return Ok(()) };
        journals(encoder, seen)?;
        containers(encoder, seen)?;
        devices(encoder, seen)?;
        losses(encoder, seen)
    }
}

fn journals(encoder: &mut DescriptorEncoder<'_>, seen: &Observation) -> fmt::Result {
    let help = "Observed file systems; always 1";
    let mut info = encoder.encode_descriptor("volume_info", help, None, MetricType::Gauge)?;
    for view in &seen.file_systems {
        let mount_point = view.mount_point.as_deref().unwrap_or_default();
        let disks = view.disks.join(",");
        let labels: Labels<'_, 3> = [("volume", &view.device), ("mount_point", mount_point), ("disks", &disks)];
        info.encode_family(&labels)?.encode_gauge(&1_i64)?;
    }
    let mut commits = counter(encoder, "journal_commits", "Commits of a journal, or checkpoints of an XFS log", None)?;
    for view in &seen.file_systems {
        let labels: Labels<'_, 1> = [("volume", &view.device)];
        commits.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&view.commits, None)?;
    }
    let help =
        "Journal bytes caused by a tenant, whoever wrote them; without a tenant, those that cannot be attributed";
    let mut bytes = counter(encoder, "journal", help, Some(&Unit::Bytes))?;
    let mut encode = |who: Option<&Identity>, volume: &str, journal: &JournalBytes| -> fmt::Result {
        for kind in Kind::ALL.into_iter().filter(|kind| journal.of(*kind) > 0) {
            let labels = [of(who, TENANT), vec![("volume", volume), ("kind", kind.word())]].concat();
            bytes.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&journal.of(kind), None)?;
        }
        Ok(())
    };
    for view in named(seen) {
        for share in &view.journal {
            encode(Some(&view.identity), &share.device, &share.journal)?;
        }
    }
    seen.file_systems.iter().try_for_each(|view| encode(None, &view.device, &view.unattributed))
}

fn containers(encoder: &mut DescriptorEncoder<'_>, seen: &Observation) -> fmt::Result {
    let help = "Latency of a tenant's fsync, fdatasync and O_SYNC writes";
    let mut latency = encoder.encode_descriptor("fsync_duration", help, Some(&Unit::Seconds), MetricType::Histogram)?;
    for view in named(seen).filter(|view| view.fsync.count() > 0) {
        let labels = of(Some(&view.identity), TENANT);
        let none: Option<&HashMap<usize, Exemplar<NoLabelSet, f64>>> = None;
        let mut of_tenant = latency.encode_family(&labels)?;
        of_tenant.encode_histogram(seconds(view.fsync.sum_us), view.fsync.count(), &buckets(&view.fsync), none)?;
    }
    let help =
        "Time a tenant waited in fsync because of another tenant or itself; without a culprit, the unattributed rest";
    let mut blame = counter(encoder, "fsync_blame", help, Some(&Unit::Seconds))?;
    let (pairs, n_left_out) = pairs(&seen.blame, MAX_PAIRS);
    for view in pairs {
        let labels = [of(Some(&view.victim), VICTIM), of(view.culprit.as_ref(), CULPRIT)].concat();
        blame.encode_family(&labels)?.encode_counter::<NoLabelSet, f64, u64>(&view.seconds, None)?;
    }
    let help = "Pairs of victim and culprit that are omitted because there are too many: those with the least time";
    encoder
        .encode_descriptor("fsync_blame_pairs_left_out", help, None, MetricType::Gauge)?
        .encode_gauge(&n_left_out)?;
    let help = "Bytes read from and written to devices for a tenant, as charged by the kernel";
    let mut bytes = counter(encoder, "device_io", help, Some(&Unit::Bytes))?;
    for view in named(seen) {
        for (direction, n_bytes) in [("read", view.read_bytes), ("write", view.written_bytes)] {
            let labels = [of(Some(&view.identity), TENANT), vec![("direction", direction)]].concat();
            bytes.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&n_bytes, None)?;
        }
    }
    let mut time = counter(encoder, "device_time", "Device time taken by a tenant's requests", Some(&Unit::Seconds))?;
    let devices = || named(seen).flat_map(|view| view.devices.iter().map(move |device| (view, device)));
    for (view, device) in devices() {
        time.encode_family(&of_device(view, device))?.encode_counter::<NoLabelSet, f64, u64>(&device.seconds, None)?;
    }
    let help = "Device time due to a tenant by the weights of the tenants that were active at the same time";
    let mut target = counter(encoder, "device_target", help, Some(&Unit::Seconds))?;
    for (view, device) in devices() {
        let Some(seconds) = device.target_seconds else { continue };
        target.encode_family(&of_device(view, device))?.encode_counter::<NoLabelSet, f64, u64>(&seconds, None)?;
    }
    Ok(())
}

fn devices(encoder: &mut DescriptorEncoder<'_>, seen: &Observation) -> fmt::Result {
    let mut time =
        counter(encoder, "device_busy", "Time a device was busy, by class of request", Some(&Unit::Seconds))?;
    for view in &seen.devices {
        let parts = [("data", view.data_seconds), ("metadata", view.metadata_seconds), ("flush", view.flush_seconds)];
        for (class, seconds) in parts {
            let labels: Labels<'_, 2> = [("device", &view.device), ("class", class)];
            time.encode_family(&labels)?.encode_counter::<NoLabelSet, f64, u64>(&seconds, None)?;
        }
    }
    Ok(())
}

/// Name, help and value of a figure of a tenant whose share is held.
type Figure = (&'static str, &'static str, fn(&StandingView) -> Option<f64>);

fn holds(encoder: &mut DescriptorEncoder<'_>, holds: &[HoldView]) -> fmt::Result {
    if holds.is_empty() {
        return Ok(());
    }
    let help = "State of the hold on a device; always 1";
    let mut state = encoder.encode_descriptor("hold_state", help, None, MetricType::Gauge)?;
    for view in holds {
        let labels: Labels<'_, 2> = [("device", view.hold.device.as_str()), ("state", &view.state)];
        state.encode_family(&labels)?.encode_gauge(&1_i64)?;
    }
    let mut corrections = counter(encoder, "hold_corrections", "Number of weight corrections made by a hold", None)?;
    for view in holds {
        let labels: Labels<'_, 1> = [("device", view.hold.device.as_str())];
        corrections.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&view.corrections, None)?;
    }
    let figures: [Figure; 8] = [
        (
            "hold_target_ratio",
            "Target share of a tenant among the tenants that contended for a device in the last 5 s, 0 to 1",
            |view| Some(view.target_share),
        ),
        (
            "hold_achieved_ratio",
            "Share that a tenant had of the I/O of all contenders in the last 15 s (mode published: 5 s), journal I/O included, 0 to 1",
            |view| Some(view.achieved_share),
        ),
        (
            "hold_journal_ratio",
            "Share that a tenant's journal I/O alone had of the I/O of all contenders in the last 15 s (mode published: 5 s), 0 to 1",
            |view| Some(view.journal_share),
        ),
        ("hold_weight", "Weight of a tenant on a device", |view| Some(f64::from(view.weight))),
        ("hold_infeasible", "1 if a tenant's journal I/O alone exceeds its share, so that no weight helps", |view| {
            Some(f64::from(u8::from(view.infeasible)))
        }),
        (
            "hold_cap",
            "Cap on a tenant's operations per second, where weights have no effect on it or for another tenant's fsync latency",
            |view| view.cap.map(f64::from),
        ),
        (
            "hold_cap_bytes",
            "Cap on a tenant's bytes per second, where weights have no effect on it or for another tenant's fsync latency",
            |view| view.cap_bytes.map(as_f64),
        ),
        ("hold_fsync_p99_seconds", "99th percentile of a tenant's fsync latency in the last 10 s", |view| {
            view.fsync_p99_seconds
        }),
    ];
    for (name, help, value) in figures {
        if !holds.iter().flat_map(|view| &view.standings).any(|standing| value(standing).is_some()) {
            continue;
        }
        let mut gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for view in holds {
            for standing in &view.standings {
                let tenant = view.hold.tenants.iter().find(|tenant| tenant.name == standing.name);
                let (Some(tenant), Some(value)) = (tenant, value(standing)) else { continue };
                let labels = [of(Some(&tenant.identity), TENANT), vec![("device", view.hold.device.as_str())]].concat();
                gauge.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
    }
    Ok(())
}

/// Name, help, unit and value of a figure of a volume's reads from one source.
type SharedFigure = (&'static str, &'static str, Option<&'static Unit>, fn(&HeatRow) -> u64);

fn shared_reads(encoder: &mut DescriptorEncoder<'_>, shared_reads: &[HeatRow]) -> fmt::Result {
    if shared_reads.is_empty() {
        return Ok(());
    }
    let figures: [SharedFigure; 2] = [
        ("shared_reads", "Reads of blocks that a volume shares with others, since it was opened", None, |row| {
            row.requests
        }),
        (
            "shared_read",
            "Bytes read from blocks that a volume shares with others, since it was opened",
            Some(&Unit::Bytes),
            |row| row.bytes.0,
        ),
    ];
    for (name, help, unit, value) in figures {
        let mut counts = counter(encoder, name, help, unit)?;
        for row in shared_reads {
            let reader = row.reader.to_string();
            let labels: Labels<'_, 3> =
                [("reader", &reader), ("source", &row.source_name), ("from", row.source.word())];
            counts.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&value(row), None)?;
        }
    }
    Ok(())
}

/// Name, help and value of a figure of a pool's space.
type PoolFigure = (&'static str, &'static str, fn(&Space) -> Bytes);

fn pools(encoder: &mut DescriptorEncoder<'_>, pools: &[(Name, Space)]) -> fmt::Result {
    let figures: [PoolFigure; 2] = [
        ("pool_size", "Size of the storage of a pool", |space| space.total),
        (
            "pool_free",
            "Free space of a pool; when there is none, writes to clones, thin volumes and volumes provisioned on demand fail",
            |space| space.free,
        ),
    ];
    for (name, help, value) in figures.into_iter().filter(|_| !pools.is_empty()) {
        let mut gauge = encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Gauge)?;
        for (pool, space) in pools {
            let labels: Labels<'_, 1> = [("pool", pool.as_str())];
            gauge.encode_family(&labels)?.encode_gauge(&i64::try_from(value(space).0).unwrap_or(i64::MAX))?;
        }
    }
    let thin: Vec<_> = pools.iter().filter_map(|(pool, space)| Some((pool, space.metadata_pct?))).collect();
    if !thin.is_empty() {
        let help = "Used part of a thin pool's metadata; when it is full, its volumes refuse writes";
        let unit = Unit::Ratios;
        let mut gauge = encoder.encode_descriptor("pool_metadata_used", help, Some(&unit), MetricType::Gauge)?;
        for (pool, pct) in thin {
            let labels: Labels<'_, 1> = [("pool", pool.as_str())];
            gauge.encode_family(&labels)?.encode_gauge(&(pct / 100.0))?;
        }
    }
    Ok(())
}

fn trimmed(encoder: &mut DescriptorEncoder<'_>, trimmed: &BTreeMap<Name, Bytes>) -> fmt::Result {
    if trimmed.is_empty() {
        return Ok(());
    }
    let help = "Free space discarded by `volume trim` in a pool's volumes, including space that had been returned to the pool before";
    let mut bytes = counter(encoder, "trimmed", help, Some(&Unit::Bytes))?;
    for (pool, sum) in trimmed {
        let labels: Labels<'_, 1> = [("pool", pool.as_str())];
        bytes.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&sum.0, None)?;
    }
    Ok(())
}

fn problems(encoder: &mut DescriptorEncoder<'_>, problems: &BTreeMap<&'static str, usize>) -> fmt::Result {
    if problems.is_empty() {
        return Ok(());
    }
    let help = "Objects that are not as recorded, for example volumes that cannot be mounted; GET /v1/host lists them";
    let mut gauge = encoder.encode_descriptor("problems", help, None, MetricType::Gauge)?;
    for (kind, count) in problems {
        let labels: Labels<'_, 1> = [("kind", kind)];
        gauge.encode_family(&labels)?.encode_gauge(&i64::try_from(*count).unwrap_or(i64::MAX))?;
    }
    Ok(())
}

/// The limits of an observation in one label; losses are counted elsewhere.
fn evidence(findings: &[Finding]) -> String {
    findings.iter().map(|finding| finding.evidence.as_str()).collect::<Vec<_>>().join("; ")
}

fn findings(encoder: &mut DescriptorEncoder<'_>, findings: &[Finding]) -> fmt::Result {
    if findings.is_empty() {
        return Ok(());
    }
    let help = "Findings about the host and its objects, by id and severity";
    let mut gauge = encoder.encode_descriptor("findings", help, None, MetricType::Gauge)?;
    for ((id, severity), count) in finding::counts(findings) {
        let labels = [("id", id.to_owned()), ("severity", severity.to_string())];
        gauge.encode_family(&labels)?.encode_gauge(&i64::try_from(count).unwrap_or(i64::MAX))?;
    }
    Ok(())
}

fn losses(encoder: &mut DescriptorEncoder<'_>, seen: &Observation) -> fmt::Result {
    let mut time = counter(
        encoder,
        "observed",
        "Time for which the host was observed since the daemon started",
        Some(&Unit::Seconds),
    )?;
    time.encode_counter::<NoLabelSet, f64, u64>(&seen.observed_seconds, None)?;
    let mut lost = counter(
        encoder,
        "observation_lost",
        "Events that could not be counted for lack of space; they are missing from the other figures",
        None,
    )?;
    let losses = &seen.losses;
    for (what, n_lost) in [
        ("records", losses.records),
        ("owners", losses.owners),
        ("counts", losses.counts),
        ("requests", losses.requests),
        ("commits", losses.unseen_commits),
    ] {
        let labels: Labels<'_, 1> = [("what", what)];
        lost.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&n_lost, None)?;
    }
    Ok(())
}

fn counter<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    name: &'e str,
    help: &str,
    unit: Option<&'e Unit>,
) -> Result<MetricEncoder<'e>, fmt::Error> {
    encoder.encode_descriptor(name, help, unit, MetricType::Counter)
}

/// The containers, without the sum of those that were removed: sums moved there would look to Prometheus like new activity.
fn named(seen: &Observation) -> impl Iterator<Item = &ContainerView> {
    seen.containers.iter().filter(|view| !is_removed(&view.identity))
}

/// At most `most` pairs, and the number of omitted ones.
fn pairs(blame: &[BlameView], most: usize) -> (Vec<&BlameView>, i64) {
    let mut pairs: Vec<&BlameView> = blame
        .iter()
        .filter(|view| !is_removed(&view.victim) && !view.culprit.as_ref().is_some_and(is_removed))
        .collect();
    let n_left_out = i64::try_from(pairs.len().saturating_sub(most)).unwrap_or(i64::MAX);
    if n_left_out > 0 {
        pairs.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        pairs.truncate(most);
    }
    (pairs, n_left_out)
}

/// The container under these labels; empty if there is none.
fn of<'a>(who: Option<&'a Identity>, [name, kind, id]: [&'static str; 3]) -> Vec<(&'static str, &'a str)> {
    let known = [(name, who.map_or("", |who| who.name.as_str())), (kind, who.map_or("", |who| who.kind.word()))];
    let id = who.and_then(|who| who.id.as_deref()).map(|text| (id, text));
    known.into_iter().chain(id).collect()
}

/// A container, and one of its devices.
fn of_device<'a>(view: &'a ContainerView, device: &'a DeviceShare) -> Vec<(&'static str, &'a str)> {
    [of(Some(&view.identity), TENANT), vec![("device", device.device.as_str())]].concat()
}

/// Count per bucket by its upper bound in seconds, and the rest under infinity. The bounds are exact: latencies are whole
/// microseconds, and 2^n - 1 us is a bound of the histogram's own buckets.
fn buckets(histogram: &Histogram) -> Vec<(f64, u64)> {
    let mut before = 0;
    let mut buckets: Vec<(f64, u64)> = BOUNDS
        .map(|power| {
            let up_to = histogram.count_up_to_us((1 << power) - 1);
            let new = up_to - before;
            before = up_to;
            (seconds(1 << power), new)
        })
        .collect();
    buckets.push((f64::INFINITY, histogram.count() - before));
    buckets
}

#[expect(clippy::cast_precision_loss, reason = "2^52 us are 142 years of waiting")]
fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

#[cfg(test)]
mod tests;
