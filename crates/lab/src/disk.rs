//! Simulated disks: one nbdkit process each, on the host, attached to the machine as virtio-blk.
//!
//! Owns the parameters of the disk models (all in [`DiskModel::filters`]) and the processes. Disks live as long as
//! their [`Disks`], longer than a boot of the machine: what was flushed before a crash is there after it.
//! A token bucket is not a spinning disk: say with every result which model it was.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::command::GroupKiller;
use crate::lab::Lab;
use crate::wait::wait_until;

const START_LIMIT: Duration = Duration::from_secs(20);
/// How much bandwidth an idle disk saves up: 0.1 s of it. With the filter's default of 2 s a disk that idled takes 60 MB at
/// once, so that windows of some seconds say little about it.
const BURST: &str = "burstiness=0.1";

/// How a disk behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskModel {
    /// One arm, seeks by distance, 30 MB/s (125 MB/s when the CPU is not emulated). FLUSH costs nothing.
    Hdd,
    /// 100 µs per read, 50 µs per write, 200 MB/s (500 MB/s when the CPU is not emulated).
    Ssd,
    /// As fast as the host's memory and the emulation allow.
    Fast,
    /// Like `Fast`; all reads and writes fail with EIO while [`Disks::set_faulty`] says so.
    Faulty,
}

impl DiskModel {
    /// All models.
    pub const ALL: [Self; 4] = [Self::Hdd, Self::Ssd, Self::Fast, Self::Faulty];

    /// The name used on the command line, and in the disk's serial number.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hdd => "hdd",
            Self::Ssd => "ssd",
            Self::Fast => "fast",
            Self::Faulty => "faulty",
        }
    }

    /// What it simulates, to be told with every result.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Hdd => {
                "nbdkit, filters spinning (seeks 1 to 15 ms, 8 ms half-way, one arm) and rate (250 Mibit/s, 1000 under KVM, 0.1 s \
                 of burst); a flush is free"
            }
            Self::Ssd => {
                "nbdkit, filters delay (100 us a read, 50 us a write) and rate (1600 Mibit/s, 4000 under KVM, 0.1 s of burst); \
                 a flush is free"
            }
            Self::Fast => "nbdkit, memory without filters",
            Self::Faulty => "nbdkit, memory with switched errors",
        }
    }

    /// What `bulkhead device calibrate` found on this disk (cases `calibrate_hdd`, `calibrate_ssd`, 6.12.107, emulated). `None`
    /// where that was not measured: for the others, and with KVM, where the disks are faster.
    #[must_use]
    pub fn iocost(self, kvm: bool) -> Option<IocostLines> {
        if kvm {
            return None;
        }
        match self {
            // Fsync 2.0 times as long beside the writers as alone, the writers keeping all that is fair.
            Self::Hdd => Some(IocostLines {
                model: "ctrl=user model=linear rbps=33600558 rseqiops=7949 rrandiops=229 wbps=33793343 wseqiops=8014 wrandiops=210",
                qos: "enable=1 ctrl=user rpct=95.00 rlat=20400 wpct=95.00 wlat=20400 min=69.00 max=92.00",
            }),
            // 3.0 times as long, the writers at 92 % of what is fair: the emulated CPUs take part in both.
            Self::Ssd => Some(IocostLines {
                model: "ctrl=user model=linear rbps=211377956 rseqiops=13428 rrandiops=12394 wbps=211210495 wseqiops=8870 wrandiops=9733",
                qos: "enable=1 ctrl=user rpct=95.00 rlat=14883 wpct=95.00 wlat=14883 min=58.00 max=78.00",
            }),
            Self::Fast | Self::Faulty => None,
        }
    }

    /// nbdkit filters (outermost first) and their parameters. `rate` is in bits per second.
    fn filters(self, kvm: bool, trigger: &Path) -> (&'static [&'static str], Vec<String>) {
        let list = |parameters: &[&str]| parameters.iter().map(|&p| p.to_owned()).collect();
        match (self, kvm) {
            (Self::Hdd, kvm) => {
                // Emulated CPUs must be able to overrun the disk.
                let rate = if kvm { "rate=1000M" } else { "rate=250M" };
                let seek = ["min-seek-time=1ms", "half-seek-time=8ms", "max-seek-time=15ms", rate, BURST];
                (&["spinning", "rate"], list(&seek))
            }
            (Self::Ssd, true) => (&["delay", "rate"], list(&["rdelay=100us", "wdelay=50us", "rate=4000M", BURST])),
            (Self::Ssd, false) => (&["delay", "rate"], list(&["rdelay=100us", "wdelay=50us", "rate=1600M", BURST])),
            (Self::Fast, _) => (&[], Vec::new()),
            (Self::Faulty, _) => {
                let file = format!("error-file={}", trigger.display());
                (&["error"], vec!["error=EIO".into(), "error-rate=100%".into(), file])
            }
        }
    }

    /// Queues of the virtio device: one short queue for the disk with one arm.
    fn queues(self) -> &'static str {
        match self {
            Self::Hdd => "num-queues=1,queue-size=64",
            Self::Ssd | Self::Fast | Self::Faulty => "num-queues=2,queue-size=128",
        }
    }
}

