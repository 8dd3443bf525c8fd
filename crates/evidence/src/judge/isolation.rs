//! Criteria for isolation: fsync-probe, dbms-consolidation, journal-fsync and share-correction.

use bulkhead_measure::isolation::fair_part_pct;
use bulkhead_measure::report::labels::{self, Config};
use bulkhead_measure::report::text::{factor, number, percent, percent_exact};
use bulkhead_measure::result::{Cell, Experiment, Spread};

use super::{Case, by_disk, on_flash, percents, quotient};
use crate::experiment::kubernetes::{ALONE, BULKHEAD, NOISY_POD, PROMISED, SHARED, without_promise};
use crate::experiment::share_correction::{COMES_AND_GOES, READS, SIXTEEN};
use crate::figure as f;

/// Served volumes on a disk whose arbiter is on.
const ARBITER: Config<'_> = Config { layout: "blockd+accounting", controller: "arbiter" };

pub(crate) fn fsync_probe(case: &mut Case<'_>, experiments: &[&Experiment]) {
    let ours = labels::ours(experiments.iter().copied());
    if let Some(config) = ours {
        case.figures.push(config.id());
    }
    // With weights alone, and with a limit for A's fsyncs, which throttles the neighbour.
    let free = ours.map(labels::unheld);
    let promised = ours.filter(|config| Some(*config) != free);
    for (disk, experiment) in by_disk(case.disks, experiments) {
        if experiment.is_none() {
            case.absent.push(disk);
        }
        probes(case, disk, experiment, disk, free);
        if promised.is_some() {
            probes(case, disk, experiment, &format!("{disk} promised"), promised);
        }
        if experiment.is_some_and(|experiment| experiment.cell(ARBITER.layout, ARBITER.controller, "streams").is_some())
        {
            probes(case, disk, experiment, &format!("{disk} arbiter"), Some(ARBITER));
        }
    }
}

/// One configuration next to all neighbours, as rows of `place`.
fn probes(case: &mut Case<'_>, disk: &str, experiment: Option<&Experiment>, place: &str, config: Option<Config<'_>>) {
    for neighbour in ["streams", "fsyncs", "storm"] {
        let cell = config.and_then(|config| experiment?.cell(config.layout, config.controller, neighbour));
        let mean = cell.and_then(|cell| cell.ratio(f::FSYNC_LOADED_MEAN_MS, f::FSYNC_IDLE_MEAN_MS));
        let p99 = cell.and_then(|cell| cell.ratio(f::FSYNC_LOADED_P99_MS, f::FSYNC_IDLE_P99_MS));
        let kept = cell.and_then(fair_part_pct);
        let share_known = cell.is_some_and(|cell| cell.figure(f::A_DEVICE_SHARE).is_some());
        let remark = if share_known {
            "of alone x (1 - A's share of device time)"
        } else {
            "of alone; A's share of device time not measured, taken as 0"
        };
        let first_come = cell.zip(experiment).and_then(|(cell, experiment)| first_come_pct(experiment, cell));
        let on = on_flash(disk);
        case.row(place, &format!("{neighbour} mean{on}"), mean, factor, "");
        case.row(place, &format!("{neighbour} p99{on}"), p99, factor, "");
        case.row(place, &format!("{neighbour} neighbour"), kept, percent, remark);
        let remark = "of what it gets beside A on a shared file system without control";
        case.row(place, &format!("{neighbour} neighbour of first come"), first_come, percent, remark);
        let said = [
            mean.map(|s| format!("mean {}", factor(s.median))),
            p99.map(|s| format!("p99 {}", factor(s.median))),
            kept.map(|s| format!("neighbour {}", percent(s.median))),
        ];
        case.summarize(&format!("{place} {neighbour}"), said);
    }
}

/// The neighbour's throughput, in percent of that next to A without enforced shares.
fn first_come_pct(experiment: &Experiment, cell: &Cell) -> Option<Spread> {
    let free = experiment.cell("shared", "none", &cell.neighbour)?;
    [f::NEIGHBOUR_BYTES_PER_S, f::NEIGHBOUR_OPS_PER_S]
        .into_iter()
        .find_map(|name| quotient(cell, free, name))
        .map(percents)
}

