//! The published figures of the drives that the lab's disks are models of, and how far a measurement is from them.
//!
//! Owns: the one table of figures with their sources, as the drives have them; the lab's disks are `k` times slower.
//! Does not: judge (`judge`).

use bulkhead_measure::report::text::number;
use bulkhead_measure::result::{Cell, Experiment, Spread};

use crate::figure as f;

/// 4 KiB at random places.
pub(crate) const RANDOM_READ: &str = "random-read";
/// 4 KiB at random places, into the drive's cache.
pub(crate) const RANDOM_WRITE: &str = "random-write";
/// 128 KiB in sequence.
pub(crate) const SEQUENTIAL_READ: &str = "sequential-read";
/// 128 KiB in sequence.
pub(crate) const SEQUENTIAL_WRITE: &str = "sequential-write";
/// 4 KiB in sequence.
pub(crate) const SMALL_SEQUENTIAL_READ: &str = "sequential-read-4k";
/// 4 KiB in sequence.
pub(crate) const SMALL_SEQUENTIAL_WRITE: &str = "sequential-write-4k";
/// 4 KiB at random places, with a flush after each.
pub(crate) const RANDOM_FLUSH: &str = "random-write-flush";
/// The same on the outer 53 % of the bytes, 44 % of the stroke.
pub(crate) const OUTER_FLUSH: &str = "random-write-flush-outer";
/// 4 KiB in sequence, with a flush after each.
pub(crate) const SEQUENTIAL_FLUSH: &str = "sequential-write-flush";

/// How far a published figure may be missed, percent.
pub(crate) const TOLERANCE_PCT: f64 = 10.0;

/// How a figure is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Read in the source, or in a quotation of it.
    Seen,
    /// From memory of a data sheet that was not at hand.
    Recalled,
    /// Computed from other figures: shown, never judged.
    Derived,
}

impl Mark {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Recalled => "recalled",
            Self::Derived => "derived",
        }
    }
}

/// One figure of a drive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) operation: &'static str,
    pub(crate) depth: u32,
    /// Of the drive: operations or bytes per second, as [`name_of`] says; two sources may differ.
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) mark: Mark,
    pub(crate) source: &'static str,
}

/// A model of the lab, and its drive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drive {
    pub(crate) model: &'static str,
    pub(crate) name: &'static str,
    /// The lab's factor `k`: its disk is so many times slower. The same as in `bulkhead_disk::Parameters::of_lab`, by a test.
    pub(crate) slowdown: f64,
    pub(crate) figures: &'static [Figure],
}

const fn seen(operation: &'static str, depth: u32, figure: f64, source: &'static str) -> Figure {
    between(operation, depth, figure, figure, source)
}

const fn between(operation: &'static str, depth: u32, low: f64, high: f64, source: &'static str) -> Figure {
    Figure { operation, depth, low, high, mark: Mark::Seen, source }
}

const fn recalled(operation: &'static str, depth: u32, figure: f64, source: &'static str) -> Figure {
    Figure { operation, depth, low: figure, high: figure, mark: Mark::Recalled, source }
}

const fn derived(operation: &'static str, depth: u32, figure: f64, source: &'static str) -> Figure {
    Figure { operation, depth, low: figure, high: figure, mark: Mark::Derived, source }
}

/// The drives.
pub(crate) const DRIVES: [Drive; 3] = [
    Drive { model: "hdd", name: "Ultrastar 7K6000 4 TB 7200 rpm SATA", slowdown: 1.0, figures: &HDD },
    Drive { model: "ssd", name: "Samsung 870 EVO 1 TB SATA", slowdown: 5.0, figures: &SSD },
    Drive { model: "nvme", name: "Samsung PM963 1.92 TB NVMe", slowdown: 10.0, figures: &NVME },
];

const SEEK: &str = "mean seek, half a revolution, 0.5 ms (DC HC310 specification)";
const SORTED: &str = "Monte Carlo of the seek curve, shortest positioning time first";
const CACHED: &str = "180 to 220: full-span figures are not published";
const ZONE_0: &str = "DS7K6000 data sheet, maximum sustained rate";

