//! The models compared with the published figures of their drives, at the drives' own speed.
//!
//! Owns: the table of reference figures with their sources. Rows without a published measurement of the same load are
//! printed, not checked.

mod closed_loop;

use bulkhead_disk::{Kind, Parameters};
use closed_loop::Load;

const SIZE: u64 = 8 << 30;
const READ: Kind = Kind::Read;
const WRITE: Kind = Kind::Write { fua: false };

enum Expect {
    /// The result is within 10 % of one published figure.
    Published(f64),
    /// The result lies between two published figures, with 10 % on either side.
    Between(f64, f64),
    /// The figure is derived, not measured: the row is printed only.
    Derived(f64),
}
use Expect::{Between, Derived, Published};

struct Row {
    name: &'static str,
    load: Load,
    /// MB/s instead of operations.
    rate: bool,
    expect: Expect,
    source: &'static str,
}

fn load(kind: Kind, random: bool, block_bytes: u64, n_jobs: u16) -> Load {
    let n = 400 * u64::from(n_jobs).clamp(4, 64);
    Load { kind, random, block_bytes, n_jobs, flush: false, span_bytes: SIZE, n_warm_up: n, n_counted: 2 * n }
}

fn row(name: &'static str, load: Load, expect: Expect, source: &'static str) -> Row {
    Row { name, rate: load.block_bytes > 4096, load, expect, source }
}

/// Returns the report, and the rows that are not within 10 %.
fn compare(parameters: &Parameters, rows: &[Row]) -> (String, Vec<&'static str>) {
    let mut report = parameters.describe();
    let mut wrong = Vec::new();
    for row in rows {
        let per_s = row.load.run(parameters, SIZE).per_s;
        let value = if row.rate { per_s * row.load.block_bytes as f64 / 1e6 } else { per_s };
        let (low, high, how) = match row.expect {
            Published(figure) => (figure, figure, "published"),
            Between(low, high) => (low, high, "published"),
            Derived(figure) => (figure, figure, "derived"),
        };
        let unit = if row.rate { "MB/s" } else { "/s" };
        let published = if low == high { format!("{low:.0}") } else { format!("{low:.0}-{high:.0}") };
        let middle = (low + high) / 2.0;
        let off = (value / middle - 1.0) * 100.0;
        let (name, source) = (row.name, row.source);
        report += &format!("\n{name:<44} {value:>9.0} {unit:<5} {how:<9} {published:>15} {off:>+6.1} %  {source}");
        if !matches!(row.expect, Derived(_)) && !(0.9 * low..=1.1 * high).contains(&value) {
            wrong.push(row.name);
        }
    }
    (report, wrong)
}

/// By the time a lap starts over, the drive's buffer has been overwritten by later reads.
#[test]
fn a_region_larger_than_the_buffer_is_read_from_the_medium_on_every_lap() {
    let lap = Load { span_bytes: 256 << 20, n_counted: 8192, ..load(READ, false, 128 << 10, 8) };
    let bytes_per_s = lap.run(&Parameters::HDD, SIZE).per_s * f64::from(128 << 10);
    assert!(bytes_per_s < 1.1 * 227e6, "four laps of 256 MiB are read at {bytes_per_s:.0} bytes/s");
}

