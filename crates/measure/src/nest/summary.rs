//! What the matrix says: each pair against its guest on the device, best and worst pairs with what differs below them, and the paper's
//! findings for this kernel. Pure.

use std::collections::BTreeSet;

use super::{DEVICE, MATRIX, Server, layout_word, workload};
use crate::result::{Cell, Experiment, spread};

/// Operations per second.
pub const OPS_PER_S: &str = "ops_per_s";
/// Mean duration of an operation.
pub const LATENCY_MEAN_MS: &str = "latency_mean_ms";
/// 99th percentile of the same.
pub const LATENCY_P99_MS: &str = "latency_p99_ms";
/// 99th percentile of fsync, and of durable writes.
pub const FSYNC_P99_MS: &str = "fsync_p99_ms";
/// Bytes written to the disk for each byte that the workload wrote.
pub const WRITE_AMPLIFICATION: &str = "write_amplification";
/// Processor time of the whole machine, percent of all processors.
pub const CPU_PCT: &str = "cpu_pct";
/// Prefix of figures of the guest's device.
pub const UPPER: &str = "upper";
/// Prefix of figures of the disk.
pub const LOWER: &str = "lower";

/// The name of a layer's figure.
#[must_use]
pub fn of_layer(layer: &str, figure: &str) -> String {
    format!("{layer}_{figure}")
}

/// A guest on a host, against the guest on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The guest's file system.
    pub guest: &'static str,
    /// The host's.
    pub host: &'static str,
    /// Throughput, percent of that on the device.
    pub pct: f64,
}

/// A statement of the paper, and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The statement.
    pub statement: &'static str,
    /// Whether it holds here; `None` if it was not measured.
    pub holds: Option<Holds>,
    /// The figures.
    pub found: String,
}

/// Whether a statement holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    Yes,
    Partly,
    No,
}

impl Holds {
    fn of(is_confirmed: bool, is_partly: bool) -> Self {
        match (is_confirmed, is_partly) {
            (true, _) => Self::Yes,
            (false, true) => Self::Partly,
            (false, false) => Self::No,
        }
    }

    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Yes => "confirmed",
            Self::Partly => "partly confirmed",
            Self::No => "refuted",
        }
    }
}

/// The cell of a stack and a workload.
#[must_use]
pub fn cell<'a>(
    experiment: &'a Experiment,
    guest: &str,
    host: &str,
    server: Server,
    workload: &str,
) -> Option<&'a Cell> {
    experiment.cell(&layout_word(guest, host), server.as_str(), workload)
}

/// A figure of a guest on the device.
fn baseline(experiment: &Experiment, guest: &str, workload: &str, figure: &str) -> Option<f64> {
    Some(cell(experiment, guest, DEVICE, Server::None, workload)?.figure(figure)?.median)
}

/// Throughput of a stack, percent of its guest's on the device.
#[must_use]
pub fn relative(experiment: &Experiment, guest: &str, host: &str, server: Server, workload: &str) -> Option<f64> {
    let nested = cell(experiment, guest, host, server, workload)?.figure(OPS_PER_S)?.median;
    baseline(experiment, guest, workload, OPS_PER_S).filter(|base| *base > 0.0).map(|base| 100.0 * nested / base)
}

/// The workloads that were measured, in their order.
#[must_use]
pub fn workloads(experiment: &Experiment) -> Vec<&'static str> {
    let measured = |name: &str| experiment.cells.iter().any(|cell| cell.neighbour == name && !cell.rounds.is_empty());
    workload::ALL.into_iter().map(workload::Workload::name).filter(|name| measured(name)).collect()
}

/// All pairs of a workload on a loop device with direct I/O, the slowest against its baseline first.
#[must_use]
pub fn pairs(experiment: &Experiment, workload: &str) -> Vec<Pair> {
    let of = |guest: &'static str, host: &'static str| {
        relative(experiment, guest, host, Server::Loop, workload).map(|pct| Pair { guest, host, pct })
    };
    let mut pairs: Vec<Pair> =
        MATRIX.iter().flat_map(|guest| MATRIX.iter().filter_map(move |host| of(guest, host))).collect();
    pairs.sort_by(|a, b| a.pct.total_cmp(&b.pct));
    pairs
}

