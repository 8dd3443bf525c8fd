//! `bulkhead demo`: the before/after experiment on this machine, as a table and a report.
//!
//! Owns: the choice of experiments, their progress messages and the files of the report. Does not: measure (`bulkhead-measure` does).

use std::fs;
use std::path::Path;

use bulkhead_core::error::{Code, Fault};
use bulkhead_measure::experiment::{Method, Options, Progress, dbms_consolidation, fsync_probe};
use bulkhead_measure::layout::Target;
use bulkhead_measure::report::{self, DEMO};
use bulkhead_measure::result::Experiment;
use bulkhead_sys::tool::{find_program, package_of};

use crate::args::DemoArgs;
use crate::output::Output;
use crate::parse::invalid;
use crate::progress::Steps;

/// Programs that the database part requires.
const DATABASE_PROGRAMS: [&str; 2] = ["mariadbd", "sysbench"];

/// The paper's neighbours: one calls fsync after each MiB, the other after each 4 KiB, next to which a database gains least.
const DATABASE_NEIGHBOURS: [&str; 2] = ["low-fsync", "high-fsync"];

/// Message if io.cost cannot be used.
const WITHOUT_MODEL: &str = "without `--model` and `--qos`, BFQ enforces the shares, which works badly on some disks; \
    `bulkhead device calibrate` determines both for this disk";

/// Converts an error of `bulkhead-measure`: to the fault that it contains, else to one about `object`.
pub(crate) fn fault(object: &str, error: anyhow::Error) -> Fault {
    match error.downcast::<Fault>() {
        Ok(fault) => fault,
        Err(error) => Fault::new(Code::Internal, object, format!("{error:#}")),
    }
}

/// Runs the demo and writes its report.
///
/// # Errors
/// `InvalidArgument` without the exact confirmation for a device; errors of the experiment.
pub(crate) fn run(args: &DemoArgs, output: &Output) -> Result<(), Fault> {
    let target = target(args)?;
    let mut options = Options { quick: true, rounds: Some(1), ..Options::new(target) };
    options.cancel.on_signals().map_err(|error| fault("experiment", error))?;
    fs::create_dir_all(&args.report).map_err(|error| cannot_write(&args.report, &error))?;
    options.out_dir = Some(args.report.clone());
    options.model = args.iocost.calibration();
    options.simulated = args.simulated.clone();
    let controller = if options.model.is_some() {
        "iocost"
    } else {
        output.say(WITHOUT_MODEL);
        "bfq"
    };
    let (isolated, enforced) = (format!("own+accounting/{controller}"), format!("own+accounting+hold/{controller}"));

    let mut parts = Vec::new();
    let missing: Vec<&str> = DATABASE_PROGRAMS.into_iter().filter(|name| find_program(name).is_none()).collect();
    if missing.is_empty() {
        // BFQ can enforce shares next to the last one only.
        let neighbours = DATABASE_NEIGHBOURS.get(usize::from(options.model.is_none())..).unwrap_or_default();
        parts.push((dbms_consolidation::METHOD, neighbours, ["shared/bfq", &enforced]));
    } else {
        output.say(&format!("skipping the database part: {} not installed", missing.join(" and ")));
    }
    parts.push((fsync_probe::METHOD, &["streams"], ["shared/none", &isolated]));
    let mut experiments = Vec::new();
    for (method, neighbours, configs) in parts {
        options.neighbours = neighbours.iter().map(|&name| name.to_owned()).collect();
        options.configs = configs.map(str::to_owned).to_vec();
        let minutes = method.expected_duration(&options).as_secs().div_ceil(60);
        output.say(&format!("{}: about {minutes} minutes on this machine's clock", method.name));
        experiments.push(run_experiment(&method, &options, output)?);
    }
    write_report(&args.report, &experiments)?;
    if output.is_json() {
        return output.json(&experiments);
    }
    let tables: Vec<String> = experiments.iter().map(|experiment| report::table::render(&DEMO, experiment)).collect();
    output.raw(tables.join("\n").as_bytes())?;
    output.say(&format!("report: {}", args.report.join("report.html").display()));
    Ok(())
}

