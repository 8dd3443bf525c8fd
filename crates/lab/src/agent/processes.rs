//! The processes that the agent started: their output, their exit, signals to them.
//!
//! Each gets its own process group and a fixed environment. A pid is removed from the table before its process is
//! reaped, so a signal cannot reach another process. Does not: hold guest time (`hold`).

use std::collections::HashMap;
use std::io::{Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use super::Replies;
use super::hold::Running;
use crate::command::command;
use crate::protocol::{Event, ExitStatus, Payload, Stream};

/// How long to keep reading after the process has exited: a child may still hold its output open.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);
const CHUNK_BYTES: usize = 32 * 1024;
const ENVIRONMENT: [(&str, &str); 5] = [
    ("PATH", "/lab/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/root"),
    ("LC_ALL", "C.UTF-8"),
    ("TERM", "dumb"),
    ("LVM_SUPPRESS_FD_WARNINGS", "1"),
];

/// Running processes: request id to pid.
#[derive(Debug, Clone, Default)]
pub(super) struct Processes {
    running: Arc<Mutex<HashMap<u64, Pid>>>,
}

impl Processes {
    fn table(&self) -> MutexGuard<'_, HashMap<u64, Pid>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a command to completion, and reports its start, output and exit as events of request `id`. Guest time runs
    /// until it has started.
    pub(super) fn run(
        &self,
        id: u64,
        argv: &[String],
        env: Vec<(String, String)>,
        stdin: Payload,
        replies: &Replies,
        starting: Running,
    ) -> Result<()> {
        let (program, args) = argv.split_first().ok_or_else(|| anyhow!("the command is empty"))?;
        let input = stdin.into_bytes().ok_or_else(|| anyhow!("standard input is not valid hexadecimal"))?;
        let mut child = command(program)
            .args(args)
            .env_clear()
            .envs(ENVIRONMENT)
            .envs(env)
            .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {program} in the guest"))?;
        let pid = Pid::from_child(&child);
        self.table().insert(id, pid);
        replies.send(id, Event::Started { pid: child.id() });
        drop(starting);

        if let Some(mut pipe) = child.stdin.take() {
            // A process need not read its input to the end.
            std::thread::spawn(move || drop(pipe.write_all(&input)));
        }
        let (done, all_done) = mpsc::channel();
        if let Some(pipe) = child.stdout.take() {
            forward(id, Stream::Stdout, pipe, replies.clone(), done.clone());
        }
        if let Some(pipe) = child.stderr.take() {
            forward(id, Stream::Stderr, pipe, replies.clone(), done.clone());
        }
        drop(done);

        let waited = rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        self.table().remove(&id);
        waited.with_context(|| format!("cannot wait for {program}"))?;
        let status = child.wait().with_context(|| format!("cannot reap {program}"))?;
        let end = Instant::now() + OUTPUT_GRACE;
        // Disconnected: both readers saw the end. Timeout: a child of the process holds the pipe; give up on it.
        while let Ok(()) = all_done.recv_timeout(end.saturating_duration_since(Instant::now())) {}

        let status = match (status.code(), status.signal()) {
            (Some(code), _) => ExitStatus::Code(code),
            (None, Some(signal)) => ExitStatus::Signal(signal),
            (None, None) => return Err(anyhow!("{program} neither exited nor was killed by a signal")),
        };
        replies.send(id, Event::Exited(status));
        Ok(())
    }

    /// Sends a signal to a running process.
    pub(super) fn signal(&self, target: u64, signal: i32, group: bool) -> Result<()> {
        let signal = Signal::from_named_raw(signal).ok_or_else(|| anyhow!("{signal} is not a signal"))?;
        // The table stays locked, so the process cannot be reaped in between.
        let table = self.table();
        let pid = *table.get(&target).ok_or_else(|| anyhow!("the process has ended already"))?;
        let sent = if group {
            rustix::process::kill_process_group(pid, signal)
        } else {
            rustix::process::kill_process(pid, signal)
        };
        sent.with_context(|| format!("cannot signal process {}", pid.as_raw_nonzero()))
    }

    /// Kills all running processes, before the machine is powered off.
    pub(super) fn kill_all(&self) {
        for pid in self.table().values() {
            // It may have just exited.
            let _ = rustix::process::kill_process_group(*pid, Signal::KILL);
        }
    }
}

fn forward(id: u64, stream: Stream, mut pipe: impl Read + Send + 'static, replies: Replies, done: mpsc::Sender<()>) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            replies.send(id, Event::Output { stream, data: Payload::new(&buffer[..count]) });
        }
        drop(done);
    });
}
