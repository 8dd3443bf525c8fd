//! `bulkhead sweep`: how many copies of which workloads are worth having on a pool.
//!
//! Owns: reading the sweep file, progress messages, and what is printed. Does not: measure, or find knee and valley (`bulkhead_measure::sweep`).

use std::fs;

use bulkhead_api::client::Client;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::units::Bytes;
use bulkhead_measure::experiment::{Options, Progress};
use bulkhead_measure::layout::Target;
use bulkhead_measure::result::Experiment;
use bulkhead_measure::sweep::{self, NAME, file, picture, summary};
use bulkhead_sys::file::read_limited;

use crate::args::SweepArgs;
use crate::demo::{cannot_write, fault};
use crate::output::{Output, table};
use crate::parse::invalid;
use crate::progress::Steps;

/// Limit of the size of a sweep file.
const LIMIT: Bytes = Bytes::mib(1);

/// Measures all mixes of a sweep file, and writes the result.
///
/// # Errors
/// `InvalidArgument` for a file that cannot be used, `NoSpace` if the pool is too small, and errors of the measurement.
pub(crate) fn run(args: &SweepArgs, client: Client, output: &Output) -> Result<(), Fault> {
    let object = || format!("sweep file {}", args.file.display());
    let text = read_limited(&args.file, LIMIT)
        .map_err(|error| Fault::new(Code::NotFound, object(), bulkhead_core::error::chain(&error)))?;
    let text = String::from_utf8(text).map_err(|_| invalid(object(), "it is not UTF-8"))?;
    let sweep = file::parse(&text).map_err(|error| invalid(object(), error))?;
    let options = Options {
        rounds: Some(args.rounds),
        out_dir: Some(args.report.clone()),
        simulated: args.simulated.clone(),
        ..Options::new(Target::Directory(args.report.clone()))
    };
    options.cancel.on_signals().map_err(|error| fault(NAME, error))?;
    let n_runs = sweep.mixes.len() as f64 * f64::from(args.rounds);
    let minutes = (n_runs * sweep.seconds / 60.0).ceil();
    output.say(&format!("{NAME}: at most {minutes} minutes, besides preparations"));
    let mut steps = Steps::new(NAME, "{prefix} {bar:24} {pos}/{len} {elapsed} {msg}", output);
    let mut on_progress = |progress: &Progress| steps.step(progress.done as u64, progress.of as u64, &progress.doing);
    let experiment = sweep::run(client, &sweep, &options, args.resume, &mut on_progress);
    drop(steps);
    let experiment = experiment.map_err(|error| fault(NAME, error))?;
    for (stem, svg) in picture::pictures(&experiment) {
        let path = args.report.join(format!("{stem}.svg"));
        fs::write(&path, svg).map_err(|error| cannot_write(&path, &error))?;
    }
    show(&experiment, output)?;
    output.say(&format!("result: {}", args.report.join(format!("{NAME}.json")).display()));
    match experiment.cells.is_empty() {
        false => Ok(()),
        true => {
            Err(Fault::new(Code::Internal, NAME, "no run succeeded").hint("the messages above say why each failed"))
        }
    }
}

fn show(experiment: &Experiment, output: &Output) -> Result<(), Fault> {
    if output.is_json() {
        return output.json(experiment);
    }
    let rows: Vec<Vec<String>> = summary::rows(experiment).into_iter().map(Into::into).collect();
    let mut lines = table(&summary::HEADS, &rows);
    let words = summary::words(experiment);
    if !words.is_empty() {
        lines.push(String::new());
    }
    lines.extend(words);
    output.lines(&lines)?;
    for note in &experiment.notes {
        output.say(note);
    }
    Ok(())
}
