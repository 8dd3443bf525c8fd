//! One job: its deadline, cancellation and progress.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_api::wire::{JobResult, JobState, JobView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::reason::Reason;
use bulkhead_core::work::{JobProgress, JobSteps};
use tokio::sync::Notify;
use uuid::Uuid;

/// How long one of the daemon's own jobs runs before it is listed: its checks normally take milliseconds.
const LISTED_AFTER: Duration = Duration::from_secs(1);

/// What a request asks for.
#[derive(Clone, Debug)]
pub(crate) struct JobSpec {
    /// An imperative: `remove volume p/v`.
    pub(crate) operation: String,
    /// The request's id, by which its client finds the job.
    pub(crate) request: Option<Uuid>,
    /// How long it may wait, for other jobs or for data to be written, before it has changed anything.
    pub(crate) wait_limit: Option<Duration>,
}

/// A job, as the code that carries it out sees it.
#[derive(Debug)]
pub struct Job {
    id: u64,
    spec: JobSpec,
    /// Whether the daemon started it itself.
    is_check: bool,
    started: Instant,
    /// The daemon is stopping: the job completes, but no longer waits for anything.
    is_stopping: AtomicBool,
    /// It was cancelled.
    is_cancelled: AtomicBool,
    changed: Notify,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether it has changed anything.
    has_changed: bool,
    /// Whether it is ending and undoing its steps, which is not interrupted.
    is_ending: bool,
    /// The start of its current part, if it has parts.
    part: Option<Instant>,
    objects: Vec<String>,
    step: Option<(String, Instant)>,
    /// Number and operation of the jobs that hold what it waits for.
    waits_for: Vec<(u64, String)>,
    progress: Option<JobProgress>,
    steps: Option<JobSteps>,
    figures: Vec<String>,
    /// When, and the outcome; with a result only for jobs whose client does not wait for it.
    ended: Option<(Instant, Result<Option<JobResult>, Fault>)>,
}

impl Job {
    pub(super) fn new(id: u64, spec: JobSpec, is_check: bool) -> Self {
        let (is_stopping, is_cancelled) = (AtomicBool::new(false), AtomicBool::new(false));
        let (started, changed, state) = (Instant::now(), Notify::new(), Mutex::default());
        Self { id, spec, is_check, started, is_stopping, is_cancelled, changed, state }
    }

    /// A job that is never listed, for what runs before the daemon serves requests.
    pub(crate) fn internal() -> Self {
        Self::new(0, JobSpec { operation: String::new(), request: None, wait_limit: None }, true)
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the objects that it changes.
    pub(crate) fn set_objects(&self, objects: Vec<String>) {
        self.state().objects = objects;
    }

    /// Begins a step. `can_be_undone`: if this fails, everything done so far is undone.
    ///
    /// # Errors
    /// `Cancelled`, once: the steps that undo the others are not refused. `Unavailable` for the daemon's own checks while it is stopping:
    /// an operator who stops the daemon does not expect further mounts.
    pub(crate) fn begin_step(&self, step: &impl ToString, can_be_undone: bool) -> Result<(), Fault> {
        let mut state = self.state();
        if self.is_check && self.is_stopping.load(Ordering::SeqCst) {
            return Err(stopping());
        }
        let can_end = !state.is_ending && (can_be_undone || !state.has_changed);
        if can_end && self.is_cancelled.load(Ordering::SeqCst) {
            state.is_ending = true;
            return Err(self.cancelled());
        }
        state.step = Some((step.to_string(), Instant::now()));
        Ok(())
    }

    /// Begins one of its parts. Each part has its own time limit and its own claim.
    ///
    /// # Errors
    /// `Cancelled` and `Unavailable`, as [`Job::keep_waiting`].
    pub(crate) fn begin_part(&self) -> Result<(), Fault> {
        let mut state = self.state();
        state.part = Some(Instant::now());
        self.check_may_wait(&mut state)
    }

    fn check_may_wait(&self, state: &mut State) -> Result<(), Fault> {
        if self.is_stopping.load(Ordering::SeqCst) {
            return Err(stopping());
        }
        if !state.is_ending && self.is_cancelled.load(Ordering::SeqCst) {
            state.is_ending = true;
            return Err(self.cancelled());
        }
        Ok(())
    }

    /// The start of its current wait, if it is waiting.
    fn waits_since(&self, state: &State) -> Instant {
        // A job that has changed something has this time for each further step.
        let step = state.step.as_ref().filter(|_| state.has_changed).map(|(_, at)| *at);
        [step, state.part].into_iter().flatten().fold(self.started, Instant::max)
    }

    /// Notes that a step has changed something.
    pub(crate) fn mark_changed(&self) {
        self.state().has_changed = true;
    }

    /// Whether a step that may wait for long, and has changed nothing so far, continues.
    ///
    /// # Errors
    /// `Cancelled`, once, because undoing the other steps may have to wait as well; `Unavailable` when the daemon is stopping, `InUse`
    /// when its time limit is reached.
    pub(crate) fn keep_waiting(&self) -> Result<(), Fault> {
        let mut state = self.state();
        let since = self.waits_since(&state);
        let over = self.spec.wait_limit.filter(|wait_limit| since.elapsed() >= *wait_limit);
        self.check_may_wait(&mut state)?;
        match over {
            Some(wait_limit) => {
                state.is_ending = true;
                Err(wait_timed_out(&state, wait_limit))
            }
            None => Ok(()),
        }
    }

    /// Whether work without a time limit continues.
    ///
    /// # Errors
    /// `Cancelled`; `Unavailable` when the daemon is stopping. What follows is neither interrupted nor cancelled.
    pub(crate) fn check_cancelled(&self) -> Result<(), Fault> {
        let mut state = self.state();
        let fault = if self.is_cancelled.load(Ordering::SeqCst) {
            Fault::new(Code::Cancelled, format!("job {}", self.id), format!("`{}` was cancelled", self.spec.operation))
        } else if self.is_stopping.load(Ordering::SeqCst) {
            stopping()
        } else {
            return Ok(());
        };
        state.is_ending = true;
        Err(fault)
    }

    /// Sets its current step.
    pub(crate) fn set_step(&self, steps: JobSteps, doing: String) {
        let mut state = self.state();
        (state.steps, state.step) = (Some(steps), Some((doing, Instant::now())));
    }

    /// Adds a measured figure.
    pub(crate) fn add_figure(&self, figure: String) {
        self.state().figures.push(figure);
    }

    /// Sets its progress.
    pub(crate) fn set_progress(&self, progress: JobProgress) {
        self.state().progress = Some(progress);
    }

    /// The time left for waiting; `None` without a limit.
    fn wait_left(&self) -> Option<Duration> {
        let since = self.waits_since(&self.state());
        self.spec.wait_limit.map(|wait_limit| wait_limit.saturating_sub(since.elapsed()))
    }

    /// Resolves, with the reason, when it must stop waiting for its objects.
    pub(crate) async fn wait_ended(&self) -> Fault {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Err(fault) = self.keep_waiting() {
                return fault;
            }
            match self.wait_left() {
                Some(left) => {
                    // Woken or timed out: checked again in either case.
                    let _ = tokio::time::timeout(left, changed).await;
                }
                None => changed.await,
            }
        }
    }

