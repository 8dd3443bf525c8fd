//! Properties of every model under any load: each request completes once; a flush or FUA write completes only when the
//! data that it covers is durable; no request starves; the same calls give the same events; a slower disk is the same
//! disk on a slower clock.
//!
//! Owns: the durability checker. Does not: compare with published figures.

use bulkhead_disk::{Disk, Event, Kind, Nanos, Parameters, Request};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const SIZE: u64 = 256 << 20;
const BLOCK: u64 = 4096;
const MODELS: [Parameters; 3] = [Parameters::HDD, Parameters::SSD, Parameters::NVME];

fn hdd_with(change: impl Fn(&mut bulkhead_disk::HddParameters)) -> Parameters {
    let Parameters::Hdd(mut table) = Parameters::HDD else { unreachable!("HDD is a hard disk") };
    change(&mut table);
    Parameters::Hdd(table)
}

fn request(tag: u16, kind: Kind, block: u64, n_blocks: u64) -> Request {
    Request { tag, kind, offset: block * BLOCK, len: n_blocks * BLOCK }
}

/// Submits each request at its time; returns all events with their times.
fn run(parameters: &Parameters, requests: &[(u64, Request)]) -> Vec<(u64, Event)> {
    let mut disk = Disk::new(parameters, SIZE, 7);
    let (mut log, mut events) = (Vec::new(), Vec::new());
    let mut requests = requests.iter().peekable();
    loop {
        let submit_at = requests.peek().map(|&&(at, _)| Nanos(at));
        let Some(now) = [submit_at, disk.next_event()].into_iter().flatten().min() else { return log };
        disk.advance(now, &mut events);
        log.extend(events.drain(..).map(|event| (now.0, event)));
        while let Some((_, request)) = requests.next_if(|&&(at, _)| at <= now.0) {
            disk.submit(now, *request);
        }
    }
}

fn completed(log: &[(u64, Event)], tag: u16) -> u64 {
    log.iter().find(|(_, event)| *event == Event::Completed { tag }).expect("completed").0
}

/// Replays the log: a write that completed before a flush was submitted is durable before the flush completes.
fn check_durability(parameters: &Parameters, requests: &[(u64, Request)], log: &[(u64, Event)]) {
    let mut submitted = requests.iter().peekable();
    // Blocks of completed writes that are not yet durable; the blocks that each flush and FUA write in flight still
    // needs.
    let mut dirty: BTreeSet<u64> = BTreeSet::new();
    let mut needs: BTreeMap<u16, BTreeSet<u64>> = BTreeMap::new();
    let mut done = BTreeSet::new();
    let by_tag: BTreeMap<u16, Request> = requests.iter().map(|(_, request)| (request.tag, *request)).collect();
    let blocks = |offset: u64, len: u64| offset / BLOCK..(offset + len) / BLOCK;
    let mut before = None;
    for &(at, event) in log {
        while let Some((_, request)) = submitted.next_if(|&&(submit_at, _)| submit_at < at) {
            let mut discarded = 0..0;
            match request.kind {
                Kind::Flush => drop(needs.insert(request.tag, dirty.clone())),
                Kind::Write { fua: true } => {
                    needs.insert(request.tag, blocks(request.offset, request.len).collect());
                }
                Kind::Discard => discarded = blocks(request.offset, request.len),
                _ => {}
            }
            release(&discarded, &mut dirty, &mut needs);
        }
        match event {
            Event::Durable { offset, len } => {
                release(&blocks(offset, len), &mut dirty, &mut needs);
            }
            Event::Completed { tag } => {
                assert!(done.insert(tag), "{tag} completed twice");
                let left = needs.remove(&tag).unwrap_or_default();
                assert!(left.is_empty(), "{tag} completed before {left:?} were durable: {}", parameters.describe());
                let request = by_tag[&tag];
                if request.kind == Kind::Discard {
                    release(&blocks(request.offset, request.len), &mut dirty, &mut needs);
                }
                let itself = Event::Durable { offset: request.offset, len: request.len };
                if matches!(request.kind, Kind::Write { .. }) && before != Some(itself) {
                    assert_ne!(request.kind, Kind::Write { fua: true });
                    dirty.extend(blocks(request.offset, request.len));
                }
            }
        }
        before = Some(event);
    }
    assert_eq!(done.len(), requests.len());
}

