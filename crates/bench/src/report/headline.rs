//! The two sentences on top of every report. They are made of figures: no effect, no success and no measurement are
//! said as plainly as a success.

use bulkhead_core::observe::cost::{Call, CallCost};

use super::figure as f;
use super::grid;
use super::text::{factor, number, percent, percent_exact, rate, short, spoken_ms};
use super::words::{self, Config};
use crate::calls::{METADATA, OTHER};
use crate::experiment::attribution::{PLAYERS, cell_of_all};
use crate::experiment::disk_models::published;
use crate::experiment::launch_storm::UNBOUNDED;
use crate::experiment::share_correction;
use crate::result::{Cell, Experiment, Spread, spread};

/// The neighbour of a cell without one.
const ALONE: &str = "none";
/// A slowdown below this is called none.
const NO_SLOWDOWN: f64 = 1.15;
/// What is left of a slowdown must be this much smaller to be called better.
const CLEARLY: f64 = 0.9;

/// What happens without Bulkhead, and with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Headline {
    pub(crate) before: String,
    pub(crate) after: String,
}

/// The headline of an experiment.
pub(crate) fn of(experiment: &Experiment) -> Headline {
    let has = |name| experiment.cells.iter().any(|cell| cell.figure(name).is_some());
    if has(f::FSYNC_LOADED_MEAN_MS) {
        probe(experiment)
    } else if has(f::INSERTS_PER_S) || has(f::FSYNC_MEAN_MS) {
        dbms(experiment)
    } else if has(f::FSYNC_A_MEAN_MS) {
        pair(experiment)
    } else if has(f::HELD_SHARE_A_PCT) {
        held(experiment)
    } else if has(f::JOURNAL_BYTES_OF_FEW) {
        costs(experiment)
    } else if has(f::RSS_MIB) {
        churn(experiment)
    } else if has(f::UNATTRIBUTED_PCT) {
        attribution(experiment)
    } else if has(f::RANDOM_IOPS) || has(f::SEQUENTIAL_BYTES_PER_S) {
        overhead(experiment)
    } else if has(f::SECOND_CLONE_BYTES_PER_S) {
        clones(experiment)
    } else if has(f::IOPS) {
        disk_models(experiment)
    } else if has(f::READY_SECONDS) {
        launches(experiment)
    } else {
        let after = "No figure that this report knows was measured; see the notes and the raw figures.".to_owned();
        Headline { before: format!("{}: nothing to compare.", experiment.name), after }
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

/// The neighbour beside which a configuration fares worst.
fn worst<'a>(experiment: &'a Experiment, config: Config<'_>) -> Option<Probe<'a>> {
    words::neighbours(&experiment.cells)
        .into_iter()
        .filter_map(|neighbour| probed(experiment, config, neighbour))
        .max_by(|a, b| a.ratio.median.total_cmp(&b.ratio.median))
}

fn probe(experiment: &Experiment) -> Headline {
    let ours = words::ours([experiment]);
    let Some(before) = words::unprotected(experiment).and_then(|config| worst(experiment, config)) else {
        let after = match ours.and_then(|config| worst(experiment, config)) {
            Some(probe) => format!(
                "With Bulkhead: {} beside {}, {} as long as alone.",
                spoken_ms(probe.loaded_ms),
                words::neighbour(&probe.cell.neighbour),
                factor(probe.ratio.median)
            ),
            None => "Bulkhead's own configuration was not measured either.".to_owned(),
        };
        return Headline {
            before: "A shared file system was not measured: there is nothing to compare with.".into(),
            after,
        };
    };
    let beside = words::neighbour(&before.cell.neighbour);
    let controlled = match before.cell.controller.as_str() {
        "none" => String::new(),
        controller => format!(" (under {controller})"),
    };
    let told = if before.ratio.median < NO_SLOWDOWN {
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
        return Headline { before: told, after: "Bulkhead's own configuration was not measured.".into() };
    };
    let Some(after) = probed(experiment, ours, &before.cell.neighbour) else {
        let after = format!("Bulkhead's own configuration ({}) was not measured beside {beside}.", ours.id());
        return Headline { before: told, after };
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
    Headline { before: told, after: sentence }
}

/// Says so when Bulkhead fares clearly worse beside another neighbour than the one that the headline is about.
fn hardest(experiment: &Experiment, ours: Config<'_>, told: &str) -> Option<String> {
    let hardest = worst(experiment, ours).filter(|probe| probe.cell.neighbour != told)?;
    if hardest.ratio.median * CLEARLY <= probed(experiment, ours, told)?.ratio.median {
        return None;
    }
    let before = words::unprotected(experiment).and_then(|config| probed(experiment, config, &hardest.cell.neighbour));
    let without = before.map_or_else(String::new, |before| {
        format!(", and {} without{}", factor(before.ratio.median), compared(before.ratio, hardest.ratio))
    });
    Some(format!(
        " Its hardest case is {}: {}{without}.",
        words::neighbour(&hardest.cell.neighbour),
        factor(hardest.ratio.median)
    ))
}

/// What to add when a smaller ratio did not come out.
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

/// What the neighbour kept of its throughput, percent of what it gets alone.
pub(crate) fn kept_pct(cell: &Cell) -> Option<Spread> {
    cell.ratio(f::NEIGHBOUR_BYTES_PER_S, f::NEIGHBOUR_ALONE_BYTES_PER_S)
        .or_else(|| cell.ratio(f::NEIGHBOUR_OPS_PER_S, f::NEIGHBOUR_ALONE_OPS_PER_S))
        .map(|kept| Spread { min: kept.min * 100.0, median: kept.median * 100.0, max: kept.max * 100.0 })
}

fn dbms(experiment: &Experiment) -> Headline {
    let missing = |what: &str| Headline {
        before: format!("{what} was not measured: there is nothing to compare."),
        after: "The figures that there are stand below.".into(),
    };
    let Some(ours) = words::ours([experiment]) else { return missing("Bulkhead's own configuration") };
    let Some(shared) = words::like(experiment, "shared", ours) else { return missing("A shared journal") };
    let Some(neighbour) = hardest_neighbour(experiment, shared) else { return missing("A shared journal") };
    let cells = [shared, ours].map(|config| experiment.cell(config.layout, config.controller, neighbour));
    let [Some(before), Some(after)] = cells else {
        return missing(&format!("Bulkhead's own configuration beside {}", words::neighbour(neighbour)));
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
            words::neighbour(neighbour),
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

/// What the device moves in a second and the database does not. Not the neighbour's own counters: the kernel counts what it submits, and
/// behind a cap the device writes that later.
fn others_bytes(cell: &Cell) -> Option<f64> {
    let [all, of_database] = [f::DEVICE_BYTES_PER_S, f::SHARE_A_PCT].map(|name| cell.figure(name));
    Some(all?.median * (1.0 - of_database?.median / 100.0))
}

/// What became of throughput and fsync, and what the neighbour has left.
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

/// Says beside which other neighbour the database gains least, when that is clearly less.
fn least_gain(experiment: &Experiment, configs: [Config<'_>; 2], told: &str) -> Option<String> {
    let cells = |neighbour: &str| {
        let [before, after] = configs.map(|config| experiment.cell(config.layout, config.controller, neighbour));
        Some((before?, after?))
    };
    let gain = |neighbour: &str| {
        let (before, after) = cells(neighbour)?;
        quotient(f::INSERTS_PER_S, before, after)
    };
    let others = words::neighbours(&experiment.cells).into_iter().filter(|other| *other != told && *other != ALONE);
    let (least, other) = others.filter_map(|other| Some((gain(other)?, other))).min_by(|a, b| a.0.total_cmp(&b.0))?;
    if least > gain(told)? * CLEARLY {
        return None;
    }
    let (before, after) = cells(other)?;
    Some(format!(" It gains least beside {}: {}.", words::neighbour(other), gained(before, after)))
}

/// The neighbour beside which a database fares worst: fewest inserts, or else the longest fsync.
pub(crate) fn hardest_neighbour<'a>(experiment: &'a Experiment, config: Config<'_>) -> Option<&'a str> {
    let of = |name: &str, sign: f64| {
        let cells = experiment.cells.iter().filter(|cell| Config::of(cell) == config);
        cells
            .filter_map(|cell| Some((sign * cell.figure(name)?.median, cell.neighbour.as_str())))
            .min_by(|a, b| a.0.total_cmp(&b.0))
    };
    of(f::INSERTS_PER_S, 1.0).or_else(|| of(f::FSYNC_MEAN_MS, -1.0)).map(|(_, neighbour)| neighbour)
}

fn pair(experiment: &Experiment) -> Headline {
    let describe = |config: Option<Config<'_>>| {
        let config = config?;
        let cell =
            experiment.cells.iter().find(|c| Config::of(c) == config && c.figure(f::FSYNC_A_MEAN_MS).is_some())?;
        let (a, b) = (cell.figure(f::FSYNC_A_MEAN_MS)?.median, cell.figure(f::FSYNC_B_MEAN_MS)?.median);
        let ratio = cell.ratio(f::FSYNC_B_MEAN_MS, f::FSYNC_A_MEAN_MS)?.median;
        Some(format!("{} in A and {} in B, 1 to {}", spoken_ms(a), spoken_ms(b), number(ratio)))
    };
    let ours = words::ours([experiment]);
    let own = ours
        .and_then(|ours| words::like(experiment, "own", ours))
        .or_else(|| words::configs(&experiment.cells).into_iter().find(|config| config.layout == "own"));
    Headline {
        before: match describe(own) {
            Some(text) => format!(
                "Two tenants with shares of 70 and 30 that both call fsync often: own journals alone gave {text}."
            ),
            None => "Own journals without accounting were not measured.".into(),
        },
        after: match describe(ours) {
            Some(text) => format!("With Bulkhead: {text}; the shares ask for 1 to 2.33."),
            None => "Bulkhead's own configuration was not measured.".into(),
        },
    }
}

fn held(experiment: &Experiment) -> Headline {
    let ours = words::ours([experiment]);
    let describe = |config: Option<Config<'_>>| {
        let config = config?;
        let cell = experiment.cell(config.layout, config.controller, share_correction::READS)?;
        let (share, off) = (cell.figure(f::HELD_SHARE_A_PCT)?.median, cell.figure(f::OFF_WINDOW_POINTS)?.median);
        Some(format!(
            "{} of the disk under {}, up to {} points off in 5 s",
            percent_exact(share),
            config.controller,
            number(off)
        ))
    };
    let not_measured = || "(not measured)".to_owned();
    let shared = ours.and_then(|ours| words::like(experiment, "shared", ours));
    let published = ours.and_then(|ours| words::like(experiment, "shared+published", ours));
    Headline {
        before: format!(
            "A tenant that makes directories beside its reads is promised 50 %. With weights alone it has {}.",
            describe(shared).unwrap_or_else(not_measured)
        ),
        after: format!(
            "Held by Bulkhead: {}. With the published correction: {}.",
            describe(ours).unwrap_or_else(not_measured),
            describe(published).unwrap_or_else(not_measured)
        ),
    }
}

fn overhead(experiment: &Experiment) -> Headline {
    let line = |layout: &str, name: &str| {
        let of = |layout: &str, figure: &str| {
            Some(experiment.cells.iter().filter(|c| c.layout == layout).find_map(|c| c.figure(figure))?.median)
        };
        let part = |figure| {
            let part = 100.0 * of(layout, figure)? / of("raw", figure)?;
            part.is_finite().then(|| percent(part))
        };
        let parts = (part(f::RANDOM_IOPS), part(f::SEQUENTIAL_BYTES_PER_S));
        let commits = of(layout, f::HOST_COMMITS_PER_FSYNC).map(|n| format!(", {} host commits per fsync", number(n)));
        let absent = || "(not measured)".to_owned();
        match parts {
            (None, None) => format!("{name} was not measured"),
            (iops, bandwidth) => format!(
                "{name} gives {} of the raw device's small synced writes and {} of its bandwidth{}",
                iops.unwrap_or_else(absent),
                bandwidth.unwrap_or_else(absent),
                commits.unwrap_or_default()
            ),
        }
    };
    Headline {
        before: format!("{}.", line("loop", "A loop device")),
        after: format!("{}; {}.", line("lv", "A logical volume"), line("blockd", "blockd")),
    }
}

fn clones(experiment: &Experiment) -> Headline {
    let line = |mode: &str| {
        let cell = experiment.cell(mode, "", "")?;
        let second = cell.figure(f::SECOND_CLONE_BYTES_PER_S)?.median;
        let gain = cell.ratio(f::SECOND_CLONE_BYTES_PER_S, f::FIRST_CLONE_BYTES_PER_S)?.median;
        let part = grid::ratio_pct(cell, f::SECOND_CLONE_BYTES_PER_S, f::CACHE_HIT_BYTES_PER_S)?.median;
        let reads = cell.figure(f::SECOND_CLONE_DISK_READS)?.median;
        Some(format!(
            "{}: {} as fast as the first one, {} of a hit in its own cache, {} reads of the disk",
            rate(second),
            factor(gain),
            percent(part),
            number(reads)
        ))
    };
    let said = |mode: &str| line(mode).unwrap_or_else(|| "not measured".to_owned());
    Headline {
        before: format!("A second clone reads what the first one has read. Nothing shared: {}.", said("off")),
        after: format!("Through the host's cache: {}. From siblings' caches: {}.", said("base"), said("drr")),
    }
}

fn disk_models(experiment: &Experiment) -> Headline {
    match published::drive(&experiment.disk.model) {
        Some(drive) => Headline {
            before: match drive.slowdown {
                slower if slower > 1.0 => format!("The lab's {}: {}, {slower} times slower.", drive.model, drive.name),
                _ => format!("The lab's {}: {}.", drive.model, drive.name),
            },
            after: format!("Measured in the guest: {}.", published::compare(drive, experiment).sentence()),
        },
        None => Headline {
            before: "This disk is none of the lab's models: there is nothing published to compare with.".into(),
            after: "The figures that there are stand below.".into(),
        },
    }
}

fn launches(experiment: &Experiment) -> Headline {
    let line = |mode: &str| {
        let cell = experiment.cell(mode, "", UNBOUNDED)?;
        let (seconds, bytes) = (cell.figure(f::READY_SECONDS)?.median, cell.figure(f::LAUNCH_DISK_BYTES)?.median);
        Some(format!("{} s, {} read from the disk", number(seconds), super::text::bytes_of(bytes)))
    };
    let said = |mode: &str| line(mode).unwrap_or_else(|| "not measured".to_owned());
    Headline {
        before: format!("Ten clones of one image start a service at once. Nothing shared: {}.", said("off")),
        after: format!("Through the host's cache: {}. From siblings' caches: {}.", said("base"), said("drr")),
    }
}

fn costs(experiment: &Experiment) -> Headline {
    let costs: Vec<CallCost> = experiment.cells.iter().filter_map(grid::call_cost).collect();
    let of = |features: &str, call| costs.iter().find(|cost| cost.features == features && cost.call == call);
    let compared = costs.iter().filter(|cost| cost.features == "default");
    let compared: Vec<f64> = compared.filter_map(|c| Some(100.0 * (c.mean_kib / c.paper?.mean_kib - 1.0))).collect();
    let most = costs.iter().max_by(|a, b| a.variation.total_cmp(&b.variation));
    let before = match (spread(compared), most) {
        (Some(off), Some(most)) => format!(
            "The paper's calls cost {:+.1} to {:+.1} % of what it found; the coefficient of variation is at most {:.4} ({} on {}; its: 0.045).",
            off.min,
            off.max,
            most.variation,
            most.call.word(),
            most.features
        ),
        _ => "None of the paper's calls was measured.".to_owned(),
    };
    let pair = [of("default", Call::AppendFsync), of("fast_commit", Call::AppendFsync)];
    let after = match pair {
        [Some(default), Some(fast)] => format!(
            "An append with fsync costs {} KiB of journal, with fast commits {}; a mkdir {} KiB, because its block is logged whole.",
            short(default.per_call_bytes / 1024.0),
            short(fast.per_call_bytes / 1024.0),
            of("default", Call::Mkdir)
                .map_or_else(|| "(not measured)".to_owned(), |c| short(c.per_call_bytes / 1024.0))
        ),
        _ => "An append with fsync was not measured.".to_owned(),
    };
    Headline { before, after }
}

fn churn(experiment: &Experiment) -> Headline {
    let cell = experiment.cells.first();
    let of =
        |name: &str| cell.map(|cell| cell.rounds.iter().filter_map(|round| round.figures.get(name).copied()).collect());
    let rounds = |name: &str| of(name).unwrap_or_else(Vec::new);
    let list = |name: &str| rounds(name).into_iter().map(number).collect::<Vec<_>>().join(", ");
    let sum = |name: &str| number(rounds(name).into_iter().sum());
    Headline {
        before: format!(
            "{} containers came and went; of what the journal's device was given, {} bytes were not accounted for.",
            sum("containers"),
            sum(f::NOT_CHARGED_BYTES)
        ),
        after: format!(
            "Memory of the observing process in each third: {} MiB; entries in the programs' tables: {}.",
            list(f::RSS_MIB),
            list(f::TABLE_ENTRIES)
        ),
    }
}

fn attribution(experiment: &Experiment) -> Headline {
    let all = cell_of_all(experiment.cells.iter());
    let figure = |name: &str| Some(all?.figure(name)?.median);
    let parts = PLAYERS.iter().filter_map(|player| {
        let (charged, fair) = (figure(&format!("{player}_charged_pct"))?, figure(&format!("{player}_shapley_pct"))?);
        Some(format!("{player} {} (fair: {})", percent_exact(charged), percent_exact(fair)))
    });
    let parts: Vec<String> = parts.collect();
    let nobody = figure(f::UNATTRIBUTED_PCT).map_or_else(|| "not measured".to_owned(), percent_exact);
    let overhead = |group: &str| {
        let cells = experiment.cells.iter().filter(|cell| cell.neighbour == group);
        let worst = cells.filter_map(|cell| cell.figure(f::OVERHEAD_PCT)).map(|s| s.median).max_by(f64::total_cmp);
        worst.map(percent_exact)
    };
    let before = match parts.is_empty() {
        true => "Only what observing costs was measured here, not who is charged.".to_owned(),
        false => format!("Three containers on one journal are charged {}; nobody {nobody}.", parts.join(", ")),
    };
    let after = match overhead(METADATA).zip(overhead(OTHER)) {
        Some((metadata, other)) => {
            format!(
                "Being observed costs at most {metadata} more processor time in metadata calls, and {other} in others."
            )
        }
        None => "What observing costs was not measured here.".to_owned(),
    };
    Headline { before, after }
}
