//! Labels and order of configurations and neighbours, and the choice of Bulkhead's own configuration.
//!
//! One dictionary for all results: names in older results keep their label and position.

use crate::journal_cost::Features;
use crate::result::{Cell, Experiment};

/// The order of known names; others follow in the order of measurement.
const LAYOUTS: [&str; 30] = [
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
    "bulkhead+promise",
    "loop",
    "nbdkit",
    "qemu-nbd",
    "ublk-loop",
    "off",
    "base",
    "drr",
    "both",
    "random-read",
    "random-write",
    "sequential-read",
    "sequential-write",
    "sequential-read-4k",
    "sequential-write-4k",
    "random-write-flush",
    "random-write-flush-outer",
    "sequential-write-flush",
];
const CONTROLLERS: [&str; 4] = ["none", "bfq", "iocost", "arbiter"];
const NEIGHBOURS: [&str; 20] = [
    "none",
    "idle",
    "streams",
    "fsyncs",
    "storm",
    "no-fsync",
    "low-fsync",
    "high-fsync",
    "reads",
    "sixteen",
    "comes-and-goes",
    "journal-only",
    "unbounded",
    "bounded",
    "depth-1",
    "depth-2",
    "depth-4",
    "depth-8",
    "depth-16",
    "depth-32",
];

/// Bulkhead's layouts, preferred ones first. The choice is fixed here, and does not depend on results.
const OURS: [&str; 7] =
    ["bulkhead", "shared+hold", "own+accounting+hold", "own+accounting", "blockd+accounting", "blockd", "base"];

/// A layout with a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config<'a> {
    pub layout: &'a str,
    pub controller: &'a str,
}

impl<'a> Config<'a> {
    #[must_use]
    pub fn from_cell(cell: &'a Cell) -> Self {
        Self { layout: &cell.layout, controller: &cell.controller }
    }

    /// `own+accounting/iocost`.
    #[must_use]
    pub fn id(self) -> String {
        if self.controller.is_empty() { self.layout.to_owned() } else { format!("{}/{}", self.layout, self.controller) }
    }

    /// The label in reports.
    #[must_use]
    pub fn label(self) -> String {
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
            "bulkhead+promise" => "Bulkhead, promised",
            "raw" => "Raw device",
            "lv" => "Logical volume",
            "loop" => "Loop device",
            "ublk-loop" => "Plain ublk loop",
            "off" => "Nothing shared",
            "base" => "Base in the host's cache",
            "drr" => "From peers' caches",
            "both" => "From peers, else base",
            "random-read" => "Random read, 4 KiB",
            "random-write" => "Random write, 4 KiB",
            "sequential-read" => "Sequential read, 128 KiB",
            "sequential-write" => "Sequential write, 128 KiB",
            "sequential-read-4k" => "Sequential read, 4 KiB",
            "sequential-write-4k" => "Sequential write, 4 KiB",
            "random-write-flush" => "Random write + flush, 4 KiB",
            "random-write-flush-outer" => "The same, outer 44 % of the stroke",
            "sequential-write-flush" => "Sequential write + flush, 4 KiB",
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

/// Whether a layout is a kind of volume.
fn volume(layout: &str) -> bool {
    ["raw", "lv", "loop", "blockd", "nbdkit", "qemu-nbd", "ublk-loop"].contains(&layout)
}

fn rank(order: &[&str], name: &str) -> usize {
    order.iter().position(|known| *known == name).unwrap_or(order.len())
}

/// All configurations, in reading order.
#[must_use]
pub fn configs<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Vec<Config<'a>> {
    let mut found: Vec<Config<'_>> = Vec::new();
    for cell in cells {
        if !found.contains(&Config::from_cell(cell)) {
            found.push(Config::from_cell(cell));
        }
    }
    found.sort_by_key(|config| (rank(&LAYOUTS, config.layout), rank(&CONTROLLERS, config.controller)));
    found
}

/// All neighbours, in reading order.
#[must_use]
pub fn neighbours<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for cell in cells {
        if !found.contains(&cell.neighbour.as_str()) {
            found.push(&cell.neighbour);
        }
    }
    found.sort_by_key(|name| rank(&NEIGHBOURS, name));
    found
}

