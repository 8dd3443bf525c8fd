//! `cargo xtask test`: checks and the quick cases, as continuous integration runs them.
//!
//! Compilers and tests leave a processor idle for much of the time: the guest root is made beside the compilation of the programs, and
//! cases in virtual time, which do not mind, run beside everything else, at a lower priority. Cases on the wall clock wait. Tests wait for the
//! guest root: some watch the host's file systems and mounts.

use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use bulkhead_lab::{Lab, say};
use tokio::sync::watch;

use crate::lab::Programs;
use crate::{check, deb, lab};

/// Runs all of it; the first check that fails ends it.
///
/// # Errors
/// Names the check that failed, or what could not be made.
pub(crate) fn run() -> Result<ExitCode> {
    let mut phases = Phases::new();
    let (ended, beside) = watch::channel(None);
    let (provided, is_provided) = mpsc::channel();
    let (built, is_built) = mpsc::channel();
    let (checked, ran) = std::thread::scope(|scope| {
        let lab = scope.spawn(move || {
            provide_root()?;
            // Whoever has failed no longer waits for it.
            let _ = provided.send(());
            match is_built.recv() {
                Ok(()) => lab::run_quick(&beside),
                Err(_) => Ok(ExitCode::FAILURE),
            }
        });
        let checked = build_programs(&mut phases).and_then(|()| {
            let _ = built.send(());
            checks(&mut phases, &is_provided)
        });
        if let Err(error) = &checked
            && !lab.is_finished()
        {
            say::progress(format!("{error:#}; ending the lab"));
        }
        drop(built);
        ended.send_replace(Some(checked.is_ok()));
        (checked, lab.join())
    });
    let code = ran.map_err(|_| anyhow!("the lab panicked"))??;
    checked?;
    phases.end("rest of the lab");
    say::progress(phases.describe());
    Ok(code)
}

/// What the lab runs. Before the tests, because cargo builds one thing at a time.
fn build_programs(phases: &mut Phases) -> Result<()> {
    check::lints()?;
    lab::build(&Programs::DEV)?;
    phases.end("lints and programs");
    Ok(())
}

/// The tests, the package that cases on the wall clock install, and the dependencies.
fn checks(phases: &mut Phases, is_provided: &Receiver<()>) -> Result<()> {
    check::build_tests()?;
    is_provided.recv().context("what the lab needs cannot be made")?;
    phases.end("building tests");
    check::tests()?;
    phases.end("tests");
    deb::make(false)?;
    check::dependencies()?;
    phases.end("package and dependencies");
    Ok(())
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

fn provide_root() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the asynchronous runtime")?.block_on(Lab::provide_root())
}
