//! Carries out a plan: logs each step with its old and new value, and undoes the plan if one fails.
//!
//! Owns the fault-injection point of the crash tests: with `BULKHEAD_FAULT_AFTER=N` in the daemon's environment the
//! process aborts right after the N-th step of requests (0: before the first); steps of reconciliation and periodic checks do not count.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bulkhead_core::action::{Action, Applied};
use bulkhead_core::error::Fault;
use bulkhead_core::volume::Plan;

use crate::host::Host;
use crate::jobs::Job;

/// Environment variable that arms the fault-injection point.
pub const FAULT_VARIABLE: &str = "BULKHEAD_FAULT_AFTER";

/// Carries out plans on a host, for a job.
#[derive(Clone)]
pub struct Executor {
    host: Arc<dyn Host>,
    steps_left: Option<Arc<AtomicI64>>,
    job: Arc<Job>,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").field("steps_left", &self.steps_left).field("job", &self.job).finish_non_exhaustive()
    }
}

impl Executor {
    /// On this host; `fault_after` is the number of steps before the process aborts, for crash tests.
    #[must_use]
    pub fn new(host: Arc<dyn Host>, fault_after: Option<i64>) -> Self {
        let steps_left = fault_after.map(|steps| Arc::new(AtomicI64::new(steps)));
        Self { host, steps_left, job: Arc::new(Job::internal()) }
    }

    /// The same for a job.
    pub(crate) fn for_job(&self, job: &Arc<Job>) -> Self {
        Self { job: Arc::clone(job), ..self.clone() }
    }

    /// The same for reconciliation and periodic checks, whose steps the fault-injection point does not count.
    pub(crate) fn without_fault_injection(&self) -> Self {
        Self { steps_left: None, ..self.clone() }
    }

    /// The job that it works for.
    pub(crate) fn job(&self) -> &Arc<Job> {
        &self.job
    }

    /// The host, for looking at facts.
    #[must_use]
    pub fn host(&self) -> &dyn Host {
        self.host.as_ref()
    }

    /// Carries out a plan, or in a dry run only returns its steps.
    ///
    /// # Errors
    /// The error of the step that failed; if undoing failed too, its cause includes that.
    pub fn run(&self, plan: &Plan, dry_run: bool) -> Result<Vec<Applied>, Fault> {
        let mut applied = Vec::with_capacity(plan.steps.len());
        for (n, action) in plan.steps.iter().enumerate() {
            if dry_run {
                applied.push(Applied { action: action.clone(), old: None, changed: false, discarded_bytes: None });
                continue;
            }
            match self.job.begin_step(action, plan.can_be_undone) {
                Ok(()) => {}
                Err(fault) if n == 0 => return Err(fault),
                Err(fault) => return Err(self.undo(&plan.on_failure, fault)),
            }
            match self.step(action) {
                Ok(step) => applied.push(step),
                Err(fault) => return Err(self.undo(&plan.on_failure, fault)),
            }
        }
        Ok(applied)
    }

    /// Carries out steps that need no undoing.
    ///
    /// # Errors
    /// The error of the step that failed.
    pub fn run_steps(&self, steps: Vec<Action>, dry_run: bool) -> Result<Vec<Applied>, Fault> {
        self.run(&Plan::steps(steps), dry_run)
    }

    fn undo(&self, steps: &[Action], mut fault: Fault) -> Fault {
        for action in steps {
            if let Err(second) = self.step(action) {
                tracing::error!(step = %action, fault = %second, "undoing failed");
                fault.cause = format!("{}; undoing it also failed ({second})", fault.cause);
            }
        }
        fault
    }

    fn step(&self, action: &Action) -> Result<Applied, Fault> {
        self.fault_point();
        match self.host.apply(action, &self.job) {
            Ok(applied) => {
                if applied.changed {
                    self.job.mark_changed();
                    tracing::info!(step = %action, old = applied.old.as_deref(), "done");
                } else {
                    tracing::debug!(step = %action, "done already");
                }
                Ok(applied)
            }
            Err(fault) => {
                tracing::warn!(step = %action, %fault, "failed");
                Err(fault)
            }
        }
    }

    /// Dies here when the steps allowed by the fault-injection variable are used up.
    #[expect(clippy::disallowed_methods, reason = "this is the fault-injection point: it has to die like kill -9")]
    fn fault_point(&self) {
        if let Some(left) = &self.steps_left
            && left.fetch_sub(1, Ordering::Relaxed) <= 0
        {
            tracing::error!("aborting at the injected fault");
            std::process::abort();
        }
    }
}
