//! Placements against all others of small fleets, and the limits of what any can reach.

use bulkhead_core::demand::{Access, Cost, Costs, Durable, MissRatios, Purpose, Requests};

use super::exact::best;
use super::mixes::Mixes;
use super::search::search;
use super::value::Value;
use super::*;

fn costs(random_us: f64, sequential_us: f64, flush_us: f64, sharing: f64) -> DeviceCosts {
    let costs = |small_us: f64, large_us: f64, parallel: f64| Costs {
        small: Cost { latency_us: small_us * parallel, per_s: 1e6 / small_us },
        large: Cost { latency_us: large_us * parallel, per_s: 1e6 / large_us },
    };
    DeviceCosts {
        random_read: costs(random_us, random_us + sequential_us * 16.0, 4.0),
        sequential_read: costs(sequential_us, sequential_us * 16.0, 1.0),
        random_write: costs(random_us, random_us + sequential_us * 16.0, 4.0),
        sequential_write: costs(sequential_us, sequential_us * 16.0, 1.0),
        durable_write: Cost { latency_us: flush_us, per_s: 1e6 / flush_us },
        read_write_sharing: sharing,
        sequential_run: 8.0,
        cpu_us: 0.0,
        variation: 1.0,
    }
}

fn hdd() -> DeviceCosts {
    costs(5000.0, 30.0, 12_000.0, 1.0)
}

fn ssd() -> DeviceCosts {
    costs(20.0, 15.0, 100.0, 0.3)
}

fn demand(access: Access, bytes: f64, purpose: Purpose, clients: f64) -> Demand {
    Demand {
        clients,
        think_seconds: 0.0,
        cpu_seconds: 2e-5,
        requests: vec![Requests { access, bytes, per_operation: 1.0, purpose }],
        durable: None,
        miss_ratios: MissRatios::default(),
        memory: Bytes::mib(64),
        correction_seconds: 0.0,
    }
}

/// Streams, random writers and readers, cached readers, databases, and one that computes.
fn demands() -> Vec<Demand> {
    let database = Demand {
        requests: Vec::new(),
        durable: Some(Durable { per_operation: 1.0, chain: 2.0, is_shared: true }),
        think_seconds: 0.002,
        ..demand(Access::RandomRead, 4096.0, Purpose::Direct, 8.0)
    };
    let cached = Demand {
        miss_ratios: MissRatios::uniform(Bytes::mib(600)),
        ..demand(Access::RandomRead, 4096.0, Purpose::Cached, 4.0)
    };
    let computes =
        Demand { requests: Vec::new(), cpu_seconds: 0.001, ..demand(Access::RandomRead, 4096.0, Purpose::Direct, 3.0) };
    vec![
        demand(Access::SequentialWrite, 131_072.0, Purpose::WriteBack, 4.0),
        demand(Access::RandomWrite, 4096.0, Purpose::Direct, 8.0),
        demand(Access::RandomRead, 4096.0, Purpose::Direct, 8.0),
        cached,
        database,
        computes,
    ]
}

fn machine(name: &str, costs: &[usize]) -> Machine {
    let device = |(index, costs): (usize, &usize)| Device {
        name: format!("d{index}"),
        costs: *costs,
        space: Bytes::mib(10_000),
    };
    let devices = costs.iter().enumerate().map(device).collect();
    Machine { name: name.to_owned(), domain: name.to_owned(), cpus: 4.0, memory: Bytes::mib(1024), devices }
}

fn workload(name: &str, demand: usize) -> Workload {
    Workload { space: Bytes::mib(1000), ..Workload::new(name, demand) }
}

fn fleet(machines: Vec<Machine>, of: &[usize]) -> Fleet {
    let workloads = of.iter().enumerate().map(|(index, demand)| workload(&format!("w{index}"), *demand)).collect();
    Fleet { demands: demands(), costs: vec![hdd(), ssd()], machines, workloads, has_shares: true, ..Fleet::default() }
}

fn value(fleet: &Fleet, places: &[Place]) -> Value {
    let mut mixes = Mixes::new(fleet);
    let mut whole = Value::NONE;
    for (machine, on) in mixes.by_machine(places).into_iter().enumerate() {
        whole = whole.plus(super::value::host_value(&mut mixes, machine, &on));
    }
    whole
}

