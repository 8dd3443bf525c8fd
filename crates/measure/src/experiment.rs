//! The frame of all experiments, and the two of `bulkhead demo`: what is run in which order, and how figures come from it. Crate `evidence`
//! has the others.
//!
//! Owns: cells, rounds, windows, and the JSON that is written after each round. Rounds are interleaved: round 1 of all cells,
//! then round 2, so that a machine that gets slower over time does not favour a cell.
//! Does not: judge the figures (`judge` in crate `evidence`), or show them (`report`).

pub mod dbms_consolidation;
pub mod fsync_probe;
pub mod hold;
pub mod machine;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_core::model::{Calibration, Mode};
use bulkhead_core::units::{Bytes, Share};
use bulkhead_engine::observe::{Observatory, Observe as _};
use bulkhead_sys::file::read_limited;
use bulkhead_sys::roots::Roots;

use crate::cgroup_run::{Cancel, Starter};
use crate::cleanup::with_removal;
use crate::layout::{Bench, Controller, Layout, Target};
use crate::result::{Cell, Experiment, FORMAT, Round};
pub use machine::Simulated;

/// Limit of a result's size.
const RESULT_LIMIT: Bytes = Bytes::mib(256);

/// How an experiment is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The storage to run on.
    pub target: Target,
    /// The short form: one round, short windows.
    pub quick: bool,
    /// Number of rounds (default: 3, or 1 in the short form).
    pub rounds: Option<u32>,
    /// Only these neighbours; all if empty.
    pub neighbours: Vec<String>,
    /// Only these configurations, for example `shared/none`; all if empty.
    pub configs: Vec<String>,
    /// Parameters of io.cost for the device, which configurations with io.cost require.
    pub model: Option<Calibration>,
    /// Output directory for the JSON, `NAME.json`; `None` to write none.
    pub out_dir: Option<PathBuf>,
    /// The `bulkhead` program, for the loads.
    pub program: PathBuf,
    /// The simulated parts of the machine.
    pub simulated: Simulated,
    /// Cancels the experiment.
    pub cancel: Cancel,
}

impl Options {
    /// The full form on a target, without a model for io.cost; this program itself runs the loads.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Self {
            target,
            quick: false,
            rounds: None,
            neighbours: Vec::new(),
            configs: Vec::new(),
            model: None,
            out_dir: None,
            program: "/proc/self/exe".into(),
            simulated: Simulated::default(),
            cancel: Cancel::new(),
        }
    }
}

/// Progress of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// The next step, in a few words.
    pub doing: String,
    /// Completed steps; a step is one round of one cell.
    pub done: usize,
    /// Total steps.
    pub of: usize,
    /// Time since the start.
    pub elapsed: Duration,
    /// The figures of the step that was just completed, if any.
    pub completed: Option<(String, Round)>,
}

/// Called with each step.
pub type OnProgress<'a> = &'a mut dyn FnMut(&Progress);

/// A configuration and a neighbour that options can select; either is empty if there is no choice.
pub type Choice = (String, String);

/// The implementation of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Its name, also in its result.
    pub name: &'static str,
    /// One line about what it measures.
    pub what: &'static str,
    /// The choices of options, one for each cell; empty if it always runs as a whole.
    pub choices: fn(&Options) -> Vec<Choice>,
    /// The extent of the measurements with these options.
    pub extent: fn(&Options) -> Extent,
    /// Runs it, see [`Method::run`].
    pub work: fn(&Options, OnProgress<'_>) -> Result<Experiment>,
}

/// The extent of an experiment, with durations on an emulated machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// Duration of the set-up.
    pub set_up_seconds: f64,
    /// Number of rounds per cell.
    pub n_rounds: u32,
    /// Number of cells.
    pub n_cells: usize,
    /// Average duration of one round of one cell.
    pub round_seconds: f64,
}

impl Extent {
    /// The extent of an experiment with `n_cells`, after the usual set-up of pool, volumes and tenants.
    pub fn new(options: &Options, n_cells: usize, round_seconds: f64) -> Self {
        Self { set_up_seconds: 45.0, n_rounds: n_rounds(options), n_cells, round_seconds }
    }

