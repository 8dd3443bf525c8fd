//! SYNTHETIC experiments for the tests of judge and reports. Nothing here was measured in this form: the middles are those of
//! the hand-made tables of the project's notes, the spreads and series are invented, and every experiment says so.

use std::collections::BTreeMap;

use bulkhead_measure::result::{Cell, Disk, Experiment, FORMAT, Machine, Round};

/// Three rounds around the middles, 4 % apart.
pub(crate) fn rounds(figures: &[(&str, f64)]) -> Vec<Round> {
    let around = |factor: f64| Round {
        figures: figures.iter().map(|(name, value)| ((*name).to_owned(), spread_by(name, *value, factor))).collect(),
        series: BTreeMap::new(),
    };
    [0.97, 1.0, 1.04].map(around).into()
}

/// What is the same in every round stays the same.
fn spread_by(name: &str, value: f64, factor: f64) -> f64 {
    match name {
        "fsync_idle_mean_ms"
        | "fsync_idle_p99_ms"
        | "neighbour_alone_bytes_per_s"
        | "a_device_share"
        | "inserts_alone_per_s" => value,
        "share_a_pct" | "share_b_pct" => value + (factor - 1.0) * 5.0,
        _ => value * factor,
    }
}

pub(crate) fn cell(layout: &str, controller: &str, neighbour: &str, figures: &[(&str, f64)]) -> Cell {
    Cell { layout: layout.into(), controller: controller.into(), neighbour: neighbour.into(), rounds: rounds(figures) }
}

/// `n` latencies whose 99th percentile is about `p99`, in a fixed order that looks random.
fn series(mean: f64, p99: f64, n: u32, mut seed: u32) -> Vec<f64> {
    // Log-normal: mean = m exp(s^2/2), p99 = m exp(2.33 s).
    let spread = 2.33 - (2.33_f64.powi(2) - 2.0 * (p99 / mean).ln()).max(0.0).sqrt();
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(seed >> 8) / f64::from(1 << 24)
    };
    let normal = |next: &mut dyn FnMut() -> f64| (0..12).map(|_| next()).sum::<f64>() - 6.0;
    (0..n).map(|_| mean * (-spread * spread / 2.0).exp() * (spread * normal(&mut next)).exp()).collect()
}

fn experiment(name: &str, about: &str, disk: &str, cells: Vec<Cell>) -> Experiment {
    Experiment {
        format: FORMAT,
        name: name.into(),
        about: about.into(),
        quick: false,
        machine: Machine {
            kernel: "6.12.43+deb13-amd64".into(),
            n_cpus: 2,
            memory_bytes: 2 << 30,
            virtualisation: "tcg".into(),
            clock: String::new(),
            programs: [("mkfs.ext4".to_owned(), "1.47.2".to_owned()), ("qemu".to_owned(), "7.2.19".to_owned())].into(),
        },
        disk: Disk {
            model: disk.into(),
            parameters: if disk == "hdd" {
                "one arm, seek model, 30 MB/s".into()
            } else {
                "250 MB/s, 90 us a request".into()
            },
            size_bytes: 8 << 30,
            queue: [("scheduler".to_owned(), "none".to_owned()), ("nr_requests".to_owned(), "64".to_owned())].into(),
        },
        commands: vec![
            "bulkhead __load probe --dir /mnt/a --seconds 35".into(),
            "bulkhead __load streams --dir /mnt/b --seconds 35".into(),
        ],
        cells,
        notes: vec!["SYNTHETIC: invented for tests of the reports, not a measurement.".into()],
    }
}

