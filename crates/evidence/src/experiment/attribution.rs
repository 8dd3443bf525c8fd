//! `attribution`: charges of containers on a shared journal, compared with their costs alone and in combination; and the cost of observation.
//!
//! Three containers with scheduled work on one ext4 in memory, with its journal on a separate device. Each of the seven combinations runs
//! separately, on a new file system: the bytes written to the journal's device in each determine the Shapley value of every container, its fair share
//! of the joint cost. With all three, the observation has the charges.
//! Overhead: CPU time of the caller for batches of calls, alternately with and without the programs. Full form: 3 rounds of
//! about 5 minutes; short form: one round of 3 minutes. Neighbours are the groups of cells;
//! all but the containers also run on hosts without cgroups for them.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::observe::Observer;
use bulkhead_core::observe::cost::CallCost;
use bulkhead_core::observe::record::Kind;
use bulkhead_core::units::Bytes;
use bulkhead_measure::cgroup_run::{Load, wait_until};
use bulkhead_measure::experiment::{Extent, Frame, Method, OnProgress, Options, includes, n_rounds, set_figure};
use bulkhead_measure::journal_cost::{Features, MAX_CALLS, Request, costs, measure};
use bulkhead_measure::load::{LoadArgs, LoadKind};
use bulkhead_measure::result::{Cell, Experiment, Round};
use bulkhead_sys::bpf::{self, Program, Tracer};
use bulkhead_sys::cgroup;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::scratch::Scratch;

use super::containers::in_slice;
use crate::calls::{Batch, METADATA, OTHER, thread_cpu};
use crate::estimate::Counts;
use crate::figure as f;
use crate::shapley;

/// Its entry in the table of experiments.
pub(crate) const METHOD: Method = Method {
    name: "attribution",
    what: "what three containers on one journal are charged, and what observing them costs",
    choices: |_| [CONTAINERS].into_iter().chain(OVERHEAD).map(|group| (String::new(), group.to_owned())).collect(),
    extent: |options| Extent::new(options, N_CELLS, seconds(options.quick)),
    work: run,
};

const ABOUT: &str = "Three containers on one ext4 with an external journal, both in memory: `fsyncs` appends 4 KiB and calls fsync every \
    100 ms, `storm` makes and removes directories of 64 small files every 270 ms and never calls fsync, `seldom` appends and calls fsync \
    every 730 ms; no interval is a multiple of another, or they would keep step in one combination and not in the next. All seven \
    combinations run on fresh file systems; a container's Shapley value is its mean additional cost over all orders in which they could \
    have come. By counts: numbers of calls times what each call and commit costs, as measured here / by the weights of \
    Tobimatsu et al. Overhead: processor time of the calling thread, batches with and without the programs in turn.";

/// The containers.
pub(crate) const PLAYERS: [&str; 3] = ["fsyncs", "storm", "seldom"];
/// The neighbour of cells with combinations.
pub(crate) const CONTAINERS: &str = "containers";
/// All of them.
const ALL: usize = (1 << PLAYERS.len()) - 1;
/// The neighbour of cells with programs.
pub(crate) const PROGRAMS: &str = "programs";
/// Neighbours of the cells that measure the cost of observation, which need neither containers nor a disk.
pub const OVERHEAD: [&str; 3] = [METADATA, OTHER, PROGRAMS];
/// Repetitions of the loads for the programs.
const N_EXERCISES: usize = 20;
/// Duration of each combination, seconds.
const FULL: f64 = 25.0;
const QUICK: f64 = 12.0;
/// Batches of calls with and without programs, in pairs.
const N_PAIRS: usize = 11;
/// Minimum CPU time of a batch: some hundred times the cost of a timer interrupt.
const BATCH: Duration = Duration::from_millis(100);
/// Size of the journal, so that a full journal forces no commit.
const JOURNAL: Bytes = Bytes::mib(256);
/// Interval of polling the tracer, as in the daemon.
const POLL: Duration = Duration::from_millis(200);

/// Number of cells without those of programs: the combinations and the kinds of calls.
const N_CELLS: usize = ALL + Batch::ALL.len();

/// Duration of one round of one cell.
fn seconds(quick: bool) -> f64 {
    if quick { QUICK } else { FULL }
}

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    in_slice((METHOD.name, ABOUT), options, progress, work)
}

