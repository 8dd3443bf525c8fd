//! The objects with a call in progress: one call for each at a time, as CSI allows.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use tonic::Status;

#[derive(Clone, Debug, Default)]
pub(super) struct Pending(Arc<Mutex<HashSet<String>>>);

/// Ends a call's claim on its object when it is dropped.
#[derive(Debug)]
pub(super) struct Guard {
    pending: Pending,
    object: String,
}

impl Pending {
    /// Claims an object for a call.
    ///
    /// # Errors
    /// `ABORTED` while another call is in progress on it.
    pub(super) fn start(&self, object: &str) -> Result<Guard, Status> {
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
