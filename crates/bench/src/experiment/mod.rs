//! The experiments of docs/evidence: what is run in which order, and how figures come from it.
//!
//! Owns: cells, rounds, windows, and the JSON that is written after each round. Rounds are interleaved: round 1 of all cells,
//! then round 2, so that a machine that gets slower over time does not favour a cell.
//! Does not: judge the figures (`judge`), or show them (`report`).

pub(crate) mod attribution;
mod churn;
mod clone_read;
mod dbms_consolidation;
pub(crate) mod disk_models;
pub(crate) mod fsync_probe;
mod held;
mod journal_cost;
mod journal_fsync;
pub(crate) mod launch_storm;
mod machine;
pub(crate) mod share_correction;
mod sharing;
pub(crate) mod volume_overhead;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_core::model::{Calibration, Mode};
use bulkhead_core::units::{Bytes, Share};
use bulkhead_engine::observe::{Observatory, Observe as _};
use bulkhead_sys::roots::Roots;

use crate::calls::{METADATA, OTHER};
use crate::cgroup_run::{Cancel, Starter};
use crate::cleanup::with_removal;
use crate::layout::{Bench, Controller, Layout, Target};
use crate::result::{Cell, Experiment, FORMAT, Round};
pub use machine::Simulated;

/// The experiments that can be run.
pub const NAMES: [&str; 11] = [
    "fsync-probe",
    "dbms-consolidation",
    "journal-fsync",
    "volume-overhead",
    "journal-cost",
    "attribution",
    "churn",
    "share-correction",
    "clone-read",
    "launch-storm",
    disk_models::NAME,
];

/// The neighbours of `attribution` that say what observing costs; they need neither containers nor a disk.
pub const OVERHEAD: [&str; 3] = [METADATA, OTHER, attribution::PROGRAMS];

/// The disk models of the lab on which an experiment has targets.
#[must_use]
pub fn disks(name: &str) -> &'static [&'static str] {
    match name {
        disk_models::NAME | "volume-overhead" => &["hdd", "ssd", "nvme"],
        // On nvme their loads are bound by 10^9 instructions a second, and not by the disk.
        "dbms-consolidation" | "journal-fsync" => &["hdd", "ssd", "nvme-slow"],
        // What a flush costs decides here.
        "fsync-probe" => &["hdd", "hdd-nocache", "ssd", "nvme-slow"],
        // They compute as much as they read: on a disk as fast as it is, 10^9 instructions a second would be the limit.
        "clone-read" => &["hdd-slow", "ssd"],
        "share-correction" => &["hdd-slow", "ssd-slow"],
        "launch-storm" => &["hdd-slow"],
        // They work in memory.
        "journal-cost" | "attribution" | "churn" => &["fast"],
        _ => &["hdd"],
    }
}

/// How an experiment is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// On what.
    pub target: Target,
    /// The short form: one round, short windows.
    pub quick: bool,
    /// Number of rounds (default: 3, or 1 in the short form).
    pub rounds: Option<u32>,
    /// Only these neighbours; all when it is empty.
    pub neighbours: Vec<String>,
    /// Only these configurations, as `shared/none`; all when it is empty.
    pub configs: Vec<String>,
    /// What io.cost is told about the device; configurations with io.cost fail without.
    pub model: Option<Calibration>,
    /// Where the JSON goes, as `NAME.json`; nowhere when it is `None`.
    pub out_dir: Option<PathBuf>,
    /// The `bulkhead` program, for the loads.
    pub program: PathBuf,
    /// What is simulated of the machine.
    pub simulated: Simulated,
    /// Calls the experiment off.
    pub cancel: Cancel,
}

impl Options {
    /// The full form on a target, without a model for io.cost; loads are run by this program itself.
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

/// What an experiment is about to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// What, in a few words.
    pub doing: String,
    /// Steps done and steps in all; a step is one round of one cell.
    pub done: usize,
    /// See `done`.
    pub of: usize,
    /// Time since the start.
    pub elapsed: Duration,
    /// Figures of the step that was just completed, if one was.
    pub completed: Option<(String, Round)>,
}

/// Told what happens.
pub type OnProgress<'a> = &'a mut dyn FnMut(&Progress);

