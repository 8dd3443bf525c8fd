//! A device's scheduler and io.cost lines while it is calibrated: switched off, and put back exactly.
//!
//! They are set here and not through the daemon, whose record of the device stays as it is: the policy that the operator
//! chose (also `none`), or that nobody chose one. The previous settings are kept in a file until they are restored. The file is
//! gone after a reboot, as is what it would undo: the daemon then enables the recorded policy.

use std::path::Path;

use anyhow::{Context, Result};
use bulkhead_api::wire::DeviceView;
use bulkhead_core::model::QueueSettings;
use bulkhead_core::units::DevNo;
use bulkhead_sys::iocost::{ModelLine, QosLine};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{block, iocost};
use serde::{Deserialize, Serialize};

use crate::cleanup::{forget, keep, kept};

/// Settings of a device.
#[derive(Debug, Serialize, Deserialize)]
struct Before {
    device: String,
    dev: String,
    settings: QueueSettings,
}

/// Switches the controllers of a device off; its settings are kept in `file` first.
///
/// # Errors
/// When the file cannot be written, or the kernel refuses.
pub(super) fn switch_off(roots: &Roots, file: &Path, device: &DeviceView) -> Result<()> {
    let settings = QueueSettings {
        scheduler: device.scheduler.clone().unwrap_or_default(),
        cost_model: device.cost_model.clone(),
        cost_qos: device.cost_qos.clone(),
    };
    let is_bfq = settings.scheduler == "bfq";
    keep(file, &Before { device: device.name.clone(), dev: device.dev.clone(), settings })?;
    let dev: DevNo = device.dev.parse().context("the device's number")?;
    iocost::disable(roots, dev).context("cannot switch io.cost off")?;
    if is_bfq {
        block::set_scheduler(roots, dev, "mq-deadline")
            .or_else(|_| block::set_scheduler(roots, dev, "none"))
            .context("cannot take bfq away")?;
    }
    Ok(())
}

/// Restores the settings in `file`, and removes it. Does nothing when there is no such file; a device that is gone
/// has taken its settings with it.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn put_back(roots: &Roots, file: &Path) -> Result<()> {
    let Some(before) = kept::<Before>(file)? else { return Ok(()) };
    let dev: DevNo = before.dev.parse().context("the device's number")?;
    if block::name_of(roots, dev).is_ok_and(|name| name == before.device) {
        set(roots, dev, &before.settings)
            .with_context(|| format!("cannot put back the settings of {}", before.device))?;
    }
    forget(file)
}

