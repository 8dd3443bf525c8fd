//! The two sentences at the top of each report. They are derived from figures: no effect, a failure and a missing measurement are stated as
//! plainly as a success.

use super::labels::{self, Config};
use super::text::{factor, number, percent, percent_exact, short, spoken_ms};
use super::{Guide, figure as f};
use crate::isolation::kept_pct;
use crate::result::{Cell, Experiment, Spread};

/// The neighbour of a cell without one.
const ALONE: &str = "none";
/// A slowdown below this counts as none.
const NO_SLOWDOWN: f64 = 1.15;
/// Minimum reduction of a slowdown that counts as an improvement.
const CLEARLY: f64 = 0.9;

/// The results without Bulkhead, and with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headline {
    pub before: String,
    pub after: String,
}

/// Derives the headline of experiments with one of these figures.
pub type Rule = (&'static [&'static str], fn(&Experiment) -> Headline);

/// The probe's.
pub const PROBE: Rule = (&[f::FSYNC_LOADED_MEAN_MS], probe);
/// The database's.
pub const DATABASE: Rule = (&[f::INSERTS_PER_S, f::FSYNC_MEAN_MS], dbms);

/// The headline of an experiment.
#[must_use]
pub fn build(guide: &Guide, experiment: &Experiment) -> Headline {
    let has = |name: &&str| experiment.cells.iter().any(|cell| cell.figure(name).is_some());
    match guide.headlines.iter().find(|(figures, _)| figures.iter().any(has)) {
        Some((_, headline)) => headline(experiment),
        None => {
            let after = "No figure that this report knows was measured; see the notes and the raw figures.".to_owned();
            Headline { before: format!("{}: nothing to compare.", experiment.name), after }
        }
    }
}

/// Loaded and idle latency of the probe in one cell.
struct Probe<'a> {
    cell: &'a Cell,
    idle_ms: f64,
    loaded_ms: f64,
    ratio: Spread,
}

fn probed<'a>(experiment: &'a Experiment, config: Config<'_>, neighbour: &str) -> Option<Probe<'a>> {
    let cell = experiment.cell(config.layout, config.controller, neighbour)?;
    Some(Probe {
        cell,
        idle_ms: cell.figure(f::FSYNC_IDLE_MEAN_MS)?.median,
        loaded_ms: cell.figure(f::FSYNC_LOADED_MEAN_MS)?.median,
        ratio: cell.ratio(f::FSYNC_LOADED_MEAN_MS, f::FSYNC_IDLE_MEAN_MS)?,
    })
}

/// The worst neighbour for a configuration.
fn worst<'a>(experiment: &'a Experiment, config: Config<'_>) -> Option<Probe<'a>> {
    labels::neighbours(&experiment.cells)
        .into_iter()
        .filter_map(|neighbour| probed(experiment, config, neighbour))
        .max_by(|a, b| a.ratio.median.total_cmp(&b.ratio.median))
}

