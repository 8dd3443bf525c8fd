//! Physical devices: which controller is active, whether shares can work, enabling a controller and restoring the previous one.
//!
//! Measuring an io.cost model is not here: a worker does it (`service/measure.rs`, `bulkhead-measure`).

use std::path::{Path, PathBuf};

use bulkhead_api::wire::{CostsStore, DeviceArbiter, DeviceControl, DeviceView, Done};
use bulkhead_core::action::{Action, Applied, QueueAction, Record, StateAction};
use bulkhead_core::demand::DeviceCosts;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::finding::{Finding, in_order};
use bulkhead_core::health;
use bulkhead_core::model::{Calibration, DeviceRecord, Policy, PoolSource, QueueSettings, Server, StoredCosts};
use bulkhead_core::reason::Reason;
use bulkhead_core::volume::Plan;

use crate::engine::Engine;
use crate::findings::lookup_failed;
use crate::host::BlockFacts;
use crate::volumes::created_now;

impl Engine {
    /// All block devices: physical ones and those stacked on them.
    ///
    /// # Errors
    /// When `/sys/block` cannot be read.
    pub fn device_list(&self) -> Result<Vec<DeviceView>, Fault> {
        self.host().block_devices()?.into_iter().map(|facts| self.device_view(facts)).collect()
    }

