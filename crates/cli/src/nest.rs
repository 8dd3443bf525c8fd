//! `bulkhead nest`: the matrix of nested file systems on a disk of this host, as a report.
//!
//! Owns: the selection of cells from arguments, progress messages and the files of the report. Does not: measure (`bulkhead_measure::nest`).

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use bulkhead_core::error::{Code, Fault};
use bulkhead_measure::experiment::{Options, Progress};
use bulkhead_measure::nest::{self, DEVICE, METHOD, Server, Settings};
use bulkhead_measure::report::{nested, svg};

use crate::args::NestArgs;
use crate::demo::{cannot_write, check_programs, fault, to_erase};
use crate::output::Output;
use crate::parse::invalid;
use crate::progress::Steps;

/// Programs without which nothing can be measured; a missing mkfs only fails its cells.
const PROGRAMS: [&str; 2] = ["fio", "dmsetup"];

/// Measures the selected cells, and writes the report.
///
/// # Errors
/// `InvalidArgument` without the exact confirmation for the device, and for unknown names; `Unsupported` without the programs; errors of
/// the experiment.
pub(crate) fn run(args: &NestArgs, output: &Output) -> Result<(), Fault> {
    let target = to_erase(&args.device, args.erase.as_deref())?;
    if !args.device.exists() {
        return Err(Fault::new(Code::NotFound, format!("device {}", args.device.display()), "there is no such device"));
    }
    check_programs(&PROGRAMS)?;
    let mut options = Options {
        quick: args.quick,
        rounds: args.rounds,
        out_dir: Some(args.report.clone()),
        simulated: args.simulated.clone(),
        ..Options::new(target)
    };
    (options.configs, options.neighbours) = select(args, &options)?;
    options.cancel.on_signals().map_err(|error| fault("experiment", error))?;
    let minutes = METHOD.expected_duration(&options).as_secs().div_ceil(60);
    output.say(&format!("{}: about {minutes} minutes on a disk with an arm", METHOD.name));
    let settings = Settings { limit: Duration::from_secs(args.limit), resume: args.resume };
    let mut steps = Steps::new(METHOD.name, "{prefix} {bar:24} {pos}/{len} {msg}", output);
    let mut on_progress = |progress: &Progress| steps.step(progress.done as u64, progress.of as u64, &progress.doing);
    let experiment = nest::run(&options, &settings, &mut on_progress).map_err(|error| fault("experiment", error))?;
    drop(steps);
    let page = nested::markdown(&experiment);
    let pictures = svg::matrices(&experiment, svg::WIDE);
    let files = pictures
        .into_iter()
        .map(|(stem, svg)| (format!("{stem}.svg"), svg))
        .chain([("report.md".to_owned(), page.clone())]);
    for (name, text) in files {
        let path = args.report.join(name);
        fs::write(&path, text).map_err(|error| cannot_write(&path, &error))?;
    }
    if output.is_json() {
        return output.json(&experiment);
    }
    output.raw(page.as_bytes())?;
    for note in &experiment.notes {
        output.say(note);
    }
    output.say(&format!("report: {}", args.report.join("report.md").display()));
    Ok(())
}

/// The configurations and workloads of the experiment that the arguments select.
fn select(args: &NestArgs, options: &Options) -> Result<(Vec<String>, Vec<String>), Fault> {
    let stacks = nest::stacks(options.quick);
    let all = (METHOD.choices)(options);
    let workloads: BTreeSet<&str> = all.iter().map(|(_, workload)| workload.as_str()).collect();
    check("guest", &args.guest, &stacks.iter().map(|(guest, ..)| *guest).collect())?;
    check("host", &args.host, &stacks.iter().map(|(_, host, _)| *host).filter(|host| *host != DEVICE).collect())?;
    let servers = stacks.iter().map(|(.., server)| *server).filter(|server| *server != Server::None);
    let servers = servers.map(Server::as_str).collect();
    check("server", &args.server, &servers)?;
    check("workload", &args.workload, &workloads)?;
    let has = |wanted: &[String], name: &str| wanted.is_empty() || wanted.iter().any(|one| one == name);
    let is_chosen = |(guest, host, server): &(&str, &str, Server)| {
        has(&args.guest, guest)
            && (*host == DEVICE || has(&args.host, host))
            && (*server == Server::None || has(&args.server, server.as_str()))
    };
    let configs: BTreeSet<String> = stacks
        .iter()
        .filter(|stack| is_chosen(stack))
        .map(|(guest, host, server)| nest::config(guest, host, *server))
        .collect();
    Ok((configs.into_iter().collect(), args.workload.clone()))
}

fn check(what: &str, wanted: &[String], known: &BTreeSet<&str>) -> Result<(), Fault> {
    match wanted.iter().find(|name| !known.contains(name.as_str())) {
        Some(unknown) => {
            let known: Vec<&str> = known.iter().copied().collect();
            Err(invalid(format!("--{what} {unknown:?}"), format!("it is none of {}", known.join(", "))))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use bulkhead_measure::layout::Target;
    use clap::Parser as _;

    fn args(more: &[&str]) -> NestArgs {
        let line = ["bulkhead", "nest", "--device", "/dev/x", "--erase", "/dev/x"].iter().chain(more);
        match Cli::try_parse_from(line).unwrap().command {
            Command::Nest(args) => args,
            other => panic!("{other:?}"),
        }
    }

    fn selected(more: &[&str]) -> Result<(Vec<String>, Vec<String>), Fault> {
        select(&args(more), &Options::new(Target::Directory("/".into())))
    }

    #[test]
    fn a_selection_has_its_baseline() {
        let (configs, workloads) =
            selected(&["--guest", "ext4", "--host", "xfs,thin", "--server", "loop", "--workload", "mail-server"])
                .unwrap();
        assert_eq!(configs, ["ext4-on-device/direct", "ext4-on-thin/direct", "ext4-on-xfs/loop"]);
        assert_eq!(workloads, ["mail-server"]);
        assert_eq!(selected(&[]).unwrap().0.len(), 10 * 10 + 2 * 9);
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        for (option, known) in [
            ("--guest", "ext4, f2fs"),
            ("--host", "thin, xfs"),
            ("--server", "loop-reflink"),
            ("--workload", "web-server"),
        ] {
            let fault = selected(&[option, "zfs"]).unwrap_err();
            assert!(fault.code == Code::InvalidArgument && fault.to_string().contains(known), "{fault}");
        }
        let output = Output::new(crate::args::Format::Table);
        let fault = run(&NestArgs { erase: None, ..args(&[]) }, &output).unwrap_err();
        assert!(fault.hint.contains("--erase /dev/x"), "{fault:?}");
    }
}