/// The pairs with the most operations per second, and the fewest.
#[must_use]
pub fn extremes(experiment: &Experiment, workload: &str) -> Option<[(Pair, f64); 2]> {
    let ops = |pair: &Pair| {
        cell(experiment, pair.guest, pair.host, Server::Loop, workload)?.figure(OPS_PER_S).map(|s| s.median)
    };
    let mut all: Vec<(Pair, f64)> =
        pairs(experiment, workload).into_iter().filter_map(|pair| Some((pair, ops(&pair)?))).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    Some([*all.first()?, *all.last()?])
}

/// What differs below a stack from its guest on the device: the figures that changed most, in words, at most three.
#[must_use]
pub fn why(experiment: &Experiment, pair: &Pair, workload: &str) -> Vec<String> {
    let per_op = |cell: &Cell, name: &str| {
        let ops = cell.figure(OPS_PER_S)?.median;
        (ops > 0.0).then_some(cell.figure(name)?.median / ops)
    };
    let plain = |cell: &Cell, name: &str| Some(cell.figure(name)?.median);
    type Of<'a> = &'a dyn Fn(&Cell, &str) -> Option<f64>;
    let lower = |name: &str| of_layer(LOWER, name);
    let looked_at: [(String, &str, Of<'_>); 8] = [
        (WRITE_AMPLIFICATION.to_owned(), "bytes written to the disk for each byte", &plain),
        (lower("flushes_per_s"), "flushes of the disk for each operation", &per_op),
        (lower("request_kib"), "KiB in each request to the disk", &plain),
        (lower("sequential_pct"), "% of the disk's requests sequential", &plain),
        (lower("queue_ms"), "ms in the disk's queue", &plain),
        (lower("service_ms"), "ms in the disk", &plain),
        (lower("idle_pct"), "% of the time without a request in the disk", &plain),
        (lower("read_mib_per_s"), "MiB read from the disk for each operation", &per_op),
    ];
    let stacks = cell(experiment, pair.guest, pair.host, Server::Loop, workload).zip(cell(
        experiment,
        pair.guest,
        DEVICE,
        Server::None,
        workload,
    ));
    let Some((nested, base)) = stacks else { return Vec::new() };
    let changed = looked_at.iter().filter_map(|(name, words, of)| {
        let (now, then) = (of(nested, name)?, of(base, name)?);
        // Below these, figures are noise.
        let floor = if words.contains('%') { 5.0 } else { 0.02 };
        let size = ((now.max(floor)) / then.max(floor)).ln().abs();
        let text = format!("{} {words} ({} on the device)", short(now), short(then));
        (size > 1.3f64.ln()).then_some((size, text))
    });
    let mut changed: Vec<(f64, String)> = changed.collect();
    changed.sort_by(|a, b| b.0.total_cmp(&a.0));
    changed.into_iter().take(3).map(|(_, text)| text).collect()
}

fn short(value: f64) -> String {
    crate::report::text::number(value)
}

/// A verdict on a statement, with its figures; `None` if it was not measured.
type Verdict = Option<(Holds, String)>;
type Judge = fn(&Experiment) -> Verdict;

/// The statements of the paper, in the order of its advice.
const STATEMENTS: [(&str, Judge); 6] = [
    ("Reads are as fast as on the device, or faster", reads),
    ("Writes lose, up to 67 %", writes),
    ("A host without a journal, which passes I/O through, is best for writes", pass_through),
    ("Latency grows by 10 to 30 %", latency),
    ("What the guest allocates in sequence is not sequential on the disk", allocation),
    ("Guest and host depend on each other: no host is best for each guest, nor the other way round", both_ways),
];

/// What was found of each statement.
#[must_use]
pub fn findings(experiment: &Experiment) -> Vec<Finding> {
    let judge = |(statement, verdict): (&'static str, Judge)| {
        let (holds, found) = verdict(experiment).map_or((None, String::new()), |(holds, found)| (Some(holds), found));
        Finding { statement, holds, found }
    };
    STATEMENTS.map(judge).into()
}

const READS: [&str; 3] = ["sequential-read", "random-read", "web-server"];
const WRITES: [&str; 5] = ["sequential-write", "random-write", "file-server", "mail-server", "database-server"];

/// All pairs of several workloads.
fn all_pairs(experiment: &Experiment, of: &[&str]) -> Vec<(Pair, String)> {
    of.iter()
        .flat_map(|workload| pairs(experiment, workload).into_iter().map(|pair| (pair, (*workload).to_owned())))
        .collect()
}

fn middle(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    spread(values).map(|spread| spread.median)
}

fn worst(pairs: &[(Pair, String)]) -> String {
    let worst = pairs.iter().min_by(|a, b| a.0.pct.total_cmp(&b.0.pct));
    worst.map_or_else(String::new, |(pair, workload)| {
        format!("worst: {} on {} with {workload}, {:.0} %", pair.guest, pair.host, pair.pct)
    })
}

fn reads(experiment: &Experiment) -> Verdict {
    let all = all_pairs(experiment, &READS);
    let median = middle(all.iter().map(|(pair, _)| pair.pct))?;
    let n_kept = all.iter().filter(|(pair, _)| pair.pct >= 90.0).count();
    let part = n_kept as f64 / all.len() as f64;
    let holds = Holds::of(median >= 95.0 && part >= 0.9, median >= 90.0);
    let found =
        format!("median {median:.0} % of the device; {n_kept} of {} pairs at least 90 %; {}", all.len(), worst(&all));
    Some((holds, found))
}

fn writes(experiment: &Experiment) -> Verdict {
    let all = all_pairs(experiment, &WRITES);
    let median = middle(all.iter().map(|(pair, _)| pair.pct))?;
    let lowest = all.iter().map(|(pair, _)| pair.pct).fold(f64::INFINITY, f64::min);
    let holds = Holds::of(median <= 90.0 && lowest <= 50.0, lowest <= 67.0);
    let n_lost = all.iter().filter(|(pair, _)| pair.pct < 90.0).count();
    let found =
        format!("median {median:.0} % of the device; {n_lost} of {} pairs below 90 %; {}", all.len(), worst(&all));
    Some((holds, found))
}

/// The hosts, the one that costs writes least first, with the geometric mean over guests and workloads.
#[must_use]
pub fn hosts_by_writes(experiment: &Experiment) -> Vec<(&'static str, f64)> {
    let all = all_pairs(experiment, &WRITES);
    let mean = |host: &'static str| {
        let logs: Vec<f64> =
            all.iter().filter(|(pair, _)| pair.host == host).map(|(pair, _)| pair.pct.max(0.01).ln()).collect();
        (!logs.is_empty()).then(|| (host, (logs.iter().sum::<f64>() / logs.len() as f64).exp()))
    };
    let mut hosts: Vec<(&'static str, f64)> = MATRIX.into_iter().filter_map(mean).collect();
    hosts.sort_by(|a, b| b.1.total_cmp(&a.1));
    hosts
}

fn pass_through(experiment: &Experiment) -> Verdict {
    let hosts = hosts_by_writes(experiment);
    let rank = hosts.iter().position(|(host, _)| *host == "ext2")?;
    let best = hosts.first().map_or(0.0, |(_, pct)| *pct);
    let of_ext2 = hosts[rank].1;
    let holds = Holds::of(rank == 0, of_ext2 >= 0.95 * best);
    let listed: Vec<String> = hosts.iter().map(|(host, pct)| format!("{host} {pct:.0} %")).collect();
    Some((holds, listed.join(", ")))
}

fn latency(experiment: &Experiment) -> Verdict {
    let growth = |of: &[&str]| {
        let ratios = all_pairs(experiment, of).into_iter().filter_map(|(pair, workload)| {
            let nested =
                cell(experiment, pair.guest, pair.host, Server::Loop, &workload)?.figure(LATENCY_MEAN_MS)?.median;
            let base = baseline(experiment, pair.guest, &workload, LATENCY_MEAN_MS)?;
            (base > 0.0).then(|| 100.0 * (nested / base - 1.0))
        });
        middle(ratios)
    };
    let (reads, writes) = (growth(&READS), growth(&WRITES));
    let of_writes = writes?;
    let within = |value: f64| (10.0..=30.0).contains(&value);
    let holds =
        Holds::of(reads.is_none_or(within) && within(of_writes), reads.is_some_and(within) || within(of_writes));
    let read = reads.map_or_else(String::new, |value| format!("reads {value:+.0} %, "));
    Some((holds, format!("median: {read}writes {of_writes:+.0} %")))
}

fn allocation(experiment: &Experiment) -> Verdict {
    let (workload, figure) = ("sequential-write", of_layer(LOWER, "sequential_pct"));
    let of_host = |host: &'static str| {
        let of_guest =
            |guest: &&str| cell(experiment, guest, host, Server::Loop, workload)?.figure(&figure).map(|s| s.median);
        middle(MATRIX.iter().filter_map(of_guest)).map(|pct| (host, pct))
    };
    let base = middle(MATRIX.iter().filter_map(|guest| baseline(experiment, guest, workload, &figure)));
    let mut hosts: Vec<(&str, f64)> = MATRIX.into_iter().filter_map(of_host).collect();
    hosts.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (base, lowest) = (base?, hosts.first()?.1);
    let n_halved = hosts.iter().filter(|(_, pct)| *pct < base / 2.0).count();
    let holds = Holds::of(n_halved * 2 > hosts.len(), lowest < base / 2.0);
    let listed: Vec<String> = hosts.iter().map(|(host, pct)| format!("{host} {pct:.0} %")).collect();
    let found =
        format!("sequential requests to the disk in {workload}: {base:.0} % on the device, {}", listed.join(", "));
    Some((holds, found))
}

