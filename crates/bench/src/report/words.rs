//! What configurations and neighbours are called, in which order they stand, and which one is Bulkhead's own.

use crate::calls::{METADATA, OTHER};
use crate::experiment::attribution::{CONTAINERS, PROGRAMS};
use crate::experiment::disk_models::published;
use crate::experiment::{launch_storm, share_correction};
use crate::journal_cost::Features;
use crate::result::{Cell, Experiment};

/// Orders of what is known; others follow in the order they were measured.
const LAYOUTS: [&str; 29] = [
    "raw",
    "lv",
    "shared",
    "shared+published",
    "shared+hold",
    "own",
    "own+accounting-cpu",
    "own+accounting",
    "own+accounting+hold",
    "blockd",
    "blockd+accounting",
    "bulkhead",
    "loop",
    "nbdkit",
    "qemu-nbd",
    "ublk-loop",
    "off",
    "base",
    "drr",
    "both",
    published::RANDOM_READ,
    published::RANDOM_WRITE,
    published::SEQUENTIAL_READ,
    published::SEQUENTIAL_WRITE,
    published::SMALL_SEQUENTIAL_READ,
    published::SMALL_SEQUENTIAL_WRITE,
    published::RANDOM_FLUSH,
    published::OUTER_FLUSH,
    published::SEQUENTIAL_FLUSH,
];
const CONTROLLERS: [&str; 3] = ["none", "bfq", "iocost"];
const NEIGHBOURS: [&str; 20] = [
    "none",
    "idle",
    "streams",
    "fsyncs",
    "storm",
    "no-fsync",
    "low-fsync",
    "high-fsync",
    share_correction::READS,
    share_correction::SIXTEEN,
    share_correction::COMES_AND_GOES,
    share_correction::JOURNAL_ONLY,
    launch_storm::UNBOUNDED,
    launch_storm::BOUNDED,
    "depth-1",
    "depth-2",
    "depth-4",
    "depth-8",
    "depth-16",
    "depth-32",
];

/// Layouts that are Bulkhead at work, the preferred first. The choice is fixed here, never made by results.
const OURS: [&str; 7] =
    ["bulkhead", "shared+hold", "own+accounting+hold", "own+accounting", "blockd+accounting", "blockd", "base"];

/// A layout with a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config<'a> {
    pub(crate) layout: &'a str,
    pub(crate) controller: &'a str,
}

impl<'a> Config<'a> {
    pub(crate) fn of(cell: &'a Cell) -> Self {
        Self { layout: &cell.layout, controller: &cell.controller }
    }

    /// `own+accounting/iocost`.
    pub(crate) fn id(self) -> String {
        if self.controller.is_empty() { self.layout.to_owned() } else { format!("{}/{}", self.layout, self.controller) }
    }

    /// For people.
    pub(crate) fn label(self) -> String {
        let layout = match self.layout {
            "shared" => "Shared journal",
            "own" => "Own journal",
            "own+accounting" => "Own + accounting",
            "own+accounting-cpu" => "Own + acc., no cpu",
            "shared+hold" => "Shared, held",
            "own+accounting+hold" => "Own, held",
            "shared+published" => "Shared, published correction",
            "blockd" => "blockd volume",
            "blockd+accounting" => "blockd + accounting",
            "bulkhead" => "Bulkhead",
            "raw" => "Raw device",
            "lv" => "Logical volume",
            "loop" => "Loop device",
            "ublk-loop" => "Plain ublk loop",
            "off" => "Nothing shared",
            "base" => "Base in the host's cache",
            "drr" => "From siblings' caches",
            "both" => "From siblings, else base",
            published::RANDOM_READ => "Random read, 4 KiB",
            published::RANDOM_WRITE => "Random write, 4 KiB",
            published::SEQUENTIAL_READ => "Sequential read, 128 KiB",
            published::SEQUENTIAL_WRITE => "Sequential write, 128 KiB",
            published::SMALL_SEQUENTIAL_READ => "Sequential read, 4 KiB",
            published::SMALL_SEQUENTIAL_WRITE => "Sequential write, 4 KiB",
            published::RANDOM_FLUSH => "Random write + flush, 4 KiB",
            published::OUTER_FLUSH => "The same, outer 44 % of the stroke",
            published::SEQUENTIAL_FLUSH => "Sequential write + flush, 4 KiB",
            other => other,
        };
        match self.controller {
            "none" if volume(self.layout) => layout.to_owned(),
            "" => layout.to_owned(),
            "none" => format!("{layout}, no control"),
            "bfq" => format!("{layout}, BFQ"),
            "iocost" => format!("{layout}, io.cost"),
            other => format!("{layout}, {other}"),
        }
    }
}

/// Whether a layout is a kind of volume that was measured by itself.
fn volume(layout: &str) -> bool {
    ["raw", "lv", "loop", "blockd", "nbdkit", "qemu-nbd", "ublk-loop"].contains(&layout)
}

fn rank(order: &[&str], name: &str) -> usize {
    order.iter().position(|known| *known == name).unwrap_or(order.len())
}

/// All configurations, in reading order.
pub(crate) fn configs<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Vec<Config<'a>> {
    let mut found: Vec<Config<'_>> = Vec::new();
    for cell in cells {
        if !found.contains(&Config::of(cell)) {
            found.push(Config::of(cell));
        }
    }
    found.sort_by_key(|config| (rank(&LAYOUTS, config.layout), rank(&CONTROLLERS, config.controller)));
    found
}

