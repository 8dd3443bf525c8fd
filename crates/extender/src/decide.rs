//! Which nodes a pod can go to, and how good each is.
//!
//! A node's gain is what the pod gets there, as a part of what it gets alone on the best device of the cluster, less what the others on that node
//! lose of theirs. Scores are absolute, so that they weigh the same against other plugins whatever the other nodes are: 9 for a gain of 1, 0 for
//! none. Of the best nodes, that on which the pod itself gets most has one more, so that the scheduler prefers the one that is assumed.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Instant;

use bulkhead_advise::outlook::{Break, Verdict};
use bulkhead_core::report::HostReport;
use bulkhead_core::units::Bytes;

use crate::cluster::{Cluster, Mix, Now, Unknown, has_pool, order};
use crate::protocol::{MAX_SCORE, Pod};
use crate::wish::{BadAnnotation, Wish};

/// Score of a node of which nothing is known: as of one on which a pod gains half of what it could.
pub const NEUTRAL: i64 = MAX_SCORE / 2;

/// What is predicted for a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Nothing is known.
    Unknown(Unknown),
    /// The pod must not go there, as long as others are there.
    Fails(String),
    /// The pod must not go there, whatever else is removed.
    Impossible(String),
    /// What the pod gets there, and what all together gain.
    Gains {
        /// The pod's normalised throughput.
        own: f64,
        /// The same less what the others lose.
        gain: f64,
    },
}

/// What is predicted for a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// It names no workload: all nodes are alike.
    NotAsked,
    /// For each candidate.
    Outcomes(Vec<Outcome>),
    /// An annotation cannot be used: nothing is known for any node.
    Bad(BadAnnotation),
}

/// Predicts for each candidate. `clock` limits the time for that.
pub fn decide(cluster: &mut Cluster, pod: &Pod, nodes: &[&str], now: Now, clock: impl Fn() -> Instant) -> Decision {
    let wish = match Wish::of(&pod.metadata) {
        Ok(Some(wish)) => wish,
        Ok(None) => return Decision::NotAsked,
        Err(bad) => return Decision::Bad(bad),
    };
    cluster.begin(now);
    // The pod itself is not there yet, wherever an earlier attempt has assumed it.
    cluster.forget_assumed(&pod.metadata.uid);
    let deadline = now.instant + cluster.settings.budget;
    // Nodes that are alike are predicted once.
    let mut known: HashMap<usize, Vec<Verdict>> = HashMap::new();
    let Some(class) = cluster.class(&wish) else {
        return Decision::Outcomes(vec![Outcome::Unknown(Unknown::Workload); nodes.len()]);
    };
    let outcomes = nodes.iter().map(|node| {
        let mix = match cluster.mix(node, now, || clock() < deadline) {
            Ok(mix) => mix,
            Err(unknown) => return Outcome::Unknown(unknown),
        };
        let verdicts = match known.get(&mix.state) {
            Some(verdicts) => verdicts,
            None if clock() >= deadline => return Outcome::Unknown(Unknown::Busy),
            None => {
                let devices = 0..mix.devices.len();
                let verdicts =
                    devices.map(|device| cluster.outlook.verdict(mix.kind, &mix.members, class, device)).collect();
                &*known.entry(mix.state).or_insert(verdicts)
            }
        };
        cluster
            .report_of(node)
            .map_or(Outcome::Unknown(Unknown::NoReport), |report| outcome(cluster, report, &mix, verdicts, &wish))
    });
    Decision::Outcomes(outcomes.collect())
}

