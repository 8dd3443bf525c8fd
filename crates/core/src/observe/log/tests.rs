use proptest::prelude::*;

use super::super::record::CgroupId;
use super::*;
use crate::units::DevNo;

const A: Option<CgroupId> = Some(CgroupId(1));
const B: Option<CgroupId> = Some(CgroupId(2));
const FS: DevNo = DevNo::new(8, 1);

fn write(checkpoint: Tid, bytes: u64, requester: Option<CgroupId>) -> LogWrite {
    LogWrite {
        dev: FS,
        checkpoint,
        at_ns: 0,
        requester,
        active_bytes: 1 << 20,
        bytes,
        overhead_bytes: 1536,
        header_bytes: 512,
        record_bytes: 32768,
    }
}

fn of(parts: &[(Option<CgroupId>, u64)]) -> Parts {
    parts.iter().copied().collect()
}

fn paid(charges: &[Charge]) -> Vec<(Option<CgroupId>, u64)> {
    charges.iter().map(|charge| (charge.cgroup, charge.bytes)).collect()
}

#[test]
fn the_requester_of_a_checkpoint_pays_its_overhead() {
    let mut log = Log::default();
    let first = write(7, 2048, A);
    log.close(7, of(&[(A, 400), (B, 600)]), &first);
    // With record headers, 406 and 609.
    assert_eq!(paid(&log.write(&first)), [(A, 2048 - 609), (B, 609)]);
    let unforced = write(8, 2048, None);
    log.close(8, of(&[(A, 500), (B, 1500)]), &unforced);
    assert_eq!(paid(&log.write(&unforced)), [(A, 512), (B, 1536)]);
}

#[test]
fn unobserved_bytes_are_unattributed() {
    let mut log = Log::default();
    assert_eq!(paid(&log.write(&write(3, 32768, A))), [(None, 32768 - 1536), (A, 1536)]);
    assert_eq!(paid(&log.write(&write(3, 512, None))), [(None, 512)]);
}

#[test]
fn a_checkpoint_that_is_closed_later_waits_for_the_one_before() {
    let mut log = Log::default();
    let first = write(1, 32768, None);
    log.close(1, of(&[(A, 64_512)]), &first);
    assert_eq!(paid(&log.write(&first)), [(A, 32768)]);
    let second = write(2, 32768 + 1016 + 8, B);
    log.close(2, of(&[(B, 1000)]), &second);
    assert_eq!(paid(&log.write(&second)), [(A, 32768), (B, 1024)]);
    assert!(log.unwritten.is_empty());
}

#[test]
fn a_checkpoint_that_is_never_written_is_dropped() {
    let mut log = Log::default();
    log.close(1, of(&[(A, 1 << 30)]), &write(1, 0, None));
    log.close(5, of(&[(B, 1000)]), &write(5, 0, None));
    assert_eq!(paid(&log.write(&write(5, 1024, B))), [(B, 1024)]);
    // A new mount restarts at 1.
    log.close(1, of(&[(A, 1000)]), &write(1, 0, None));
    assert_eq!(paid(&log.write(&write(1, 1024, None))), [(A, 1024)]);
}

#[test]
fn metadata_is_split_like_the_active_part_of_the_log() {
    let mut log = Log::default();
    assert_eq!(paid(&log.checkpoint(100)), [(None, 100)]);
    let mut next = |tid, parts, active_bytes| {
        let write = LogWrite { active_bytes, ..write(tid, 1016, None) };
        log.close(tid, parts, &write);
        log.write(&write);
        paid(&log.checkpoint(4000))
    };
    assert_eq!(next(1, of(&[(A, 1000)]), 1016), [(A, 4000)]);
    assert_eq!(next(2, of(&[(B, 1000)]), 2032), [(A, 2000), (B, 2000)]);
    assert_eq!(next(3, of(&[(B, 1000)]), 2032), [(B, 4000)]);
    for tid in 4..4000 {
        next(tid, of(&[(A, 1000)]), u64::MAX);
    }
    assert!(log.active.len() <= MAX_ACTIVE);
    assert_eq!(log.active.iter().map(|(bytes, _)| bytes).sum::<u64>(), 3998 * 1016);
}

proptest! {
    #[test]
    fn charges_sum_to_the_bytes_of_the_device(
        checkpoints in proptest::collection::vec((
            proptest::collection::btree_map(proptest::option::of(0u64..4), any::<u64>(), 0..4),
            proptest::collection::vec((0u64..1 << 40, 0u64..1 << 20), 0..5),
        ), 0..6),
        requester in proptest::option::of(0u64..4), header_bytes: u32, record_bytes: u32,
    ) {
        let mut log = Log::default();
        for (tid, (parts, writes)) in (u32::MAX - 2..=u32::MAX).chain(0..3).zip(checkpoints) {
            let parts: Parts = parts.into_iter().map(|(owner, part)| (owner.map(CgroupId), part / 8)).collect();
            let one = LogWrite { header_bytes, record_bytes, ..write(tid, 0, requester.map(CgroupId)) };
            log.close(tid, parts, &one);
            for (bytes, active_bytes) in writes {
                let charges = log.write(&LogWrite { bytes, active_bytes, ..one });
                prop_assert_eq!(charges.iter().map(|charge| charge.bytes).sum::<u64>(), bytes);
                prop_assert_eq!(log.checkpoint(bytes).iter().map(|charge| charge.bytes).sum::<u64>(), bytes);
            }
        }
    }
}
