//! The two sentences on top of the reports of experiments that only the evidence has.

use bulkhead_core::observe::cost::{Call, CallCost};
use bulkhead_measure::nest::summary::{self, Holds};
use bulkhead_measure::report::headline::Headline;
use bulkhead_measure::report::labels::{self, Config};
use bulkhead_measure::report::text::{self, factor, number, percent, percent_exact, rate, short, spoken_ms};
use bulkhead_measure::result::{Experiment, Spread, spread};

use super::grid;
use crate::calls::{METADATA, OTHER};
use crate::experiment::attribution::{PLAYERS, cell_of_all};
use crate::experiment::disk_models::published;
use crate::experiment::kubernetes::{ALONE, BULKHEAD, NOISY_POD, SHARED};
use crate::experiment::launch_storm::UNBOUNDED;
use crate::experiment::share_correction;
use crate::figure as f;
use crate::judge::course::{Course, layouts};
use crate::judge::planning::{Pair, plan_of_best};

pub(crate) fn pair(experiment: &Experiment) -> Headline {
    let describe = |config: Option<Config<'_>>| {
        let config = config?;
        let cell = experiment
            .cells
            .iter()
            .find(|c| Config::from_cell(c) == config && c.figure(f::FSYNC_A_MEAN_MS).is_some())?;
        let (a, b) = (cell.figure(f::FSYNC_A_MEAN_MS)?.median, cell.figure(f::FSYNC_B_MEAN_MS)?.median);
        let ratio = cell.ratio(f::FSYNC_B_MEAN_MS, f::FSYNC_A_MEAN_MS)?.median;
        Some(format!("{} in A and {} in B, 1 to {}", spoken_ms(a), spoken_ms(b), number(ratio)))
    };
    let ours = labels::ours([experiment]);
    let own = ours
        .and_then(|ours| labels::closest_config(experiment, "own", ours))
        .or_else(|| labels::configs(&experiment.cells).into_iter().find(|config| config.layout == "own"));
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

pub(crate) fn nested(experiment: &Experiment) -> Headline {
    let findings = summary::findings(experiment);
    let n_of = |holds: Holds| findings.iter().filter(|finding| finding.holds == Some(holds)).count();
    let writes = findings.iter().find(|finding| finding.statement.starts_with("Writes"));
    Headline {
        before: match writes.filter(|finding| finding.holds.is_some()) {
            Some(finding) => {
                format!("Writes through an image, against the same file system on the disk: {}.", finding.found)
            }
            None => "Writes were not measured.".into(),
        },
        after: format!(
            "Of six findings of the paper, {} are confirmed here, {} in part, and {} are refuted.",
            n_of(Holds::Yes),
            n_of(Holds::Partly),
            n_of(Holds::No)
        ),
    }
}

