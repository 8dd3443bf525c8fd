//! The six coefficients of io.cost's linear model, measured with fio: the device's throughput for each kind of I/O alone.
//!
//! Owns: fio's command lines, and parsing its JSON. Direct I/O to files that have been written before, so that no file system metadata is
//! measured. Random I/O goes to a file on each volume, so that a disk arm has to move between them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_sys::iocost::{Ctrl, ModelLine};
use bulkhead_sys::tool::Tool;
use serde::Deserialize;

/// Duration of each measurement, after [`RAMP_SECONDS`].
const SECONDS: u64 = 5;
/// Time at the beginning that does not count, while caches of the device fill.
const RAMP_SECONDS: u64 = 1;
/// Time limit of fio: an emulated machine needs seconds to start a program, and a slow disk to write the files.
const LIMIT: Duration = Duration::from_secs(180);

/// One kind of I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    /// The coefficient that it measures, as in `io.cost.model`.
    coefficient: &'static str,
    rw: &'static str,
    block: &'static str,
    depth: u32,
}

/// In the order of `io.cost.model`.
const KINDS: [Kind; 6] = [
    Kind { coefficient: "rbps", rw: "read", block: "1M", depth: 16 },
    Kind { coefficient: "rseqiops", rw: "read", block: "4k", depth: 32 },
    Kind { coefficient: "rrandiops", rw: "randread", block: "4k", depth: 64 },
    Kind { coefficient: "wbps", rw: "write", block: "1M", depth: 16 },
    Kind { coefficient: "wseqiops", rw: "write", block: "4k", depth: 32 },
    Kind { coefficient: "wrandiops", rw: "randwrite", block: "4k", depth: 64 },
];

/// Number of steps that [`measure`] reports.
pub(super) const N_STEPS: usize = KINDS.len() + 1;

/// The fields of fio's JSON that are used.
#[derive(Debug, Deserialize)]
pub struct Report {
    pub jobs: Vec<Job>,
}

#[derive(Debug, Deserialize)]
pub struct Job {
    pub read: Side,
    pub write: Side,
}

#[derive(Debug, Deserialize)]
pub struct Side {
    #[serde(default)]
    pub io_bytes: f64,
    pub bw_bytes: f64,
    pub iops: f64,
    /// From the submission of a request to its completion.
    #[serde(default)]
    pub clat_ns: Latency,
}