/// The probe on one disk: figures after the hand-made table, everything else invented.
pub(crate) fn synthetic_fsync_probe(disk: &str) -> Experiment {
    let probe = |layout: &str, controller: &str, neighbour: &str, [idle, loaded, p99, kept]: [f64; 4]| {
        let mut cell = cell(
            layout,
            controller,
            neighbour,
            &[
                ("fsync_idle_mean_ms", idle),
                ("fsync_idle_p99_ms", idle * 1.6),
                ("fsync_loaded_mean_ms", loaded),
                ("fsync_loaded_p99_ms", p99),
                ("neighbour_bytes_per_s", 52.0e6 * kept),
                ("neighbour_alone_bytes_per_s", 52.0e6),
                ("a_device_share", 0.12),
                ("device_busy_pct", 99.0),
            ],
        );
        for (round, seed) in cell.rounds.iter_mut().zip(1..) {
            let n = if loaded > 500.0 { 40 } else { 340 };
            let seed = seed * u32::try_from(layout.len() * 10 + controller.len()).expect("short names");
            round.series.insert("fsync_loaded_ms".into(), series(loaded, p99, n, seed));
        }
        cell
    };
    let cells = vec![
        probe("shared", "none", "streams", [17.2, 1759.0, 3357.0, 1.0]),
        probe("shared", "bfq", "streams", [19.7, 156.0, 747.0, 0.93]),
        probe("shared", "iocost", "streams", [15.3, 23.3, 75.0, 0.77]),
        probe("own", "bfq", "streams", [18.5, 290.0, 1486.0, 0.95]),
        probe("own+accounting", "iocost", "streams", [15.1, 23.9, 58.0, 0.98]),
        probe("shared", "none", "fsyncs", [17.2, 40.1, 92.0, 0.9]),
        probe("shared", "iocost", "fsyncs", [15.3, 33.7, 80.0, 0.86]),
        probe("own", "bfq", "fsyncs", [18.5, 46.5, 110.0, 0.88]),
        probe("own+accounting", "iocost", "fsyncs", [16.0, 43.2, 101.0, 0.84]),
        probe("shared", "none", "storm", [17.2, 210.0, 640.0, 1.0]),
        probe("shared", "bfq", "storm", [19.7, 88.0, 402.0, 0.95]),
        probe("own+accounting", "iocost", "storm", [15.1, 22.0, 44.0, 0.93]),
    ];
    let about = "A 4 KiB append + fsync every 100 ms in tenant A for 35 s; tenant B idle, then busy. Equal shares.";
    experiment("fsync-probe", about, disk, cells)
}

/// The database in the paper's three steps, figures invented around the paper's.
pub(crate) fn synthetic_dbms() -> Experiment {
    let step = |layout: &str, neighbour: &str, [inserts, fsync, a, b]: [f64; 4]| {
        let figures = [("inserts_per_s", inserts), ("fsync_mean_ms", fsync), ("share_a_pct", a), ("share_b_pct", b)];
        cell(layout, "iocost", neighbour, &figures)
    };
    let cells = vec![
        step("shared", "none", [151.0, 14.0, 98.0, 0.0]),
        step("own+accounting", "none", [149.0, 13.9, 98.0, 0.0]),
        step("shared", "no-fsync", [41.0, 131.0, 27.0, 52.0]),
        step("own", "no-fsync", [52.0, 98.0, 33.0, 51.0]),
        step("own+accounting", "no-fsync", [148.0, 22.0, 69.7, 30.1]),
        step("shared", "low-fsync", [33.0, 158.0, 25.0, 55.0]),
        step("own", "low-fsync", [44.0, 95.0, 36.0, 48.0]),
        step("own+accounting", "low-fsync", [121.0, 24.5, 70.2, 29.6]),
        step("shared", "high-fsync", [47.0, 101.0, 20.0, 57.0]),
        step("own", "high-fsync", [55.0, 91.0, 41.0, 49.0]),
        step("own+accounting", "high-fsync", [119.0, 26.0, 66.0, 33.4]),
    ];
    experiment("dbms-consolidation", "MariaDB with sysbench inserts, 16 clients, 300 s a cell.", "hdd", cells)
}

