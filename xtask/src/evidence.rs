//! `cargo xtask evidence`: runs an experiment of TARGETS in virtual machines and writes `docs/evidence/NAME.{json,svg,md}`.
//!
//! A run on one disk replaces what is stored of that disk. What is less than the full form, or only some of its cells, is written to
//! `target/evidence` instead.
//! With `--here` the part that needs no machine runs on this one's own kernel, and is added to what is stored.
//! The thresholds are `bulkhead_bench::judge`'s. With `--judge` nothing is run: the stored JSON is read and judged again; with
//! `--render` its report and pictures are written again, too.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead_bench::experiment::{self, NAMES, OVERHEAD, Options, disks};
use bulkhead_bench::judge::{MIN_ROUNDS, Verdict, judge};
use bulkhead_bench::layout::Target;
use bulkhead_bench::report;
use bulkhead_bench::result::Experiment;
use bulkhead_lab::{Clock, DISK_WORD, say};
use clap::Args;

use crate::{check, lab};

/// A plain loop target on ublk by the author of the driver, to compare blockd with: a program that runs beside, nothing that is
/// linked or shipped. Without its GPU target, which would need OpenCL.
const RUBLK: (&str, &str, &[&str]) = ("rublk", "0.2.15", &["--locked", "--no-default-features"]);
/// How long one experiment on one disk may take.
const LIMIT: Duration = Duration::from_secs(3 * 3600);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The experiment; --list names them.
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// Name the experiments.
    #[arg(long)]
    list: bool,
    /// The short form: one round, short windows, at most 10 minutes a disk on the guest's clock; goes to target/evidence.
    #[arg(long)]
    quick: bool,
    /// Only read the stored JSON and judge it.
    #[arg(long, conflicts_with = "quick")]
    judge: bool,
    /// Only write the report and the pictures of the stored JSON anew.
    #[arg(long, conflicts_with_all = ["quick", "judge"])]
    render: bool,
    /// Only what observing costs, on this machine's own kernel; the rest stays as it is stored. For attribution.
    #[arg(long, conflicts_with_all = ["judge", "render", "disk", "configs", "neighbours"])]
    here: bool,
    /// Only this disk model, instead of all that the target names; what is stored of the others stays.
    #[arg(long, value_name = "MODEL")]
    disk: Option<String>,
    /// Only these configurations, as `shared/none`; goes to target/evidence.
    #[arg(long = "config", value_name = "LAYOUT/CONTROLLER")]
    configs: Vec<String>,
    /// Only these neighbours; goes to target/evidence.
    #[arg(long = "neighbour", value_name = "KIND")]
    neighbours: Vec<String>,
    /// Number of rounds; fewer than 3 go to target/evidence.
    #[arg(long)]
    rounds: Option<u32>,
    /// Use the release programs as they are in the target folder.
    #[arg(long)]
    no_build: bool,
}

impl Arguments {
    /// Whether what it measures is all that is stored of an experiment on a disk.
    fn is_full(&self, name: &str) -> bool {
        let chosen = !self.configs.is_empty() || !self.neighbours.is_empty();
        let wanted = self.disk.as_deref().is_none_or(|disk| disks(name).contains(&disk));
        !self.quick
            && !chosen
            && wanted
            && self.rounds.is_none_or(|n| usize::try_from(n).is_ok_and(|n| n >= MIN_ROUNDS))
    }
}

