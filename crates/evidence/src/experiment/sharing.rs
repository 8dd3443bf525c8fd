//! Common parts of the experiments with clones: rounds over all modes of sharing, and counting the device's reads.

use anyhow::{Context, Result};
use bulkhead_measure::cleanup::with_removal;
use bulkhead_measure::experiment::{Frame, machine, n_rounds};
use bulkhead_measure::result::{Cell, Experiment, Round};
use bulkhead_sys::block::Diskstat;

use crate::clones::{Clones, ReadFrom};

/// Reads from the device.
pub(super) struct FromDisk {
    pub(super) reads: f64,
    pub(super) bytes: f64,
}

impl FromDisk {
    fn between(before: &Diskstat, after: &Diskstat) -> Self {
        Self {
            reads: after.reads.saturating_sub(before.reads) as f64,
            bytes: 512.0 * after.read_sectors.saturating_sub(before.read_sectors) as f64,
        }
    }
}

/// Runs `work`, and counts reads from the device in that time.
pub(super) fn counted<T>(clones: &Clones, act: impl FnOnce() -> Result<T>) -> Result<(T, FromDisk)> {
    let before = clones.disk()?;
    let done = act()?;
    Ok((done, FromDisk::between(&before, &clones.disk()?)))
}

/// Sets up, works, and removes the set-up, even if the work fails; writes the file once more at the end.
pub(super) fn with_clones<'a, 'p>(
    mut frame: Frame<'a, 'p>,
    work: impl FnOnce(&mut Frame<'a, 'p>, &Clones) -> Result<()>,
) -> Result<Experiment> {
    frame.say("setting up a daemon and its pool");
    let options = frame.options;
    let clones = Clones::set_up(&options.target, &options.program, &options.cancel)?;
    let (device, dev) = clones.device();
    frame.experiment.disk = machine::disk(device, dev, &options.simulated);
    let worked = work(&mut frame, &clones);
    with_removal(worked, clones.remove())?;
    frame.write()?;
    Ok(frame.experiment)
}

/// Runs rounds over all available modes of sharing. One step measures a mode with all `neighbours`, and returns a round for each.
pub(super) fn sharing_rounds(
    frame: &mut Frame<'_, '_>,
    clones: &Clones,
    neighbours: &[&str],
    mut step: impl FnMut(&Clones, ReadFrom) -> Result<Vec<Round>>,
) -> Result<()> {
    let modes = clones.modes();
    let missing = ReadFrom::ALL.into_iter().filter(|mode| !modes.contains(mode)).map(ReadFrom::tag);
    let missing: Vec<&str> = missing.collect();
    if !missing.is_empty() {
        let note = format!("Not measured: {}. This version of Bulkhead cannot share so.", missing.join(", "));
        frame.experiment.notes.push(note);
    }
    let cell = |mode: ReadFrom, neighbour: &str| Cell {
        layout: mode.tag().to_owned(),
        controller: String::new(),
        neighbour: neighbour.to_owned(),
        rounds: Vec::new(),
    };
    let of = |mode: &ReadFrom| neighbours.iter().map(|neighbour| cell(*mode, neighbour)).collect::<Vec<_>>();
    frame.experiment.cells = modes.iter().flat_map(of).collect();
    let n_rounds = n_rounds(frame.options);
    frame.of = usize::try_from(n_rounds).context("too many rounds")? * frame.experiment.cells.len();
    for number in 1..=n_rounds {
        for (index, mode) in modes.iter().enumerate() {
            frame.options.cancel.check()?;
            frame.say(&format!("round {number} of {n_rounds}: {}", mode.tag()));
            let found = step(clones, *mode).with_context(|| format!("{}, round {number}", mode.tag()))?;
            for (offset, round) in found.into_iter().enumerate() {
                frame.finish(index * neighbours.len() + offset, round)?;
            }
        }
    }
    Ok(())
}
