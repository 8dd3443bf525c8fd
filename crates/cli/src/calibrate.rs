//! `bulkhead device calibrate`: the daemon measures a device while this shows its progress, or stores the given lines.

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

/// Interval between polls of the job.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Measures a device, or stores the given lines.
///
/// # Errors
/// Invalid arguments, and errors of the measurement and of the daemon; `Cancelled` after Ctrl-C.
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
            // The measurements were shown as they arrived.
            output.say(&format!("{object}: calibrated"));
            Ok(())
        }
    }
}

/// Shows the progress of a job until it ends. A cancelled job ends soon.
async fn follow(client: &Client, job: u64, cancel: &Cancel, output: &Output) -> Result<JobResult, Fault> {
    let mut steps = Steps::new("calibrate", "{prefix} {bar:24} {pos}/{len} {elapsed} {msg}", output);
    let (mut shown, mut is_cancelled) = (0, false);
    loop {
        if !is_cancelled && cancel.check().is_err() {
            client.job_cancel(job).await?;
            is_cancelled = true;
        }
        let view = client.job_at_end(job, POLL_INTERVAL).await.map_err(stream::lost)?;
        for figure in view.figures.iter().skip(shown) {
            steps.print(figure);
        }
        shown = view.figures.len();
        match view.state {
            JobState::Waiting | JobState::Running => {
                if let (Some(count), Some(step)) = (view.steps, &view.step) {
                    steps.step(count.done, count.of, step);
                }
            }
            JobState::Done | JobState::Failed | JobState::Cancelled => return stream::outcome(view),
        }
    }
}

impl Show for Verified {
    const EMPTY: &'static str = "nothing was measured";
    const HEADERS: &'static [&'static str] = &["neighbour", "fsync mean", "fsync p99", "its throughput", "isolated"];

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