    pub(super) fn stop_waiting(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    pub(crate) fn set_waits_for(&self, others: &[Arc<Job>]) {
        self.state().waits_for = others.iter().map(|job| (job.id, job.spec.operation.clone())).collect();
    }

    #[cfg(test)]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.state().waits_for.is_empty()
    }

    /// Its number, operation and current step.
    pub(super) fn describe(&self) -> String {
        let step = self.state().step.as_ref().map_or_else(String::new, |(step, _)| format!(": {step}"));
        format!("job {} ({}){step}", self.id, self.spec.operation)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().ended.is_some()
    }

    /// Records its outcome.
    pub(super) fn end(&self, outcome: Result<Option<JobResult>, Fault>) {
        self.state().ended = Some((Instant::now(), outcome));
    }

    /// Records a failure, unless it has an outcome, and that it no longer waits.
    pub(super) fn end_if_running(&self, fault: Fault) {
        let mut state = self.state();
        state.waits_for.clear();
        state.ended.get_or_insert_with(|| (Instant::now(), Err(fault)));
    }

    fn cancelled(&self) -> Fault {
        let cause = format!("`{}` was cancelled, and its steps were undone", self.spec.operation);
        Fault::new(Code::Cancelled, format!("job {}", self.id), cause)
    }

    pub(super) fn view(&self, now: Instant) -> JobView {
        let state = self.state();
        let since = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
        let (job_state, fault) = match &state.ended {
            Some((_, Ok(_))) => (JobState::Done, None),
            Some((_, Err(fault))) if fault.code == Code::Cancelled => (JobState::Cancelled, Some(fault.clone())),
            Some((_, Err(fault))) => (JobState::Failed, Some(fault.clone())),
            None if !state.waits_for.is_empty() => (JobState::Waiting, None),
            None => (JobState::Running, None),
        };
        let end = state.ended.as_ref().map_or(now, |(at, _)| *at);
        JobView {
            id: self.id,
            operation: self.spec.operation.clone(),
            request: self.spec.request,
            objects: state.objects.clone(),
            state: job_state,
            step: state.step.as_ref().map(|(step, _)| step.clone()),
            step_seconds: state.step.as_ref().map_or(0.0, |(_, at)| end.saturating_duration_since(*at).as_secs_f64()),
            seconds: end.saturating_duration_since(self.started).as_secs_f64(),
            ended_seconds_ago: state.ended.as_ref().map(|(at, _)| since(*at)),
            waits_for: state.waits_for.iter().map(|(id, _)| *id).collect(),
            fault,
            progress: state.progress,
            steps: state.steps,
            figures: state.figures.clone(),
            result: state.ended.as_ref().and_then(|(_, outcome)| outcome.as_ref().ok().cloned().flatten()),
        }
    }

    /// Whether both are the daemon's own, and do the same.
    pub(super) fn is_same_check(&self, other: &Self) -> bool {
        self.is_check && other.is_check && self.spec.operation == other.spec.operation
    }

    pub(super) fn is_listed(&self, now: Instant) -> bool {
        !self.is_check || now.saturating_duration_since(self.started) >= LISTED_AFTER
    }
}

fn wait_timed_out(state: &State, wait_limit: Duration) -> Fault {
    let seconds = wait_limit.as_secs();
    let progress = if state.has_changed { "only part of it was done" } else { "nothing was changed" };
    let why = match (&state.waits_for[..], &state.step) {
        ([], Some((step, _))) => format!("`{step}` did not complete"),
        ([], None) => "it did not start".to_owned(),
        (others, _) => {
            let others: Vec<String> = others.iter().map(|(id, what)| format!("job {id} ({what})")).collect();
            format!("other jobs did not finish with it: {}", others.join(", "))
        }
    };
    Fault::new(Code::InUse, state.objects.join(", "), format!("{progress}: within {seconds} s, {why}"))
        .reason(Reason::WaitEnded { seconds })
}

pub(super) fn stopping() -> Fault {
    Fault::new(Code::Unavailable, "daemon", "it is stopping").hint("try again when it is running again")
}

#[cfg(test)]
mod tests;