const HDD: [Figure; 15] = [
    derived(RANDOM_READ, 1, 83.0, SEEK),
    derived(RANDOM_READ, 2, 100.0, SORTED),
    derived(RANDOM_READ, 4, 120.0, SORTED),
    derived(RANDOM_READ, 8, 144.0, SORTED),
    between(RANDOM_READ, 16, 168.0, 170.0, "Exos X24 (DS2080) and Exos M (DS2045-4) data sheets, quoted"),
    seen(RANDOM_READ, 32, 212.0, "WD DC HC580 data sheet, quoted"),
    derived(RANDOM_WRITE, 1, 200.0, CACHED),
    derived(RANDOM_WRITE, 32, 200.0, CACHED),
    recalled(SEQUENTIAL_READ, 1, 227e6, ZONE_0),
    recalled(SEQUENTIAL_READ, 32, 227e6, ZONE_0),
    recalled(SEQUENTIAL_WRITE, 1, 227e6, ZONE_0),
    recalled(SEQUENTIAL_WRITE, 32, 227e6, ZONE_0),
    derived(RANDOM_FLUSH, 1, 78.0, "as random reads, with the settling of a write"),
    seen(
        OUTER_FLUSH,
        1,
        96.0,
        "serverfault.com/questions/857271, HUS726040ALE614; its span is not stated, this one is assumed",
    ),
    // 9 ms each.
    seen(
        SEQUENTIAL_FLUSH,
        1,
        1e3 / 9.0,
        "d-uzlov/k8s-homelab test-fsync.md: 9 ms, 1st to 90th percentile, drives not named",
    ),
];

const KITGURU: &str = "870 EVO data sheet, in KitGuru's review, p. 12";
const LATENCY: &str = "depth / 77 us, up to the limit of SATA, smoothed";
const SATURATING: &str = "between depths 1 and 32, smoothed";
const EVO_850: &str = "850 EVO 250 GB, CrystalDiskMark 5, 1 MiB, pastebin.com/i2kDyjWx";
const IOCOST: &str = "iocost-benchmarks, Samsung_SSD_870, depth 64";

const SSD: [Figure; 19] = [
    seen(RANDOM_READ, 1, 13_000.0, KITGURU),
    derived(RANDOM_READ, 2, 26_000.0, LATENCY),
    derived(RANDOM_READ, 4, 50_000.0, LATENCY),
    derived(RANDOM_READ, 8, 85_000.0, LATENCY),
    derived(RANDOM_READ, 16, 97_000.0, LATENCY),
    between(RANDOM_READ, 32, 94_003.0, 98_422.0, "measured by KitGuru, p. 12; iocost-benchmarks, Samsung_SSD_870"),
    seen(RANDOM_WRITE, 1, 36_000.0, KITGURU),
    derived(RANDOM_WRITE, 2, 60_000.0, SATURATING),
    derived(RANDOM_WRITE, 4, 80_000.0, SATURATING),
    derived(RANDOM_WRITE, 8, 86_000.0, SATURATING),
    derived(RANDOM_WRITE, 16, 88_000.0, SATURATING),
    seen(RANDOM_WRITE, 32, 88_000.0, KITGURU),
    seen(SEQUENTIAL_READ, 1, 534e6, EVO_850),
    seen(SEQUENTIAL_READ, 32, 560e6, KITGURU),
    seen(SEQUENTIAL_WRITE, 1, 512e6, EVO_850),
    seen(SEQUENTIAL_WRITE, 32, 530e6, KITGURU),
    seen(SMALL_SEQUENTIAL_READ, 32, 98_130.0, IOCOST),
    seen(SMALL_SEQUENTIAL_WRITE, 32, 93_000.0, IOCOST),
    seen(SEQUENTIAL_FLUSH, 1, 490.0, "TheJJ/ceph-diskbench README, 860 EVO 1 TB"),
];

