//! `cargo xtask check`: everything that can be checked without a virtual machine.
//!
//! Formatting, lints, unit and integration tests, dependency licences and sources. The lab's cases are `cargo xtask lab run`.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// The version that is installed when there is none.
const CARGO_DENY_VERSION: &str = "0.20.2";
/// Build options for tools with a short run time: no optimisation, no debugging information.
pub(crate) const QUICKLY: &[&str] = &["--locked", "--debug", "--config", "profile.dev.debug=false"];

/// Runs all checks; the first failure ends it.
///
/// # Errors
/// Names the check that failed.
pub(crate) fn run() -> Result<()> {
    lints()?;
    tests()?;
    dependencies()
}

/// Formatting and lints.
pub(crate) fn lints() -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])
}

/// Builds the tests.
pub(crate) fn build_tests() -> Result<()> {
    cargo(&["test", "--workspace", "--locked", "--no-run"])
}

/// Unit and integration tests.
pub(crate) fn tests() -> Result<()> {
    cargo(&["test", "--workspace", "--locked"])
}

/// Licences and sources of dependencies.
pub(crate) fn dependencies() -> Result<()> {
    let program = cargo_deny()?;
    // It reads the manifests of all platforms' packages, of which only this platform's have been downloaded.
    cargo(&["fetch", "--locked"])?;
    // Advisories need the network: deny.toml says why they are left out here.
    run_command(&program, &["deny", "--locked", "--offline", "check", "bans", "licenses", "sources"])
}

/// Installed first if it is not there.
pub(crate) fn cargo_deny() -> Result<PathBuf> {
    installed("cargo-deny", CARGO_DENY_VERSION, QUICKLY)
}

/// A program that cargo installs, in a folder of its own in the lab's cache; built first if it is not there.
///
/// # Errors
/// When it cannot be downloaded or built.
pub(crate) fn installed(name: &str, version: &str, how: &[&str]) -> Result<PathBuf> {
    let root = bulkhead_lab::Cache::locate()?.path("tools");
    let program = root.join("bin").join(name);
    if !program.is_file() {
        let root = root.to_str().context("the cache folder's path is not UTF-8")?;
        let install = ["install", "--quiet", name, "--version", version, "--root", root];
        cargo(&[install.as_slice(), how].concat())?;
    }
    Ok(program)
}

fn cargo(args: &[&str]) -> Result<()> {
    let program = std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
    run_command(&program, args)
}

/// Runs a program to its end.
///
/// # Errors
/// When it cannot be run, or fails.
#[expect(clippy::disallowed_methods, reason = "a development command runs cargo itself")]
pub(crate) fn run_command(program: &std::path::Path, args: &[&str]) -> Result<()> {
    let shown = format!("{} {}", program.display(), args.join(" "));
    let began = Instant::now();
    let status = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {shown}"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    bulkhead_lab::say::progress(format!("`{shown}` took {:.0} s", began.elapsed().as_secs_f64()));
    Ok(())
}