fn work(frame: &mut Frame<'_, '_>, roots: &Roots, slice: &CgroupPath) -> Result<()> {
    frame.say("loading the BPF programs");
    // The first mount loads ext4, which the programs look for.
    drop(Scratch::ext4(roots, JOURNAL, &[], &[])?);
    let mut tracer = Tracer::load(roots, bpf::Method::TypedTracepoints).context("the journals cannot be traced")?;
    if let Some(cause) = tracer.without_functions() {
        frame
            .experiment
            .notes
            .push(format!("No early-commit surcharge: the kernel refuses fentry programs ({cause})."));
    }
    let cgroups = PLAYERS.map(|player| slice.join(player));
    let cgroups: Vec<CgroupPath> = cgroups.into_iter().collect::<Result<_, _>>()?;
    let wanted = |group: &str| includes(&frame.options.neighbours, group);
    let sets: Vec<usize> = (1..=ALL).filter(|_| wanted(CONTAINERS)).collect();
    let batches: Vec<Batch> = Batch::ALL.into_iter().filter(|batch| wanted(batch.group())).collect();
    let programs = if wanted(PROGRAMS) { tracer.programs(roots)? } else { Vec::new() };
    if !sets.is_empty() {
        for cgroup in &cgroups {
            cgroup::create(roots, cgroup, &["io", "memory"]).context("a container's cgroup")?;
        }
    }
    let (n_rounds, seconds) = (n_rounds(frame.options), seconds(frame.options.quick));
    frame.experiment.disk.model = "memory".to_owned();
    frame.experiment.disk.parameters = "loop devices over memory, for file system and journal".to_owned();
    for (player, name) in PLAYERS.into_iter().enumerate().filter(|_| !sets.is_empty()) {
        let args = load(player, PathBuf::from("DIR"), seconds);
        frame.experiment.commands.push(format!("{name}: __load {}", args.argv().join(" ")));
    }
    let cell = |layout: String, neighbour: &str| Cell {
        layout,
        controller: String::new(),
        neighbour: neighbour.to_owned(),
        rounds: Vec::new(),
    };
    frame.experiment.cells = sets.iter().map(|&set| cell(name_of(set), CONTAINERS)).collect();
    frame.experiment.cells.extend(batches.iter().map(|batch| cell(batch.name().to_owned(), batch.group())));
    frame.experiment.cells.extend(programs.iter().map(|program| cell(program.name.clone(), PROGRAMS)));
    frame.of = usize::try_from(n_rounds).context("too many rounds")? * frame.experiment.cells.len();
    let weights = if sets.is_empty() { Vec::new() } else { weights(frame, roots)? };
    for number in 1..=n_rounds {
        let mut of_sets = BTreeMap::from([(0, 0.0)]);
        for (index, &set) in sets.iter().enumerate() {
            frame.say(&format!("round {number} of {n_rounds}: {}", name_of(set)));
            let seen = combination(frame, roots, &mut tracer, &cgroups, set, seconds)?;
            of_sets.insert(set, seen.bytes as f64);
            let mut round = Round::default();
            set_figure(&mut round, f::JOURNAL_BYTES, seen.bytes as f64);
            compare(&mut round, &seen, set, &of_sets);
            if set == ALL {
                estimates(&mut round, &seen, &weights);
            }
            frame.finish(index, round)?;
        }
        for (index, &batch) in batches.iter().enumerate() {
            frame.say(&format!("round {number} of {n_rounds}: overhead on {}", batch.name()));
            let round = overhead(roots, &mut tracer, batch)?;
            frame.finish(sets.len() + index, round)?;
        }
        if !programs.is_empty() {
            frame.say(&format!("round {number} of {n_rounds}: each program"));
            for (index, round) in each_program(roots, &mut tracer)?.into_iter().enumerate() {
                frame.finish(sets.len() + batches.len() + index, round)?;
            }
        }
    }
    Ok(())
}

/// The cost of a combination, and the charges.
struct Seen {
    /// Bytes written to the journal's device.
    bytes: u64,
    /// By container.
    charged: Vec<u64>,
    /// The activity of each member.
    counts: Vec<Counts>,
    unattributed: u64,
}

/// The name of the cell for a set of players.
pub(crate) fn name_of(set: usize) -> String {
    let members = PLAYERS.iter().enumerate().filter(|(player, _)| set & 1 << player != 0).map(|(_, name)| *name);
    members.collect::<Vec<_>>().join("+")
}

/// The cell of all containers together, with their charges.
pub(crate) fn cell_of_all<'a>(mut cells: impl Iterator<Item = &'a Cell>) -> Option<&'a Cell> {
    cells.find(|cell| PLAYERS.iter().all(|player| cell.figure(&f::off_shapley(player)).is_some()))
}

