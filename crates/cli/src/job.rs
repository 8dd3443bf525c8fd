//! `bulkhead job`, and progress messages of requests that take long.

use std::sync::Mutex;

use bulkhead_api::client::{Client, JobListener};
use bulkhead_api::wire::JobView;
use bulkhead_core::error::Fault;
use bulkhead_core::work::JobProgress;
use indicatif::ProgressBar;

use crate::args::JobCommand;
use crate::output::Output;
use crate::show::{self, Show};

/// Requests that take less than this have no progress message, seconds.
const QUIET_SECONDS: f64 = 3.0;

/// Interval between repeated messages without a terminal, seconds.
const REPEAT_SECONDS: f64 = 10.0;

/// Lists, shows and cancels jobs.
///
/// # Errors
/// The daemon's faults.
pub(crate) async fn run(command: &JobCommand, client: &Client, output: &Output) -> Result<(), Fault> {
    match command {
        JobCommand::Ls => show::list(output, &client.job_list().await?),
        JobCommand::Inspect { job } => show::inspect(output, &client.job_inspect(*job).await?),
        JobCommand::Cancel { job } => show::inspect(output, &client.job_cancel(*job).await?),
    }
}

/// Shows what a request is waiting for: as one line that is rewritten on a terminal, and as occasional lines elsewhere.
#[derive(Debug)]
pub(crate) struct Waiting {
    output: Output,
    bar: ProgressBar,
    /// The last message, and the age of the job at that time.
    last: Mutex<(String, f64)>,
}

impl Waiting {
    pub(crate) fn new(output: &Output) -> Self {
        Self { output: *output, bar: ProgressBar::new_spinner(), last: Mutex::default() }
    }
}

impl JobListener for Waiting {
    fn on_progress(&self, job: &JobView) {
        if self.output.is_json() || job.seconds < QUIET_SECONDS {
            return;
        }
        let text = message(job);
        if !self.bar.is_hidden() {
            self.bar.set_message(format!("{text} ({:.0} s)", job.seconds));
            self.bar.tick();
            return;
        }
        let Ok(mut last) = self.last.lock() else { return };
        if last.0 != text || job.seconds - last.1 >= REPEAT_SECONDS {
            self.output.say(&format!("{text} ({:.0} s)", job.seconds));
            *last = (text, job.seconds);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The job's current step, or the jobs that it waits for.
fn message(job: &JobView) -> String {
    let others: Vec<String> = job.waits_for.iter().map(ToString::to_string).collect();
    match (&others[..], &job.step) {
        ([], Some(step)) => format!("job {}: {step}", job.id),
        ([], None) => format!("job {}: {}", job.id, job.operation),
        (_, _) => format!("job {}: waiting for job {}, which works on the same object", job.id, others.join(", ")),
    }
}

impl Show for JobView {
    const EMPTY: &'static str = "no jobs";
    const HEADERS: &'static [&'static str] = &["job", "state", "for", "operation", "step"];

    fn row(&self) -> Vec<String> {
        let step = match (&self.fault, &self.waits_for[..], self.progress) {
            (Some(fault), ..) => fault.to_string(),
            (None, [], Some(progress)) => moved(progress),
            (None, [], None) => self.step.clone().unwrap_or_else(|| "-".to_owned()),
            (None, others, _) => {
                format!("waits for job {}", others.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
            }
        };
        vec![self.id.to_string(), self.state.to_string(), seconds(self.seconds), self.operation.clone(), step]
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        let waits_for: Vec<String> = self.waits_for.iter().map(ToString::to_string).collect();
        let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        vec![
            ("job", self.id.to_string()),
            ("operation", self.operation.clone()),
            ("state", self.state.to_string()),
            ("changes", or_dash(self.objects.join(", "))),
            ("waits for job", or_dash(waits_for.join(", "))),
            (
                "step",
                self.step
                    .clone()
                    .map_or_else(|| "-".to_owned(), |step| format!("{step}, for {}", seconds(self.step_seconds))),
            ),
            ("transferred", self.progress.map_or_else(|| "-".to_owned(), moved)),
            ("elapsed", seconds(self.seconds)),
            ("ended", self.ended_seconds_ago.map_or_else(|| "-".to_owned(), |ago| format!("{} ago", seconds(ago)))),
            ("error", self.fault.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)),
        ]
    }
}

fn moved(progress: JobProgress) -> String {
    match progress.of_bytes {
        Some(of) => format!("{} of at most {of}", progress.done_bytes),
        None => progress.done_bytes.to_string(),
    }
}

fn seconds(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}
