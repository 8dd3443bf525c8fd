//! Columns of the experiments that only the evidence has, and the figures that stand in them.

use bulkhead_core::observe::cost::{Call, CallCost, CostRun};
use bulkhead_measure::journal_cost::{MAX_CALLS, N_FEW};
use bulkhead_measure::report::grid::{Column, Value, column, part_of, plain, shown};
use bulkhead_measure::report::text::{digits, factor, number, percent, percent_exact};
use bulkhead_measure::result::{Cell, Experiment, Round, Spread, spread};

use super::paper;
use crate::experiment::attribution::PLAYERS;
use crate::experiment::disk_models::published::{self, Mark};
use crate::figure as f;

/// The raw device's cell.
pub(crate) fn raw_cell(experiment: &Experiment) -> Option<&Cell> {
    experiment.cells.iter().find(|cell| cell.layout == "raw")
}

/// Percent of the raw device.
pub(crate) fn pct_of_raw(experiment: &Experiment, cell: &Cell, name: &str) -> Option<Spread> {
    part_of(cell, raw_cell(experiment), name, 100.0)
}

/// No journal comes near 1 PiB: a larger figure is damaged, and sums could overflow.
const JOURNAL_BYTES_MAX: f64 = (1u64 << 50) as f64;

/// The cost of a call, from the rounds of its cell.
pub(crate) fn call_cost(cell: &Cell) -> Option<CallCost> {
    let call = Call::ALL.into_iter().find(|call| call.word() == cell.layout)?;
    let run = |round: &Round| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 2^50")]
        let of = |name| {
            let bytes = round.figures.get(name).filter(|bytes| (0.0..JOURNAL_BYTES_MAX).contains(*bytes));
            bytes.map(|bytes| bytes.round() as u64)
        };
        Some(CostRun { few_bytes: of(f::JOURNAL_BYTES_OF_FEW)?, bytes: of(f::JOURNAL_BYTES)? })
    };
    let runs = cell.rounds.iter().filter_map(run).collect();
    CallCost::of(&cell.neighbour, call, MAX_CALLS, N_FEW, runs)
}

/// The slowdown of a clone that looks for blocks that no peer has, percent: blocks that no peer ever had, and blocks that peers no longer have.
fn miss_costs_pct(experiment: &Experiment, cell: &Cell) -> [Option<Spread>; 2] {
    let off = experiment.cell("off", &cell.controller, &cell.neighbour).filter(|off| off.layout != cell.layout);
    [f::FIRST_CLONE_BYTES_PER_S, f::STALE_BYTES_PER_S].map(|name| {
        let rounds = off?.rounds.iter().zip(&cell.rounds);
        spread(rounds.filter_map(|(off, with)| Some(100.0 * (off.figures.get(name)? / with.figures.get(name)? - 1.0))))
    })
}

/// The worse of [`miss_costs_pct`].
pub(crate) fn worse_miss_cost_pct(experiment: &Experiment, cell: &Cell) -> Option<Spread> {
    miss_costs_pct(experiment, cell).into_iter().flatten().max_by(|a, b| a.median.total_cmp(&b.median))
}

/// The reduction of a figure by sharing, percent, round by round.
pub(crate) fn saved_pct(experiment: &Experiment, cell: &Cell, name: &str) -> Option<Spread> {
    let off = experiment.cell("off", &cell.controller, &cell.neighbour).filter(|off| off.layout != cell.layout)?;
    let rounds = off.rounds.iter().zip(&cell.rounds);
    spread(rounds.filter_map(|(off, with)| Some(100.0 * (1.0 - with.figures.get(name)? / off.figures.get(name)?))))
}

/// The quotient of two figures of the same round in percent.
pub(crate) fn ratio_pct(cell: &Cell, above: &str, below: &str) -> Option<Spread> {
    let found = cell.ratio(above, below)?;
    Some(Spread { min: 100.0 * found.min, median: 100.0 * found.median, max: 100.0 * found.max })
}

/// CPU time that observation adds to a call, nanoseconds.
pub(crate) fn observing_ns(cell: &Cell) -> Option<Spread> {
    let rounds = cell.rounds.iter().map(|round| &round.figures);
    spread(rounds.filter_map(|figures| Some(figures.get(f::OVERHEAD_PCT)? / 100.0 * figures.get(f::CPU_NS_PER_CALL)?)))
}

/// A container's charge and its fair share, percent of all.
fn charged_and_fair(cell: &Cell, player: &str) -> Option<Value> {
    let of = |what: &str| Some(cell.figure(&format!("{player}_{what}_pct"))?.median);
    let (charged, fair) = (of("charged")?, of("shapley")?);
    Some(Value { middle: format!("{} / {}", percent_exact(charged), percent_exact(fair)), ends: None })
}

