//! `bulkhead device calibrate`: has the daemon measure a device, and shows how far it is; or has given lines stored.

use std::time::Duration;

use bulkhead_api::client::Client;
use bulkhead_api::wire::{DeviceMeasure, JobResult, JobState};
use bulkhead_core::error::Fault;
use bulkhead_core::isolation::Verified;
use bulkhead_measure::cgroup_run::Cancel;

use crate::args::CalibrateArgs;
use crate::demo;
use crate::output::Output;
use crate::parse::{self, invalid};
use crate::progress::Steps;
use crate::show::{self, Show};
use crate::stream;

/// How often it is asked how far the job is.
const LOOK: Duration = Duration::from_secs(1);

/// Has a device measured, or takes the lines that were given, and has them stored.
///
/// # Errors
/// Wrong arguments, what the measurement failed with, and the daemon's faults; `Cancelled` after a Ctrl-C.
pub(crate) async fn run(args: CalibrateArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    let object = format!("device {}", args.device);
    if let Some(calibration) = args.iocost.calibration() {
        let done = client.device_calibrate(&args.device, &calibration, args.write.dry_run).await?;
        return show::done(output, &object, "calibrated", &done);
    }
    if args.write.dry_run {
        return Err(invalid(object, "a measurement uses the device, which a dry run must not do")
            .hint("omit `--dry-run`, or pass `--model` and `--qos`"));
    }
    let pool = args.pool.as_deref().map(parse::pool_name).transpose()?;
    let cancel = Cancel::new();
    cancel.on_signals().map_err(|error| demo::fault("experiment", error))?;
    let job = client.device_measure(&args.device, &DeviceMeasure { pool, verify: args.verify }).await?.id;
    match follow(client, job, &cancel, output).await? {
        JobResult::Verified(verified) => show::list(output, &verified),
        JobResult::Calibrated(done) if output.is_json() => show::done(output, &object, "calibrated", &done),
        _ => {
            // The figures were shown as they came.
            output.say(&format!("{object}: calibrated"));
            Ok(())
        }
    }
}

/// Shows how far a job is, to its end, which comes soon once it is cancelled.
async fn follow(client: &Client, job: u64, cancel: &Cancel, output: &Output) -> Result<JobResult, Fault> {
    let mut steps = Steps::new("calibrate", "{prefix} {bar:24} {pos}/{len} {elapsed} {msg}", output);
    let (mut shown, mut is_cancelled) = (0, false);
    loop {
        if !is_cancelled && cancel.check().is_err() {
            client.job_cancel(job).await?;
            is_cancelled = true;
        }
        let view = client.job_at_end(job, LOOK).await.map_err(stream::lost)?;
        for figure in view.figures.iter().skip(shown) {
            steps.print(figure);
        }
        shown = view.figures.len();
        match view.state {
            JobState::Waiting | JobState::Running => {
                if let (Some(at), Some(doing)) = (view.steps, &view.step) {
                    steps.step(at.done, at.of, doing);
                }
            }
            JobState::Done | JobState::Failed | JobState::Cancelled => return stream::outcome(view),
        }
    }
}

impl Show for Verified {
    const EMPTY: &'static str = "nothing was measured";
    const HEADERS: &'static [&'static str] = &["beside", "fsync mean", "fsync p99", "neighbour", "isolated"];

    fn row(&self) -> Vec<String> {
        let times = |ratio: f64, limit: f64| format!("{ratio:.1}x alone (<= {limit:.1}x)");
        vec![
            self.neighbour.clone(),
            times(self.mean_ratio, self.mean_ratio_limit),
            times(self.p99_ratio, self.p99_ratio_limit),
            format!("{:.0} % of fair (>= {:.0} %)", self.neighbour_pct, self.neighbour_pct_limit),
            if self.is_met() { "yes" } else { "no" }.to_owned(),
        ]
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        Self::HEADERS.iter().copied().zip(self.row()).collect()
    }
}
