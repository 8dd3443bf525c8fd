//! Simulated disks: their models, their attachment to QEMU, and their faults.
//!
//! On the wall clock a disk is a process on the host ([`nbdkit`]); in virtual time it is a process in the guest, whose
//! medium is host memory ([`memory`]; the crate `bulkhead-disk` has the models). Disks live as long as their [`Disks`],
//! across boots of the machine: flushed data survives a crash. Does not: start servers in the guest (`machine`).

mod memory;
mod nbdkit;

use std::hash::{BuildHasher as _, RandomState};

use anyhow::{Context, Result, bail};
use bulkhead_disk::Parameters;

use crate::clock::Clock;
use crate::lab::Lab;
use memory::Memory;
use nbdkit::Nbdkit;

/// Model of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskModel {
    /// A rotating disk with one arm.
    Hdd,
    /// `Hdd` with its write cache disabled, so that flushes have no effect. On the wall clock the same as `Hdd`.
    HddNoCache,
    /// A rotating disk that is five times slower, for loads that compute as much as they read. On the wall clock the
    /// same as `Hdd`.
    HddSlow,
    /// A consumer SATA SSD.
    Ssd,
    /// A SATA SSD that is five times slower than `Ssd`, for loads that compute as much as they read. On the wall clock
    /// the same as `Ssd`.
    SsdSlow,
    /// An NVMe SSD with power-loss protection. On the wall clock the same as [`DiskModel::Ssd`].
    Nvme,
    /// An NVMe SSD that is fifty times slower, for loads that would saturate the guest's processor. On the wall clock
    /// the same as [`DiskModel::Ssd`].
    NvmeSlow,
    /// As fast as memory and the guest's processor allow.
    Fast,
    /// Like `Fast`; all reads and writes fail with EIO while a fault is enabled ([`crate::Machine::set_disk_faulty`]).
    Faulty,
}

impl DiskModel {
    /// All models.
    pub const ALL: [Self; 9] = [
        Self::Hdd,
        Self::HddNoCache,
        Self::HddSlow,
        Self::Ssd,
        Self::SsdSlow,
        Self::Nvme,
        Self::NvmeSlow,
        Self::Fast,
        Self::Faulty,
    ];