#[test]
fn hdd() {
    let outer = 1 << 30;
    let seq = |kind, jobs| Load { span_bytes: outer, ..load(kind, false, 128 << 10, jobs) };
    let small = |kind| Load { span_bytes: outer, n_counted: 200_000, ..load(kind, false, 4096, 32) };
    let flush = |random, span_bytes| Load { flush: true, span_bytes, ..load(WRITE, random, 4096, 1) };
    let cached = |jobs| Load { n_warm_up: 20_000, n_counted: 20_000, ..load(WRITE, true, 4096, jobs) };
    let (report, wrong) = compare(
        &Parameters::HDD,
        &[
            row(
                "4k random read QD1",
                load(READ, true, 4096, 1),
                Derived(83.0),
                "mean seek + half a revolution + 0.5 ms",
            ),
            row("4k random read QD2", load(READ, true, 4096, 2), Derived(100.0), "Monte Carlo"),
            row("4k random read QD4", load(READ, true, 4096, 4), Derived(120.0), "Monte Carlo"),
            row("4k random read QD8", load(READ, true, 4096, 8), Derived(144.0), "Monte Carlo"),
            row(
                "4k random read QD16",
                load(READ, true, 4096, 16),
                Between(168.0, 170.0),
                "Exos X24, Exos M data sheets",
            ),
            row("4k random read QD32", load(READ, true, 4096, 32), Published(212.0), "WD DC HC580 data sheet"),
            row(
                "4k random write + flush QD1, outer 44 % of stroke",
                flush(true, SIZE * 53 / 100),
                Published(96.0),
                "serverfault 857271",
            ),
            row(
                "4k random write + flush QD1, whole stroke",
                flush(true, SIZE),
                Derived(78.0),
                "mean seek + half a revolution + 0.5 ms",
            ),
            row(
                "4k sequential write + flush QD1",
                flush(false, outer),
                Published(110.7),
                "k8s-homelab: revolution + 0.7 ms",
            ),
            row("4k random write QD1, cache on, sustained", cached(1), Derived(200.0), "no full-span figure published"),
            row(
                "4k random write QD32, cache on, sustained",
                cached(32),
                Derived(200.0),
                "no full-span figure published",
            ),
            row("4k sequential read QD32", small(READ), Derived(55_420.0), "227 MB/s; blk-iocost: 41 708 at 174 MB/s"),
            row(
                "4k sequential write QD32",
                small(WRITE),
                Derived(55_420.0),
                "227 MB/s; blk-iocost: 42 705 at 178 MB/s",
            ),
            row("128k sequential read QD1", seq(READ, 1), Published(227.0), "DS7K6000 (recalled)"),
            row("128k sequential read QD32", seq(READ, 32), Published(227.0), "DS7K6000 (recalled)"),
            row("128k sequential write QD1", seq(WRITE, 1), Published(227.0), "DS7K6000 (recalled)"),
            row("128k sequential write QD32", seq(WRITE, 32), Published(227.0), "DS7K6000 (recalled)"),
        ],
    );
    println!("{report}");
    assert!(wrong.is_empty(), "not within 10 %: {wrong:?}");
}

#[test]
fn ssd() {
    let seq = |kind, jobs| load(kind, false, 128 << 10, jobs);
    let flush = |jobs| Load { flush: true, ..load(WRITE, false, 4096, jobs) };
    let (report, wrong) = compare(
        &Parameters::SSD,
        &[
            row("4k random read QD1", load(READ, true, 4096, 1), Published(13_000.0), "870 EVO data sheet"),
            row("4k random read QD4", load(READ, true, 4096, 4), Derived(50_000.0), "QD / 77 us"),
            row("4k random read QD8", load(READ, true, 4096, 8), Derived(85_000.0), "smoothed"),
            row(
                "4k random read QD32",
                load(READ, true, 4096, 32),
                Between(94_003.0, 98_400.0),
                "KitGuru; iocost-benchmarks",
            ),
            row("4k random write QD1", load(WRITE, true, 4096, 1), Published(36_000.0), "870 EVO data sheet"),
            row("4k random write QD4", load(WRITE, true, 4096, 4), Derived(80_000.0), "smoothed"),
            row("4k random write QD32", load(WRITE, true, 4096, 32), Published(88_000.0), "870 EVO data sheet"),
            row("4k sequential read QD32", load(READ, false, 4096, 32), Published(98_130.0), "iocost-benchmarks"),
            row("4k sequential write QD32", load(WRITE, false, 4096, 32), Published(93_000.0), "iocost-benchmarks"),
            row("128k sequential read QD1", seq(READ, 1), Between(500.0, 534.0), "850 EVO, CDM (1 MiB)"),
            row("128k sequential read QD32", seq(READ, 32), Published(560.0), "870 EVO data sheet"),
            row("128k sequential write QD1", seq(WRITE, 1), Between(500.0, 512.0), "850 EVO, CDM (1 MiB)"),
            row("128k sequential write QD32", seq(WRITE, 32), Published(530.0), "870 EVO data sheet"),
            row("4k write + flush QD1", flush(1), Published(490.0), "ceph-diskbench, 860 EVO"),
            row("4k write + flush, 14 jobs", flush(14), Published(1728.0), "ceph-diskbench, 860 EVO"),
        ],
    );
    println!("{report}");
    assert!(wrong.is_empty(), "not within 10 %: {wrong:?}");
}

