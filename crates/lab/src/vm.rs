//! The QEMU process of one boot: its process group, its console log, and the connection to the agent.
//!
//! Dropping it kills the whole group. Does not: handle disks or run anything in the guest (`machine`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::channel::Channel;
use crate::command::{GroupKiller, last_lines};
use crate::lab::Lab;
use crate::protocol::Event;
use crate::wait::wait_until;

/// Part of QEMU's message (`kvm_handle_internal_error`); console output may precede it on the line.
const KVM_ERROR: &str = "KVM internal error";

/// A started QEMU.
#[derive(Debug)]
pub(crate) struct Vm {
    child: tokio::process::Child,
    group: GroupKiller,
    log_path: PathBuf,
}

impl Vm {
    /// Starts QEMU in its own process group; its messages go to `log_path`.
    pub(crate) fn launch(mut qemu: Command, lab: &Lab, log_path: &Path) -> Result<Self> {
        use std::os::unix::process::CommandExt as _;
        let log = std::fs::File::options().create(true).append(true).open(log_path);
        qemu.stderr(log.with_context(|| format!("cannot create {}", log_path.display()))?).process_group(0);
        let child = tokio::process::Command::from(qemu).kill_on_drop(true).spawn().context("cannot start QEMU")?;
        let group = GroupKiller::new(child.id());
        if let Some(pid) = child.id() {
            lab.run_dir().record_group(pid)?;
        }
        Ok(Self { child, group, log_path: log_path.to_owned() })
    }

    /// Connects to the agent and waits for its greeting; returns the connection and the guest's kernel release.
    pub(crate) async fn agent(&mut self, socket: &Path, limit: Duration) -> Result<(Channel, String)> {
        let meeting = self.meet(socket, limit);
        let met = tokio::time::timeout(limit, meeting).await;
        met.unwrap_or_else(|_| Err(anyhow!("the agent did not connect within {} s", limit.as_secs())))
    }

    async fn meet(&mut self, socket: &Path, limit: Duration) -> Result<(Channel, String)> {
        let (channel, mut greeting) = wait_until("QEMU opens the agent's socket", limit, async || {
            if let Some(status) = self.child.try_wait().context("cannot query the state of QEMU")? {
                bail!("QEMU exited at once ({status})");
            }
            Ok(Channel::connect(socket).await.ok())
        })
        .await?;
        let stopped = wait_until("QEMU stops the machine", limit, async || Ok(self.kvm_error()));
        tokio::select! {
            event = greeting.recv() => match event {
                Some(Event::Hello { kernel }) => Ok((channel, kernel)),
                Some(other) => bail!("the agent sent {other:?} as its greeting: is it from another build?"),
                None => bail!("the machine exited before its agent started"),
            },
            error = stopped => bail!("{}", error?),
        }
    }

    /// QEMU's message after an internal error of KVM, on which it stops the machine without exiting.
    fn kvm_error(&self) -> Option<String> {
        let log = std::fs::read(&self.log_path).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        log.lines().find(|line| line.contains(KVM_ERROR)).map(str::to_owned)
    }

    /// The end of the console log.
    pub(crate) fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log_path).unwrap_or_default();
        format!("end of {}:\n{}", self.log_path.display(), last_lines(&String::from_utf8_lossy(&text), 15))
    }

    /// Waits until QEMU has exited by itself; false when the limit is exceeded.
    pub(crate) async fn exited(&mut self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.child.wait()).await.is_ok()
    }

    /// Kills QEMU without warning, like a power cut, and waits until it has exited.
    pub(crate) async fn kill(mut self) {
        self.group.kill();
        let _ = tokio::time::timeout(Duration::from_secs(20), self.child.wait()).await;
    }
}