/// Bulkhead's configuration among those measured: one of its layouts with an active controller.
#[must_use]
pub fn ours<'a>(experiments: impl IntoIterator<Item = &'a Experiment>) -> Option<Config<'a>> {
    let mut all = configs(experiments.into_iter().flat_map(|experiment| &experiment.cells));
    all.retain(|config| OURS.contains(&config.layout) && config.controller != "none");
    // io.cost is the daemon's default controller; only BFQ throttles the writes of a kernel thread in the root cgroup.
    let controllers = |layout: &str| if layout == "shared+hold" { ["bfq", "iocost"] } else { ["iocost", "bfq"] };
    all.sort_by_key(|config| (rank(&OURS, config.layout), rank(&controllers(config.layout), config.controller)));
    all.first().copied()
}

/// The same without enforced shares, because a tenant alone has no contention.
#[must_use]
pub fn unheld(config: Config<'_>) -> Config<'_> {
    Config { layout: config.layout.trim_end_matches("+hold"), ..config }
}

/// The configuration of a layout to compare with `beside`: with the same controller, else with the least control.
#[must_use]
pub fn closest_config<'a>(experiment: &'a Experiment, layout: &str, beside: Config<'_>) -> Option<Config<'a>> {
    let all = configs(experiment.cells.iter().filter(|cell| cell.layout == layout));
    all.iter().find(|config| config.controller == beside.controller).or_else(|| all.first()).copied()
}

/// The default of a host: the shared file system with the least control.
#[must_use]
pub fn unprotected(experiment: &Experiment) -> Option<Config<'_>> {
    configs(experiment.cells.iter().filter(|cell| cell.layout == "shared")).first().copied()
}

/// A neighbour as a noun phrase, to follow "beside".
#[must_use]
pub fn neighbour(name: &str) -> &str {
    match name {
        "idle" => "an idle neighbour",
        "streams" => "8 buffered writers",
        "noisy-pod" => "a pod with 4 buffered writers",
        "fsyncs" => "8 writers that fsync every 16 KiB",
        "storm" => "a storm of file creations and deletions",
        "no-fsync" => "a neighbour without fsync",
        "low-fsync" => "a neighbour with few fsyncs",
        "high-fsync" => "a neighbour with many fsyncs",
        "reads" => "another reader",
        "sixteen" => "fifteen other readers",
        "comes-and-goes" => "a reader, and one that comes and goes",
        other => other,
    }
}

/// A neighbour as a heading.
#[must_use]
pub fn neighbour_heading(name: &str) -> String {
    if let Some(features) = Features::ALL.into_iter().find(|features| features.name() == name) {
        return features.title();
    }
    match name {
        "" | "none" => "no neighbour".to_owned(),
        "containers" => "containers on one journal".to_owned(),
        "metadata calls" | "other calls" => name.to_owned(),
        "programs" => "each BPF program".to_owned(),
        "unbounded" => "memory not bounded".to_owned(),
        "bounded" => "memory bounded".to_owned(),
        "journal-only" => "A makes directories and reads nothing".to_owned(),
        known if neighbour(known) != known => format!("beside {}", neighbour(known)),
        depth if depth.starts_with("depth-") => depth.replacen('-', " ", 1),
        other => format!("neighbour: {other}"),
    }
}

/// The lowest and the highest number of rounds of any cell.
#[must_use]
pub fn n_rounds(experiment: &Experiment) -> (usize, usize) {
    let counts = || experiment.cells.iter().map(|cell| cell.rounds.len());
    (counts().min().unwrap_or(0), counts().max().unwrap_or(0))
}

/// Machine, kernel, disk and rounds in one line.
#[must_use]
pub fn source(experiment: &Experiment) -> String {
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

/// For example `3 interleaved rounds`, and whether it was the short form.
#[must_use]
pub fn rounds_said(experiment: &Experiment) -> String {
    let quick = if experiment.quick { ", short form" } else { "" };
    match n_rounds(experiment) {
        (least, most) if least == most => format!("{}{quick}", super::text::rounds(most)),
        (least, most) => format!("{least} to {most} rounds{quick}"),
    }
}

/// The disk in a few words.
#[must_use]
pub fn disk(experiment: &Experiment) -> String {
    let disk = &experiment.disk;
    let model = if disk.model.is_empty() { "unknown" } else { &disk.model };
    if disk.parameters.is_empty() { model.to_owned() } else { format!("{model} ({})", disk.parameters) }
}
