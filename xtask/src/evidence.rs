//! `cargo xtask evidence`: runs an experiment in virtual machines and writes `docs/evidence/NAME.{json,svg,md}`.
//!
//! A run on one disk replaces the stored results of that disk; a run of some cells replaces only these, if all conditions are the same. So an
//! experiment of many hours can run in parts. Results of less than the full form are written to `target/evidence` instead.
//! With `--here`, the part that needs no machine runs on this host's kernel and is added to the stored results.
//! `bulkhead_evidence::judge` has the thresholds. `--judge` only judges the stored JSON again; `--render` also writes its report and pictures
//! again.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead_evidence::experiments::{ALL, Entry, IN_KUBERNETES, OVERHEAD, named};
use bulkhead_evidence::judge::{MIN_ROUNDS, Verdict, judge};
use bulkhead_evidence::report::{files, markdown};
use bulkhead_lab::{DISK_WORD, say};
use bulkhead_measure::experiment::Options;
use bulkhead_measure::layout::Target;
use bulkhead_measure::result::{Cell, Experiment};
use clap::Args;

use crate::{check, lab};

/// A plain loop target on ublk by the author of the driver, to compare blockd with. A separate program, neither linked nor shipped. Built without its
/// GPU target, which requires OpenCL.
const RUBLK: (&str, &str, &[&str]) = ("rublk", "0.2.15", &["--locked", "--no-default-features"]);
/// Markers around the tables in docs/EVIDENCE.md.
const BEGIN: &str = "<!-- Written by `cargo xtask evidence`: -->";
const END: &str = "<!-- until here. -->";
/// The program that runs experiments in a guest.
const PROGRAM: &str = "bulkhead-evidence";
/// The name of an emulated CPU in results.
const EMULATED: &str = "tcg";
/// Time limit of one experiment on one disk.
const LIMIT: Duration = Duration::from_secs(3 * 3600);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The experiment (see --list).
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// List the experiments and exit.
    #[arg(long)]
    list: bool,
    /// Run the short form: one round, short windows, at most 10 minutes of guest time per disk; stored in target/evidence.
    #[arg(long)]
    quick: bool,
    /// Judge the stored JSON without running anything.
    #[arg(long, conflicts_with = "quick")]
    judge: bool,
    /// Regenerate the report and the pictures from the stored JSON.
    #[arg(long, conflicts_with_all = ["quick", "judge"])]
    render: bool,
    /// Measure the cost of observation on this machine's own kernel; the other stored results stay. For attribution only.
    #[arg(long, conflicts_with_all = ["judge", "render", "disk", "configs", "neighbours"])]
    here: bool,
    /// Only this disk model [default: all of the target]; stored results of others stay.
    #[arg(long, value_name = "MODEL")]
    disk: Option<String>,
    /// Only these configurations, as `shared/none`; with --disk, the other stored cells stay.
    #[arg(long = "config", value_name = "LAYOUT/CONTROLLER")]
    configs: Vec<String>,
    /// Only these neighbours; with --disk, the other stored cells stay.
    #[arg(long = "neighbour", value_name = "KIND")]
    neighbours: Vec<String>,
    /// Number of rounds [default: 3]; fewer are stored in target/evidence.
    #[arg(long)]
    rounds: Option<u32>,
    /// Use the release programs in the target directory without building them.
    #[arg(long)]
    no_build: bool,
}

impl Arguments {
    /// Whether the result can be stored: the full form, on a disk of the target.
    fn is_full(&self, entry: &Entry) -> bool {
        let wanted = self.disk.as_deref().map_or(!self.has_selection(), |disk| entry.disks.contains(&disk));
        !self.quick && wanted && self.rounds.is_none_or(|n| usize::try_from(n).is_ok_and(|n| n >= MIN_ROUNDS))
    }

    /// Whether it measures only some of the cells.
    fn has_selection(&self) -> bool {
        !self.configs.is_empty() || !self.neighbours.is_empty()
    }
}