    /// The same with another duration of the set-up.
    pub fn after(self, set_up_seconds: f64) -> Self {
        Self { set_up_seconds, ..self }
    }

    fn duration(self) -> Duration {
        let steps = f64::from(self.n_rounds) * self.n_cells as f64;
        Duration::from_secs_f64(self.set_up_seconds + steps * self.round_seconds)
    }
}

impl Method {
    /// Runs it. Blocks for about [`Method::expected_duration`]; call it from a thread that lives as long, because children end with the thread
    /// that started them.
    ///
    /// # Errors
    /// A failed set-up, run or measurement; the measurements so far are in the JSON file.
    pub fn run(&self, options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
        (self.work)(options, progress)
    }

    /// Duration with these options, including set-up, on an emulated machine.
    #[must_use]
    pub fn expected_duration(&self, options: &Options) -> Duration {
        (self.extent)(options).duration()
    }

    /// Refuses unknown neighbours and configurations, before anything is set up.
    ///
    /// # Errors
    /// The unknown name, with the known ones.
    pub fn check_choice(&self, options: &Options) -> Result<()> {
        let (name, all) = (self.name, (self.choices)(options));
        let of_config = |(config, _): &Choice| config.clone();
        let of_neighbour = |(_, neighbour): &Choice| neighbour.clone();
        let known = |part: &dyn Fn(&Choice) -> String| -> BTreeSet<String> {
            all.iter().map(part).filter(|word| !word.is_empty()).collect()
        };
        for (what, wanted, known) in [
            ("neighbour", &options.neighbours, known(&of_neighbour)),
            ("configuration", &options.configs, known(&of_config)),
        ] {
            match wanted.iter().find(|word| !known.contains(*word)) {
                Some(unknown) if known.is_empty() => {
                    bail!("{name} has no {what} {unknown:?}, nor another to choose: leave the option out")
                }
                Some(unknown) => {
                    let known: Vec<String> = known.into_iter().collect();
                    bail!("{name} has no {what} {unknown:?}: choose from {}", known.join(", "));
                }
                None => {}
            }
        }
        let is_chosen = |(config, neighbour): &Choice| {
            includes(&options.configs, config) && includes(&options.neighbours, neighbour)
        };
        if !all.is_empty() && !all.iter().any(is_chosen) {
            bail!("{name} has no cell with one of these configurations and one of these neighbours");
        }
        Ok(())
    }
}

/// A configuration with a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The layout of files.
    pub layout: Layout,
    /// The controller.
    pub controller: Controller,
    /// The neighbour: the load of the other tenant.
    pub neighbour: &'static str,
    /// How shares are enforced, if not by fixed weights alone.
    pub hold: Option<Mode>,
}

impl Plan {
    /// Own volumes with accounting, and enforced shares.
    #[must_use]
    pub fn held(controller: Controller, neighbour: &'static str) -> Self {
        Self { layout: Layout::OwnAccounted, controller, neighbour, hold: Some(Mode::Correcting) }
    }

    /// `shared/iocost`, or `shared+hold/iocost`.
    #[must_use]
    pub fn config(self) -> String {
        format!("{}/{}", self.layout_word(), self.controller.as_str())
    }

    fn layout_word(self) -> String {
        let hold = match self.hold {
            None => "",
            Some(Mode::Correcting) => "+hold",
            Some(Mode::Published) => "+published",
        };
        format!("{}{hold}", self.layout.as_str())
    }

    /// The same with the neighbour.
    #[must_use]
    pub fn id(self) -> String {
        format!("{}/{}", self.config(), self.neighbour)
    }

    fn cell(self) -> Cell {
        Cell {
            layout: self.layout_word(),
            controller: self.controller.as_str().to_owned(),
            neighbour: self.neighbour.to_owned(),
            rounds: Vec::new(),
        }
    }
}

