//! Jobs, running and recently ended: what each one does, which jobs it waits for, and whether it has to stop.
//!
//! Owns: their numbers, the list, and results for those who ask later; `jobs/job.rs` has time limits and cancellation. A job is cancelled between two steps, where everything it has done can be
//! undone, as if the next step had failed; while it waits for other jobs, or for a tenant's data, it is cancelled at once.
//! Does not: keep jobs across a restart. Reconciliation completes or undoes interrupted ones.

mod job;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_api::wire::{JobResult, JobView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::reason::Reason;
use tokio::sync::Notify;

pub use self::job::Job;
pub(crate) use self::job::JobSpec;
use self::job::stopping;

/// How many ended jobs are kept.
const KEPT: usize = 64;

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

impl Table {
    /// Keeps an ended job in place of the oldest one; a check in place of its predecessor, because on a slow host each of them takes so long
    /// that it is listed, and clients would soon find no job of theirs.
    fn keep(&mut self, job: Arc<Job>) {
        self.ended.retain(|ended| !ended.is_same_check(&job));
        self.ended.push_front(job);
        self.ended.truncate(KEPT);
    }
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
                if job.has_ended() {
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
        let found = table.running.iter().chain(&table.ended).find(|job| job.id() == id);
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
        self.table().running.iter().map(|job| job.describe()).collect()
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

    /// Ends it with an outcome. Without this it counts as aborted, or as withdrawn before it began.
    pub(crate) fn end<T>(self, outcome: &Result<T, Fault>) {
        self.end_with(outcome.as_ref().map(|_| None).map_err(Clone::clone));
    }

    /// Ends it with an outcome that is kept in the job, for the client to fetch.
    pub(crate) fn end_with(self, outcome: Result<Option<JobResult>, Fault>) {
        self.job.end(outcome);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let (code, cause) = match self.has_begun {
            true => (Code::Internal, "it was aborted by a bug in Bulkhead"),
            false => (Code::Cancelled, "the client disconnected before it had started"),
        };
        self.job.end_if_running(Fault::new(code, format!("job {}", self.job.id()), cause));
        let mut table = self.jobs.table();
        table.running.retain(|job| job.id() != self.job.id());
        if self.job.is_listed(Instant::now()) {
            table.keep(Arc::clone(&self.job));
        }
        drop(table);
        self.jobs.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
