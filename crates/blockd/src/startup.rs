//! Starting a process in the background: the caller waits for its report, which says that it is ready or why it failed.

use std::io;
use std::path::Path;

use bulkhead_core::error::chain;
use bulkhead_sys::background::{self, BackgroundError, Report, Side};
use bulkhead_sys::roots::Roots;

/// How the report of a process that is ready begins; a result may follow.
const READY: &str = "ready ";

/// Why a background process could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// This process cannot go to the background.
    #[error(transparent)]
    Background(#[from] BackgroundError),
    /// A file, socket or thread of the process failed.
    #[error("cannot {step}")]
    Step {
        /// What was tried.
        step: &'static str,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The background process reported an error, or exited without a report.
    #[error("{report}")]
    Failed {
        /// Its report.
        report: String,
    },
}

impl StartError {
    /// Adds the step that failed to an I/O error.
    pub(crate) fn at(step: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Step { step, source }
    }
}

/// Runs `run` in the background and waits until it is ready. Returns its result in the foreground, and `None` in the background, after
/// `run` has returned. `start_log` is called in the background first.
///
/// # Errors
/// [`StartError`]. Call it before any thread is started.
pub(crate) fn start<E: std::error::Error + 'static>(
    roots: &Roots,
    log: &Path,
    start_log: impl FnOnce(),
    run: impl FnOnce(&mut Startup) -> Result<(), E>,
) -> Result<Option<String>, StartError> {
    match background::daemonize(roots, log)? {
        Side::Foreground { report: said } => match said.strip_prefix(READY) {
            Some(result) => Ok(Some(result.to_owned())),
            None if said.is_empty() => {
                Err(StartError::Failed { report: format!("it exited during its start; {} may say why", log.display()) })
            }
            None => Err(StartError::Failed { report: said }),
        },
        Side::Background(report) => {
            start_log();
            let mut startup = Startup(Some(report));
            if let Err(error) = run(&mut startup) {
                let why = chain(&error);
                tracing::error!(why, "exiting after an error");
                startup.report(&why);
            }
            Ok(None)
        }
    }
}

/// The report of a background process that is still to be made.
#[derive(Debug)]
pub(crate) struct Startup(Option<Report>);

impl Startup {
    /// Reports that the process is ready, with its result.
    pub(crate) fn ready(&mut self, result: impl std::fmt::Display) {
        self.report(&format!("{READY}{result}"));
    }

    /// Only the first report is sent.
    fn report(&mut self, text: &str) {
        if let Some(report) = self.0.take() {
            // The foreground process may have been killed.
            let _ = report.send(text);
        }
    }
}
