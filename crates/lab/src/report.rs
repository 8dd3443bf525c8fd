//! The report of a run: one line per case, the summary line that CI reads, and the same as JSON.
//!
//! Does not: run anything.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cache::write_atomically;
use crate::case::Outcome;
use crate::clock::Clock;
use crate::lab::Lab;

/// Incremented when the form of the JSON report changes.
const FORMAT_VERSION: u32 = 1;

/// Result of one case on one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It ran to completion.
    Ran(Outcome),
    /// The run was interrupted before or while it ran.
    NotRun,
}

/// One line of the report.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Name of the case.
    pub case: String,
    /// Name of the kernel.
    pub kernel: String,
    /// Clock of the guest.
    pub clock: Clock,
    /// Its result.
    pub verdict: Verdict,
    /// Duration on the host's clock, including the boot if a machine was booted for it.
    pub time: Duration,
}

/// All results of a run, in order of completion.
#[derive(Debug, Default)]
pub struct Report {
    /// One per case and kernel.
    pub entries: Vec<Entry>,
}

#[derive(Serialize)]
struct JsonReport<'a> {
    format_version: u32,
    kvm: bool,
    kernels: Vec<JsonKernel<'a>>,
    cases: Vec<JsonEntry<'a>>,
    packages: Vec<&'a str>,
}

#[derive(Serialize)]
struct JsonKernel<'a> {
    name: &'a str,
    version: &'a str,
    sha256: &'a str,
}

#[derive(Serialize)]
struct JsonEntry<'a> {
    case: &'a str,
    kernel: &'a str,
    clock: Clock,
    result: &'a str,
    reason: &'a str,
    seconds: f64,
}

impl Verdict {
    fn word(&self) -> &'static str {
        match self {
            Self::Ran(Outcome::Passed) => "passed",
            Self::Ran(Outcome::Failed(_)) => "failed",
            Self::Ran(Outcome::Skipped(_)) => "skipped",
            Self::NotRun => "not run",
        }
    }

    fn reason(&self) -> &str {
        match self {
            Self::Ran(Outcome::Failed(why) | Outcome::Skipped(why)) => why,
            Self::Ran(Outcome::Passed) | Self::NotRun => "",
        }
    }
}

impl Entry {
    /// The line for people; a reason follows indented.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { case, kernel, clock, verdict, time } = self;
        let mut line = format!("{:<8} {case} [{kernel}, {clock}] {:.1} s", verdict.word(), time.as_secs_f64());
        for reason in verdict.reason().lines() {
            line.push_str("\n         ");
            line.push_str(reason);
        }
        line
    }
}

impl Report {
    /// `N passed, N failed, N skipped`: exactly this form, CI reads it.
    #[must_use]
    pub fn summary(&self) -> String {
        let count = |word| self.count(word);
        format!("{} passed, {} failed, {} skipped", count("passed"), count("failed"), count("skipped"))
    }

    /// The lines of failed cases, to be repeated at the end, where readers look for them.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let failed = |entry: &&Entry| matches!(entry.verdict, Verdict::Ran(Outcome::Failed(_)));
        self.entries.iter().filter(failed).map(Entry::line).collect()
    }

    /// The lines of the `n` slowest cases, the slowest first.
    #[must_use]
    pub fn slowest(&self, n: usize) -> Vec<String> {
        let mut entries: Vec<&Entry> = self.entries.iter().collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.time));
        entries.iter().take(n).map(|entry| format!("{:7.1} s {}", entry.time.as_secs_f64(), entry.case)).collect()
    }

    /// Number of cases that an interrupt kept from running.
    #[must_use]
    pub fn not_run(&self) -> usize {
        self.count(Verdict::NotRun.word())
    }

    fn count(&self, word: &str) -> usize {
        self.entries.iter().filter(|entry| entry.verdict.word() == word).count()
    }

    /// Whether everything ran and nothing failed.
    #[must_use]
    pub fn good(&self) -> bool {
        self.entries.iter().all(|entry| !matches!(entry.verdict, Verdict::Ran(Outcome::Failed(_)) | Verdict::NotRun))
    }

    /// Writes the report, with the versions of kernels and packages.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_json(&self, path: &Path, lab: &Lab) -> Result<()> {
        let packages = lab.root().packages()?;
        let kernels = lab.used_kernels()?;
        let report = JsonReport {
            format_version: FORMAT_VERSION,
            kvm: lab.kvm(),
            kernels: kernels
                .iter()
                .map(|(kernel, image)| JsonKernel {
                    name: kernel.name(),
                    version: &image.version,
                    sha256: &image.sha256,
                })
                .collect(),
            cases: self.entries.iter().map(json_entry).collect(),
            packages: packages.lines().collect(),
        };
        write_atomically(path, &serde_json::to_string_pretty(&report).context("cannot encode the report")?)
    }
}

fn json_entry(entry: &Entry) -> JsonEntry<'_> {
    JsonEntry {
        case: &entry.case,
        kernel: &entry.kernel,
        clock: entry.clock,
        result: entry.verdict.word(),
        reason: entry.verdict.reason(),
        seconds: entry.time.as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(verdict: Verdict) -> Entry {
        Entry {
            case: "x".into(),
            kernel: "6.12".into(),
            clock: Clock::Virtual,
            verdict,
            time: Duration::from_millis(1500),
        }
    }

    #[test]
    fn summary_has_the_form_that_ci_reads() {
        let mut report = Report {
            entries: vec![
                entry(Verdict::Ran(Outcome::Passed)),
                entry(Verdict::Ran(Outcome::Passed)),
                entry(Verdict::Ran(Outcome::Skipped("no ublk".into()))),
            ],
        };
        assert_eq!(report.summary(), "2 passed, 0 failed, 1 skipped");
        assert!(report.good());
        report.entries.push(entry(Verdict::NotRun));
        assert_eq!(report.summary(), "2 passed, 0 failed, 1 skipped");
        assert_eq!(report.not_run(), 1);
        assert!(!report.good());
    }

    #[test]
    fn line_shows_the_reason() {
        let failed = entry(Verdict::Ran(Outcome::Failed("left behind:\nloop0".into())));
        let line = "failed   x [6.12, virtual] 1.5 s\n         left behind:\n         loop0";
        assert_eq!(failed.line(), line);
        let slow = Entry { case: "y".into(), time: Duration::from_secs(60), ..entry(Verdict::NotRun) };
        let report = Report { entries: vec![failed.clone(), slow] };
        assert_eq!(report.slowest(1), ["   60.0 s y"]);
        assert_eq!(Report { entries: vec![entry(Verdict::Ran(Outcome::Passed)), failed] }.failures(), [line]);
    }
}