fn probe(experiment: &Experiment) -> Headline {
    let ours = labels::ours([experiment]);
    let Some(before) = labels::unprotected(experiment).and_then(|config| worst(experiment, config)) else {
        let after = match ours.and_then(|config| worst(experiment, config)) {
            Some(probe) => format!(
                "With Bulkhead: {} beside {}, {} as long as alone.",
                spoken_ms(probe.loaded_ms),
                labels::neighbour(&probe.cell.neighbour),
                factor(probe.ratio.median)
            ),
            None => "Bulkhead's own configuration was not measured either.".to_owned(),
        };
        return Headline {
            before: "A shared file system was not measured: there is nothing to compare with.".into(),
            after,
        };
    };
    let beside = labels::neighbour(&before.cell.neighbour);
    let controlled = match before.cell.controller.as_str() {
        "none" => String::new(),
        controller => format!(" (under {controller})"),
    };
    let shown = if before.ratio.median < NO_SLOWDOWN {
        format!(
            "On a shared file system{controlled}, a 4 KiB fsync took {} alone and {} beside {beside}: no slowdown to speak of here.",
            spoken_ms(before.idle_ms),
            spoken_ms(before.loaded_ms)
        )
    } else {
        format!(
            "On a shared file system{controlled}, a 4 KiB fsync took {} alone and {} beside {beside}: {}.",
            spoken_ms(before.idle_ms),
            spoken_ms(before.loaded_ms),
            factor(before.ratio.median)
        )
    };
    let Some(ours) = ours else {
        return Headline { before: shown, after: "Bulkhead's own configuration was not measured.".into() };
    };
    let Some(after) = probed(experiment, ours, &before.cell.neighbour) else {
        let after = format!("Bulkhead's own configuration ({}) was not measured beside {beside}.", ours.id());
        return Headline { before: shown, after };
    };
    let mut sentence = format!(
        "With Bulkhead: {}, {}{}",
        spoken_ms(after.loaded_ms),
        factor(after.ratio.median),
        compared(before.ratio, after.ratio)
    );
    match kept_pct(after.cell) {
        Some(kept) if kept.median < 90.0 => {
            sentence += &format!("; and the neighbour kept only {} of its throughput.", percent(kept.median));
        }
        Some(kept) => sentence += &format!("; the neighbour kept {} of its throughput.", percent(kept.median)),
        None => sentence += "; what the neighbour lost was not measured.",
    }
    if let Some(hardest) = hardest(experiment, ours, &before.cell.neighbour) {
        sentence += &hardest;
    }
    Headline { before: shown, after: sentence }
}

/// A remark if Bulkhead does clearly worse next to another neighbour than the one in the headline.
fn hardest(experiment: &Experiment, ours: Config<'_>, shown: &str) -> Option<String> {
    let hardest = worst(experiment, ours).filter(|probe| probe.cell.neighbour != shown)?;
    if hardest.ratio.median * CLEARLY <= probed(experiment, ours, shown)?.ratio.median {
        return None;
    }
    let before = labels::unprotected(experiment).and_then(|config| probed(experiment, config, &hardest.cell.neighbour));
    let without = before.map_or_else(String::new, |before| {
        format!(", and {} without{}", factor(before.ratio.median), compared(before.ratio, hardest.ratio))
    });
    Some(format!(
        " Its hardest case is {}: {}{without}.",
        labels::neighbour(&hardest.cell.neighbour),
        factor(hardest.ratio.median)
    ))
}

/// A remark if the ratio is not smaller.
fn compared(before: Spread, after: Spread) -> &'static str {
    if before.median < NO_SLOWDOWN && after.median < NO_SLOWDOWN {
        ": as without it"
    } else if after.median > before.median / CLEARLY {
        ": it made things worse"
    } else if after.median > before.median * CLEARLY {
        ": no real help"
    } else if after.max >= before.min {
        ": better in the middle, but within the spread of the rounds"
    } else {
        ""
    }
}

fn dbms(experiment: &Experiment) -> Headline {
    let missing = |what: &str| Headline {
        before: format!("{what} was not measured: there is nothing to compare."),
        after: "The figures that there are stand below.".into(),
    };
    let Some(ours) = labels::ours([experiment]) else { return missing("Bulkhead's own configuration") };
    let Some(shared) = labels::closest_config(experiment, "shared", ours) else { return missing("A shared journal") };
    let Some(neighbour) = hardest_neighbour(experiment, shared) else { return missing("A shared journal") };
    let cells = [shared, ours].map(|config| experiment.cell(config.layout, config.controller, neighbour));
    let [Some(before), Some(after)] = cells else {
        return missing(&format!("Bulkhead's own configuration beside {}", labels::neighbour(neighbour)));
    };
    let describe = |cell: &Cell| {
        let inserts = cell.figure(f::INSERTS_PER_S).map(|s| format!("{} inserts/s", number(s.median)));
        let fsync = cell.figure(f::FSYNC_MEAN_MS).map(|s| format!("{} for an fsync", spoken_ms(s.median)));
        let share = f::share_a(cell)
            .map(|(share, of)| format!("{} of the disk's {of} (70 % promised)", percent_exact(share.median)));
        [inserts, fsync, share].into_iter().flatten().collect::<Vec<_>>().join(", ")
    };
    let least = least_gain(experiment, [shared, ours], neighbour);
    Headline {
        before: format!(
            "Beside {}, the database with a shared journal had {}.",
            labels::neighbour(neighbour),
            describe(before)
        ),
        after: format!("With Bulkhead: {}: {}.{}", describe(after), gained(before, after), least.unwrap_or_default()),
    }
}

