//! What the judge says of synthetic experiments, word for word.

use bulkhead_evidence::experiments::ALL;
use bulkhead_evidence::judge::{Outcome, judge};
use bulkhead_measure::result::{Cell, Experiment};
use expect_test::{Expect, expect};

use super::set;
use super::synthetic::{
    all_synthetic, synthetic_clone_read, synthetic_disk_model, synthetic_fsync_probe, synthetic_overhead,
};

fn check_line(name: &str, experiments: &[Experiment], expected: Expect) {
    let verdict = judge(name, experiments);
    assert_eq!(verdict.line.lines().count(), 1);
    assert_eq!(verdict.met, verdict.line.starts_with(&format!("{name}: met: ")));
    expected.assert_eq(&verdict.line);
}

#[test]
fn verdict_of_the_probe_names_what_falls_short() {
    check_line(
        "fsync-probe",
        &all_synthetic(),
        expect![
            "fsync-probe: short: own+accounting/iocost; hdd streams mean 1.6x, p99 2.4x, neighbour 111 %; hdd fsyncs mean 2.7x, p99 3.9x, neighbour 95 %; hdd storm mean 1.5x, p99 1.8x, neighbour 106 %; hdd-nocache streams mean 1.6x, p99 2.4x, neighbour 111 %; hdd-nocache fsyncs mean 2.7x, p99 3.9x, neighbour 95 %; hdd-nocache storm mean 1.5x, p99 1.8x, neighbour 106 %; ssd streams mean 1.6x, p99 2.4x, neighbour 111 %; ssd fsyncs mean 2.7x, p99 3.9x, neighbour 95 %; ssd storm mean 1.5x, p99 1.8x, neighbour 106 %; nvme-slow streams mean 1.6x, p99 2.4x, neighbour 111 %; nvme-slow fsyncs mean 2.7x, p99 3.9x, neighbour 95 %; nvme-slow storm mean 1.5x, p99 1.8x, neighbour 106 %; missing: hdd streams mean 1.6x is not <= 1.4x; hdd streams p99 2.4x is not <= 2x; hdd streams neighbour of first come 98 % is not >= 100 %; hdd fsyncs mean 2.7x is not <= 1.6x; hdd fsyncs p99 3.9x is not <= 2x; hdd fsyncs neighbour of first come 93 % is not >= 100 %; hdd storm neighbour of first come 93 % is not >= 100 %; hdd-nocache streams mean 1.6x is not <= 1.4x; hdd-nocache streams p99 2.4x is not <= 2x; hdd-nocache streams neighbour of first come 98 % is not >= 100 %; hdd-nocache fsyncs mean 2.7x is not <= 1.6x; hdd-nocache fsyncs p99 3.9x is not <= 2x; hdd-nocache fsyncs neighbour of first come 93 % is not >= 100 %; hdd-nocache storm neighbour of first come 93 % is not >= 100 %; ssd streams mean on flash 1.6x is not <= 1.3x; ssd streams p99 on flash 2.4x is not <= 2x; ssd streams neighbour of first come 98 % is not >= 100 %; ssd fsyncs mean on flash 2.7x is not <= 1.3x; ssd fsyncs p99 on flash 3.9x is not <= 2x; ssd fsyncs neighbour of first come 93 % is not >= 100 %; ssd storm mean on flash 1.5x is not <= 1.3x; ssd storm neighbour of first come 93 % is not >= 100 %; nvme-slow streams mean on flash 1.6x is not <= 1.3x; nvme-slow streams p99 on flash 2.4x is not <= 2x; nvme-slow streams neighbour of first come 98 % is not >= 100 %; nvme-slow fsyncs mean on flash 2.7x is not <= 1.3x; nvme-slow fsyncs p99 on flash 3.9x is not <= 2x; nvme-slow fsyncs neighbour of first come 93 % is not >= 100 %; nvme-slow storm mean on flash 1.5x is not <= 1.3x; nvme-slow storm neighbour of first come 93 % is not >= 100 %"
        ],
    );
}

