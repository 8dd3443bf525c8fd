//! `bulkhead sweep`: copies of workloads together, more and more of them, and mixes; each copy in a tenant with a volume of its own (Bhimani
//! et al., "Understanding Performance of I/O Intensive Containerized Applications for NVMe SSDs", IPCCC 2016).
//!
//! Owns: the rounds over all mixes, and the result. Does not: read the file ([`file`]), make tenants (`tenants`), run a mix (`run`), say
//! what follows from the figures ([`summary`]), or draw them ([`picture`]).

pub mod figure;
pub mod file;
mod host;
pub mod picture;
mod run;
mod steady;
pub mod summary;
mod tenants;

use anyhow::{Context, Result};
use bulkhead_api::client::Client;
use bulkhead_core::slices;
use bulkhead_core::units::DevNo;
use bulkhead_sys::roots::Roots;

use self::file::{Mix, Sweep};
use self::host::Watched;
use self::run::{Copy, run as run_copies};
use self::tenants::Tenants;
use crate::cleanup::with_removal;
use crate::daemon::Daemon;
use crate::experiment::{FAILED, Frame, OnProgress, Options, machine, n_rounds, resume};
use crate::result::{Cell, Experiment};

/// Name of its result.
pub const NAME: &str = "sweep";
/// The controller in its cells: that of the device, which is in the result's `disk`.
const AS_FOUND: &str = "as-found";

const ABOUT: &str = "Copies of commands that print their rates, each in a tenant with a volume of its own. A run ends when all rates are \
    steady (MSER) and their 95 % confidence intervals (batch means) as narrow as wanted, or with its time; figures are those behind the \
    warm-up of the slowest copy. The series of a round have a value for each copy, in the order of the workloads in the layout's name.";

/// Measures all mixes of a sweep file.
///
/// # Errors
/// A failed set-up, or if it is cancelled; a run that fails is a note.
pub fn run(
    client: Client,
    sweep: &Sweep,
    options: &Options,
    is_continued: bool,
    progress: OnProgress<'_>,
) -> Result<Experiment> {
    let mut frame = Frame::new(NAME, ABOUT, options, progress);
    frame.experiment.commands = commands(sweep);
    frame.experiment.cells = sweep.mixes.iter().map(|mix| cell(mix, sweep)).collect();
    let daemon = Daemon::new(client)?;
    let pool = daemon.request(async |client| client.pool_inspect(&sweep.pool).await)?;
    let devices = host::devices(&Roots::host(), &pool.physical_devices).context("the devices below the pool")?;
    if let (Some(name), Some(dev)) = (pool.physical_devices.first(), devices.first()) {
        frame.experiment.disk = machine::disk(name, *dev, &options.simulated);
    }
    // Before volumes are prepared for a sweep that cannot be continued.
    if is_continued {
        resume(&mut frame.experiment, options.out_dir.as_deref())?;
    }
    let mut set_up = |step: &str| frame.say(step);
    let tenants = Tenants::set_up(daemon, &pool, sweep, &options.program, &options.cancel, &mut set_up)?;
    let measured = rounds(&mut frame, &tenants, sweep, &devices);
    with_removal(measured, tenants.remove())?;
    frame.experiment.cells.retain(|cell| !cell.rounds.is_empty());
    frame.write()?;
    Ok(frame.experiment)
}

/// How everything is measured: only a run with the same can be continued.
fn commands(sweep: &Sweep) -> Vec<String> {
    let limits = format!("at most {} s each, within {} %", sweep.seconds, 100.0 * sweep.within);
    let of = |workload: &file::Workload| {
        format!(
            "{}: {} (rate {}; a volume of {}, {}; share {})",
            workload.name,
            workload.command.join(" "),
            workload.rate.as_str(),
            workload.size,
            workload.fs.as_str(),
            workload.share
        )
    };
    std::iter::once(limits).chain(sweep.workloads.iter().map(of)).collect()
}

fn cell(mix: &Mix, sweep: &Sweep) -> Cell {
    Cell { layout: mix.workloads(sweep), controller: AS_FOUND.to_owned(), neighbour: mix.numbers(), rounds: Vec::new() }
}

fn rounds(frame: &mut Frame<'_, '_>, tenants: &Tenants<'_>, sweep: &Sweep, devices: &[DevNo]) -> Result<()> {
    let roots = Roots::host();
    let n_rounds = n_rounds(frame.options);
    frame.of = sweep.mixes.len() * usize::try_from(n_rounds)?;
    for number in 1..=n_rounds {
        for (index, mix) in sweep.mixes.iter().enumerate() {
            frame.options.cancel.check()?;
            if frame.experiment.cells[index].rounds.len() >= usize::try_from(number)? {
                frame.skip(1);
                continue;
            }
            frame.say(&format!("round {number} of {n_rounds}: {} x {}", mix.workloads(sweep), mix.numbers()));
            let copies = copies(mix, sweep, tenants);
            let payloads = copies.iter().map(|copy| Ok(slices::payload(&copy.name.parse()?))).collect::<Result<_>>()?;
            let watched = Watched { roots: &roots, devices, payloads };
            match run_copies(&copies, sweep, &watched, &frame.options.cancel) {
                Ok(round) => frame.finish(index, round)?,
                Err(error) => {
                    frame.options.cancel.check()?;
                    let note = format!("{} x {}, round {number}{FAILED}{error:#}", mix.workloads(sweep), mix.numbers());
                    frame.say(&note);
                    frame.experiment.notes.push(note);
                    frame.skip(1);
                    frame.write()?;
                }
            }
        }
    }
    Ok(())
}

fn copies<'a>(mix: &Mix, sweep: &'a Sweep, tenants: &Tenants<'_>) -> Vec<Copy<'a>> {
    let of_workload = |(index, copies): &(usize, u32)| {
        let workload = &sweep.workloads[*index];
        let copy = |number: u32| Copy {
            name: file::copy_name(&workload.name, number),
            workload,
            spec: tenants.spec(workload, number, &workload.command),
        };
        (1..=*copies).map(copy).collect::<Vec<_>>()
    };
    mix.copies.iter().flat_map(of_workload).collect()
}
