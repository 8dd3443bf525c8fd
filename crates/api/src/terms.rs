//! The terms of a request that becomes a job.

use std::time::Duration;

use uuid::Uuid;

/// How long an operation waits for others by default.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(60);

/// How to carry out an operation.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Return the steps without carrying them out.
    pub dry_run: bool,
    /// How long to wait for other operations on the same objects, and for a tenant's data to be written, before anything is changed.
    pub wait: Duration,
    /// The client's ID of the request, by which it finds the job.
    pub request: Option<Uuid>,
}

impl Default for Terms {
    fn default() -> Self {
        Self { dry_run: false, wait: DEFAULT_WAIT, request: None }
    }
}