/// The best of all placements.
fn of_all(fleet: &Fleet) -> Value {
    let all: Vec<Place> = fleet
        .machines
        .iter()
        .enumerate()
        .flat_map(|(machine, its)| (0..its.devices.len()).map(move |device| Place { machine, device }))
        .collect();
    let n = all.len().pow(u32::try_from(fleet.workloads.len()).unwrap());
    let mut mixes = Mixes::new(fleet);
    let mut best = Value::WORST;
    for number in 0..n {
        let mut rest = number;
        let places: Vec<Place> = fleet.workloads.iter().map(|_| (all[rest % all.len()], rest /= all.len()).0).collect();
        let mut whole = Value::NONE;
        for (machine, on) in mixes.by_machine(&places).into_iter().enumerate() {
            whole = whole.plus(super::value::host_value(&mut mixes, machine, &on));
        }
        if whole.is_better_than(best) {
            best = whole;
        }
    }
    best
}

#[test]
fn few_workloads_are_placed_as_well_as_by_trying_all_placements() {
    let small = [
        fleet(vec![machine("a", &[1]), machine("b", &[1]), machine("c", &[0])], &[0, 1, 2, 3, 4, 0]),
        fleet(vec![machine("a", &[0, 1]), machine("b", &[0])], &[4, 4, 0, 3, 2]),
        fleet(vec![machine("a", &[1]), machine("b", &[1])], &[3, 3, 3, 5, 5, 4, 1]),
    ];
    for (index, mut fleet) in small.into_iter().enumerate() {
        for with in 0..3 {
            if with >= 1 {
                fleet.groups = vec![Group { name: "db".to_owned(), apart: Apart::Hosts }];
                fleet.workloads[0].group = Some(0);
                fleet.workloads[1].group = Some(0);
                fleet.workloads[2].floor = 0.6;
            }
            if with == 2 {
                fleet.workloads[3].only = vec![1];
                fleet.workloads.iter_mut().for_each(|workload| workload.space = Bytes::mib(2500));
            }
            let places = best(&mut Mixes::new(&fleet)).unwrap();
            let (found, wanted) = (value(&fleet, &places), of_all(&fleet));
            assert!(!wanted.is_better_than(found), "fleet {index}, {with}: {found:?} {wanted:?}");
            assert_eq!(place(&fleet).places, places);
        }
    }
}