/// Runs an experiment by name. Blocks, for as long as `expected_duration` says; call it from a thread that lives as long,
/// because children end with the thread that started them.
///
/// # Errors
/// When something cannot be set up, run or measured; what was measured until then is in the JSON file.
pub fn run(name: &str, options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    match name {
        "fsync-probe" => fsync_probe::run(options, progress),
        "dbms-consolidation" => dbms_consolidation::run(options, progress),
        "journal-fsync" => journal_fsync::run(options, progress),
        "volume-overhead" => volume_overhead::run(options, progress),
        "journal-cost" => journal_cost::run(options, progress),
        "attribution" => attribution::run(options, progress),
        "churn" => churn::run(options, progress),
        "share-correction" => share_correction::run(options, progress),
        "clone-read" => clone_read::run(options, progress),
        "launch-storm" => launch_storm::run(options, progress),
        disk_models::NAME => disk_models::run(options, progress),
        _ => bail!("there is no experiment {name}: {} can be run", NAMES.join(", ")),
    }
}

/// How long an experiment takes with these options, set-up included, on an emulated machine; `None` for an unknown name.
#[must_use]
pub fn expected_duration(name: &str, options: &Options) -> Option<Duration> {
    let rounds = u64::from(match name {
        "journal-cost" => journal_cost::n_rounds(options),
        "churn" => churn::N_ROUNDS,
        _ => n_rounds(options),
    });
    let (n_cells, windows) = match name {
        "fsync-probe" => (chosen(&fsync_probe::cells(options), options).len(), fsync_probe::seconds(options)),
        "dbms-consolidation" => {
            (chosen(&dbms_consolidation::cells(options), options).len(), dbms_consolidation::seconds(options))
        }
        "journal-fsync" => (chosen(&journal_fsync::cells(), options).len(), journal_fsync::seconds(options.quick)),
        "volume-overhead" => (volume_overhead::N_CELLS, volume_overhead::seconds(options.quick)),
        "journal-cost" => (journal_cost::N_CELLS, journal_cost::SECONDS),
        "attribution" => (attribution::N_CELLS, attribution::seconds(options.quick)),
        "churn" => (1, churn::seconds(options.quick)),
        "share-correction" => {
            (chosen(&share_correction::cells(options.quick), options).len(), share_correction::seconds(options.quick))
        }
        "clone-read" => (clone_read::N_CELLS, clone_read::SECONDS),
        "launch-storm" => (launch_storm::N_CELLS, launch_storm::SECONDS),
        disk_models::NAME => (disk_models::N_CELLS, disk_models::seconds(options.quick)),
        _ => return None,
    };
    let set_up = match name {
        "dbms-consolidation" => 90.0,
        "volume-overhead" => volume_overhead::SET_UP_SECONDS,
        "clone-read" => clone_read::SET_UP_SECONDS,
        "launch-storm" => launch_storm::SET_UP_SECONDS,
        disk_models::NAME => disk_models::SET_UP_SECONDS,
        _ => 45.0,
    };
    let steps = rounds.saturating_mul(u64::try_from(n_cells).unwrap_or(u64::MAX));
    Some(Duration::from_secs_f64(set_up + steps as f64 * windows))
}

/// A configuration with a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    layout: Layout,
    controller: Controller,
    neighbour: &'static str,
    /// How shares are held, beyond weights that stay as they are.
    hold: Option<Mode>,
}

impl Plan {
    /// Volumes of their own with accounting, and shares enforced.
    fn held(controller: Controller, neighbour: &'static str) -> Self {
        Self { layout: Layout::OwnAccounted, controller, neighbour, hold: Some(Mode::Correcting) }
    }