/// The outcome on the best device of a node.
fn outcome(cluster: &Cluster, report: &HostReport, mix: &Mix, verdicts: &[Verdict], wish: &Wish) -> Outcome {
    let allowed = || (0..mix.devices.len()).filter(|device| has_pool(&report.devices[mix.devices[*device]], wish));
    if allowed().next().is_none() {
        // A device without costs may have the pool.
        return match &wish.pool {
            Some(pool) if !report.devices.iter().any(|device| has_pool(device, wish)) => {
                Outcome::Impossible(format!("there is no pool {pool}"))
            }
            _ => Outcome::Unknown(Unknown::NoCosts),
        };
    }
    let lacking = |device: &usize| missing(report, mix, *device, wish);
    let roomy: Vec<usize> = allowed().filter(|device| lacking(device).0 == 0).collect();
    let Some(best) = roomy.into_iter().max_by(|a, b| order(&verdicts[*a], &verdicts[*b])) else {
        return Outcome::Impossible(format!("no pool has {} of free space", wish.space));
    };
    let verdict = &verdicts[best];
    match verdict.breaks.first() {
        Some(broken) => Outcome::Fails(in_words(cluster, broken)),
        None => Outcome::Gains { own: verdict.own, gain: verdict.gain() },
    }
}

/// What a device's roomiest suitable pool lacks for the pod.
fn missing(report: &HostReport, mix: &Mix, device: usize, wish: &Wish) -> Bytes {
    let pools = report.devices[mix.devices[device]].pools.iter();
    let suitable = pools.filter(|pool| wish.pool.as_ref().is_none_or(|wanted| pool.name == *wanted));
    let free = suitable.filter_map(|pool| pool.free_bytes).max();
    // What is not known is no reason to refuse.
    free.map_or(Bytes(0), |free| Bytes(wish.space.0.saturating_sub(free.0.saturating_sub(mix.taken[device].0))))
}

/// A broken constraint in words. The scheduler counts equal reasons, so these name neither the node nor what differs from node to node without need.
fn in_words(cluster: &Cluster, broken: &Break) -> String {
    let name = |class: usize| cluster.workload_of(class).unwrap_or("another workload");
    match broken {
        Break::Floor { class, normalised, floor } => format!(
            "{} keeps {:.0} % of its throughput, less than {:.0} %",
            name(*class),
            100.0 * normalised,
            100.0 * floor
        ),
        Break::Fsync { class, p99, most } => {
            format!("an fsync of {} takes {:.1} ms, more than {:.1} ms", name(*class), p99 * 1e3, most * 1e3)
        }
        Break::Memory { .. } => "there is too little memory for what is not page cache".to_owned(),
    }
}

/// The scores of candidates, and the index of the one that is assumed to be chosen; `None` if there is no candidate.
#[must_use]
pub fn scores(pod: &Pod, outcomes: &[Outcome]) -> (Vec<i64>, Option<usize>) {
    let mut scores: Vec<i64> = outcomes.iter().map(score).collect();
    // Of equals, another one for each pod.
    let spread = |index: usize| {
        let mut hasher = DefaultHasher::new();
        (&pod.metadata.uid, index).hash(&mut hasher);
        hasher.finish()
    };
    // Beside neighbours that lose what the pod gets, gains are equal whatever it gets.
    let own = |index: usize| match outcomes[index] {
        Outcome::Gains { own, .. } => own,
        _ => f64::NEG_INFINITY,
    };
    let best = (0..scores.len()).max_by(|a, b| {
        let by_score = scores[*a].cmp(&scores[*b]).then(own(*a).total_cmp(&own(*b)));
        by_score.then_with(|| spread(*a).cmp(&spread(*b)))
    });
    if let Some(best) = best {
        scores[best] = (scores[best] + 1).min(MAX_SCORE);
    }
    (scores, best)
}

fn score(outcome: &Outcome) -> i64 {
    match outcome {
        Outcome::Unknown(_) => NEUTRAL,
        Outcome::Fails(_) | Outcome::Impossible(_) => 0,
        #[expect(clippy::cast_possible_truncation, reason = "between 0 and 9")]
        Outcome::Gains { gain, .. } => ((MAX_SCORE - 1) as f64 * gain.clamp(0.0, 1.0)).round() as i64,
    }
}
