//! `cargo xtask evidence`: runs an experiment in virtual machines and writes `docs/evidence/NAME.{json,svg,md}`.
//!
//! A run on one disk replaces what is stored of that disk, and one of some of its cells only these, if all else was the same: so an
//! experiment of many hours can be run in parts. What is less than the full form is written to `target/evidence` instead.
//! With `--here` the part that needs no machine runs on this one's own kernel, and is added to what is stored.
//! The thresholds are `bulkhead_evidence::judge`'s. With `--judge` nothing is run: the stored JSON is read and judged again; with
//! `--render` its report and pictures are written again, too.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead_evidence::experiments::{ALL, Entry, OVERHEAD, named};
use bulkhead_evidence::judge::{MIN_ROUNDS, Verdict, judge};
use bulkhead_evidence::report::{files, markdown};
use bulkhead_lab::{Clock, DISK_WORD, say};
use bulkhead_measure::experiment::Options;
use bulkhead_measure::layout::Target;
use bulkhead_measure::result::{Cell, Experiment};
use clap::Args;

use crate::{check, lab};

/// A plain loop target on ublk by the author of the driver, to compare blockd with: a program that runs beside, nothing that is
/// linked or shipped. Without its GPU target, which would need OpenCL.
const RUBLK: (&str, &str, &[&str]) = ("rublk", "0.2.15", &["--locked", "--no-default-features"]);
/// Where the tables of docs/EVIDENCE.md begin and end.
const BEGIN: &str = "<!-- Written by `cargo xtask evidence`: -->";
const END: &str = "<!-- until here. -->";
/// What runs the experiments in a guest.
const PROGRAM: &str = "bulkhead-evidence";
/// How a result calls an emulated processor.
const EMULATED: &str = "tcg";
/// How long one experiment on one disk may take.
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
    /// Use the release programs in the target folder without building them.
    #[arg(long)]
    no_build: bool,
}

impl Arguments {
    /// Whether what it measures can be stored: the full form, on a disk that the target names.
    fn is_full(&self, entry: &Entry) -> bool {
        let wanted = self.disk.as_deref().map_or(!self.has_chosen(), |disk| entry.disks.contains(&disk));
        !self.quick && wanted && self.rounds.is_none_or(|n| usize::try_from(n).is_ok_and(|n| n >= MIN_ROUNDS))
    }

    /// Whether it measures some of the cells only.
    fn has_chosen(&self) -> bool {
        !self.configs.is_empty() || !self.neighbours.is_empty()
    }
}

/// Runs or judges one experiment; exit code 0 when its target is met, 1 when it is short.
///
/// # Errors
/// An unknown name, a machine that does not boot, an experiment that fails, a file that cannot be read or written.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Some(name) = arguments.name.as_deref().filter(|_| !arguments.list) else {
        ALL.iter().for_each(|entry| say::result(format!("{:<20} {}", entry.method.name, entry.method.what)));
        return Ok(ExitCode::SUCCESS);
    };
    let entry = named(name)?;
    let stored = stored_folder().join(format!("{name}.json"));
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
                    if arguments.has_chosen() && !measured.iter_mut().all(|one| keep_other_cells(one, &stored)) {
                        say::progress(
                            "not stored: the other cells are from another machine, disk or other commands; run all cells",
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
        let folder = if is_stored { stored_folder() } else { lab::target_dir().join("evidence") };
        say::progress(format!("writing {}", folder.join(name).display()));
        write(&folder, name, &experiments, &verdict)?;
        if is_stored {
            let (path, text) = page_of_all()?;
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
    let beside = beside(name);
    let mut experiments = Vec::new();
    for disk in disks {
        let mut words = [name, "--device", DISK_WORD, "--out", "/lab/out"].map(str::to_owned).to_vec();
        words.extend(arguments.quick.then(|| "--quick".to_owned()));
        for (option, values) in [("--config", &arguments.configs), ("--neighbour", &arguments.neighbours)] {
            words.extend(values.iter().flat_map(|value| [option.to_owned(), value.clone()]));
        }
        words.extend(arguments.rounds.iter().flat_map(|n| ["--rounds".to_owned(), n.to_string()]));
        let disk = format!("{disk}:{}", lab::BENCH_DISK_MIB).parse()?;
        let programs = lab::Programs { no_build: arguments.no_build, ..lab::Programs::RELEASE };
        let (_, artifacts) = lab::run_on(disk, Clock::Virtual, PROGRAM, &programs, words, &beside, LIMIT)?;
        // One that was cut short has written what it had after each round.
        let path = artifacts.join("out").join(format!("{name}.json"));
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        experiments.push(serde_json::from_str(&text).with_context(|| format!("cannot understand {}", path.display()))?);
    }
    Ok(experiments)
}

/// Programs that an experiment compares with, as far as they can be had.
fn beside(name: &str) -> Vec<PathBuf> {
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
        // Nothing is written to a disk.
        ..Options::new(Target::Directory("/".into()))
    };
    options.cancel.on_signals().context("cannot wait for signals")?;
    let measured = entry.run(&options, &mut |progress| say::progress(&progress.doing));
    measured.with_context(|| format!("{name} on this machine"))
}

fn read(path: &Path) -> Result<Vec<Experiment>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read {}: run the evidence without --judge first", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("cannot understand {}", path.display()))
}

