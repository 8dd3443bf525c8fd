//! `cargo xtask test`: checks and the quick cases, as continuous integration runs them.
//!
//! Compilers and tests leave CPUs idle for much of the time. Therefore the guest root is built in parallel with the programs, and cases in
//! virtual time, which other load does not affect, run in parallel with everything else, at a lower priority. Cases on the wall clock run at the
//! end. Tests start after the guest root is built, because some observe the host's file systems and mounts.

use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use bulkhead_lab::{Lab, say};
use tokio::sync::watch;

use crate::lab::Programs;
use crate::{chart, check, deb, lab};

/// Runs everything, and stops at the first failed check.
///
/// # Errors
/// The check or the preparation that failed.
pub(crate) fn run() -> Result<ExitCode> {
    let mut phases = Phases::new();
    let (checks_ended, checks) = watch::channel(None);
    let (provided, is_provided) = mpsc::channel();
    let (built, is_built) = mpsc::channel();
    let (checked, ran) = std::thread::scope(|scope| {
        let lab = scope.spawn(move || {
            provide_root()?;
            // If the checks have failed, they no longer wait for it.
            let _ = provided.send(());
            match is_built.recv() {
                Ok(()) => lab::run_quick(&checks),
                Err(_) => Ok(ExitCode::FAILURE),
            }
        });
        let checked = build_programs(&mut phases).and_then(|()| {
            let _ = built.send(());
            run_checks(&mut phases, &is_provided)
        });
        if let Err(error) = &checked
            && !lab.is_finished()
        {
            say::progress(format!("{error:#}; ending the lab"));
        }
        drop(built);
        checks_ended.send_replace(Some(checked.is_ok()));
        (checked, lab.join())
    });
    let code = ran.map_err(|_| anyhow!("the lab panicked"))??;
    checked?;
    phases.end("rest of the lab");
    say::progress(phases.describe());
    Ok(code)
}

/// Builds the programs for the lab, before the tests, because cargo runs one build at a time.
fn build_programs(phases: &mut Phases) -> Result<()> {
    check::lints()?;
    lab::build(&Programs::DEV)?;
    phases.end("lints and programs");
    Ok(())
}

/// Runs the tests, builds the package that cases on the wall clock install, and checks the dependencies.
fn run_checks(phases: &mut Phases, is_provided: &Receiver<()>) -> Result<()> {
    check::build_tests()?;
    is_provided.recv().context("the preparation of the lab failed")?;
    phases.end("building tests");
    check::tests()?;
    phases.end("tests");
    deb::make(false)?;
    chart::check_recorded()?;
    check::dependencies()?;
    phases.end("package, chart and dependencies");
    Ok(())
}

/// The durations of the phases of a run.
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

    /// Ends the current phase, and starts the next one.
    fn end(&mut self, name: &str) {
        self.described.push(format!("{name} {:.0} s", self.last_end.elapsed().as_secs_f64()));
        self.last_end = Instant::now();
    }

    fn describe(&self) -> String {
        format!("{:.0} s: {}", self.begin.elapsed().as_secs_f64(), self.described.join(", "))
    }
}

fn provide_root() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the asynchronous runtime")?.block_on(Lab::provide_root())
}
