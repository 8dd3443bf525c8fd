//! Calibrations, and the controllers of devices.

use bulkhead_api::wire::{DeviceArbiter, DeviceControl};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{Calibration, Isolation, Policy};

use super::engine;
use crate::engine::Engine;
use crate::sim::Sim;

fn calibration(isolation: Option<Isolation>) -> Calibration {
    let (model, qos) = ("ctrl=user model=linear".into(), "enable=1 ctrl=user".into());
    Calibration { model, qos, measured: vec![], isolation }
}

#[test]
fn weak_isolation_is_found_on_a_device_and_on_devices_stacked_on_it() {
    let sim = Sim::default();
    let engine = engine(&sim);
    let ids = |name: &str| -> Vec<String> {
        let findings = engine.device_inspect(name).unwrap().findings;
        assert!(findings.iter().all(|finding| finding.object == "device sda"), "{findings:?}");
        findings.iter().map(|finding| finding.id.to_string()).collect()
    };
    let calibrate = |isolation: Option<Isolation>| {
        engine.device_calibrated("sda", calibration(isolation), false).unwrap();
    };
    assert_eq!((ids("sda"), ids("dm-0")), (vec!["no_controller".to_owned()], vec!["no_controller".to_owned()]));
    calibrate(None);
    engine.device_control("sda", &DeviceControl { policy: Some(Policy::Iocost) }, false).unwrap();
    assert_eq!((ids("sda"), ids("dm-0")), (vec![], vec![]));
    calibrate(Some(Isolation { alone_us: 26_000, beside_us: 80_000 }));
    assert_eq!(ids("sda"), [""; 0]);
    calibrate(Some(Isolation { alone_us: 25_000, beside_us: 2_250_000 }));
    assert_eq!(
        (ids("sda"), ids("dm-0")),
        (vec!["device_not_isolated".to_owned()], vec!["device_not_isolated".to_owned()])
    );
    // It is recorded.
    let view = self::engine(&sim).device_inspect("sda").unwrap();
    assert!(view.findings[0].evidence.contains("90 times"), "{}", view.findings[0]);
}

#[test]
fn a_policy_survives_a_reboot_and_can_be_disabled() {
    let sim = Sim::default();
    let first = engine(&sim);
    let ask = |engine: &Engine, name: &str, policy| {
        let done = engine.device_control(name, &DeviceControl { policy }, false)?;
        Ok::<_, Fault>(done.object.unwrap())
    };
    assert!(!first.device_inspect("sda").unwrap().shares_work);
    assert_eq!(ask(&first, "dm-0", Some(Policy::Bfq)).unwrap_err().code, Code::Unsupported, "not physical");
    assert_eq!(ask(&first, "sda", Some(Policy::Iocost)).unwrap_err().code, Code::Unsupported, "not calibrated");
    let calibration = calibration(None);
    first.device_calibrated("/dev/sda", calibration, false).unwrap();
    let view = ask(&first, "sda", Some(Policy::Iocost)).unwrap();
    assert_eq!((view.policy, view.shares_work), (Policy::Iocost, true));
    assert!(first.device_inspect("dm-0").unwrap().shares_work, "decided on the device below");
    sim.reboot();
    let second = engine(&sim);
    assert_eq!(second.device_inspect("sda").unwrap().policy, Policy::Iocost);
    assert_eq!(ask(&second, "sda", Some(Policy::Bfq)).unwrap().policy, Policy::Bfq);
    let restored = ask(&second, "sda", None).unwrap();
    assert_eq!((restored.policy, restored.scheduler.as_deref()), (Policy::None, Some("mq-deadline")));
}

#[test]
fn an_arbiter_survives_a_reboot_and_is_for_physical_devices() {
    let sim = Sim::default();
    let first = engine(&sim);
    let ask = |engine: &Engine, name: &str, on| engine.device_arbiter(name, &DeviceArbiter { on }, false);
    assert_eq!(ask(&first, "dm-0", true).unwrap_err().code, Code::Unsupported, "not physical");
    assert!(!first.device_inspect("sda").unwrap().arbiter);
    let view = ask(&first, "/dev/sda", true).unwrap().object.unwrap();
    assert!(view.arbiter && view.shares_work, "{view:?}");
    sim.reboot();
    // It is switched on again by the next daemon, and does not come with a policy.
    let second = engine(&sim);
    let view = second.device_inspect("sda").unwrap();
    assert_eq!((view.arbiter, view.policy), (true, Policy::None));
    assert!(!ask(&second, "sda", false).unwrap().object.unwrap().arbiter);
    sim.reboot();
    assert!(!engine(&sim).device_inspect("sda").unwrap().arbiter);
    sim.crash_after(Some(1));
    ask(&second, "sda", true).unwrap_err();
    sim.crash_after(None);
    assert!(engine(&sim).device_inspect("sda").unwrap().arbiter, "recorded before the crash, so it is completed");
}

#[test]
fn a_policy_that_cannot_be_enabled_is_not_recorded_and_a_lost_device_hides_no_other() {
    let sim = Sim::default();
    let first = engine(&sim);
    let bfq = DeviceControl { policy: Some(Policy::Bfq) };
    sim.crash_after(Some(1));
    first.device_control("sda", &bfq, false).unwrap_err();
    sim.crash_after(None);
    // Killed, not failed: the next start completes it.
    assert_eq!(engine(&sim).device_inspect("sda").unwrap().policy, Policy::Bfq);
    sim.crash_after(Some(1));
    first.device_control("sda", &DeviceControl { policy: None }, false).unwrap_err();
    sim.crash_after(None);
    let last = engine(&sim);
    assert_eq!(last.device_inspect("sda").unwrap().policy, Policy::Bfq, "still recorded, so it is enabled again");
    let restored = last.device_control("sda", &DeviceControl { policy: None }, false).unwrap();
    assert_eq!(restored.object.unwrap().scheduler.as_deref(), Some("mq-deadline"));
}