fn target(args: &DemoArgs) -> Result<Target, Fault> {
    match (&args.on, &args.device) {
        (Some(directory), _) => {
            let object = format!("directory {}", directory.display());
            match std::path::absolute(directory).and_then(|path| Ok((fs::metadata(&path)?.is_dir(), path))) {
                Ok((true, path)) => Ok(Target::Directory(path)),
                Ok((false, _)) => Err(invalid(object, "it is not a directory")),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    Err(Fault::new(Code::NotFound, object, "there is no such directory")
                        .hint("name a directory on the disk to test"))
                }
                Err(error) => Err(invalid(object, error)),
            }
        }
        (None, device) => to_erase(device.as_deref().unwrap_or(Path::new("-")), args.erase.as_deref()),
    }
}

/// Refuses a host that lacks one of the programs.
///
/// # Errors
/// `Unsupported`, with the program's package.
pub(crate) fn check_programs(programs: &[&'static str]) -> Result<(), Fault> {
    match programs.iter().find(|program| find_program(program).is_none()) {
        None => Ok(()),
        Some(missing) => Err(Fault::new(Code::Unsupported, "this host", format!("{missing} is not installed"))
            .hint(format!("install the Debian package {}", package_of(missing)))),
    }
}

/// A device whose data may be lost, as its second naming confirms.
///
/// # Errors
/// `InvalidArgument` without it.
pub(crate) fn to_erase(device: &Path, confirmation: Option<&Path>) -> Result<Target, Fault> {
    if confirmation == Some(device) {
        return Ok(Target::Device { path: device.to_owned(), erase: true });
    }
    let device = device.display();
    Err(Fault::new(Code::InvalidArgument, format!("device {device}"), "all data on it would be lost")
        .hint(format!("confirm with exactly `--erase {device}`")))
}

fn run_experiment(method: &Method, options: &Options, output: &Output) -> Result<Experiment, Fault> {
    let mut steps = Steps::new(method.name, "{prefix} {bar:24} {pos}/{len} {msg}", output);
    let mut on_progress = |progress: &Progress| steps.step(progress.done as u64, progress.of as u64, &progress.doing);
    method.run(options, &mut on_progress).map_err(|error| fault("experiment", error))
}

fn write_report(dir: &Path, experiments: &[Experiment]) -> Result<(), Fault> {
    let write = |name: String, text: String| {
        let path = dir.join(name);
        fs::write(&path, text).map_err(|error| cannot_write(&path, &error))
    };
    write("report.html".to_owned(), report::html::render(&DEMO, experiments))?;
    for experiment in experiments {
        for (stem, svg) in report::svg::pictures(&DEMO, experiment) {
            write(format!("{stem}.svg"), svg)?;
        }
    }
    Ok(())
}

/// A file of the report cannot be written.
pub(crate) fn cannot_write(path: &Path, error: &std::io::Error) -> Fault {
    Fault::new(Code::of_io(error.kind()), format!("file {}", path.display()), format!("it cannot be written ({error})"))
        .hint("choose another directory with `--report`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser as _;

    #[test]
    fn a_directory_must_exist_and_is_resolved_against_the_current_one() {
        let target = |on: &str| match Cli::try_parse_from(["bulkhead", "demo", "--on", on]).unwrap().command {
            Command::Demo(args) => super::target(&args),
            other => panic!("{other:?}"),
        };
        let here = std::env::current_dir().unwrap();
        assert_eq!(target("src"), Ok(Target::Directory(here.join("src"))));
        assert_eq!(target("/"), Ok(Target::Directory("/".into())));
        assert_eq!(target("absent").unwrap_err().code, Code::NotFound);
        assert_eq!(target("Cargo.toml").unwrap_err().code, Code::InvalidArgument);
    }
}
