//! The published correction, unchanged: Tobimatsu et al., "Controlling journaling I/O in container environments",
//! equation 4.
//!
//! Every period (theirs is 5 s, the timer of ext4's commits) the weight of tenant n becomes
//!
//! ```text
//! m_n = m'_n (I_n S - J_n) / C'_n      S = sum over k of (J_k + i_k / m'_k C'_k)
//! ```
//!
//! with I its share, i its ideal weight, m' the current weight, J its journal I/O and C' its other I/O in the period. S
//! is what all tenants together would have done under ideal weights. With C' = 0 the weight is the ideal one, and
//! weights are clamped to the range of the controller. Idle tenants keep their part of S: the active ones then have
//! smaller weights than needed, which a proportional controller compensates.
//!
//! Kept for comparison; Bulkhead uses [`super::correcting`].

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::{LATE_NS, Params, Reason, Sample, Standing, Step, Usage, fraction_of, other_writer, weights_of};

/// Length of a period, ns.
const PERIOD_NS: u64 = 5_000_000_000;

/// A tenant's terms of the equation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tenant {
    /// Its share, 0 to 1 (I).
    pub part: f64,
    /// Its weight without any journal I/O (i).
    pub ideal: f64,
    /// Its weight during the period (m').
    pub weight: f64,
    /// Its I/O (C', J).
    pub usage: Usage,
}

/// The weights for the next period, clamped to `range`.
#[must_use]
pub fn weights(tenants: &BTreeMap<String, Tenant>, range: &RangeInclusive<f64>) -> BTreeMap<String, f64> {
    let under_ideal = |tenant: &Tenant| tenant.usage.journal + tenant.ideal / tenant.weight * tenant.usage.native;
    let sum: f64 = tenants.values().map(under_ideal).sum();
    let weight = |tenant: &Tenant| match tenant.usage.native > 0.0 {
        true => tenant.weight * (tenant.part * sum - tenant.usage.journal) / tenant.usage.native,
        false => tenant.ideal,
    };
    tenants.iter().map(|(name, tenant)| (name.clone(), weight(tenant).clamp(*range.start(), *range.end()))).collect()
}

/// The state between samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    at_ns: Option<u64>,
    /// Elapsed time of the period, and the I/O in it.
    ns: u64,
    usages: BTreeMap<String, Usage>,
    weights: BTreeMap<String, u32>,
}

/// Accumulates samples over a period, and applies the equation at its end. Samples that are known to be wrong start a
/// new period; the paper has no other reason to change nothing.
pub fn step(state: &mut State, sample: &Sample, params: &Params) -> Step {
    let before = state.at_ns.replace(sample.at_ns);
    let reason = match before.map(|before| sample.at_ns.checked_sub(before)) {
        None => Some(Reason::Starting),
        Some(None) => Some(Reason::ClockWentBack),
        Some(Some(ns)) if ns > LATE_NS => Some(Reason::Late { ns }),
        Some(Some(_)) if sample.is_partial => Some(Reason::Partial),
        Some(Some(ns)) => {
            state.ns += ns;
            other_writer(sample, &state.weights)
        }
    };
    if let Some(reason) = reason {
        if !matches!(reason, Reason::OtherWriter { .. }) {
            state.weights = weights_of(sample);
        }
        (state.ns, state.usages) = (0, BTreeMap::new());
        return Step { reason, ..Step::default() };
    }
    state.weights = weights_of(sample);
    state.usages.retain(|name, _| sample.tenants.contains_key(name));
    for (name, tenant) in &sample.tenants {
        *state.usages.entry(name.clone()).or_default() += tenant.usage;
    }
    let tenants = standings(&state.usages, params);
    if state.ns < PERIOD_NS {
        return Step { reason: Reason::Starting, tenants, ..Step::default() };
    }
    let of_equation = |(name, weight): (&String, &u32)| {
        let usage = state.usages.get(name).copied().unwrap_or_default();
        let part = params.parts.get(name).copied().unwrap_or(0.0);
        (name.clone(), Tenant { part, ideal: params.ideal(name), weight: f64::from(*weight), usage })
    };
    let range = f64::from(*params.range.start())..=f64::from(*params.range.end());
    let wanted = weights(&state.weights.iter().map(of_equation).collect(), &range);
    let wanted = wanted.into_iter().map(|(name, weight)| (name, params.round(weight)));
    let changes: BTreeMap<String, u32> = wanted.filter(|(name, weight)| state.weights[name] != *weight).collect();
    state.weights.extend(changes.clone());
    (state.ns, state.usages) = (0, BTreeMap::new());
    let reason = if changes.is_empty() { Reason::WithinBand } else { Reason::Corrected };
    Step { changes, reason, tenants, ..Step::default() }
}

