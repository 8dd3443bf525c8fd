//! Fleet files that are read, and those that are refused.

use super::*;

const COSTS: &str = r#"{
        "random-read": {"small": {"latency-us": 80, "per-s": 50000}, "large": {"latency-us": 300, "per-s": 4000}},
        "sequential-read": {"small": {"latency-us": 60, "per-s": 60000}, "large": {"latency-us": 300, "per-s": 4000}},
        "random-write": {"small": {"latency-us": 40, "per-s": 40000}, "large": {"latency-us": 300, "per-s": 3000}},
        "sequential-write": {"small": {"latency-us": 40, "per-s": 40000}, "large": {"latency-us": 300, "per-s": 3000}},
        "durable-write": {"latency-us": 500, "per-s": 4000}, "read-write-sharing": 0.5, "sequential-run": 2}"#;

const FLEET: &str = r#"
floor = 0.25

[[device]]
kind = "nvme"
costs = "nvme.json"

[[host]]
name = "h"
count = 2
cpus = 8
memory = "32G"
domain = "rack-1"
devices = [{ name = "n0", kind = "nvme", space = "1T", pool = "fast" }]

[[workload]]
name = "mysql"
count = 2
space = "100G"
group = "db"
apart = "hosts"
fsync-p99 = "20ms"
on = "h-1/n0"
[workload.demand]
clients = 8
cpu-seconds = 0.0001
durable = { per-operation = 1, chain = 2, is-shared = true }

[[workload]]
name = "log"
floor = 0.1
only = ["h-2"]
demand = { clients = 1, cpu-seconds = 0.00001, requests = [
    { access = "sequential-write", bytes = 131072, per-operation = 1, purpose = "write-back" }] }
"#;

fn read(path: &Path) -> Result<String, String> {
    if path == Path::new("nvme.json") {
        Ok(COSTS.to_owned())
    } else {
        Err(format!("{}: there is no such file", path.display()))
    }
}

fn refused(from: &str, to: &str) -> String {
    assert!(FLEET.contains(from), "{from}");
    parse(&FLEET.replace(from, to), &read).unwrap_err().to_string()
}

#[test]
fn a_fleet_is_read_and_placed() {
    let file = parse(FLEET, &read).unwrap();
    let fleet = &file.fleet;
    let names: Vec<&str> = fleet.workloads.iter().map(|workload| workload.name.as_str()).collect();
    assert_eq!(names, ["mysql-1", "mysql-2", "log"]);
    assert_eq!(fleet.machines.iter().map(|machine| machine.name.as_str()).collect::<Vec<_>>(), ["h-1", "h-2"]);
    assert_eq!((fleet.demands.len(), fleet.groups.len(), fleet.has_shares), (2, 1, true));
    assert_eq!(fleet.workloads[0].now, Some(Place { machine: 0, device: 0 }));
    assert_eq!((fleet.workloads[0].floor, fleet.workloads[2].floor), (0.25, 0.1));
    assert_eq!((fleet.workloads[0].fsync_p99, &fleet.workloads[2].only), (Some(0.02), &vec![1]));
    assert_eq!(file.pools[1], [Some("fast".to_owned())]);
    assert_eq!(crate::place::place(fleet).broken, []);
}