impl std::fmt::Display for DiskModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What io.cost is told about a disk, without the device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IocostLines {
    /// For io.cost.model.
    pub model: &'static str,
    /// For io.cost.qos.
    pub qos: &'static str,
}

impl IocostLines {
    /// As options of `bulkhead demo` and of its experiments.
    #[must_use]
    pub fn options(self) -> [String; 4] {
        ["--model", self.model, "--qos", self.qos].map(str::to_owned)
    }
}

/// A disk to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpec {
    /// Its behaviour.
    pub model: DiskModel,
    /// Its size; memory of the host is used only for what is written.
    pub size_mib: u32,
}

impl DiskSpec {
    /// A disk of this model and size.
    #[must_use]
    pub const fn new(model: DiskModel, size_mib: u32) -> Self {
        Self { model, size_mib }
    }
}

/// Reads `hdd`, or `hdd:4096` with a size in MiB.
impl std::str::FromStr for DiskSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        const DEFAULT_SIZE_MIB: u32 = 8192;
        let (name, size) = text.split_once(':').map_or((text, None), |(name, size)| (name, Some(size)));
        let Some(model) = DiskModel::ALL.into_iter().find(|model| model.name() == name) else {
            bail!("unknown disk model {name:?}: choose hdd, ssd, fast or faulty");
        };
        let size_mib = match size {
            None => DEFAULT_SIZE_MIB,
            Some(size) => size.parse().with_context(|| format!("{size:?} is not a disk size in MiB"))?,
        };
        Ok(Self { model, size_mib })
    }
}

/// The disks of one machine.
#[derive(Debug)]
pub struct Disks {
    disks: Vec<Disk>,
}

#[derive(Debug)]
struct Disk {
    spec: DiskSpec,
    serial: String,
    socket: PathBuf,
    trigger: PathBuf,
    // Killed on drop; nbdkit also ends by itself when this process does.
    _server: tokio::process::Child,
    _group: GroupKiller,
}

