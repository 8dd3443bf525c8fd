//! `bulkhead-runtime`: the program. See the library.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use bulkhead_core::error::chain;
use bulkhead_runtime::arguments::{self, Arguments};
use bulkhead_runtime::log::Level;
use bulkhead_runtime::settings::{self, Settings};
use bulkhead_runtime::{place, real};

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let arguments = arguments::parse(&words);
    let error = start(&arguments, &words);
    // As runc does it: engines read the log, people read standard error.
    let _ = arguments.log.write(Level::Error, &error);
    if arguments.log.file.is_some() {
        let _ = writeln!(std::io::stderr(), "bulkhead-runtime: {error}");
    }
    ExitCode::FAILURE
}

/// Executes the real runtime; returns why that is not possible.
#[expect(clippy::disallowed_methods, reason = "this program is replaced by another one, without a shell")]
fn start(arguments: &Arguments, words: &[OsString]) -> String {
    let file = std::env::var_os(settings::FILE_VARIABLE);
    let settings = match Settings::load(file.as_deref()) {
        Ok(settings) => settings,
        Err(error) => return chain(&error),
    };
    let own = std::fs::metadata("/proc/self/exe").ok();
    let runtime = match real::find(&settings.runtimes, std::env::var_os("PATH").as_deref(), own.as_ref()) {
        Ok(runtime) => runtime,
        Err(error) => return chain(&error),
    };
    if let Some(container) = &arguments.container
        && let Err(error) = place::place(container, &settings, place::ANSWER)
    {
        let message = format!("the container is not put into its tenant's slice: {}", chain(&error));
        // A log that cannot be written does not keep the container from starting either.
        let _ = arguments.log.write(Level::Warning, &message);
    }
    let error = Command::new(&runtime).args(words).exec();
    format!("{}: cannot execute it: {error}", runtime.display())
}