#[test]
fn searching_reaches_97_percent_of_the_best_and_never_the_bound() {
    let fleets = [
        fleet(vec![machine("a", &[1]), machine("b", &[1]), machine("c", &[0])], &[0, 1, 2, 3, 4, 0, 5, 3]),
        fleet(
            vec![machine("a", &[1]), machine("b", &[1]), machine("c", &[1]), machine("d", &[1])],
            &[0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
        ),
        fleet(vec![machine("a", &[0]), machine("b", &[1])], &[4, 4, 4, 3, 0, 0, 2]),
        fleet(vec![machine("a", &[1, 0]), machine("b", &[1])], &[4, 3, 3, 0, 2, 5]),
    ];
    for fleet in &fleets {
        let wanted = value(fleet, &best(&mut Mixes::new(fleet)).unwrap());
        let found = value(fleet, &search(&mut Mixes::new(fleet)));
        assert!(found.sum >= 0.97 * wanted.sum, "{found:?} {wanted:?}");
        let bound = upper_bound(fleet).unwrap();
        assert!(wanted.sum <= bound * 1.001 && bound <= fleet.workloads.len() as f64 + 1e-6, "{wanted:?} {bound}");
    }
}

/// Normalised throughputs of two random writers and two random readers on two hosts with flash: writers with writers, and with readers.
fn of_pairs(has_shares: bool) -> (Vec<f64>, Vec<f64>) {
    let mut fleet = fleet(vec![machine("a", &[1]), machine("b", &[1])], &[1, 1, 2, 2]);
    fleet.machines.iter_mut().for_each(|machine| machine.cpus = 16.0);
    fleet.has_shares = has_shares;
    let on =
        |machines: [usize; 4]| judge(&fleet, machines.map(|machine| Place { machine, device: 0 }).into()).normalised;
    (on([0, 0, 1, 1]), on([0, 1, 0, 1]))
}

#[test]
fn readers_are_better_put_with_writers_where_they_disturb_each_other_little() {
    for has_shares in [false, true] {
        let (equal, mixed) = of_pairs(has_shares);
        assert!(mixed.iter().sum::<f64>() > 1.1 * equal.iter().sum::<f64>(), "{equal:?} {mixed:?}");
    }
}

#[test]
fn readers_that_fit_into_memory_alone_are_spread() {
    let placed = place(&fleet(vec![machine("a", &[1]), machine("b", &[1])], &[3, 3, 5, 5]));
    assert_ne!(placed.places[0], placed.places[1], "{placed:?}");
}

#[test]
fn an_impossible_fleet_says_what_is_missing() {
    let mut fleet = fleet(vec![machine("a", &[1])], &[0, 1]);
    fleet.machines[0].devices[0].space = Bytes::mib(1500);
    fleet.workloads[0].floor = 0.99;
    fleet.workloads[1].floor = 0.99;
    let placed = place(&fleet);
    let place = Place { machine: 0, device: 0 };
    assert!(placed.broken.contains(&Broken::Space { place, missing: Bytes::mib(500) }), "{:?}", placed.broken);
    assert!(placed.broken.iter().any(|broken| matches!(broken, Broken::Floor { .. })), "{:?}", placed.broken);
}

#[test]
fn members_of_a_group_are_in_different_domains() {
    let mut machines = vec![machine("a", &[1]), machine("b", &[1]), machine("c", &[1])];
    machines[1].domain = "a".to_owned();
    let mut fleet = fleet(machines, &[4, 4, 0, 1]);
    fleet.groups = vec![Group { name: "db".to_owned(), apart: Apart::Domains }];
    fleet.workloads[0].group = Some(0);
    fleet.workloads[1].group = Some(0);
    let placed = place(&fleet);
    assert_eq!(placed.broken, []);
    assert_eq!(placed.places[..2].iter().filter(|place| place.machine == 2).count(), 1, "{:?}", placed.places);
    fleet.workloads[0].only = vec![0];
    fleet.workloads[1].only = vec![1];
    assert_eq!(place(&fleet).broken, [Broken::Together { workload: 1, with: 0 }]);
}

#[test]
fn alternatives_say_who_would_lose() {
    let fleet = fleet(vec![machine("a", &[0]), machine("b", &[0])], &[0, 0, 1, 1]);
    let placed = place(&fleet);
    let others = &alternatives(&fleet, &placed.places, 3)[2];
    assert_eq!(others.len(), 1);
    let (loser, before, after) = others[0].hurts.unwrap();
    assert!(others[0].change < 0.0 && loser != 2 && after < before, "{others:?}");
}

#[test]
fn a_move_gains_what_the_sum_loses_without_it() {
    let mut fleet = fleet(vec![machine("a", &[0, 1]), machine("b", &[1])], &[0, 1, 3, 4, 2]);
    fleet.workloads.iter_mut().for_each(|workload| workload.now = Some(Place { machine: 0, device: 0 }));
    let placed = place(&fleet);
    let moved = moves(&fleet, &placed.places);
    assert!(moved.len() >= 3, "{moved:?}");
    for (workload, gain) in moved {
        let mut places = placed.places.clone();
        places[workload] = Place { machine: 0, device: 0 };
        let wanted = placed.sum - judge(&fleet, places).sum;
        assert!((gain - wanted).abs() < 1e-9, "{workload}: {gain} {wanted}");
    }
}

#[test]
fn a_fleet_without_workloads_is_placed() {
    let placed = place(&fleet(vec![machine("a", &[0])], &[]));
    assert_eq!((placed.places.len(), placed.sum, placed.broken.len()), (0, 0.0, 0));
    assert!(upper_bound(&fleet(vec![machine("a", &[0])], &[])).unwrap() < 1e-9);
}