impl Disks {
    /// Starts a server for each disk; returns when all accept connections.
    ///
    /// # Errors
    /// When a server does not start.
    pub async fn start(lab: &Lab, specs: &[DiskSpec]) -> Result<Self> {
        let mut disks = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            disks.push(Disk::start(lab, *spec, index).await?);
        }
        Ok(Self { disks })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.disks.len()
    }

    /// The specification of a disk.
    #[must_use]
    pub fn spec(&self, index: usize) -> Option<DiskSpec> {
        self.disks.get(index).map(|disk| disk.spec)
    }

    /// The serial number by which the guest finds a disk: model and index, as in `hdd0`.
    pub(crate) fn serial(&self, index: usize) -> Result<&str> {
        let disk = self.disks.get(index);
        let disk = disk.with_context(|| format!("the machine has {} disks, there is no disk {index}", self.count()))?;
        Ok(&disk.serial)
    }

    /// Makes a [`DiskModel::Faulty`] disk fail from now on, or work again.
    ///
    /// # Errors
    /// When the disk is of another model, or the switch cannot be set.
    pub fn set_faulty(&self, index: usize, faulty: bool) -> Result<()> {
        let serial = self.serial(index)?;
        let disk = &self.disks[index];
        if disk.spec.model != DiskModel::Faulty {
            bail!("disk {serial} cannot be made to fail: give the machine a disk of model faulty");
        }
        let done = if faulty { std::fs::write(&disk.trigger, "") } else { std::fs::remove_file(&disk.trigger) };
        match done {
            Err(error) if faulty || error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot switch errors of disk {serial}"))
            }
            _ => Ok(()),
        }
    }

    /// Makes sure that a disk does not fail, of whatever model it is.
    pub(crate) fn clear_fault(&self, index: usize) -> Result<()> {
        match self.spec(index) {
            Some(DiskSpec { model: DiskModel::Faulty, .. }) => self.set_faulty(index, false),
            _ => Ok(()),
        }
    }

    /// QEMU options that attach the disks.
    pub(crate) fn qemu_options(&self) -> Vec<String> {
        let option = |disk: &Disk| {
            let Disk { serial, socket, spec, .. } = disk;
            let (socket, queues) = (socket.display(), spec.model.queues());
            [
                "-drive".to_owned(),
                format!(
                    "file.driver=nbd,file.server.type=unix,file.server.path={socket},if=none,id={serial},format=raw,\
                     cache=none,discard=unmap"
                ),
                "-device".to_owned(),
                format!("virtio-blk-pci,drive={serial},serial={serial},{queues}"),
            ]
        };
        self.disks.iter().flat_map(option).collect()
    }
}

impl Disk {
    async fn start(lab: &Lab, spec: DiskSpec, index: usize) -> Result<Self> {
        use std::os::unix::process::CommandExt as _;
        let serial = format!("{}{index}", spec.model);
        let number = lab.run_dir().next_number();
        let socket = lab.run_dir().path(&format!("{serial}-{number}.sock"));
        let trigger = lab.run_dir().path(&format!("{serial}-{number}.fail"));
        let modules = lab.root().libraries().join("nbdkit");
        let (filters, parameters) = spec.model.filters(lab.kvm(), &trigger);

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
            if let Some(status) = server.try_wait().context("cannot ask for the state of nbdkit")? {
                let log = std::fs::read_to_string(&log_path).unwrap_or_default();
                bail!("nbdkit of disk {serial} ended at once ({status}): {}", log.trim());
            }
            Ok(tokio::net::UnixStream::connect(&socket).await.is_ok().then_some(()))
        })
        .await?;
        Ok(Self { spec, serial, socket, trigger, _server: server, _group: group })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spec_is_read_with_and_without_size() {
        assert_eq!("hdd".parse::<DiskSpec>().unwrap(), DiskSpec::new(DiskModel::Hdd, 8192));
        assert_eq!("fast:64".parse::<DiskSpec>().unwrap(), DiskSpec::new(DiskModel::Fast, 64));
        assert!("floppy".parse::<DiskSpec>().unwrap_err().to_string().contains("floppy"));
        assert!("ssd:big".parse::<DiskSpec>().is_err());
    }

    #[test]
    fn every_filter_parameter_belongs_to_its_model() {
        let trigger = Path::new("/run/x.fail");
        let (filters, parameters) = DiskModel::Faulty.filters(false, trigger);
        assert_eq!(filters, ["error"]);
        assert!(parameters.contains(&"error-file=/run/x.fail".to_owned()));
        assert_eq!(DiskModel::Fast.filters(true, trigger), (&[][..], Vec::new()));
    }
}
