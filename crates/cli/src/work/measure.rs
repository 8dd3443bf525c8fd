//! Measures a device, on scratch volumes that the daemon creates.

use bulkhead_api::client::Client;
use bulkhead_core::error::Fault;
use bulkhead_core::work::{JobSteps, MeasureTask, Outcome, Report};
use bulkhead_measure::calibrate::{self, Event, Request};
use bulkhead_measure::cgroup_run::Cancel;

use super::Daemon;
use crate::demo;

/// Runs on the only thread of this process: it waits for load generators, which end with it, and sends requests to the daemon in between.
pub(super) fn run(task: MeasureTask, daemon: &Daemon) -> Result<Outcome, Fault> {
    let MeasureTask { device, pool, verify, socket } = task;
    let object = format!("device {device}");
    let request = Request { device, pool, program: "/proc/self/exe".into(), cancel: Cancel::new() };
    let fault = |error| demo::fault(&object, error);
    request.cancel.on_signals().map_err(fault)?;
    daemon.say(&Report::Ready)?;
    // If the daemon no longer reads reports, it has ended this process.
    let mut on_step = |event: Event<'_>| {
        drop(daemon.say(&match event {
            Event::Step(done, of, doing) => {
                Report::Step(JobSteps { done: done as u64, of: of as u64 }, doing.to_owned())
            }
            Event::Figure(figure) => Report::Figure(figure.to_owned()),
        }));
    };
    let client = Client::new(socket);
    match verify {
        None => calibrate::run(client, &request, &mut on_step).map(Outcome::Calibrated),
        Some(calibration) => calibrate::verify(client, &request, &calibration, &mut on_step).map(Outcome::Verified),
    }
    .map_err(fault)
}