/// Runs or judges one experiment; exit code 0 if its target is met, else 1.
///
/// # Errors
/// An unknown name, a failed boot or experiment, a file that cannot be read or written.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Some(name) = arguments.name.as_deref().filter(|_| !arguments.list) else {
        ALL.iter().for_each(|entry| say::result(format!("{:<20} {}", entry.method.name, entry.method.what)));
        return Ok(ExitCode::SUCCESS);
    };
    let entry = named(name)?;
    let stored = stored_dir().join(format!("{name}.json"));
    let mut is_stored = arguments.render || arguments.here || arguments.is_full(entry);
    let experiments = match arguments {
        Arguments { judge: true, .. } | Arguments { render: true, .. } => read(&stored)?,
        Arguments { here: true, .. } => {
            let (mut experiments, own) = (read(&stored)?, measure_here(entry, arguments)?);
            experiments.retain(|other| other.machine.kernel != own.machine.kernel);
            experiments.push(own);
            experiments
        }
        _ => {
            let mut measured = measure(entry, arguments)?;
            match arguments.disk {
                Some(_) if is_stored && stored.exists() => {
                    let stored = read(&stored)?;
                    if arguments.has_selection() && !measured.iter_mut().all(|one| keep_other_cells(one, &stored)) {
                        say::progress(
                            "not stored: machine, disk or commands differ from those of the other cells; run all cells",
                        );
                        is_stored = false;
                        measured
                    } else {
                        merged(entry, stored, measured)
                    }
                }
                _ => measured,
            }
        }
    };
    let verdict = judge(name, &experiments);
    if !arguments.judge {
        let directory = if is_stored { stored_dir() } else { lab::target_dir().join("evidence") };
        say::progress(format!("writing {}", directory.join(name).display()));
        write(&directory, name, &experiments, &verdict)?;
        if is_stored {
            let (path, text) = evidence_page()?;
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    say::result(&verdict.line);
    Ok(if verdict.met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(entry: &Entry, arguments: &Arguments) -> Result<Vec<Experiment>> {
    let (name, disks) = (entry.method.name, arguments.disk.as_deref().map_or(entry.disks.to_vec(), |disk| vec![disk]));
    entry.method.check_choice(&Options {
        quick: arguments.quick,
        neighbours: arguments.neighbours.clone(),
        configs: arguments.configs.clone(),
        ..Options::new(Target::Directory("/".into()))
    })?;
    let companions = companions(name);
    let place = if name == IN_KUBERNETES { lab::Place::Kubernetes } else { lab::Place::Alone };
    let programs = lab::Programs { no_build: arguments.no_build, ..lab::Programs::RELEASE };
    if entry.disks.is_empty() {
        return Ok(vec![measure_without_disk(name, arguments, &programs)?]);
    }
    let mut experiments = Vec::new();
    for disk in disks {
        let mut words = [name, "--device", DISK_WORD, "--out", "/lab/out"].map(str::to_owned).to_vec();
        words.extend(arguments.quick.then(|| "--quick".to_owned()));
        for (option, values) in [("--config", &arguments.configs), ("--neighbour", &arguments.neighbours)] {
            words.extend(values.iter().flat_map(|value| [option.to_owned(), value.clone()]));
        }
        words.extend(arguments.rounds.iter().flat_map(|n| ["--rounds".to_owned(), n.to_string()]));
        let disk = format!("{disk}:{}", lab::BENCH_DISK_MIB).parse()?;
        let (_, artifacts) = lab::run_on(disk, place, PROGRAM, &programs, words, &companions, LIMIT)?;
        // An interrupted experiment has written its results after each round.
        experiments.push(read_one(&artifacts.join("out").join(format!("{name}.json")))?);
    }
    Ok(experiments)
}

/// Runs an experiment that only computes, with the release programs on this machine.
fn measure_without_disk(name: &str, arguments: &Arguments, programs: &lab::Programs) -> Result<Experiment> {
    if arguments.disk.is_some() {
        bail!("{name} uses no disk: run it without --disk");
    }
    lab::build_with(programs, Some(PROGRAM))?;
    let out = lab::target_dir().join("evidence/here");
    let (directory, rounds) = (out.to_string_lossy(), arguments.rounds.map(|n| n.to_string()));
    let mut words = vec![name, "--out", &directory];
    words.extend(arguments.quick.then_some("--quick"));
    words.extend(rounds.iter().flat_map(|n| ["--rounds", n]));
    check::run_command(&lab::programs_dir(programs.release).join(PROGRAM), &words)?;
    read_one(&out.join(format!("{name}.json")))
}

fn read_one(path: &Path) -> Result<Experiment> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("cannot parse {}", path.display()))
}

/// The available programs that an experiment compares with.
fn companions(name: &str) -> Vec<PathBuf> {
    let (program, version, how) = RUBLK;
    if name != "volume-overhead" {
        return Vec::new();
    }
    let installed = check::installed(program, version, how);
    installed.inspect_err(|error| say::progress(format!("without {program}: {error:#}"))).into_iter().collect()
}

fn measure_here(entry: &Entry, arguments: &Arguments) -> Result<Experiment> {
    let name = entry.method.name;
    if name != "attribution" {
        bail!("{name} needs a machine of its own: only attribution runs with --here");
    }
    let options = Options {
        quick: arguments.quick,
        rounds: arguments.rounds,
        neighbours: OVERHEAD.map(str::to_owned).to_vec(),
        // No disk is used.
        ..Options::new(Target::Directory("/".into()))
    };
    options.cancel.on_signals().context("cannot wait for signals")?;
    let measured = entry.run(&options, &mut |progress| say::progress(&progress.doing));
    measured.with_context(|| format!("{name} on this machine"))
}

fn read(path: &Path) -> Result<Vec<Experiment>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read {}: run the evidence without --judge first", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("cannot parse {}", path.display()))
}