    /// The name used on the command line, and in the disk's serial number.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hdd => "hdd",
            Self::HddNoCache => "hdd-nocache",
            Self::HddSlow => "hdd-slow",
            Self::Ssd => "ssd",
            Self::SsdSlow => "ssd-slow",
            Self::Nvme => "nvme",
            Self::NvmeSlow => "nvme-slow",
            Self::Fast => "fast",
            Self::Faulty => "faulty",
        }
    }

    /// Whether it is a rotating disk.
    pub(crate) fn is_rotational(self) -> bool {
        matches!(self, Self::Hdd | Self::HddNoCache | Self::HddSlow)
    }

    /// Description of what it simulates, for the record of each result.
    #[must_use]
    pub fn describe(self, clock: Clock) -> String {
        match (clock, Parameters::of_lab(self.name())) {
            (Clock::Wall, _) => nbdkit::describe(self).to_owned(),
            (Clock::Virtual, Some(model)) => model.describe(),
            (Clock::Virtual, None) => "memory, without any delay".to_owned(),
        }
    }

    /// Result of `bulkhead device calibrate` on this disk; `None` where it was not measured.
    #[must_use]
    pub fn iocost(self, clock: Clock, kvm: bool) -> Option<IocostLines> {
        match (clock, self) {
            (Clock::Wall, _) if kvm => None,
            // Cases `calibrate_hdd`, `calibrate_ssd`, 6.12.107, emulated. An fsync takes 2.0 times as long with the
            // writers as alone; the writers keep their whole fair share.
            (Clock::Wall, Self::Hdd | Self::HddNoCache | Self::HddSlow) => Some(IocostLines {
                model: "ctrl=user model=linear rbps=33600558 rseqiops=7949 rrandiops=229 wbps=33793343 wseqiops=8014 wrandiops=210",
                qos: "enable=1 ctrl=user rpct=95.00 rlat=20400 wpct=95.00 wlat=20400 min=69.00 max=92.00",
            }),
            // 3.0 times as long, the writers at 92 % of their fair share: the emulated CPUs take part in both.
            (Clock::Wall, Self::Ssd) => Some(IocostLines {
                model: "ctrl=user model=linear rbps=211377956 rseqiops=13428 rrandiops=12394 wbps=211210495 wseqiops=8870 wrandiops=9733",
                qos: "enable=1 ctrl=user rpct=95.00 rlat=14883 wpct=95.00 wlat=14883 min=58.00 max=78.00",
            }),
            // In virtual time: `device calibrate`, release build, 6.12.117, 1 CPU, 3 GiB. With the write cache enabled
            // no vrate isolates, because a flush waits for the data that the writers have cached: 18 times as long as
            // alone.
            (Clock::Virtual, Self::Hdd) => Some(IocostLines {
                model: "ctrl=user model=linear rbps=219296516 rseqiops=24110 rrandiops=380 wbps=255644561 wseqiops=24334 wrandiops=591",
                qos: "enable=1 ctrl=user rpct=95.00 rlat=100000 wpct=95.00 wlat=100000 min=65.00 max=65.00",
            }),
            // Not measured: the same drive, five times slower, has a fifth of the rates at the same vrate.
            (Clock::Virtual, Self::HddSlow) => Some(IocostLines {
                model: "ctrl=user model=linear rbps=43859303 rseqiops=4822 rrandiops=76 wbps=51128912 wseqiops=4867 wrandiops=118",
                qos: "enable=1 ctrl=user rpct=95.00 rlat=500000 wpct=95.00 wlat=500000 min=65.00 max=65.00",
            }),
            // 3.1 times as long, the writers at 104 % of their fair share.
            (Clock::Virtual, Self::Ssd) => Some(IocostLines {
                model: "ctrl=user model=linear rbps=111983844 rseqiops=19542 rrandiops=19510 wbps=105976352 wseqiops=17026 wrandiops=16922",
                qos: "enable=1 ctrl=user rpct=95.00 rlat=100000 wpct=95.00 wlat=100000 min=80.00 max=80.00",
            }),
            // Not measured: the same drive, five times slower, has a fifth of the rates at the same vrate.
            (Clock::Virtual, Self::SsdSlow) => Some(IocostLines {
                model: "ctrl=user model=linear rbps=22396768 rseqiops=3908 rrandiops=3902 wbps=21195270 wseqiops=3405 wrandiops=3384",
                qos: "enable=1 ctrl=user rpct=95.00 rlat=500000 wpct=95.00 wlat=500000 min=80.00 max=80.00",
            }),
            // No vrate isolates: the drive serves a sequential stream before all else. 90 times as long as alone, the
            // writers at 110 % of their fair share.
            (Clock::Virtual, Self::HddNoCache) => Some(IocostLines {
                model: "ctrl=user model=linear rbps=219330241 rseqiops=24250 rrandiops=378 wbps=214823171 wseqiops=3724 wrandiops=288",
                qos: "enable=1 ctrl=user rpct=95.00 rlat=100000 wpct=95.00 wlat=100000 min=82.00 max=82.00",
            }),
            // 116 times as long as alone (1 ms), the writers at 92 % of their fair share; a write waits 0.6 s in the
            // device's queues.
            (Clock::Virtual, Self::Nvme) => Some(IocostLines {
                model: "ctrl=user model=linear rbps=238971049 rseqiops=15395 rrandiops=21428 wbps=130458558 wseqiops=19302 wrandiops=18994",
                qos: "enable=1 ctrl=user rpct=95.00 rlat=1000000 wpct=95.00 wlat=1000000 min=285.00 max=437.00",
            }),
            // 9.4 times as long as alone (4.5 ms), the writers at 96 % of their fair share. At a vrate of 97 % it is
            // 0.6 s: the drive's queue has room for all requests of the writers.
            (Clock::Virtual, Self::NvmeSlow) => Some(IocostLines {
                model: "ctrl=user model=linear rbps=47796655 rseqiops=3092 rrandiops=6899 wbps=26088615 wseqiops=5658 wrandiops=5651",
                qos: "enable=1 ctrl=user rpct=95.00 rlat=100000 wpct=95.00 wlat=100000 min=95.00 max=95.00",
            }),
            _ => None,
        }
    }
}

impl std::fmt::Display for DiskModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// io.cost parameters of a disk, without the device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IocostLines {
    /// For io.cost.model.
    pub model: &'static str,
    /// For io.cost.qos.
    pub qos: &'static str,
}

impl IocostLines {
    /// As options of `bulkhead demo` and `bulkhead-evidence`.
    #[must_use]
    pub fn options(self) -> [String; 4] {
        ["--model", self.model, "--qos", self.qos].map(str::to_owned)
    }
}

/// Specification of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpec {
    /// Its model.
    pub model: DiskModel,
    /// Its size. Host memory is used only for written blocks.
    pub size_mib: u32,
    /// Whether a power cut loses some or all writes since the last flush. In virtual time only.
    pub loses_unflushed: bool,
}

impl DiskSpec {
    /// A disk of this model and size.
    #[must_use]
    pub const fn new(model: DiskModel, size_mib: u32) -> Self {
        Self { model, size_mib, loses_unflushed: false }
    }

    /// The same disk with a volatile cache, whose contents a power cut loses. On the wall clock the disk is a process
    /// on the host, and loses nothing.
    #[must_use]
    pub const fn losing(self) -> Self {
        Self { loses_unflushed: true, ..self }
    }
}