    /// One block device, by kernel name or `/dev` path.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn device_inspect(&self, name: &str) -> Result<DeviceView, Fault> {
        let facts = self.facts(name)?;
        self.device_view(facts)
    }

    /// Enables a controller, or with `policy: None` restores the configuration from before Bulkhead's changes. Idempotent.
    ///
    /// # Errors
    /// `Unsupported` for a stacked device, for iocost without a calibration, or when the kernel lacks the controller.
    pub fn device_control(
        &self,
        name: &str,
        request: &DeviceControl,
        dry_run: bool,
    ) -> Result<Done<DeviceView>, Fault> {
        let facts = self.facts(name)?;
        refuse_stacked(&facts, "controllers", |physical| Reason::ControlOnPhysical { physical })?;
        let record = self.device_record(&facts)?;
        let now = QueueSettings {
            scheduler: facts.scheduler.clone().unwrap_or_default(),
            cost_model: facts.cost_model.clone(),
            cost_qos: facts.cost_qos.clone(),
        };
        let before = record.before.clone().unwrap_or_else(|| now.clone());
        // A failure restores the current configuration, and reconciliation completes an interrupted change: a policy is recorded before
        // it is enabled, and removed from the record after it is disabled.
        let mut on_failure = vec![self.write_device(&record)];
        on_failure.extend(steps_back(&facts, &now));
        let steps = match request.policy {
            Some(policy) => {
                let steps = steps_to(policy, &facts, &before, record.calibration.as_ref())?;
                let after = DeviceRecord { policy: Some(policy), before: Some(before), ..record };
                [vec![self.write_device(&after)], steps].concat()
            }
            None => {
                let after = DeviceRecord { policy: None, before: None, ..record };
                [steps_back(&facts, &before), vec![self.write_device(&after)]].concat()
            }
        };
        let done = self.executor.run(&Plan { steps, on_failure, can_be_undone: true }, dry_run)?;
        self.look_up_promises_again();
        let view = if dry_run { None } else { Some(self.device_inspect(name)?) };
        Ok(Done { object: view, steps: done, dry_run })
    }

    /// Has the block servers on a device with an arm take turns, or not. Idempotent.
    ///
    /// # Errors
    /// `Unsupported` for a stacked device, and for one without an arm.
    pub fn device_arbiter(
        &self,
        name: &str,
        request: &DeviceArbiter,
        dry_run: bool,
    ) -> Result<Done<DeviceView>, Fault> {
        let facts = self.facts(name)?;
        refuse_stacked(&facts, "arbiters", |physical| Reason::ArbiterOnPhysical { physical })?;
        if request.on && !facts.rotational {
            let cause = "it is not rotational: without an arm, turns would only leave it idle";
            return Err(Fault::new(Code::Unsupported, format!("device {}", facts.name), cause)
                .reason(Reason::NoController { device: facts.name.to_string() }));
        }
        let before = self.device_record(&facts)?;
        let after = DeviceRecord { arbiter: request.on, ..before.clone() };
        let switch = |on| Action::Queue(QueueAction::SetArbiter { device: facts.name.clone(), on });
        let plan = Plan {
            steps: vec![self.write_device(&after), switch(request.on)],
            on_failure: vec![self.write_device(&before), switch(facts.arbiter)],
            can_be_undone: true,
        };
        let steps = self.executor.run(&plan, dry_run)?;
        let object = if dry_run { None } else { Some(self.device_inspect(name)?) };
        Ok(Done { object, steps, dry_run })
    }

    /// Records a measured calibration, and applies it if iocost is active on the device.
    ///
    /// # Errors
    /// `NotFound`; those of applying.
    pub fn device_calibrated(
        &self,
        name: &str,
        calibration: Calibration,
        dry_run: bool,
    ) -> Result<Done<DeviceView>, Fault> {
        let facts = self.facts(name)?;
        let record = DeviceRecord { calibration: Some(calibration.clone()), ..self.device_record(&facts)? };
        let mut steps = vec![self.write_device(&record)];
        if record.policy == Some(Policy::Iocost) {
            steps.extend(cost_steps(&facts, &calibration));
        }
        let done = self.executor.run_steps(steps, dry_run)?;
        let view = if dry_run { None } else { Some(self.device_inspect(name)?) };
        Ok(Done { object: view, steps: done, dry_run })
    }

    /// Records what requests to the file system of a directory cost, with the first physical device below it. Replaces costs that were
    /// recorded for the same devices.
    ///
    /// # Errors
    /// `InvalidArgument` for a relative path and for costs that make no sense, `Unsupported` if the file system is on no block device.
    pub fn costs_store(&self, request: &CostsStore, dry_run: bool) -> Result<Done<DeviceView>, Fault> {
        let object = format!("directory {}", request.directory.display());
        let invalid = |cause: String| Fault::new(Code::InvalidArgument, object.clone(), cause);
        if let Err(error) = request.costs.check() {
            return Err(invalid(format!("its costs make no sense: {error}")));
        }
        let devices = self.physical_below(&request.directory)?;
        let facts = self.facts(&devices[0])?;
        let mut record = self.device_record(&facts)?;
        record.costs.retain(|stored| stored.devices != devices);
        let unix_seconds = created_now().unwrap_or_default();
        record.costs.push(StoredCosts { devices, costs: request.costs.clone(), unix_seconds });
        let done = self.executor.run_steps(vec![self.write_device(&record)], dry_run)?;
        let view = if dry_run { None } else { Some(self.device_inspect(facts.name.as_str())?) };
        Ok(Done { object: view, steps: done, dry_run })
    }

    /// Kernel names of the physical devices below the file system of a directory, in order; at least one.
    ///
    /// # Errors
    /// As [`Engine::costs_store`].
    pub(crate) fn physical_below(&self, directory: &Path) -> Result<Vec<String>, Fault> {
        let object = format!("directory {}", directory.display());
        if !directory.is_absolute() {
            return Err(Fault::new(Code::InvalidArgument, object, "it is not an absolute path"));
        }
        let source = PoolSource::File { directory: directory.to_owned(), server: Server::Auto };
        let (devices, unknown) = self.host().physical_devices(&source);
        if devices.is_empty() {
            let why = if unknown.is_empty() { String::new() } else { format!(" ({})", unknown.join("; ")) };
            return Err(Fault::new(Code::Unsupported, object, format!("its file system is on no block device{why}")));
        }
        Ok(devices)
    }

    /// The recorded costs of a set of physical devices, given in order.
    pub(crate) fn costs_of(&self, devices: &[String]) -> Option<DeviceCosts> {
        let facts = self.facts(devices.first()?).ok()?;
        let record = self.device_record(&facts).ok()?;
        record.costs.into_iter().find(|stored| stored.devices == devices).map(|stored| stored.costs)
    }

    /// Enables recorded policies again, after a reboot or when another program changed them. A missing device does not affect
    /// the others. Returns the errors.
    pub(crate) fn restore_devices(&self) -> Vec<Fault> {
        match self.host().records(&self.devices_dir(), "") {
            Err(fault) => vec![fault],
            Ok(records) => {
                let outcomes = records.iter().map(|(_, record)| self.restore_device(record.clone()?));
                outcomes.filter_map(Result::err).collect()
            }
        }
    }

    fn restore_device(&self, record: Record) -> Result<Vec<Applied>, Fault> {
        let Record::Device(DeviceRecord { name, identity, policy, before, calibration, arbiter, .. }) = record else {
            return Ok(Vec::new());
        };
        let policy = policy.zip(before);
        if policy.is_none() && !arbiter {
            return Ok(Vec::new());
        }
        let facts = self.facts(name.as_str())?;
        if facts.identity != identity {
            let cause = format!("it is not the device that was configured under that name ({identity:?})");
            return Err(Fault::new(Code::Corrupt, format!("device {name}"), cause)
                .reason(Reason::DeviceReplaced { device: name.to_string() }));
        }
        let mut steps = Vec::new();
        if arbiter && !facts.arbiter {
            steps.push(Action::Queue(QueueAction::SetArbiter { device: facts.name.clone(), on: true }));
        }
        if let Some((policy, before)) = policy {
            steps.extend(steps_to(policy, &facts, &before, calibration.as_ref())?);
        }
        self.executor.run_steps(steps, false)
    }

    pub(crate) fn facts(&self, name: &str) -> Result<BlockFacts, Fault> {
        let found = kernel_name(name).parse().map_or(Ok(None), |name| self.host().block_device(&name))?;
        found.ok_or_else(|| {
            Fault::new(Code::NotFound, format!("device {name}"), "there is no block device of that name")
                .reason(Reason::NoSuchDevice { device: name.to_owned() })
        })
    }

    fn devices_dir(&self) -> PathBuf {
        self.dirs.state.join("devices")
    }

    /// The record of a device; that of another device which had this name is not used.
    fn device_record(&self, facts: &BlockFacts) -> Result<DeviceRecord, Fault> {
        let path = self.devices_dir().join(facts.name.sysfs_name());
        for (found, record) in self.host().records(&self.devices_dir(), "")?.iter() {
            if *found == path
                && let Record::Device(record) = record.clone()?
                && record.identity == facts.identity
            {
                return Ok(record);
            }
        }
        Ok(DeviceRecord {
            name: facts.name.clone(),
            identity: facts.identity.clone(),
            policy: None,
            before: None,
            calibration: None,
            arbiter: false,
            costs: Vec::new(),
        })
    }

    fn write_device(&self, record: &DeviceRecord) -> Action {
        let path = self.devices_dir().join(record.name.sysfs_name());
        Action::State(StateAction::WriteRecord { path, record: Box::new(Record::Device(record.clone())) })
    }

    fn device_view(&self, facts: BlockFacts) -> Result<DeviceView, Fault> {
        let calibration = self.device_record(&facts)?.calibration;
        let policy = facts.policy();
        let is_physical = facts.physical == [facts.name.as_str()];
        let (shares_work, reason, findings) = if is_physical {
            let (works, reason) = judge(&facts, policy);
            let findings = device_findings(&facts, (works, &reason), calibration.as_ref());
            (works, reason, findings)
        } else if facts.physical.is_empty() {
            (false, "it is not backed by a block device (but by tmpfs, network or overlay)".to_owned(), Vec::new())
        } else {
            let mut below: Vec<BlockFacts> = self.host().block_devices()?;
            below.retain(|other| facts.physical.iter().any(|name| name == other.name.as_str()));
            let judged: Vec<(bool, String)> = below.iter().map(|other| judge(other, other.policy())).collect();
            let mut findings = Vec::new();
            for (other, (works, reason)) in below.iter().zip(&judged) {
                let record = self.device_record(other);
                let calibration = record.as_ref().ok().and_then(|record| record.calibration.as_ref());
                findings.extend(device_findings(other, (*works, reason), calibration));
                findings.extend(record.as_ref().err().cloned().map(lookup_failed));
            }
            let shares_work = !judged.is_empty() && judged.iter().all(|(works, _)| *works);
            let reasons: Vec<String> = judged.into_iter().map(|(_, reason)| reason).collect();
            (shares_work, format!("depends on {}: {}", facts.physical.join(", "), reasons.join("; ")), findings)
        };
        Ok(DeviceView {
            name: facts.name.into(),
            dev: facts.dev.to_string(),
            size_bytes: facts.size,
            rotational: facts.rotational,
            scheduler: facts.scheduler,
            physical_devices: facts.physical,
            policy,
            shares_work,
            reason,
            cost_model: facts.cost_model,
            cost_qos: facts.cost_qos,
            arbiter: facts.arbiter,
            calibration,
            findings: in_order(findings),
        })
    }
}

