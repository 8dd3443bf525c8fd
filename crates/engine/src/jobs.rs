//! Jobs, running and recently ended: what each one does, which jobs it waits for, and whether it has to stop.
//!
//! Owns: their numbers, deadlines and cancellation. A job is cancelled between two steps, where everything it has done can be
//! undone, as if the next step had failed; while it waits for other jobs, or for a tenant's data, it is cancelled at once.
//! Does not: keep jobs across a restart. Reconciliation completes or undoes interrupted ones.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_api::wire::{JobResult, JobState, JobView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::reason::Reason;
use bulkhead_core::work::{JobProgress, JobSteps};
use tokio::sync::Notify;
use uuid::Uuid;

/// How many ended jobs are kept.
const KEPT: usize = 64;

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
    fn new(id: u64, spec: JobSpec, is_check: bool) -> Self {
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
    /// an operator who stops it does not expect further mounts.
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

    fn stop_waiting(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    fn cancel(&self) {
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

    fn cancelled(&self) -> Fault {
        let cause = format!("`{}` was cancelled, and what it had done was undone", self.spec.operation);
        Fault::new(Code::Cancelled, format!("job {}", self.id), cause)
    }

    fn view(&self, now: Instant) -> JobView {
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

    fn is_listed(&self, now: Instant) -> bool {
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

fn stopping() -> Fault {
    Fault::new(Code::Unavailable, "daemon", "it is stopping").hint("try again when it is running again")
}

/// The jobs of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    table: Mutex<Table>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct Table {
    last_id: u64,
    is_closed: bool,
    running: Vec<Arc<Job>>,
    ended: VecDeque<Arc<Job>>,
}

impl Jobs {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a request's job.
    ///
    /// # Errors
    /// `Unavailable` once closed.
    pub(crate) fn begin(self: &Arc<Self>, spec: JobSpec) -> Result<Running, Fault> {
        self.add(spec, false)
    }

    /// Begins one of the daemon's own jobs.
    ///
    /// # Errors
    /// `Unavailable` once closed.
    pub(crate) fn begin_check(self: &Arc<Self>, operation: &str) -> Result<Running, Fault> {
        self.add(JobSpec { operation: operation.to_owned(), request: None, wait_limit: None }, true)
    }

    fn add(self: &Arc<Self>, spec: JobSpec, is_check: bool) -> Result<Running, Fault> {
        let mut table = self.table();
        if table.is_closed {
            return Err(stopping());
        }
        table.last_id += 1;
        let job = Arc::new(Job::new(table.last_id, spec, is_check));
        table.running.push(Arc::clone(&job));
        Ok(Running { jobs: Arc::clone(self), job, has_begun: false })
    }

    /// Running jobs, then ended ones, latest first.
    pub(crate) fn views(&self) -> Vec<JobView> {
        let (table, now) = (self.table(), Instant::now());
        let listed = table.running.iter().chain(&table.ended).filter(|job| job.is_listed(now));
        listed.map(|job| job.view(now)).collect()
    }

    /// One of them.
    ///
    /// # Errors
    /// `NotFound`, also for one that ended long ago.
    pub(crate) fn view(&self, id: u64) -> Result<JobView, Fault> {
        Ok(self.find(id)?.view(Instant::now()))
    }

    /// One of them, once it has ended, or `limit` is over.
    ///
    /// # Errors
    /// `NotFound`, also for one that ended long ago.
    pub(crate) async fn view_at_end(&self, id: u64, limit: Duration) -> Result<JobView, Fault> {
        let job = self.find(id)?;
        let ended = async {
            loop {
                let ended = self.ended.notified();
                tokio::pin!(ended);
                ended.as_mut().enable();
                if job.state().ended.is_some() {
                    return;
                }
                ended.await;
            }
        };
        // Its state is returned in either case.
        let _ = tokio::time::timeout(limit, ended).await;
        Ok(job.view(Instant::now()))
    }

    /// Cancels a job: it is undone, or stops waiting. Does nothing to an ended one.
    ///
    /// # Errors
    /// `NotFound`.
    pub(crate) fn cancel(&self, id: u64) -> Result<JobView, Fault> {
        let job = self.find(id)?;
        job.cancel();
        Ok(job.view(Instant::now()))
    }

    fn find(&self, id: u64) -> Result<Arc<Job>, Fault> {
        let table = self.table();
        let found = table.running.iter().chain(&table.ended).find(|job| job.id == id);
        found.cloned().ok_or_else(|| {
            Fault::new(Code::NotFound, format!("job {id}"), "there is no such job, or it ended long ago")
                .reason(Reason::NoSuchJob { job: id })
        })
    }

    /// Refuses further jobs, ends those that only wait, and resolves when all have ended.
    pub(crate) async fn close(&self) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            {
                let mut table = self.table();
                table.is_closed = true;
                table.running.iter().for_each(|job| job.stop_waiting());
                if table.running.is_empty() {
                    return;
                }
            }
            ended.await;
        }
    }

    /// Descriptions of the running jobs.
    pub(crate) fn running(&self) -> Vec<String> {
        let words = |job: &Arc<Job>| {
            let step = job.state().step.as_ref().map_or_else(String::new, |(step, _)| format!(": {step}"));
            format!("job {} ({}){step}", job.id, job.spec.operation)
        };
        self.table().running.iter().map(words).collect()
    }
}

/// Cancels a job on drop, if it has not ended: for work that is useless without its client.
#[derive(Debug)]
pub(crate) struct CancelOnDrop(Arc<Job>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// A running job. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct Running {
    jobs: Arc<Jobs>,
    job: Arc<Job>,
    /// Whether it has begun; before that, the job ends with its request.
    has_begun: bool,
}

impl Running {
    pub(crate) fn job(&self) -> &Arc<Job> {
        &self.job
    }

    /// Kept by a request whose job must not outlive it.
    pub(crate) fn cancel_on_drop(&self) -> CancelOnDrop {
        CancelOnDrop(Arc::clone(&self.job))
    }

    /// Notes that it holds its claims.
    pub(crate) fn begun(mut self) -> Self {
        self.has_begun = true;
        self
    }

    /// Ends it with an outcome. Without this it counts as aborted, or as given up before it began.
    pub(crate) fn end<T>(self, outcome: &Result<T, Fault>) {
        self.end_with(outcome.as_ref().map(|_| None).map_err(Clone::clone));
    }

    /// Ends it with an outcome that is kept in the job, for the client to fetch.
    pub(crate) fn end_with(self, outcome: Result<Option<JobResult>, Fault>) {
        self.job.state().ended = Some((Instant::now(), outcome));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        {
            let mut state = self.job.state();
            state.waits_for.clear();
            let (code, cause) = match self.has_begun {
                true => (Code::Internal, "it was aborted by a bug in Bulkhead"),
                false => (Code::Cancelled, "the client disconnected before it had started"),
            };
            let aborted = || (Instant::now(), Err(Fault::new(code, format!("job {}", self.job.id), cause)));
            state.ended.get_or_insert_with(aborted);
        }
        let mut table = self.jobs.table();
        table.running.retain(|job| job.id != self.job.id);
        if self.job.is_listed(Instant::now()) {
            table.ended.push_front(Arc::clone(&self.job));
            table.ended.truncate(KEPT);
        }
        drop(table);
        self.jobs.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(wait_limit: Option<Duration>) -> JobSpec {
        JobSpec { operation: "remove volume p/v".to_owned(), request: None, wait_limit }
    }

    #[test]
    fn a_cancelled_job_begins_no_further_step() {
        let jobs = Arc::new(Jobs::default());
        let running = jobs.begin(spec(None)).unwrap();
        running.job().begin_step(&"unmount", true).unwrap();
        running.job().mark_changed();
        assert_eq!(jobs.cancel(1).unwrap().state, JobState::Running);
        // This step cannot be undone, the next one can.
        running.job().begin_step(&"forget", false).unwrap();
        let fault = running.job().begin_step(&"remove", true).unwrap_err();
        // Undoing is not cancelled.
        running.job().begin_step(&"mount", true).unwrap();
        assert_eq!((fault.code, fault.object.as_str()), (Code::Cancelled, "job 1"));
        running.end::<()>(&Err(fault));
        let view = jobs.view(1).unwrap();
        assert_eq!((view.state, view.step.as_deref()), (JobState::Cancelled, Some("mount")));
        assert_eq!(jobs.cancel(2).unwrap_err().code, Code::NotFound);
    }

    #[test]
    fn a_stopping_daemon_completes_begun_operations_and_waits_for_nothing() {
        let jobs = Arc::new(Jobs::default());
        let running = jobs.begin(spec(None)).unwrap();
        running.job().stop_waiting();
        assert_eq!(running.job().begin_step(&"remove", true), Ok(()));
        assert_eq!(running.job().keep_waiting().map_err(|fault| fault.code), Err(Code::Unavailable));
        let check = jobs.begin_check("check").unwrap();
        check.job().stop_waiting();
        assert_eq!(check.job().begin_step(&"mount", true).map_err(|fault| fault.code), Err(Code::Unavailable));
    }

    #[test]
    fn a_job_that_timed_out_names_the_jobs_it_waited_for() {
        let jobs = Arc::new(Jobs::default());
        let (first, second) = (jobs.begin(spec(None)).unwrap(), jobs.begin(spec(Some(Duration::ZERO))).unwrap());
        second.job().set_waits_for(&[Arc::clone(first.job())]);
        let fault = second.job().keep_waiting().unwrap_err();
        assert_eq!(fault.code, Code::InUse);
        assert!(fault.cause.contains("job 1 (remove volume p/v)"), "{fault}");
    }

    #[test]
    fn each_part_has_the_time_limit_of_its_job() {
        let mut job = Job::new(1, spec(Some(Duration::from_secs(5))), false);
        job.started = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        job.begin_part().unwrap();
        assert_eq!(job.keep_waiting(), Ok(()));
        job.state().part = None;
        assert_eq!(job.keep_waiting().map_err(|fault| fault.code), Err(Code::InUse));
        let (cancelled, stopped) = (Job::new(2, spec(None), false), Job::new(3, spec(None), false));
        cancelled.cancel();
        stopped.stop_waiting();
        let refused = [cancelled, stopped].map(|job| job.begin_part().map_err(|fault| fault.code));
        assert_eq!(refused, [Err(Code::Cancelled), Err(Code::Unavailable)]);
    }

    #[test]
    fn the_latest_ended_jobs_are_kept_but_short_checks_are_not() {
        let jobs = Arc::new(Jobs::default());
        for _ in 0..KEPT + 5 {
            jobs.begin(spec(None)).unwrap().end(&Ok(()));
        }
        drop(jobs.begin_check("check"));
        let views = jobs.views();
        assert_eq!((views.len(), views[0].id, views[0].state), (KEPT, 69, JobState::Done));
    }
}
