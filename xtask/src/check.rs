//! `cargo xtask check`: everything that can be checked without a virtual machine.
//!
//! Formatting, lints, unit and integration tests, the Helm chart, licences and sources of dependencies. Does not: run cases of the lab (`cargo xtask lab run`).

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_lab::{Cache, Stream, say};
use serde::Deserialize;

use crate::lab::workspace;
use crate::{chart, licences};

/// The version to install if none is installed.
const CARGO_DENY_VERSION: &str = "0.20.2";
/// The file that records the dependencies that were last found clean.
const CHECKED: &str = "deny.checked";
/// Build options for tools with a short run time: no optimisation, no debugging information.
pub(crate) const QUICKLY: &[&str] = &["--locked", "--debug", "--config", "profile.dev.debug=false"];

/// Environment variable with the program that compiles the workspace's crates in place of rustc. For test builds only: clippy's driver optimises
/// less.
pub(crate) const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";

/// Runs all checks, and stops at the first failure.
///
/// # Errors
/// The check that failed.
pub(crate) fn run() -> Result<()> {
    lints()?;
    build_tests()?;
    tests()?;
    chart::check_recorded()?;
    dependencies()
}

/// Checks formatting, and lints unless the build of the tests also lints.
pub(crate) fn lints() -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    if compiles_with_clippy() {
        return Ok(());
    }
    cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])
}

/// Builds the tests and the rest of the workspace. If the build also lints, a warning is an error.
pub(crate) fn build_tests() -> Result<()> {
    if compiles_with_clippy() { build_with_lints() } else { cargo(&["test", "--workspace", "--locked", "--no-run"]) }
}

/// Whether clippy's driver compiles the workspace. The Makefile selects it if nothing has been compiled yet, which saves a pass over all crates.
fn compiles_with_clippy() -> bool {
    std::env::var_os(WRAPPER).is_some_and(|program| program == "clippy-driver")
}

/// Builds all targets that `cargo clippy --all-targets` checks. Cargo repeats the warnings of crates that have been compiled before.
fn build_with_lints() -> Result<()> {
    let args = ["build", "--workspace", "--all-targets", "--locked", "--message-format", "json"];
    let (cargo, messages) = Cargo::start(&args)?;
    let mut has_warnings = false;
    for line in BufReader::new(messages).lines() {
        let message: Message = serde_json::from_str(&line?).context("cargo printed something other than a message")?;
        if let Some(Diagnostic { level, rendered: Some(text) }) = message.message {
            say::pass_on(Stream::Stderr, text.as_bytes());
            has_warnings |= level == "warning";
        }
    }
    let took = cargo.end()?;
    ensure!(!has_warnings, "the warnings above count as errors here");
    say::progress(took);
    Ok(())
}

/// A cargo in progress whose standard output is read.
struct Cargo<'a> {
    args: &'a [&'a str],
    began: Instant,
    child: Child,
}

impl<'a> Cargo<'a> {
    #[expect(clippy::disallowed_methods, reason = "a development command runs cargo itself")]
    fn start(args: &'a [&'a str]) -> Result<(Self, ChildStdout)> {
        let began = Instant::now();
        let mut child = Command::new(cargo_program())
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run cargo")?;
        let output = child.stdout.take().context("cargo has no standard output")?;
        Ok((Self { args, began, child }, output))
    }

    /// Waits for its end; says how long it took. Fails if it failed.
    fn end(mut self) -> Result<String> {
        let status = self.child.wait().context("cannot wait for cargo")?;
        let command = self.args.join(" ");
        ensure!(status.success(), "`cargo {command}` failed ({status})");
        Ok(format!("`cargo {command}` took {:.0} s", self.began.elapsed().as_secs_f64()))
    }
}

/// The fields of a `--message-format json` line that are used.
#[derive(Debug, Deserialize)]
struct Message {
    message: Option<Diagnostic>,
}

/// A diagnostic of the compiler.
#[derive(Debug, Deserialize)]
struct Diagnostic {
    level: String,
    rendered: Option<String>,
}

/// Runs unit and integration tests, and lists those that were skipped: libtest shows them as passed.
pub(crate) fn tests() -> Result<()> {
    let args = ["test", "--workspace", "--locked", "--", "--show-output"];
    let (cargo, output) = Cargo::start(&args)?;
    let mut skipped = Skipped::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        if skipped.is_shown(&String::from_utf8_lossy(&line)) {
            say::pass_on(Stream::Stdout, &[&line[..], b"\n"].concat());
        }
    }
    let ended = cargo.end();
    skipped.tests.iter().for_each(say::progress);
    say::progress(format!("{}; {} tests skipped", ended?, skipped.tests.len()));
    Ok(())
}

/// Reads libtest's output with `--show-output`: collects the reasons that skipped tests print, and hides the output of passed tests.
#[derive(Debug, Default)]
struct Skipped {
    /// One line for each skipped test.
    tests: Vec<String>,
    /// Whether the current line is in the section with the output of passed tests.
    in_successes: bool,
    /// The test whose output this is.
    test: String,
}

