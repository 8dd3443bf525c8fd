//! `bulkhead-evidence`: runs one experiment on a disk whose data is lost, and writes its JSON. The lab starts it in its guests.
//!
//! Loads, block servers and daemons are run by the program `bulkhead` in the same directory. Standard output is data; everything else goes to
//! standard error.

#![forbid(unsafe_code)]

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bulkhead_evidence::experiments::named;
use bulkhead_evidence::report::GUIDE;
use bulkhead_measure::calibrate::IocostLines;
use bulkhead_measure::experiment::{Options, Progress, Simulated};
use bulkhead_measure::layout::Target;
use bulkhead_measure::report::table;
use clap::Parser;

/// Run one experiment and write its JSON
#[derive(Debug, Parser)]
#[command(name = "bulkhead-evidence", version, max_term_width = 100)]
struct Cli {
    /// Name of the experiment
    name: String,
    /// Block device to run on, if the experiment needs a disk; its data is lost
    #[arg(long, value_name = "DEV")]
    device: Option<PathBuf>,
    /// Output directory for the JSON, which is written after each round
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Run the short form
    #[arg(long)]
    quick: bool,
    /// Number of rounds
    #[arg(long)]
    rounds: Option<u32>,
    /// Only these configurations, for example `shared/none`
    #[arg(long = "config", value_name = "LAYOUT/CONTROLLER")]
    configs: Vec<String>,
    /// Only these neighbours
    #[arg(long = "neighbour", value_name = "KIND")]
    neighbours: Vec<String>,
    #[command(flatten)]
    iocost: IocostLines,
    #[command(flatten)]
    simulated: Simulated,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let entry = named(&cli.name)?;
    let target = match cli.device {
        Some(path) => Target::Device { path, erase: true },
        None if entry.disks.is_empty() => Target::Directory("/".into()),
        None => bail!("{} needs a disk: name one with --device", cli.name),
    };
    let options = Options {
        quick: cli.quick,
        rounds: cli.rounds,
        configs: cli.configs,
        neighbours: cli.neighbours,
        out_dir: Some(cli.out),
        model: cli.iocost.calibration(),
        program: bulkhead_path()?,
        simulated: cli.simulated,
        ..Options::new(target)
    };
    entry.method.check_choice(&options)?;
    options.cancel.on_signals().context("cannot wait for signals")?;
    let mut said = String::new();
    let result = entry.run(&options, &mut |Progress { doing, done, of, .. }| {
        if said != *doing {
            say(&format!("{}: {done}/{of} {doing}", cli.name));
            said.clone_from(doing);
        }
    })?;
    let mut out = std::io::stdout().lock();
    let written = out.write_all(table::render(&GUIDE, &result).as_bytes()).and_then(|()| out.flush());
    written.context("cannot write to standard output")
}

/// Path of the measured program.
fn bulkhead_path() -> Result<PathBuf> {
    let path = std::env::current_exe().context("cannot find the folder of this program")?.with_file_name("bulkhead");
    if !path.is_file() {
        bail!("{} is missing: the experiments measure the bulkhead program that is beside this one", path.display());
    }
    Ok(path)
}

fn say(text: &str) {
    // There is no way to report a closed standard error.
    let _ = writeln!(std::io::stderr(), "{text}");
}
