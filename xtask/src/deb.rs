//! `cargo xtask deb`: the Debian package, made by cargo-deb of what `crates/cli/Cargo.toml` lists.
//!
//! Owns: the build of the program, what the program itself writes for the package (completions), and where the package goes. Does not
//! know what is in it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bulkhead_lab::host_command;

use crate::check::{QUICKLY, cargo, installed, run_command};
use crate::lab::{programs_dir, target_dir, workspace};

/// The version that is installed when there is none.
const CARGO_DEB_VERSION: &str = "3.8.0";

/// Completions, by the shell and the file that the package takes.
const COMPLETIONS: [(&str, &str); 3] = [("bash", "bulkhead.bash"), ("zsh", "_bulkhead"), ("fish", "bulkhead.fish")];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Of programs that are not optimised, which takes less time
    #[arg(long)]
    debug: bool,
    /// Of the programs that are there already
    #[arg(long)]
    no_build: bool,
}

/// Makes the package, and says where it is.
///
/// # Errors
/// When the program does not build, or cargo-deb cannot be had or fails.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let is_release = !arguments.debug;
    if !arguments.no_build {
        cargo(&["build", "--locked", "--bin", "bulkhead", "--profile", profile(is_release)])?;
    }
    let package = make(is_release)?;
    bulkhead_lab::say::progress(format!("made {}", package.display()));
    Ok(())
}

/// Makes the package of the programs that are there.
pub(crate) fn make(is_release: bool) -> Result<PathBuf> {
    let (profile, program) = (profile(is_release), programs_dir(is_release).join("bulkhead"));
    // Where the manifest of the package looks for them.
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

/// Where it goes.
pub(crate) fn path(is_release: bool) -> PathBuf {
    target_dir().join(format!("debian/bulkhead-{}.deb", profile(is_release)))
}

/// What cargo calls it.
const fn profile(is_release: bool) -> &'static str {
    if is_release { "release" } else { "dev" }
}

fn write_completions(program: &Path, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (shell, name) in COMPLETIONS {
        let output = host_command(program).args(["completions", shell]).output();
        let output = output.with_context(|| format!("cannot run {}: build it first", program.display()))?;
        let path = folder.join(name);
        std::fs::write(&path, output.stdout).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