const TANA3N: &str = "CrystalDiskMark 8, gist tana3n/73ea2b7d";
const AKAHANA: &str = "fio on btrfs, block size not shown, gist akahana-1/d07705bd";
const LINEAR: &str = "linear in the depth, as the P3700 up to 8 (anandtech 8104)";
const BURST: &str = "into the protected buffer, up to 282 876 at 512 in flight (gist tana3n)";

const NVME: [Figure; 17] = [
    seen(RANDOM_READ, 1, 11_313.0, TANA3N),
    derived(RANDOM_READ, 2, 22_000.0, LINEAR),
    derived(RANDOM_READ, 4, 44_000.0, LINEAR),
    derived(RANDOM_READ, 8, 86_000.0, LINEAR),
    derived(RANDOM_READ, 16, 150_000.0, "smoothed"),
    between(
        RANDOM_READ,
        32,
        161_200.0,
        270_000.0,
        "PM963 with fio on btrfs, 1 job (gist akahana-1); Intel P3700 1.6 TB (myce.wiki 72198)",
    ),
    seen(RANDOM_WRITE, 1, 42_188.0, TANA3N),
    derived(RANDOM_WRITE, 2, 80_000.0, BURST),
    derived(RANDOM_WRITE, 4, 150_000.0, BURST),
    derived(RANDOM_WRITE, 8, 230_000.0, BURST),
    derived(RANDOM_WRITE, 16, 270_000.0, BURST),
    derived(RANDOM_WRITE, 32, 280_000.0, BURST),
    seen(SEQUENTIAL_READ, 1, 916e6, AKAHANA),
    seen(SEQUENTIAL_READ, 32, 2382.6e6, TANA3N),
    seen(SEQUENTIAL_WRITE, 1, 1048e6, AKAHANA),
    seen(SEQUENTIAL_WRITE, 32, 1304.7e6, TANA3N),
    seen(SEQUENTIAL_FLUSH, 1, 34_090.0, "TheJJ/ceph-diskbench README, PM963 960 GB"),
];

/// A depth as a cell has it.
pub(crate) fn depth_word(depth: u32) -> String {
    format!("depth-{depth}")
}

/// The drive behind a disk's model.
pub(crate) fn drive(model: &str) -> Option<&'static Drive> {
    DRIVES.iter().find(|drive| drive.model == model)
}

/// Name of the figure by which an operation is compared.
pub(crate) fn name_of(operation: &str) -> &'static str {
    match operation {
        SEQUENTIAL_READ | SEQUENTIAL_WRITE => f::BYTES_PER_S,
        _ => f::IOPS,
    }
}

impl Figure {
    /// What the lab's disk should have: `2600`, or `18801-19684`; `unit` is what one is counted in.
    pub(crate) fn scaled(&self, slowdown: f64, unit: f64) -> String {
        let [low, high] = [self.low, self.high].map(|value| number(value / slowdown / unit));
        if low == high { low } else { format!("{low}-{high}") }
    }

    /// What was measured of it.
    pub(crate) fn measured(&self, experiment: &Experiment) -> Option<Spread> {
        let cell = experiment.cell(self.operation, "", &depth_word(self.depth))?;
        cell.figure(name_of(self.operation)).filter(|found| found.median > 0.0)
    }

    /// How far a measured value is from what the drive would have if it were as slow, percent of the nearest end; 0 in between.
    pub(crate) fn off_pct(&self, measured: f64, slowdown: f64) -> f64 {
        let value = measured * slowdown;
        let nearest = value.clamp(self.low, self.high);
        100.0 * (value / nearest - 1.0)
    }
}

/// A cell against its figure, if the experiment is this one and there is a figure.
pub(crate) fn figure_of(experiment: &Experiment, cell: &Cell) -> Option<(&'static Drive, &'static Figure)> {
    let drive = drive(&experiment.disk.model).filter(|_| experiment.name == super::METHOD.name)?;
    let is_its = |figure: &&Figure| figure.operation == cell.layout && depth_word(figure.depth) == cell.neighbour;
    Some((drive, drive.figures.iter().find(is_its)?))
}