#[test]
fn verdict_of_the_probe_when_all_is_well() {
    let mut both = ["hdd", "hdd-nocache", "ssd", "nvme-slow"].map(synthetic_fsync_probe);
    for experiment in &mut both {
        for neighbour in ["streams", "fsyncs", "storm"] {
            let id = format!("own+accounting/iocost/{neighbour}");
            set(experiment, &id, "fsync_loaded_mean_ms", 19.0);
            set(experiment, &id, "fsync_loaded_p99_ms", 44.0);
            set(experiment, &id, "neighbour_bytes_per_s", 53e6);
        }
    }
    check_line(
        "fsync-probe",
        &both,
        expect![
            "fsync-probe: met: own+accounting/iocost; hdd streams mean 1.3x, p99 1.8x, neighbour 116 %; hdd fsyncs mean 1.2x, p99 1.7x, neighbour 116 %; hdd storm mean 1.3x, p99 1.8x, neighbour 116 %; hdd-nocache streams mean 1.3x, p99 1.8x, neighbour 116 %; hdd-nocache fsyncs mean 1.2x, p99 1.7x, neighbour 116 %; hdd-nocache storm mean 1.3x, p99 1.8x, neighbour 116 %; ssd streams mean 1.3x, p99 1.8x, neighbour 116 %; ssd fsyncs mean 1.2x, p99 1.7x, neighbour 116 %; ssd storm mean 1.3x, p99 1.8x, neighbour 116 %; nvme-slow streams mean 1.3x, p99 1.8x, neighbour 116 %; nvme-slow fsyncs mean 1.2x, p99 1.7x, neighbour 116 %; nvme-slow storm mean 1.3x, p99 1.8x, neighbour 116 %"
        ],
    );
    // One disk is not all.
    check_line(
        "fsync-probe",
        &both[..1],
        expect![
            "fsync-probe: short: own+accounting/iocost; hdd streams mean 1.3x, p99 1.8x, neighbour 116 %; hdd fsyncs mean 1.2x, p99 1.7x, neighbour 116 %; hdd storm mean 1.3x, p99 1.8x, neighbour 116 %; missing: not measured: hdd-nocache, ssd, nvme-slow"
        ],
    );
    // Two rounds are not three, unless the short form was asked for.
    for cell in both.iter_mut().flat_map(|experiment| &mut experiment.cells) {
        cell.rounds.truncate(2);
    }
    check_line(
        "fsync-probe",
        &both,
        expect![
            "fsync-probe: short: own+accounting/iocost; hdd streams mean 1.3x, p99 1.8x, neighbour 116 %; hdd fsyncs mean 1.2x, p99 1.7x, neighbour 116 %; hdd storm mean 1.3x, p99 1.8x, neighbour 116 %; hdd-nocache streams mean 1.3x, p99 1.8x, neighbour 116 %; hdd-nocache fsyncs mean 1.2x, p99 1.7x, neighbour 116 %; hdd-nocache storm mean 1.3x, p99 1.8x, neighbour 116 %; ssd streams mean 1.3x, p99 1.8x, neighbour 116 %; ssd fsyncs mean 1.2x, p99 1.7x, neighbour 116 %; ssd storm mean 1.3x, p99 1.8x, neighbour 116 %; nvme-slow streams mean 1.3x, p99 1.8x, neighbour 116 %; nvme-slow fsyncs mean 1.2x, p99 1.7x, neighbour 116 %; nvme-slow storm mean 1.3x, p99 1.8x, neighbour 116 %; missing: 2 rounds of at least 3 on hdd; 2 rounds of at least 3 on hdd-nocache; 2 rounds of at least 3 on ssd; 2 rounds of at least 3 on nvme-slow"
        ],
    );
    both.iter_mut().for_each(|experiment| experiment.quick = true);
    assert!(judge("fsync-probe", &both).met);
}

#[test]
fn verdict_of_the_database() {
    check_line(
        "dbms-consolidation",
        &all_synthetic(),
        expect![
            "dbms-consolidation: short: own+accounting/iocost; hdd no-fsync 99.3 % of alone, 3.6x of shared, fsync 1.6x of alone, share 69.7 %; hdd low-fsync 81.2 % of alone, 3.7x of shared, fsync 1.8x of alone, share 70.2 %; hdd high-fsync 79.9 % of alone, 2.5x of shared, fsync 1.9x of alone, share 66.0 %; missing: hdd high-fsync share 66.0 % is not 69.0 % to 71.0 %; not measured: ssd, nvme-slow"
        ],
    );
}

