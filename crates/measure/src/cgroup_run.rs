//! Load generators as child processes in a tenant's cgroup: started together, and always ended and reaped.
//!
//! Owns: the parent's side of the protocol of [`crate::load`], and the cancellation of an experiment.
//! Does not: start processes itself (`bulkhead_sys::spawn`), or know what a load does.

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_sys::process::is_ignored;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::spawn::{Running, SpawnSpec, Stdout, spawn};

use crate::load::{LoadArgs, LoadResult, READY, WAITING};

/// Interval between checks for cancellation while waiting.
const POLL: Duration = Duration::from_millis(200);
/// Time limit for a load to prepare its files, and to end after its last operation: emulated disks are slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// Cancels an experiment: all waits end with an error, and the set-up is removed.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Not cancelled yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// An error once it is cancelled.
    ///
    /// # Errors
    /// When it was cancelled.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }

    /// From now on, cancels on SIGINT, SIGTERM, SIGHUP or SIGQUIT; ignored signals stay ignored (`nohup`). A child in its own process group
    /// does not receive Ctrl-C of the terminal, so that the experiment can end it in order.
    ///
    /// # Errors
    /// When the signals cannot be watched.
    pub fn on_signals(&self) -> Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start a runtime to watch signals")?;
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];
        let roots = Roots::host();
        let wanted = kinds.into_iter().filter(|kind| !is_ignored(&roots, kind.as_raw_value()));
        let mut signals = {
            let _guard = runtime.enter();
            wanted.map(signal).collect::<Result<Vec<_>, _>>().context("cannot watch signals")?
        };
        let cancel = self.clone();
        std::thread::spawn(move || {
            runtime.block_on(poll_fn(|context| {
                let comes = signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
                if comes { Poll::Ready(()) } else { Poll::Pending }
            }));
            cancel.cancel();
        });
        Ok(())
    }
}

/// Starts children: the program, and what cancels them.
#[derive(Clone, Debug)]
pub struct Starter {
    /// The `bulkhead` program, for `__load`.
    pub program: PathBuf,
    /// What cancels the experiment.
    pub cancel: Cancel,
}

/// A load in a cgroup, prepared and waiting for the start.
#[derive(Debug)]
pub struct Load {
    what: String,
    child: Running,
    cancel: Cancel,
}

impl Starter {
    /// Starts a load in a cgroup; it prepares its files and waits. `args.wait_for_start` is implied.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn load(&self, args: &LoadArgs, cgroup: &Path) -> Result<Load> {
        let args = LoadArgs { wait_for_start: true, ..args.clone() };
        let spec = SpawnSpec {
            program: self.program.clone(),
            args: std::iter::once("__load".to_owned()).chain(args.argv()).map(Into::into).collect(),
            env: Vec::new(),
            cgroup: Some(cgroup.to_owned()),
        };
        let what = format!("load {}", args.kind.as_str());
        let child = spawn(&spec).with_context(|| format!("cannot start {what} in {}", cgroup.display()))?;
        Ok(Load { what, child, cancel: self.cancel.clone() })
    }
}

impl Load {
    /// Waits until its files are prepared.
    ///
    /// # Errors
    /// When it fails, takes too long, or the experiment is cancelled.
    pub fn await_prepared(&self) -> Result<()> {
        self.expect_line(WAITING, PATIENCE)
    }

    /// Starts it.
    ///
    /// # Errors
    /// When it is gone.
    pub fn begin(&mut self) -> Result<()> {
        self.send(b"b")
    }

    /// Waits until its measured window begins.
    ///
    /// # Errors
    /// As [`Load::await_prepared`].
    pub fn await_window(&self, warm_up: Duration) -> Result<()> {
        self.expect_line(READY, warm_up + PATIENCE)
    }

    /// Stops it, and waits for its result.
    ///
    /// # Errors
    /// As [`Load::await_prepared`].
    pub fn finish(mut self) -> Result<LoadResult> {
        self.send(b"e")?;
        let line = self.line(PATIENCE)?;
        let result = serde_json::from_str(&line).with_context(|| format!("{} said {line:?}", self.what))?;
        let code = self.child.wait(PATIENCE).with_context(|| self.what.clone())?;
        if code != Some(0) {
            bail!("{} ended with code {code:?}: {}", self.what, self.child.stderr());
        }
        Ok(result)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        if let Err(error) = self.child.write_stdin(bytes) {
            // The load's own error says more than a broken pipe.
            let said = self.child.stderr();
            return Err(error).context(format!("{} is gone: {said}", self.what));
        }
        Ok(())
    }

