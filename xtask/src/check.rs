//! `cargo xtask check`: everything that can be checked without a virtual machine.
//!
//! Formatting, lints, unit and integration tests, dependency licences and sources. The lab's cases are `cargo xtask lab run`.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_lab::{Cache, Stream, say};
use serde::Deserialize;

use crate::lab::workspace;

/// The version that is installed when there is none.
const CARGO_DENY_VERSION: &str = "0.20.2";
/// Says which dependencies were found clean last.
const CHECKED: &str = "deny.checked";
/// Build options for tools with a short run time: no optimisation, no debugging information.
pub(crate) const QUICKLY: &[&str] = &["--locked", "--debug", "--config", "profile.dev.debug=false"];

/// What compiles the crates of the workspace in place of rustc. It is meant for builds that are tested: clippy's driver optimises less.
pub(crate) const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";

/// Runs all checks; the first failure ends it.
///
/// # Errors
/// Names the check that failed.
pub(crate) fn run() -> Result<()> {
    lints()?;
    build_tests()?;
    tests()?;
    dependencies()
}

/// Formatting, and lints unless building the tests lints too.
pub(crate) fn lints() -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    if compiles_with_clippy() {
        return Ok(());
    }
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])
}

/// Builds the tests, and all else of the workspace; a warning is an error where the build lints too.
pub(crate) fn build_tests() -> Result<()> {
    if compiles_with_clippy() { build_with_lints() } else { cargo(&["test", "--workspace", "--locked", "--no-run"]) }
}

/// Whether clippy's driver compiles the workspace: the Makefile has it so where nothing has been compiled yet, which saves a pass over all crates.
fn compiles_with_clippy() -> bool {
    std::env::var_os(WRAPPER).is_some_and(|program| program == "clippy-driver")
}

/// Builds all targets, as `cargo clippy --all-targets` checks them. What was compiled before, as this program was, repeats its warnings.
#[expect(clippy::disallowed_methods, reason = "a development command runs cargo itself")]
fn build_with_lints() -> Result<()> {
    let args = ["build", "--workspace", "--all-targets", "--locked", "--message-format", "json"];
    let began = Instant::now();
    let mut child = Command::new(cargo_program())
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;
    let messages = child.stdout.take().context("cargo has no standard output")?;
    let mut has_warnings = false;
    for line in BufReader::new(messages).lines() {
        let message: Message = serde_json::from_str(&line?).context("cargo wrote what is not a message")?;
        if let Some(Diagnostic { level, rendered: Some(text) }) = message.message {
            say::pass_on(Stream::Stderr, text.as_bytes());
            has_warnings |= level == "warning";
        }
    }
    let status = child.wait().context("cannot wait for cargo")?;
    ensure!(status.success(), "`cargo {}` failed ({status})", args.join(" "));
    ensure!(!has_warnings, "the compiler warns of what is shown above, which is an error here");
    say::progress(format!("`cargo {}` took {:.0} s", args.join(" "), began.elapsed().as_secs_f64()));
    Ok(())
}

/// A line of `--message-format json`, as far as it is read.
#[derive(Debug, Deserialize)]
struct Message {
    message: Option<Diagnostic>,
}

/// What the compiler has to say.
#[derive(Debug, Deserialize)]
struct Diagnostic {
    level: String,
    rendered: Option<String>,
}

/// Unit and integration tests.
pub(crate) fn tests() -> Result<()> {
    cargo(&["test", "--workspace", "--locked"])
}

/// Licences and sources of dependencies, unless they are those that were found clean before.
pub(crate) fn dependencies() -> Result<()> {
    let now = checked(&workspace())?;
    if std::fs::read_to_string(workspace().join(CHECKED)).is_ok_and(|text| text.trim() == now) {
        say::progress(format!("dependencies are those that cargo-deny found clean ({CHECKED})"));
        return Ok(());
    }
    deny()?;
    say::progress(format!("`cargo xtask deny` records that in {CHECKED}: cargo-deny takes two minutes to build"));
    Ok(())
}

/// Lets cargo-deny look at dependencies, and records that they are clean.
pub(crate) fn record_dependencies() -> Result<()> {
    deny()?;
    let path = workspace().join(CHECKED);
    std::fs::write(&path, format!("{}\n", checked(&workspace())?))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// What stands in [`CHECKED`] when the dependencies of a workspace are clean: what cargo-deny says depends on its version and these files alone,
/// as the lock has checksums of all that is downloaded.
fn checked(workspace: &Path) -> Result<String> {
    let manifest = |folder: PathBuf| folder.join("Cargo.toml");
    let members = std::fs::read_dir(workspace.join("crates")).context("cannot list the folder crates")?;
    let mut files: Vec<PathBuf> = members
        .map(|member| Ok(manifest(member?.path())))
        .collect::<std::io::Result<_>>()
        .context("cannot list crates")?;
    files.extend(["xtask", "fuzz", ""].map(|folder| manifest(workspace.join(folder))));
    files.extend(["Cargo.lock", "deny.toml"].map(|file| workspace.join(file)));
    files.sort();
    let mut hasher = blake3::Hasher::new();
    for file in files {
        let bytes = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        hasher.update(blake3::hash(&bytes).as_bytes());
    }
    Ok(format!("cargo-deny {CARGO_DENY_VERSION} {}", hasher.finalize()))
}

fn deny() -> Result<()> {
    let program = installed("cargo-deny", CARGO_DENY_VERSION, QUICKLY)?;
    // It reads the manifests of all platforms' packages, of which only this platform's have been downloaded.
    cargo(&["fetch", "--locked"])?;
    // Advisories need the network: deny.toml says why they are left out here.
    run_command(&program, &["deny", "--locked", "--offline", "check", "bans", "licenses", "sources"])
}

/// A program that cargo installs, in a folder of its own in the lab's cache; built first if it is not there.
///
/// # Errors
/// When it cannot be downloaded or built.
pub(crate) fn installed(name: &str, version: &str, how: &[&str]) -> Result<PathBuf> {
    let root = Cache::locate()?.path("tools");
    let program = root.join("bin").join(name);
    if !program.is_file() {
        let root = root.to_str().context("the cache folder's path is not UTF-8")?;
        let install = ["install", "--quiet", name, "--version", version, "--root", root];
        cargo(&[install.as_slice(), how].concat())?;
    }
    Ok(program)
}

/// Runs cargo to its end, as [`run_command`] does.
pub(crate) fn cargo(args: &[&str]) -> Result<()> {
    run_command(&cargo_program(), args)
}

/// The cargo that runs this, or else the one on the path.
pub(crate) fn cargo_program() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
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
    say::progress(format!("`{shown}` took {:.0} s", began.elapsed().as_secs_f64()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_looked_at_again_when_a_file_changes_that_names_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for folder in ["crates/a", "xtask", "fuzz"] {
            std::fs::create_dir_all(path(folder)).unwrap();
        }
        let files =
            ["crates/a/Cargo.toml", "xtask/Cargo.toml", "fuzz/Cargo.toml", "Cargo.toml", "Cargo.lock", "deny.toml"];
        for file in files {
            std::fs::write(path(file), "before").unwrap();
        }
        for file in files {
            let before = checked(dir.path()).unwrap();
            assert_eq!(checked(dir.path()).unwrap(), before);
            std::fs::write(path(file), "after").unwrap();
            assert_ne!(checked(dir.path()).unwrap(), before, "{file}");
        }
    }
}