/// Merges new measurements into stored ones, by disk. Drops results of an emulated machine with another clock, and of disks that are no longer in the
/// target; keeps results of real machines.
fn merged(entry: &Entry, stored: Vec<Experiment>, measured: Vec<Experiment>) -> Vec<Experiment> {
    let mut all = measured;
    for one in stored {
        let has = |other: &Experiment| {
            (&other.disk.model, &other.machine.virtualisation) == (&one.disk.model, &one.machine.virtualisation)
        };
        let same_clock = all.first().is_some_and(|other| other.machine.clock == one.machine.clock);
        let is_real = one.machine.virtualisation != EMULATED;
        if !all.iter().any(has) && (is_real || same_clock && entry.disks.contains(&one.disk.model.as_str())) {
            all.push(one);
        }
    }
    // A disk that only the experiment itself names comes first.
    all.sort_by_key(|one| entry.disks.iter().position(|disk| *disk == one.disk.model).map_or(0, |place| place + 1));
    all
}

/// Adds stored cells that were not measured this time. Returns false if their conditions differ, so that they cannot be compared; results with another
/// clock are dropped in any case.
fn keep_other_cells(measured: &mut Experiment, stored: &[Experiment]) -> bool {
    let is_same =
        |one: &&Experiment| (&one.disk.model, &one.machine.clock) == (&measured.disk.model, &measured.machine.clock);
    let Some(before) = stored.iter().find(is_same) else { return true };
    let same =
        (&before.machine, &before.disk, &before.commands) == (&measured.machine, &measured.disk, &measured.commands);
    let has = |cell: &Cell| measured.cells.iter().any(|own| own.id() == cell.id());
    let kept: Vec<Cell> = before.cells.iter().filter(|cell| same && !has(cell)).cloned().collect();
    measured.cells.extend(kept);
    let notes: Vec<String> =
        before.notes.iter().filter(|note| same && !measured.notes.contains(note)).cloned().collect();
    measured.notes.extend(notes);
    same
}

