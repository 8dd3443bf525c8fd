//! A low limit of dirty pages while the matrix is measured, so that writeback takes part in windows of seconds: with the kernel's default, a
//! server fills memory for longer than that.
//!
//! Owns the two limits: they are recorded before they are changed, and restored on drop, or by the next run if this one is killed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::cleanup::{RUN_DIR, load_record, remove_record, store_record};

/// Where writers are throttled, and where writeback begins, bytes.
const LIMITS: [(&str, &str, u64); 2] =
    [("dirty_bytes", "dirty_ratio", 64 << 20), ("dirty_background_bytes", "dirty_background_ratio", 16 << 20)];

/// A limit as it was: in bytes, or if these are 0, in percent of memory.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    file: String,
    value: String,
}

/// The low limits.
#[derive(Debug)]
pub(super) struct LowLimits {
    vm: PathBuf,
    record: PathBuf,
    is_restored: bool,
}

fn record_path() -> PathBuf {
    Path::new(RUN_DIR).join("nest-dirty.json")
}

/// What is set, for the result.
pub(super) fn describe() -> String {
    LIMITS.map(|(bytes, _, limit)| format!("vm.{bytes} = {limit}")).join("; ")
}

impl LowLimits {
    /// Restores what a killed run has left, and sets the limits.
    ///
    /// # Errors
    /// If they cannot be recorded, read or written.
    pub(super) fn set(proc: &Path) -> Result<Self> {
        Self::set_at(&proc.join("sys/vm"), record_path())
    }

    fn set_at(vm: &Path, record: PathBuf) -> Result<Self> {
        restore(vm, &record)?;
        let mut saved = Vec::new();
        for (bytes, ratio, _) in LIMITS {
            let value = read(vm, bytes)?;
            let file = if value == "0" { ratio } else { bytes };
            saved.push(Saved { file: file.to_owned(), value: read(vm, file)? });
        }
        store_record(&record, &saved)?;
        let limits = Self { vm: vm.to_owned(), record, is_restored: false };
        for (bytes, _, limit) in LIMITS {
            write(vm, bytes, &limit.to_string())?;
        }
        Ok(limits)
    }

    /// Restores the limits.
    ///
    /// # Errors
    /// If the kernel refuses; the next run tries again.
    pub(super) fn restore(mut self) -> Result<()> {
        self.is_restored = true;
        restore(&self.vm, &self.record)
    }
}

impl Drop for LowLimits {
    fn drop(&mut self) {
        if !self.is_restored
            && let Err(error) = restore(&self.vm, &self.record)
        {
            tracing::error!(
                error = format!("{error:#}"),
                "the limits of dirty pages were not restored; the next run tries again"
            );
        }
    }
}

fn restore(vm: &Path, record: &Path) -> Result<()> {
    let Some(saved) = load_record::<Vec<Saved>>(record)? else { return Ok(()) };
    for Saved { file, value } in
        saved.iter().filter(|saved| LIMITS.iter().any(|(bytes, ratio, _)| saved.file == *bytes || saved.file == *ratio))
    {
        write(vm, file, value)?;
    }
    remove_record(record)
}

fn read(vm: &Path, file: &str) -> Result<String> {
    let text = fs::read_to_string(vm.join(file)).with_context(|| format!("cannot read vm.{file}"))?;
    Ok(text.trim().to_owned())
}

fn write(vm: &Path, file: &str, value: &str) -> Result<()> {
    fs::write(vm.join(file), value).with_context(|| format!("cannot set vm.{file} to {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_return_as_they_were_also_after_a_killed_run() {
        let dir = tempfile::tempdir().unwrap();
        let vm = dir.path();
        for (file, value) in [
            ("dirty_bytes", "0\n"),
            ("dirty_ratio", "20\n"),
            ("dirty_background_bytes", "4096\n"),
            ("dirty_background_ratio", "0\n"),
        ] {
            fs::write(vm.join(file), value).unwrap();
        }
        let record = vm.join("record.json");
        let now = || ["dirty_bytes", "dirty_ratio", "dirty_background_bytes"].map(|file| read(vm, file).unwrap());
        let killed = LowLimits::set_at(vm, record.clone()).unwrap();
        assert_eq!(now()[0], (64 << 20).to_string());
        std::mem::forget(killed);
        // The kernel sets one of each pair to 0 when the other is set.
        fs::write(vm.join("dirty_ratio"), "0").unwrap();
        restore(vm, &record).unwrap();
        fs::write(vm.join("dirty_bytes"), "0").unwrap();
        assert_eq!(now(), ["0", "20", "4096"]);
        let next = LowLimits::set_at(vm, record.clone()).unwrap();
        fs::write(vm.join("dirty_ratio"), "0").unwrap();
        next.restore().unwrap();
        assert_eq!((&now()[1], &now()[2], record.exists()), (&"20".to_owned(), &"4096".to_owned(), false));
    }
}
