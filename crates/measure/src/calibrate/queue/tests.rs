//! Settings that are kept, applied and restored, on a fake kernel.

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
        arbiter: false,
        calibration: None,
        findings: Vec::new(),
    };
    (dir, roots, view)
}

/// What a calibration does on its way.
fn try_a_candidate(roots: &Roots) {
    let model = ModelLine { ctrl: Ctrl::User, rbps: 9, rseqiops: 9, rrandiops: 9, wbps: 9, wseqiops: 9, wrandiops: 9 };
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
    disable(&roots, &file, &view).unwrap();
    assert!(!iocost::is_active(&roots, DEV).unwrap());
    try_a_candidate(&roots);
    // Nothing but the file tells what was there.
    restore(&roots, &file).unwrap();
    let (qos, model) = iocost::read(&roots, DEV).unwrap().unwrap();
    assert_eq!((qos.parameters().as_str(), model.parameters().as_str()), (QOS, MODEL));
    assert!(!file.exists());
    restore(&roots, &file).unwrap();
}

#[test]
fn a_device_without_lines_is_left_without_a_controller() {
    let (dir, roots, view) = fake(None, None);
    let file = dir.path().join("calibrate.json");
    disable(&roots, &file, &view).unwrap();
    try_a_candidate(&roots);
    restore(&roots, &file).unwrap();
    assert!(!iocost::is_active(&roots, DEV).unwrap());
}

#[test]
fn bfq_gives_way_and_comes_back() {
    let (dir, roots, view) = fake(None, None);
    let file = dir.path().join("calibrate.json");
    let scheduler = roots.sys.join("devices/vda/queue/scheduler");
    fs::write(&scheduler, "none [bfq] mq-deadline\n").unwrap();
    disable(&roots, &file, &DeviceView { scheduler: Some("bfq".to_owned()), ..view }).unwrap();
    assert_eq!(fs::read_to_string(&scheduler).unwrap(), "mq-deadline");
    fs::write(&scheduler, "none bfq [mq-deadline]\n").unwrap();
    restore(&roots, &file).unwrap();
    assert_eq!(fs::read_to_string(&scheduler).unwrap(), "bfq");
}

#[test]
fn another_device_of_that_number_is_left_alone() {
    let (dir, roots, view) = fake(None, None);
    let file = dir.path().join("calibrate.json");
    disable(&roots, &file, &DeviceView { name: "vdb".to_owned(), ..view }).unwrap();
    try_a_candidate(&roots);
    restore(&roots, &file).unwrap();
    assert!(iocost::is_active(&roots, DEV).unwrap());
    assert!(!file.exists());
}
