//! `cargo xtask demo`: the before/after experiment in a virtual machine on a simulated spinning disk.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_lab::{Clock, DISK_WORD, DiskModel, DiskSpec};

use crate::lab;

const LIMIT: Duration = Duration::from_secs(1500);

/// Boots, runs `bulkhead demo`, and leaves the report in `target/demo`.
///
/// # Errors
/// When the machine does not boot, or the demo fails.
pub(crate) fn run() -> Result<ExitCode> {
    let words = ["demo", "--report", "/lab/out/demo", "--device", DISK_WORD, "--erase", DISK_WORD].map(str::to_owned);
    let disk = DiskSpec::new(DiskModel::Hdd, lab::BENCH_DISK_MIB);
    // Until io.cost is calibrated on the disks of virtual time.
    let (code, artifacts) = lab::bulkhead_on(disk, Clock::Wall, &lab::Programs::DEV, words.to_vec(), &[], LIMIT)?;
    let out = artifacts.join("out/demo");
    if out.is_dir() {
        let target = lab::target_dir().join("demo");
        copy(&out, &target)?;
        bulkhead_lab::say::result(format!("report: {}", target.join("report.html").display()));
    }
    Ok(code)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", from.display()))?.path();
        if let Some(name) = path.file_name().filter(|_| path.is_file()) {
            std::fs::copy(&path, to.join(name)).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}
