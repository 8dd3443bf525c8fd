//! `bulkhead doctor --fix` and `--undo`: makes the changes that fix findings, and takes them back.
//!
//! Owns: the order (each change is recorded before it is made, and each fix verified after it), and the record on disk. Does not: choose
//! changes (`bulkhead_advise::plan`) or make them (`bulkhead_sys::fix`).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bulkhead_advise::{Fix, Step};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::facts::Facts;
use bulkhead_core::finding::Finding;
use bulkhead_core::fix::Change;
use bulkhead_core::units::Bytes;
use bulkhead_sys::file::{self, FileError};
use bulkhead_sys::fix::{self, FixError};
use bulkhead_sys::roots::Roots;
use serde::{Deserialize, Serialize};

use super::{exit_code, read_host};
use crate::output::Output;

/// The changes that can be taken back.
const RECORD: &str = "/var/lib/bulkhead/doctor-fixes.json";
/// Largest record: thousands of changes.
const MAX_RECORD: Bytes = Bytes(1 << 20);
/// The version of its form.
const FORMAT: u32 = 1;
/// How often a finding is planned again because the host has changed meanwhile.
const MAX_ATTEMPTS: u32 = 3;

/// A change that has been made, or was about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Made {
    /// The boot in which it was made (`/proc/sys/kernel/random/boot_id`).
    boot: String,
    /// What it fixed, as a line.
    finding: String,
    /// The change.
    change: Change,
}

/// The record.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    format: u32,
    made: Vec<Made>,
}

impl Default for Record {
    fn default() -> Self {
        Self { format: FORMAT, made: Vec::new() }
    }
}

impl Record {
    fn load(path: &Path) -> Result<Self, Fault> {
        let object = || format!("record {}", path.display());
        let text = match file::read_limited(path, MAX_RECORD) {
            Err(error) if error.is_not_found() => return Ok(Self::default()),
            text => text.map_err(|error| Fault::new(Code::Internal, object(), error))?,
        };
        let record: Self = serde_json::from_slice(&text).map_err(|error| Fault::new(Code::Corrupt, object(), error))?;
        if record.format != FORMAT {
            let cause = format!("its format is {}, and this version reads {FORMAT}", record.format);
            return Err(Fault::new(Code::Corrupt, object(), cause).hint("use a newer version of bulkhead"));
        }
        Ok(record)
    }

    fn save(&self, path: &Path) -> Result<(), Fault> {
        let failed = |error: FileError| Fault::new(Code::Internal, format!("record {}", path.display()), error);
        if self.made.is_empty() {
            return file::remove_durable(path).map(drop).map_err(failed);
        }
        let text = serde_json::to_vec_pretty(self).map_err(|error| Fault::new(Code::Internal, "record", error))?;
        file::write_atomic(path, &text).map_err(failed)
    }
}

/// A host whose settings can be changed.
trait Host {
    fn facts(&mut self) -> Facts;
    fn apply(&mut self, change: &Change) -> Result<bool, FixError>;
    fn boot(&self) -> String;
}

/// This host.
struct ThisHost(Roots);

impl Host for ThisHost {
    fn facts(&mut self) -> Facts {
        read_host()
    }

    fn apply(&mut self, change: &Change) -> Result<bool, FixError> {
        fix::apply(&self.0, change)
    }

    fn boot(&self) -> String {
        fs::read_to_string(self.0.proc.join("sys/kernel/random/boot_id")).unwrap_or_default().trim().to_owned()
    }
}

/// Makes changes on a host, and records them.
struct Fixer<'a, H> {
    host: &'a mut H,
    record: Record,
    path: &'a Path,
}

