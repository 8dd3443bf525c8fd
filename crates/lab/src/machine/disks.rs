//! The disks of a running machine: their servers in the guest, their nodes, faults and erasure.
//!
//! Owns: the servers that run in the guest, and the watchers that report their end.
//! Does not: attach disks to QEMU (`crate::disk`), or boot.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{AbortOnDrop, GUEST_BIN, Machine};
use crate::clock::Clock;
use crate::disk::DiskModel;
use crate::process::{Process, ProcessEvent};
use crate::protocol::{Event, Request, Stream};
use crate::say;
use crate::wait::wait_until;

const DISK_LIMIT: Duration = Duration::from_secs(30);
/// Serves the disks of machines in virtual time.
const DISK_PROGRAM: &str = "bulkhead-lab-disk";

impl Machine {
    /// Starts the disk servers in the guest, and watches them.
    pub(super) async fn serve_disks(&mut self) -> Result<()> {
        self.fault.send_replace(None);
        for index in 0..self.disks.count() {
            let Some(server) = self.disks.guest_server(index, self.boots == 1) else { continue };
            if index == 0 {
                self.sh("modprobe ublk_drv")
                    .await
                    .context("disks in virtual time need ublk, which the guest's kernel lacks")?;
            }
            let program = format!("{GUEST_BIN}/{DISK_PROGRAM}");
            let argv: Vec<&str> =
                std::iter::once(program.as_str()).chain(server.arguments.iter().map(String::as_str)).collect();
            if self.disks.spec(index).is_some_and(|spec| spec.loses_unflushed) {
                say::progress(format!("disk that loses unflushed writes: {}", server.arguments.join(" ")));
            }
            let mut process = self.spawn(&argv, &[]).await?;
            let first = tokio::time::timeout(DISK_LIMIT, process.next()).await;
            let node = match first
                .with_context(|| format!("the server of disk {} does not answer", server.serial))??
            {
                ProcessEvent::Output(Stream::Stdout, line) => String::from_utf8_lossy(&line).trim().to_owned(),
                other => {
                    bail!("the server of disk {} ended at once: {}", server.serial, last_words(process, other).await)
                }
            };
            let fault = self.fault.clone();
            let watcher = tokio::spawn(async move {
                if let Some(why) = process.untimed_end().await {
                    fault.send_replace(Some(format!("the server of disk {} ended: {why}", server.serial)));
                }
            });
            if let Some(running) = &mut self.running {
                running.nodes.insert(index, node);
                running._watchers.push(AbortOnDrop(watcher));
            }
        }
        Ok(())
    }

    /// Completes when a disk server in the guest has ended, with the reason.
    pub fn fault(&self) -> impl Future<Output = String> + 'static + use<> {
        let mut fault = self.fault.subscribe();
        async move {
            match fault.wait_for(Option::is_some).await {
                Ok(why) => why.clone().unwrap_or_default(),
                // The machine was dropped.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Makes a disk of model [`DiskModel::Faulty`] fail all requests, or serve them again.
    ///
    /// # Errors
    /// When the disk is of another model, or cannot be switched.
    pub async fn set_disk_faulty(&self, index: usize, faulty: bool) -> Result<()> {
        if !self.disks.set_faulty(index, faulty)? {
            self.command_disk(index, if faulty { "fail" } else { "work" }).await?;
        }
        Ok(())
    }

    /// Erases a disk, and ends a fault.
    ///
    /// # Errors
    /// When it is in use, or fails.
    pub(crate) async fn erase_disk(&self, index: usize) -> Result<()> {
        if self.disks.spec(index).is_some_and(|spec| spec.model == DiskModel::Faulty) {
            self.set_disk_faulty(index, false).await?;
        }
        if self.disks.guest_server(index, false).is_some() {
            self.command_disk(index, "reset").await?;
            self.disks.erase(index)?;
        }
        let node = self.disk(index).await?;
        self.run(&["blkdiscard", "--force", &node]).await?.success(&format!("erasing {node}"))?;
        Ok(())
    }

    /// Sends a command to a disk server in the guest; returns its reply.
    ///
    /// # Errors
    /// When it does not answer, or fails.
    pub async fn command_disk(&self, index: usize, command: &str) -> Result<String> {
        let serial = self.disks.serial(index)?;
        let program = format!("{GUEST_BIN}/{DISK_PROGRAM}");
        let output = self.run(&[&program, "send", serial, command]).await?;
        Ok(output.success(&format!("command {command} to disk {serial}"))?.stdout)
    }

    /// Marks the disks that do not rotate, which virtio cannot report.
    pub(super) async fn describe_disks(&self) -> Result<()> {
        for index in (0..self.disks.count()).filter(|_| self.spec.clock == Clock::Wall) {
            let node = self.disk(index).await?;
            if self.disks.spec(index).is_some_and(|spec| !spec.model.is_rotational()) {
                let name = node.trim_start_matches("/dev/");
                self.write_file(&format!("/sys/block/{name}/queue/rotational"), b"0").await?;
            }
        }
        Ok(())
    }

    /// Waits until a disk is a block device in the guest; returns its device node.
    ///
    /// # Errors
    /// When there is no such disk, or it does not appear.
    pub async fn disk(&self, index: usize) -> Result<String> {
        if let Some(node) = self.running.as_ref().and_then(|running| running.nodes.get(&index)) {
            return Ok(node.clone());
        }
        let serial = self.disks.serial(index)?;
        wait_until(&format!("disk {serial} appears in the guest"), DISK_LIMIT, async || {
            match self.ask(Request::Disk { serial: serial.to_owned() }).await? {
                Event::Disk(node) => Ok(node),
                other => bail!("the agent answered the search for disk {serial} with {other:?}"),
            }
        })
        .await
    }
}

/// Output of a process until its end, `first` included.
async fn last_words(process: Process, first: ProcessEvent) -> String {
    let mut text = match first {
        ProcessEvent::Output(_, data) => String::from_utf8_lossy(&data).into_owned(),
        ProcessEvent::Exited(status) => return status.to_string(),
    };
    if let Ok(rest) = process.wait(DISK_LIMIT).await {
        text.push_str(&rest.stderr);
    }
    text.trim().to_owned()
}
