//! `cargo xtask fuzz`: drives the fuzz targets, each for a while.
//!
//! They run without a sanitizer, which a stable compiler has none of: what is looked for are panics, overflows, and what a target
//! asserts; most of what they reach is safe Rust. What was found on the way stays in `target/fuzz`, for the next run.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bulkhead_lab::say;
use clap::Args;

use crate::{check, lab};

/// The version that is installed when there is none.
const CARGO_FUZZ_VERSION: &str = "0.13.2";

/// All targets, as in `fuzz/Cargo.toml`.
const TARGETS: [&str; 6] = ["stream", "index", "layers", "peers", "archive", "layout"];

/// The longest input: some blocks of an archive.
const MAX_INPUT_BYTES: u32 = 16 << 10;

/// What one input may take; so long is none of them busy with anything that ends.
const INPUT_SECONDS: u32 = 20;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Which targets: stream, index, layers, peers, archive, layout (default: all).
    targets: Vec<String>,
    /// How long each is run, in seconds.
    #[arg(long, default_value_t = 600)]
    seconds: u32,
}

/// Runs the targets one after the other; the first that fails ends it, and names the input.
///
/// # Errors
/// An unknown target, a build that fails, an input that does harm.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(unknown) = arguments.targets.iter().find(|name| !TARGETS.contains(&name.as_str())) {
        bail!("there is no fuzz target {unknown}: {}", TARGETS.join(", "));
    }
    let program = check::installed("cargo-fuzz", CARGO_FUZZ_VERSION, &["--locked"])?;
    let folder = lab::target_dir().join("fuzz");
    let text = folder.to_str().context("the target folder's path is not UTF-8")?;
    let sources = lab::workspace().join("fuzz");
    let place = sources.to_str().context("the path of the sources is not UTF-8")?;
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut words = vec!["fuzz", "build", "--fuzz-dir", place, "--sanitizer", "none", "--features", "libfuzzer"];
    words.extend(["--target", &triple, "--target-dir", text]);
    check::run_command(&program, &words)?;
    let chosen = |name: &str| arguments.targets.is_empty() || arguments.targets.iter().any(|target| target == name);
    for target in TARGETS.into_iter().filter(|name| chosen(name)) {
        let found = folder.join("found").join(target);
        std::fs::create_dir_all(&found).with_context(|| format!("cannot make {}", found.display()))?;
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
        check::run_command(&folder.join(&triple).join("release").join(target), &options)?;
        say::result(format!("{target}: {} s without a fault", arguments.seconds));
    }
    Ok(ExitCode::SUCCESS)
}