/// All pairs of configurations and neighbours, neighbour by neighbour.
#[must_use]
pub fn product(configs: &[(Layout, Controller)], neighbours: &[&'static str]) -> Vec<Plan> {
    let with = |&neighbour: &&'static str| {
        configs.iter().map(move |&(layout, controller)| Plan { layout, controller, neighbour, hold: None })
    };
    neighbours.iter().flat_map(with).collect()
}

/// Volumes of block servers, without control and with the arbiter: on a disk that may have an arm, and not in a short form whose
/// configurations the options leave open.
pub(crate) fn served(options: &Options) -> &'static [(Layout, Controller)] {
    let is_short = options.quick && options.configs.is_empty();
    let has_them = options.target.may_have_arm() && !is_short;
    if has_them { &[(Layout::Served, Controller::None), (Layout::Served, Controller::Arbiter)] } else { &[] }
}

/// The cells that the options select.
#[must_use]
pub fn chosen(all: &[Plan], options: &Options) -> Vec<Plan> {
    let is_chosen =
        |plan: &&Plan| includes(&options.neighbours, plan.neighbour) && includes(&options.configs, &plan.config());
    all.iter().filter(is_chosen).copied().collect()
}

/// Whether a list contains a name; an empty list means all.
#[must_use]
pub fn includes(list: &[String], word: &str) -> bool {
    list.is_empty() || list.iter().any(|name| name == word)
}

/// The choices of options among cells.
#[must_use]
pub fn choices(plans: &[Plan]) -> Vec<Choice> {
    plans.iter().map(|plan| (plan.config(), plan.neighbour.to_owned())).collect()
}

/// No choices, for experiments that always run as a whole.
#[must_use]
pub fn no_choices(_: &Options) -> Vec<Choice> {
    Vec::new()
}

#[must_use]
pub fn n_rounds(options: &Options) -> u32 {
    options.rounds.unwrap_or(if options.quick { 1 } else { 3 }).max(1)
}

/// The frame of an experiment: rounds over cells, progress, and the file.
pub struct Frame<'a, 'p> {
    /// The options.
    pub options: &'a Options,
    /// The result so far.
    pub experiment: Experiment,
    /// Number of steps; a step is one round of one cell.
    pub of: usize,
    progress: OnProgress<'p>,
    started: Instant,
    done: usize,
}

impl fmt::Debug for Frame<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { options, experiment, of, started, done, .. } = self;
        let mut debug = f.debug_struct("Frame");
        debug.field("options", options).field("experiment", experiment).field("of", of);
        debug.field("started", started).field("done", done).finish_non_exhaustive()
    }
}

impl<'a, 'p> Frame<'a, 'p> {
    pub fn new(name: &str, about: &str, options: &'a Options, progress: OnProgress<'p>) -> Self {
        let experiment = Experiment {
            format: FORMAT,
            name: name.to_owned(),
            about: about.to_owned(),
            quick: options.quick,
            machine: machine::machine(&options.simulated),
            disk: crate::result::Disk::default(),
            commands: Vec::new(),
            cells: Vec::new(),
            notes: Vec::new(),
        };
        Self { options, experiment, progress, started: Instant::now(), done: 0, of: 0 }
    }

    pub fn say(&mut self, doing: &str) {
        self.report(doing, None);
    }

    fn report(&mut self, doing: &str, completed: Option<(String, Round)>) {
        let (done, of, elapsed) = (self.done, self.of, self.started.elapsed());
        (self.progress)(&Progress { doing: doing.to_owned(), done, of, elapsed, completed });
    }

    pub fn starter(&self) -> Starter {
        Starter { program: self.options.program.clone(), cancel: self.options.cancel.clone() }
    }