/// Two tenants with many fsyncs.
pub(crate) fn synthetic_pair() -> Experiment {
    let pair = |layout: &str, [a, b, share]: [f64; 3]| {
        let figures =
            [("fsync_a_mean_ms", a), ("fsync_b_mean_ms", b), ("share_a_pct", share), ("share_b_pct", 99.0 - share)];
        let mut cell = cell(layout, "iocost", "high-fsync", &figures);
        for (round, b_of) in cell.rounds.iter_mut().zip([2.2, 2.3, 2.35]) {
            if layout == "own+accounting" {
                round.figures.insert("fsync_b_mean_ms".into(), a * b_of);
            }
        }
        cell
    };
    let cells = vec![
        pair("shared", [61.0, 62.0, 49.0]),
        pair("own", [52.0, 51.0, 51.0]),
        pair("own+accounting", [37.0, 85.0, 69.0]),
    ];
    experiment("journal-fsync", "Two tenants, each 4 KiB write + fsync without pause, shares 70 and 30.", "hdd", cells)
}

/// Volumes against the raw device.
pub(crate) fn synthetic_overhead(disk: &str) -> Experiment {
    let volume = |layout: &str, [iops, rate, commits, cpu]: [f64; 4]| {
        let figures = [
            ("random_iops", iops),
            ("random_iops_32_threads", 3.0 * iops),
            ("sequential_bytes_per_s", rate * 1e6),
            ("host_commits_per_fsync", commits),
            ("host_commits_per_s", commits * iops),
            ("cpu_us_per_io", cpu),
        ];
        cell(layout, "none", "", &figures)
    };
    let cells = vec![
        volume("raw", [118.0, 29.8, 0.0, 61.0]),
        volume("lv", [117.0, 29.7, 0.0, 62.0]),
        volume("blockd", [114.0, 29.1, 0.002, 118.0]),
        volume("loop", [43.0, 27.0, 1.98, 143.0]),
    ];
    experiment("volume-overhead", "fio, 60 s each, direct I/O.", disk, cells)
}

pub(crate) fn synthetic_costs() -> Experiment {
    let call = |features: &str, call: &str, few: f64, bytes: f64| {
        cell(call, "", features, &[("journal_bytes_of_few", few), ("journal_bytes", bytes)])
    };
    let cells = vec![
        call("default", "mkdir", 73_728.0, 4_435_968.0),
        call("default", "creat", 28_672.0, 323_584.0),
        call("default", "append+fsync", 204_800.0, 20_480_000.0),
        call("fast_commit", "append+fsync", 61_440.0, 4_165_632.0),
    ];
    experiment("journal-cost", "1000 calls.", "memory", cells)
}

pub(crate) fn synthetic_attribution() -> Experiment {
    let mut all = vec![("journal_bytes", 9e6), ("not_charged_bytes", 0.0), ("unattributed_pct", 0.0)];
    all.extend([("fsyncs_charged_pct", 20.0), ("fsyncs_shapley_pct", 20.5), ("fsyncs_off_shapley_pct", 2.4)]);
    all.extend([("storm_charged_pct", 76.0), ("storm_shapley_pct", 75.4), ("storm_off_shapley_pct", 0.8)]);
    all.extend([("seldom_charged_pct", 4.0), ("seldom_shapley_pct", 4.1), ("seldom_off_shapley_pct", 2.4)]);
    let combination = |name: &str, bytes: f64| cell(name, "", "containers", &[("journal_bytes", bytes)]);
    let cells = vec![
        combination("fsyncs", 1.85e6),
        combination("storm", 6.78e6),
        combination("fsyncs+storm", 8.63e6),
        combination("seldom", 0.37e6),
        combination("fsyncs+seldom", 2.22e6),
        combination("storm+seldom", 7.15e6),
        cell("fsyncs+storm+seldom", "", "containers", &all),
        cell("mkdir + rmdir", "", "metadata calls", &[("overhead_pct", 3.0), ("cpu_ns_per_call", 4100.0)]),
        cell("getppid", "", "other calls", &[("overhead_pct", -0.2), ("cpu_ns_per_call", 110.0)]),
    ];
    experiment("attribution", "Three containers.", "memory", cells)
}