fn refuse_stacked(facts: &BlockFacts, what: &str, reason: impl FnOnce(Vec<String>) -> Reason) -> Result<(), Fault> {
    if facts.physical == [facts.name.as_str()] {
        return Ok(());
    }
    let cause = format!("it is stacked on {}: {what} act on physical devices", facts.physical.join(", "));
    Err(Fault::new(Code::Unsupported, format!("device {}", facts.name), cause).reason(reason(facts.physical.clone())))
}

/// The kernel name of a device that may be given by its path.
pub(crate) fn kernel_name(device: &str) -> &str {
    device.strip_prefix("/dev/").unwrap_or(device)
}

impl BlockFacts {
    /// The active controller.
    #[must_use]
    pub fn policy(&self) -> Policy {
        if self.cost_qos.as_deref().is_some_and(|line| line.split(' ').any(|word| word == "enable=1")) {
            Policy::Iocost
        } else if self.scheduler.as_deref() == Some("bfq") {
            Policy::Bfq
        } else {
            Policy::None
        }
    }
}

/// Findings about weak isolation on a physical device, given whether weights work on it and why.
fn device_findings(facts: &BlockFacts, (works, why): (bool, &str), calibration: Option<&Calibration>) -> Vec<Finding> {
    let no_controller = (!works).then(|| health::no_controller(&facts.name, why));
    let isolation = calibration.and_then(|calibration| calibration.isolation);
    let not_isolated = isolation.and_then(|isolation| isolation.finding(&facts.name, facts.rotational));
    no_controller.into_iter().chain(not_isolated).collect()
}

