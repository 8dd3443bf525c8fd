//! The terms of a request that becomes a job.

use std::time::Duration;

use uuid::Uuid;

/// How long an operation waits unless it is told otherwise.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(60);

/// How an operation is to be carried out.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Only say what would be done.
    pub dry_run: bool,
    /// How long it may wait for other operations on the same objects, and for a tenant's data to be written, before it has changed
    /// anything.
    pub wait: Duration,
    /// By which its job is found.
    pub request: Option<Uuid>,
}

impl Default for Terms {
    fn default() -> Self {
        Self { dry_run: false, wait: DEFAULT_WAIT, request: None }
    }
}