fn load(player: usize, dir: PathBuf, seconds: f64) -> LoadArgs {
    let (kind, interval_ms) = match PLAYERS[player] {
        "storm" => (LoadKind::Storm, 270),
        "seldom" => (LoadKind::Probe, 730),
        _ => (LoadKind::Probe, 100),
    };
    let storm = kind == LoadKind::Storm;
    LoadArgs {
        interval_ms: Some(interval_ms),
        threads: Some(1),
        sync_every: storm.then_some(0),
        ..LoadArgs::new(kind, &dir, seconds)
    }
}

fn combination(
    frame: &Frame<'_, '_>,
    roots: &Roots,
    tracer: &mut Tracer,
    cgroups: &[CgroupPath],
    set: usize,
    seconds: f64,
) -> Result<Seen> {
    let scratch = Scratch::ext4(roots, JOURNAL, &[], &[])?;
    // The mount is detached: children access it through this file descriptor.
    let root = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), scratch.root().as_raw_fd()));
    let members: Vec<usize> = (0..PLAYERS.len()).filter(|player| set & 1 << player != 0).collect();
    let (starter, mut loads) = (frame.starter(), Vec::new());
    for &player in &members {
        let args = load(player, root.join(PLAYERS[player]), seconds);
        loads.push(starter.load(&args, &roots.cgroup_dir(&cgroups[player]))?);
    }
    loads.iter().try_for_each(Load::await_prepared)?;
    scratch.settle().context("cannot write the scratch file system out")?;
    let mut observer = Observer::default();
    observer.set_file_systems([(scratch.fs_dev(), Vec::new())].into());
    tracer.reset()?;
    tracer.attach()?;
    let before = scratch.journal_written(roots)?;
    loads.iter_mut().try_for_each(Load::begin)?;
    loads.iter().try_for_each(|load| load.await_window(Duration::ZERO))?;
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end {
        wait_until(end.min(Instant::now() + POLL), &frame.options.cancel)?;
        let done = observer.step(tracer.poll()?);
        tracer.evict_shares(&done)?;
    }
    let counts = loads.into_iter().map(|load| Ok(Counts::from_load(&load.finish()?))).collect::<Result<_>>()?;
    scratch.settle().context("cannot write the scratch file system out")?;
    let bytes = scratch.journal_written(roots)?.saturating_sub(before);
    observer.finish(tracer.poll()?);
    tracer.detach();
    let totals = observer.totals();
    if totals.losses.any() || totals.unseen_commits > 0 {
        bail!("figures were lost: {:?}, {} commits were not seen", totals.losses, totals.unseen_commits);
    }
    let ids = cgroup::all_ids(roots).context("the numbers of the cgroups")?;
    // The superblock write of the emptied journal would be charged with the next commit, which does not follow.
    let pending: u64 =
        observer.pending_bytes().filter(|(dev, _)| *dev == scratch.fs_dev()).map(|(_, bytes)| bytes).sum();
    let mut seen = Seen { bytes, charged: vec![0; PLAYERS.len()], counts, unattributed: pending };
    for ((owner, dev, kind), charged) in &totals.journal_bytes {
        if *dev != scratch.fs_dev() || *kind != Kind::Commit {
            continue;
        }
        let path = ids.iter().find(|(id, _)| Some(*id) == *owner).map(|(_, path)| path.trim_start_matches('/'));
        match cgroups.iter().position(|cgroup| path == Some(&cgroup.to_string())) {
            Some(player) => seen.charged[player] += charged,
            None => seen.unattributed += charged,
        }
    }
    Ok(seen)
}

/// Adds charges, and the Shapley values of the members of the combination.
fn compare(round: &mut Round, seen: &Seen, set: usize, costs: &BTreeMap<usize, f64>) {
    let total = seen.bytes as f64;
    let charged: u64 = seen.charged.iter().sum();
    set_figure(round, f::NOT_CHARGED_BYTES, (total - (charged + seen.unattributed) as f64).abs());
    set_figure(round, f::UNATTRIBUTED_PCT, 100.0 * seen.unattributed as f64 / total);
    let fair = shapley::values(PLAYERS.len(), |players| costs.get(&(players & set)).copied().unwrap_or(0.0));
    for (player, name) in PLAYERS.into_iter().enumerate().filter(|(player, _)| set & 1 << player != 0) {
        let charged = seen.charged[player] as f64;
        set_figure(round, &format!("{name}_charged_pct"), 100.0 * charged / total);
        set_figure(round, &format!("{name}_shapley_pct"), 100.0 * fair[player] / total);
        set_figure(round, &f::off_shapley(name), 100.0 * (charged - fair[player]).abs() / fair[player]);
    }
}

