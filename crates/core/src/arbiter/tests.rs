//! The arbiter on a simulated arm: what chains gain, that shares hold, and that nobody waits for long.

mod simulation;

use proptest::prelude::{Just, Strategy, prop_assert, prop_oneof, proptest};

use super::*;
use simulation::{Disk, Found, Kind, Order, simulate, simulate_on, simulate_tenants};

const MS: Nanos = 1_000_000;

/// Appends 4 KiB and calls fsync every 100 ms.
const PROBE: Kind = Kind::Fsyncs { processes: 1, every: 100 * MS, kib: 4 };
/// Eight processes that write 16 KiB and call fsync, one after the other.
const FSYNCS: Kind = Kind::Fsyncs { processes: 8, every: 0, kib: 16 };
/// A writer of large blocks, many at a time.
const STREAM: Kind = Kind::Stream { depth: 32, kib: 512 };
/// A database: one client that commits as fast as it can.
const DATABASE: Kind = Kind::Fsyncs { processes: 1, every: 0, kib: 16 };

fn beside(of: Kind, neighbour: Kind, order: Order) -> (Found, Found) {
    let found = simulate(&[(of, 50), (neighbour, 50)], order, 30_000 * MS);
    (found[0].clone(), found[1].clone())
}

#[test]
fn chains_keep_the_arm_and_the_neighbour_loses_nothing() {
    let alone = simulate(&[(PROBE, 100)], Order::Arrival, 30_000 * MS)[0].clone();
    // What the stream gets first come, first served, the probe does not get: it keeps more than the rest, 100 ms less a chain and two seeks.
    for (name, neighbour, most, least) in [("fsyncs", FSYNCS, 1.6, 1.0), ("stream", STREAM, 1.6, 0.8)] {
        let (before, theirs_before) = beside(PROBE, neighbour, Order::Arrival);
        let (after, theirs) = beside(PROBE, neighbour, Order::Arbiter);
        let [times_before, times] = [before.mean_ms(), after.mean_ms()].map(|ms| ms / alone.mean_ms());
        let p99 = after.p99_ms() / alone.p99_ms();
        let kept = theirs.operations / theirs_before.operations;
        println!(
            "{name}: {times_before:.1} times as long as alone ({:.1} ms), {times:.2} (p99 {p99:.2}) with the arbiter; the neighbour keeps {kept:.3}",
            alone.mean_ms()
        );
        assert!(times <= most && p99 <= 2.0, "{name}: {times_before:.2} {times:.2} {p99:.2}");
        assert!(kept >= least, "{name}: the neighbour keeps {kept:.3}");
    }
}

#[test]
fn device_time_is_divided_by_shares() {
    for shares in [(50, 50), (70, 30), (90, 10)] {
        for (of, neighbour) in [(DATABASE, FSYNCS), (DATABASE, STREAM), (FSYNCS, STREAM), (STREAM, STREAM)] {
            let found = simulate(&[(of, shares.0), (neighbour, shares.1)], Order::Arbiter, 30_000 * MS);
            let wanted = f64::from(shares.0) / f64::from(shares.0 + shares.1);
            let part = found[0].device_ns as f64 / (found[0].device_ns + found[1].device_ns) as f64;
            println!("{of:?} with {shares:?} beside {neighbour:?}: {part:.3}");
            assert!((part - wanted).abs() <= 0.05, "{of:?} beside {neighbour:?}, {shares:?}: {part:.3}");
        }
    }
}

#[test]
fn a_database_keeps_its_share_of_what_it_achieves_alone() {
    let alone = simulate(&[(DATABASE, 70)], Order::Arbiter, 30_000 * MS)[0].clone();
    for neighbour in [FSYNCS, STREAM] {
        for order in [Order::Arrival, Order::Arbiter] {
            let found = simulate(&[(DATABASE, 70), (neighbour, 30)], order, 30_000 * MS);
            let (kept, times) = (found[0].operations / alone.operations, found[0].mean_ms() / alone.mean_ms());
            println!(
                "database at 70 % beside {neighbour:?}, {order:?}: {kept:.3} of alone, an fsync {times:.2} times as long"
            );
            assert!(
                order == Order::Arrival || kept >= 0.95 * 0.7 && times <= 2.0,
                "{neighbour:?}: {kept:.3} {times:.2}"
            );
        }
    }
}

#[test]
fn a_cache_of_the_disk_is_not_filled_at_the_cost_of_others() {
    let alone = simulate_on(Disk::Cached, &[(DATABASE, 70)], Order::Arbiter, 30_000 * MS)[0].clone();
    for neighbour in [FSYNCS, STREAM, DATABASE] {
        for order in [Order::Arrival, Order::Arbiter] {
            let found = simulate_on(Disk::Cached, &[(DATABASE, 70), (neighbour, 30)], order, 30_000 * MS);
            let (kept, times) = (found[0].operations / alone.operations, found[0].mean_ms() / alone.mean_ms());
            println!(
                "with a cache, beside {neighbour:?}, {order:?}: {kept:.3} of alone, an fsync {times:.2} times as long; the neighbour {}",
                found[1].operations
            );
            assert!(
                order == Order::Arrival || kept >= 0.95 * 0.7 && times <= 2.0,
                "{neighbour:?}: {kept:.3} {times:.2}"
            );
        }
    }
}

