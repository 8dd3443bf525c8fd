//! `nested-matrix`: which file system in an image works on which below it, for which workload (Le, Huang and Wang, "Understanding Performance
//! Implications of Nested File Systems in a Virtualized Environment", FAST 2012).
//!
//! A cell is a guest file system on a host file system with a workload; those with the host `device` are the baseline: the guest's file system
//! on a region of the disk of the same size. A stack is set up once a round for all its workloads: file systems and image are new, the page
//! cache is dropped before each workload. Rounds are interleaved.
//!
//! Owns: the cells, their order, and continuing an interrupted run. Does not: set up a stack ([`stack`]), measure a cell ([`measure`]), judge, or
//! draw.

mod dirty;
mod file_systems;
mod layers;
mod measure;
mod stack;
pub mod summary;
mod volume;
mod workload;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_sys::block;
use bulkhead_sys::fsutil;
use bulkhead_sys::roots::Roots;

use self::dirty::LowLimits;
use self::stack::{Parts, Stack};
pub use self::workload::Workload;
use crate::calibrate::fio;
use crate::cleanup::{lock, with_removal};
use crate::experiment::{
    Choice, Extent, FAILED, Frame, Method, OnProgress, Options, includes, machine, n_rounds, resume,
};
use crate::layout::Target;
use crate::load::{LoadArgs, LoadKind};
use crate::result::{Cell, Experiment};

/// The guest of cells without a file system: micro I/O on the device.
pub const NO_GUEST: &str = "none";
/// The host of the baseline.
pub const DEVICE: &str = "device";
/// The host of a thin volume.
pub const THIN: &str = "thin";

/// Its entry in the table of experiments.
pub const METHOD: Method = Method {
    name: "nested-matrix",
    what: "each file system on an image in each other one, for micro I/O and four kinds of servers",
    choices,
    extent: |options| {
        let n_cells = chosen(options).len();
        Extent::new(options, n_cells, seconds(options.quick)).after(15.0)
    },
    work: |options, progress| run(options, &Settings::default(), progress),
};

const ABOUT: &str = "Guest file system on an image in the host file system, or on the device itself. Micro I/O: fio, 8 KiB, libaio, O_DIRECT, \
    255 in flight, on a file that was written before. Servers: Filebench's personalities. upper_ is the guest's device, lower_ the disk; \
    requests are counted over the whole window, and their sizes, merges, queues and gaps are from the block layer's tracepoints in a part of it. \
    write_amplification is what reached the disk for each byte that the workload wrote.";

/// Warm-up of a server, and window of any workload, s.
const FULL: (f64, f64) = (1.0, 3.0);
const QUICK: (f64, f64) = (0.5, 2.0);
/// Average duration of setting a stack up, and of preparing a workload, on a slow disk.
const SET_UP_SECONDS: f64 = 4.0;

/// How a run is to be carried out, beyond [`Options`].
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Time limit of setting up a stack, and of each workload: one that takes longer has failed.
    pub limit: Duration,
    /// Continue the run whose result is in the output directory.
    pub resume: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { limit: Duration::from_secs(180), resume: false }
    }
}

/// What serves an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// Nothing: the guest is on a device.
    None,
    /// A loop device with direct I/O.
    Loop,
    /// A loop device through the host's page cache.
    LoopBuffered,
    /// A block server of Bulkhead's, as for any volume.
    Blockd,
    /// A loop device with direct I/O, on an image that shares all its blocks with another.
    Reflink,
}

impl Server {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "direct",
            Self::Loop => "loop",
            Self::LoopBuffered => "loop-buffered",
            Self::Blockd => "blockd",
            Self::Reflink => "loop-reflink",
        }
    }
}

/// File systems of the matrix, as guests and hosts.
pub const MATRIX: [&str; 9] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs", "reiserfs", "nilfs2"];
/// Guests and hosts of the comparison of servers: what volumes can have, and be on.
const SERVED_GUESTS: [&str; 2] = ["ext4", "xfs"];
const SERVED_HOSTS: [&str; 3] = ["ext4", "xfs", "btrfs"];
const REFLINK_HOSTS: [&str; 2] = ["xfs", "btrfs"];

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    guest: &'static str,
    host: &'static str,
    server: Server,
    workload: Workload,
}