#[test]
fn verdict_of_two_tenants() {
    check_line(
        "journal-fsync",
        &all_synthetic(),
        expect![
            "journal-fsync: short: own+accounting/iocost hdd A 37 ms, B 85.1 ms, B/A 2.27; missing: not measured: ssd, nvme-slow"
        ],
    );
}

#[test]
fn verdict_of_the_volumes() {
    check_line(
        "volume-overhead",
        &all_synthetic(),
        expect![
            "volume-overhead: met: hdd lv IOPS 99.2 %, of 32 threads 99.2 %, bandwidth 99.7 %, 0 host commits/fsync, 62 us CPU per I/O; hdd blockd IOPS 96.6 %, of 32 threads 96.6 %, bandwidth 97.7 %, 0.0020 host commits/fsync, 118 us CPU per I/O; hdd loop IOPS 36.4 %, of 32 threads 36.4 %, bandwidth 90.6 %, 1.98 host commits/fsync, 143 us CPU per I/O; ssd lv IOPS 99.2 %, of 32 threads 99.2 %, bandwidth 99.7 %, 0 host commits/fsync, 62 us CPU per I/O; ssd blockd IOPS 96.6 %, of 32 threads 96.6 %, bandwidth 97.7 %, 0.0020 host commits/fsync, 118 us CPU per I/O; ssd loop IOPS 36.4 %, of 32 threads 36.4 %, bandwidth 90.6 %, 1.98 host commits/fsync, 143 us CPU per I/O; nvme lv IOPS 99.2 %, of 32 threads 99.2 %, bandwidth 99.7 %, 0 host commits/fsync, 62 us CPU per I/O; nvme blockd IOPS 96.6 %, of 32 threads 96.6 %, bandwidth 97.7 %, 0.0020 host commits/fsync, 118 us CPU per I/O; nvme loop IOPS 36.4 %, of 32 threads 36.4 %, bandwidth 90.6 %, 1.98 host commits/fsync, 143 us CPU per I/O"
        ],
    );
}

#[test]
fn a_server_that_beats_blockd_is_told() {
    let mut disk = synthetic_overhead("hdd");
    for cell in disk.cells.iter_mut().filter(|cell| cell.layout == "loop") {
        cell.rounds.iter_mut().for_each(|round| {
            round.figures.insert("random_iops_32_threads".to_owned(), 684.0);
        });
    }
    let line = judge("volume-overhead", &[disk]).line;
    assert!(line.contains("hdd blockd of the best other server 50.0 % is not >= 100.0 %"), "{line}");
}

#[test]
fn one_commit_in_5_s_is_nobodys_and_one_in_a_hundred_fsyncs_is_too_much() {
    let judged = |commits_per_s: f64| {
        let mut all = all_synthetic();
        for cell in all.iter_mut().flat_map(|experiment| &mut experiment.cells).filter(|cell| cell.layout == "blockd") {
            cell.rounds.iter_mut().for_each(|round| {
                round.figures.insert("host_commits_per_s".to_owned(), commits_per_s);
            });
        }
        judge("volume-overhead", &all).met
    };
    assert!(judged(0.2) && !judged(1.0));
}

#[test]
fn verdict_of_the_costs_of_calls() {
    check_line(
        "journal-cost",
        &all_synthetic(),
        expect![
            "journal-cost: short: default CV <= 0.0350 (creat); fast_commit CV <= 0.0350 (append+fsync); missing: default largest CV 0.0350 is not <= 0.0200; default calls 3 is not >= 13; fast_commit largest CV 0.0350 is not <= 0.0200; fast_commit calls 1 is not >= 13; not measured: inline_data largest CV, inline_data calls, xfs largest CV, xfs calls"
        ],
    );
}

#[test]
fn verdict_of_the_charges() {
    check_line(
        "attribution",
        &all_synthetic(),
        expect![
            "attribution: short: fsyncs charged 20.1 %, fair 20.6 %, off 2.4 %; storm charged 76.3 %, fair 75.3 %, off 1.2 %; seldom charged 4.0 %, fair 4.1 %, off 2.4 %; metadata calls overhead 123 ns (mkdir + rmdir); other calls overhead -0.2 % (getppid); missing: metadata calls overhead 123 ns is not <= 30 ns"
        ],
    );
}

