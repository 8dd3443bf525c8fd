use super::*;
use crate::demand::{Demand, Durable, MissRatios};

fn profile() -> Profile {
    let demand = Demand {
        clients: 2.0,
        think_seconds: 0.0,
        cpu_seconds: 1e-3,
        requests: Vec::new(),
        durable: Some(Durable { per_operation: 1.0, chain: 2.0, is_shared: true }),
        miss_ratios: MissRatios::default(),
        memory: Bytes(0),
        correction_seconds: 0.0,
    };
    Profile { workload: Some("mysql".parse().unwrap()), demand, alone_per_s: None, unix_seconds: 7 }
}

fn report(n: usize) -> HostReport {
    let workload = |index: usize| ReportedWorkload {
        name: format!("t{index}").parse().unwrap(),
        share: Share::DEFAULT,
        device: Some("sda".to_owned()),
        space_bytes: Bytes::mib(1 << 10),
        fsync_p99_us: None,
        volumes: vec!["pool/volume".parse().unwrap()],
        profile: (index % 2 == 1).then(profile),
    };
    let pools = vec![ReportedPool { name: "pool".parse().unwrap(), free_bytes: Some(Bytes::mib(10 << 10)) }];
    HostReport {
        version: VERSION,
        unix_seconds: 1_700_000_000,
        cpus: 4,
        memory_bytes: Bytes::mib(8 << 10),
        domain: None,
        devices: vec![ReportedDevice { name: "sda".to_owned(), costs: None, shares_work: true, pools }],
        workloads: (0..n).map(workload).collect(),
        n_left_out: 0,
    }
}

fn parsed(change: impl FnOnce(&mut serde_json::Value)) -> Result<HostReport, String> {
    let mut value = serde_json::to_value(report(2)).unwrap();
    change(&mut value);
    HostReport::parse(&value.to_string()).map_err(|error| error.to_string())
}

#[test]
fn a_report_is_read_back_and_unknown_fields_are_ignored() {
    assert_eq!(parsed(|_| ()), Ok(report(2)));
    assert_eq!(parsed(|value| value["later"] = 7.into()), Ok(report(2)));
    assert_eq!(report(2).workloads[1].workload().as_str(), "mysql");
    assert_eq!(report(2).workloads[0].workload().as_str(), "t0");
}

#[test]
fn what_cannot_be_used_is_named() {
    let refused = |change: fn(&mut serde_json::Value)| parsed(change).unwrap_err();
    assert_eq!(refused(|value| value["version"] = 2.into()), "it has version 2, this program reads version 1");
    assert!(refused(|value| *value = 3.into()).starts_with("it is not a report of a host: "));
    assert_eq!(refused(|value| value["cpus"] = 0.into()), "cpus: 0 is not a number of at least 1");
    assert_eq!(
        refused(|value| value["workloads"][0]["device"] = "sdb".into()),
        "workload t0: device: the report has no device \"sdb\""
    );
    assert_eq!(
        refused(|value| value["workloads"][1]["profile"]["demand"]["clients"] = 0.into()),
        "workload t1: profile: clients: 0 is not a number of at least 1"
    );
    assert_eq!(
        refused(|value| value["workloads"][1]["profile"]["alone_per_s"] = 0.into()),
        "workload t1: profile: alone_per_s: 0 is not a number above 0"
    );
    assert_eq!(refused(|value| value["devices"][0]["name"] = "a b".into()), "devices[0].name: \"a b\" is not a name");
}

#[test]
fn a_large_report_loses_volumes_first_and_then_tenants_without_a_demand() {
    let whole = report(10);
    let size = serde_json::to_vec(&whole).unwrap().len();
    assert_eq!(whole.clone().within(size), whole);
    let without_volumes = whole.clone().within(size - 1);
    assert_eq!((without_volumes.workloads.len(), without_volumes.n_left_out), (10, 0));
    for limit in (0..size).step_by(97) {
        let less = whole.clone().within(limit);
        assert_eq!(less.workloads.len() + less.n_left_out, 10, "{limit}");
        assert!(less.workloads.is_empty() || serde_json::to_vec(&less).unwrap().len() <= limit, "{limit}");
        let n_known = less.workloads.iter().filter(|its| its.profile.is_some()).count();
        assert_eq!(n_known, less.workloads.len().min(5), "{limit}");
    }
}

#[test]
fn a_set_of_devices_has_one_name() {
    assert_eq!(device_name(&["sda".to_owned()]), "sda");
    assert_eq!(device_name(&["nvme0n1".to_owned(), "cciss!c0d0".to_owned()]), "nvme0n1_cciss_c0d0");
}