/// Removes blocks that no flush needs any more: they are durable, or undefined, as the bytes of a discard are at least
/// from its submission to its completion.
fn release(blocks: &Range<u64>, dirty: &mut BTreeSet<u64>, needs: &mut BTreeMap<u16, BTreeSet<u64>>) {
    dirty.retain(|block| !blocks.contains(block));
    needs.values_mut().for_each(|needs| needs.retain(|block| !blocks.contains(block)));
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => Just(Kind::Read),
        8 => Just(Kind::Write { fua: false }),
        1 => Just(Kind::Write { fua: true }),
        2 => Just(Kind::Flush),
        1 => Just(Kind::Discard),
    ]
}

fn requests() -> impl Strategy<Value = Vec<(u64, Request)>> {
    // A few blocks at one end and many across the disk: overlaps, sequences and seeks.
    let block = prop_oneof![0..64u64, 0..SIZE / BLOCK - 64];
    let one = (0..3_000_000u64, kind(), block, 1..64u64);
    proptest::collection::vec(one, 1..200).prop_map(|steps| {
        let mut at = 0;
        (0..)
            .zip(steps)
            .map(|(tag, (pause, kind, block, n_blocks))| {
                at += pause;
                (at, request(tag, kind, block, n_blocks))
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn flushes_and_fua_writes_complete_after_their_data_is_durable(requests in requests()) {
        let small_cache = hdd_with(|table| {
            table.write_cache_bytes = 1 << 20;
            table.write_cache_extents = 8;
        });
        for parameters in MODELS.into_iter().chain([small_cache, hdd_with(|table| table.write_cache = false)]) {
            check_durability(&parameters, &requests, &run(&parameters, &requests));
        }
    }

    #[test]
    fn the_same_calls_give_the_same_events(requests in requests()) {
        for parameters in MODELS {
            prop_assert_eq!(run(&parameters, &requests), run(&parameters, &requests));
        }
    }

    #[test]
    fn a_disk_k_times_slower_takes_k_times_as_long(requests in requests(), k in 2u32..40) {
        let slower: Vec<_> = requests.iter().map(|&(at, request)| (at * u64::from(k), request)).collect();
        for parameters in MODELS {
            let expected: Vec<_> =
                run(&parameters, &requests).into_iter().map(|(at, event)| (at * u64::from(k), event)).collect();
            prop_assert_eq!(run(&parameters.scaled(f64::from(k)), &slower), expected);
        }
    }

    #[test]
    fn durability_holds_at_any_slowdown(requests in requests(), k in 0.01f64..100.0) {
        for parameters in MODELS {
            check_durability(&parameters, &requests, &run(&parameters.scaled(k), &requests));
        }
    }
}

#[test]
fn a_flush_of_a_clean_cache_costs_one_command() {
    for parameters in MODELS {
        let at = completed(&run(&parameters, &[(0, request(0, Kind::Flush, 0, 0))]), 0);
        assert!(at <= 50_000, "{at} ns: {}", parameters.describe());
    }
}

#[test]
fn a_write_waits_while_the_cache_is_full() {
    let parameters = hdd_with(|table| table.write_cache_bytes = 64 << 10);
    let requests: Vec<_> =
        (0..32).map(|n| (0, request(n, Kind::Write { fua: false }, u64::from(n) * 1000, 1))).collect();
    let log = run(&parameters, &requests);
    assert!(completed(&log, 0) < 100_000);
    // Room for 16: the last waits until at least 16 have been destaged.
    assert!(completed(&log, 31) > 16 * 1_000_000);
    let durable_before = log.iter().take_while(|(_, event)| *event != Event::Completed { tag: 31 });
    assert!(durable_before.filter(|(_, event)| matches!(event, Event::Durable { .. })).count() >= 16);
}

#[test]
fn a_write_without_cache_completes_after_it_reaches_the_medium() {
    for (parameters, fua) in [(hdd_with(|table| table.write_cache = false), false), (Parameters::HDD, true)] {
        let log = run(&parameters, &[(0, request(0, Kind::Write { fua }, 5000, 2))]);
        let events: Vec<_> = log.iter().map(|(_, event)| *event).collect();
        assert_eq!(events, [Event::Durable { offset: 5000 * BLOCK, len: 2 * BLOCK }, Event::Completed { tag: 0 }]);
        assert!(log[0].0 > 500_000);
    }
}

#[test]
fn a_discarded_write_is_not_destaged() {
    let requests = [
        (0, request(0, Kind::Read, 60_000, 1)),
        (1_000, request(1, Kind::Write { fua: false }, 5000, 4)),
        (200_000, request(2, Kind::Discard, 5001, 2)),
        (300_000, request(3, Kind::Flush, 0, 0)),
    ];
    let log = run(&Parameters::HDD, &requests);
    let durable: BTreeSet<_> = log
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Durable { offset, len } => Some((offset / BLOCK, len / BLOCK)),
            Event::Completed { .. } => None,
        })
        .collect();
    assert_eq!(durable, BTreeSet::from([(5000, 1), (5003, 1)]));
}

#[test]
fn a_far_command_does_not_starve() {
    // One reader at the far end against 16 at the near end for five seconds, with an age limit of 0.3 s.
    let parameters = hdd_with(|table| table.command_age_limit_ns = 300_000_000);
    let mut disk = Disk::new(&parameters, SIZE, 3);
    disk.submit(Nanos(0), request(0, Kind::Read, SIZE / BLOCK - 1, 1));
    for tag in 1..=16 {
        disk.submit(Nanos(0), request(tag, Kind::Read, u64::from(tag) * 7, 1));
    }
    let mut events = Vec::new();
    let mut block = 0;
    let far = loop {
        let now = disk.next_event().expect("requests are in flight");
        assert!(now.0 < 5_000_000_000, "the far command starves");
        disk.advance(now, &mut events);
        if events.contains(&Event::Completed { tag: 0 }) {
            break now;
        }
        for event in events.drain(..) {
            if let Event::Completed { tag } = event {
                block = (block + 977) % 4000;
                disk.submit(now, request(tag, Kind::Read, block, 1));
            }
        }
    };
    assert!(far.0 < 350_000_000, "{} ns", far.0);
}

#[test]
fn reads_and_a_flush_take_turns() {
    // 300 scattered dirty blocks to flush: a read that arrives meanwhile waits for few of them.
    let mut requests: Vec<_> =
        (0..300).map(|n| (0, request(n, Kind::Write { fua: false }, u64::from(n) * 211, 1))).collect();
    requests.push((20_000_000, request(300, Kind::Flush, 0, 0)));
    requests.push((30_000_000, request(301, Kind::Read, 60_000, 1)));
    let log = run(&Parameters::HDD, &requests);
    let (flush, read) = (completed(&log, 300), completed(&log, 301));
    assert!(read < 150_000_000 && read < flush, "read {read} ns, flush {flush} ns");
}

#[test]
fn a_slow_sequential_reader_is_served_from_the_buffer() {
    // 64 KiB every 2 ms, 32 MB/s: the head reads ahead, and resumes in time.
    let requests: Vec<_> =
        (0..500u16).map(|n| (u64::from(n) * 2_000_000, request(n, Kind::Read, u64::from(n) * 16, 16))).collect();
    let log = run(&Parameters::HDD, &requests);
    // The first seek takes a dozen milliseconds; the reads that arrived meanwhile catch up.
    let late = requests.iter().skip(1).filter(|(at, request)| completed(&log, request.tag) - at > 1_000_000).count();
    assert!(late <= 12, "{late} of 499 reads waited for the medium");
}

#[test]
fn dirty_data_does_not_starve_behind_a_stream() {
    // One distant block, and a sequential stream that keeps the arm writing elsewhere.
    let mut requests = vec![(0, request(0, Kind::Write { fua: false }, 60_000, 1))];
    requests.extend(
        (1..12_000u16).map(|n| {
            (u64::from(n) * 1_000_000, request(n, Kind::Write { fua: false }, u64::from(n) * 64 % 40_000, 64))
        }),
    );
    let log = run(&Parameters::HDD, &requests);
    let far = Event::Durable { offset: 60_000 * BLOCK, len: BLOCK };
    let at = log.iter().find(|(_, event)| *event == far).expect("the far block is written").0;
    assert!(at < 10_200_000_000, "{at} ns");
}