#[test]
fn nvme() {
    let seq = |kind, jobs| load(kind, false, 128 << 10, jobs);
    let flush = |jobs| Load { flush: true, ..load(WRITE, false, 4096, jobs) };
    let sustained = |jobs| Load { n_warm_up: 250_000, n_counted: 20_000, ..load(WRITE, true, 4096, jobs) };
    let (report, wrong) = compare(
        &Parameters::NVME,
        &[
            row("4k random read QD1", load(READ, true, 4096, 1), Published(11_313.0), "PM963, CDM, gist tana3n"),
            row("4k random read QD8", load(READ, true, 4096, 8), Derived(86_000.0), "linear; P3700 shape"),
            row("4k random read QD16", load(READ, true, 4096, 16), Derived(150_000.0), "smoothed"),
            row(
                "4k random read QD32",
                load(READ, true, 4096, 32),
                Between(161_200.0, 270_000.0),
                "PM963 btrfs 1 job; P3700",
            ),
            row("4k random read QD512", load(READ, true, 4096, 512), Published(470_013.0), "PM963, CDM, gist tana3n"),
            row("4k random write QD1", load(WRITE, true, 4096, 1), Published(42_188.0), "PM963, CDM, gist tana3n"),
            row(
                "4k random write QD512, burst",
                load(WRITE, true, 4096, 512),
                Published(282_876.0),
                "PM963, CDM, gist tana3n",
            ),
            row(
                "4k random write QD1, sustained",
                Load { n_warm_up: 1_200_000, ..sustained(1) },
                Between(38_000.0, 40_000.0),
                "P4500; PM963 (recalled)",
            ),
            row(
                "4k random write QD32, sustained",
                sustained(32),
                Between(38_000.0, 40_000.0),
                "P4500; PM963 (recalled)",
            ),
            row("128k sequential read QD1", seq(READ, 1), Published(916.0), "PM963, fio, gist akahana-1"),
            row("128k sequential read QD32", seq(READ, 32), Published(2382.6), "PM963, CDM, gist tana3n"),
            row("128k sequential write QD1", seq(WRITE, 1), Published(1048.0), "PM963, fio, gist akahana-1"),
            row("128k sequential write QD32", seq(WRITE, 32), Published(1304.7), "PM963, CDM, gist tana3n"),
            row("4k write + flush QD1", flush(1), Published(34_090.0), "ceph-diskbench, PM963 960 GB"),
            row("4k write + flush, 16 jobs", flush(16), Published(268_030.0), "ceph-diskbench, PM963 960 GB"),
        ],
    );
    println!("{report}");
    assert!(wrong.is_empty(), "not within 10 %: {wrong:?}");
}

/// CPU time of a run, client included. It is printed and not checked, because a limit would hold on one machine only.
fn cost(name: &str, parameters: &Parameters, load: Load) -> String {
    let since = std::time::Instant::now();
    let run = load.run(parameters, SIZE);
    let ns = since.elapsed().as_nanos();
    format!(
        "{name}: {} ns per call of submit or advance, {} per event, {} per request of {}; the disk took {:.1} us",
        ns / u128::from(run.n_calls),
        ns / u128::from(run.n_events),
        ns / u128::from(run.n_requests),
        run.n_requests,
        run.mean_latency_ns / 1e3,
    )
}

#[test]
fn cost_of_hdd_reads() {
    println!("{}", cost("hdd 4k random read QD32", &Parameters::HDD, load(READ, true, 4096, 32)));
}

#[test]
fn cost_of_hdd_writes_with_a_full_cache() {
    println!("{}", cost("hdd 4k random write QD32", &Parameters::HDD, load(WRITE, true, 4096, 32)));
}

#[test]
fn cost_of_hdd_flushes() {
    let load = Load { flush: true, ..load(WRITE, true, 4096, 16) };
    println!("{}", cost("hdd 4k write + flush, 16 jobs", &Parameters::HDD, load));
}

#[test]
fn cost_of_ssd_reads() {
    println!("{}", cost("ssd 4k random read QD32", &Parameters::SSD, load(READ, true, 4096, 32)));
}

#[test]
fn cost_of_nvme_reads() {
    println!("{}", cost("nvme 4k random read QD512", &Parameters::NVME, load(READ, true, 4096, 512)));
}

#[test]
fn cost_of_nvme_writes() {
    println!("{}", cost("nvme 4k random write QD32", &Parameters::NVME, load(WRITE, true, 4096, 32)));
}

#[test]
fn cost_of_nvme_large_reads() {
    println!("{}", cost("nvme 128k read QD32", &Parameters::NVME, load(READ, false, 128 << 10, 32)));
}
