//! Host-side handle of a process in a guest.
//!
//! Dropping the handle does not end the process: a case that starts a daemon must stop it, or the leak check fails.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tokio::time::Instant;

use crate::channel::{Channel, Events, gone};
use crate::clock::Clock;
use crate::protocol::{Event, ExitStatus, Payload, Request, Stream};

/// Result of a finished program.
#[derive(Debug, Clone)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Its standard error output.
    pub stderr: String,
}

impl Output {
    /// Returns the output of a program that must succeed.
    ///
    /// # Errors
    /// When it failed, with `what` and the program's error output.
    pub fn success(self, what: &str) -> Result<Self> {
        if self.status.success() {
            return Ok(self);
        }
        bail!("{what} failed in the guest ({}): {}{}", self.status, self.stderr.trim(), stdout_suffix(&self.stdout));
    }
}

fn stdout_suffix(stdout: &str) -> String {
    let stdout = stdout.trim();
    if stdout.is_empty() { String::new() } else { format!("\nstdout: {stdout}") }
}

/// A running (or finished) process in the guest.
#[derive(Debug)]
pub struct Process {
    channel: Channel,
    id: u64,
    pid: u32,
    name: String,
    events: Events,
    /// Number of its events received.
    n_seen: u64,
    /// Clock of its machine.
    clock: Clock,
}

impl Process {
    pub(crate) async fn start(
        channel: &Channel,
        clock: Clock,
        argv: &[&str],
        env: &[(&str, &str)],
        stdin: &[u8],
    ) -> Result<Self> {
        let name = argv.first().copied().unwrap_or_default().to_owned();
        let request = Request::Spawn {
            argv: argv.iter().map(|&arg| arg.to_owned()).collect(),
            env: env.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect(),
            stdin: Payload::new(stdin),
        };
        let (id, mut events) = channel.send(request).await?;
        match events.recv().await {
            Some(Event::Started { pid }) => {
                Ok(Self { channel: channel.clone(), id, pid, name, events, n_seen: 1, clock })
            }
            Some(Event::Failed { message }) => bail!("the agent reports: {message}"),
            Some(other) => bail!("the agent answered the start of {name} with {other:?}"),
            None => Err(gone()),
        }
    }

    /// Its process number in the guest.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The next chunk of output, or the exit status.
    ///
    /// # Errors
    /// When the machine ends first.
    pub async fn next(&mut self) -> Result<ProcessEvent> {
        let event = match self.events.try_recv() {
            Ok(event) => Some(event),
            Err(_) => {
                self.channel.notify(Request::Await { target: self.id, seen: self.n_seen }).await?;
                self.events.recv().await
            }
        };
        self.n_seen += 1;
        match event {
            Some(Event::Output { stream, data }) => {
                let data =
                    data.into_bytes().ok_or_else(|| anyhow!("output of {} was damaged in transit", self.name))?;
                Ok(ProcessEvent::Output(stream, data))
            }
            Some(Event::Exited(status)) => Ok(ProcessEvent::Exited(status)),
            Some(Event::Failed { message }) => bail!("the agent reports: {message}"),
            Some(other) => bail!("the agent sent {other:?} while {} runs", self.name),
            None => Err(gone()),
        }
    }

    /// Waits for its end without letting the guest's time run. Returns its output, or `None` when the machine ended
    /// first.
    pub(crate) async fn untimed_end(mut self) -> Option<String> {
        let mut output = String::new();
        loop {
            match self.events.recv().await? {
                Event::Output { data, .. } => output.push_str(&String::from_utf8_lossy(&data.into_bytes()?)),
                Event::Exited(status) => return Some(format!("{status} {}", output.trim())),
                _ => return Some(output),
            }
        }
    }

    /// Waits for its end and returns all output not read by [`Process::next`]. The process group is killed when the
    /// deadline (on the host's clock; four times as long in virtual time) has passed.
    ///
    /// # Errors
    /// When the deadline has passed (with the output so far), or the machine ends first.
    pub async fn wait(mut self, deadline: Duration) -> Result<Output> {
        let deadline = self.clock.patience(deadline);
        let end = Instant::now() + deadline;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let status = loop {
            match tokio::time::timeout_at(end, self.next()).await {
                Ok(Ok(ProcessEvent::Output(Stream::Stdout, data))) => stdout.extend(data),
                Ok(Ok(ProcessEvent::Output(Stream::Stderr, data))) => stderr.extend(data),
                Ok(Ok(ProcessEvent::Exited(status))) => break status,
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    let killed = self.kill_group(9).await;
                    let text = String::from_utf8_lossy(&[stdout, stderr].concat()).trim().to_owned();
                    let error =
                        anyhow!("{} did not end within {} s; its output: {text}", self.name, deadline.as_secs());
                    return match killed {
                        Ok(()) => Err(error),
                        Err(kill) => Err(error.context(format!("and it could not be killed: {kill:#}"))),
                    };
                }
            }
        };
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Output { status, stdout: text(stdout), stderr: text(stderr) })
    }

    /// Sends a signal to the process itself.
    ///
    /// # Errors
    /// When it has ended already.
    pub async fn kill(&self, signal: i32) -> Result<()> {
        self.signal(signal, false).await
    }

    /// Sends a signal to the process group.
    ///
    /// # Errors
    /// When it has ended already.
    pub async fn kill_group(&self, signal: i32) -> Result<()> {
        self.signal(signal, true).await
    }

    async fn signal(&self, signal: i32, group: bool) -> Result<()> {
        let request = Request::Signal { target: self.id, signal, group };
        let answer = tokio::time::timeout(Duration::from_secs(30), self.channel.ask(request)).await;
        answer
            .with_context(|| format!("no answer to signal {signal} for {}", self.name))?
            .with_context(|| format!("cannot send signal {signal} to {} in the guest", self.name))
            .map(drop)
    }
}

/// Result of [`Process::next`].
#[derive(Debug)]
pub enum ProcessEvent {
    /// A chunk of output.
    Output(Stream, Vec<u8>),
    /// The process has ended; no event follows.
    Exited(ExitStatus),
}