    fn expect_line(&self, word: &str, limit: Duration) -> Result<()> {
        let line = self.line(limit)?;
        if line != word {
            bail!("{} said {line:?}, where {word:?} was expected", self.what);
        }
        Ok(())
    }

    fn line(&self, limit: Duration) -> Result<String> {
        let deadline = Instant::now() + limit;
        loop {
            self.cancel.check()?;
            match self.child.read_line(POLL) {
                Stdout::Line(line) => return Ok(line),
                Stdout::Closed => bail!("{} ended early: {}", self.what, self.child.stderr()),
                Stdout::Timeout if Instant::now() >= deadline => {
                    bail!("{} did not answer within {} s", self.what, limit.as_secs())
                }
                Stdout::Timeout => {}
            }
        }
    }
}

/// Waits until a moment, or until the experiment is cancelled.
///
/// # Errors
/// When it is cancelled, or the kernel gives no timer.
pub fn wait_until(moment: Instant, cancel: &Cancel) -> Result<()> {
    let timer = crate::load::Timer::new()?;
    while Instant::now() < moment {
        cancel.check()?;
        timer.wait_until(moment.min(Instant::now() + POLL))?;
    }
    cancel.check()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::LoadKind;

    /// A starter whose program is a shell script, with a directory in place of the cgroup.
    fn starter(dir: &Path, script: &str) -> Starter {
        std::fs::write(dir.join("cgroup.procs"), "").unwrap();
        let (text, program) = (dir.join("text"), dir.join("program"));
        std::fs::write(&text, format!("#!/bin/sh\n{script}\n")).unwrap();
        // Not written by this process: a child of another test could inherit the open file, and the kernel would refuse to run it (ETXTBSY).
        bulkhead_sys::tool::Tool::new("install").args(["-m", "755"]).arg(&text).arg(&program).run().unwrap();
        Starter { program, cancel: Cancel::new() }
    }

    #[test]
    fn the_protocol_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let result = r#"{"kind":"probe","seconds":1,"ops":7,"written_bytes":1,"synced_bytes":1,"fsync_ms":{"n":0,"sum":0,"max":0,"stride":1,"values":[]},"since_scheduled_ms":{"n":0,"sum":0,"max":0,"stride":1,"values":[]},"missed_ops":0}"#;
        let script = format!(
            "[ $1 = __load ] || exit 9; echo waiting; head -c1 >/dev/null; echo ready; head -c1 >/dev/null; echo '{result}'"
        );
        let starter = starter(dir.path(), &script);
        let mut load = starter.load(&LoadArgs::new(LoadKind::Probe, dir.path(), 1.0), dir.path()).unwrap();
        load.await_prepared().unwrap();
        load.begin().unwrap();
        load.await_window(Duration::ZERO).unwrap();
        assert_eq!(load.finish().unwrap().tally.ops, 7);
    }

    #[test]
    fn a_failed_load_reports_its_error() {
        let dir = tempfile::tempdir().unwrap();
        let starter = starter(dir.path(), "echo 'no space left' >&2; exit 1");
        let load = starter.load(&LoadArgs::new(LoadKind::Storm, dir.path(), 1.0), dir.path()).unwrap();
        let error = load.await_prepared().unwrap_err().to_string();
        assert!(error.starts_with("load storm ended early"), "{error}");
    }

    #[test]
    fn cancelling_ends_the_wait() {
        let dir = tempfile::tempdir().unwrap();
        let starter = starter(dir.path(), "exec sleep 60");
        let load = starter.load(&LoadArgs::new(LoadKind::Probe, dir.path(), 1.0), dir.path()).unwrap();
        starter.cancel.cancel();
        assert_eq!(load.await_prepared().unwrap_err().to_string(), "interrupted");
        assert!(wait_until(Instant::now() + Duration::from_secs(60), &starter.cancel).is_err());
    }
}