fn write(directory: &Path, name: &str, experiments: &[Experiment], verdict: &Verdict) -> Result<()> {
    let put = |file: String, text: String| {
        let path = directory.join(file);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    put(format!("{name}.json"), serde_json::to_string_pretty(experiments)? + "\n")?;
    for (stem, svg) in files(name, experiments) {
        put(format!("{stem}.svg"), svg)?;
    }
    put(format!("{name}.md"), markdown::render(name, experiments, verdict))
}

/// docs/EVIDENCE.md with the tables of all stored experiments between its two markers; the rest of the page is handwritten.
fn evidence_page() -> Result<(PathBuf, String)> {
    let path = lab::workspace().join("docs/EVIDENCE.md");
    let page = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let parts = page.split_once(BEGIN).zip(page.rsplit_once(END));
    let ((before, _), (_, after)) = parts.with_context(|| format!("{} lacks {BEGIN} or {END}", path.display()))?;
    let mut tables = String::new();
    for name in ALL.iter().map(|entry| entry.method.name) {
        let stored = stored_dir().join(format!("{name}.json"));
        if stored.exists() {
            let experiments = read(&stored)?;
            tables += &format!("\n{}", markdown::summary(name, &experiments, &judge(name, &experiments)));
        }
    }
    Ok((path, format!("{before}{BEGIN}\n{tables}\n{END}{after}")))
}

fn stored_dir() -> PathBuf {
    lab::workspace().join("docs/evidence")
}

#[cfg(test)]
mod tests {
    use bulkhead_measure::result::Round;

    use super::*;

    fn on(disk: &str, clock: &str, about: &str) -> Experiment {
        let text = format!(
            r#"{{"format": 1, "name": "fsync-probe", "about": "{about}", "quick": false, "commands": [], "cells": [], "notes": [],
                "machine": {{"kernel": "", "n_cpus": 1, "memory_bytes": 0, "virtualisation": "tcg", "clock": "{clock}", "programs": {{}}}},
                "disk": {{"model": "{disk}", "parameters": "", "size_bytes": 0, "queue": {{}}}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_evidence_page_is_current() {
        let (path, fresh) = evidence_page().unwrap();
        let found = std::fs::read_to_string(&path).unwrap();
        assert!(found == fresh, "{} is stale: cargo xtask evidence NAME --render writes it again", path.display());
    }

    #[test]
    fn a_run_of_some_cells_keeps_the_others_under_the_same_conditions() {
        let with = |mut experiment: Experiment, cells: &[(&str, usize)]| {
            experiment.cells = cells
                .iter()
                .map(|&(layout, n)| Cell {
                    layout: layout.to_owned(),
                    controller: String::new(),
                    neighbour: String::new(),
                    rounds: vec![Round::default(); n],
                })
                .collect();
            experiment
        };
        let stored = [with(on("hdd", "virtual", ""), &[("own", 3), ("shared", 3)])];
        let mut measured = with(on("hdd", "virtual", ""), &[("shared", 4)]);
        assert!(keep_other_cells(&mut measured, &stored));
        let cells = |one: &Experiment| -> Vec<(String, usize)> {
            one.cells.iter().map(|cell| (cell.layout.clone(), cell.rounds.len())).collect()
        };
        assert_eq!(cells(&measured), [("shared".to_owned(), 4), ("own".to_owned(), 3)]);
        let mut first = with(on("nvme", "virtual", ""), &[("own", 3)]);
        assert!(keep_other_cells(&mut first, &stored));
        assert_eq!(cells(&first), [("own".to_owned(), 3)]);
        assert!(keep_other_cells(&mut on("hdd", "wall", ""), &stored));
        let mut other = with(on("hdd", "virtual", ""), &[("own", 3)]);
        other.commands.push("fio".to_owned());
        assert!(!keep_other_cells(&mut other, &stored));
    }

    #[test]
    fn a_run_on_one_disk_keeps_results_of_others() {
        let stored = vec![
            on("hdd", "virtual", "old"),
            on("ssd", "virtual", "old"),
            on("nvme", "wall", "old"),
            on("tape", "virtual", "old"),
        ];
        let all = merged(named("fsync-probe").unwrap(), stored, vec![on("ssd", "virtual", "new")]);
        let found: Vec<_> = all.iter().map(|one| (one.disk.model.as_str(), one.about.as_str())).collect();
        assert_eq!(found, [("hdd", "old"), ("ssd", "new")], "in order, without another clock's and unknown ones");

        // The target of attribution is the disk `fast`; its results say `memory`.
        let mut real = on("memory", "", "real");
        real.machine.virtualisation = "none".to_owned();
        let stored = vec![on("memory", "", "old"), real];
        let all = merged(named("attribution").unwrap(), stored, vec![on("memory", "virtual", "new")]);
        assert_eq!(all.iter().map(|one| one.about.as_str()).collect::<Vec<_>>(), ["new", "real"]);
    }
}