impl<H: Host> Fixer<'_, H> {
    /// Fixes what changes can fix. If one cannot be made, or does not help, all are taken back.
    fn fix(&mut self) -> Result<Vec<Step>, Fault> {
        let before = self.record.made.len();
        let mut fixed = Vec::new();
        self.fix_all(&mut fixed).map_err(|fault| {
            let left = self.take_back(before);
            let outcome = match &left[..] {
                [] => "all changes were taken back".to_owned(),
                left => format!("these changes could not be taken back: {}", left.join("; ")),
            };
            Fault { cause: format!("{}; {outcome}", fault.cause), ..fault }
        })?;
        Ok(fixed)
    }

    fn fix_all(&mut self, fixed: &mut Vec<Step>) -> Result<(), Fault> {
        let key = |finding: &Finding| (finding.id.clone(), finding.object.clone());
        let mut attempts = BTreeMap::new();
        loop {
            // Planned again each time: the host may have changed, and a fix can end or cause other findings.
            let facts = self.host.facts();
            let findings = bulkhead_advise::judge(&facts);
            if let Some(step) = fixed.iter().find(|step| findings.iter().any(|found| key(found) == key(&step.finding)))
            {
                let cause = format!("it is still found after its fix: {}", step.finding);
                return Err(Fault::new(Code::Internal, step.finding.object.clone(), cause));
            }
            let plan = bulkhead_advise::plan(&facts, &findings);
            let Some(step) = plan.into_iter().find(|step| attempts.get(&key(&step.finding)) < Some(&MAX_ATTEMPTS))
            else {
                return Ok(());
            };
            *attempts.entry(key(&step.finding)).or_insert(0) += 1;
            if self.make(&step)? {
                fixed.push(step);
            }
        }
    }

    /// Makes the changes of a step; `false` if the host is not as it was when they were planned.
    fn make(&mut self, step: &Step) -> Result<bool, Fault> {
        for change in &step.changes {
            let (boot, finding) = (self.host.boot(), step.finding.to_string());
            self.record.made.push(Made { boot, finding, change: change.clone() });
            self.record.save(self.path)?;
            match self.host.apply(change) {
                Ok(_) => (),
                Err(FixError::Gone | FixError::Changed { .. }) => {
                    self.record.made.pop();
                    self.record.save(self.path)?;
                    return Ok(false);
                }
                Err(error) => {
                    let cause = format!("{change} failed: {error}");
                    return Err(Fault::new(Code::Internal, step.finding.object.clone(), cause));
                }
            }
        }
        Ok(true)
    }

    /// Takes all changes back but the first `kept`, last one first. Those that somebody else has changed meanwhile, and those that a
    /// reboot has taken back, are forgotten. Returns those that failed, which stay recorded.
    fn take_back(&mut self, kept: usize) -> Vec<String> {
        let mut failed = Vec::new();
        let made = self.record.made.split_off(kept);
        let boot = self.host.boot();
        for made in made.into_iter().rev() {
            if made.boot != boot && !made.change.setting.survives_reboot() {
                continue;
            }
            match self.host.apply(&made.change.reversed()) {
                Ok(_) | Err(FixError::Gone | FixError::Changed { .. }) => (),
                Err(error) => {
                    failed.push(format!("{}: {error}", made.change));
                    self.record.made.insert(kept, made);
                }
            }
        }
        if let Err(fault) = self.record.save(self.path) {
            failed.push(fault.to_string());
        }
        failed
    }
}

/// What a run of `--fix` has done, as JSON.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    /// What was fixed, or would be (`--dry-run`).
    fixed: Vec<Fixed<'a>>,
    /// The other findings.
    left: &'a [Finding],
}

#[derive(Debug, Serialize)]
struct Fixed<'a> {
    finding: &'a Finding,
    changes: &'a [Change],
}

