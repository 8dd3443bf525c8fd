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
    /// Starts the servers of the disks that are served in the guest, and watches them.
    pub(super) async fn serve_disks(&mut self) -> Result<()> {
        self.fault.send_replace(None);
        for index in 0..self.disks.count() {
            let Some(server) = self.disks.guest_server(index, self.boots == 1) else { continue };
            if index == 0 {
                self.sh("modprobe ublk_drv").await.context("no disk can be served: the guest's kernel has no ublk")?;
            }
            let program = format!("{GUEST_BIN}/{DISK_PROGRAM}");
            let argv: Vec<&str> =
                std::iter::once(program.as_str()).chain(server.arguments.iter().map(String::as_str)).collect();
            if self.disks.spec(index).is_some_and(|spec| spec.loses_unflushed) {
                say::progress(format!("a disk that loses: {}", server.arguments.join(" ")));
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

    /// Ends when a disk that is served in the guest has lost its server, with the reason.
    pub fn fault(&self) -> impl Future<Output = String> + 'static + use<> {
        let mut fault = self.fault.subscribe();
        async move {
            match fault.wait_for(Option::is_some).await {
                Ok(why) => why.clone().unwrap_or_default(),
                // The machine is gone: nobody is interested any more.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Makes a disk of model [`DiskModel::Faulty`] fail from now on, or work again.
    ///
    /// # Errors
    /// When the disk is of another model, or the switch cannot be set.
    pub async fn set_disk_faulty(&self, index: usize, faulty: bool) -> Result<()> {
        if !self.disks.set_faulty(index, faulty)? {
            self.tell_disk(index, if faulty { "fail" } else { "work" }).await?;
        }
        Ok(())
    }

    /// Empties a disk, and makes it work.
    ///
    /// # Errors
    /// When it is in use, or fails.
    pub(crate) async fn erase_disk(&self, index: usize) -> Result<()> {
        if self.disks.spec(index).is_some_and(|spec| spec.model == DiskModel::Faulty) {
            self.set_disk_faulty(index, false).await?;
        }
        if self.disks.guest_server(index, false).is_some() {
            self.tell_disk(index, "reset").await?;
            self.disks.erase(index)?;
        }
        let node = self.disk(index).await?;
        self.run(&["blkdiscard", "--force", &node]).await?.success(&format!("emptying {node}"))?;
        Ok(())
    }

    /// Tells the server of a disk in the guest something; its answer.
    ///
    /// # Errors
    /// When it does not answer, or refuses.
    pub async fn tell_disk(&self, index: usize, word: &str) -> Result<String> {
        let serial = self.disks.serial(index)?;
        let program = format!("{GUEST_BIN}/{DISK_PROGRAM}");
        let told = self.run(&[&program, "send", serial, word]).await?;
        Ok(told.success(&format!("telling disk {serial} to {word}"))?.stdout)
    }

    /// Tells the guest which disks do not rotate: virtio has no way to say so.
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

    /// The device node of a disk, once it is a block device in the guest.
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

/// What a process said before it ended, `first` included.
async fn last_words(process: Process, first: ProcessEvent) -> String {
    let mut words = match first {
        ProcessEvent::Output(_, data) => String::from_utf8_lossy(&data).into_owned(),
        ProcessEvent::Exited(status) => return status.to_string(),
    };
    if let Ok(rest) = process.wait(DISK_LIMIT).await {
        words.push_str(&rest.stderr);
    }
    words.trim().to_owned()
}