#[test]
fn verdict_of_containers_that_come_and_go() {
    check_line(
        "churn",
        &all_synthetic(),
        expect!["churn: met: 2709 containers; 2584 MiB of journal; 0 B not charged; memory 1x; tables 1x"],
    );
}

#[test]
fn verdict_of_clones_that_read() {
    check_line(
        "clone-read",
        &all_synthetic(),
        expect![
            "clone-read: short: hdd-slow base 13.1x, 65 % of a cache hit, 0 disk reads, a miss costs 1.0 %; hdd-slow drr 10.5x, 52 % of a cache hit, 0 disk reads, a miss costs 2.0 %; hdd-slow both 10.8x, 53 % of a cache hit, 0 disk reads, a miss costs 2.0 %; ssd base 13.1x, 65 % of a cache hit, 0 disk reads, a miss costs 1.0 %; ssd drr 10.5x, 52 % of a cache hit, 0 disk reads, a miss costs 2.0 %; ssd both 10.8x, 53 % of a cache hit, 0 disk reads, a miss costs 2.0 %; missing: hdd-slow drr miss cost 2.0408 is not <= 2.0 %; ssd drr miss cost 2.0408 is not <= 2.0 %"
        ],
    );
    // Where clones can share in one way only, the rest was not measured.
    let mut base = synthetic_clone_read("hdd-slow");
    base.cells.retain(|cell| cell.layout == "base");
    check_line(
        "clone-read",
        &[base],
        expect![
            "clone-read: short: hdd-slow base 13.1x, 65 % of a cache hit, 0 disk reads; missing: not measured: ssd, hdd-slow drr gain, hdd-slow drr of a cache hit, hdd-slow drr disk reads, hdd-slow drr copies, hdd-slow drr miss cost, hdd-slow both gain, hdd-slow both of a cache hit, hdd-slow both disk reads, hdd-slow both copies"
        ],
    );
}

#[test]
fn verdict_of_clones_that_start() {
    check_line(
        "launch-storm",
        &all_synthetic(),
        expect![
            "launch-storm: met: hdd-slow base 75.0 % less time, 89.1 % fewer disk reads; hdd-slow drr 65.0 % less time, 85.9 % fewer disk reads, index 0.4 %; hdd-slow base bounded, 70.3 % less time, 80.0 % fewer disk reads; hdd-slow drr bounded, 62.5 % less time, 81.5 % fewer disk reads, index 0.4 %"
        ],
    );
}

#[test]
fn verdict_of_the_disk_models() {
    check_line(
        "disk-models",
        &all_synthetic(),
        expect![
            "disk-models: met: hdd: 8 of 8 published figures within 10 % (4 of all recalled), worst sequential-write at depth 32: -2.6 %; ssd: 11 of 11 published figures within 10 %, worst sequential-write-4k at depth 32: -5.4 %; nvme: 8 of 8 published figures within 10 %, worst sequential-read at depth 1: -3.9 %"
        ],
    );
    // What is published and was not measured is short.
    let mut hdd = synthetic_disk_model("hdd");
    set(&mut hdd, "random-read//depth-16", "iops", 0.0);
    set(&mut hdd, "random-write-flush-outer//depth-1", "iops", 120.0);
    check_line(
        "disk-models",
        &[hdd],
        expect![
            "disk-models: short: hdd: 6 of 8 published figures within 10 % (4 of all recalled), 1 not measured, worst random-write-flush-outer at depth 1: +25.0 %; missing: not measured: ssd, nvme, hdd largest deviation"
        ],
    );
}

#[test]
fn verdicts_without_anything_to_judge() {
    check_line(
        "fsync-probe",
        &[],
        expect![
            "fsync-probe: short: no figures; missing: nothing was measured; not measured: hdd, hdd-nocache, ssd, nvme-slow"
        ],
    );
    check_line(
        "daemon-cost",
        &[],
        expect!["daemon-cost: short: no figures; missing: nothing was measured; no threshold is known for it"],
    );
}