/// Applies settings, with io.cost off in between; an empty scheduler stays what it is.
///
/// # Errors
/// When a line cannot be read, or the kernel refuses.
pub(super) fn set(roots: &Roots, dev: DevNo, settings: &QueueSettings) -> Result<()> {
    iocost::disable(roots, dev)?;
    if !settings.scheduler.is_empty() {
        block::set_scheduler(roots, dev, &settings.scheduler)?;
    }
    if let Some(line) = &settings.cost_model {
        let (_, line) = ModelLine::parse(&format!("{dev} {line}")).with_context(|| format!("the line {line:?}"))?;
        iocost::write_model(roots, dev, &line)?;
    }
    if let Some(line) = &settings.cost_qos {
        let (_, line) = QosLine::parse(&format!("{dev} {line}")).with_context(|| format!("the line {line:?}"))?;
        iocost::write_qos(roots, dev, &line)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_core::model::Policy;
    use bulkhead_core::units::Bytes;
    use bulkhead_sys::iocost::{Ctrl, Percent};
    use std::fs;

    const DEV: DevNo = DevNo::new(254, 0);
    const QOS: &str = "enable=1 ctrl=user rpct=95.00 rlat=10000 wpct=95.00 wlat=20000 min=50.00 max=150.00";
    const MODEL: &str = "ctrl=user model=linear rbps=1 rseqiops=2 rrandiops=3 wbps=4 wseqiops=5 wrandiops=6";

    /// A fake host with one disk, and what the daemon says of it.
    fn fake(qos: Option<&str>, model: Option<&str>) -> (tempfile::TempDir, Roots, DeviceView) {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::under(dir.path());
        let disk = roots.sys.join("devices/vda");
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(roots.sys.join("dev/block")).unwrap();
        fs::create_dir_all(&roots.cgroup).unwrap();
        std::os::unix::fs::symlink(&disk, roots.sys.join("dev/block/254:0")).unwrap();
        fs::write(disk.join("queue/scheduler"), "[mq-deadline] none\n").unwrap();
        for (file, line) in [("io.cost.qos", qos), ("io.cost.model", model)] {
            fs::write(roots.cgroup.join(file), line.map_or(String::new(), |line| format!("254:0 {line}\n"))).unwrap();
        }
        let view = DeviceView {
            name: "vda".to_owned(),
            dev: DEV.to_string(),
            size_bytes: Bytes(Bytes::GIB),
            rotational: false,
            scheduler: Some("mq-deadline".to_owned()),
            physical_devices: vec!["vda".to_owned()],
            policy: Policy::Iocost,
            shares_work: true,
            reason: String::new(),
            cost_model: model.map(str::to_owned),
            cost_qos: qos.map(str::to_owned),
            calibration: None,
            findings: Vec::new(),
        };
        (dir, roots, view)
    }

    /// What a calibration does on its way.
    fn try_a_candidate(roots: &Roots) {
        let model =
            ModelLine { ctrl: Ctrl::User, rbps: 9, rseqiops: 9, rrandiops: 9, wbps: 9, wseqiops: 9, wrandiops: 9 };
        let pct = Percent::whole(70);
        let (rpct, wpct, min_pct, max_pct) = (pct, pct, pct, pct);
        let qos = QosLine { enable: true, ctrl: Ctrl::User, rpct, rlat_us: 1, wpct, wlat_us: 1, min_pct, max_pct };
        iocost::write_model(roots, DEV, &model).unwrap();
        iocost::write_qos(roots, DEV, &qos).unwrap();
    }

    #[test]
    fn lines_set_by_hand_come_back_also_after_a_calibration_that_was_killed() {
        let (dir, roots, view) = fake(Some(QOS), Some(MODEL));
        let file = dir.path().join("calibrate.json");
        switch_off(&roots, &file, &view).unwrap();
        assert!(!iocost::is_active(&roots, DEV).unwrap());
        try_a_candidate(&roots);
        // Nothing but the file tells what was there.
        put_back(&roots, &file).unwrap();
        let (qos, model) = iocost::read(&roots, DEV).unwrap().unwrap();
        assert_eq!((qos.parameters().as_str(), model.parameters().as_str()), (QOS, MODEL));
        assert!(!file.exists());
        put_back(&roots, &file).unwrap();
    }

    #[test]
    fn a_device_without_lines_is_left_without_a_controller() {
        let (dir, roots, view) = fake(None, None);
        let file = dir.path().join("calibrate.json");
        switch_off(&roots, &file, &view).unwrap();
        try_a_candidate(&roots);
        put_back(&roots, &file).unwrap();
        assert!(!iocost::is_active(&roots, DEV).unwrap());
    }

    #[test]
    fn bfq_gives_way_and_comes_back() {
        let (dir, roots, view) = fake(None, None);
        let file = dir.path().join("calibrate.json");
        let scheduler = roots.sys.join("devices/vda/queue/scheduler");
        fs::write(&scheduler, "none [bfq] mq-deadline\n").unwrap();
        switch_off(&roots, &file, &DeviceView { scheduler: Some("bfq".to_owned()), ..view }).unwrap();
        assert_eq!(fs::read_to_string(&scheduler).unwrap(), "mq-deadline");
        fs::write(&scheduler, "none bfq [mq-deadline]\n").unwrap();
        put_back(&roots, &file).unwrap();
        assert_eq!(fs::read_to_string(&scheduler).unwrap(), "bfq");
    }

    #[test]
    fn another_device_of_that_number_is_left_alone() {
        let (dir, roots, view) = fake(None, None);
        let file = dir.path().join("calibrate.json");
        switch_off(&roots, &file, &DeviceView { name: "vdb".to_owned(), ..view }).unwrap();
        try_a_candidate(&roots);
        put_back(&roots, &file).unwrap();
        assert!(iocost::is_active(&roots, DEV).unwrap());
        assert!(!file.exists());
    }
}
