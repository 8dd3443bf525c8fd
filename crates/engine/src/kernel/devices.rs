//! Block devices and their request queues: schedulers and io.cost.

use std::path::Path;
use std::time::Duration;

use bulkhead_core::action::QueueAction;
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::devname::DevName;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::units::DevNo;
use bulkhead_formats::arbiter::{self, Table};
use bulkhead_formats::servers;
use bulkhead_formats::servers::lvm;
use bulkhead_sys::block::{self, BlockDevice};
use bulkhead_sys::cgroup;
use bulkhead_sys::iocost::{self, ModelLine, QosLine};
use bulkhead_sys::iosched;

use super::Kernel;
use super::act::Outcome;
use super::faults::Classify;
use crate::host::{BlockFacts, Devices, NamedDevice};

impl Kernel {
    pub(super) fn act_on_queue(&self, action: &QueueAction) -> Result<Outcome, Fault> {
        use QueueAction as A;
        match action {
            A::SetScheduler { device, scheduler } => {
                let dev = self.dev_of(device)?;
                let old = block::set_scheduler(&self.roots, dev, scheduler)
                    .map_err(|e| e.fault(format!("device {device}")))?;
                Ok(Outcome { changed: old != *scheduler, old: Some(old), ..Outcome::DONE })
            }
            A::SetTunable { device, tunable, value } => {
                // A tunable vanishes with the device, or when another scheduler is set.
                let Some(dev) = block::devno_of_name(&self.roots, device.as_str()) else {
                    return Ok(Outcome::UNCHANGED);
                };
                match iosched::set(&self.roots, dev, tunable, value) {
                    Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => Ok(Outcome::UNCHANGED),
                    Err(error) => Err(error.fault(format!("device {device}"))),
                    Ok(old) => Ok(Outcome { changed: old != *value, old: Some(old), ..Outcome::DONE }),
                }
            }
            A::SetCostModel { device, line } => {
                let dev = self.dev_of(device)?;
                let (_, wanted) = ModelLine::parse(&format!("{dev} {line}")).ok_or_else(|| bad_line(device, line))?;
                let old =
                    iocost::write_model(&self.roots, dev, &wanted).map_err(|e| e.fault(format!("device {device}")))?;
                Ok(Outcome { changed: old != Some(wanted), old: old.map(|old| old.line(dev)), ..Outcome::DONE })
            }
            A::SetCostQos { device, line } => {
                let dev = self.dev_of(device)?;
                let (_, wanted) = QosLine::parse(&format!("{dev} {line}")).ok_or_else(|| bad_line(device, line))?;
                let old =
                    iocost::write_qos(&self.roots, dev, &wanted).map_err(|e| e.fault(format!("device {device}")))?;
                Ok(Outcome { changed: old != Some(wanted), old: old.map(|old| old.line(dev)), ..Outcome::DONE })
            }
            A::SetArbiter { device, on } => {
                let dev = self.dev_of(device)?;
                let failed = |error: std::io::Error| {
                    let path = arbiter::dir(&self.roots).join(dev.to_string());
                    Fault::new(Code::Internal, format!("device {device}"), format!("{}: {error}", path.display()))
                };
                let table = Table::open(&self.roots, dev).map_err(failed)?;
                let was = table.is_on();
                table.switch(*on);
                Ok(Outcome { changed: was != *on, ..Outcome::DONE })
            }
            A::DisableCost { device } => {
                let dev = self.dev_of(device)?;
                let old = iocost::disable(&self.roots, dev).map_err(|e| e.fault(format!("device {device}")))?;
                Ok(Outcome {
                    changed: old.is_some_and(|old| old.enable),
                    old: old.map(|old| old.line(dev)),
                    ..Outcome::DONE
                })
            }
        }
    }

    fn dev_of(&self, device: &DevName) -> Result<DevNo, Fault> {
        let path = self.roots.dev.join(device.as_str());
        block::devno_of(&path).map_err(|e| e.fault(format!("device {device}")))
    }

    /// Names of the physical devices below a device.
    pub(super) fn physical(&self, dev: DevNo) -> (Vec<String>, Vec<String>) {
        match servers::stack(&self.roots, dev) {
            Ok(stack) => {
                let names = stack.physical.iter().filter_map(|dev| block::name_of(&self.roots, *dev).ok()).collect();
                (names, stack.dead_ends.into_iter().map(|end| end.reason).collect())
            }
            Err(error) => (Vec::new(), vec![error.to_string()]),
        }
    }

