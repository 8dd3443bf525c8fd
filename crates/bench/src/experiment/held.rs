//! Shares that are held while an experiment measures.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_core::wire::{HoldStart, HoldView};
use bulkhead_engine::engine::Engine;
use bulkhead_engine::hold::{Holder, PERIOD};
use bulkhead_engine::observe::{Observatory, Observe as _};
use bulkhead_sys::bpf;

/// Does something while shares are held; what the hold said of itself in the end comes with it.
///
/// # Errors
/// Those of the hold, and of what is done.
pub(super) fn while_held<T>(
    engine: &Engine,
    observatory: &Observatory,
    request: &HoldStart,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, HoldView)> {
    let hold = engine.hold_start(request, false)?.object.context("nothing is held")?;
    let device = hold.device.clone();
    let holder = Mutex::new(Holder::new(vec![hold]));
    let is_done = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        let stepper = scope.spawn(|| {
            let mut next = Instant::now();
            while !is_done.load(Ordering::Relaxed) {
                let mut holder = holder.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                holder.step(engine, observatory.observe(Duration::ZERO), bpf::now_ns());
                drop(holder);
                next += PERIOD;
                std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
            }
        });
        let done = work();
        is_done.store(true, Ordering::Relaxed);
        stepper.thread().unpark();
        done
    });
    let view = holder.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).views().into_iter().next();
    engine.hold_stop(&device, false)?;
    Ok((done?, view.context("the hold ended by itself")?))
}
