//! Correcting a demand by what its workload achieved alone, so that predictions of more start from there.

use bulkhead_core::demand::Demand;

use super::{Host, Load, predict};

/// Iterations of each search: each halves the interval.
const STEPS: usize = 40;
/// Part of the measured throughput within which the prediction is to be.
const NEAR: f64 = 1e-3;

/// A corrected demand.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// The demand with its correction.
    pub demand: Demand,
    /// What was predicted without it, as a part of what was measured.
    pub without: f64,
    /// What is predicted with it, as a part of what was measured: 1 unless no correction explains the difference.
    pub with: f64,
}

/// Corrects the demand of a workload that achieved `per_s` operations per second alone on this host, with a device of its own.
///
/// An operation that took longer or shorter than predicted gets the difference as a time of its own, in which others use host and device
/// ([`Demand::correction_seconds`]). One that was faster than host and device are predicted to allow uses less of both: its requests
/// and its processor time are scaled. The values must have been checked, and `per_s` be above 0.
#[must_use]
pub fn fit(host: &Host<'_>, device: usize, demand: &Demand, per_s: f64) -> Fitted {
    let predicted = |demand: &Demand| predict(host, &[Load { device, ..Load::one(demand) }]).achieved[0].per_s;
    let base = Demand { correction_seconds: 0.0, ..demand.clone() };
    let without = predicted(&base) / per_s;
    // Clients that never wait would take that long for one operation.
    let cycle = base.clients / per_s;
    let corrected = |base: &Demand, seconds: f64| Demand { correction_seconds: seconds, ..base.clone() };
    let mut base = base;
    let fastest = predicted(&corrected(&base, -cycle)) / per_s;
    if fastest < 1.0 - NEAR {
        scale(&mut base, fastest);
    }
    let (mut least, mut most) = (-cycle, cycle);
    for _ in 0..STEPS {
        let middle = (least + most) / 2.0;
        if predicted(&corrected(&base, middle)) > per_s { least = middle } else { most = middle }
    }
    let middle = (least + most) / 2.0;
    let seconds = if middle.abs() < NEAR * cycle { 0.0 } else { middle };
    let demand = corrected(&base, seconds);
    Fitted { without, with: predicted(&demand) / per_s, demand }
}

/// Lets an operation use a part of what it did.
fn scale(demand: &mut Demand, part: f64) {
    demand.cpu_seconds *= part;
    for requests in &mut demand.requests {
        requests.per_operation *= part;
    }
    if let Some(durable) = &mut demand.durable {
        durable.per_operation *= part;
    }
}
