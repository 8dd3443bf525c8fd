//! Progress of long operations: a bar on a terminal, a line for each step elsewhere.

use std::time::Duration;

use bulkhead_core::units::Bytes;
use bulkhead_core::work::JobProgress;
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Output;

/// A bar that counts bytes, up to a maximum if one is known; shown on a terminal only.
pub(crate) fn bytes(label: &str, at_most: Option<Bytes>, output: &Output) -> ProgressBar {
    let bar =
        if output.is_json() { ProgressBar::hidden() } else { ProgressBar::new(at_most.map_or(0, |bytes| bytes.0)) };
    set_style(&bar, at_most.is_some());
    bar.set_prefix(label.to_owned());
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Shows a job's progress.
pub(crate) fn update(bar: &ProgressBar, progress: JobProgress) {
    if let Some(of) = progress.of_bytes
        && bar.length() != Some(of.0)
    {
        bar.set_length(of.0);
        set_style(bar, true);
    }
    bar.set_position(progress.done_bytes.0);
}

fn set_style(bar: &ProgressBar, has_end: bool) {
    let style = match has_end {
        true => "{prefix} {bar:30} {bytes} of at most {total_bytes}, {bytes_per_sec}",
        false => "{prefix} {spinner} {bytes}, {bytes_per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
}

/// Progress in steps. The bar is removed when this is dropped.
pub(crate) struct Steps<'a> {
    name: String,
    output: &'a Output,
    bar: ProgressBar,
    shown: String,
}

impl<'a> Steps<'a> {
    /// A bar with this `indicatif` template, or lines that begin with `name`; neither is shown with JSON.
    pub(crate) fn new(name: &str, template: &str, output: &'a Output) -> Self {
        let bar = if output.is_json() { ProgressBar::hidden() } else { ProgressBar::new(1) };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(name.to_owned());
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { name: name.to_owned(), output, bar, shown: String::new() }
    }

    /// Shows the current step.
    pub(crate) fn step(&mut self, done: u64, of: u64, step: &str) {
        self.bar.set_length(of);
        self.bar.set_position(done);
        self.bar.set_message(step.to_owned());
        // Without a terminal there is no bar, and a line for each step shows the progress.
        if self.bar.is_hidden() && self.shown != step {
            self.output.say(&format!("{}: {done}/{of} {step}", self.name));
            step.clone_into(&mut self.shown);
        }
    }

    /// Prints a line above the bar.
    pub(crate) fn print(&self, line: &str) {
        self.bar.suspend(|| self.output.say(line));
    }
}

impl Drop for Steps<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