pub(crate) fn synthetic_churn() -> Experiment {
    let figures = [
        ("journal_bytes", 9e8),
        ("not_charged_bytes", 0.0),
        ("unattributed_pct", 0.1),
        ("rss_mib", 14.0),
        ("table_entries", 80.0),
        ("containers", 900.0),
    ];
    experiment("churn", "Containers.", "memory", vec![cell("containers that come and go", "", "", &figures)])
}

pub(crate) fn synthetic_clone_read(disk: &str) -> Experiment {
    let mode = |layout: &str, [first, second, stale, reads, copies]: [f64; 5]| {
        let figures = [
            ("first_clone_bytes_per_s", first * 1e6),
            ("second_clone_bytes_per_s", second * 1e6),
            ("cache_hit_bytes_per_s", 600e6),
            ("stale_bytes_per_s", stale * 1e6),
            ("second_clone_disk_reads", reads),
            ("md5_seconds", 0.9),
            ("md5_hit_seconds", 0.45),
            ("copies_in_memory", copies),
        ];
        cell(layout, "", "", &figures)
    };
    let cells = vec![
        mode("off", [30.0, 30.1, 30.0, 512.0, 3.0]),
        mode("base", [29.8, 390.0, 29.7, 0.0, 4.0]),
        mode("drr", [29.6, 310.0, 29.4, 0.0, 3.0]),
        mode("both", [29.5, 320.0, 29.4, 0.0, 4.0]),
    ];
    experiment("clone-read", "Three clones of one base.", disk, cells)
}

pub(crate) fn synthetic_launch_storm() -> Experiment {
    let mode = |layout: &str, neighbour: &str, [seconds, reads, mb, index]: [f64; 4]| {
        let figures = [
            ("ready_seconds", seconds),
            ("launch_disk_reads", reads),
            ("launch_disk_bytes", mb * 1e6),
            ("copies_in_memory", 10.5),
            ("index_pct", index),
        ];
        cell(layout, "", neighbour, &figures[..if index > 0.0 { 5 } else { 4 }])
    };
    let cells = vec![
        mode("off", "unbounded", [60.0, 6400.0, 720.0, 0.0]),
        mode("off", "bounded", [64.0, 6500.0, 730.0, 0.0]),
        mode("base", "unbounded", [15.0, 700.0, 76.0, 0.0]),
        mode("base", "bounded", [19.0, 1300.0, 140.0, 0.0]),
        mode("drr", "unbounded", [21.0, 900.0, 90.0, 0.39]),
        mode("drr", "bounded", [24.0, 1200.0, 130.0, 0.39]),
    ];
    experiment("launch-storm", "Ten clones of one image.", "hdd-slow", cells)
}