impl Plan {
    fn cell(self) -> Cell {
        Cell {
            layout: layout_word(self.guest, self.host),
            controller: self.server.as_str().to_owned(),
            neighbour: self.workload.name().to_owned(),
            rounds: Vec::new(),
        }
    }

    fn is_of(self, other: Plan) -> bool {
        (self.guest, self.host, self.server) == (other.guest, other.host, other.server)
    }
}

/// `ext4-on-xfs`.
#[must_use]
pub fn layout_word(guest: &str, host: &str) -> String {
    format!("{guest}-on-{host}")
}

/// `ext4-on-xfs/loop`, as options select it.
#[must_use]
pub fn config(guest: &str, host: &str, server: Server) -> String {
    format!("{}/{}", layout_word(guest, host), server.as_str())
}

/// All stacks in their order: guest, host and what serves the image.
#[must_use]
pub fn stacks(quick: bool) -> Vec<(&'static str, &'static str, Server)> {
    let mut stacks = Vec::new();
    let matrix: &[&str] = if quick { &["ext4", "xfs"] } else { &MATRIX };
    for host in std::iter::once(&DEVICE).chain(matrix) {
        let server = if *host == DEVICE { Server::None } else { Server::Loop };
        stacks.extend(std::iter::once(&NO_GUEST).chain(matrix).map(|guest| (*guest, *host, server)));
    }
    if !quick {
        for guest in SERVED_GUESTS {
            stacks.push((guest, THIN, Server::None));
            stacks.extend(SERVED_HOSTS.map(|host| (guest, host, Server::LoopBuffered)));
            stacks.extend(SERVED_HOSTS.map(|host| (guest, host, Server::Blockd)));
            stacks.extend(REFLINK_HOSTS.map(|host| (guest, host, Server::Reflink)));
        }
    }
    stacks
}

/// All cells, stack by stack.
fn cells(quick: bool) -> Vec<Plan> {
    let of_stack = |(guest, host, server)| {
        let fits = move |workload: &Workload| {
            (guest != NO_GUEST || !workload.needs_files()) && (!quick || workload.is_write_heavy())
        };
        workload::ALL.into_iter().filter(fits).map(move |workload| Plan { guest, host, server, workload })
    };
    stacks(quick).into_iter().flat_map(of_stack).collect()
}

fn choices(options: &Options) -> Vec<Choice> {
    let word = |plan: &Plan| (config(plan.guest, plan.host, plan.server), plan.workload.name().to_owned());
    cells(options.quick).iter().map(word).collect()
}

fn chosen(options: &Options) -> Vec<Plan> {
    let is_chosen =
        |(config, neighbour): &Choice| includes(&options.configs, config) && includes(&options.neighbours, neighbour);
    let all = cells(options.quick).into_iter().zip(choices(options));
    all.filter(|(_, choice)| is_chosen(choice)).map(|(plan, _)| plan).collect()
}

/// Average duration of a cell, with its part of setting up the stack.
fn seconds(quick: bool) -> f64 {
    let (warm_up, window) = if quick { QUICK } else { FULL };
    warm_up + window + SET_UP_SECONDS
}

fn image_bytes(quick: bool) -> Bytes {
    if quick { Bytes::mib(512) } else { Bytes::mib(640) }
}

/// Measures the cells that the options select, on a device whose data is lost.
///
/// # Errors
/// If the device cannot be used, or the run is cancelled; failed cells are noted.
pub fn run(options: &Options, settings: &Settings, progress: OnProgress<'_>) -> Result<Experiment> {
    let Target::Device { path, erase: true } = &options.target else {
        bail!("{} needs a device that may be erased", METHOD.name);
    };
    let roots = Roots::host();
    let _lock = lock()?;
    stack::remove_all(&roots, &options.program)?;
    let found = block::by_path(&roots, path).context("the device")?;
    let image = image_bytes(options.quick);
    let least = stack::host_bytes(image);
    if found.size < least {
        bail!("{} has {}: at least {least} are needed", path.display(), found.size);
    }
    fsutil::wipe(path).context("the device")?;
    let mut frame = Frame::new(METHOD.name, ABOUT, options, progress);
    frame.experiment.disk = machine::disk(&found.name, found.dev, &options.simulated);
    let mut plans = chosen(options);
    if !frame.experiment.disk.is_rotational() && options.neighbours.is_empty() {
        plans.retain(|plan| plan.workload.is_write_heavy());
        frame.experiment.notes.push("Only write-heavy workloads: this disk has no arm.".to_owned());
    }
    if plans.is_empty() {
        bail!("no cell is left to run: check the neighbours and configurations asked for");
    }
    describe(&mut frame);
    frame.experiment.cells = plans.iter().map(|plan| plan.cell()).collect();
    if settings.resume {
        resume(&mut frame.experiment, options.out_dir.as_deref())?;
    }
    let bench = Bench { roots, path: path.clone(), disk: found.dev, image, settings: *settings };
    let limits = LowLimits::set(&bench.roots.proc)?;
    let measured = rounds(&mut frame, &bench, &plans);
    with_removal(measured, limits.restore())?;
    // Failed cells are in the notes.
    frame.experiment.cells.retain(|cell| !cell.rounds.is_empty());
    frame.write()?;
    Ok(frame.experiment)
}