/// How the judged figures of a drive came out.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Within the tolerance, of all that are judged.
    pub(crate) n_within: usize,
    pub(crate) n_judged: usize,
    pub(crate) n_recalled: usize,
    pub(crate) n_measured: usize,
    /// The one that is furthest off, and its distance, signed.
    pub(crate) worst: Option<(&'static Figure, f64)>,
    /// The distance of its rounds, without sign.
    pub(crate) off_pct: Option<Spread>,
}

impl Outcome {
    /// `11 of 12 published figures within 10 % (4 of them recalled), worst random-read at depth 1: +12.3 %`.
    pub(crate) fn sentence(&self) -> String {
        let Self { n_within, n_judged, n_recalled, n_measured, .. } = self;
        let recalled = if *n_recalled == 0 { String::new() } else { format!(" ({n_recalled} of all recalled)") };
        let missing =
            if n_measured == n_judged { String::new() } else { format!(", {} not measured", n_judged - n_measured) };
        let worst = self.worst.map_or_else(String::new, |(figure, off)| {
            format!(", worst {} at depth {}: {}", figure.operation, figure.depth, signed(off))
        });
        format!("{n_within} of {n_judged} published figures within {TOLERANCE_PCT} %{recalled}{missing}{worst}")
    }
}

/// `+2.3 %`.
pub(crate) fn signed(pct: f64) -> String {
    if pct.is_finite() && pct.abs() < 1e6 { format!("{pct:+.1} %") } else { "-".to_owned() }
}

/// Compares all published figures of a drive; by the middle of the rounds.
pub(crate) fn compare(drive: &'static Drive, experiment: &Experiment) -> Outcome {
    let judged = || drive.figures.iter().filter(|figure| figure.mark != Mark::Derived);
    let off = |figure: &'static Figure| {
        let found = figure.measured(experiment)?;
        let off = |value: f64| figure.off_pct(value, drive.slowdown);
        let all = [found.min, found.median, found.max].map(|value| off(value).abs());
        let spread = Spread {
            min: all.into_iter().fold(f64::INFINITY, f64::min),
            median: all[1],
            max: all.into_iter().fold(0.0, f64::max),
        };
        Some((figure, off(found.median), spread))
    };
    let found: Vec<_> = judged().filter_map(off).filter(|(_, off, _)| off.is_finite()).collect();
    let worst = found.iter().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()));
    Outcome {
        n_within: found.iter().filter(|(_, off, _)| off.abs() <= TOLERANCE_PCT).count(),
        n_judged: judged().count(),
        n_recalled: judged().filter(|figure| figure.mark == Mark::Recalled).count(),
        n_measured: found.len(),
        worst: worst.map(|(figure, off, _)| (*figure, *off)),
        off_pct: worst.map(|(_, _, spread)| *spread),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_disk::Parameters;

    #[test]
    fn drives_and_factors_are_those_of_the_lab() {
        let own = [Parameters::HDD, Parameters::SSD, Parameters::NVME.without_end_of_burst()];
        for (drive, own) in DRIVES.iter().zip(own) {
            let labs = Parameters::of_lab(drive.model).unwrap();
            assert_eq!(labs, own.scaled(drive.slowdown), "{}", drive.model);
            assert!(labs.describe().contains(drive.name), "{}", drive.model);
        }
    }

    #[test]
    fn each_figure_stands_once_and_names_its_source() {
        for drive in DRIVES {
            let mut ids: Vec<_> = drive.figures.iter().map(|figure| (figure.operation, figure.depth)).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), drive.figures.len(), "{}", drive.model);
            for figure in drive.figures {
                assert!(figure.low > 0.0 && figure.low <= figure.high && !figure.source.is_empty(), "{figure:?}");
            }
        }
    }

    #[test]
    fn a_value_between_two_sources_is_not_off() {
        let figure = between(RANDOM_READ, 16, 160.0, 200.0, "x");
        let off: Vec<f64> = [90.0, 95.0, 72.0, 110.0].map(|value| figure.off_pct(value, 2.0)).into();
        assert_eq!(off.iter().map(|off| off.round()).collect::<Vec<_>>(), [0.0, 0.0, -10.0, 10.0]);
    }
}
