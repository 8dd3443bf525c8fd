//! `cargo xtask deb`: builds the Debian package with cargo-deb, from the list in `crates/cli/Cargo.toml`.
//!
//! Owns: the build of the programs, the shell completions that the program generates, and the path of the package. Does not: know its content.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bulkhead_lab::host_command;

use crate::check::{QUICKLY, cargo, installed, run_command};
use crate::lab::{programs_dir, target_dir, workspace};

/// The version to install if none is installed.
const CARGO_DEB_VERSION: &str = "3.8.0";

/// Largest size of the shipped program without symbols.
const MAX_PROGRAM_BYTES: u64 = 25_000_000;

/// Completions, by shell, with their file names in the package.
const COMPLETIONS: [(&str, &str); 3] = [("bash", "bulkhead.bash"), ("zsh", "_bulkhead"), ("fish", "bulkhead.fish")];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Package development builds, which takes less time
    #[arg(long)]
    debug: bool,
    /// Package existing programs without building them
    #[arg(long)]
    no_build: bool,
}

/// Builds the package, and reports its path.
///
/// # Errors
/// A failed build of the programs, or a missing or failed cargo-deb.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let is_release = !arguments.debug;
    if !arguments.no_build {
        cargo(&[
            "build",
            "--locked",
            "--bin",
            "bulkhead",
            "--bin",
            "bulkhead-runtime",
            "--profile",
            profile(is_release),
        ])?;
    }
    if is_release {
        is_small(&programs_dir(is_release).join("bulkhead"))?;
    }
    let package = make(is_release)?;
    bulkhead_lab::say::progress(format!("built {}", package.display()));
    Ok(())
}

/// Fails if a program, without symbols, has more than [`MAX_PROGRAM_BYTES`].
fn is_small(program: &Path) -> Result<()> {
    let directory = target_dir().join("packaging");
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let stripped = directory.join("stripped");
    let [from, to] = [program, &stripped].map(|path| path.to_string_lossy().into_owned());
    run_command(Path::new("strip"), &["-o", &to, &from])?;
    let bytes = std::fs::metadata(&stripped).with_context(|| format!("cannot read {}", stripped.display()))?.len();
    ensure!(
        bytes <= MAX_PROGRAM_BYTES,
        "{} has {bytes} bytes without symbols, more than {MAX_PROGRAM_BYTES}: see [profile.release] in Cargo.toml",
        program.display()
    );
    bulkhead_lab::say::progress(format!("{} has {bytes} bytes without symbols", program.display()));
    Ok(())
}

/// Builds the package from existing programs.
pub(crate) fn make(is_release: bool) -> Result<PathBuf> {
    let (profile, program) = (profile(is_release), programs_dir(is_release).join("bulkhead"));
    // The path in the package's manifest.
    write_completions(&program, &workspace().join("target/packaging"))?;
    let cargo_deb = installed("cargo-deb", CARGO_DEB_VERSION, QUICKLY)?;
    let package = path(is_release);
    let manifest = workspace().join("crates/cli/Cargo.toml");
    let [package_text, manifest] = [&package, &manifest].map(|path| path.to_string_lossy().into_owned());
    run_command(
        &cargo_deb,
        &[
            "deb",
            "--quiet",
            "--locked",
            "--no-build",
            "--fast",
            "--profile",
            profile,
            "--manifest-path",
            &manifest,
            "-o",
            &package_text,
        ],
    )?;
    Ok(package)
}

/// The path of the package.
pub(crate) fn path(is_release: bool) -> PathBuf {
    target_dir().join(format!("debian/bulkhead-{}.deb", profile(is_release)))
}

/// The name of the cargo profile.
const fn profile(is_release: bool) -> &'static str {
    if is_release { "release" } else { "dev" }
}

fn write_completions(program: &Path, directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    for (shell, name) in COMPLETIONS {
        let output = host_command(program).args(["completions", shell]).output();
        let output = output.with_context(|| format!("cannot run {}: build it first", program.display()))?;
        let path = directory.join(name);
        std::fs::write(&path, output.stdout).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
