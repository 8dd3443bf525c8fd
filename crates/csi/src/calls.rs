//! Calls in progress: one for each object at a time, as CSI allows.
//!
//! A call that takes longer than its caller waits goes on; the same call again is answered with `ABORTED` until it has ended, and then with
//! its result. So no call leaves half a volume, and none is carried out twice at a time.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tonic::{Response, Status};

/// How long a call waits for the daemon by default. Sidecars wait for as long as their `--timeout` says; shorter than that, they learn why.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The calls in progress of one service.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    pending: Pending,
    patience: Duration,
}

impl Calls {
    /// `patience`: how long a call waits before it answers `ABORTED`, and goes on.
    pub(crate) fn new(patience: Duration) -> Self {
        Self { pending: Pending::default(), patience }
    }

    /// Carries out a call to its end, whatever becomes of its caller, and waits a limited time for that.
    ///
    /// # Errors
    /// Those of the call, and `ABORTED` while it, or an earlier one on the same object, is in progress.
    pub(crate) async fn carry_out<T: Send + 'static>(
        &self,
        object: &str,
        call: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let guard = self.pending.start(object)?;
        let task = tokio::spawn(async move {
            let ended = call.await;
            drop(guard);
            ended
        });
        match tokio::time::timeout(self.patience, task).await {
            Ok(Ok(ended)) => ended.map(Response::new),
            Ok(Err(_)) => Err(Status::internal(format!("{object}: the call was aborted"))),
            Err(_) => Err(Status::aborted(format!(
                "{object}: the call is still in progress; `bulkhead job ls` shows its progress"
            ))),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Pending(Arc<Mutex<HashSet<String>>>);

/// Ends a call's claim on its object when it is dropped.
#[derive(Debug)]
struct Guard {
    pending: Pending,
    object: String,
}

impl Pending {
    fn start(&self, object: &str) -> Result<Guard, Status> {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(object.to_owned()) {
            return Ok(Guard { pending: self.clone(), object: object.to_owned() });
        }
        Err(Status::aborted(format!("{object}: an earlier call on it is in progress")))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.pending.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.object);
    }
}
