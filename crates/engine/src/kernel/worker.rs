//! Workers of the real host: processes of our own program.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::work::{COMMAND, WorkSpec};
use bulkhead_sys::{packet, worker};

use super::Kernel;
use crate::host::{WORKER_POLL, Worker};

impl Kernel {
    pub(super) fn worker(&self, spec: &WorkSpec) -> Result<Box<dyn Worker>, Fault> {
        let failed = |cause: &dyn std::fmt::Display| {
            Fault::new(Code::Internal, "worker", format!("cannot start a process for this ({cause})"))
        };
        if !self.has_processes {
            return Err(failed(&"this program has no workers"));
        }
        let text = serde_json::to_string(spec).map_err(|error| failed(&error))?;
        let worker = worker::Worker::start(&[COMMAND, &text]).map_err(|error| failed(&error))?;
        packet::set_receive_timeout(worker.control(), WORKER_POLL).map_err(|error| failed(&error))?;
        Ok(Box::new(Process(worker)))
    }
}

/// A worker's process.
struct Process(worker::Worker);

impl Worker for Process {
    fn control(&self) -> BorrowedFd<'_> {
        self.0.control()
    }

    fn terminate(&self) {
        self.0.terminate();
    }

    fn ended(&mut self, limit: Duration) -> Option<String> {
        match self.0.wait(limit) {
            Ok(status) => status.map(|status| status.to_string()),
            Err(error) => Some(format!("its exit status is unknown: {error}")),
        }
    }
}