/// The quotient of a figure of two cells.
fn quotient(name: &str, before: &Cell, after: &Cell) -> Option<f64> {
    let quotient = after.figure(name)?.median / before.figure(name)?.median;
    quotient.is_finite().then_some(quotient)
}

/// Bytes per second on the device that are not the database's. The neighbour's own counters would be wrong: the kernel counts on submission, and
/// with a cap the device writes later.
fn others_bytes(cell: &Cell) -> Option<f64> {
    let [all, of_database] = [f::DEVICE_BYTES_PER_S, f::SHARE_A_PCT].map(|name| cell.figure(name));
    Some(all?.median * (1.0 - of_database?.median / 100.0))
}

/// The change of throughput and fsync latency, and the remaining throughput of the neighbour.
fn gained(before: &Cell, after: &Cell) -> String {
    let throughput = match quotient(f::INSERTS_PER_S, before, after) {
        Some(gain) if gain > 1.0 / CLEARLY => format!("{} the throughput", factor(gain)),
        Some(gain) if gain < CLEARLY => format!("less throughput ({})", factor(gain)),
        Some(gain) => format!("no change in throughput ({})", factor(gain)),
        None => "throughput not compared".into(),
    };
    let latency = match quotient(f::FSYNC_MEAN_MS, before, after) {
        Some(left) if left < CLEARLY => format!("fsync in 1/{} of the time", short(1.0 / left)),
        Some(left) if left > 1.0 / CLEARLY => format!("but fsync takes longer ({})", factor(left)),
        Some(left) => format!("no change in fsync latency ({})", factor(left)),
        None => "fsync latency not compared".into(),
    };
    let before_bytes = others_bytes(before).filter(|bytes| *bytes > 0.0);
    let kept = others_bytes(after).zip(before_bytes).map_or_else(String::new, |(after, before)| {
        format!("; the neighbour has {} of what it had", percent(100.0 * after / before))
    });
    format!("{throughput}, {latency}{kept}")
}

/// A remark on the neighbour next to which the database gains least, if that is clearly less.
fn least_gain(experiment: &Experiment, configs: [Config<'_>; 2], shown: &str) -> Option<String> {
    let cells = |neighbour: &str| {
        let [before, after] = configs.map(|config| experiment.cell(config.layout, config.controller, neighbour));
        Some((before?, after?))
    };
    let gain = |neighbour: &str| {
        let (before, after) = cells(neighbour)?;
        quotient(f::INSERTS_PER_S, before, after)
    };
    let others = labels::neighbours(&experiment.cells).into_iter().filter(|other| *other != shown && *other != ALONE);
    let (least, other) = others.filter_map(|other| Some((gain(other)?, other))).min_by(|a, b| a.0.total_cmp(&b.0))?;
    if least > gain(shown)? * CLEARLY {
        return None;
    }
    let (before, after) = cells(other)?;
    Some(format!(" It gains least beside {}: {}.", labels::neighbour(other), gained(before, after)))
}

/// The worst neighbour for a database: fewest inserts, else longest fsync.
pub fn hardest_neighbour<'a>(experiment: &'a Experiment, config: Config<'_>) -> Option<&'a str> {
    let of = |name: &str, sign: f64| {
        let cells = experiment.cells.iter().filter(|cell| Config::from_cell(cell) == config);
        cells
            .filter_map(|cell| Some((sign * cell.figure(name)?.median, cell.neighbour.as_str())))
            .min_by(|a, b| a.0.total_cmp(&b.0))
    };
    of(f::INSERTS_PER_S, 1.0).or_else(|| of(f::FSYNC_MEAN_MS, -1.0)).map(|(_, neighbour)| neighbour)
}