fn judge(facts: &BlockFacts, policy: Policy) -> (bool, String) {
    match policy {
        Policy::Iocost => {
            let by = |line: &Option<String>| line.as_deref().is_some_and(|line| line.contains("ctrl=user"));
            let model = if by(&facts.cost_model) {
                "a model set by hand or calibration"
            } else {
                "the kernel's built-in model"
            };
            (true, format!("io.cost is enabled with {model}"))
        }
        Policy::Bfq => (true, "the scheduler is bfq, which honours io.bfq.weight".to_owned()),
        Policy::None if facts.arbiter => (
            true,
            "its arbiter divides its time among volumes of directory pools; other I/O has no controller".to_owned(),
        ),
        Policy::None => {
            let scheduler = facts.scheduler.as_deref().unwrap_or("none");
            (
                false,
                format!(
                    "neither io.cost nor bfq is active (scheduler {scheduler}): weights are accepted but have no effect"
                ),
            )
        }
    }
}

/// The scheduler that replaces bfq on a device.
fn without_bfq(facts: &BlockFacts, before: &QueueSettings) -> String {
    let wanted = [before.scheduler.as_str(), "mq-deadline", "none"];
    let usable = |name: &&&str| **name != "bfq" && facts.schedulers.iter().any(|have| have == **name);
    wanted.iter().find(usable).map_or("none", |name| name).to_owned()
}

fn cost_off(facts: &BlockFacts) -> Option<Action> {
    (facts.policy() == Policy::Iocost).then(|| Action::Queue(QueueAction::DisableCost { device: facts.name.clone() }))
}

fn cost_steps(facts: &BlockFacts, calibration: &Calibration) -> [Action; 2] {
    [
        Action::Queue(QueueAction::SetCostModel { device: facts.name.clone(), line: calibration.model.clone() }),
        Action::Queue(QueueAction::SetCostQos { device: facts.name.clone(), line: calibration.qos.clone() }),
    ]
}

fn steps_to(
    policy: Policy,
    facts: &BlockFacts,
    before: &QueueSettings,
    calibration: Option<&Calibration>,
) -> Result<Vec<Action>, Fault> {
    let scheduler =
        |name: String| Action::Queue(QueueAction::SetScheduler { device: facts.name.clone(), scheduler: name });
    Ok(match policy {
        Policy::Bfq => cost_off(facts).into_iter().chain([scheduler("bfq".to_owned())]).collect(),
        Policy::None => cost_off(facts).into_iter().chain([scheduler(without_bfq(facts, before))]).collect(),
        Policy::Iocost => {
            let Some(calibration) = calibration else {
                let cause = "it has no calibration, and io.cost with a guessed model costs throughput";
                return Err(Fault::new(Code::Unsupported, format!("device {}", facts.name), cause)
                    .reason(Reason::Uncalibrated { device: facts.name.to_string() }));
            };
            let [model, qos] = cost_steps(facts, calibration);
            vec![scheduler(without_bfq(facts, before)), model, qos]
        }
    })
}

fn steps_back(facts: &BlockFacts, before: &QueueSettings) -> Vec<Action> {
    let mut steps = Vec::new();
    if !before.scheduler.is_empty() {
        steps.push(Action::Queue(QueueAction::SetScheduler {
            device: facts.name.clone(),
            scheduler: before.scheduler.clone(),
        }));
    }
    if let Some(line) = &before.cost_model {
        steps.push(Action::Queue(QueueAction::SetCostModel { device: facts.name.clone(), line: line.clone() }));
    }
    match &before.cost_qos {
        Some(line) => {
            steps.push(Action::Queue(QueueAction::SetCostQos { device: facts.name.clone(), line: line.clone() }))
        }
        None => steps.extend(cost_off(facts)),
    }
    steps
}