fn describe(frame: &mut Frame<'_, '_>) {
    let (quick, window) = (frame.options.quick, window(frame.options).1);
    let experiment = &mut frame.experiment;
    experiment.machine.programs.extend(fio::version().map(|version| ("fio".to_owned(), version)));
    experiment.commands.push(workload::layout(Path::new("FILE"), quick, measure::FIRST_IO).command_line());
    for workload in workload::ALL {
        experiment.commands.push(match workload {
            Workload::Micro { rw, .. } => {
                workload::micro(rw, Path::new("FILE"), quick, window, measure::FIRST_IO).command_line()
            }
            Workload::Server { kind, files } => server(kind, files, Path::new("DIR"), frame.options).argv().join(" "),
        });
    }
    experiment.commands.push(format!("images of {}; {}", image_bytes(quick), dirty::describe()));
    // Those of all cells, so that parts of a matrix can be put together.
    experiment.commands.extend(file_systems::ALL.iter().map(|kind| kind.describe()));
}

/// What the cells are measured on.
struct Bench {
    roots: Roots,
    path: PathBuf,
    disk: DevNo,
    image: Bytes,
    settings: Settings,
}

fn rounds(frame: &mut Frame<'_, '_>, bench: &Bench, plans: &[Plan]) -> Result<()> {
    let n_rounds = n_rounds(frame.options);
    frame.of = plans.len() * usize::try_from(n_rounds).context("too many rounds")?;
    for number in 1..=n_rounds {
        let mut from = 0;
        while from < plans.len() {
            let n_cells = plans[from..].iter().take_while(|plan| plan.is_of(plans[from])).count();
            let of_stack = from..from + n_cells;
            from += n_cells;
            let done = usize::try_from(number)?;
            let left: Vec<usize> =
                of_stack.clone().filter(|index| frame.experiment.cells[*index].rounds.len() < done).collect();
            frame.skip(n_cells - left.len());
            if left.is_empty() {
                continue;
            }
            frame.options.cancel.check()?;
            let word = layout_word(plans[left[0]].guest, plans[left[0]].host);
            frame.say(&format!("round {number} of {n_rounds}: {word}, {}", plans[left[0]].server.as_str()));
            one_stack(frame, bench, plans, &left, number)?;
            frame.write()?;
        }
    }
    Ok(())
}

/// Sets up a stack, and measures cells of it. Fails only if the run is cancelled, or the stack cannot be removed.
fn one_stack(frame: &mut Frame<'_, '_>, bench: &Bench, plans: &[Plan], cells: &[usize], number: u32) -> Result<()> {
    let Plan { guest, host, server, .. } = plans[cells[0]];
    let parts = Parts { guest, host, server, image: bench.image };
    let failed = |frame: &mut Frame<'_, '_>, what: &str, error: &anyhow::Error| {
        let note = format!("{what}, round {number}{FAILED}{error:#}");
        frame.say(&note);
        // Another round fails in the same way.
        let is_known =
            |known: &String| known.split(FAILED).last() == note.split(FAILED).last() && known.starts_with(what);
        if !frame.experiment.notes.iter().any(is_known) {
            frame.experiment.notes.push(note);
        }
    };
    let stack = match Stack::set_up((&bench.roots, &frame.options.program), &bench.path, &parts, bench.settings.limit) {
        Ok(stack) => stack,
        Err(error) => {
            frame.options.cancel.check()?;
            failed(frame, &config(guest, host, server), &error);
            frame.skip(cells.len());
            return Ok(());
        }
    };
    if let Some(why) = &stack.direct_io_lost {
        let note = format!("{}: no direct I/O to the image: {why}", layout_word(guest, host));
        if !frame.experiment.notes.contains(&note) {
            frame.experiment.notes.push(note);
        }
    }
    for index in cells {
        let workload = plans[*index].workload;
        let id = plans[*index].cell().id();
        match measure::measure(frame, bench, &stack, workload) {
            Ok(round) => frame.record(*index, round),
            Err(error) => {
                if let Err(cancelled) = frame.options.cancel.check() {
                    return with_removal(Err(cancelled), stack.remove());
                }
                failed(frame, &id, &error);
                frame.skip(1);
            }
        }
    }
    stack.remove()
}