#[test]
fn a_row_that_was_not_measured_is_never_met() {
    let all = all_synthetic();
    let rounds = all.iter().flat_map(|experiment| &experiment.cells).flat_map(|cell| &cell.rounds);
    let mut figures: Vec<&String> = rounds.flat_map(|round| round.figures.keys()).collect();
    figures.sort();
    figures.dedup();
    for figure in figures {
        let mut without = all.clone();
        for round in without.iter_mut().flat_map(|e| &mut e.cells).flat_map(|cell| &mut cell.rounds) {
            round.figures.remove(figure);
        }
        for name in ALL.iter().map(|entry| entry.method.name) {
            let verdict = judge(name, &without);
            let unmeasured = verdict.rows.iter().filter(|row| row.found == "not measured");
            assert!(unmeasured.clone().all(|row| row.outcome == Outcome::NotMeasured), "{name} without {figure}");
            assert!(!verdict.met || unmeasured.count() == 0, "{name} without {figure}");
        }
    }
}

#[test]
fn a_figure_that_rounds_lack_does_not_count_as_measured_in_them() {
    let mut both = ["hdd", "hdd-nocache", "ssd", "nvme-slow"].map(synthetic_fsync_probe);
    let cell =
        both[0].cells.iter_mut().find(|cell| cell.id() == "own+accounting/iocost/streams").expect("the fixture has it");
    cell.rounds[0].figures.remove("fsync_loaded_mean_ms");
    let line = judge("fsync-probe", &both).line;
    assert!(line.contains("2 rounds of at least 3 on hdd"), "{line}");
    set(&mut both[2], "own+accounting/iocost/storm", "fsync_loaded_mean_ms", 0.0);
    let line = judge("fsync-probe", &both).line;
    assert!(line.contains("not measured: ssd storm mean"), "{line}");
}

#[test]
fn a_disk_that_is_absent_does_not_hide_what_another_one_lacks() {
    let mut others = ["hdd-nocache", "ssd", "nvme-slow"].map(synthetic_fsync_probe);
    others[0].cells.retain(|cell| cell.id() != "own+accounting/iocost/storm");
    let verdict = judge("fsync-probe", &others);
    let missing = verdict.line.split("not measured: ").nth(1).expect("something was not measured");
    assert!(missing.starts_with("hdd, hdd-nocache storm mean, "), "{missing}");
}

#[test]
fn a_busy_probe_does_not_excuse_a_starved_neighbour() {
    let mut both = ["hdd", "hdd-nocache", "ssd", "nvme-slow"].map(synthetic_fsync_probe);
    set(&mut both[0], "own+accounting/iocost/streams", "a_device_share", 1.0);
    set(&mut both[0], "own+accounting/iocost/streams", "neighbour_bytes_per_s", 20e6);
    // 20 of 52 MB/s is less than 95 % of the half that equal shares leave at least.
    let line = judge("fsync-probe", &both).line;
    assert!(line.contains("hdd streams neighbour 77 % is not >= 95 %"), "{line}");
}

#[test]
fn verdict_of_pods_compares_the_promised_one_with_its_volume_alone() {
    let mut pods = synthetic_fsync_probe("hdd");
    let cell = pods.cells[0].clone();
    pods.name = "kubernetes-noisy-neighbour".to_owned();
    pods.cells = [
        ("shared", "none", "none", 9.0, 260.0),
        ("shared", "none", "noisy-pod", 900.0, 13.0),
        ("shared", "bfq", "noisy-pod", 450.0, 26.0),
        ("bulkhead", "bfq", "none", 10.0, 250.0),
        ("bulkhead", "bfq", "noisy-pod", 15.0, 125.0),
        ("bulkhead+promise", "bfq", "noisy-pod", 12.0, 200.0),
    ]
    .map(|(layout, controller, neighbour, p99, inserts)| {
        let (layout, controller, neighbour) = (layout.to_owned(), controller.to_owned(), neighbour.to_owned());
        let mut cell = Cell { layout, controller, neighbour, ..cell.clone() };
        for round in &mut cell.rounds {
            let figures = [("pod_fsync_p99_ms", p99), ("pod_inserts_per_s", inserts)];
            round.figures = figures.map(|(name, value)| (name.to_owned(), value)).into();
        }
        cell
    })
    .to_vec();
    check_line(
        "kubernetes-noisy-neighbour",
        &[pods],
        expect![
            "kubernetes-noisy-neighbour: met: hdd hostPath p99 100x of alone, 5.0 % of its inserts; hdd hostPath, bfq, p99 50x of alone, 10.0 % of its inserts; hdd volume p99 1.5x of alone, 50.0 % of its inserts; hdd volume, promised, p99 1.2x of alone, 80.0 % of its inserts"
        ],
    );
}