    /// `shared/iocost`, or `shared+hold/iocost`.
    fn config(self) -> String {
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

    fn id(self) -> String {
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
fn product(configs: &[(Layout, Controller)], neighbours: &[&'static str]) -> Vec<Plan> {
    let with = |&neighbour: &&'static str| {
        configs.iter().map(move |&(layout, controller)| Plan { layout, controller, neighbour, hold: None })
    };
    neighbours.iter().flat_map(with).collect()
}

/// The cells that the options ask for.
fn chosen(all: &[Plan], options: &Options) -> Vec<Plan> {
    let is_chosen =
        |plan: &&Plan| is_wanted(&options.neighbours, plan.neighbour) && is_wanted(&options.configs, &plan.config());
    all.iter().filter(is_chosen).copied().collect()
}

/// Whether a list of names has this one; an empty list stands for all.
fn is_wanted(list: &[String], word: &str) -> bool {
    list.is_empty() || list.iter().any(|name| name == word)
}

/// Refuses neighbours and configurations that an experiment does not have, before anything is set up for it.
///
/// # Errors
/// Names what is unknown, and what is known.
pub fn check_choice(name: &str, options: &Options) -> Result<()> {
    // Configuration and neighbour of each cell, empty where there is nothing to choose.
    let of_plans = |plans: Vec<Plan>| plans.iter().map(|plan| (plan.config(), plan.neighbour.to_owned())).collect();
    let all: Vec<(String, String)> = match name {
        "fsync-probe" => of_plans(fsync_probe::cells(options)),
        "dbms-consolidation" => of_plans(dbms_consolidation::cells(options)),
        "journal-fsync" => of_plans(journal_fsync::cells()),
        "share-correction" => of_plans(share_correction::cells(options.quick)),
        disk_models::NAME => disks(name).iter().flat_map(|disk| disk_models::choices(disk)).collect(),
        "attribution" => {
            let groups = [attribution::CONTAINERS].into_iter().chain(OVERHEAD);
            groups.map(|group| (String::new(), group.to_owned())).collect()
        }
        _ => Vec::new(),
    };
    let of_config = |(config, _): &(String, String)| config.clone();
    let of_neighbour = |(_, neighbour): &(String, String)| neighbour.clone();
    let known = |part: &dyn Fn(&(String, String)) -> String| -> BTreeSet<String> {
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
    let is_chosen = |(config, neighbour): &(String, String)| {
        is_wanted(&options.configs, config) && is_wanted(&options.neighbours, neighbour)
    };
    if !all.is_empty() && !all.iter().any(is_chosen) {
        bail!("{name} has no cell with one of these configurations and one of these neighbours");
    }
    Ok(())
}

fn n_rounds(options: &Options) -> u32 {
    options.rounds.unwrap_or(if options.quick { 1 } else { 3 }).max(1)
}

/// The frame of an experiment: rounds over cells, progress, and the file.
struct Frame<'a, 'p> {
    options: &'a Options,
    experiment: Experiment,
    progress: OnProgress<'p>,
    started: Instant,
    done: usize,
    of: usize,
}

impl<'a, 'p> Frame<'a, 'p> {
    fn new(name: &str, about: &str, options: &'a Options, progress: OnProgress<'p>) -> Self {
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

    fn say(&mut self, doing: &str) {
        self.tell(doing, None);
    }

    fn tell(&mut self, doing: &str, completed: Option<(String, Round)>) {
        let (done, of, elapsed) = (self.done, self.of, self.started.elapsed());
        (self.progress)(&Progress { doing: doing.to_owned(), done, of, elapsed, completed });
    }

    fn starter(&self) -> Starter {
        Starter { program: self.options.program.clone(), cancel: self.options.cancel.clone() }
    }

    fn set_up(&mut self, shares: (u32, u32), shared_journal: Option<Bytes>) -> Result<Bench> {
        self.say("setting up pool, volumes and tenants");
        let shares = (Share::try_from(shares.0)?, Share::try_from(shares.1)?);
        let bench = Bench::set_up(&self.options.target, shares, shared_journal)?;
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

    /// Runs all rounds of all cells, writing the file after each round. A cell that fails is noted and the others go on,
    /// unless the experiment is called off.
    fn rounds(&mut self, plans: &[Plan], mut step: impl FnMut(&mut Self, Plan) -> Result<Round>) -> Result<()> {
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
    fn observed_rounds(
        &mut self,
        plans: &[Plan],
        mut step: impl FnMut(&mut Self, &Observatory, Plan) -> Result<Round>,
    ) -> Result<()> {
        let observatory = Observatory::new(Roots::host());
        let done = self.rounds(plans, |frame, plan| step(frame, &observatory, plan));
        observatory.stop();
        done
    }

    /// A round of a cell is done.
    fn finish(&mut self, cell: usize, round: Round) -> Result<()> {
        self.done += 1;
        let id = self.experiment.cells[cell].id();
        self.experiment.cells[cell].rounds.push(round.clone());
        self.tell("done", Some((id, round)));
        self.write()
    }

    fn write(&self) -> Result<()> {
        let Some(dir) = &self.options.out_dir else { return Ok(()) };
        write_json(dir, &self.experiment)
    }

    /// Sets up, works, and removes what was set up, also when the work fails; the file is written once more at the end.
    fn with_bench(
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

/// Puts a figure into a round, if there is one.
fn put(round: &mut Round, name: &str, value: impl Into<Option<f64>>) {
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
        assert_eq!(chosen(&all, &options()).len(), 24);
        let some = Options {
            neighbours: vec!["streams".into()],
            configs: vec!["shared/none".into(), "own+accounting/iocost".into()],
            ..options()
        };
        let ids: Vec<String> = chosen(&all, &some).into_iter().map(Plan::id).collect();
        assert_eq!(ids, ["shared/none/streams", "own+accounting/iocost/streams"]);
    }

    #[test]
    fn what_an_experiment_does_not_have_is_refused_by_name() {
        let of = |neighbour: &str, config: &str| {
            let words = |word: &str| if word.is_empty() { vec![] } else { vec![word.to_owned()] };
            Options { neighbours: words(neighbour), configs: words(config), ..options() }
        };
        assert!(check_choice("fsync-probe", &of("streams", "shared/none")).is_ok());
        assert!(check_choice("clone-read", &of("", "")).is_ok());
        assert!(check_choice("disk-models", &of("depth-32", "random-read")).is_ok());
        assert!(OVERHEAD.iter().all(|group| check_choice("attribution", &of(group, "")).is_ok()));
        let refused = |name, neighbour, config| check_choice(name, &of(neighbour, config)).unwrap_err().to_string();
        assert!(refused("fsync-probe", "nobody", "").contains("no neighbour \"nobody\""));
        assert!(refused("dbms-consolidation", "", "own").contains("own+accounting/iocost"));
        // Those that are run as a whole do not run as a whole instead.
        for name in ["clone-read", "launch-storm", "volume-overhead", "journal-cost", "churn"] {
            assert!(refused(name, "anything", "").contains("no neighbour \"anything\", nor another"), "{name}");
            assert!(refused(name, "", "drr").contains("no configuration \"drr\", nor another"), "{name}");
        }
        assert!(refused("disk-models", "depth-3", "").contains("choose from depth-1, "));
        assert!(refused("attribution", "", "shared/none").contains("no configuration"));
        // It has both, and not together.
        assert!(refused("dbms-consolidation", "none", "own+accounting+hold/iocost").contains("no cell"));
    }

    #[test]
    fn short_forms_stay_within_ten_minutes() {
        let quick = Options { quick: true, ..options() };
        for name in NAMES {
            let expected = expected_duration(name, &quick).unwrap();
            assert!(expected <= Duration::from_secs(600), "{name}: {expected:?}");
            let full = expected_duration(name, &options()).unwrap();
            // An hour, to the minute; the limits of fsync-probe are enforced for 75 s before they are measured.
            let most = if name == "fsync-probe" { 3660 + 9 * 75 } else { 3660 };
            assert!(full < Duration::from_secs(most), "{name}: {full:?}");
        }
        assert_eq!(expected_duration("nothing", &quick), None);
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
                options.cancel.call_off();
                bail!("interrupted in the middle");
            }
            let mut round = Round::default();
            put(&mut round, "x_ms", 1.0);
            put(&mut round, "nothing_ms", f64::NAN);
            Ok(round)
        });
        assert_eq!(outcome.unwrap_err().to_string(), "interrupted");
        assert_eq!(order, ["shared", "own", "shared", "own"]);
        let text = std::fs::read(dir.path().join("fsync-probe.json")).unwrap();
        let kept: Experiment = serde_json::from_slice(&text).unwrap();
        assert_eq!(kept.cells.iter().map(|cell| cell.rounds.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(kept.cells[0].rounds[0].figures.len(), 1);
    }

    #[test]
    fn an_unknown_experiment_names_the_known_ones() {
        let error = run("nothing", &options(), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("fsync-probe"), "{error}");
    }
}
