//! Criteria for clones: clone-read and launch-storm.

use bulkhead_measure::report::text::{factor, number, percent, percent_exact};
use bulkhead_measure::result::Experiment;

use super::{Case, by_disk, on_flash};
use crate::experiment::launch_storm::{BOUNDED, UNBOUNDED};
use crate::figure as f;
use crate::report::grid;

pub(crate) fn clone_read(case: &mut Case<'_>, experiments: &[&Experiment]) {
    for (disk, experiment) in by_disk(case.disks, experiments) {
        if experiment.is_none() {
            case.absent.push(disk);
        }
        for mode in ["base", "drr", "both"] {
            let cell = experiment.and_then(|experiment| experiment.cell(mode, "", ""));
            let gain = cell.and_then(|cell| cell.ratio(f::SECOND_CLONE_BYTES_PER_S, f::FIRST_CLONE_BYTES_PER_S));
            let part = cell.and_then(|c| grid::ratio_pct(c, f::SECOND_CLONE_BYTES_PER_S, f::CACHE_HIT_BYTES_PER_S));
            let reads = cell.and_then(|cell| cell.figure(f::SECOND_CLONE_DISK_READS));
            let copies = cell.and_then(|cell| cell.figure(f::COPIES_IN_MEMORY));
            case.row(
                disk,
                &format!("{mode} gain{}", on_flash(disk)),
                gain,
                factor,
                "second clone's first read over the first clone's",
            );
            case.row(disk, &format!("{mode} of a cache hit"), part, percent, "");
            case.row(disk, &format!("{mode} disk reads"), reads, number, "while the second clone reads");
            case.row(disk, &format!("{mode} copies"), copies, number, "in memory after three clones have read");
            let worse = experiment.zip(cell).and_then(|(e, cell)| grid::worse_miss_cost_pct(e, cell));
            if mode == "drr" {
                case.row(disk, "drr miss cost", worse, percent_exact, "the worse of never had and had once");
            }
            let said = [
                gain.map(|s| factor(s.median)),
                part.map(|s| format!("{} of a cache hit", percent(s.median))),
                reads.map(|s| format!("{} disk reads", number(s.median))),
                worse.map(|s| format!("a miss costs {}", percent_exact(s.median))),
            ];
            case.summarize(&format!("{disk} {mode}"), said);
        }
    }
}

pub(crate) fn launch_storm(case: &mut Case<'_>, experiments: &[&Experiment]) {
    for experiment in experiments {
        let disk = experiment.disk.model.as_str();
        for (mode, neighbour) in [("base", UNBOUNDED), ("drr", UNBOUNDED), ("base", BOUNDED), ("drr", BOUNDED)] {
            let cell = experiment.cell(mode, "", neighbour);
            let saved = |name: &str| cell.and_then(|cell| grid::saved_pct(experiment, cell, name));
            // In requests and in bytes; both must decrease.
            let reads = [f::LAUNCH_DISK_READS, f::LAUNCH_DISK_BYTES].map(saved);
            let reads = reads.into_iter().flatten().min_by(|a, b| a.median.total_cmp(&b.median));
            let time = saved(f::READY_SECONDS);
            let words = if neighbour == UNBOUNDED { mode.to_owned() } else { format!("{mode} {neighbour},") };
            case.row(
                disk,
                &format!("{words} time saved"),
                time,
                percent_exact,
                "until all are ready, against not sharing",
            );
            case.row(
                disk,
                &format!("{words} disk reads saved"),
                reads,
                percent_exact,
                "the less of requests and bytes",
            );
            let index = cell.and_then(|cell| cell.figure(f::INDEX_PCT));
            if (mode, neighbour) == ("drr", UNBOUNDED) {
                case.row(disk, "drr index memory", index, percent_exact, "of the image, for all clones together");
            }
            let said = [
                time.map(|s| format!("{} less time", percent_exact(s.median))),
                reads.map(|s| format!("{} fewer disk reads", percent_exact(s.median))),
                index.map(|s| format!("index {}", percent_exact(s.median))),
            ];
            case.summarize(&format!("{disk} {words}"), said);
        }
    }
}
