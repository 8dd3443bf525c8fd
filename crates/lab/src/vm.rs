//! The QEMU process of one boot: its process group, its console log, the first contact with the agent.
//!
//! Dropping it kills the whole group. Disks and what is done in the guest belong to `machine`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

use crate::channel::Channel;
use crate::command::{GroupKiller, last_lines};
use crate::lab::Lab;
use crate::protocol::Event;
use crate::wait::wait_until;

/// How nice machines are to the rest of the host.
const NICE: i32 = 5;

/// A started virtme-ng with its QEMU.
#[derive(Debug)]
pub(crate) struct Vm {
    child: tokio::process::Child,
    // Kills QEMU, which is not our child but our child's.
    group: GroupKiller,
    logs: Vec<JoinHandle<()>>,
    log_path: PathBuf,
}

impl Vm {
    /// Starts virtme-ng in its own process group; console and messages go to `log_path`.
    pub(crate) fn launch(mut vng: Command, lab: &Lab, log_path: &Path) -> Result<Self> {
        use std::os::unix::process::CommandExt as _;
        // Pipes, because QEMU opens its outputs several times and would overwrite a file.
        vng.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let log = || {
            let file = std::fs::File::options().create(true).append(true).open(log_path);
            file.with_context(|| format!("cannot create {}", log_path.display()))
        };
        let (first, second) = (log()?, log()?);
        let mut child = tokio::process::Command::from(vng)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start virtme-ng: is its venv damaged? remove it from the cache")?;
        let group = GroupKiller::new(child.id());
        if let Some(pid) = child.id() {
            lab.run_dir().record_group(pid)?;
            // What waits for an answer of this program comes before what computes: QEMU, when virtme-ng starts it, inherits this.
            let of = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
            let _ = rustix::process::setpriority_process(of, NICE);
        }
        let mut logs = Vec::new();
        if let Some(pipe) = child.stdout.take() {
            logs.push(tokio::spawn(copy(pipe, first)));
        }
        if let Some(pipe) = child.stderr.take() {
            logs.push(tokio::spawn(copy(pipe, second)));
        }
        Ok(Self { child, group, logs, log_path: log_path.to_owned() })
    }

    /// Connects to the agent and waits for its greeting; returns the line and the guest's kernel release.
    pub(crate) async fn agent(&mut self, socket: &Path, limit: Duration) -> Result<(Channel, String)> {
        let meeting = self.meet(socket, limit);
        let met = tokio::time::timeout(limit, meeting).await;
        met.unwrap_or_else(|_| Err(anyhow!("no sign of the agent after {} s", limit.as_secs())))
    }

    async fn meet(&mut self, socket: &Path, limit: Duration) -> Result<(Channel, String)> {
        let (channel, mut greeting) = wait_until("QEMU opens the agent's socket", limit, async || {
            if let Some(status) = self.child.try_wait().context("cannot ask for the state of virtme-ng")? {
                bail!("virtme-ng ended at once ({status})");
            }
            Ok(Channel::connect(socket).await.ok())
        })
        .await?;
        match greeting.recv().await {
            Some(Event::Hello { kernel }) => Ok((channel, kernel)),
            Some(other) => bail!("the agent greets with {other:?}: is it of another build?"),
            None => bail!("the machine ended before its agent came up"),
        }
    }

    /// The end of the console log.
    pub(crate) fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log_path).unwrap_or_default();
        format!("end of {}:\n{}", self.log_path.display(), last_lines(&String::from_utf8_lossy(&text), 15))
    }

    /// Waits until the machine has ended by itself; false when the time is over.
    pub(crate) async fn ended(&mut self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.child.wait()).await.is_ok()
    }

    /// Kills QEMU without warning, as a power cut does, and waits until it is gone.
    pub(crate) async fn kill(mut self) {
        self.group.kill();
        // A process killed by SIGKILL is reaped at once; the logs end when the last holder of the pipes is gone.
        let gone = async {
            let _ = self.child.wait().await;
            for log in self.logs.drain(..) {
                let _ = log.await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(20), gone).await;
    }
}

async fn copy(mut from: impl AsyncRead + Unpin, to: std::fs::File) {
    let mut to = tokio::fs::File::from_std(to);
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        // A full disk must not stop the machine: the log ends, the pipe is emptied further.
        let _ = to.write_all(&buffer[..count]).await;
        let _ = to.flush().await;
    }
}
