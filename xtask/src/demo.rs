//! `cargo xtask demo`: the before/after experiment in a sealed virtual machine, on the model of an SSD. Results are deterministic.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_lab::{DISK_WORD, DiskModel, DiskSpec};

use crate::lab;

/// Printed first, because the next output takes minutes.
const DURATION: &str = "the demo takes about 15 minutes on two cores, and longer the first time: it first builds Bulkhead (5 minutes) and the guest's \
    root (2 minutes)";
const LIMIT: Duration = Duration::from_secs(3600);

/// Boots, runs `bulkhead demo`, and leaves the report in `target/demo`.
///
/// # Errors
/// If the machine does not boot, or the demo fails.
pub(crate) fn run() -> Result<ExitCode> {
    let words = ["demo", "--report", "/lab/out/demo", "--device", DISK_WORD, "--erase", DISK_WORD].map(str::to_owned);
    let disk = DiskSpec::new(DiskModel::Ssd, lab::BENCH_DISK_MIB);
    bulkhead_lab::say::progress(DURATION);
    let (code, artifacts) =
        lab::run_on(disk, lab::Place::Alone, lab::BULKHEAD, &lab::Programs::DEV, words.to_vec(), &[], LIMIT)?;
    let out = artifacts.join("out/demo");
    if out.is_dir() {
        let target = lab::target_dir().join("demo");
        copy(&out, &target)?;
        bulkhead_lab::say::result(format!("report: {}", target.join("report.html").display()));
    }
    Ok(code)
}

/// Replaces a directory with a copy of the files in another one.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.is_dir() {
        std::fs::remove_dir_all(to).with_context(|| format!("cannot remove {}", to.display()))?;
    }
    std::fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", from.display()))?.path();
        if let Some(name) = path.file_name().filter(|_| path.is_file()) {
            std::fs::copy(&path, to.join(name)).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}