    fn block_facts(&self, device: BlockDevice) -> Result<BlockFacts, Fault> {
        let (physical, _) = self.physical(device.dev);
        let cost = iocost::read(&self.roots, device.dev).ok().flatten();
        let without_dev = |line: String| line.split_once(' ').map_or(String::new(), |(_, rest)| rest.to_owned());
        let (cost_qos, cost_model) = match cost {
            Some((qos, model)) => (Some(without_dev(qos.line(device.dev))), Some(without_dev(model.line(device.dev)))),
            None => (None, None),
        };
        let (scheduler, schedulers) = match device.scheduler {
            Some(scheduler) => (Some(scheduler.active), scheduler.available),
            None => (None, Vec::new()),
        };
        Ok(BlockFacts {
            name: device_name(device.name)?,
            dev: device.dev,
            size: device.size,
            rotational: device.rotational,
            largest_request: device.largest_request,
            scheduler,
            schedulers,
            physical,
            identity: block::identity(&self.roots, device.dev),
            cost_model,
            cost_qos,
            arbiter: Table::find(&self.roots, device.dev).ok().flatten().is_some_and(|table| table.is_on()),
        })
    }

    fn device_at(&self, path: &Path, object: &str) -> Result<BlockDevice, Fault> {
        if !path.is_absolute() {
            return Err(Fault::new(Code::InvalidArgument, object, "its path is not absolute")
                .hint("give its path in /dev, for example /dev/sdb"));
        }
        block::by_path(&self.roots, path).map_err(|e| match e {
            block::BlockError::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Fault::new(Code::NotFound, object, "there is no such device").hint("`lsblk` lists the block devices")
            }
            other => other.fault(object),
        })
    }
}

impl Devices for Kernel {
    fn named_device(&self, path: &Path) -> Result<NamedDevice, Fault> {
        let object = format!("device {}", path.display());
        let found = self.device_at(path, &object)?;
        let in_use = block::is_in_use(&self.roots, found.dev).map_err(|e| e.fault(&object))?;
        let signatures = block::signatures(path).map_err(|e| e.fault(&object))?;
        // The kernel holds a physical volume only while a logical volume on it is active: its group may be full of data.
        let is_pv = signatures.iter().any(|signature| signature.kind == "LVM2_member");
        let group = if is_pv { lvm().group_of(path).map_err(|e| e.fault(&object))? } else { None };
        let in_group = group.map(|group| format!("it belongs to volume group {group}"));
        Ok(NamedDevice {
            dev: found.dev,
            size: found.size,
            signatures: signatures.into_iter().map(|signature| signature.kind).collect(),
            in_use: in_use.map(|reason| reason.to_string()).or(in_group),
        })
    }

    fn limited_device(&self, path: &Path) -> Result<DevNo, Fault> {
        let object = format!("device {}", path.display());
        let found = self.device_at(path, &object)?;
        if found.partition_of.is_some() {
            return Err(Fault::new(
                Code::InvalidArgument,
                object,
                "it is a partition, but limits apply to whole devices",
            )
            .hint("give the device that it is a partition of"));
        }
        Ok(found.dev)
    }

    fn block_devices(&self) -> Result<Vec<BlockFacts>, Fault> {
        let devices = block::all(&self.roots).map_err(|e| e.fault("block devices"))?;
        devices.into_iter().filter(|device| device.size.0 > 0).map(|device| self.block_facts(device)).collect()
    }

    fn block_device(&self, name: &DevName) -> Result<Option<BlockFacts>, Fault> {
        let Some(dev) = block::devno_of_name(&self.roots, name.as_str()) else { return Ok(None) };
        let device = block::inspect(&self.roots, dev).map_err(|e| e.fault(format!("device {name}")))?;
        (device.size.0 > 0 && device.name == name.as_str()).then(|| self.block_facts(device)).transpose()
    }

    fn tunable(&self, dev: DevNo, tunable: &str) -> Option<String> {
        iosched::get(&self.roots, dev, tunable)
    }

    fn device_busy(&self, device: &DevName) -> Result<Duration, Fault> {
        block::busy(&self.roots, device.as_str()).map_err(|e| e.fault(format!("device {device}")))
    }

    fn cost_used(&self, dev: DevNo) -> Duration {
        let stat = cgroup::io_stat(&self.roots, &CgroupPath::root()).unwrap_or_default();
        stat.get(&dev).map_or(Duration::ZERO, |io| Duration::from_micros(io.cost_usage_us))
    }
}

fn bad_line(device: &DevName, line: &str) -> Fault {
    Fault::new(Code::InvalidArgument, format!("device {device}"), format!("io.cost cannot be set to {line:?}"))
}

/// A device's name as the kernel gave it.
pub(super) fn device_name(name: String) -> Result<DevName, Fault> {
    name.parse().map_err(|error| Fault::new(Code::Internal, format!("device {name}"), error))
}
