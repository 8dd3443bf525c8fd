//! `cargo xtask fuzz`: runs the fuzz targets, each for a limited time.
//!
//! They run without a sanitizer, because the stable compiler has none. They detect panics, overflows and failed assertions of a target; most of the
//! code that they reach is safe Rust. The corpus is kept in `target/fuzz` for the next run.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bulkhead_lab::say;
use clap::Args;

use crate::{check, lab};

/// The version to install if none is installed.
const CARGO_FUZZ_VERSION: &str = "0.13.2";

/// All targets, as in `fuzz/Cargo.toml`.
const TARGETS: &[&str] =
    &["stream", "index", "layers", "peers", "archive", "layout", "docker", "runtime", "csi", "image_name"];

/// Maximum length of an input: a few blocks of an archive.
const MAX_INPUT_BYTES: u32 = 16 << 10;

/// Time limit of one input; anything longer is an endless loop.
const INPUT_SECONDS: u32 = 20;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Which targets: stream, index, layers, peers, archive, layout, docker, runtime, csi, image_name (default: all).
    targets: Vec<String>,
    /// Duration of each target, in seconds.
    #[arg(long, default_value_t = 600)]
    seconds: u32,
}

/// Runs the targets one after the other, and stops at the first failure, whose input it reports.
///
/// # Errors
/// An unknown target, a failed build, an input that fails.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(unknown) = arguments.targets.iter().find(|name| !TARGETS.contains(&name.as_str())) {
        bail!("there is no fuzz target {unknown}: {}", TARGETS.join(", "));
    }
    let program = check::installed("cargo-fuzz", CARGO_FUZZ_VERSION, &["--locked"])?;
    let directory = lab::target_dir().join("fuzz");
    let text = directory.to_str().context("the path of the target directory is not UTF-8")?;
    let sources = lab::workspace().join("fuzz");
    let place = sources.to_str().context("the path of the sources is not UTF-8")?;
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut words = vec!["fuzz", "build", "--fuzz-dir", place, "--sanitizer", "none", "--features", "libfuzzer"];
    words.extend(["--target", &triple, "--target-dir", text]);
    let chosen = |name: &str| arguments.targets.is_empty() || arguments.targets.iter().any(|target| target == name);
    for target in TARGETS.iter().copied().filter(|name| chosen(name)) {
        check::run_command(&program, &[&words[..], &[target]].concat())?;
        let found = directory.join("found").join(target);
        std::fs::create_dir_all(&found).with_context(|| format!("cannot create {}", found.display()))?;
        let options = [
            format!("{text}/found/{target}"),
            format!("{place}/seeds/{target}"),
            format!("-max_total_time={}", arguments.seconds),
            format!("-max_len={MAX_INPUT_BYTES}"),
            format!("-timeout={INPUT_SECONDS}"),
            format!("-artifact_prefix={text}/{target}-"),
            "-print_final_stats=1".to_owned(),
        ];
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        check::run_command(&directory.join(&triple).join("release").join(target), &options)?;
        say::result(format!("{target}: {} s without a failure", arguments.seconds));
    }
    Ok(ExitCode::SUCCESS)
}
