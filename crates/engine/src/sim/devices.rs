//! Block devices of the simulated host, and the queue that they have in common.

use std::path::Path;
use std::time::Duration;

use bulkhead_core::action::QueueAction;
use bulkhead_core::devname::DevName;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::units::{Bytes, DevNo};

use super::{Sim, World};
use crate::host::{BlockFacts, Devices, NamedDevice};

impl World {
    /// Returns whether anything changed.
    pub(super) fn act_on_queue(&mut self, action: &QueueAction) -> Result<bool, Fault> {
        use QueueAction as A;
        Ok(match action {
            A::SetScheduler { scheduler: value, .. } => self.set_queue("scheduler", value),
            A::SetTunable { tunable, value, .. } => self.set_queue(tunable, value),
            A::SetCostModel { line, .. } => self.set_queue("model", line),
            A::SetCostQos { line, .. } => self.set_queue("qos", line),
            A::SetArbiter { on, .. } => self.set_queue("arbiter", if *on { "on" } else { "off" }),
            A::DisableCost { .. } => self.set_queue("qos", "enable=0"),
        })
    }

    pub(super) fn set_queue(&mut self, key: &str, value: &str) -> bool {
        self.queue.insert(key.to_owned(), value.to_owned()).as_deref() != Some(value)
    }
}

impl Devices for Sim {
    fn named_device(&self, path: &Path) -> Result<NamedDevice, Fault> {
        if path != Path::new("/dev/sdb") || self.world().lost_device {
            return Err(Fault::new(Code::NotFound, path.display(), "there is no such device"));
        }
        Ok(NamedDevice {
            dev: DevNo::new(8, 16),
            size: Bytes(Bytes::GIB),
            signatures: vec!["ext4".to_owned()],
            in_use: None,
        })
    }

    fn limited_device(&self, path: &Path) -> Result<DevNo, Fault> {
        match path.to_str() {
            // The disk below all pools.
            Some("/dev/sda") => Ok(DevNo::new(8, 0)),
            _ => self.named_device(path).map(|device| device.dev),
        }
    }

    fn block_devices(&self) -> Result<Vec<BlockFacts>, Fault> {
        let world = self.world();
        let queue = |key: &str| world.queue.get(key).cloned();
        let facts = |name: &str, dev, scheduler| BlockFacts {
            name: name.parse().expect("a kernel name"),
            dev,
            size: Bytes(Bytes::GIB),
            rotational: true,
            largest_request: Some(Bytes(524_288)),
            scheduler,
            schedulers: ["none", "mq-deadline", "bfq"].map(str::to_owned).to_vec(),
            physical: vec!["sda".to_owned()],
            identity: "serial-1".to_owned(),
            cost_model: queue("model"),
            cost_qos: queue("qos"),
            arbiter: queue("arbiter").as_deref() == Some("on"),
        };
        let scheduler = queue("scheduler").or_else(|| Some("mq-deadline".to_owned()));
        Ok(vec![facts("sda", DevNo::new(8, 0), scheduler), facts("dm-0", DevNo::new(252, 0), None)])
    }

    fn block_device(&self, name: &DevName) -> Result<Option<BlockFacts>, Fault> {
        Ok(self.block_devices()?.into_iter().find(|facts| facts.name == *name))
    }

    fn tunable(&self, _dev: DevNo, tunable: &str) -> Option<String> {
        let world = self.world();
        let default = match tunable {
            "low_latency" => "1",
            "strict_guarantees" => "0",
            "slice_idle" => "8",
            _ => return None,
        };
        (world.queue.get("scheduler")? == "bfq")
            .then(|| world.queue.get(tunable).map_or_else(|| default.to_owned(), Clone::clone))
    }

    fn device_busy(&self, _device: &DevName) -> Result<Duration, Fault> {
        let mut world = self.world();
        world.busy_for += Duration::from_secs(1);
        Ok(world.busy_for)
    }

    fn cost_used(&self, _dev: DevNo) -> Duration {
        Duration::ZERO
    }
}
