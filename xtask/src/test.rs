//! `cargo xtask test`: checks and the quick cases, as continuous integration runs them.
//!
//! What the lab takes from elsewhere (its guest root, tools of crates.io) is made while the tests are built, because it leaves a processor
//! idle. Not while they run: some watch the host's file systems and mounts.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use bulkhead_lab::{Lab, say};

use crate::{check, deb, lab};

/// Runs all of it; the first failure ends it.
///
/// # Errors
/// Names the check that failed, or what could not be made.
pub(crate) fn run() -> Result<ExitCode> {
    let mut phases = Phases::new();
    check::lints()?;
    phases.end("lints");
    let (built, provided) = std::thread::scope(|scope| {
        let provided = scope.spawn(provide);
        let built = check::build_tests();
        if built.is_err() && !provided.is_finished() {
            say::progress("the tests do not build; what the lab needs is still being made");
        }
        (built, provided.join())
    });
    built?;
    provided.map_err(|_| anyhow!("making what the lab needs panicked"))??;
    phases.end("building tests");
    check::tests()?;
    check::dependencies()?;
    phases.end("tests");
    let code = lab::run_quick()?;
    phases.end("lab");
    say::progress(phases.describe());
    Ok(code)
}

/// How long each part of a run took.
struct Phases {
    begin: Instant,
    last_end: Instant,
    described: Vec<String>,
}

impl Phases {
    fn new() -> Self {
        let begin = Instant::now();
        Self { begin, last_end: begin, described: Vec::new() }
    }

    /// Ends the phase that began with the end of the one before.
    fn end(&mut self, name: &str) {
        self.described.push(format!("{name} {:.0} s", self.last_end.elapsed().as_secs_f64()));
        self.last_end = Instant::now();
    }

    fn describe(&self) -> String {
        format!("{:.0} s: {}", self.begin.elapsed().as_secs_f64(), self.described.join(", "))
    }
}

fn provide() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the asynchronous runtime")?.block_on(Lab::provide_root())?;
    check::cargo_deny()?;
    deb::cargo_deb().map(drop)
}