fn standings(usages: &BTreeMap<String, Usage>, params: &Params) -> BTreeMap<String, Standing> {
    let all: f64 = usages.values().map(|usage| usage.total()).sum();
    let standing = |(name, usage): (&String, &Usage)| {
        let (achieved, journal) = (fraction_of(usage.total(), all), fraction_of(usage.journal, all));
        let target = params.parts.get(name).copied().unwrap_or(0.0);
        (name.clone(), Standing { target, achieved, journal, contends: true, infeasible: journal > target })
    };
    usages.iter().map(standing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's range of blkio.weight.
    const RANGE: RangeInclusive<f64> = 10.0..=1000.0;

    fn tenant(part: f64, weight: f64, native: f64, journal: f64) -> Tenant {
        Tenant { part, ideal: 1000.0 * part, weight, usage: Usage { native, journal } }
    }

    /// Share, current weight, C', J; the resulting weight.
    type Line = (f64, f64, f64, f64, f64);

    #[test]
    fn weights_match_the_table_computed_by_hand() {
        let table: [&[Line]; 7] = [
            // No journal I/O: S = 200, 500 * (0.5 * 200) / 100.
            &[(0.5, 500.0, 100.0, 0.0, 500.0), (0.5, 500.0, 100.0, 0.0, 500.0)],
            // One journals 40: S = 40 + 80 + 80 = 200. 500 * (100 - 40) / 80 = 375, 500 * 100 / 80 = 625.
            &[(0.5, 500.0, 80.0, 40.0, 375.0), (0.5, 500.0, 80.0, 0.0, 625.0)],
            // The step after that: C' = 60 and 100. S = 40 + 500/375 * 60 + 500/625 * 100 = 200: nothing changes.
            &[(0.5, 375.0, 60.0, 40.0, 375.0), (0.5, 625.0, 100.0, 0.0, 625.0)],
            // Shares 70 : 30, the smaller one journals 20: S = 20 + 126 + 54 = 200.
            // 700 * 140 / 126 = 777.78, 300 * (60 - 20) / 54 = 222.22.
            &[(0.7, 700.0, 126.0, 0.0, 777.777_777_777_777_8), (0.3, 300.0, 54.0, 20.0, 222.222_222_222_222_2)],
            // Its journal alone exceeds the share: 0.5 * 200 - 120 < 0. S = 120 + 40 + 40 = 200; 500 * 100 / 40 = 1250.
            &[(0.5, 500.0, 40.0, 120.0, 10.0), (0.5, 500.0, 40.0, 0.0, 1000.0)],
            // It does only journal I/O: the ideal weight. S = 100 + 0 + 100; 500 * 100 / 100.
            &[(0.5, 500.0, 0.0, 100.0, 500.0), (0.5, 500.0, 100.0, 0.0, 500.0)],
            // The third is idle, and the others' weights shrink by its part of S. S = 150; 333.3 * (50 - 0) / 75 =
            // 222.2.
            &[
                (1.0 / 3.0, 1000.0 / 3.0, 75.0, 0.0, 222.222_222_222_222_2),
                (1.0 / 3.0, 1000.0 / 3.0, 75.0, 0.0, 222.222_222_222_222_2),
                (1.0 / 3.0, 1000.0 / 3.0, 0.0, 0.0, 333.333_333_333_333_3),
            ],
        ];
        for rows in table {
            let tenants = rows
                .iter()
                .enumerate()
                .map(|(n, &(part, weight, native, journal, _))| (n.to_string(), tenant(part, weight, native, journal)));
            let found = weights(&tenants.collect(), &RANGE);
            for (n, (.., expected)) in rows.iter().enumerate() {
                let weight = found[&n.to_string()];
                assert!((weight - expected).abs() < 1e-9, "{rows:?}: {found:?}");
            }
        }
    }
}
