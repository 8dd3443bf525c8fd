//! Streams between this process and a job of the daemon's: the bytes are moved as they are, and the job says what came of them.
//!
//! What goes wrong at our end is told here; at the other end, by the job. When this process ends, the stream does, and with it the job.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use bulkhead_api::client::{Client, Stream};
use bulkhead_api::wire::{JobResult, JobState, JobView};
use bulkhead_core::error::{Code, Fault};
use indicatif::ProgressBar;
use tokio::sync::oneshot;

use crate::progress;

/// How often it is asked how far a job is.
const LOOK: Duration = Duration::from_secs(1);

/// How much is moved at a time, in bytes.
const PIECE: usize = 256 << 10;

/// Standard input or output as a file, without a buffer that looks for lines.
///
/// # Errors
/// When it is closed.
pub(crate) fn file(of: impl AsFd, name: &str) -> Result<File, Fault> {
    let failed = |error: io::Error| Fault::new(Code::Internal, name, error);
    of.as_fd().try_clone_to_owned().map(File::from).map_err(failed)
}

/// Writes what a job sends; returns what came of the job.
///
/// # Errors
/// The job's fault; that it cannot be written.
pub(crate) async fn write(
    client: &Client,
    stream: Stream,
    mut out: File,
    bar: &ProgressBar,
) -> Result<JobResult, Fault> {
    let Stream { job, socket, ahead } = stream;
    let mut moved = on_a_thread(move || {
        let failed = |error: io::Error| {
            let code = if error.kind() == io::ErrorKind::StorageFull { Code::NoSpace } else { Code::Internal };
            Fault::new(code, "standard output", format!("it cannot be written ({error})"))
        };
        out.write_all(&ahead).map_err(failed)?;
        let (mut socket, mut buffer) = (socket, vec![0; PIECE]);
        loop {
            match socket.read(&mut buffer) {
                // Whether that is all of it, the job knows.
                Ok(0) | Err(_) => return Ok(()),
                Ok(n) => out.write_all(&buffer[..n]).map_err(failed)?,
            }
        }
    });
    let result = follow(client, job, &mut moved, bar).await?;
    // What was sent is still on its way to where it is written.
    moved.end().await?;
    Ok(result)
}

/// Has a job read what `feed` writes; returns what came of the job.
///
/// # Errors
/// The job's fault; what `feed` fails with, unless nobody reads any more.
pub(crate) async fn feed(
    client: &Client,
    stream: Stream,
    feed: impl FnOnce(&mut Feed) -> Result<(), Fault> + Send + 'static,
    bar: &ProgressBar,
) -> Result<JobResult, Fault> {
    let Stream { job, socket, .. } = stream;
    // As long as this end is open, the job sees that somebody is there.
    let ours = socket.try_clone().map_err(|error| Fault::new(Code::Internal, "stream", error))?;
    let mut moved = on_a_thread(move || {
        let mut out = Feed { socket, is_read: true };
        let fed = feed(&mut out);
        if out.is_read {
            fed?;
            // Fails when nobody reads any more: who does not, has said why, or will.
            drop(out.socket.shutdown(Shutdown::Write));
        }
        Ok(())
    });
    let result = follow(client, job, &mut moved, bar).await;
    drop(ours);
    result
}

/// What a job reads.
pub(crate) struct Feed {
    socket: UnixStream,
    is_read: bool,
}

impl Feed {
    /// Moves all that an input has.
    ///
    /// # Errors
    /// That it cannot be read; that nobody reads what is written.
    pub(crate) fn all_of(&mut self, input: &mut impl Read, name: &str) -> Result<(), Fault> {
        let failed = |error: io::Error| Fault::new(Code::Internal, name, format!("it cannot be transferred ({error})"));
        let mut buffer = vec![0; PIECE];
        loop {
            match input.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => self.write_all(&buffer[..n]).map_err(failed)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

impl Write for Feed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes).inspect_err(|error| self.is_read &= error.kind() == io::ErrorKind::Interrupted)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a thread moves, which is not waited for when there is nothing to wait for any more.
struct Moving(Option<oneshot::Receiver<Result<(), Fault>>>);

fn on_a_thread(work: impl FnOnce() -> Result<(), Fault> + Send + 'static) -> Moving {
    let (ended, end) = oneshot::channel();
    // Nobody may be interested in how it ended.
    thread::spawn(move || drop(ended.send(work())));
    Moving(Some(end))
}

impl Moving {
    /// Resolves when all is moved; at once when it was told that before.
    async fn end(&mut self) -> Result<(), Fault> {
        let Some(end) = &mut self.0 else { return Ok(()) };
        let outcome = end
            .await
            .unwrap_or_else(|_| Err(Fault::new(Code::Internal, "stream", "it was aborted by a bug in Bulkhead")));
        self.0 = None;
        outcome
    }

    fn goes_on(&self) -> bool {
        self.0.is_some()
    }
}

/// Waits for the end of a job.
async fn follow(client: &Client, job: u64, moved: &mut Moving, bar: &ProgressBar) -> Result<JobResult, Fault> {
    loop {
        let goes_on = moved.goes_on();
        let view = tokio::select! {
            view = client.job_at_end(job, LOOK) => view.map_err(lost)?,
            moved = moved.end(), if goes_on => {
                moved?;
                continue;
            }
        };
        if let Some(progress) = view.progress {
            progress::has_come(bar, progress);
        }
        match view.state {
            JobState::Waiting | JobState::Running => {}
            JobState::Done | JobState::Failed | JobState::Cancelled => return outcome(view),
        }
    }
}

/// What came of a job that has ended.
///
/// # Errors
/// Its fault.
pub(crate) fn outcome(view: JobView) -> Result<JobResult, Fault> {
    let unknown = || Fault::new(Code::Internal, format!("job {}", view.id), "its outcome is unknown");
    match view.fault {
        Some(fault) => Err(fault),
        None => view.result.ok_or_else(unknown),
    }
}

/// A daemon that was started meanwhile knows nothing of the job.
pub(crate) fn lost(fault: Fault) -> Fault {
    match fault.code {
        Code::NotFound => Fault::new(Code::Unavailable, "daemon", "it was restarted in the meantime").hint("try again"),
        _ => fault,
    }
}