pub(crate) fn dbms(case: &mut Case<'_>, experiments: &[&Experiment]) {
    let Some(ours) = labels::ours(experiments.iter().copied()) else {
        case.missing.push("Bulkhead's own configuration was not measured".into());
        return;
    };
    case.figures.push(ours.id());
    for (disk, experiment) in by_disk(case.disks, experiments) {
        let Some(experiment) = experiment else {
            case.absent.push(disk);
            continue;
        };
        let cell = |config: Option<Config<'_>>, neighbour: &str| {
            let config = config?;
            experiment.cell(config.layout, config.controller, neighbour)
        };
        let shared = labels::closest_config(experiment, "shared", ours);
        let unheld = labels::unheld(ours);
        let alone = cell(Some(unheld), "none");
        let of_shared = quotient_of(alone, cell(shared, "none"), f::INSERTS_PER_S).map(percents);
        case.row(disk, "alone of shared", of_shared, percent_exact, "of the shared journal's throughput");
        for neighbour in ["no-fsync", "low-fsync", "high-fsync"] {
            let place = format!("{disk} {neighbour}");
            let held = cell(Some(ours), neighbour);
            let steps = [labels::closest_config(experiment, "own", ours), Some(unheld), Some(ours)];
            let gains = steps.map(|step| quotient_of(cell(step, neighbour), cell(shared, neighbour), f::INSERTS_PER_S));
            // A step without a measurement could be worse.
            let worst = gains.into_iter().collect::<Option<Vec<_>>>();
            let worst = worst.and_then(|all| all.into_iter().min_by(|a, b| a.median.total_cmp(&b.median)));
            let share = held.and_then(f::share_a).map(|(share, _)| share);
            let [of_alone, gain, fsync] = beside(case, &place, held, alone, cell(shared, neighbour));
            case.row(&place, "worst step of shared", worst, factor, "own, with accounting, held");
            case.row(&place, "share", share, percent_exact, "");
            let said = [of_alone, gain, fsync, share.map(|s| format!("share {}", percent_exact(s.median)))];
            case.summarize(&place, said);
        }
        if let Some(alone) = cell(Some(ARBITER), "none") {
            let of_shared = quotient_of(Some(alone), cell(shared, "none"), f::INSERTS_PER_S).map(percents);
            case.row(
                &format!("{disk} arbiter"),
                "alone of shared",
                of_shared,
                percent_exact,
                "of the shared journal's",
            );
            for neighbour in ["no-fsync", "low-fsync", "high-fsync"] {
                let place = format!("{disk} {neighbour} arbiter");
                let found = cell(Some(ARBITER), neighbour);
                let said = beside(case, &place, found, Some(alone), cell(shared, neighbour));
                case.summarize(&place, said);
            }
        }
    }
}

/// A database with 70 % beside a neighbour, compared with itself alone and on a shared journal; what is said of that.
fn beside(
    case: &mut Case<'_>,
    place: &str,
    found: Option<&Cell>,
    alone: Option<&Cell>,
    shared: Option<&Cell>,
) -> [Option<String>; 3] {
    let of_alone = quotient_of(found, alone, f::INSERTS_PER_S).map(percents);
    let fsync = quotient_of(found, alone, f::FSYNC_MEAN_MS);
    let gain = quotient_of(found, shared, f::INSERTS_PER_S);
    case.row(place, "throughput of alone", of_alone, percent_exact, "with 70 % of the disk");
    case.row(place, "fsync of alone", fsync, factor, "");
    case.row(place, "throughput of shared", gain, factor, "");
    [
        of_alone.map(|s| format!("{} of alone", percent_exact(s.median))),
        gain.map(|s| format!("{} of shared", factor(s.median))),
        fsync.map(|s| format!("fsync {} of alone", factor(s.median))),
    ]
}

fn quotient_of(of: Option<&Cell>, whole: Option<&Cell>, name: &str) -> Option<Spread> {
    quotient(of?, whole?, name)
}