/// Costs of calls on this machine, for the estimate.
fn weights(frame: &mut Frame<'_, '_>, roots: &Roots) -> Result<Vec<CallCost>> {
    frame.say("what each call costs");
    let cancel = frame.options.cancel.clone();
    let request = Request { features: vec![Features::Default], n_runs: 1, n_calls: MAX_CALLS, cancel };
    let mut measured = Vec::new();
    measure(roots, &request, &mut |one| {
        measured.push(one);
        Ok(())
    })?;
    Ok(costs(&request, &measured))
}

/// Adds the charge of each container estimated from numbers of calls, percent of all bytes written.
fn estimates(round: &mut Round, seen: &Seen, weights: &[CallCost]) {
    let percent = |bytes: Option<f64>| bytes.map(|bytes| 100.0 * bytes / seen.bytes as f64);
    for (counts, name) in seen.counts.iter().zip(PLAYERS) {
        set_figure(round, &f::estimate(name), percent(counts.by_weights(weights)));
        set_figure(round, &f::paper_estimate(name), percent(counts.by_paper()));
    }
}

/// CPU time of the same calls with and without the programs.
fn overhead(roots: &Roots, tracer: &mut Tracer, batch: Batch) -> Result<Round> {
    let scratch = Scratch::ext4(roots, JOURNAL, &[], &[])?;
    let subject = batch.prepare(scratch.root())?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    let before = thread_cpu();
    subject.run()?;
    let n_runs = (BATCH.as_nanos() / (thread_cpu() - before).as_nanos().max(1)).clamp(1, 1000);
    for pair in 0..N_PAIRS {
        // The order alternates, so that after-effects of one do not favour the other.
        for observed in [pair % 2 == 0, pair % 2 != 0] {
            if observed {
                tracer.attach()?;
            } else {
                tracer.detach();
            }
            // Code that has just been patched is slow at first, above all on an emulated CPU.
            for _ in 0..n_runs {
                subject.run()?;
            }
            scratch.settle().context("cannot write the scratch file system out")?;
            let before = thread_cpu();
            let n_calls: u32 = (0..n_runs).map(|_| subject.run()).sum::<Result<_, _>>()?;
            let ns = (thread_cpu() - before).as_secs_f64() * 1e9 / f64::from(n_calls);
            if observed { with.push(ns) } else { without.push(ns) }
        }
        tracer.poll()?;
    }
    tracer.detach();
    let mut round = Round::default();
    let ratios = with.iter().zip(&without).map(|(with, without)| 100.0 * (with / without - 1.0));
    set_figure(&mut round, f::OVERHEAD_PCT, bulkhead_measure::result::spread(ratios).map(|ratio| ratio.median));
    set_figure(
        &mut round,
        "cpu_ns_per_call_observed",
        bulkhead_measure::result::spread(with.iter().copied()).map(|ns| ns.median),
    );
    set_figure(
        &mut round,
        f::CPU_NS_PER_CALL,
        bulkhead_measure::result::spread(without.iter().copied()).map(|ns| ns.median),
    );
    Ok(round)
}

/// Run time of each program, from the kernel's statistics, which are enabled only for this.
fn each_program(roots: &Roots, tracer: &mut Tracer) -> Result<Vec<Round>> {
    let statistics = Tracer::statistics().context("statistics of BPF programs")?;
    let before = tracer.programs(roots)?;
    // Attached only once: on an emulated CPU, each attachment risks a kernel crash in the code that it patches.
    tracer.attach()?;
    for _ in 0..N_EXERCISES {
        let scratch = Scratch::ext4(roots, JOURNAL, &["-O", "fast_commit"], &[])?;
        scratch.exercise().context("cannot write to the scratch file system")?;
        tracer.poll()?;
    }
    tracer.detach();
    let after = tracer.programs(roots)?;
    drop(statistics);
    tracer.reset()?;
    let round = |(before, after): (&Program, &Program)| {
        let mut round = Round::default();
        let n_runs = after.n_runs - before.n_runs;
        set_figure(&mut round, "runs", n_runs as f64);
        set_figure(
            &mut round,
            f::NS_PER_RUN,
            (n_runs > 0).then(|| (after.run_ns - before.run_ns) as f64 / n_runs as f64),
        );
        set_figure(&mut round, f::VERIFIED_INSTRUCTIONS, after.n_verified as f64);
        round
    };
    Ok(before.iter().zip(&after).map(round).collect())
}
