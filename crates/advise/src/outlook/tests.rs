use bulkhead_core::demand::Durable;

use super::*;
use crate::place::{Device, Fleet, Machine, Place, Workload, one_more};

fn costs(per_s: f64) -> DeviceCosts {
    let cost = format!(r#"{{"latency-us": {}, "per-s": {per_s}}}"#, 8e6 / per_s);
    let both = format!(r#"{{"small": {cost}, "large": {cost}}}"#);
    let text = format!(
        r#"{{"random-read": {both}, "sequential-read": {both}, "random-write": {both}, "sequential-write": {both},
        "durable-write": {cost}, "read-write-sharing": 1, "sequential-run": 1}}"#
    );
    serde_json::from_str(&text).unwrap()
}

fn class(clients: f64, share: f64) -> Class {
    let text = format!(r#"{{"clients": {clients}, "cpu-seconds": 0.0001}}"#);
    let mut demand: Demand = serde_json::from_str(&text).unwrap();
    demand.durable = Some(Durable { per_operation: 1.0, chain: 2.0, is_shared: false });
    Class { demand, share, floor: 0.0, fsync_p99: None }
}

#[test]
fn verdicts_are_those_of_a_plan() {
    let (ssd, hdd) = (costs(20_000.0), costs(500.0));
    let classes = [class(4.0, 100.0), class(16.0, 300.0)];
    let mut outlook = Outlook::default();
    let memory = Bytes::mib(8 << 10);
    let kinds = [outlook.kind(4.0, memory, &[&ssd, &hdd]), outlook.kind(8.0, memory, &[&hdd])];
    let ids = [outlook.class(&classes[0]), outlook.class(&classes[1])];
    let device = |name: &str, costs| Device { name: name.to_owned(), costs, space: Bytes(0) };
    let machine =
        |name: &str, cpus, devices| Machine { name: name.to_owned(), domain: name.to_owned(), cpus, memory, devices };
    let workload = |demand: usize| Workload {
        name: format!("w{demand}"),
        demand,
        share: classes[demand].share,
        space: Bytes(0),
        importance: 1.0,
        floor: 0.0,
        fsync_p99: None,
        group: None,
        only: vec![],
        now: None,
    };
    let fleet = Fleet {
        demands: classes.iter().map(|class| class.demand.clone()).collect(),
        costs: vec![ssd, hdd],
        machines: vec![
            machine("a", 4.0, vec![device("s", 0), device("h", 1)]),
            machine("b", 8.0, vec![device("h", 1)]),
        ],
        workloads: vec![workload(0), workload(1), workload(1)],
        groups: vec![],
        has_shares: true,
        is_journal_shared: false,
    };
    let at = |machine, device| Place { machine, device };
    let places = [at(0, 0), at(0, 1), at(0, 1)];
    let members = [Member { class: ids[1], device: 1, copies: 2 }, Member { class: ids[0], device: 0, copies: 1 }];
    let found = one_more(&fleet, &places, &workload(1));
    assert_eq!(found.len(), 3);
    for more in found {
        let members: &[Member] = if more.place.machine == 0 { &members } else { &[] };
        let verdict = outlook.verdict(kinds[more.place.machine], members, ids[1], more.place.device);
        assert!((verdict.own - more.own).abs() < 1e-9, "{more:?} {verdict:?}");
        let hurt = |hurts: Option<(usize, f64, f64)>| hurts.map_or(0.0, |(_, before, after)| before - after);
        assert!((hurt(verdict.hurts) - hurt(more.hurts)).abs() < 1e-9, "{more:?} {verdict:?}");
        assert!(verdict.lost >= 0.0 && verdict.breaks.is_empty());
    }
}

#[test]
fn what_breaks_and_held_before_is_said() {
    let mut outlook = Outlook::default();
    let kind = outlook.kind(4.0, Bytes::mib(1024), &[&costs(1000.0)]);
    let promised = |floor, fsync_p99, memory| {
        let mut class = Class { floor, fsync_p99, ..class(8.0, 100.0) };
        class.demand.memory = Bytes::mib(memory);
        class
    };
    let late = outlook.class(&promised(0.0, Some(1e-9), 0));
    let alone = outlook.verdict(kind, &[], late, 0).breaks;
    let [Break::Fsync { p99, .. }] = alone[..] else { panic!("{alone:?}") };
    let classes = [promised(0.6, None, 0), promised(0.0, Some(1.2 * p99), 0), promised(0.0, None, 700)];
    let [floor, fsync, memory] = classes.map(|class| outlook.class(&class));
    let one = |class| [Member { class, device: 0, copies: 1 }];
    let mut breaks = |members: &[Member], class| outlook.verdict(kind, members, class, 0).breaks;
    assert_eq!(breaks(&[], floor), []);
    assert!(matches!(breaks(&one(floor), memory)[..], [Break::Floor { class, floor: 0.6, .. }] if class == floor));
    // Its own floor, and not again what is broken already.
    assert!(matches!(breaks(&one(memory), floor)[..], [Break::Floor { class, .. }] if class == floor));
    let both = [Member { class: floor, device: 0, copies: 2 }];
    assert_eq!(breaks(&both, floor), []);
    let found = breaks(&one(fsync), floor);
    assert!(
        found.iter().any(|one| matches!(one, Break::Fsync { class, p99, most } if *class == fsync && p99 > most)),
        "{found:?}"
    );
    assert!(matches!(breaks(&one(memory), memory)[..], [Break::Memory { missing }] if missing == Bytes::mib(376)));
}

#[test]
fn like_devices_are_one_and_each_mix_is_predicted_once() {
    let mut outlook = Outlook::default();
    let memory = Bytes::mib(8 << 10);
    let kind = outlook.kind(4.0, memory, &[&costs(1000.0)]);
    assert_eq!(outlook.kind(4.0, Bytes(memory.0 - memory.0 / 20), &[&costs(1050.0)]), kind);
    assert_ne!(outlook.kind(4.0, memory, &[&costs(1200.0)]), kind);
    assert_ne!(outlook.kind(8.0, memory, &[&costs(1000.0)]), kind);
    let a = outlook.class(&class(4.0, 100.0));
    assert_eq!(outlook.class(&class(4.0, 100.0)), a);
    assert_ne!(outlook.class(&class(4.0, 200.0)), a);
    let first = outlook.verdict(kind, &[Member { class: a, device: 0, copies: 1 }], a, 0);
    let size = outlook.size();
    assert_eq!(outlook.verdict(kind, &[Member { class: a, device: 0, copies: 1 }], a, 0), first);
    assert_eq!(outlook.size(), size);
}