    fn set_up(&mut self, shares: (u32, u32), shared_journal: Option<Bytes>) -> Result<Bench> {
        self.say("setting up pool, volumes and tenants");
        let shares = (Share::try_from(shares.0)?, Share::try_from(shares.1)?);
        let bench = Bench::set_up(&self.options.target, &self.options.program, shares, shared_journal)?;
        self.experiment.disk = machine::disk(bench.device(), bench.dev(), &self.options.simulated);
        self.experiment.notes.extend_from_slice(bench.notes());
        let shared = match self.options.target {
            Target::Device { .. } => "a shared one of twice that",
            Target::Directory(_) => "the shared layout is two directories of the host file system",
        };
        self.experiment.notes.push(format!(
            "All layouts were set up once on the same device and stayed mounted: a volume of {} MiB for each tenant, {shared}. \
             Shares {} and {}.",
            bench.volume_bytes() >> 20,
            shares.0,
            shares.1
        ));
        if let Some(model) = &self.options.model {
            self.experiment.commands.push(format!("io.cost.model {}; io.cost.qos {}", model.model, model.qos));
        }
        Ok(bench)
    }

    /// Runs all rounds of all cells, and writes the file after each round. A failed cell is noted, and the others continue, unless the experiment
    /// is cancelled.
    pub fn rounds(&mut self, plans: &[Plan], mut step: impl FnMut(&mut Self, Plan) -> Result<Round>) -> Result<()> {
        if plans.is_empty() {
            bail!("no cell is left to run: check the neighbours and configurations asked for");
        }
        self.experiment.cells = plans.iter().map(|plan| plan.cell()).collect();
        let n_rounds = n_rounds(self.options);
        self.of = plans.len() * usize::try_from(n_rounds).context("too many rounds")?;
        let mut failed = 0;
        for number in 1..=n_rounds {
            for (index, plan) in plans.iter().enumerate() {
                self.options.cancel.check()?;
                self.say(&format!("round {number} of {n_rounds}: {}", plan.id()));
                match step(self, *plan) {
                    Ok(round) => self.finish(index, round)?,
                    Err(error) => {
                        self.options.cancel.check()?;
                        failed += 1;
                        self.done += 1;
                        let note = format!("{}, round {number}, failed: {error:#}", plan.id());
                        self.say(&note);
                        self.experiment.notes.push(note);
                        if failed > plans.len() {
                            return Err(error).context("too many cells failed");
                        }
                        self.write()?;
                    }
                }
            }
        }
        Ok(())
    }

    /// [`Self::rounds`] while the host is observed, for cells in which shares are enforced.
    pub fn observed_rounds(
        &mut self,
        plans: &[Plan],
        mut step: impl FnMut(&mut Self, &Observatory, Plan) -> Result<Round>,
    ) -> Result<()> {
        let observatory = Observatory::new(Roots::host());
        let done = self.rounds(plans, |frame, plan| step(frame, &observatory, plan));
        observatory.stop();
        done
    }

    /// Records a completed round of a cell.
    pub fn finish(&mut self, cell: usize, round: Round) -> Result<()> {
        self.record(cell, round);
        self.write()
    }

    /// The same without writing the file, which costs time if there are many cells.
    pub fn record(&mut self, cell: usize, round: Round) {
        self.done += 1;
        let id = self.experiment.cells[cell].id();
        self.experiment.cells[cell].rounds.push(round.clone());
        self.report("done", Some((id, round)));
    }

    /// Counts steps that are not taken: failed, or done by an earlier run.
    pub fn skip(&mut self, n_steps: usize) {
        self.done += n_steps;
    }

    pub fn write(&self) -> Result<()> {
        let Some(dir) = &self.options.out_dir else { return Ok(()) };
        write_json(dir, &self.experiment)
    }

    /// Sets up, works, and removes the set-up, even if the work fails; writes the file once more at the end.
    pub fn with_bench(
        mut self,
        shares: (u32, u32),
        shared_journal: Option<Bytes>,
        work: impl FnOnce(&mut Self, &Bench) -> Result<()>,
    ) -> Result<Experiment> {
        let bench = self.set_up(shares, shared_journal)?;
        let worked = work(&mut self, &bench);
        with_removal(worked, bench.remove())?;
        self.write()?;
        Ok(self.experiment)
    }
}

