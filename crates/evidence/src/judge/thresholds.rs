//! All thresholds, in one table.

use bulkhead_measure::isolation::{DATABASE_PCT, Limits};

use crate::experiment::disk_models::{self, published};

/// The requirement on a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// Target value, and maximum deviation.
    Within(f64, f64),
    /// No limit: it must be measured.
    Reported,
}

/// One requirement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threshold {
    /// The experiment that it belongs to.
    pub(super) row: &'static str,
    /// The judged figure.
    pub(super) what: &'static str,
    pub(super) bound: Bound,
}

const fn demand(row: &'static str, what: &'static str, bound: Bound) -> Threshold {
    Threshold { row, what, bound }
}

/// All thresholds, grouped by the text of their target.
pub(super) const THRESHOLDS: [Threshold; 142] = [
    // "hdd: (a) <= 1.4x, p99 <= 2x; (b) <= 1.6x, p99 <= 2x; (c) <= 1.6x"; a p99 of 2x is asked of (c) too
    demand("fsync-probe", "streams mean", Bound::AtMost(Limits::STREAMS.mean)),
    demand("fsync-probe", "streams p99", Bound::AtMost(Limits::STREAMS.p99)),
    demand("fsync-probe", "fsyncs mean", Bound::AtMost(Limits::FSYNCS.mean)),
    demand("fsync-probe", "fsyncs p99", Bound::AtMost(Limits::FSYNCS.p99)),
    demand("fsync-probe", "storm mean", Bound::AtMost(Limits::STORM.mean)),
    demand("fsync-probe", "storm p99", Bound::AtMost(Limits::STORM.p99)),
    // "ssd, nvme: <= 1.3x, p99 <= 2x everywhere"
    demand("fsync-probe", "streams mean on flash", Bound::AtMost(Limits::STREAMS.mean_on_flash)),
    demand("fsync-probe", "streams p99 on flash", Bound::AtMost(Limits::STREAMS.p99)),
    demand("fsync-probe", "fsyncs mean on flash", Bound::AtMost(Limits::FSYNCS.mean_on_flash)),
    demand("fsync-probe", "fsyncs p99 on flash", Bound::AtMost(Limits::FSYNCS.p99)),
    demand("fsync-probe", "storm mean on flash", Bound::AtMost(Limits::STORM.mean_on_flash)),
    demand("fsync-probe", "storm p99 on flash", Bound::AtMost(Limits::STORM.p99)),
    // "B >= 95 % of its fair rest and >= 100 % of what it gets first come, first served"
    demand("fsync-probe", "streams neighbour", Bound::AtLeast(Limits::STREAMS.neighbour_pct)),
    demand("fsync-probe", "fsyncs neighbour", Bound::AtLeast(Limits::FSYNCS.neighbour_pct)),
    demand("fsync-probe", "storm neighbour", Bound::AtLeast(Limits::STORM.neighbour_pct)),
    demand("fsync-probe", "streams neighbour of first come", Bound::AtLeast(100.0)),
    demand("fsync-probe", "fsyncs neighbour of first come", Bound::AtLeast(100.0)),
    demand("fsync-probe", "storm neighbour of first come", Bound::AtLeast(100.0)),
    // "held: >= 95 % of 70 % of the lone throughput beside every neighbour, fsync <= 2x alone (>= 10x, 2.6x, 1.8x the shared journal
    // by the figures by hand below); alone >= 97 % of the shared journal; no neighbour worse than shared in any step; share within 1
    // point of 70/30"
    demand("dbms-consolidation", "throughput of alone", Bound::AtLeast(DATABASE_PCT)),
    demand("dbms-consolidation", "fsync of alone", Bound::AtMost(2.0)),
    demand("dbms-consolidation", "throughput of shared", Bound::Reported),
    demand("dbms-consolidation", "worst step of shared", Bound::AtLeast(1.0)),
    demand("dbms-consolidation", "share", Bound::Within(70.0, 1.0)),
    demand("dbms-consolidation", "alone of shared", Bound::AtLeast(97.0)),
    // "latency ratio of the two tenants = inverse share ratio within 5 %"; the shares are 70/30
    demand("journal-fsync", "latency B/A", Bound::Within(70.0 / 30.0, 3.5 / 30.0)),
    // "LV <= 2 %; blockd: 0 host commits, bandwidth >= 97 %, IOPS >= 95 % (hdd), >= 75 % (ssd, nvme at depth 1), >= 95 % at depth 32;
    // first among all servers compared"
    demand("volume-overhead", "lv IOPS", Bound::AtLeast(98.0)),
    demand("volume-overhead", "lv IOPS of 32 threads", Bound::Reported),
    demand("volume-overhead", "lv bandwidth", Bound::AtLeast(98.0)),
    demand("volume-overhead", "lv CPU", Bound::Reported),
    demand("volume-overhead", "blockd IOPS", Bound::AtLeast(95.0)),
    demand("volume-overhead", "blockd IOPS on flash", Bound::AtLeast(75.0)),
    demand("volume-overhead", "blockd IOPS of 32 threads", Bound::AtLeast(95.0)),
    demand("volume-overhead", "blockd of the best other server", Bound::AtLeast(100.0)),
    demand("volume-overhead", "blockd bandwidth", Bound::AtLeast(97.0)),
    demand("volume-overhead", "blockd host commits", Bound::AtMost(0.0)),
    demand("volume-overhead", "blockd CPU", Bound::Reported),
    // "loop beside them"; others where their programs are
    demand("volume-overhead", "loop IOPS", Bound::Reported),
    demand("volume-overhead", "loop IOPS of 32 threads", Bound::Reported),
    demand("volume-overhead", "loop bandwidth", Bound::Reported),
    demand("volume-overhead", "loop CPU", Bound::Reported),
    demand("volume-overhead", "nbdkit IOPS", Bound::Reported),
    demand("volume-overhead", "nbdkit IOPS of 32 threads", Bound::Reported),
    demand("volume-overhead", "nbdkit bandwidth", Bound::Reported),
    demand("volume-overhead", "nbdkit CPU", Bound::Reported),
    demand("volume-overhead", "qemu-nbd IOPS", Bound::Reported),
    demand("volume-overhead", "qemu-nbd IOPS of 32 threads", Bound::Reported),
    demand("volume-overhead", "qemu-nbd bandwidth", Bound::Reported),
    demand("volume-overhead", "qemu-nbd CPU", Bound::Reported),
    demand("volume-overhead", "ublk-loop IOPS", Bound::Reported),
    demand("volume-overhead", "ublk-loop IOPS of 32 threads", Bound::Reported),
    demand("volume-overhead", "ublk-loop bandwidth", Bound::Reported),
    demand("volume-overhead", "ublk-loop CPU", Bound::Reported),
    // "CV <= 0.02, all calls of the paper + rename, link, symlink, setxattr, chmod, append+fsync; fast_commit, inline_data, XFS columns"
    demand("journal-cost", "largest CV", Bound::AtMost(0.02)),
    demand("journal-cost", "calls", Bound::AtLeast(13.0)),
    // "total exact; per cgroup within 4 % of the Shapley value, unattributed < 1 %"
    demand("attribution", "bytes not charged", Bound::AtMost(0.0)),
    demand("attribution", "off Shapley", Bound::AtMost(4.0)),
    demand("attribution", "unattributed", Bound::AtMost(1.0)),
    // "<= 30 ns per metadata call, 0 elsewhere"; within 1 % is taken for 0, which is what two equal halves differ by
    demand("attribution", "metadata calls overhead", Bound::AtMost(30.0)),
    demand("attribution", "other calls overhead", Bound::AtMost(1.0)),
    // "within 0.3 points mean and 3 points in every 5 s window after the first 10 s; 2 to 16 tenants"
    demand("share-correction", "off mean", Bound::AtMost(0.3)),
    demand("share-correction", "off in 5 s", Bound::AtMost(3.0)),
    demand("share-correction", "CPU of holding", Bound::Reported),
    // "base >= 40 % [of a cache hit]; drr >= 13 % and >= x3 of the ssd; miss cost <= 2 %; disk reads of file data by later clones: 0"
    demand("clone-read", "base gain", Bound::Reported),
    demand("clone-read", "base gain on flash", Bound::Reported),
    demand("clone-read", "base of a cache hit", Bound::AtLeast(40.0)),
    demand("clone-read", "base disk reads", Bound::AtMost(0.0)),
    demand("clone-read", "base copies", Bound::Reported),
    demand("clone-read", "drr gain", Bound::Reported),
    demand("clone-read", "drr gain on flash", Bound::AtLeast(3.0)),
    demand("clone-read", "drr of a cache hit", Bound::AtLeast(13.0)),
    demand("clone-read", "drr disk reads", Bound::AtMost(0.0)),
    demand("clone-read", "drr copies", Bound::Reported),
    demand("clone-read", "drr miss cost", Bound::AtMost(2.0)),
    demand("clone-read", "both gain", Bound::Reported),
    demand("clone-read", "both gain on flash", Bound::Reported),
    demand("clone-read", "both of a cache hit", Bound::Reported),
    demand("clone-read", "both disk reads", Bound::AtMost(0.0)),
    demand("clone-read", "both copies", Bound::Reported),
    // "drr -60 %"; the rest from the row before, until clones share the files themselves: "-60 % and >= 85 % fewer disk reads at 10
    // clones; index memory <= 0.5 % of the image's hot data, independent of clone count"
    demand("launch-storm", "base time saved", Bound::AtLeast(60.0)),
    demand("launch-storm", "base disk reads saved", Bound::AtLeast(85.0)),
    demand("launch-storm", "drr time saved", Bound::AtLeast(60.0)),
    demand("launch-storm", "drr disk reads saved", Bound::AtLeast(85.0)),
    demand("launch-storm", "drr index memory", Bound::AtMost(0.5)),
    demand("launch-storm", "base bounded, time saved", Bound::Reported),
    demand("launch-storm", "base bounded, disk reads saved", Bound::Reported),
    demand("launch-storm", "drr bounded, time saved", Bound::Reported),
    demand("launch-storm", "drr bounded, disk reads saved", Bound::Reported),
    // "fsync p99 <= 2x alone where hostPath has >= 20x"
    demand("kubernetes-noisy-neighbour", "hostPath p99", Bound::AtLeast(20.0)),
    demand("kubernetes-noisy-neighbour", "hostPath throughput", Bound::Reported),
    demand("kubernetes-noisy-neighbour", "hostPath, bfq, p99", Bound::Reported),
    demand("kubernetes-noisy-neighbour", "hostPath, bfq, throughput", Bound::Reported),
    demand("kubernetes-noisy-neighbour", "volume p99", Bound::AtMost(2.0)),
    demand("kubernetes-noisy-neighbour", "volume throughput", Bound::Reported),
    demand("kubernetes-noisy-neighbour", "volume, promised, p99", Bound::AtMost(2.0)),
    demand("kubernetes-noisy-neighbour", "volume, promised, throughput", Bound::Reported),
    demand("kubernetes-noisy-neighbour", "alone of hostPath", Bound::Reported),
    // The lab's disks have the published figures of their drives "within 10 %"
    demand(disk_models::METHOD.name, "largest deviation", Bound::AtMost(published::TOLERANCE_PCT)),
    // "30-minute mixed run with container churn: attributed + unattributed equals the journal device's bytes, no
    // leak in maps or memory, daemon RSS flat"
    demand("churn", "bytes not charged", Bound::AtMost(0.0)),
    demand("churn", "unattributed", Bound::AtMost(1.0)),
    demand("churn", "memory, last third / second", Bound::AtMost(1.05)),
    demand("churn", "table entries, last third / second", Bound::AtMost(1.5)),
    // "complete matrix with a block-device baseline, worst and best pairs named, each of the paper's five findings confirmed or refuted"; the
    // latency is a finding of its own here. On flash, write-heavy workloads only
    demand("nested-matrix", "pairs measured", Bound::AtLeast(100.0)),
    demand("nested-matrix", "findings decided", Bound::AtLeast(5.0)),
    demand("nested-matrix", "sequential-read of the device", Bound::Reported),
    demand("nested-matrix", "random-read of the device", Bound::Reported),
    demand("nested-matrix", "sequential-write of the device", Bound::Reported),
    demand("nested-matrix", "random-write of the device", Bound::Reported),
    demand("nested-matrix", "web-server of the device", Bound::Reported),
    demand("nested-matrix", "file-server of the device", Bound::Reported),
    demand("nested-matrix", "mail-server of the device", Bound::Reported),
    demand("nested-matrix", "database-server of the device", Bound::Reported),
    // "model predicts throughput within 10 points, knee within +-1, finds the valley; chosen N and mix reach >= 95 % of the best measured"
    demand("scaling", "random-read error", Bound::AtMost(10.0)),
    demand("scaling", "random-read knee", Bound::AtMost(1.0)),
    demand("scaling", "random-read chosen", Bound::AtLeast(95.0)),
    demand("scaling", "random-read gain", Bound::Reported),
    demand("scaling", "cached-read error", Bound::AtMost(10.0)),
    demand("scaling", "cached-read knee", Bound::AtMost(1.0)),
    demand("scaling", "cached-read chosen", Bound::AtLeast(95.0)),
    demand("scaling", "cached-read gain", Bound::Reported),
    demand("scaling", "durable-write error", Bound::AtMost(10.0)),
    demand("scaling", "durable-write knee", Bound::AtMost(1.0)),
    demand("scaling", "durable-write chosen", Bound::AtLeast(95.0)),
    demand("scaling", "durable-write gain", Bound::Reported),
    demand("scaling", "sequential-write error", Bound::AtMost(10.0)),
    demand("scaling", "sequential-write knee", Bound::AtMost(1.0)),
    demand("scaling", "sequential-write chosen", Bound::AtLeast(95.0)),
    demand("scaling", "sequential-write gain", Bound::Reported),
    demand("scaling", "valley found", Bound::AtLeast(1.0)),
    demand("mixing", "pairs error", Bound::AtMost(10.0)),
    demand("mixing", "chosen pairs", Bound::AtLeast(95.0)),
    demand("mixing", "worst pair", Bound::Reported),
    demand("mixing", "best pair", Bound::Reported),
    demand("mixing", "twelve on four", Bound::AtLeast(95.0)),
    demand("mixing", "worst twelve on four", Bound::Reported),
    demand("mixing", "threes error", Bound::AtMost(10.0)),
    // "1000 workloads on 100 hosts < 2 s; >= 97 % of exhaustive optimum on small cases; extender p99 <= 20 ms at 5000 nodes"
    demand("plan-scale", "duration", Bound::AtMost(2.0)),
    demand("plan-scale", "of the upper limit", Bound::Reported),
    demand("plan-scale", "searched of the best", Bound::AtLeast(97.0)),
    demand("plan-scale", "worst searched of the best", Bound::Reported),
    demand("plan-scale", "filter p99", Bound::AtMost(20.0)),
    demand("plan-scale", "prioritize p99", Bound::AtMost(20.0)),
    demand("plan-scale", "first p99", Bound::Reported),
];