#[test]
fn errors_name_line_and_key() {
    for (from, to, message) in [
        ("floor = 0.25", "floor = 1.5", "line 2: fleet: floor: 1.5 is not between 0 and 1"),
        ("\"nvme.json\"", "\"x.json\"", "line 6: device \"nvme\": costs: x.json: there is no such file"),
        ("cpus = 8", "cpus = nan", "line 11: host \"h\": cpus: NaN is not a number above 0"),
        (
            "memory = \"32G\"",
            "memory = \"32X\"",
            "line 12: host \"h\": memory: \"32X\" has an unknown unit: use K, M, G, T or KiB, MiB, GiB, TiB",
        ),
        (
            "kind = \"nvme\", space",
            "kind = \"ssd\", space",
            "line 14: host \"h\": devices: there is no [[device]] of kind \"ssd\"",
        ),
        ("count = 2\nspace", "count = 0\nspace", "line 18: workload \"mysql\": count: 0 is not a number of at least 1"),
        ("on = \"h-1/n0\"", "on = \"h-3/n0\"", "line 23: workload \"mysql\": on: there is no host \"h-3\""),
        ("on = \"h-1/n0\"", "on = \"h-1\"", "line 23: workload \"mysql\": on: \"h-1\" is not HOST/DEVICE"),
        ("fsync-p99 = \"20ms\"", "fsync-p99 = \"soon\"", "line 22: workload \"mysql\": fsync-p99: "),
        (
            "cpu-seconds = 0.0001\n",
            "cpu-seconds = -1\n",
            "line 26: workload \"mysql\": demand: cpu-seconds: -1 is not a number of at least 0",
        ),
        ("only = [\"h-2\"]", "only = [\"h-9\"]", "line 32: workload \"log\": only: there is no host \"h-9\""),
        (
            "name = \"log\"",
            "name = \"mysql-2\"",
            "line 30: workload \"mysql-2\": name: there is another workload \"mysql-2\"",
        ),
        ("name = \"log\"", "name = \"../x\"", "line 30: workload \"../x\": name: \"../x\" is not a name"),
        ("count = 2\ncpus", "count = 20000\ncpus", "line 10: host \"h\": count: 20000 are too many"),
        ("apart = \"hosts\"", "apart = \"racks\"", "line 21: unknown variant `racks`"),
        ("space = \"100G\"", "spaace = \"100G\"", "line 19: unknown field `spaace`"),
        ("floor = 0.1", "floor = = 0.1", "line 31: "),
    ] {
        let found = refused(from, to);
        assert!(found.starts_with(message), "{found}\n{message}");
    }
    assert_eq!(parse("", &read).unwrap_err().to_string(), "line 1: host: the fleet has none");
}

#[test]
fn a_demand_is_corrected_by_what_was_measured() {
    let measured = |per_s: &str| {
        let text = FLEET.replace("on = \"h-1/n0\"", &format!("measured = {{ per-s = {per_s}, on = \"h-1/n0\" }}"));
        parse(&text, &read)
    };
    let plain = parse(FLEET, &read).unwrap();
    assert!(plain.corrections.is_empty());
    let file = measured("1000").unwrap();
    let [correction] = &file.corrections[..] else { panic!("{:?}", file.corrections) };
    assert_eq!((correction.workload.as_str(), correction.place), ("mysql", Place { machine: 0, device: 0 }));
    assert!(correction.without > 1.0 && correction.seconds > 0.0, "{correction:?}");
    assert!((correction.with - 1.0).abs() < 0.005, "{correction:?}");
    // Both copies have the corrected demand, and no one else.
    let of = |name: &str| {
        let its = file.fleet.workloads.iter().find(|its| its.name == name).unwrap();
        file.fleet.demands[its.demand].correction_seconds
    };
    assert!(of("mysql-1") > 0.0 && of("mysql-2") > 0.0 && of("log") == 0.0);
    let refused = |per_s: &str| measured(per_s).unwrap_err().to_string();
    assert_eq!(refused("-1"), "line 23: workload \"mysql\": measured: -1 is not a number above 0");
    assert_eq!(refused("nan"), "line 23: workload \"mysql\": measured: NaN is not a number above 0");
    assert!(refused("7, of = 3").contains("unknown field `of`"));
    let elsewhere = FLEET.replace("on = \"h-1/n0\"", "measured = { per-s = 7, on = \"h-1/n1\" }");
    assert!(parse(&elsewhere, &read).unwrap_err().to_string().contains("has no device of this name"));
}

/// A report of a host with a tenant on its one device with costs, and what is not known of it.
fn report() -> String {
    format!(
        r#"{{"version": 1, "unix_seconds": 7, "cpus": 4, "memory_bytes": 8589934592, "domain": "rack-7", "n_left_out": 3,
        "devices": [
            {{"name": "sda", "costs": {COSTS}, "shares_work": true, "pools": [
                {{"name": "slow", "free_bytes": 1073741824}}, {{"name": "roomy", "free_bytes": 2147483648}}]}},
            {{"name": "sdb", "shares_work": false, "pools": []}}],
        "workloads": [
            {{"name": "shop", "share": 300, "device": "sda", "space_bytes": 1073741824, "fsync_p99_us": 20000,
                "volumes": ["roomy/shop"], "profile": {{"unix_seconds": 5, "alone_per_s": 500,
                    "demand": {{"clients": 1, "cpu-seconds": 0.0001}}}}}},
            {{"name": "queue", "share": 100, "device": "sda", "space_bytes": 0,
                "profile": {{"unix_seconds": 5, "demand": {{"clients": 2, "cpu-seconds": 0.001}}}}}},
            {{"name": "new", "share": 100, "device": "sda", "space_bytes": 1073741824}},
            {{"name": "away", "share": 100, "device": "sdb", "space_bytes": 0,
                "profile": {{"unix_seconds": 5, "demand": {{"clients": 2, "cpu-seconds": 0.001}}}}}}]}}"#
    )
}