/// All neighbours, in reading order.
pub(crate) fn neighbours<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for cell in cells {
        if !found.contains(&cell.neighbour.as_str()) {
            found.push(&cell.neighbour);
        }
    }
    found.sort_by_key(|name| rank(&NEIGHBOURS, name));
    found
}

/// Bulkhead's configuration among those measured: a layout of ours under an active controller.
pub(crate) fn ours<'a>(experiments: impl IntoIterator<Item = &'a Experiment>) -> Option<Config<'a>> {
    let mut all = configs(experiments.into_iter().flat_map(|experiment| &experiment.cells));
    all.retain(|config| OURS.contains(&config.layout) && config.controller != "none");
    // iocost is the controller that the daemon sets up by default; what a kernel thread writes in the root is held back by BFQ only.
    let controllers = |layout: &str| if layout == "shared+hold" { ["bfq", "iocost"] } else { ["iocost", "bfq"] };
    all.sort_by_key(|config| (rank(&OURS, config.layout), rank(&controllers(config.layout), config.controller)));
    all.first().copied()
}

/// The same without shares being held: alone there is nothing to hold.
pub(crate) fn unheld(config: Config<'_>) -> Config<'_> {
    Config { layout: config.layout.trim_end_matches("+hold"), ..config }
}

/// A configuration of a layout that is best compared with `beside`: the same controller, or else the least control.
pub(crate) fn like<'a>(experiment: &'a Experiment, layout: &str, beside: Config<'_>) -> Option<Config<'a>> {
    let all = configs(experiment.cells.iter().filter(|cell| cell.layout == layout));
    all.iter().find(|config| config.controller == beside.controller).or_else(|| all.first()).copied()
}

/// What a host does that nobody set up: the shared file system with the least control.
pub(crate) fn unprotected(experiment: &Experiment) -> Option<Config<'_>> {
    configs(experiment.cells.iter().filter(|cell| cell.layout == "shared")).first().copied()
}

/// A neighbour, to stand behind "beside".
pub(crate) fn neighbour(name: &str) -> &str {
    match name {
        "idle" => "an idle neighbour",
        "streams" => "8 buffered writers",
        "fsyncs" => "8 writers that fsync every 16 KiB",
        "storm" => "a storm of file creations and deletions",
        "no-fsync" => "a neighbour without fsync",
        "low-fsync" => "a neighbour with few fsyncs",
        "high-fsync" => "a neighbour with many fsyncs",
        share_correction::READS => "another reader",
        share_correction::SIXTEEN => "fifteen other readers",
        share_correction::COMES_AND_GOES => "a reader, and one that comes and goes",
        other => other,
    }
}

/// A neighbour as a heading.
pub(crate) fn neighbour_heading(name: &str) -> String {
    if let Some(features) = Features::ALL.into_iter().find(|features| features.name() == name) {
        return features.title();
    }
    match name {
        "" | "none" => "no neighbour".to_owned(),
        CONTAINERS => "containers on one journal".to_owned(),
        METADATA | OTHER => name.to_owned(),
        PROGRAMS => "each BPF program".to_owned(),
        launch_storm::UNBOUNDED => "memory not bounded".to_owned(),
        launch_storm::BOUNDED => "memory bounded".to_owned(),
        share_correction::JOURNAL_ONLY => "A makes directories and reads nothing".to_owned(),
        known if neighbour(known) != known => format!("beside {}", neighbour(known)),
        depth if depth.starts_with("depth-") => depth.replacen('-', " ", 1),
        other => format!("neighbour: {other}"),
    }
}

/// The lowest and the highest number of rounds of any cell.
pub(crate) fn n_rounds(experiment: &Experiment) -> (usize, usize) {
    let counts = || experiment.cells.iter().map(|cell| cell.rounds.len());
    (counts().min().unwrap_or(0), counts().max().unwrap_or(0))
}

/// Machine, kernel, disk and rounds in one line.
pub(crate) fn source(experiment: &Experiment) -> String {
    let machine = &experiment.machine;
    let virtualisation = match machine.virtualisation.as_str() {
        "" => "Unknown machine".to_owned(),
        "none" => "Bare metal".to_owned(),
        "tcg" => "Emulated processor (QEMU TCG)".to_owned(),
        "kvm" => "Virtual machine (KVM)".to_owned(),
        other => format!("Virtual machine ({other})"),
    };
    let kernel = if machine.kernel.is_empty() { "unknown" } else { &machine.kernel };
    let cpus = match machine.n_cpus {
        0 => String::new(),
        1 => ", 1 CPU".to_owned(),
        n => format!(", {n} CPUs"),
    };
    let clock = if machine.clock.is_empty() { String::new() } else { format!(" Clock: {}.", machine.clock) };
    let (disk, rounds) = (disk(experiment), rounds_said(experiment));
    format!("{virtualisation}{cpus}, Linux {kernel}.{clock} Disk: {disk}. {rounds}.")
}

/// `3 interleaved rounds`, and whether it was the short form.
pub(crate) fn rounds_said(experiment: &Experiment) -> String {
    let quick = if experiment.quick { ", short form" } else { "" };
    match n_rounds(experiment) {
        (least, most) if least == most => format!("{}{quick}", super::text::rounds(most)),
        (least, most) => format!("{least} to {most} rounds{quick}"),
    }
}

/// The disk in a few words.
pub(crate) fn disk(experiment: &Experiment) -> String {
    let disk = &experiment.disk;
    let model = if disk.model.is_empty() { "unknown" } else { &disk.model };
    if disk.parameters.is_empty() { model.to_owned() } else { format!("{model} ({})", disk.parameters) }
}
