//! `cargo xtask demo`: the before/after experiment in a virtual machine on a simulated spinning disk.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use bulkhead_lab::DiskModel;

use crate::lab;

/// Boots, runs `bulkhead demo`, and leaves the report in `target/demo`.
///
/// # Errors
/// When the machine does not boot, or the demo fails.
pub(crate) fn run() -> Result<ExitCode> {
    let described = DiskModel::Hdd.describe();
    let command = ["/lab/bin/bulkhead", "demo", "--lab-disk", described, "--report", "/lab/out/demo"];
    let device = ["--device", "/dev/vda", "--erase", "/dev/vda"];
    let words: Vec<String> = command.iter().chain(&device).map(ToString::to_string).collect();
    let (code, artifacts) = lab::exec_on("hdd:8192", 3072, 1500, words)?;
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
