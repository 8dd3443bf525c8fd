//! Criteria for kinds of volumes, and for the lab's disks: volume-overhead and disk-models.

use bulkhead_measure::report::text::{microseconds, number, percent_exact};
use bulkhead_measure::result::{Cell, Experiment, Spread, spread};

use super::{Case, by_disk, on, on_flash, percents, quotient};
use crate::experiment::disk_models::published;
use crate::experiment::volume_overhead::due_commits_per_s;
use crate::figure as f;
use crate::report::grid;

pub(crate) fn volume_overhead(case: &mut Case<'_>, experiments: &[&Experiment]) {
    for (disk, experiment) in by_disk(case.disks, experiments) {
        if experiment.is_none() {
            case.absent.push(disk);
        }
        let of = |layout: &str| experiment.and_then(|e| Some((e, e.cells.iter().find(|cell| cell.layout == layout)?)));
        let others = ["nbdkit", "qemu-nbd", "ublk-loop"].into_iter().filter(|layout| of(layout).is_some());
        for layout in ["lv", "blockd", "loop"].into_iter().chain(others.clone()) {
            let found = of(layout);
            let part = |name: &str| found.and_then(|(experiment, cell)| grid::pct_of_raw(experiment, cell, name));
            let figure = |name: &str| found.and_then(|(_, cell)| cell.figure(name));
            let (iops, bandwidth) = (part(f::RANDOM_IOPS), part(f::SEQUENTIAL_BYTES_PER_S));
            let (commits, cpu) = (figure(f::HOST_COMMITS_PER_FSYNC), figure(f::CPU_US_PER_IO));
            let on = if layout == "blockd" { on_flash(disk) } else { "" };
            case.row(disk, &format!("{layout} IOPS{on}"), iops, percent_exact, "of the raw device");
            let deep = part(f::DEEP_IOPS);
            case.row(disk, &format!("{layout} IOPS of 32 threads"), deep, percent_exact, "of the raw device");
            case.row(disk, &format!("{layout} bandwidth"), bandwidth, percent_exact, "of the raw device");
            if layout == "blockd" {
                let beside = |name| {
                    let others = others.clone().chain(["loop"]).filter_map(of);
                    others.filter_map(move |(_, other)| quotient(found?.1, other, name))
                };
                let worse = beside(f::RANDOM_IOPS).chain(beside(f::DEEP_IOPS));
                let worse = worse.min_by(|a, b| a.median.total_cmp(&b.median)).map(percents);
                case.row(
                    disk,
                    "blockd of the best other server",
                    worse,
                    percent_exact,
                    "the worse of 1 and 32 threads",
                );
                let asked_for = found.and_then(|(experiment, cell)| commits_asked_for(experiment, cell));
                case.row(
                    disk,
                    "blockd host commits",
                    asked_for,
                    number,
                    "per fsync, beside those that are due every 5 s",
                );
            }
            case.row(disk, &format!("{layout} CPU"), cpu, microseconds, "of all processors for each write");
            let said = [
                iops.map(|s| format!("IOPS {}", percent_exact(s.median))),
                deep.map(|s| format!("of 32 threads {}", percent_exact(s.median))),
                bandwidth.map(|s| format!("bandwidth {}", percent_exact(s.median))),
                commits.map(|s| format!("{} host commits/fsync", number(s.median))),
                cpu.map(|s| format!("{} CPU per I/O", microseconds(s.median))),
            ];
            case.summarize(&format!("{disk} {layout}"), said);
        }
    }
}

/// Commits of the host's journal per fsync, without periodic ones.
fn commits_asked_for(experiment: &Experiment, cell: &Cell) -> Option<Spread> {
    spread(cell.rounds.iter().filter_map(|round| {
        let (commits, fsyncs) = (round.figures.get(f::HOST_COMMITS_PER_S)?, round.figures.get(f::RANDOM_IOPS)?);
        Some((commits - due_commits_per_s(round, experiment.quick)).max(0.0) / fsyncs)
    }))
}

pub(crate) fn disk_models(case: &mut Case<'_>, experiments: &[&Experiment]) {
    for drive in &published::DRIVES {
        let mine = on(experiments, drive.model);
        if mine.is_empty() {
            case.absent.push(drive.model);
            case.row(drive.model, "largest deviation", None, percent_exact, "");
        }
        for experiment in mine {
            let outcome = published::compare(drive, experiment);
            let said = outcome.sentence();
            // All have to be measured.
            let off = outcome.off_pct.filter(|_| outcome.n_measured == outcome.n_judged);
            case.row(drive.model, "largest deviation", off, percent_exact, &said);
            if outcome.n_measured > 0 {
                case.figures.push(format!("{}: {said}", drive.model));
            }
        }
    }
}