/// Fixes what changes can fix, or shows them.
pub(super) fn run(dry_run: bool, output: &Output) -> Result<ExitCode, Fault> {
    let (fixed, left) = if dry_run {
        let facts = read_host();
        let findings = bulkhead_advise::judge(&facts);
        let plan = bulkhead_advise::plan(&facts, &findings);
        let is_planned = |finding: &Finding| plan.iter().any(|step| step.finding == *finding);
        let left = findings.into_iter().filter(|finding| !is_planned(finding)).collect();
        (plan, left)
    } else {
        let path = PathBuf::from(RECORD);
        let _lock = lock(&path)?;
        let mut host = ThisHost(Roots::host());
        let fixed = Fixer { record: Record::load(&path)?, host: &mut host, path: &path }.fix()?;
        (fixed, bulkhead_advise::judge(&host.facts()))
    };
    if output.is_json() {
        let fixed = fixed.iter().map(|Step { finding, changes }| Fixed { finding, changes }).collect();
        output.json(&Outcome { fixed, left: &left })?;
    } else {
        output.lines(&lines(&fixed, &left, dry_run))?;
    }
    Ok(exit_code(&left))
}

fn lines(fixed: &[Step], left: &[Finding], dry_run: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if fixed.is_empty() {
        lines.push("there is nothing that a change of settings can fix".to_owned());
    } else {
        lines.push(if dry_run { "to be fixed:" } else { "fixed:" }.to_owned());
    }
    for step in fixed {
        lines.push(format!("  - {}", step.finding));
        lines.extend(step.changes.iter().map(|change| format!("    {change}")));
    }
    if !left.is_empty() {
        lines.push("left:".to_owned());
    }
    for finding in left {
        lines.push(format!("  - {finding}"));
        let reason = match bulkhead_advise::rule(finding.id.word()).map(|rule| rule.fix) {
            Some(Fix::None(reason)) => reason,
            _ => "it has no change of settings for this host; see the hint of `bulkhead doctor`",
        };
        lines.push(format!("    not fixed: {reason}"));
    }
    let is_lasting = |step: &Step| step.changes.iter().all(|change| change.setting.survives_reboot());
    if !fixed.is_empty() && !dry_run {
        lines.push("`bulkhead doctor --undo` takes the changes back".to_owned());
    }
    if !fixed.iter().all(is_lasting) {
        lines.push("they last until the next reboot or mount; `bulkhead doctor` says for each finding how to make it permanent".to_owned());
    }
    lines
}

/// Takes all recorded changes back.
pub(super) fn undo(output: &Output) -> Result<ExitCode, Fault> {
    let path = PathBuf::from(RECORD);
    let _lock = lock(&path)?;
    let mut host = ThisHost(Roots::host());
    let record = Record::load(&path)?;
    let changes: Vec<Change> = record.made.iter().rev().map(|made| made.change.reversed()).collect();
    let failed = Fixer { host: &mut host, record, path: &path }.take_back(0);
    if !failed.is_empty() {
        let cause = format!("these changes could not be taken back: {}", failed.join("; "));
        return Err(Fault::new(Code::Internal, "host", cause));
    }
    if output.is_json() {
        output.json(&changes)?;
    } else if changes.is_empty() {
        output.lines(&["there are no changes to take back".to_owned()])?;
    } else {
        let lines = changes.iter().map(|change| format!("  - {change}"));
        output.lines(
            &std::iter::once("taken back, unless they have been changed since:".to_owned())
                .chain(lines)
                .collect::<Vec<_>>(),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Excludes other runs.
fn lock(record: &Path) -> Result<file::LockFile, Fault> {
    let object = "host";
    if !rustix::process::geteuid().is_root() {
        return Err(Fault::new(Code::PermissionDenied, object, "only root can change its settings").hint("use sudo"));
    }
    let directory = record.parent().unwrap_or(record);
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Fault::new(Code::of_io(error.kind()), format!("directory {}", directory.display()), error));
        }
        _ => (),
    }
    file::lock_exclusive(&record.with_extension("lock")).map_err(|error| match error {
        FileError::AlreadyLocked { .. } => {
            Fault::new(Code::InUse, object, error).hint("wait until the other command has ended")
        }
        _ => Fault::new(Code::Internal, object, error),
    })
}

#[cfg(test)]
mod tests;