fn with_report(host: &str, report: &str) -> Result<FleetFile, String> {
    let read = |path: &Path| if path == Path::new("r.json") { Ok(report.to_owned()) } else { read(path) };
    parse(&FLEET.replacen("[[device]]", &format!("{host}\n[[device]]"), 1), &read).map_err(|error| error.to_string())
}

const REPORTED: &str = "[[host]]\nname = \"live\"\nreport = \"r.json\"\n";

#[test]
fn a_host_is_read_from_its_report() {
    let both = format!("{REPORTED}[[host]]\nname = \"second\"\nreport = \"r.json\"\n");
    let file = with_report(&both, &report()).unwrap();
    let (fleet, live) = (&file.fleet, &file.fleet.machines[0]);
    assert_eq!((live.cpus, live.domain.as_str(), live.devices.len()), (4.0, "rack-7", 1));
    // What is free, and what the placed tenants have.
    assert_eq!((live.devices[0].name.as_str(), live.devices[0].space), ("sda", Bytes::mib(4 << 10)));
    assert_eq!(file.pools[0], [Some("roomy".to_owned())]);
    assert_eq!(fleet.costs.len(), 1, "equal costs are one kind");
    let names: Vec<&str> = fleet.workloads.iter().map(|its| its.name.as_str()).collect();
    // Tenants of different hosts may have one name; the fleet's own workloads come last.
    assert_eq!(names, ["shop", "queue", "second.shop", "second.queue", "mysql-1", "mysql-2", "log"]);
    let shop = &fleet.workloads[0];
    assert_eq!(shop.now, Some(Place { machine: 0, device: 0 }));
    assert_eq!((shop.share, shop.fsync_p99, shop.floor), (300.0, Some(0.02), 0.25));
    assert_eq!(file.volumes[0], ["roomy/shop"]);
    assert!(fleet.demands[shop.demand].correction_seconds > 0.0, "it was slower alone than predicted");
    assert_eq!(file.corrections.len(), 2);
    let of_live: Vec<&UnknownWhat> =
        file.unknown.iter().filter(|its| its.host == "live").map(|its| &its.what).collect();
    let (device, demand) = (UnknownWhat::Device("sdb".to_owned()), UnknownWhat::Demand("new".to_owned()));
    assert_eq!(of_live, [&device, &UnknownWhat::LeftOut(3), &demand, &UnknownWhat::Place("away".to_owned())]);
}

#[test]
fn reports_that_cannot_be_used_are_refused_with_line_and_key() {
    let refused = |host: &str, report: &str| with_report(host, report).unwrap_err();
    assert_eq!(
        refused(&format!("{REPORTED}cpus = 4\n"), &report()),
        "line 7: host \"live\": cpus: it cannot be given beside `report`"
    );
    let found = refused(REPORTED, "{}");
    assert!(found.starts_with("line 6: host \"live\": report: r.json: it is not a report of a host: "), "{found}");
    let newer = report().replace("\"version\": 1", "\"version\": 2");
    assert!(refused(REPORTED, &newer).ends_with("r.json: it has version 2, this program reads version 1"));
    let unmeasured = report().replace(&format!("\"costs\": {COSTS},"), "");
    let found = refused(REPORTED, &unmeasured);
    assert!(found.contains("report: r.json: it has no device with costs: run `bulkhead device costs"), "{found}");
    let found = refused("[[host]]\nname = \"x\"\n", "");
    assert_eq!(found, "line 4: host \"x\": cpus: it is missing, and there is no `report`");
}