/// Its charge estimated from numbers of calls, with measured and published weights.
fn by_counts(cell: &Cell, player: &str) -> Option<Value> {
    let (here, paper) = (cell.figure(&f::estimate(player))?.median, cell.figure(&f::paper_estimate(player))?.median);
    Some(Value { middle: format!("{} / {}", percent_exact(here), percent_exact(paper)), ends: None })
}

/// Columns of two tenants that both call fsync.
pub(crate) const PAIR: &[Column] = &[
    column("fsync A", "mean ms", true, |_, c| shown(c.figure(f::FSYNC_A_MEAN_MS), digits)),
    column("fsync B", "mean ms", true, |_, c| shown(c.figure(f::FSYNC_B_MEAN_MS), digits)),
    column("fsync", "B/A", true, |_, c| shown(c.ratio(f::FSYNC_B_MEAN_MS, f::FSYNC_A_MEAN_MS), factor)),
    column("paper's", "A / B ms", false, |_, c| {
        let (a, b) = paper::pair_fsync_ms(&c.layout).filter(|_| c.figure(f::FSYNC_A_MEAN_MS).is_some())?;
        Some(Value { middle: format!("{} / {}", number(a), number(b)), ends: None })
    }),
];

/// Columns of all others.
pub(crate) const OTHERS: &[Column] = &[
    column("share A", "mean", true, |_, c| shown(c.figure(f::HELD_SHARE_A_PCT), percent_exact)),
    column("share A", "promised", false, |_, c| {
        plain(c.figure(f::PROMISED_SHARE_A_PCT).map(|share| share.median), percent_exact)
    }),
    column("off promised", "mean, points", true, |_, c| shown(c.figure(f::OFF_MEAN_POINTS), number)),
    column("off promised", "any 5 s, points", true, |_, c| shown(c.figure(f::OFF_WINDOW_POINTS), number)),
    column("journal", "of all bytes", false, |_, c| shown(c.figure(f::JOURNAL_PCT), percent_exact)),
    column("device", "MB/s", false, |_, c| {
        c.figure(f::HELD_SHARE_A_PCT).and(shown(c.figure(f::DEVICE_BYTES_PER_S), |v| digits(v / 1e6)))
    }),
    column("holding", "CPU", false, |_, c| shown(c.figure(f::HOLDING_CPU_PCT), percent_exact)),
    column("4K + fsync", "IOPS", false, |_, c| shown(c.figure(f::RANDOM_IOPS), digits)),
    column("4K + fsync", "of raw", true, |e, c| shown(pct_of_raw(e, c, f::RANDOM_IOPS), percent_exact)),
    column("32 threads", "of raw", true, |e, c| shown(pct_of_raw(e, c, f::DEEP_IOPS), percent_exact)),
    column("128K seq.", "MB/s", false, |_, c| shown(c.figure(f::SEQUENTIAL_BYTES_PER_S), |v| digits(v / 1e6))),
    column("128K seq.", "of raw", true, |e, c| shown(pct_of_raw(e, c, f::SEQUENTIAL_BYTES_PER_S), percent_exact)),
    column("host commits", "per fsync", false, |_, c| shown(c.figure(f::HOST_COMMITS_PER_FSYNC), number)),
    column("CPU", "us per I/O", false, |_, c| shown(c.figure(f::CPU_US_PER_IO), digits)),
    column("its server's", "us per I/O", false, |_, c| shown(c.figure(f::SERVER_CPU_US_PER_IO), digits)),
    column("journal", "KiB", false, |_, c| shown(c.figure(f::JOURNAL_BYTES), |bytes| digits(bytes / 1024.0))),
    column("std dev", "of mean", true, |_, c| plain(call_cost(c).map(|cost| cost.variation), |v| format!("{v:.4}"))),
    column("paper's", "KiB", false, |_, c| plain(call_cost(c)?.paper.map(|paper| paper.mean_kib), digits)),
    column("each", "commit KiB", false, |_, c| plain(call_cost(c).map(|cost| cost.per_commit_bytes / 1024.0), digits)),
    column("each", "call B", false, |_, c| plain(call_cost(c).map(|cost| cost.per_call_bytes), digits)),
    column("fsyncs", "charged/fair", true, |_, c| charged_and_fair(c, PLAYERS[0])),
    column("storm", "charged/fair", true, |_, c| charged_and_fair(c, PLAYERS[1])),
    column("seldom", "charged/fair", true, |_, c| charged_and_fair(c, PLAYERS[2])),
    column("fsyncs by", "counts/paper's", true, |_, c| by_counts(c, PLAYERS[0])),
    column("storm by", "counts/paper's", true, |_, c| by_counts(c, PLAYERS[1])),
    column("seldom by", "counts/paper's", true, |_, c| by_counts(c, PLAYERS[2])),
    column("charged to", "nobody", true, |_, c| shown(c.figure(f::UNATTRIBUTED_PCT), percent_exact)),
    column("CPU", "overhead", true, |_, c| shown(c.figure(f::OVERHEAD_PCT), percent_exact)),
    column("CPU ns", "of observing", false, |_, c| shown(observing_ns(c), digits)),
    column("CPU ns", "per call", false, |_, c| shown(c.figure(f::CPU_NS_PER_CALL), digits)),
    column("memory", "MiB", true, |_, c| shown(c.figure(f::RSS_MIB), number)),
    column("table", "entries", true, |_, c| shown(c.figure(f::TABLE_ENTRIES), digits)),
    column("ns", "per run", false, |_, c| shown(c.figure(f::NS_PER_RUN), digits)),
    column("first", "MB/s", false, |_, c| shown(c.figure(f::FIRST_CLONE_BYTES_PER_S), |v| digits(v / 1e6))),
    column("second", "MB/s", false, |_, c| shown(c.figure(f::SECOND_CLONE_BYTES_PER_S), |v| digits(v / 1e6))),
    column("second", "of first", true, |_, c| {
        shown(c.ratio(f::SECOND_CLONE_BYTES_PER_S, f::FIRST_CLONE_BYTES_PER_S), factor)
    }),
    column("second", "of hit", true, |_, c| {
        shown(ratio_pct(c, f::SECOND_CLONE_BYTES_PER_S, f::CACHE_HIT_BYTES_PER_S), percent)
    }),
    column("disk", "reads", false, |_, c| shown(c.figure(f::SECOND_CLONE_DISK_READS), digits)),
    column("md5sum", "s", false, |_, c| shown(c.figure(f::MD5_SECONDS), number)),
    column("miss", "costs", true, |e, c| shown(worse_miss_cost_pct(e, c), percent_exact)),
    column("all ready", "s", true, |_, c| shown(c.figure(f::READY_SECONDS), number)),
    column("time", "saved", true, |e, c| shown(saved_pct(e, c, f::READY_SECONDS), percent)),
    column("disk", "reads", false, |_, c| shown(c.figure(f::LAUNCH_DISK_READS), digits)),
    column("disk", "MB", false, |_, c| shown(c.figure(f::LAUNCH_DISK_BYTES), |v| digits(v / 1e6))),
    column("copies", "in memory", false, |_, c| shown(c.figure(f::COPIES_IN_MEMORY), number)),
    column("index", "of hot", false, |_, c| shown(c.figure(f::INDEX_PCT), percent_exact)),
    column("database", "inserts/s", true, |_, c| shown(c.figure(f::POD_INSERTS_PER_S), digits)),
    column("fsync", "mean ms", true, |_, c| shown(c.figure(f::POD_FSYNC_MEAN_MS), digits)),
    column("fsync", "p99 ms", true, |_, c| shown(c.figure(f::POD_FSYNC_P99_MS), digits)),
    column("neighbour", "MB/s", false, |_, c| shown(c.figure(f::POD_NEIGHBOUR_BYTES_PER_S), |v| digits(v / 1e6))),
    column("", "IOPS", true, |_, c| shown(c.figure(f::IOPS), digits)),
    column("", "MB/s", false, |_, c| shown(c.figure(f::BYTES_PER_S), |v| digits(v / 1e6))),
    column("mean", "us", false, |_, c| shown(c.figure(f::LATENCY_MEAN_US), digits)),
    column("p99", "us", false, |_, c| shown(c.figure(f::LATENCY_P99_US), digits)),
    column("published,", "by k", false, |e, c| {
        let (drive, figure) = published::figure_of(e, c)?;
        let is_rate = published::name_of(figure.operation) == f::BYTES_PER_S;
        let (unit, word) = if is_rate { (1e6, " MB/s") } else { (1.0, "") };
        let mark = if figure.mark == Mark::Derived { " d" } else { "" };
        Some(Value { middle: format!("{}{word}{mark}", figure.scaled(drive.slowdown, unit)), ends: None })
    }),
    column("off", "published", true, |e, c| {
        let (drive, figure) = published::figure_of(e, c)?;
        plain(figure.measured(e).map(|found| figure.off_pct(found.median, drive.slowdown)), published::signed)
    }),
    column("verified", "instructions", false, |_, c| shown(c.figure(f::VERIFIED_INSTRUCTIONS), digits)),
];
