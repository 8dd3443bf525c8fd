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