/// Runs or judges one experiment; exit code 0 when its target is met, 1 when it is short.
///
/// # Errors
/// An unknown name, a machine that does not boot, an experiment that fails, a file that cannot be read or written.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Some(name) = arguments.name.as_deref().filter(|_| !arguments.list) else {
        NAMES.iter().for_each(say::result);
        return Ok(ExitCode::SUCCESS);
    };
    if !NAMES.contains(&name) {
        bail!("there is no evidence {name}: {} can be had", NAMES.join(", "));
    }
    let stored = stored_folder().join(format!("{name}.json"));
    let experiments = match arguments {
        Arguments { judge: true, .. } | Arguments { render: true, .. } => read(&stored)?,
        Arguments { here: true, .. } => {
            let (mut experiments, own) = (read(&stored)?, measure_here(name, arguments)?);
            experiments.retain(|other| other.machine.kernel != own.machine.kernel);
            experiments.push(own);
            experiments
        }
        _ => {
            let measured = measure(name, arguments)?;
            match arguments.disk {
                Some(_) if arguments.is_full(name) && stored.exists() => merged(name, read(&stored)?, measured),
                _ => measured,
            }
        }
    };
    let verdict = judge(name, &experiments);
    if !arguments.judge {
        let folder = if arguments.render || arguments.here || arguments.is_full(name) {
            stored_folder()
        } else {
            lab::target_dir().join("evidence")
        };
        say::progress(format!("writing {}", folder.join(name).display()));
        write(&folder, name, &experiments, &verdict)?;
    }
    say::result(&verdict.line);
    Ok(if verdict.met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(name: &str, arguments: &Arguments) -> Result<Vec<Experiment>> {
    let disks = arguments.disk.as_deref().map_or(disks(name).to_vec(), |disk| vec![disk]);
    let beside = beside(name);
    let mut experiments = Vec::new();
    for disk in disks {
        let mut words = ["__experiment", name, "--device", DISK_WORD, "--out", "/lab/out"].map(str::to_owned).to_vec();
        words.extend(arguments.quick.then(|| "--quick".to_owned()));
        for (option, values) in [("--config", &arguments.configs), ("--neighbour", &arguments.neighbours)] {
            words.extend(values.iter().flat_map(|value| [option.to_owned(), value.clone()]));
        }
        words.extend(arguments.rounds.iter().flat_map(|n| ["--rounds".to_owned(), n.to_string()]));
        let disk = format!("{disk}:{}", lab::BENCH_DISK_MIB).parse()?;
        let programs = lab::Programs { no_build: arguments.no_build, ..lab::Programs::RELEASE };
        let (_, artifacts) = lab::bulkhead_on(disk, Clock::Virtual, &programs, words, &beside, LIMIT)?;
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

fn measure_here(name: &str, arguments: &Arguments) -> Result<Experiment> {
    if name != "attribution" {
        bail!("{name} needs a machine of its own: only attribution can be had with --here");
    }
    let options = Options {
        quick: arguments.quick,
        rounds: arguments.rounds,
        neighbours: OVERHEAD.map(str::to_owned).to_vec(),
        // Nothing is written to a disk.
        ..Options::new(Target::Directory("/".into()))
    };
    options.cancel.on_signals().context("cannot wait for signals")?;
    experiment::run(name, &options, &mut |progress| say::progress(&progress.doing))
        .with_context(|| format!("{name} on this machine"))
}

fn read(path: &Path) -> Result<Vec<Experiment>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read {}: run the evidence without --judge first", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("cannot understand {}", path.display()))
}

/// What is stored, with what was measured in place of the same disk's; disks that are not asked for any more go, and all that was
/// stored under another clock.
fn merged(name: &str, stored: Vec<Experiment>, measured: Vec<Experiment>) -> Vec<Experiment> {
    let clock = measured.first().map(|experiment| experiment.machine.clock.clone());
    let of = |all: &[Experiment], disk: &str| all.iter().find(|one| one.disk.model == disk).cloned();
    let kept = |one: &Experiment| Some(&one.machine.clock) == clock.as_ref();
    disks(name).iter().filter_map(|disk| of(&measured, disk).or_else(|| of(&stored, disk).filter(kept))).collect()
}

fn write(folder: &Path, name: &str, experiments: &[Experiment], verdict: &Verdict) -> Result<()> {
    let put = |file: String, text: String| {
        let path = folder.join(file);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    put(format!("{name}.json"), serde_json::to_string_pretty(experiments)? + "\n")?;
    for (stem, svg) in report::svg::files(name, experiments) {
        put(format!("{stem}.svg"), svg)?;
    }
    put(format!("{name}.md"), report::markdown::render(name, experiments, verdict))
}

fn stored_folder() -> PathBuf {
    lab::workspace().join("docs/evidence")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(disk: &str, clock: &str, about: &str) -> Experiment {
        let text = format!(
            r#"{{"format": 1, "name": "fsync-probe", "about": "{about}", "quick": false, "commands": [], "cells": [], "notes": [],
                "machine": {{"kernel": "", "n_cpus": 1, "memory_bytes": 0, "virtualisation": "", "clock": "{clock}", "programs": {{}}}},
                "disk": {{"model": "{disk}", "parameters": "", "size_bytes": 0, "queue": {{}}}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_run_on_one_disk_leaves_what_is_stored_of_the_others() {
        let stored = vec![
            on("hdd", "virtual", "old"),
            on("ssd", "virtual", "old"),
            on("nvme", "wall", "old"),
            on("tape", "virtual", "old"),
        ];
        let all = merged("fsync-probe", stored, vec![on("ssd", "virtual", "new")]);
        let found: Vec<_> = all.iter().map(|one| (one.disk.model.as_str(), one.about.as_str())).collect();
        assert_eq!(found, [("hdd", "old"), ("ssd", "new")], "in order, without another clock's and unknown ones");
    }
}
