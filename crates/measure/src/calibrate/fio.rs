//! The six figures of io.cost's linear model, measured with fio: what the device does of each kind of I/O when it does
//! nothing else.
//!
//! Owns: fio's command lines and what is read from its JSON. Direct I/O to files that were written before, so that no file
//! system metadata is measured. Random I/O goes to a file on each volume, so that an arm has to travel between them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_sys::iocost::{Ctrl, ModelLine};
use bulkhead_sys::tool::Tool;
use serde::Deserialize;

/// How long each kind is measured, after [`RAMP_SECONDS`].
const SECONDS: u64 = 5;
/// What is left out at the beginning: caches of the device fill.
const RAMP_SECONDS: u64 = 1;
/// Over which fio is given up: an emulated machine needs seconds to start a program, and a slow disk to write the files.
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

/// Number of steps that [`measure`] tells of.
pub(super) const N_STEPS: usize = KINDS.len() + 1;

/// fio's JSON, as far as it is needed.
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
    pub bw_bytes: f64,
    pub iops: f64,
    /// From the submission of a request to its completion.
    #[serde(default)]
    pub clat_ns: Latency,
}

#[derive(Debug, Default, Deserialize)]
pub struct Latency {
    pub mean: Option<f64>,
    /// By their numbers, as `99.000000`.
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

impl Latency {
    /// One of the percentiles that fio reports.
    pub fn percentile(&self, number: &str) -> Option<f64> {
        self.percentile.get(number).copied()
    }
}

/// Measures with files of `file_bytes` in both directories; `on_step` is called before each step and may call it off.
/// Returns the model, and how it was measured: what the command lines have in common, and a line for each figure. Sequential
/// I/O goes to the first file only.
///
/// # Errors
/// Without fio, when it fails, or reports nothing.
pub(super) fn measure(
    dirs: [&Path; 2],
    file_bytes: u64,
    on_step: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<(ModelLine, Vec<String>)> {
    let files = dirs.map(|dir| dir.join("fio"));
    let result = measure_files(&files, file_bytes, on_step);
    for file in &files {
        // A file that cannot be removed goes with the volume.
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

/// What all command lines have in common. A path of ours has no `:`, which separates files for fio.
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

/// A load on a whole device, the same in every run: ramp and window in seconds. What it does is left to the caller.
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

/// What fio calls itself, as `fio-3.39`.
pub fn version() -> Option<String> {
    Some(Tool::new("fio").arg("--version").run().ok()?.stdout.trim().to_owned())
}

/// Runs fio.
///
/// # Errors
/// Without fio, when it fails, or reports nothing.
pub fn run(tool: &Tool) -> Result<Report> {
    let output = tool.run().context("the device cannot be measured")?;
    // Warnings come before the JSON.
    let json = output.stdout.find('{').map_or("", |begin| &output.stdout[begin..]);
    serde_json::from_str(json).with_context(|| format!("fio's report cannot be read: {}", tool.command_line()))
}

impl Kind {
    fn options(self) -> [String; 3] {
        [format!("--rw={}", self.rw), format!("--bs={}", self.block), format!("--iodepth={}", self.depth)]
    }

    /// Whole bytes or operations per second, of which there is at least one.
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
    fn the_side_and_the_unit_are_those_of_the_coefficient() {
        let text = r#"{"jobs": [{"read": {"bw_bytes": 4096000, "iops": 1000.4, "x": 1}, "write": {"bw_bytes": 0, "iops": 0.2}}]}"#;
        let report: Report = serde_json::from_str(text).unwrap();
        let figures: Vec<Option<u64>> = KINDS.iter().map(|kind| kind.figure(&report)).collect();
        assert_eq!(figures, [Some(4_096_000), Some(1000), Some(1000), None, None, None]);
    }

    #[test]
    fn a_step_that_calls_off_ends_it_before_fio_starts() {
        let dir = tempfile::tempdir().unwrap();
        let error = measure([dir.path(), dir.path()], 4096, &mut |_| anyhow::bail!("interrupted")).unwrap_err();
        assert_eq!(error.to_string(), "interrupted");
    }
}