#[derive(Debug, Default, Deserialize)]
pub struct Latency {
    pub mean: Option<f64>,
    pub stddev: Option<f64>,
    /// Keyed by number, for example `99.000000`.
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

impl Latency {
    /// One of the percentiles that fio reports.
    pub fn percentile(&self, number: &str) -> Option<f64> {
        self.percentile.get(number).copied()
    }
}

/// Measures with files of `file_bytes` in both directories; `on_step` is called before each step and can cancel.
/// Returns the model, and notes on the measurement: the common part of the command lines, and a line for each figure. Sequential I/O goes to
/// the first file only.
///
/// # Errors
/// If fio is missing, fails, or reports nothing.
pub(super) fn measure(
    dirs: [&Path; 2],
    file_bytes: u64,
    on_step: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<(ModelLine, Vec<String>)> {
    let files = dirs.map(|dir| dir.join("fio"));
    let result = measure_files(&files, file_bytes, on_step);
    for file in &files {
        // If this fails, the file is removed with the volume.
        let _ = std::fs::remove_file(file);
    }
    result
}

fn measure_files(
    files: &[PathBuf; 2],
    file_bytes: u64,
    on_step: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<(ModelLine, Vec<String>)> {
    on_step("fio: writing its files")?;
    for file in files {
        run(&fio(std::slice::from_ref(file), file_bytes).args([
            "--rw=write",
            "--bs=1M",
            "--iodepth=16",
            "--end_fsync=1",
        ]))?;
    }
    let mut figures = [0u64; 6];
    let mut lines = vec![format!(
        "{} --time_based --runtime={SECONDS} --ramp_time={RAMP_SECONDS}",
        fio(files, file_bytes).command_line()
    )];
    for (figure, kind) in figures.iter_mut().zip(KINDS) {
        on_step(&format!("fio: {}", kind.coefficient))?;
        let on = if kind.rw.starts_with("rand") { &files[..] } else { &files[..1] };
        let tool = fio(on, file_bytes)
            .args(["--time_based".to_owned(), format!("--runtime={SECONDS}"), format!("--ramp_time={RAMP_SECONDS}")])
            .args(kind.options());
        let report = run(&tool)?;
        *figure = kind.figure(&report).with_context(|| format!("fio measured nothing: {}", tool.command_line()))?;
        lines.push(format!("{}={figure}: {}", kind.coefficient, kind.options().join(" ")));
    }
    let [rbps, rseqiops, rrandiops, wbps, wseqiops, wrandiops] = figures;
    Ok((ModelLine { ctrl: Ctrl::User, rbps, rseqiops, rrandiops, wbps, wseqiops, wrandiops }, lines))
}

/// The common part of all command lines. The paths contain no `:`, which separates files for fio.
fn fio(files: &[PathBuf], file_bytes: u64) -> Tool {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    Tool::new("fio").limit(LIMIT).args([
        "--name=calibrate".to_owned(),
        "--output-format=json".to_owned(),
        "--ioengine=libaio".to_owned(),
        "--direct=1".to_owned(),
        "--fallocate=none".to_owned(),
        format!("--filename={}", names.join(":")),
        format!("--filesize={file_bytes}"),
    ])
}

/// The common options of a load on a whole device, with ramp and window in seconds. The caller adds the kind of I/O.
pub fn on_device(device: &Path, (ramp, window): (u32, u32)) -> Tool {
    let name = device.display().to_string().replace(':', "\\:");
    Tool::new("fio").limit(LIMIT).args([
        "--name=disk".to_owned(),
        "--output-format=json".to_owned(),
        "--ioengine=libaio".to_owned(),
        "--direct=1".to_owned(),
        format!("--filename={name}"),
        "--randrepeat=1".to_owned(),
        "--allrandrepeat=1".to_owned(),
        "--norandommap".to_owned(),
        "--time_based".to_owned(),
        format!("--runtime={window}"),
        format!("--ramp_time={ramp}"),
    ])
}

/// The version of fio, for example `fio-3.39`.
pub fn version() -> Option<String> {
    Some(Tool::new("fio").arg("--version").run().ok()?.stdout.trim().to_owned())
}

/// Runs fio.
///
/// # Errors
/// If fio is missing, fails, or reports nothing.
pub fn run(tool: &Tool) -> Result<Report> {
    parse(tool, &tool.run().context("the device cannot be measured")?.stdout)
}

/// Parses fio's report.
///
/// # Errors
/// If it is none.
pub fn parse(tool: &Tool, stdout: &str) -> Result<Report> {
    // Warnings precede the JSON.
    let json = stdout.find('{').map_or("", |begin| &stdout[begin..]);
    serde_json::from_str(json).with_context(|| format!("fio's report cannot be read: {}", tool.command_line()))
}

impl Kind {
    fn options(self) -> [String; 3] {
        [format!("--rw={}", self.rw), format!("--bs={}", self.block), format!("--iodepth={}", self.depth)]
    }

    /// Bytes or operations per second, at least 1.
    fn figure(self, report: &Report) -> Option<u64> {
        let job = report.jobs.first()?;
        let side = if self.rw.contains("read") { &job.read } else { &job.write };
        let value = if self.coefficient.ends_with("bps") { side.bw_bytes } else { side.iops };
        let whole = Duration::try_from_secs_f64(value).ok()?.as_secs();
        (whole > 0).then_some(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_coefficient_has_its_direction_and_unit() {
        let text = r#"{"jobs": [{"read": {"bw_bytes": 4096000, "iops": 1000.4, "x": 1}, "write": {"bw_bytes": 0, "iops": 0.2}}]}"#;
        let report: Report = serde_json::from_str(text).unwrap();
        let figures: Vec<Option<u64>> = KINDS.iter().map(|kind| kind.figure(&report)).collect();
        assert_eq!(figures, [Some(4_096_000), Some(1000), Some(1000), None, None, None]);
    }

    #[test]
    fn a_cancelled_step_ends_before_fio_starts() {
        let dir = tempfile::tempdir().unwrap();
        let error = measure([dir.path(), dir.path()], 4096, &mut |_| anyhow::bail!("interrupted")).unwrap_err();
        assert_eq!(error.to_string(), "interrupted");
    }
}