fn both_ways(experiment: &Experiment) -> Verdict {
    let mut told = Vec::new();
    for workload in workloads(experiment).into_iter().filter(|workload| WRITES.contains(workload)) {
        let all = pairs(experiment, workload);
        let best = |is_of: &dyn Fn(&Pair) -> bool| {
            all.iter().filter(|pair| is_of(pair)).max_by(|a, b| a.pct.total_cmp(&b.pct)).copied()
        };
        let hosts: BTreeSet<&str> =
            MATRIX.iter().filter_map(|guest| best(&|pair| pair.guest == *guest)).map(|pair| pair.host).collect();
        let guests: BTreeSet<&str> =
            MATRIX.iter().filter_map(|host| best(&|pair| pair.host == *host)).map(|pair| pair.guest).collect();
        told.push((workload, hosts.len(), guests.len()));
    }
    told.retain(|(_, hosts, guests)| *hosts > 0 && *guests > 0);
    if told.is_empty() {
        return None;
    }
    let n_both = told.iter().filter(|(_, hosts, guests)| *hosts > 1 && *guests > 1).count();
    let holds = Holds::of(n_both == told.len(), n_both > 0);
    let listed: Vec<String> = told
        .iter()
        .map(|(workload, hosts, guests)| {
            format!("{workload}: {hosts} hosts are the best of a guest, {guests} guests of a host")
        })
        .collect();
    Some((holds, listed.join("; ")))
}

