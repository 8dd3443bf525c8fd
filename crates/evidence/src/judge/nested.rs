//! Criteria of nested-matrix: that it is complete, and what it says about the paper's findings.

use bulkhead_measure::nest::MATRIX;
use bulkhead_measure::nest::summary;
use bulkhead_measure::report::text::{number, percent};
use bulkhead_measure::result::{Experiment, Spread, spread};

use super::{Case, by_disk};

pub(crate) fn matrix(case: &mut Case<'_>, experiments: &[&Experiment]) {
    for (disk, experiment) in by_disk(case.disks, experiments) {
        let Some(experiment) = experiment else {
            case.absent.push(disk);
            continue;
        };
        let workloads = summary::workloads(experiment);
        let n_pairs = MATRIX.len() * MATRIX.len() * workloads.len();
        let missing = summary::missing(experiment);
        let measured = 100.0 * (n_pairs - missing.len()) as f64 / n_pairs.max(1) as f64;
        let remark = missing.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
        let remark = if remark.is_empty() {
            String::new()
        } else {
            format!("without {remark}{}", if missing.len() > 4 { " …" } else { "" })
        };
        case.row(disk, "pairs measured", exact(measured), percent, &remark);
        let findings = summary::findings(experiment);
        let decided = findings.iter().filter(|finding| finding.holds.is_some()).count();
        case.row(disk, "findings decided", exact(decided as f64), number, "");
        for workload in workloads {
            let pairs = summary::pairs(experiment, workload);
            let of = pairs.first().zip(pairs.last()).map_or_else(String::new, |(worst, best)| {
                format!("least {} on {}, most {} on {}", worst.guest, worst.host, best.guest, best.host)
            });
            let what = format!("{workload} of the device");
            case.row(disk, &what, spread(pairs.iter().map(|pair| pair.pct)), percent, &of);
        }
        let words =
            findings.iter().filter_map(|finding| Some(format!("{}: {}", finding.statement, finding.holds?.as_str())));
        case.figures.push(format!("{disk}: {}", words.collect::<Vec<_>>().join("; ")));
    }
}

fn exact(value: f64) -> Option<Spread> {
    spread([value])
}
