//! Enforcement of shares while an experiment measures.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_api::wire::{HoldStart, HoldTenant, HoldView, Observation};
use bulkhead_core::control::usage::usages;
use bulkhead_core::model::{Hold, Mode, Unit};
use bulkhead_core::observe::activity::Activity;
use bulkhead_engine::hold::{PERIOD, RunningHolds};
use bulkhead_engine::observe::{Observatory, Observe as _};
use bulkhead_sys::process;

use super::set_figure;
use crate::layout::Bench;
use crate::report::figure as f;
use crate::result::Round;

/// How long shares are enforced before a window, s: until ineffective weights have been detected and caps have settled.
pub const SETTLE: u32 = 45;

/// The parameters of a hold.
#[derive(Clone, Copy, Debug)]
pub struct HoldParams {
    /// Shares of A and B.
    pub shares: (u32, u32),
    /// The resource that they divide.
    pub unit: Unit,
    /// The method of correcting weights.
    pub mode: Mode,
    /// The limit of A's 99th percentile of fsync latency, if any.
    pub fsync_p99: Option<Duration>,
}

/// The activity of tenants in a window, and the state of the hold at its end.
#[derive(Debug)]
pub struct Standings<'a> {
    observatory: &'a Observatory,
    latest: Mutex<Option<HoldView>>,
    kept: Mutex<Vec<(Activity, Option<HoldView>)>>,
}

impl<'a> Standings<'a> {
    fn new(observatory: &'a Observatory) -> Self {
        Self { observatory, latest: Mutex::default(), kept: Mutex::default() }
    }

    /// Samples the current state: at the beginning of a window, and at its end.
    ///
    /// # Errors
    /// Those of the observation.
    pub fn keep(&self) -> Result<()> {
        let seen = self.observatory.observe(Duration::ZERO)?.into_activity();
        let view = self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push((seen, view));
        Ok(())
    }

    fn set(&self, view: Option<HoldView>) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }

    fn into_kept(self) -> Vec<(Activity, Option<HoldView>)> {
        self.kept.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first tenant's share of the activity of all tenants between two observations, percent.
fn share_of_first(hold: &Hold, before: &Activity, after: &Activity) -> Option<f64> {
    let identities = hold.tenants.iter().map(|tenant| (tenant.name.clone(), tenant.identity.clone())).collect();
    let did = usages(&after.clone().since(before), &hold.device, hold.unit, &identities);
    let total: f64 = did.values().map(|usage| usage.native + usage.journal).sum();
    let first = did.get(&hold.tenants.first()?.name)?;
    (total > 0.0).then(|| 100.0 * (first.native + first.journal) / total)
}

/// Runs `work` while the shares of both tenants are enforced. The hold starts while both are idle; `work` samples the standings at the beginning
/// and the end of its window. Adds to `round`: B's cap in operations or bytes at the end, and A's share of device time in the window, if
/// that is enforced.
///
/// # Errors
/// Those of the hold, and of `work`.
pub fn with_hold<T>(
    bench: &Bench,
    observatory: &Observatory,
    holding: HoldParams,
    round: &mut Round,
    work: impl FnOnce(&Standings<'_>) -> Result<T>,
) -> Result<T> {
    let HoldParams { shares, unit, mode, fsync_p99 } = holding;
    observatory.observe(Duration::ZERO)?;
    let shares = bench.tenants()?.into_iter().zip([shares.0, shares.1]);
    let mut tenants: Vec<_> = shares.map(|(name, share)| HoldTenant::new(name.as_str(), f64::from(share))).collect();
    tenants[0].fsync_p99_us =
        fsync_p99.map(|p99| u64::try_from(p99.as_micros())).transpose().context("a promise is too long")?;
    let device = Some(bench.device().to_owned());
    let request = HoldStart { device, unit, mode, tenants, lease_seconds: None };
    let engine = bench.engine();
    let hold = engine.hold_start(&request, false)?.object.context("nothing is held")?;
    let device = hold.device.clone();
    let mut holder = RunningHolds::new(vec![hold.clone()]);
    let (is_done, standings) = (AtomicBool::new(false), Standings::new(observatory));
    let done = std::thread::scope(|scope| {
        let stepper = scope.spawn(|| {
            let mut next = Instant::now();
            while !is_done.load(Ordering::Relaxed) {
                let seen = observatory.observe(Duration::ZERO).map(Observation::into_activity);
                holder.step(engine, seen, process::monotonic_ns());
                standings.set(holder.views().into_iter().next());
                next += PERIOD;
                std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
            }
        });
        let done = work(&standings);
        is_done.store(true, Ordering::Relaxed);
        stepper.thread().unpark();
        done
    });
    engine.hold_stop(device.as_str(), false)?;
    let done = done?;
    let kept = standings.into_kept();
    let [(before, _), (after, view)] = kept.as_slice() else { bail!("the window was not marked at both of its ends") };
    if unit == Unit::Time {
        set_figure(round, f::TIME_SHARE_A_PCT, share_of_first(&hold, before, after));
    }
    let b = view.as_ref().context("the hold ended by itself")?.standings.get(1);
    set_figure(round, "cap_b_iops", b.and_then(|standing| standing.cap).map(f64::from));
    set_figure(round, "cap_b_bytes_per_s", b.and_then(|standing| standing.cap_bytes).map(|bytes| bytes as f64));
    Ok(done)
}

#[cfg(test)]
mod tests {
    use bulkhead_core::identity::{Identity, identify};
    use bulkhead_core::observe::activity::{ContainerView, DeviceShare};
    use bulkhead_core::observe::histogram::Histogram;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_share_is_that_of_the_window() {
        let identities = ["/bulkhead.slice/a", "/bulkhead.slice/b"].map(identify);
        let observed = |seconds: [u32; 2]| {
            let container = |(identity, seconds): (&Identity, u32)| {
                let (read_bytes, seconds) = (seconds.into(), f64::from(seconds));
                let on = DeviceShare { device: "vda".to_owned(), seconds, ..DeviceShare::default() };
                ContainerView {
                    identity: identity.clone(),
                    journal: Vec::new(),
                    read_bytes,
                    written_bytes: 0,
                    device_seconds: seconds,
                    devices: vec![on],
                    fsync: Histogram::default(),
                }
            };
            Activity { containers: identities.iter().zip(seconds).map(container).collect(), ..Activity::default() }
        };
        let tenant = |(name, identity): (&str, &Identity)| json!({ "name": name, "share_ppm": 500_000, "identity": identity, "cgroup": "/" });
        let tenants: Vec<_> = ["a", "b"].into_iter().zip(&identities).map(tenant).collect();
        let hold: Hold = serde_json::from_value(json!({
            "device": "vda", "unit": "time", "mode": "correcting", "weight_file": "io.weight", "total_weight": 1000,
            "tenants": tenants, "lease_seconds": null,
        }))
        .unwrap();
        let share = |before, after| share_of_first(&hold, &observed(before), &observed(after));
        // It had 9 of 10 s before the window, and 7 of 10 s in it.
        assert_eq!(share([9, 1], [16, 4]), Some(70.0));
        assert_eq!(share([9, 1], [9, 1]), None, "nobody did anything");
    }
}