/// Reads `hdd`, or `hdd:4096` with a size in MiB.
impl std::str::FromStr for DiskSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        const DEFAULT_SIZE_MIB: u32 = 8192;
        let (name, size) = text.split_once(':').map_or((text, None), |(name, size)| (name, Some(size)));
        let Some(model) = DiskModel::ALL.into_iter().find(|model| model.name() == name) else {
            bail!("unknown disk model {name:?}: choose one of {}", DiskModel::ALL.map(DiskModel::name).join(", "));
        };
        let size_mib = match size {
            None => DEFAULT_SIZE_MIB,
            Some(size) => match size.parse() {
                Ok(size @ 1..) => size,
                _ => bail!("{size:?} is not a disk size in MiB"),
            },
        };
        Ok(Self::new(model, size_mib))
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
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Host(Box<Nbdkit>),
    Guest(Memory),
}

/// How the server of a disk is started in the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GuestServer {
    pub(crate) serial: String,
    pub(crate) arguments: Vec<String>,
}

impl Disks {
    /// Creates the disks of a machine with this clock. Disks on the host accept connections when it returns.
    ///
    /// # Errors
    /// When a server does not start, or memory cannot be allocated.
    pub async fn start(lab: &Lab, specs: &[DiskSpec], clock: Clock) -> Result<Self> {
        let mut disks = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            let serial = format!("{}{index}", spec.model);
            let kind = match clock {
                Clock::Wall => Kind::Host(Box::new(Nbdkit::start(lab, *spec, &serial).await?)),
                Clock::Virtual => Kind::Guest(Memory::create(*spec, index)?),
            };
            disks.push(Disk { spec: *spec, serial, kind });
        }
        Ok(Self { disks })
    }

    /// The number of disks.
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
        let disk = disk.with_context(|| format!("there is no disk {index}: the machine has {} disks", self.count()))?;
        Ok(&disk.serial)
    }

    /// How the server of a disk is started in the guest; `None` for a disk on the host. `is_new`: nothing was ever
    /// written to it.
    pub(crate) fn guest_server(&self, index: usize, is_new: bool) -> Option<GuestServer> {
        let disk = self.disks.get(index)?;
        let Kind::Guest(memory) = &disk.kind else { return None };
        let mut arguments = vec!["serve".to_owned(), disk.serial.clone()];
        arguments.extend(["--model".to_owned(), disk.spec.model.name().to_owned()]);
        arguments.extend(["--memory".to_owned(), memory.guest_path()]);
        arguments.extend(["--bytes".to_owned(), memory.size_bytes().to_string()]);
        arguments.extend(is_new.then(|| "--new".to_owned()));
        if disk.spec.loses_unflushed {
            arguments.extend(["--loses".to_owned(), seed().to_string()]);
        }
        Some(GuestServer { serial: disk.serial.clone(), arguments })
    }

    /// Makes a [`DiskModel::Faulty`] disk on the host fail all requests, or serve them again. Returns false for a disk
    /// that is served in the guest.
    pub(crate) fn set_faulty(&self, index: usize, faulty: bool) -> Result<bool> {
        let serial = self.serial(index)?;
        let disk = &self.disks[index];
        if disk.spec.model != DiskModel::Faulty {
            bail!("disk {serial} cannot fail on request: use a disk of model faulty");
        }
        let Kind::Host(nbdkit) = &disk.kind else { return Ok(false) };
        nbdkit.set_faulty(faulty).with_context(|| format!("cannot switch errors of disk {serial}"))?;
        Ok(true)
    }

    /// Empties the medium of a disk that is served in the guest; its server must be reset as well.
    pub(crate) fn erase(&self, index: usize) -> Result<()> {
        match self.disks.get(index).map(|disk| &disk.kind) {
            Some(Kind::Guest(memory)) => memory.erase(),
            _ => Ok(()),
        }
    }

    /// QEMU options that attach the disks.
    pub(crate) fn qemu_options(&self) -> Vec<String> {
        let option = |disk: &Disk| match &disk.kind {
            Kind::Host(nbdkit) => nbdkit.qemu_options(&disk.serial, disk.spec.model),
            Kind::Guest(memory) => memory.qemu_options(&disk.serial),
        };
        self.disks.iter().flat_map(option).collect()
    }
}

/// Seed of the lost writes: another one at each boot.
fn seed() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spec_is_read_with_and_without_size() {
        assert_eq!("hdd".parse::<DiskSpec>().unwrap(), DiskSpec::new(DiskModel::Hdd, 8192));
        assert_eq!("fast:64".parse::<DiskSpec>().unwrap(), DiskSpec::new(DiskModel::Fast, 64));
        assert!("floppy".parse::<DiskSpec>().unwrap_err().to_string().contains("floppy"));
        assert!("ssd:big".parse::<DiskSpec>().is_err() && "ssd:0".parse::<DiskSpec>().is_err());
    }
}
