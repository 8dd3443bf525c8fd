//! `cargo xtask check`: everything that can be checked without a virtual machine.
//!
//! Formatting, lints, unit and integration tests, dependency licences and sources. The lab's cases are `cargo xtask lab run`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The version that is installed when there is none.
const CARGO_DENY_VERSION: &str = "0.20.2";

/// Runs all checks; the first failure ends it.
///
/// # Errors
/// Names the check that failed.
pub(crate) fn run() -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    cargo(&["test", "--workspace", "--locked"])?;
    deny()
}

fn deny() -> Result<()> {
    let root = bulkhead_lab::Cache::locate()?.path("tools");
    let program = root.join("bin/cargo-deny");
    if !program.is_file() {
        let root = root.to_str().context("the cache folder's path is not UTF-8")?;
        cargo(&["install", "cargo-deny", "--version", CARGO_DENY_VERSION, "--locked", "--root", root])?;
    }
    // It reads the manifests of all platforms' packages, of which only this platform's have been downloaded.
    cargo(&["fetch", "--locked"])?;
    // Advisories need the network: deny.toml says why they are left out here.
    run_command(&program, &["deny", "--locked", "--offline", "check", "bans", "licenses", "sources"])
}

fn cargo(args: &[&str]) -> Result<()> {
    let program = std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from);
    run_command(&program, args)
}

#[expect(clippy::disallowed_methods, reason = "a development command runs cargo itself")]
fn run_command(program: &std::path::Path, args: &[&str]) -> Result<()> {
    let shown = format!("{} {}", program.display(), args.join(" "));
    let status = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {shown}"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    Ok(())
}