pub(crate) fn held(experiment: &Experiment) -> Headline {
    let ours = labels::ours([experiment]);
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
    let shared = ours.and_then(|ours| labels::closest_config(experiment, "shared", ours));
    let published = ours.and_then(|ours| labels::closest_config(experiment, "shared+published", ours));
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

pub(crate) fn overhead(experiment: &Experiment) -> Headline {
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

pub(crate) fn clones(experiment: &Experiment) -> Headline {
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
        after: format!("Through the host's cache: {}. From peers' caches: {}.", said("base"), said("drr")),
    }
}

pub(crate) fn disk_models(experiment: &Experiment) -> Headline {
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

pub(crate) fn launches(experiment: &Experiment) -> Headline {
    let line = |mode: &str| {
        let cell = experiment.cell(mode, "", UNBOUNDED)?;
        let (seconds, bytes) = (cell.figure(f::READY_SECONDS)?.median, cell.figure(f::LAUNCH_DISK_BYTES)?.median);
        Some(format!("{} s, {} read from the disk", number(seconds), text::bytes_of(bytes)))
    };
    let said = |mode: &str| line(mode).unwrap_or_else(|| "not measured".to_owned());
    Headline {
        before: format!("Ten clones of one image start a service at once. Nothing shared: {}.", said("off")),
        after: format!("Through the host's cache: {}. From peers' caches: {}.", said("base"), said("drr")),
    }
}

pub(crate) fn pods(experiment: &Experiment) -> Headline {
    let line = |layout: &str, controller: &str| {
        let p99 = |neighbour: &str| {
            let cell = experiment.cells.iter().find(|cell| cell.layout == layout && cell.neighbour == neighbour);
            experiment.cell(layout, controller, neighbour).or(cell)?.figure(f::POD_FSYNC_P99_MS)
        };
        let (alone, beside) = (p99(ALONE)?.median, p99(NOISY_POD)?.median);
        Some(format!("{} ms alone, {} ms beside a noisy pod", number(alone), number(beside)))
    };
    let said = |layout: &str, controller: &str| line(layout, controller).unwrap_or_else(|| "not measured".to_owned());
    Headline {
        before: format!("p99 of the fsyncs of a database in a pod, with a hostPath: {}.", said(SHARED, "none")),
        after: format!("With a volume of Bulkhead: {}.", said(BULKHEAD, "bfq")),
    }
}

pub(crate) fn costs(experiment: &Experiment) -> Headline {
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

pub(crate) fn churn(experiment: &Experiment) -> Headline {
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

pub(crate) fn attribution(experiment: &Experiment) -> Headline {
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

pub(crate) fn scaling(experiment: &Experiment) -> Headline {
    let courses: Vec<(&str, Course<'_>)> =
        layouts(experiment).into_iter().map(|name| (name, Course::of(experiment, name))).collect();
    let medians = |of: &dyn Fn(&Course<'_>) -> Option<Spread>| -> Vec<(f64, String)> {
        courses.iter().filter_map(|(name, course)| Some((of(course)?.median, (*name).to_owned()))).collect()
    };
    let least = |all: Vec<(f64, String)>| all.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    let most = |all: Vec<(f64, String)>| all.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    let error = most(medians(&|course| course.error()));
    let chosen = least(medians(&|course| course.chosen()));
    let gain = most(medians(&|course| course.gain()));
    Headline {
        before: match gain {
            Some((gain, name)) => format!(
                "More containers of one kind achieve up to {} times the throughput of one ({name}), and less beyond.",
                number(gain)
            ),
            None => "Copies of a workload were not measured.".into(),
        },
        after: match (error, chosen) {
            (Some((error, worst)), Some((chosen, least))) => format!(
                "Predicted from one: within {} of the highest throughput ({worst}); the number that the prediction chooses achieves {} of it \
                 or more ({least}).",
                percent(error),
                percent(chosen)
            ),
            _ => "Predictions were not made.".into(),
        },
    }
}

pub(crate) fn mixing(experiment: &Experiment) -> Headline {
    let pairs: Vec<Pair<'_>> = experiment.cells.iter().filter_map(Pair::of).collect();
    let sum = |pair: &&Pair<'_>| pair.measured.0 + pair.measured.1;
    let least = pairs.iter().min_by(|a, b| sum(a).total_cmp(&sum(b)));
    let most = pairs.iter().max_by(|a, b| sum(a).total_cmp(&sum(b)));
    let described = |pair: &Pair<'_>| {
        format!(
            "{}: {} and {} of alone",
            pair.name(),
            percent(100.0 * pair.measured.0),
            percent(100.0 * pair.measured.1)
        )
    };
    let plan = plan_of_best(experiment);
    Headline {
        before: match (most, least) {
            (Some(most), Some(least)) => format!(
                "Two workloads on one disk, two copies of each: the best pair leaves each other {}; the worst {}.",
                described(most),
                described(least)
            ),
            _ => "Pairs were not measured.".into(),
        },
        after: match plan {
            Some(plan) => format!(
                "Twelve workloads on four disks: the plan, made before any of them ran together, achieves {} of the best of all placements.",
                percent_exact(plan.median)
            ),
            None => "A plan of twelve workloads was not measured.".into(),
        },
    }
}

pub(crate) fn plan_scale(experiment: &Experiment) -> Headline {
    let of = |name: &str| {
        let cells = experiment.cells.iter().filter_map(move |cell| Some((cell, cell.figure(name)?.median)));
        cells.collect::<Vec<_>>()
    };
    let plans: Vec<String> = of(f::PLAN_SECONDS)
        .into_iter()
        .map(|(cell, seconds)| format!("{} s ({})", number(seconds), cell.neighbour.replace('-', " ")))
        .collect();
    let one = |name: &str, show: fn(f64) -> String| {
        of(name).first().map_or_else(|| "not measured".to_owned(), |it| show(it.1))
    };
    Headline {
        before: format!("A plan of 1000 workloads on 100 hosts takes {}.", plans.join(" or ")),
        after: format!(
            "Where the best placement is known, a searched one achieves {} of it. With 5000 nodes, 99 of 100 answers of the extender take {} or less \
             to filter, and {} to score.",
            one(f::SEARCHED_OF_BEST_PCT, percent_exact),
            one(f::FILTER_P99_MS, spoken_ms),
            one(f::PRIORITIZE_P99_MS, spoken_ms)
        ),
    }
}