/// What is stored, with what was measured in place of the same disk's. What an emulated machine measured under another clock goes, and
/// so do disks that are not asked for any more; what a real machine measured stays.
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
    // A disk that the experiment names itself comes first.
    all.sort_by_key(|one| entry.disks.iter().position(|disk| *disk == one.disk.model).map_or(0, |place| place + 1));
    all
}

/// Adds the cells that are stored and were not measured this time. False when they were measured otherwise and cannot be compared with
/// these; what is stored under another clock goes in any case.
fn keep_other_cells(measured: &mut Experiment, stored: &[Experiment]) -> bool {
    let is_same =
        |one: &&Experiment| (&one.disk.model, &one.machine.clock) == (&measured.disk.model, &measured.machine.clock);
    let Some(before) = stored.iter().find(is_same) else { return true };
    let same =
        (&before.machine, &before.disk, &before.commands) == (&measured.machine, &measured.disk, &measured.commands);
    let has = |cell: &Cell| measured.cells.iter().any(|own| own.id() == cell.id());
    let kept: Vec<Cell> = before.cells.iter().filter(|cell| same && !has(cell)).cloned().collect();
    measured.cells.extend(kept);
    same
}

fn write(folder: &Path, name: &str, experiments: &[Experiment], verdict: &Verdict) -> Result<()> {
    let put = |file: String, text: String| {
        let path = folder.join(file);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    put(format!("{name}.json"), serde_json::to_string_pretty(experiments)? + "\n")?;
    for (stem, svg) in files(name, experiments) {
        put(format!("{stem}.svg"), svg)?;
    }
    put(format!("{name}.md"), markdown::render(name, experiments, verdict))
}

/// docs/EVIDENCE.md with the tables of all that is stored, between its two marks; the rest of the page is written by hand.
fn page_of_all() -> Result<(PathBuf, String)> {
    let path = lab::workspace().join("docs/EVIDENCE.md");
    let page = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let parts = page.split_once(BEGIN).zip(page.rsplit_once(END));
    let ((before, _), (_, after)) = parts.with_context(|| format!("{} lacks {BEGIN} or {END}", path.display()))?;
    let mut tables = String::new();
    for name in ALL.iter().map(|entry| entry.method.name) {
        let stored = stored_folder().join(format!("{name}.json"));
        if stored.exists() {
            let experiments = read(&stored)?;
            tables += &format!("\n{}", markdown::summary(name, &experiments, &judge(name, &experiments)));
        }
    }
    Ok((path, format!("{before}{BEGIN}\n{tables}\n{END}{after}")))
}

fn stored_folder() -> PathBuf {
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
    fn the_page_of_all_evidence_says_what_is_stored() {
        let (path, fresh) = page_of_all().unwrap();
        let found = std::fs::read_to_string(&path).unwrap();
        assert!(found == fresh, "{} is stale: cargo xtask evidence NAME --render writes it again", path.display());
    }

    #[test]
    fn a_run_of_some_cells_leaves_the_others_if_all_else_is_the_same() {
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
    fn a_run_on_one_disk_leaves_what_is_stored_of_the_others() {
        let stored = vec![
            on("hdd", "virtual", "old"),
            on("ssd", "virtual", "old"),
            on("nvme", "wall", "old"),
            on("tape", "virtual", "old"),
        ];
        let all = merged(named("fsync-probe").unwrap(), stored, vec![on("ssd", "virtual", "new")]);
        let found: Vec<_> = all.iter().map(|one| (one.disk.model.as_str(), one.about.as_str())).collect();
        assert_eq!(found, [("hdd", "old"), ("ssd", "new")], "in order, without another clock's and unknown ones");

        // attribution is asked for on `fast`, and says that its disk is memory.
        let mut real = on("memory", "", "real");
        real.machine.virtualisation = "none".to_owned();
        let stored = vec![on("memory", "", "old"), real];
        let all = merged(named("attribution").unwrap(), stored, vec![on("memory", "virtual", "new")]);
        assert_eq!(all.iter().map(|one| one.about.as_str()).collect::<Vec<_>>(), ["new", "real"]);
    }
}
