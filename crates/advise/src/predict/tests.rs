//! The network against exact solutions and against simulations of the same network.

mod exact;
mod simulation;

use bulkhead_core::demand::{Access, Cost, Costs, Demand, DeviceCosts, Durable, MissRatios, Purpose, Requests};
use bulkhead_core::units::Bytes;
use proptest::prelude::*;

use super::*;

/// A device that serves each request for the same time, one after the other.
fn serial(seconds: f64) -> DeviceCosts {
    let cost = Cost { latency_us: seconds * 1e6, per_s: 1.0 / seconds };
    let costs = Costs { small: cost, large: cost };
    DeviceCosts {
        random_read: costs,
        sequential_read: costs,
        random_write: costs,
        sequential_write: costs,
        durable_write: cost,
        read_write_sharing: 1.0,
        sequential_run: 1.0,
        cpu_us: 0.0,
        variation: 1.0,
    }
}

fn host<'a>(devices: &'a [&'a DeviceCosts], cpus: f64) -> Host<'a> {
    Host { cpus, cache: Bytes::mib(100), devices, is_journal_shared: false, has_shares: false }
}

fn reads(clients: f64, cpu_seconds: f64) -> Demand {
    let requests = Requests { access: Access::RandomRead, bytes: 4096.0, per_operation: 1.0, purpose: Purpose::Direct };
    Demand {
        clients,
        think_seconds: 0.0,
        cpu_seconds,
        requests: vec![requests],
        durable: None,
        miss_ratios: MissRatios::default(),
        memory: Bytes(0),
        correction_seconds: 0.0,
    }
}

fn writes_back(bytes: f64, clients: f64) -> Demand {
    let requests = Requests { access: Access::SequentialWrite, bytes, per_operation: 1.0, purpose: Purpose::WriteBack };
    Demand { requests: vec![requests], ..reads(clients, 1e-5) }
}

fn syncs(clients: f64, chain: f64) -> Demand {
    let durable = Durable { per_operation: 1.0, chain, is_shared: true };
    Demand { requests: Vec::new(), durable: Some(durable), ..reads(clients, 1e-4) }
}

/// `what` is within `percent` of `wanted`.
fn assert_near(what: &str, value: f64, wanted: f64, percent: f64) {
    assert!((value / wanted - 1.0).abs() * 100.0 <= percent, "{what}: {value}, not {wanted} +- {percent} %");
}

#[test]
fn one_client_waits_for_nobody() {
    let (device, demand) = (serial(0.001), reads(1.0, 0.002));
    let prediction = predict(&host(&[&device], 1.0), &[Load::one(&demand)]);
    assert_near("throughput", prediction.achieved[0].per_s, 1.0 / 0.003, 0.01);
    assert_eq!(prediction.achieved[0].limit, Limit::Clients);
}

#[test]
fn copies_are_the_same_as_loads() {
    let (device, demand) = (serial(0.001), reads(3.0, 0.002));
    let four = [Load::one(&demand); 4];
    let copies = Load { copies: 4, ..Load::one(&demand) };
    let (apart, together) = (predict(&host(&[&device], 2.0), &four), predict(&host(&[&device], 2.0), &[copies]));
    for achieved in apart.achieved {
        assert_near("throughput", achieved.per_s, together.achieved[0].per_s, 0.01);
    }
}

#[test]
fn devices_of_a_host_share_its_processors_only() {
    let (device, demand) = (serial(0.001), reads(8.0, 1e-5));
    let loads = [Load::one(&demand), Load { device: 1, ..Load::one(&demand) }];
    for achieved in predict(&host(&[&device, &device], 4.0), &loads).achieved {
        assert_near("own device", achieved.per_s, 1000.0, 0.5);
    }
    let busy = reads(8.0, 0.01);
    let loads = [Load::one(&busy), Load { device: 1, ..Load::one(&busy) }];
    for achieved in predict(&host(&[&device, &device], 4.0), &loads).achieved {
        assert_near("half of the processors", achieved.per_s, 200.0, 2.0);
    }
}

#[test]
fn a_throughput_valley_is_where_readers_fill_the_memory() {
    let device = DeviceCosts {
        random_read: Costs {
            small: Cost { latency_us: 100.0, per_s: 20_000.0 },
            large: Cost { latency_us: 500.0, per_s: 2000.0 },
        },
        ..serial(1e-4)
    };
    let mut demand = reads(8.0, 5e-6);
    demand.requests[0].purpose = Purpose::Cached;
    demand.miss_ratios = MissRatios::uniform(Bytes::mib(40));
    let total = |copies| {
        let load = Load { copies, ..Load::one(&demand) };
        let achieved = predict(&host(&[&device], 4.0), &[load]).achieved[0];
        (achieved.per_s * f64::from(copies), achieved.limit)
    };
    let (two, four, sixteen) = (total(2), total(4), total(16));
    assert!(two.0 > 5.0 * four.0, "{two:?} {four:?}");
    assert!(four.0 > sixteen.0, "{four:?} {sixteen:?}");
    assert_eq!((two.1, four.1), (Limit::Cpu, Limit::Memory));
    // Behind the valley, the device's rate and the few hits.
    assert_near("16 copies", sixteen.0, 20_000.0 / (1.0 - 100.0 / 640.0), 3.0);
}

#[test]
fn a_private_journal_keeps_a_database_from_a_streams_commits() {
    let (device, database, stream) = (serial(0.001), syncs(1.0, 2.0), writes_back(131_072.0, 8.0));
    let devices = [&device];
    let own = Host { has_shares: true, ..host(&devices, 4.0) };
    let shared = Host { is_journal_shared: true, ..host(&devices, 4.0) };
    let loads = [Load::one(&database), Load::one(&stream)];
    let [own, shared] = [own, shared].map(|host| predict(&host, &loads).achieved[0]);
    assert!(own.per_s > 5.0 * shared.per_s, "{own:?} {shared:?}");
    assert!(own.fsync.unwrap().p99 < shared.fsync.unwrap().mean, "{own:?} {shared:?}");
}

#[test]
fn shares_divide_the_device_between_those_that_want_it() {
    let (device, demand) = (serial(0.001), reads(16.0, 1e-5));
    let loads = [Load { share: 300.0, ..Load::one(&demand) }, Load::one(&demand)];
    let with = predict(&Host { has_shares: true, ..host(&[&device], 4.0) }, &loads).achieved;
    assert_near("ratio", with[0].per_s / with[1].per_s, 3.0, 10.0);
    assert_near("sum", with[0].per_s + with[1].per_s, 1000.0, 2.0);
    let without = predict(&host(&[&device], 4.0), &loads).achieved;
    assert_near("ratio without shares", without[0].per_s / without[1].per_s, 1.0, 0.1);
}

#[test]
fn clients_that_sync_together_share_commits() {
    let device = serial(0.001);
    let [one, many] =
        [1.0, 8.0].map(|clients| predict(&host(&[&device], 4.0), &[Load::one(&syncs(clients, 3.0))]).achieved[0]);
    assert_near("one client", one.per_s, 1.0 / 0.0031, 1.0);
    assert!(many.per_s > 4.0 * one.per_s, "{} {}", one.per_s, many.per_s);
}

#[test]
fn a_stream_takes_the_arm_from_random_writes_and_loses_its_run() {
    let mut device = serial(0.005);
    device.sequential_write =
        Costs { small: Cost { latency_us: 50.0, per_s: 20_000.0 }, large: Cost { latency_us: 700.0, per_s: 1500.0 } };
    let stream = Demand {
        requests: vec![Requests {
            access: Access::SequentialWrite,
            bytes: 131_072.0,
            per_operation: 1.0,
            purpose: Purpose::Direct,
        }],
        ..reads(1.0, 1e-5)
    };
    let random = Demand {
        requests: vec![Requests {
            access: Access::RandomWrite,
            bytes: 4096.0,
            per_operation: 1.0,
            purpose: Purpose::Direct,
        }],
        ..reads(1.0, 1e-5)
    };
    let devices = [&device];
    let host = host(&devices, 4.0);
    let lone = |demand: &Demand| predict(&host, &[Load::one(demand)]).achieved[0].per_s;
    let mixed = predict(&host, &[Load::one(&stream), Load::one(&random)]).achieved;
    assert!(mixed[0].per_s < 0.25 * lone(&stream), "{} {}", mixed[0].per_s, lone(&stream));
    let sum = mixed[0].per_s / lone(&stream) + mixed[1].per_s / lone(&random);
    assert!(sum < 0.85, "{sum}");
}

#[test]
fn reads_and_writes_that_do_not_disturb_each_other_keep_their_throughput() {
    let device = DeviceCosts { read_write_sharing: 0.0, ..serial(0.001) };
    let read = reads(8.0, 1e-5);
    let mut write = reads(8.0, 1e-5);
    write.requests[0].access = Access::RandomWrite;
    let mixed = predict(&host(&[&device], 4.0), &[Load::one(&read), Load::one(&write)]).achieved;
    assert!(mixed.iter().all(|achieved| achieved.per_s > 990.0), "{mixed:?}");
}

#[test]
fn requests_cost_processor_time_only_when_they_are_made() {
    let device = DeviceCosts { cpu_us: 100.0, ..serial(1e-5) };
    let mut demand = reads(8.0, 1e-5);
    demand.requests[0].purpose = Purpose::Cached;
    demand.miss_ratios = MissRatios::uniform(Bytes::mib(100));
    let total = |copies| {
        let load = Load { copies, ..Load::one(&demand) };
        predict(&host(&[&device], 1.0), &[load]).achieved[0].per_s * f64::from(copies)
    };
    assert_near("hits", total(1), 100_000.0, 1.0);
    // Half of the reads of each miss.
    assert_near("misses", total(2), 1.0 / 60e-6, 2.0);
}

#[test]
fn a_fitted_demand_achieves_alone_what_was_measured() {
    let device = DeviceCosts {
        random_read: Costs { small: Cost { latency_us: 100.0, per_s: 40_000.0 }, ..serial(2e-4).random_read },
        ..serial(2e-4)
    };
    let devices = [&device];
    let host = host(&devices, 4.0);
    let demand = reads(4.0, 2e-5);
    let alone = predict(&host, &[Load::one(&demand)]).achieved[0].per_s;
    for part in [0.2, 0.9, 1.0, 1.1, 1.5, 4.0] {
        let fitted = fit(&host, 0, &demand, alone * part);
        assert_near("with a correction", fitted.with, 1.0, 0.5);
        assert_near("without", fitted.without, 1.0 / part, 0.1);
        fitted.demand.check().unwrap();
        let corrected = fitted.demand.correction_seconds;
        assert!(if part < 1.0 { corrected > 0.0 } else { corrected <= 0.0 }, "{part}: {corrected}");
    }
    // Slower for a reason of its own: it leaves the device to others, and many still reach its rate.
    let slow = fit(&host, 0, &demand, alone / 5.0).demand;
    let many = predict(&host, &[Load { copies: 30, ..Load::one(&slow) }]);
    assert_near("many", many.achieved[0].per_s * 30.0, 40_000.0, 5.0);
}

prop_compose! {
    fn any_demand()(
        clients in 1.0..64.0f64, think_seconds in 0.0..0.1f64, cpu_seconds in 0.0..0.01f64, access in 0usize..4, bytes in 512.0..1e6f64,
        per_operation in 0.0..10.0f64, purpose in 0usize..3, syncs in 0.0..2.0f64, chain in 1.0..5.0f64, is_shared: bool,
        working_set in 1u64..1 << 32,
    ) -> Demand {
        let access = Access::ALL[access];
        let purpose = match (purpose, access.is_write()) {
            (1, false) => Purpose::Cached,
            (2, true) => Purpose::WriteBack,
            _ => Purpose::Direct,
        };
        Demand {
            clients,
            think_seconds,
            cpu_seconds: cpu_seconds + 1e-6,
            requests: vec![Requests { access, bytes, per_operation, purpose }],
            durable: (syncs > 0.5).then_some(Durable { per_operation: syncs, chain, is_shared }),
            miss_ratios: MissRatios::uniform(Bytes(working_set)),
            memory: Bytes(0),
            correction_seconds: 0.0,
        }
    }
}

proptest! {
    #[test]
    fn any_mix_has_sensible_figures(
        demands in proptest::collection::vec(any_demand(), 1..6), cpus in 0.5..64.0f64, has_shares: bool, is_journal_shared: bool,
    ) {
        let device = serial(0.0005);
        let devices = [&device];
        let host = Host { has_shares, is_journal_shared, ..host(&devices, cpus) };
        let loads: Vec<Load<'_>> = demands.iter().map(Load::one).collect();
        let prediction = predict(&host, &loads);
        prop_assert!((0.0..=1.0).contains(&prediction.cpu) && (0.0..=1.0).contains(&prediction.devices[0]));
        for (demand, achieved) in demands.iter().zip(&prediction.achieved) {
            let most = demand.clients / (demand.think_seconds + demand.cpu_seconds);
            prop_assert!(achieved.per_s > 0.0 && achieved.per_s <= most * 1.001, "{achieved:?} {most}");
            let times = achieved.operation;
            prop_assert!(times.mean.is_finite() && times.mean > 0.0 && times.p99 >= times.p95, "{achieved:?}");
            prop_assert!((0.0..=1.0).contains(&achieved.miss), "{achieved:?}");
        }
    }
}