pub(crate) fn kubernetes(case: &mut Case<'_>, experiments: &[&Experiment]) {
    for (disk, experiment) in by_disk(case.disks, experiments) {
        let Some(experiment) = experiment else {
            case.absent.push(disk);
            continue;
        };
        let alone =
            |layout: &str| experiment.cells.iter().find(|cell| cell.layout == layout && cell.neighbour == ALONE);
        let part = |layout: &str, controller: &str, name: &str| {
            quotient(experiment.cell(layout, controller, NOISY_POD)?, alone(without_promise(layout))?, name)
        };
        for (layout, controller, words) in [
            (SHARED, "none", "hostPath"),
            (SHARED, "bfq", "hostPath, bfq,"),
            (BULKHEAD, "bfq", "volume"),
            (PROMISED, "bfq", "volume, promised,"),
        ] {
            let p99 = part(layout, controller, f::POD_FSYNC_P99_MS);
            let inserts = part(layout, controller, f::POD_INSERTS_PER_S).map(percents);
            case.row(disk, &format!("{words} p99"), p99, factor, "of the same database alone");
            case.row(disk, &format!("{words} throughput"), inserts, percent_exact, "of the same database alone");
            let said = [
                p99.map(|s| format!("p99 {} of alone", factor(s.median))),
                inserts.map(|s| format!("{} of its inserts", percent_exact(s.median))),
            ];
            case.summarize(&format!("{disk} {words}"), said);
        }
        let own = alone(BULKHEAD).zip(alone(SHARED)).and_then(|(own, host)| quotient(own, host, f::POD_INSERTS_PER_S));
        case.row(disk, "alone of hostPath", own.map(percents), percent_exact, "inserts of the database alone");
    }
}

pub(crate) fn journal_fsync(case: &mut Case<'_>, experiments: &[&Experiment]) {
    let ours = labels::ours(experiments.iter().copied());
    for (disk, experiment) in by_disk(case.disks, experiments) {
        let Some(experiment) = experiment else {
            case.absent.push(disk);
            continue;
        };
        let cell = experiment
            .cells
            .iter()
            .find(|c| Some(Config::from_cell(c)) == ours && c.figure(f::FSYNC_A_MEAN_MS).is_some());
        let ratio = cell.and_then(|cell| cell.ratio(f::FSYNC_B_MEAN_MS, f::FSYNC_A_MEAN_MS));
        let both =
            cell.and_then(|c| Some((c.figure(f::FSYNC_A_MEAN_MS)?.median, c.figure(f::FSYNC_B_MEAN_MS)?.median)));
        let remark = both.map_or_else(String::new, |(a, b)| format!("A {} ms, B {} ms", number(a), number(b)));
        case.row(disk, "latency B/A", ratio, number, &remark);
        if let (Some(ratio), Some(ours)) = (ratio, ours) {
            case.figures.push(format!("{} {disk} {remark}, B/A {}", ours.id(), number(ratio.median)));
        }
    }
}

pub(crate) fn share_correction(case: &mut Case<'_>, experiments: &[&Experiment]) {
    for (disk, experiment) in by_disk(case.disks, experiments) {
        if experiment.is_none() {
            case.absent.push(disk);
        }
        let cells = [
            ("shared+hold", "bfq", READS),
            ("shared+hold", "iocost", READS),
            ("shared+hold", "bfq", SIXTEEN),
            ("shared+hold", "bfq", COMES_AND_GOES),
            ("own+accounting+hold", "bfq", READS),
        ];
        for (layout, controller, neighbour) in cells {
            let cell = experiment.and_then(|experiment| experiment.cell(layout, controller, neighbour));
            let figure = |name: &str| cell.and_then(|cell| cell.figure(name));
            let place = format!("{disk} {layout}/{controller}, {neighbour}:");
            let (mean, window) = (figure(f::OFF_MEAN_POINTS), figure(f::OFF_WINDOW_POINTS));
            case.row(&place, "off mean", mean, number, "points");
            case.row(&place, "off in 5 s", window, number, "points");
            if neighbour == SIXTEEN {
                case.row(&place, "CPU of holding", figure(f::HOLDING_CPU_PCT), percent_exact, "of a core");
            }
            if let (Some(mean), Some(window)) = (mean, window) {
                let (mean, window) = (number(mean.median), number(window.median));
                case.figures.push(format!("{place} {mean} off, {window} in 5 s"));
            }
        }
    }
}