/// A disk model; some figures are as published, one is not.
pub(crate) fn synthetic_disk_model(disk: &str) -> Experiment {
    let all: &[(&str, u32, f64)] = match disk {
        "hdd" => &[
            ("random-read", 1, 84.0),
            ("random-read", 16, 173.0),
            ("random-read", 32, 210.0),
            ("random-write", 1, 190.0),
            ("sequential-read", 1, 222e6),
            ("sequential-read", 32, 222e6),
            ("sequential-write", 1, 221e6),
            ("sequential-write", 32, 221e6),
            ("random-write-flush", 1, 79.0),
            ("random-write-flush-outer", 1, 97.0),
            ("sequential-write-flush", 1, 110.0),
        ],
        "ssd" => &[
            ("random-read", 1, 2580.0),
            ("random-read", 32, 19_300.0),
            ("random-write", 1, 7100.0),
            ("random-write", 32, 17_500.0),
            ("sequential-read", 1, 107e6),
            ("sequential-read", 8, 111e6),
            ("sequential-read", 32, 112e6),
            ("sequential-write", 1, 98e6),
            ("sequential-write", 32, 106e6),
            ("sequential-read-4k", 32, 19_500.0),
            ("sequential-write-4k", 32, 17_600.0),
            ("sequential-write-flush", 1, 98.0),
        ],
        _ => &[
            ("random-read", 1, 1125.0),
            ("random-read", 32, 25_400.0),
            ("random-write", 1, 4180.0),
            ("sequential-read", 1, 88e6),
            ("sequential-read", 32, 238e6),
            ("sequential-write", 1, 104e6),
            ("sequential-write", 32, 130e6),
            ("sequential-write-flush", 1, 3390.0),
        ],
    };
    let of = |&(operation, depth, value): &(&str, u32, f64)| {
        let (block, name) = match operation {
            "sequential-read" | "sequential-write" => (131_072.0, "bytes_per_s"),
            _ => (4096.0, "iops"),
        };
        let iops = if name == "iops" { value } else { value / block };
        let mean_us = f64::from(depth) * 1e6 / iops;
        let figures = [
            ("iops", iops),
            ("bytes_per_s", iops * block),
            ("latency_mean_us", mean_us),
            ("latency_p99_us", mean_us * 2.0),
        ];
        cell(operation, "", &format!("depth-{depth}"), &figures)
    };
    experiment("disk-models", "fio on the whole device.", disk, all.iter().map(of).collect())
}

/// All of them.
pub(crate) fn all_synthetic() -> Vec<Experiment> {
    vec![
        synthetic_fsync_probe("hdd"),
        synthetic_fsync_probe("hdd-nocache"),
        synthetic_fsync_probe("ssd"),
        synthetic_fsync_probe("nvme-slow"),
        synthetic_dbms(),
        synthetic_pair(),
        synthetic_overhead("hdd"),
        synthetic_overhead("ssd"),
        synthetic_overhead("nvme"),
        synthetic_clone_read("hdd-slow"),
        synthetic_clone_read("ssd"),
        synthetic_launch_storm(),
        synthetic_disk_model("hdd"),
        synthetic_disk_model("ssd"),
        synthetic_disk_model("nvme"),
        synthetic_costs(),
        synthetic_attribution(),
        synthetic_churn(),
    ]
}

/// Panics with a reason unless `text` is well-formed XML: tags balanced, attributes quoted, entities known. Enough for what we write.
pub(crate) fn assert_well_formed(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text.strip_prefix("<!DOCTYPE html>").unwrap_or(text);
    while let Some(at) = rest.find('<') {
        assert_entities(&rest[..at]);
        let end = rest[at..].find('>').unwrap_or_else(|| panic!("a tag that never ends: {:.80}", &rest[at..])) + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed what was not open");
            continue;
        }
        let name = tag.split([' ', '/', '\n']).next().unwrap_or_default();
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()), "<{tag}>");
        assert_attributes(tag.trim_end_matches('/')[name.len()..].trim(), tag);
        if name == "style" {
            let end = rest.find("</style>").expect("style ends");
            assert!(!rest[..end].contains(['<', '&']), "markup in a style");
            rest = &rest[end + "</style>".len()..];
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert_entities(rest);
    assert!(open.is_empty(), "still open: {open:?}");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "control characters");
}

fn assert_attributes(mut attributes: &str, tag: &str) {
    while !attributes.is_empty() {
        let (name, value) =
            attributes.split_once("=\"").unwrap_or_else(|| panic!("attribute without value in <{tag}>"));
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "attribute {name:?} in <{tag}>");
        let (value, after) = value.split_once('"').unwrap_or_else(|| panic!("unclosed quote in <{tag}>"));
        assert!(!value.contains("NaN") && !value.contains("inf"), "{name}={value}");
        assert_entities(value);
        attributes = after.trim();
    }
}

fn assert_entities(text: &str) {
    for (at, _) in text.match_indices('&') {
        let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
        assert!(known.iter().any(|entity| text[at..].starts_with(entity)), "bare & before {:.20}", &text[at..]);
    }
}
