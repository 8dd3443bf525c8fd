//! The state of a hold: its name in the API, and an explanation for operators.

use std::time::Duration;

use bulkhead_core::control::{Cap, LatencyMiss, Reason};
use bulkhead_core::health;
use bulkhead_core::units::Bytes;

pub(super) const fn state_name(reason: &Reason) -> &'static str {
    match reason {
        Reason::Corrected => "corrected",
        Reason::WithinBand => "within_band",
        Reason::Starting => "starting",
        Reason::NotContended { .. } => "not_contended",
        Reason::NoContenders => "no_contenders",
        Reason::Ineffective { .. } => "ineffective",
        Reason::Capped { .. } => "capped",
        Reason::LatencyMissed { .. } => health::PROMISE_MISSED,
        Reason::Partial => "partial",
        Reason::Late { .. } => "late",
        Reason::ClockWentBack => "clock_went_back",
        Reason::OtherWriter { .. } | Reason::OtherCap { .. } => "other_writer",
    }
}

pub(super) fn explanation(reason: &Reason) -> String {
    match reason {
        Reason::Corrected => "weights were changed".to_owned(),
        Reason::WithinBand => "weights are correct".to_owned(),
        Reason::Starting => "there is no data on the last seconds yet".to_owned(),
        Reason::NotContended { busy } => {
            format!("the device is not contended: busy for {:.0} % of the time", busy * 100.0)
        }
        Reason::NoContenders => "fewer than two tenants contend".to_owned(),
        Reason::Ineffective { tenant, had, expected } => format!(
            "weights have no effect on {tenant}: it gets {:.0} % of all charged I/O, while its weight is worth {:.0} %",
            had * 100.0,
            expected * 100.0
        ),
        Reason::Capped { tenant, cap } => {
            format!("weights do not restrain {tenant}: it is capped at {} per second", per_second(*cap))
        }
        Reason::LatencyMissed { tenant, found, promised, why } => {
            let why = match why {
                LatencyMiss::AtFloor => "all others are already throttled to their floor",
                LatencyMiss::NoHelp => {
                    "throttling all others to their floor did not help, so they are not throttled: the device is too slow for this latency"
                }
                LatencyMiss::PastCaps => {
                    "the others write mostly metadata, which this kernel lets past io.max, so they are not throttled: \
                     limit how many files they create and remove"
                }
                LatencyMiss::NoCaps => {
                    "others cannot be throttled, because it shares a journal with them or the kernel has no io.max: \
                     give it its own volume"
                }
            };
            format!("fsyncs of {tenant} take {:.0} ms instead of {:.0} ms: {why}", found * 1e3, promised * 1e3)
        }
        Reason::Partial => "records were lost, so the figures are too low".to_owned(),
        Reason::Late { ns } => {
            format!("the last sample is {:.1} s old", Duration::from_nanos(*ns).as_secs_f64())
        }
        Reason::ClockWentBack => "the clock went backwards".to_owned(),
        Reason::OtherCap { tenant, found, expected } => {
            let text = |cap: &Option<Cap>| cap.map_or_else(|| "none".to_owned(), per_second);
            format!(
                "another program changed the limit of {tenant} in io.max from {} to {}: nothing is changed until it is restored",
                text(expected),
                text(found)
            )
        }
        Reason::OtherWriter { tenant, found, expected } => {
            format!(
                "another program changed the weight of {tenant} from {expected} to {found}: nothing is changed until it is restored"
            )
        }
    }
}

/// A cap's operations and bytes per second.
fn per_second(cap: Cap) -> String {
    let ops = cap.ops.map(|ops| format!("{ops} operations"));
    let bytes = cap.bytes.map(|bytes| Bytes(bytes).to_string());
    ops.into_iter().chain(bytes).collect::<Vec<_>>().join(" and ")
}