#[test]
fn streams_alone_use_the_cache_of_the_disk() {
    let rate = |tenants: &[(Kind, u32)], order| -> f64 {
        simulate_on(Disk::Cached, tenants, order, 30_000 * MS).iter().map(|found| found.operations).sum()
    };
    let streams = [(STREAM, 50), (STREAM, 50)];
    let (before, after) = (rate(&streams, Order::Arrival), rate(&streams, Order::Arbiter));
    println!("two streams: {:.3} of what they have by arrival", after / before);
    assert!(after >= 0.95 * before);
}

#[test]
fn fake_chains_get_no_more_than_their_share() {
    let hostile = Kind::Fake { think: 2 * MS };
    for honest in [FSYNCS, STREAM, DATABASE] {
        let found = simulate(&[(honest, 50), (hostile, 50)], Order::Arbiter, 30_000 * MS);
        let alone = simulate(&[(honest, 50)], Order::Arbiter, 30_000 * MS);
        let kept = found[0].operations / alone[0].operations;
        println!("{honest:?} beside fake chains keeps {kept:.3}");
        // A change of tenants costs a seek, which is part of its time.
        assert!(kept >= if honest == STREAM { 0.30 } else { 0.40 }, "{honest:?} keeps {kept:.3} beside fake chains");
    }
}

#[test]
fn servers_of_one_tenant_have_one_share_together() {
    let tenants = [(STREAM, 50, 1), (STREAM, 50, 1), (STREAM, 50, 1), (STREAM, 50, 2)];
    let found = simulate_tenants(Disk::Through, &tenants, Order::Arbiter, 30_000 * MS);
    let whole: Nanos = found.iter().map(|one| one.device_ns).sum();
    let part = found[3].device_ns as f64 / whole as f64;
    assert!((part - 0.5).abs() <= 0.05, "one server beside three of another tenant has {part:.3}");
}

#[test]
fn who_comes_later_gets_nothing_for_the_time_before() {
    const HOUR: Nanos = 3_600_000 * MS;
    for others_wait in [0, 1] {
        // The other one has had the device for an hour.
        let other = Slot {
            share: 100,
            virtual_ns: HOUR,
            waiting_since: others_wait * HOUR,
            last_seen: HOUR,
            ..Slot::default()
        };
        let mut slots = [Slot { share: 100, ..Slot::default() }, other];
        let mut own = Own::default();
        own.joins(0, &mut slots, HOUR);
        assert_eq!(slots[0].virtual_ns, HOUR - SLACK);
    }
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(PROBE),
        Just(FSYNCS),
        Just(STREAM),
        Just(DATABASE),
        (0u64..8).prop_map(|ms| Kind::Fake { think: ms * MS }),
        Just(Kind::Dead),
    ]
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 12, failure_persistence: None, ..Default::default() })]
    #[test]
    fn nobody_starves_or_waits_beyond_the_limit(tenants in proptest::collection::vec((kind(), 50u32..1000), 2..65)) {
        // Long enough for a round of chains of 4 links, at 10 ms each.
        let found = simulate(&tenants, Order::Arbiter, (tenants.len() as Nanos + 5) * 200 * MS);
        for (one, (kind, share)) in found.iter().zip(&tenants) {
            prop_assert!(one.longest_hold <= MAX_WAIT + MS, "{kind:?} was held for {} ns", one.longest_hold);
            prop_assert!(one.operations > 0.0 || *kind == Kind::Dead, "{kind:?} with {share} starves: {tenants:?}");
        }
    }

    #[test]
    fn nothing_in_other_slots_holds_a_request_beyond_the_limit(
        others in proptest::collection::vec(proptest::array::uniform6(proptest::num::u64::ANY), 1..8),
        waited in 0..2 * MAX_WAIT,
        now in MAX_WAIT * 2..Nanos::MAX,
    ) {
        let corrupt = |values: &[u64; 6]| Slot {
            tenant: values[3] % 2,
            share: (values[0] >> 40) as u32,
            virtual_ns: values[0],
            in_flight: (values[1] >> 32) as u32,
            waiting_since: values[2],
            window_until: values[3],
            keeps_since: values[4],
            last_seen: values[5],
            last_completed: values[1],
            dirty: values[2],
            dirty_since: values[4],
            flushed_at: values[5] % values[4].max(1),
            asked_at: values[5],
            owed: values[0],
        };
        let mut slots: Vec<Slot> = others.iter().map(corrupt).collect();
        slots.push(Slot { share: 100, waiting_since: now - waited, ..Slot::default() });
        let own = slots.len() - 1;
        let mut server = Own::default();
        match server.asks(own, &mut slots, now) {
            Decision::Submit => {}
            Decision::Wait(until) => prop_assert!(waited < MAX_WAIT && until <= now - waited + MAX_WAIT),
        }
        server.submits(own, &mut slots, now, true);
        server.completes(own, &mut slots, now, now, Link::Durable);
        server.expires(own, &mut slots, Nanos::MAX);
        server.arrives(own, &mut slots, Nanos::MAX);
    }
}
