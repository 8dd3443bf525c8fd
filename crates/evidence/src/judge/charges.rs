//! Criteria for charges: journal-cost, churn and attribution.

use bulkhead_core::observe::cost::CallCost;
use bulkhead_measure::report::text::{factor, nanoseconds, number, percent_exact};
use bulkhead_measure::result::{Cell, Experiment, Spread, spread};

use super::Case;
use crate::calls::{METADATA, OTHER};
use crate::experiment::attribution::{CONTAINERS, PLAYERS, cell_of_all, name_of};
use crate::figure as f;
use crate::report::grid;
use crate::shapley;

pub(crate) fn journal_cost(case: &mut Case<'_>, experiments: &[&Experiment]) {
    let costs: Vec<CallCost> = experiments.iter().flat_map(|e| &e.cells).filter_map(grid::call_cost).collect();
    for features in ["default", "fast_commit", "inline_data", "xfs"] {
        let mine: Vec<&CallCost> = costs.iter().filter(|cost| cost.features == features).collect();
        let most = mine.iter().max_by(|a, b| a.variation.total_cmp(&b.variation));
        let remark = most.map_or_else(String::new, |cost| format!("{}, {} runs", cost.call.word(), cost.runs.len()));
        let variation = |value| format!("{value:.4}");
        case.row(features, "largest CV", most.and_then(|cost| spread([cost.variation])), variation, &remark);
        let n_calls = (!mine.is_empty()).then_some(mine.len() as f64);
        case.row(features, "calls", n_calls.and_then(|n| spread([n])), number, "of the paper's 7 and 6 more");
        if let Some(most) = most {
            case.figures.push(format!("{features} CV <= {:.4} ({})", most.variation, most.call.word()));
        }
    }
}

pub(crate) fn churn(case: &mut Case<'_>, experiments: &[&Experiment]) {
    let cell = experiments.iter().flat_map(|experiment| &experiment.cells).next();
    // Every round has to be exact, not only the median.
    let worst = |name: &str| spread([cell?.figure(name)?.max]);
    let growth = |name: &str| {
        let of = |round: usize| cell?.rounds.get(round)?.figures.get(name).copied();
        spread([of(2)? / of(1)?])
    };
    let (lost, nobody) = (worst(f::NOT_CHARGED_BYTES), worst(f::UNATTRIBUTED_PCT));
    case.row("", "bytes not charged", lost, number, "in the worst round");
    case.row("", "unattributed", nobody, percent_exact, "in the worst round");
    let (memory, tables) = (growth(f::RSS_MIB), growth(f::TABLE_ENTRIES));
    case.row("", "memory, last third / second", memory, number, "");
    case.row("", "table entries, last third / second", tables, number, "");
    let total =
        |name: &str| cell.map(|cell| cell.rounds.iter().filter_map(|round| round.figures.get(name)).sum::<f64>());
    let said = [
        total("containers").map(|n| format!("{} containers", number(n))),
        total(f::JOURNAL_BYTES).map(|bytes| format!("{} MiB of journal", number(bytes / f64::from(1 << 20)))),
        lost.map(|s| format!("{} B not charged", number(s.median))),
        memory.map(|s| format!("memory {}", factor(s.median))),
        tables.map(|s| format!("tables {}", factor(s.median))),
    ];
    case.figures.extend(said.into_iter().flatten());
}

pub(crate) fn attribution(case: &mut Case<'_>, experiments: &[&Experiment]) {
    let cells = || experiments.iter().flat_map(|experiment| &experiment.cells);
    let all = cell_of_all(cells());
    let figure = |name: &str| all.and_then(|cell| cell.figure(name));
    case.row("", "bytes not charged", figure(f::NOT_CHARGED_BYTES), number, "of what the journal's device was given");
    case.row("", "unattributed", figure(f::UNATTRIBUTED_PCT), percent_exact, "");
    let fair = fair_pct(experiments);
    for (index, player) in PLAYERS.into_iter().enumerate() {
        let charged = all.and_then(|cell| cell.mean(&format!("{player}_charged_pct")));
        let both = charged.zip(fair.as_ref().map(|fair| fair[index]));
        let off = figure(&f::off_shapley(player)).zip(both).map(|(rounds, (charged, fair))| {
            let pooled = 100.0 * (charged - fair).abs() / fair;
            Spread { min: rounds.min.min(pooled), median: pooled, max: rounds.max.max(pooled) }
        });
        let percents = both.map(|(charged, fair)| (percent_exact(charged), percent_exact(fair)));
        let said = percents.map(|(charged, fair)| format!("charged {charged}, fair {fair}"));
        let remark = said.as_ref().map_or_else(String::new, |said| format!("{said}, means of the rounds"));
        case.row(player, "off Shapley", off, percent_exact, &remark);
        if let (Some(off), Some(said)) = (off, said) {
            case.figures.push(format!("{player} {said}, off {}", percent_exact(off.median)));
        }
    }
    // The containers and the cost of observation can be in different experiments.
    let costs = |experiment: &&&Experiment| experiment.cells.iter().any(|cell| cell.neighbour == METADATA);
    let has_costs = experiments.iter().filter(costs).count();
    for experiment in experiments.iter().filter(|experiment| has_costs == 0 || costs(experiment)) {
        let place = if experiments.len() > 1 { format!("Linux {}", experiment.machine.kernel) } else { String::new() };
        for group in [METADATA, OTHER] {
            let cells = experiment.cells.iter().filter(|cell| cell.neighbour == group);
            let is_metadata = group == METADATA;
            let write = if is_metadata { nanoseconds } else { percent_exact };
            let overhead = |cell: &Cell| {
                if is_metadata { grid::observing_ns(cell) } else { cell.figure(f::OVERHEAD_PCT) }
            };
            let overheads = cells.filter_map(|cell| Some((cell.layout.as_str(), overhead(cell)?)));
            let worst = overheads.max_by(|a, b| a.1.median.total_cmp(&b.1.median));
            let remark = worst.map_or_else(String::new, |(call, _)| call.to_owned());
            case.row(&place, &format!("{group} overhead"), worst.map(|(_, overhead)| overhead), write, &remark);
            if let Some((call, overhead)) = worst {
                let figure = format!("{place} {group} overhead {} ({call})", write(overhead.median));
                case.figures.push(figure.trim_start().to_owned());
            }
        }
    }
}

/// The fair share of each container, percent. A Shapley value is based on expected costs, which differ between rounds: it is computed from the
/// means of all combinations.
fn fair_pct(experiments: &[&Experiment]) -> Option<Vec<f64>> {
    let cells = || experiments.iter().flat_map(|experiment| &experiment.cells);
    let cost = |set: usize| {
        cells().find(|cell| cell.neighbour == CONTAINERS && cell.layout == name_of(set))?.mean(f::JOURNAL_BYTES)
    };
    let everyone = (1 << PLAYERS.len()) - 1;
    let costs: Vec<f64> =
        (0..=everyone).map(|set| if set == 0 { Some(0.0) } else { cost(set) }).collect::<Option<_>>()?;
    let fair = shapley::values(PLAYERS.len(), |set| costs[set]);
    Some(fair.into_iter().map(|bytes| 100.0 * bytes / costs[everyone]).collect())
}