/// Writes `DIR/NAME.json` atomically.
fn write_json(dir: &Path, experiment: &Experiment) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut text = serde_json::to_vec_pretty(experiment).context("cannot encode the result")?;
    text.push(b'\n');
    let path = dir.join(format!("{}.json", experiment.name));
    bulkhead_sys::file::write_atomic(&path, &text).context("cannot write the result")
}

/// Takes over the rounds of an earlier run, if it was made in the same way.
///
/// # Errors
/// If there is no result in the directory, or it was measured in another way.
pub fn resume(experiment: &mut Experiment, dir: Option<&Path>) -> Result<()> {
    let path =
        dir.context("there is no directory with a result to continue")?.join(format!("{}.json", experiment.name));
    let text = read_limited(&path, RESULT_LIMIT).with_context(|| format!("cannot continue {}", path.display()))?;
    let before: Experiment =
        serde_json::from_slice(&text).with_context(|| format!("cannot read {}", path.display()))?;
    let differs = |what: &str| bail!("cannot continue {}: {what} differs; choose another directory", path.display());
    if before.machine != experiment.machine {
        return differs("the machine");
    }
    if before.disk != experiment.disk {
        return differs("the disk");
    }
    if (before.quick, &before.commands) != (experiment.quick, &experiment.commands) {
        return differs("how it was measured");
    }
    let mut known: BTreeMap<String, Vec<Round>> =
        before.cells.into_iter().map(|cell| (cell.id(), cell.rounds)).collect();
    for cell in &mut experiment.cells {
        cell.rounds = known.remove(&cell.id()).unwrap_or_default();
    }
    experiment.notes.extend(before.notes.into_iter().filter(|note| note.contains(FAILED)));
    Ok(())
}

/// In the note on a failed cell.
pub const FAILED: &str = ", failed: ";

/// Adds a figure to a round, if it has a value.
pub fn set_figure(round: &mut Round, name: &str, value: impl Into<Option<f64>>) {
    if let Some(value) = value.into().filter(|value| value.is_finite()) {
        round.figures.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options::new(Target::Directory("/nonexistent".into()))
    }

    #[test]
    fn filters_choose_cells() {
        let all = fsync_probe::cells(&options());
        assert_eq!(chosen(&all, &options()).len(), 30);
        let some = Options {
            neighbours: vec!["streams".into()],
            configs: vec!["shared/none".into(), "own+accounting/iocost".into()],
            ..options()
        };
        let ids: Vec<String> = chosen(&all, &some).into_iter().map(Plan::id).collect();
        assert_eq!(ids, ["shared/none/streams", "own+accounting/iocost/streams"]);
    }

    #[test]
    fn rounds_are_interleaved_and_kept_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { rounds: Some(2), out_dir: Some(dir.path().to_owned()), ..options() };
        let mut said = Vec::new();
        let mut progress = |p: &Progress| said.push(p.doing.clone());
        let mut frame = Frame::new("fsync-probe", "", &options, &mut progress);
        let plans = product(&[(Layout::Shared, Controller::None), (Layout::Own, Controller::Bfq)], &["storm"]);
        let mut order = Vec::new();
        let outcome = frame.rounds(&plans, |_, plan| {
            order.push(plan.layout.as_str());
            if order.len() == 4 {
                options.cancel.cancel();
                bail!("interrupted in the middle");
            }
            let mut round = Round::default();
            set_figure(&mut round, "x_ms", 1.0);
            set_figure(&mut round, "nothing_ms", f64::NAN);
            Ok(round)
        });
        assert_eq!(outcome.unwrap_err().to_string(), "interrupted");
        assert_eq!(order, ["shared", "own", "shared", "own"]);
        let text = std::fs::read(dir.path().join("fsync-probe.json")).unwrap();
        let kept: Experiment = serde_json::from_slice(&text).unwrap();
        assert_eq!(kept.cells.iter().map(|cell| cell.rounds.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(kept.cells[0].rounds[0].figures.len(), 1);
    }
}