fn window(options: &Options) -> (f64, f64) {
    if options.quick { QUICK } else { FULL }
}

fn server(kind: LoadKind, files: u64, dir: &Path, options: &Options) -> LoadArgs {
    let (warm_up_seconds, seconds) = window(options);
    let files = (files > 0).then_some(if options.quick { files.min(200) } else { files });
    LoadArgs { warm_up_seconds, files, ..LoadArgs::new(kind, dir, seconds) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::set_figure;
    use crate::result::Round;

    #[test]
    fn the_matrix_has_each_pair_and_its_baseline() {
        let all = cells(false);
        let has = |guest: &str, host: &str, server: Server, workload: &str| {
            all.iter()
                .filter(|plan| {
                    (plan.guest, plan.host, plan.server) == (guest, host, server) && plan.workload.name() == workload
                })
                .count()
        };
        for guest in MATRIX {
            for host in MATRIX {
                assert_eq!(has(guest, host, Server::Loop, "mail-server"), 1, "{guest} {host}");
            }
            assert_eq!(has(guest, DEVICE, Server::None, "random-write"), 1);
        }
        assert_eq!(has(NO_GUEST, "xfs", Server::Loop, "random-read"), 1);
        assert_eq!(has(NO_GUEST, "xfs", Server::Loop, "mail-server"), 0);
        assert_eq!(all.len(), 10 * (9 * 8 + 4) + 2 * 9 * 8);
        // All cells of a stack follow each other.
        let n_changes = all.windows(2).filter(|pair| !pair[0].is_of(pair[1])).count();
        assert_eq!(n_changes + 1, 10 * 10 + 2 * 9);
    }

    #[test]
    fn only_a_device_that_may_be_erased_is_used() {
        let device = |erase| Target::Device { path: "/nonexistent".into(), erase };
        for target in [Target::Directory("/nonexistent".into()), device(false)] {
            let error = METHOD.run(&Options::new(target), &mut |_| {}).unwrap_err().to_string();
            assert!(error.contains("may be erased"), "{error}");
        }
    }

    #[test]
    fn a_run_is_continued_only_if_it_was_made_in_the_same_way() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            out_dir: Some(dir.path().to_owned()),
            quick: true,
            ..Options::new(Target::Directory("/".into()))
        };
        let mut progress = |_: &crate::experiment::Progress| {};
        let mut frame = Frame::new(METHOD.name, ABOUT, &options, &mut progress);
        let plans = chosen(&options);
        frame.experiment.cells = plans.iter().map(|plan| plan.cell()).collect();
        let fresh = frame.experiment.clone();
        let mut round = Round::default();
        set_figure(&mut round, summary::OPS_PER_S, 7.0);
        frame.record(3, round);
        frame.experiment.notes = vec![format!("x{FAILED}y"), "other".to_owned()];
        frame.write().unwrap();
        let mut again = fresh.clone();
        resume(&mut again, Some(dir.path())).unwrap();
        assert_eq!((again.cells[3].rounds.len(), again.cells[2].rounds.len()), (1, 0));
        assert_eq!(again.notes, [format!("x{FAILED}y")]);
        let mut other = fresh;
        other.commands.push("another".to_owned());
        let error = resume(&mut other, Some(dir.path())).unwrap_err().to_string();
        assert!(error.contains("how it was measured differs"), "{error}");
    }
}
