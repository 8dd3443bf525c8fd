//! `cargo xtask evidence`: runs an experiment of TARGETS in virtual machines and writes `docs/evidence/NAME.{json,svg,md}`.
//!
//! With `--here` the part that needs no machine runs on this one's own kernel, and is added to what is stored.
//! The thresholds are `bulkhead_bench::judge`'s. With `--judge` nothing is run: the stored JSON is read and judged again; with
//! `--render` its report and pictures are written again, too.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead_bench::experiment::{self, NAMES, OVERHEAD, Options, disks};
use bulkhead_bench::judge::{Verdict, judge};
use bulkhead_bench::layout::Target;
use bulkhead_bench::report;
use bulkhead_bench::result::Experiment;
use bulkhead_lab::{Clock, say};
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
    /// The short form, at most 10 minutes without KVM.
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
    /// Only this disk model, instead of all that the target names.
    #[arg(long, value_name = "MODEL")]
    disk: Option<String>,
    /// Only these configurations, as `shared/none`.
    #[arg(long = "config", value_name = "LAYOUT/CONTROLLER")]
    configs: Vec<String>,
    /// Only these neighbours.
    #[arg(long = "neighbour", value_name = "KIND")]
    neighbours: Vec<String>,
    /// Number of rounds.
    #[arg(long)]
    rounds: Option<u32>,
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
    let stored = folder().join(format!("{name}.json"));
    let experiments = match arguments {
        Arguments { judge: true, .. } | Arguments { render: true, .. } => read(&stored)?,
        Arguments { here: true, .. } => {
            let (mut experiments, own) = (read(&stored)?, measure_here(name, arguments)?);
            experiments.retain(|other| other.machine.kernel != own.machine.kernel);
            experiments.push(own);
            experiments
        }
        _ => measure(name, arguments)?,
    };
    let verdict = judge(name, &experiments);
    if !arguments.judge {
        write(name, &experiments, &verdict)?;
    }
    say::result(&verdict.line);
    Ok(if verdict.met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(name: &str, arguments: &Arguments) -> Result<Vec<Experiment>> {
    let disks = arguments.disk.as_deref().map_or(disks(name).to_vec(), |disk| vec![disk]);
    let beside = beside(name);
    let mut experiments = Vec::new();
    for disk in disks {
        let mut words = ["__experiment", name, "--device", lab::DISK, "--out", "/lab/out"].map(str::to_owned).to_vec();
        words.extend(arguments.quick.then(|| "--quick".to_owned()));
        for (option, values) in [("--config", &arguments.configs), ("--neighbour", &arguments.neighbours)] {
            words.extend(values.iter().flat_map(|value| [option.to_owned(), value.clone()]));
        }
        words.extend(arguments.rounds.iter().flat_map(|n| ["--rounds".to_owned(), n.to_string()]));
        let disk = format!("{disk}:{}", lab::BENCH_DISK_MIB).parse()?;
        let (_, artifacts) = lab::bulkhead_on(disk, Clock::Virtual, &lab::Programs::RELEASE, words, &beside, LIMIT)?;
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

fn write(name: &str, experiments: &[Experiment], verdict: &Verdict) -> Result<()> {
    let put = |file: String, text: String| {
        let path = folder().join(file);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    std::fs::create_dir_all(folder()).context("cannot create docs/evidence")?;
    put(format!("{name}.json"), serde_json::to_string_pretty(experiments)? + "\n")?;
    for (stem, svg) in report::svg::files(name, experiments) {
        put(format!("{stem}.svg"), svg)?;
    }
    put(format!("{name}.md"), report::markdown::render(name, experiments, verdict))
}

fn folder() -> PathBuf {
    lab::workspace().join("docs/evidence")
}