/// Pairs without a figure: `guest on host, workload`.
#[must_use]
pub fn missing(experiment: &Experiment) -> Vec<String> {
    let mut missing = Vec::new();
    for workload in workloads(experiment) {
        let has = |guest: &str, host: &str| relative(experiment, guest, host, Server::Loop, workload).is_some();
        let pairs = MATRIX.iter().flat_map(|guest| MATRIX.iter().map(move |host| (guest, host)));
        missing.extend(
            pairs
                .filter(|(guest, host)| !has(guest, host))
                .map(|(guest, host)| format!("{guest} on {host}, {workload}")),
        );
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Frame, Options, set_figure};
    use crate::layout::Target;
    use crate::result::Round;

    /// A matrix whose figures are given by a function of guest, host and workload.
    fn matrix(ops: impl Fn(&str, &str, &str) -> f64) -> Experiment {
        let options = Options::new(Target::Directory("/".into()));
        let mut progress = |_: &crate::experiment::Progress| {};
        let mut experiment = Frame::new("nested-matrix", "", &options, &mut progress).experiment;
        experiment.cells = super::super::cells(false).iter().map(|plan| plan.cell()).collect();
        for cell in &mut experiment.cells {
            let (guest, host) = cell.layout.split_once("-on-").unwrap();
            let mut round = Round::default();
            let value = ops(guest, host, &cell.neighbour);
            set_figure(&mut round, OPS_PER_S, value);
            set_figure(&mut round, LATENCY_MEAN_MS, 1e3 / value);
            set_figure(&mut round, &of_layer(LOWER, "sequential_pct"), if host == "btrfs" { 10.0 } else { 90.0 });
            set_figure(&mut round, WRITE_AMPLIFICATION, if host == "btrfs" { 4.0 } else { 1.0 });
            cell.rounds.push(round);
        }
        experiment
    }

    fn of<'a>(findings: &'a [Finding], start: &str) -> &'a Finding {
        findings.iter().find(|finding| finding.statement.starts_with(start)).unwrap()
    }

    #[test]
    fn a_matrix_as_in_the_paper_confirms_it() {
        let experiment = matrix(|guest, host, workload| {
            let write = WRITES.contains(&workload);
            match (host, write) {
                (DEVICE, _) | (_, false) => 1000.0,
                ("ext2", true) => 860.0,
                ("btrfs", true) if guest == "xfs" => 330.0,
                (_, true) => {
                    if guest.len() % 2 == host.len() % 2 {
                        840.0
                    } else {
                        830.0
                    }
                }
            }
        });
        let findings = findings(&experiment);
        assert_eq!(of(&findings, "Reads").holds, Some(Holds::Yes));
        let writes = of(&findings, "Writes");
        assert_eq!(writes.holds, Some(Holds::Yes));
        assert!(writes.found.contains("worst: xfs on btrfs with sequential-write, 33 %"), "{}", writes.found);
        assert_eq!(of(&findings, "A host without").holds, Some(Holds::Yes));
        assert_eq!(of(&findings, "Latency").holds, Some(Holds::Partly));
        assert_eq!(of(&findings, "What the guest").holds, Some(Holds::Partly));
        let [best, worst] = extremes(&experiment, "mail-server").unwrap();
        assert_eq!((best.0.host, worst.0.guest, worst.0.host, worst.1), ("ext2", "xfs", "btrfs", 330.0));
        let why = why(&experiment, &worst.0, "mail-server");
        assert_eq!(why[0], "10 % of the disk's requests sequential (90 on the device)");
        assert_eq!(why[1], "4 bytes written to the disk for each byte (1 on the device)");
        assert!(missing(&experiment).is_empty());
    }

    #[test]
    fn a_matrix_without_losses_refutes_it_and_an_empty_one_says_nothing() {
        let same = findings(&matrix(|_, _, _| 1000.0));
        assert_eq!(of(&same, "Writes").holds, Some(Holds::No));
        assert_eq!(of(&same, "Latency").holds, Some(Holds::No));
        assert_eq!(of(&same, "Guest and host").holds, Some(Holds::No));
        let mut empty = matrix(|_, _, _| 1.0);
        empty.cells.iter_mut().for_each(|cell| cell.rounds.clear());
        assert!(findings(&empty).iter().all(|finding| finding.holds.is_none()));
        assert!(missing(&empty).is_empty());
        let mut holed = matrix(|_, _, _| 1.0);
        holed.cells.iter_mut().filter(|cell| cell.layout == "jfs-on-xfs").for_each(|cell| cell.rounds.clear());
        assert_eq!(missing(&holed).len(), 8);
        assert_eq!(missing(&holed)[0], "jfs on xfs, sequential-read");
    }
}
