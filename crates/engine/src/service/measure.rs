//! Measurements of devices, as jobs with workers.

use std::path::PathBuf;
use std::time::Duration;

use bulkhead_api::wire::{DeviceMeasure, JobResult, JobView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::name::Name;
use bulkhead_core::reason::Reason;
use bulkhead_core::work::{MeasureTask, Outcome, Task};

use super::devices::device;
use super::{Service, Terms};
use crate::engine::Engine;
use crate::locks::Claim;
use crate::work::WorkerJob;

/// How long a worker may need to end its loads, and to remove its volumes and tenants.
const EXIT_LIMIT: Duration = Duration::from_secs(150);

impl Service {
    /// Starts measuring a device. The result is recorded.
    ///
    /// # Errors
    /// `NotFound` for a missing device, or a missing calibration to verify; `InUse` while another job has the device.
    pub(crate) async fn device_measure(
        &self,
        name: String,
        request: DeviceMeasure,
        terms: Terms,
    ) -> Result<JobView, Fault> {
        let worker_job = Measuring { name, request, socket: self.0.socket.clone() };
        let begun = self.start_worker_job(worker_job, terms).await?;
        self.job_inspect(begun.job)
    }
}

struct Measuring {
    name: String,
    request: DeviceMeasure,
    socket: PathBuf,
}

impl WorkerJob for Measuring {
    fn operation(&self) -> String {
        let word = if self.request.verify { "verify the calibration of" } else { "calibrate" };
        format!("{word} device {}", self.name)
    }

    fn claim(&self) -> Claim {
        device(&self.name)
    }

    fn prepare(&self, engine: &Engine) -> Result<(Task, Option<Name>), Fault> {
        let view = engine.device_inspect(&self.name)?;
        let missing = || {
            let cause = "it was never calibrated: there is nothing to verify";
            Fault::new(Code::NotFound, format!("device {}", self.name), cause)
                .reason(Reason::Uncalibrated { device: view.name.clone() })
        };
        let verify = if self.request.verify { Some(view.calibration.clone().ok_or_else(missing)?) } else { None };
        let (pool, socket) = (self.request.pool.clone(), self.socket.clone());
        Ok((Task::Measure(MeasureTask { device: view.name, pool, verify, socket }), None))
    }

    fn has_stream(&self) -> bool {
        false
    }

    fn exit_limit(&self) -> Duration {
        EXIT_LIMIT
    }

    fn last_step(&self) -> Option<String> {
        Some(format!("record the measurements of device {}", self.name))
    }

    fn finish(&self, engine: &Engine, outcome: Outcome) -> Result<JobResult, Fault> {
        match outcome {
            Outcome::Calibrated(calibration) => {
                engine.device_calibrated(&self.name, calibration, false).map(Box::new).map(JobResult::Calibrated)
            }
            Outcome::Verified(verified) => Ok(JobResult::Verified(verified)),
            other => {
                let cause = format!("a worker reported an unexpected outcome ({other:?})");
                Err(Fault::new(Code::Internal, format!("device {}", self.name), cause))
            }
        }
    }
}
