//! Pages and pictures: what they link, and that no input breaks them.

use bulkhead_evidence::judge::judge;
use bulkhead_evidence::report::{GUIDE, files, markdown};
use bulkhead_measure::report::{html, svg, table};
use bulkhead_measure::result::{Cell, Experiment};
use expect_test::expect;
use proptest::prelude::*;

use super::synthetic::{
    all_synthetic, assert_well_formed, synthetic_dbms, synthetic_disk_model, synthetic_fsync_probe, synthetic_overhead,
};

#[test]
fn summary_of_the_volumes_and_the_database() {
    let summary =
        |name: &str, experiments: &[Experiment]| markdown::summary(name, experiments, &judge(name, experiments));
    let two = ["hdd", "ssd"].map(synthetic_overhead);
    let all = summary("volume-overhead", &two) + "\n" + &summary("dbms-consolidation", &[synthetic_dbms()]);
    expect![[r#"
        ### [volume-overhead](evidence/volume-overhead.md): short

        hdd: wall clock, 3 rounds; ssd: wall clock, 3 rounds.

        | | target | hdd | ssd | nvme |
        |---|---|---:|---:|---:|
        | lv IOPS | ≥ 98.0 % | 99.2 % | 99.2 % | not measured |
        | lv IOPS of 32 threads |  | 99.2 % | 99.2 % | not measured |
        | lv bandwidth | ≥ 98.0 % | 99.7 % | 99.7 % | not measured |
        | lv CPU |  | 62 us | 62 us | not measured |
        | blockd IOPS | ≥ 95.0 % / ≥ 75.0 % | 96.6 % | 96.6 % | not measured |
        | blockd IOPS of 32 threads | ≥ 95.0 % | 96.6 % | 96.6 % | not measured |
        | blockd bandwidth | ≥ 97.0 % | 97.7 % | 97.7 % | not measured |
        | blockd of the best other server | ≥ 100.0 % | 265.1 % | 265.1 % | not measured |
        | blockd host commits | ≤ 0 | 0 | 0 | not measured |
        | blockd CPU |  | 118 us | 118 us | not measured |
        | loop IOPS |  | 36.4 % | 36.4 % | not measured |
        | loop IOPS of 32 threads |  | 36.4 % | 36.4 % | not measured |
        | loop bandwidth |  | 90.6 % | 90.6 % | not measured |
        | loop CPU |  | 143 us | 143 us | not measured |

        ### [dbms-consolidation](evidence/dbms-consolidation.md): short

        hdd: wall clock, 3 rounds.

        | | target | hdd |
        |---|---|---:|
        | alone of shared | ≥ 97.0 % | 98.7 % |
        | no-fsync: throughput of alone | ≥ 66.5 % | 99.3 % |
        | no-fsync: fsync of alone | ≤ 2x | 1.6x |
        | no-fsync: throughput of shared |  | 3.6x |
        | no-fsync: worst step of shared | ≥ 1x | 1.3x |
        | no-fsync: share | 69.0 % to 71.0 % | 69.7 % |
        | low-fsync: throughput of alone | ≥ 66.5 % | 81.2 % |
        | low-fsync: fsync of alone | ≤ 2x | 1.8x |
        | low-fsync: throughput of shared |  | 3.7x |
        | low-fsync: worst step of shared | ≥ 1x | 1.3x |
        | low-fsync: share | 69.0 % to 71.0 % | 70.2 % |
        | high-fsync: throughput of alone | ≥ 66.5 % | 79.9 % |
        | high-fsync: fsync of alone | ≤ 2x | 1.9x |
        | high-fsync: throughput of shared |  | 2.5x |
        | high-fsync: worst step of shared | ≥ 1x | 1.2x |
        | high-fsync: share | 69.0 % to 71.0 % | **66.0 %** |
    "#]]
    .assert_eq(&all);
}

#[test]
fn page_of_a_disk_model_names_the_sources() {
    let disks = [synthetic_disk_model("hdd")];
    let page = markdown::render("disk-models", &disks, &judge("disk-models", &disks));
    let table: String =
        page.lines().filter(|line| line.starts_with('|')).take(13).map(|line| format!("{line}\n")).collect();
    expect![[r#"
        | operation | depth | measured | mean us | p99 us | published | published / 1 | off | known | source |
        |---|---:|---:|---:|---:|---:|---:|---:|---|---|
        | Random read, 4 KiB | 1 | 84 (81.5-87.4)/s | 11905 | 23810 | 83 | 83 | +1.2 % | derived | mean seek, half a revolution, 0.5 ms (DC HC310 specification) |
        | Random read, 4 KiB | 16 | 173 (168-180)/s | 92486 | 184971 | 168-170 | 168-170 | +1.8 % | seen | Exos X24 (DS2080) and Exos M (DS2045-4) data sheets, quoted |
        | Random read, 4 KiB | 32 | 210 (204-218)/s | 152381 | 304762 | 212 | 212 | -0.9 % | seen | WD DC HC580 data sheet, quoted |
        | Random write, 4 KiB | 1 | 190 (184-198)/s | 5263 | 10526 | 200 | 200 | -5.0 % | derived | 180 to 220: full-span figures are not published |
        | Sequential read, 128 KiB | 1 | 222 (215-231) MB/s | 590 | 1181 | 227 | 227 | -2.2 % | recalled | DS7K6000 data sheet, maximum sustained rate |
        | Sequential read, 128 KiB | 32 | 222 (215-231) MB/s | 18893 | 37787 | 227 | 227 | -2.2 % | recalled | DS7K6000 data sheet, maximum sustained rate |
        | Sequential write, 128 KiB | 1 | 221 (214-230) MB/s | 593 | 1186 | 227 | 227 | -2.6 % | recalled | DS7K6000 data sheet, maximum sustained rate |
        | Sequential write, 128 KiB | 32 | 221 (214-230) MB/s | 18979 | 37958 | 227 | 227 | -2.6 % | recalled | DS7K6000 data sheet, maximum sustained rate |
        | Random write + flush, 4 KiB | 1 | 79 (76.6-82.2)/s | 12658 | 25316 | 78 | 78 | +1.3 % | derived | as random reads, with the settling of a write |
        | The same, outer 44 % of the stroke | 1 | 97 (94.1-101)/s | 10309 | 20619 | 96 | 96 | +1.0 % | seen | serverfault.com/questions/857271, HUS726040ALE614; its span is not stated, this one is assumed |
        | Sequential write + flush, 4 KiB | 1 | 110 (107-114)/s | 9091 | 18182 | 111 | 111 | -1.0 % | seen | d-uzlov/k8s-homelab test-fsync.md: 9 ms, 1st to 90th percentile, drives not named |
    "#]].assert_eq(&table);
}

#[test]
fn pictures_and_pages_are_well_formed() {
    let all = all_synthetic();
    for experiment in &all {
        let pictures = svg::pictures(&GUIDE, experiment);
        assert!(!pictures.is_empty() || experiment.name == "churn", "{}", experiment.name);
        for (stem, picture) in pictures {
            assert_well_formed(&picture);
            assert!(picture.contains("6.12.43"), "{stem} does not say where it ran");
        }
    }
    assert_well_formed(&html::render(&GUIDE, &all));
    assert_well_formed(&html::render(&GUIDE, &[]));
}

#[test]
fn markdown_links_the_pictures_that_there_are() {
    let both = ["hdd", "hdd-nocache", "ssd", "nvme-slow"].map(synthetic_fsync_probe);
    let page = markdown::render("fsync-probe", &both, &judge("fsync-probe", &both));
    let files = files("fsync-probe", &both);
    assert_eq!(files.first().map(|(stem, _)| stem.as_str()), Some("fsync-probe"));
    for (stem, _) in &files {
        assert_eq!(page.matches(&format!("({stem}.svg)")).count(), 1, "{stem}");
    }
    assert!(page.contains("(fsync-probe.json)"));
    let mut stems: Vec<_> = files.iter().map(|(stem, _)| stem).collect();
    stems.dedup();
    assert_eq!(stems.len(), files.len());
}

/// All reports of some experiments; panics where one is broken.
fn all_reports(experiments: &[Experiment]) {
    for experiment in experiments {
        let table = table::render(&GUIDE, experiment);
        assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
        assert!(!table.chars().any(|c| c.is_control() && c != '\n'));
        svg::pictures(&GUIDE, experiment).iter().for_each(|(_, picture)| assert_well_formed(picture));
        let verdict = judge(&experiment.name, experiments);
        assert_eq!(verdict.line.lines().count().max(1), 1);
        assert!(markdown::render(&experiment.name, experiments, &verdict).contains("## Against the targets"));
    }
    for (stem, _) in files("x", experiments) {
        assert!(stem.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{stem}");
    }
    assert_well_formed(&html::render(&GUIDE, experiments));
}

fn hostile_value() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just(0.0),
        Just(-0.0),
        Just(-17.0),
        Just(f64::MAX),
        Just(f64::MIN_POSITIVE),
        0.001..1e6,
        any::<f64>(),
    ]
}

fn hostile_text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("</text><script>alert(\"x\")</script>&amp;&'".to_owned()),
        Just("]]> \u{0} \u{1b}[31m \u{7f} \u{ffff} \u{202e}".to_owned()),
        Just("W".repeat(400)),
        Just("own+accounting".to_owned()),
        "\\PC{0,40}",
        any::<String>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_figure_breaks_a_report(pick in 0..15_usize, values in prop::collection::vec(hostile_value(), 1..40), emptied in 0..12_usize) {
        let mut experiment = all_synthetic().swap_remove(pick);
        let mut next = values.iter().cycle().copied();
        for round in experiment.cells.iter_mut().flat_map(|cell| &mut cell.rounds) {
            round.figures.values_mut().for_each(|value| *value = next.next().unwrap_or(0.0));
            for series in round.series.values_mut() {
                series.truncate(values.len());
                series.iter_mut().for_each(|value| *value = next.next().unwrap_or(0.0));
            }
        }
        if let Some(cell) = experiment.cells.get_mut(emptied) {
            cell.rounds.clear();
        }
        all_reports(&[experiment]);
    }

    #[test]
    fn no_text_breaks_a_report(pick in 0..15_usize, texts in prop::collection::vec(hostile_text(), 1..12)) {
        let mut experiment = all_synthetic().swap_remove(pick);
        let mut next = texts.iter().cycle().cloned().chain(std::iter::repeat(String::new()));
        let mut take = || next.next().unwrap_or_default();
        experiment.about = take();
        experiment.machine.kernel = take();
        experiment.machine.virtualisation = take();
        experiment.disk.model = take();
        experiment.disk.parameters = take();
        experiment.disk.queue.insert(take(), take());
        experiment.machine.programs.insert(take(), take());
        experiment.notes.push(take());
        experiment.commands.push(take());
        for Cell { layout, controller, neighbour, rounds } in experiment.cells.iter_mut().skip(1) {
            *layout = take();
            *controller = take();
            *neighbour = take();
            for round in rounds {
                round.figures.insert(take(), 1.0);
            }
        }
        let named = Experiment { name: take(), ..experiment.clone() };
        all_reports(&[experiment, named]);
    }
}
