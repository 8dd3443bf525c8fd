//! Streams between this process and a job of the daemon. The bytes are copied unchanged; the job reports the result.
//!
//! Owns: errors at this end of the stream. Does not: report errors at the other end, which are the job's. When this process ends, the stream
//! ends, and the job with it.

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

/// Interval between polls of a job's progress.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Size of the copy buffer, in bytes.
const BUFFER_BYTES: usize = 256 << 10;

/// Standard input or output as a file, without line buffering.
///
/// # Errors
/// If it is closed.
pub(crate) fn file(of: impl AsFd, name: &str) -> Result<File, Fault> {
    let failed = |error: io::Error| Fault::new(Code::Internal, name, error);
    of.as_fd().try_clone_to_owned().map(File::from).map_err(failed)
}

/// Copies a job's stream to a file, and returns the job's result.
///
/// # Errors
/// The job's fault, and a failed write.
pub(crate) async fn write(
    client: &Client,
    stream: Stream,
    mut out: File,
    bar: &ProgressBar,
) -> Result<JobResult, Fault> {
    let Stream { job, socket, ahead } = stream;
    let mut copying = spawn_copy(move || {
        let failed = |error: io::Error| {
            Fault::new(Code::of_io(error.kind()), "standard output", format!("it cannot be written ({error})"))
        };
        out.write_all(&ahead).map_err(failed)?;
        let (mut socket, mut buffer) = (socket, vec![0; BUFFER_BYTES]);
        loop {
            match socket.read(&mut buffer) {
                // The job reports whether the stream was complete.
                Ok(0) | Err(_) => return Ok(()),
                Ok(n) => out.write_all(&buffer[..n]).map_err(failed)?,
            }
        }
    });
    let result = follow(client, job, &mut copying, bar).await?;
    // The last bytes that the job sent may not be written yet.
    copying.end().await?;
    Ok(result)
}

/// Sends the output of `feed` to a job, and returns the job's result.
///
/// # Errors
/// The job's fault, and the error of `feed` unless the job has stopped reading.
pub(crate) async fn feed(
    client: &Client,
    stream: Stream,
    feed: impl FnOnce(&mut Feed) -> Result<(), Fault> + Send + 'static,
    bar: &ProgressBar,
) -> Result<JobResult, Fault> {
    let Stream { job, socket, .. } = stream;
    // The job interprets a closed socket as a client that has disconnected.
    let ours = socket.try_clone().map_err(|error| Fault::new(Code::Internal, "stream", error))?;
    let mut copying = spawn_copy(move || {
        let mut out = Feed { socket, is_read: true };
        let fed = feed(&mut out);
        if out.is_read {
            fed?;
            // Fails if the job has stopped reading, for which the job reports the reason.
            drop(out.socket.shutdown(Shutdown::Write));
        }
        Ok(())
    });
    let result = follow(client, job, &mut copying, bar).await;
    drop(ours);
    result
}

/// The input of a job.
pub(crate) struct Feed {
    socket: UnixStream,
    is_read: bool,
}

impl Feed {
    /// Copies all bytes of an input to the job.
    ///
    /// # Errors
    /// A failed read of the input, and a job that has stopped reading.
    pub(crate) fn copy_from(&mut self, input: &mut impl Read, name: &str) -> Result<(), Fault> {
        let failed = |error: io::Error| Fault::new(Code::Internal, name, format!("it cannot be transferred ({error})"));
        let mut buffer = vec![0; BUFFER_BYTES];
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

/// A copying thread, which is not joined when the job fails.
struct Copying(Option<oneshot::Receiver<Result<(), Fault>>>);

fn spawn_copy(work: impl FnOnce() -> Result<(), Fault> + Send + 'static) -> Copying {
    let (ended, end) = oneshot::channel();
    // The receiver may be gone.
    thread::spawn(move || drop(ended.send(work())));
    Copying(Some(end))
}

impl Copying {
    /// Resolves when everything is copied; at once if it has resolved before.
    async fn end(&mut self) -> Result<(), Fault> {
        let Some(end) = &mut self.0 else { return Ok(()) };
        let outcome = end
            .await
            .unwrap_or_else(|_| Err(Fault::new(Code::Internal, "stream", "it was aborted by a bug in Bulkhead")));
        self.0 = None;
        outcome
    }

    fn is_running(&self) -> bool {
        self.0.is_some()
    }
}

/// Waits for the end of a job.
async fn follow(client: &Client, job: u64, copying: &mut Copying, bar: &ProgressBar) -> Result<JobResult, Fault> {
    loop {
        let is_copying = copying.is_running();
        let view = tokio::select! {
            view = client.job_at_end(job, POLL_INTERVAL) => view.map_err(lost)?,
            copied = copying.end(), if is_copying => {
                copied?;
                continue;
            }
        };
        if let Some(progress) = view.progress {
            progress::update(bar, progress);
        }
        match view.state {
            JobState::Waiting | JobState::Running => {}
            JobState::Done | JobState::Failed | JobState::Cancelled => return outcome(view),
        }
    }
}

/// The result of a job that has ended.
///
/// # Errors
/// The job's fault.
pub(crate) fn outcome(view: JobView) -> Result<JobResult, Fault> {
    let unknown = || Fault::new(Code::Internal, format!("job {}", view.id), "its outcome is unknown");
    match view.fault {
        Some(fault) => Err(fault),
        None => view.result.ok_or_else(unknown),
    }
}

/// A missing job means that the daemon was restarted in the meantime.
pub(crate) fn lost(fault: Fault) -> Fault {
    match fault.code {
        Code::NotFound => Fault::new(Code::Unavailable, "daemon", "it was restarted in the meantime").hint("try again"),
        _ => fault,
    }
}