impl Skipped {
    /// Reads a line; returns whether to show it.
    fn is_shown(&mut self, line: &str) -> bool {
        match line {
            "successes:" => self.in_successes = true,
            "failures:" => self.in_successes = false,
            _ if line.starts_with("test result: ") => self.in_successes = false,
            _ => {}
        }
        if !self.in_successes {
            return true;
        }
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            name.clone_into(&mut self.test);
        }
        if let Some(reason) = line.strip_prefix("skipped: ").or(line.strip_prefix("Skipped: ")) {
            self.tests.push(format!("skipped: {}: {reason}", self.test));
        }
        false
    }
}

/// Checks licences and sources of dependencies, unless they are the ones recorded as clean.
pub(crate) fn dependencies() -> Result<()> {
    let now = checked(&workspace())?;
    if std::fs::read_to_string(workspace().join(CHECKED)).is_ok_and(|text| text.trim() == now) {
        say::progress(format!("dependencies unchanged since cargo-deny found them clean ({CHECKED})"));
        return Ok(());
    }
    deny()?;
    say::progress(format!(
        "record this with `cargo xtask deny` ({CHECKED}), because cargo-deny takes two minutes to build"
    ));
    Ok(())
}

/// Checks the dependencies with cargo-deny, and records them as clean, and the licences of those that are shipped.
pub(crate) fn record_dependencies() -> Result<()> {
    deny()?;
    licences::write()?;
    let path = workspace().join(CHECKED);
    std::fs::write(&path, format!("{}\n", checked(&workspace())?))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The content of [`CHECKED`] for a workspace: cargo-deny's version, and a hash of all files that its result depends on. Cargo.lock has
/// checksums of all downloads.
fn checked(workspace: &Path) -> Result<String> {
    let manifest = |directory: PathBuf| directory.join("Cargo.toml");
    let members = std::fs::read_dir(workspace.join("crates")).context("cannot list the directory crates")?;
    let mut files: Vec<PathBuf> = members
        .map(|member| Ok(manifest(member?.path())))
        .collect::<std::io::Result<_>>()
        .context("cannot list crates")?;
    files.extend(["xtask", "fuzz", ""].map(|directory| manifest(workspace.join(directory))));
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
    // cargo-deny reads the manifests of packages for all platforms, of which cargo downloads only this platform's.
    cargo(&["fetch", "--locked"])?;
    // Advisories require the network: deny.toml has the reason for their omission here.
    run_command(&program, &["deny", "--locked", "--offline", "check", "bans", "licenses", "sources"])
}

/// The path of a program in the lab's cache, which is downloaded and built first if it is missing.
///
/// # Errors
/// A failed download or build.
pub(crate) fn installed(name: &str, version: &str, how: &[&str]) -> Result<PathBuf> {
    let root = Cache::locate()?.path("tools");
    let program = root.join("bin").join(name);
    if !program.is_file() {
        let root = root.to_str().context("the path of the cache is not UTF-8")?;
        let install = ["install", "--quiet", name, "--version", version, "--root", root];
        cargo(&[install.as_slice(), how].concat())?;
    }
    Ok(program)
}

/// Runs cargo, see [`run_command`].
pub(crate) fn cargo(args: &[&str]) -> Result<()> {
    run_command(&cargo_program(), args)
}

/// The cargo that started this program, else the one in `PATH`.
pub(crate) fn cargo_program() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

/// Runs a program, and waits for it.
///
/// # Errors
/// If it cannot be started, or fails.
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

/// Runs a program, and returns what it prints.
///
/// # Errors
/// If it cannot be started, or fails.
#[expect(clippy::disallowed_methods, reason = "a development command runs cargo itself")]
pub(crate) fn output_of(program: &Path, args: &[&str]) -> Result<Vec<u8>> {
    let shown = format!("{} {}", program.display(), args.join(" "));
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {shown}"))?;
    ensure!(output.status.success(), "`{shown}` failed ({})", output.status);
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_tests_are_listed_and_output_of_passed_ones_is_hidden() {
        let output = "running 3 tests\ntest a ... ok\n\nsuccesses:\n\n---- a stdout ----\nskipped: requires root\n\n\
            ---- b::c stdout ----\nseeds\nSkipped: no ublk\n\nsuccesses:\n    a\n    b::c\n\nfailures:\n\n\
            ---- d stdout ----\nskipped: not this\n\ntest result: FAILED.\n";
        let mut skipped = Skipped::default();
        let shown: Vec<&str> = output.lines().filter(|line| skipped.is_shown(line)).collect();
        assert_eq!(skipped.tests, ["skipped: a: requires root", "skipped: b::c: no ublk"]);
        let failures = ["failures:", "", "---- d stdout ----", "skipped: not this", "", "test result: FAILED."];
        assert_eq!(shown, [&["running 3 tests", "test a ... ok", ""][..], &failures].concat());
    }

    #[test]
    fn a_change_of_any_manifest_invalidates_the_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for directory in ["crates/a", "xtask", "fuzz"] {
            std::fs::create_dir_all(path(directory)).unwrap();
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
