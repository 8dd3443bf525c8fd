//! Shares that are held while an experiment measures.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_core::control::Mode;
use bulkhead_core::control::usage::Unit;
use bulkhead_core::wire::{HoldStart, HoldTenant, HoldView};
use bulkhead_engine::hold::{Holder, PERIOD};
use bulkhead_engine::observe::{Observatory, Observe as _};
use bulkhead_sys::bpf;

use super::put;
use crate::layout::Bench;
use crate::report::figure as f;
use crate::result::Round;

/// How long shares are held before a window, s: until it shows that weights do nothing, and caps are where they belong.
pub(super) const SETTLE: u32 = 45;

/// How shares are held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holding {
    /// Shares of A and B.
    pub(super) shares: (u32, u32),
    /// What they are parts of.
    pub(super) unit: Unit,
    /// How weights are corrected.
    pub(super) mode: Mode,
}

/// Where the tenants stand.
#[derive(Debug, Default)]
pub(super) struct Standings {
    latest: Mutex<Option<HoldView>>,
    kept: Mutex<Option<HoldView>>,
}

impl Standings {
    /// Keeps what there is now, at the end of a window: standings are of the last 15 s, and loads do not end together.
    pub(super) fn keep(&self) {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = latest;
    }

    fn set(&self, view: Option<HoldView>) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }

    fn into_kept(self) -> Option<HoldView> {
        self.kept.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does something while the shares of the two tenants are held. It begins while nothing goes on, and has the standings kept when its
/// window ends; what is put into `round` is to how many operations B was held then, and A's share of the device's time, if that is
/// held.
///
/// # Errors
/// Those of the hold, and of what is done.
pub(super) fn while_held<T>(
    bench: &Bench,
    observatory: &Observatory,
    holding: Holding,
    round: &mut Round,
    work: impl FnOnce(&Standings) -> Result<T>,
) -> Result<T> {
    let Holding { shares, unit, mode } = holding;
    observatory.observe(Duration::ZERO)?;
    let shares = bench.tenants()?.into_iter().zip([shares.0, shares.1]);
    let tenants = shares.map(|(name, share)| HoldTenant::new(name.as_str(), f64::from(share))).collect();
    let device = Some(bench.device().to_owned());
    let request = HoldStart { device, unit, mode, tenants, lease_seconds: None };
    let engine = bench.engine();
    let hold = engine.hold_start(&request, false)?.object.context("nothing is held")?;
    let device = hold.device.clone();
    let mut holder = Holder::new(vec![hold]);
    let (is_done, standings) = (AtomicBool::new(false), Standings::default());
    let done = std::thread::scope(|scope| {
        let stepper = scope.spawn(|| {
            let mut next = Instant::now();
            while !is_done.load(Ordering::Relaxed) {
                holder.step(engine, observatory.observe(Duration::ZERO), bpf::now_ns());
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
    engine.hold_stop(&device, false)?;
    let done = done?;
    let view = standings.into_kept().context("the hold ended by itself")?;
    if unit == Unit::Time {
        put(round, f::TIME_SHARE_A_PCT, view.standings.first().map(|standing| 100.0 * standing.achieved_share));
    }
    put(round, "cap_b_iops", view.standings.get(1).and_then(|standing| standing.cap).map(f64::from));
    Ok(done)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn standings_are_those_at_the_end_of_the_window() {
        let view = |state: &str| -> HoldView {
            let view = json!({
                "device": "vda", "unit": "time", "mode": "correcting", "weight_file": "io.weight", "total_weight": 1000,
                "tenants": [], "lease_seconds": null, "state": state, "reason": "", "corrections": 0, "standings": [],
            });
            serde_json::from_value(view).unwrap()
        };
        assert_eq!(Standings::default().into_kept(), None);
        let standings = Standings::default();
        for state in ["starting", "capped"] {
            standings.set(Some(view(state)));
        }
        standings.keep();
        standings.set(Some(view("not_contended")));
        assert_eq!(standings.into_kept().map(|view| view.state).as_deref(), Some("capped"));
    }
}
