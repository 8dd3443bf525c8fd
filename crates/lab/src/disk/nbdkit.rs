//! A simulated disk on the wall clock: an nbdkit process on the host, attached to the machine as virtio-blk.
//!
//! Owns the process. The disk lives as long as this value, across boots of the machine, and keeps all completed writes,
//! flushed or not. Does not: model a disk for measurements; a token bucket is not a disk. Measure on the disks of
//! virtual time (`super::memory`).

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{DiskModel, DiskSpec};
use crate::command::GroupKiller;
use crate::lab::Lab;
use crate::wait::wait_until;

const START_LIMIT: Duration = Duration::from_secs(20);
/// Burst that an idle disk accumulates: 0.1 s of its bandwidth. With the filter's default of 2 s an idle disk accepts
/// 60 MB at once, so that measurements over a few seconds say little about it.
const BURST: &str = "burstiness=0.1";

/// nbdkit filters (outermost first) and their parameters. `rate` is in bits per second.
fn filters(model: DiskModel, kvm: bool, trigger: &Path) -> (&'static [&'static str], Vec<String>) {
    let list = |parameters: &[&str]| parameters.iter().map(|&p| p.to_owned()).collect();
    match (model, kvm) {
        (DiskModel::Hdd | DiskModel::HddNoCache | DiskModel::HddSlow, kvm) => {
            // Emulated CPUs must be able to saturate the disk.
            let rate = if kvm { "rate=1000M" } else { "rate=250M" };
            let seek = ["min-seek-time=1ms", "half-seek-time=8ms", "max-seek-time=15ms", rate, BURST];
            (&["spinning", "rate"], list(&seek))
        }
        (DiskModel::Ssd | DiskModel::SsdSlow | DiskModel::Nvme | DiskModel::NvmeSlow, true) => {
            (&["delay", "rate"], list(&["rdelay=100us", "wdelay=50us", "rate=4000M", BURST]))
        }
        (DiskModel::Ssd | DiskModel::SsdSlow | DiskModel::Nvme | DiskModel::NvmeSlow, false) => {
            (&["delay", "rate"], list(&["rdelay=100us", "wdelay=50us", "rate=1600M", BURST]))
        }
        (DiskModel::Fast, _) => (&[], Vec::new()),
        (DiskModel::Faulty, _) => {
            let file = format!("error-file={}", trigger.display());
            (&["error"], vec!["error=EIO".into(), "error-rate=100%".into(), file])
        }
    }
}

/// Description of what a model simulates on the wall clock.
pub(super) fn describe(model: DiskModel) -> &'static str {
    match model {
        DiskModel::Hdd | DiskModel::HddNoCache | DiskModel::HddSlow => {
            "nbdkit, filters spinning (seeks 1 to 15 ms, 8 ms half-way, one arm) and rate (250 Mibit/s, 1000 under KVM, 0.1 s \
             of burst); a flush is free"
        }
        DiskModel::Ssd | DiskModel::SsdSlow | DiskModel::Nvme | DiskModel::NvmeSlow => {
            "nbdkit, filters delay (100 us a read, 50 us a write) and rate (1600 Mibit/s, 4000 under KVM, 0.1 s of burst); \
             a flush is free"
        }
        DiskModel::Fast => "nbdkit, memory without filters",
        DiskModel::Faulty => "nbdkit, memory with switched errors",
    }
}

/// A disk and its nbdkit process.
#[derive(Debug)]
pub(super) struct Nbdkit {
    socket: PathBuf,
    trigger: PathBuf,
    // Killed on drop; nbdkit also exits by itself when this process does.
    _server: tokio::process::Child,
    _group: GroupKiller,
}

impl Nbdkit {
    pub(super) async fn start(lab: &Lab, spec: DiskSpec, serial: &str) -> Result<Self> {
        use std::os::unix::process::CommandExt as _;
        let number = lab.run_dir().next_number();
        let socket = lab.run_dir().path(&format!("{serial}-{number}.sock"));
        let trigger = lab.run_dir().path(&format!("{serial}-{number}.fail"));
        let modules = lab.root().libraries().join("nbdkit");
        let (filters, parameters) = filters(spec.model, lab.kvm(), &trigger);

        let mut server = lab.root().host_command("nbdkit");
        server.args(["--exit-with-parent", "--foreground", "--unix"]).arg(&socket);
        for filter in filters {
            server.arg("--filter").arg(modules.join(format!("filters/nbdkit-{filter}-filter.so")));
        }
        server.arg(modules.join("plugins/nbdkit-memory-plugin.so")).arg(format!("{}M", spec.size_mib));
        server.args(parameters);
        let log_path = lab.run_dir().path(&format!("{serial}-{number}.log"));
        let log = std::fs::File::create(&log_path).with_context(|| format!("cannot create {}", log_path.display()))?;
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        let mut server = tokio::process::Command::from(server)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start nbdkit for disk {serial}"))?;
        let group = GroupKiller::new(server.id());
        if let Some(pid) = server.id() {
            lab.run_dir().record_group(pid)?;
        }
        wait_until(&format!("nbdkit of disk {serial} accepts connections"), START_LIMIT, async || {
            if let Some(status) = server.try_wait().context("cannot query the state of nbdkit")? {
                let log = std::fs::read_to_string(&log_path).unwrap_or_default();
                bail!("nbdkit of disk {serial} ended at once ({status}): {}", log.trim());
            }
            Ok(tokio::net::UnixStream::connect(&socket).await.is_ok().then_some(()))
        })
        .await?;
        Ok(Self { socket, trigger, _server: server, _group: group })
    }

    /// Makes a [`DiskModel::Faulty`] disk fail all requests, or serve them again.
    pub(super) fn set_faulty(&self, faulty: bool) -> std::io::Result<()> {
        let done = if faulty { std::fs::write(&self.trigger, "") } else { std::fs::remove_file(&self.trigger) };
        match done {
            Err(error) if faulty || error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn qemu_options(&self, serial: &str, model: DiskModel) -> Vec<String> {
        let socket = self.socket.display();
        // One short queue for a disk with one arm.
        let queues = if model.is_rotational() { "num-queues=1,queue-size=64" } else { "num-queues=2,queue-size=128" };
        vec![
            "-drive".to_owned(),
            format!(
                "file.driver=nbd,file.server.type=unix,file.server.path={socket},if=none,id={serial},format=raw,\
                 cache=none,discard=unmap"
            ),
            "-device".to_owned(),
            format!("virtio-blk-pci,drive={serial},serial={serial},{queues}"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_filter_parameter_belongs_to_its_model() {
        let trigger = Path::new("/run/x.fail");
        let (names, parameters) = filters(DiskModel::Faulty, false, trigger);
        assert_eq!(names, ["error"]);
        assert!(parameters.contains(&"error-file=/run/x.fail".to_owned()));
        assert_eq!(filters(DiskModel::Fast, true, trigger), (&[][..], Vec::new()));
    }
}
