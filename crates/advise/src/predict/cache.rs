//! Which reads miss the page cache that workloads share.
//!
//! Least recently used: all workloads keep what they read within the last `T` seconds. A workload's memory grows from nothing to its footprint
//! of `T` seconds by its misses, so that the miss-ratio curve alone gives the footprint (Xiang et al., ASPLOS 2013). For evenly spread reads
//! this is the approximation of Che, Tung and Wang (IEEE JSAC 20(7), 2002): `W (1 - exp(-rate T / W))`.

use bulkhead_core::demand::{MissRatio, MissRatios};

/// Part of the memory to which its occupation is computed, and rounds in which that is reached or given up.
const TOLERANCE: f64 = 1e-9;
const ROUNDS: usize = 100;

/// A workload that reads through the page cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    /// Its curve.
    pub(super) curve: &'a MissRatios,
    /// Bytes that it reads per second, hits included.
    pub(super) rate: f64,
    /// Number of equal workloads, each with its own data.
    pub(super) copies: f64,
}

/// The miss ratio of each reader in a cache of `memory` bytes; those that read nothing miss nothing.
pub(super) fn miss_ratios(memory: f64, readers: &[Reader<'_>]) -> Vec<f64> {
    let active = || readers.iter().filter(|reader| reader.rate > 0.0);
    let all: f64 = active().map(|reader| reader.copies * last(reader.curve).bytes).sum();
    let age = if all <= memory {
        f64::INFINITY
    } else {
        age_in(memory, &|age| active().map(|reader| reader.copies * footprint(reader, age)).sum())
    };
    let miss = |reader: &Reader<'_>| {
        if reader.rate <= 0.0 {
            0.0
        } else if age.is_infinite() {
            last(reader.curve).miss
        } else {
            reader.curve.at(footprint(reader, age))
        }
    };
    readers.iter().map(miss).collect()
}

/// The age at which a cache of `memory` bytes evicts: `occupied` grows with the age, beyond the memory. By regula falsi (the Illinois method).
fn age_in(memory: f64, occupied: &dyn Fn(f64) -> f64) -> f64 {
    let beyond = |age: f64| occupied(age) - memory;
    let (mut low, mut high) = (0.0, 1e-3);
    let (mut at_low, mut at_high) = (-memory, beyond(high));
    // The footprint of a curve that ends above a miss ratio of zero is soon that of its last point; others come close to theirs.
    while at_high < 0.0 && high < 1e12 {
        (low, at_low) = (high, at_high);
        high *= 4.0;
        at_high = beyond(high);
    }
    for _ in 0..ROUNDS {
        let age = high - at_high * (high - low) / (at_high - at_low);
        let at_age = beyond(age);
        if at_age.abs() <= TOLERANCE * memory || !age.is_finite() {
            return if age.is_finite() { age } else { high };
        }
        if (at_age < 0.0) == (at_high < 0.0) {
            at_low /= 2.0;
        } else {
            (low, at_low) = (high, at_high);
        }
        (high, at_high) = (age, at_age);
    }
    high
}

fn last(curve: &MissRatios) -> MissRatio {
    curve.0.last().copied().unwrap_or(MissRatio { bytes: 0.0, miss: 1.0 })
}

/// Bytes that a reader brings into an unlimited cache within `age` seconds, at most those of its last point: what it reads beyond is not read
/// again.
fn footprint(reader: &Reader<'_>, age: f64) -> f64 {
    let mut left = age * reader.rate;
    let mut from = MissRatio { bytes: 0.0, miss: 1.0 };
    for to in &reader.curve.0 {
        let width = to.bytes - from.bytes;
        if width > 0.0 {
            // The ratio falls along the piece by `slope` for each byte: db/dt = rate (miss - slope b).
            let slope = (from.miss - to.miss) / width;
            let needed = if slope * width < 1e-12 {
                if from.miss > 0.0 { width / from.miss } else { f64::INFINITY }
            } else if to.miss > 0.0 {
                (from.miss / to.miss).ln() / slope
            } else {
                f64::INFINITY
            };
            if left < needed {
                let grown = if slope * width < 1e-12 {
                    left * from.miss
                } else {
                    from.miss / slope * -(-left * slope).exp_m1()
                };
                return from.bytes + grown.min(width);
            }
            left -= needed;
        }
        from = *to;
    }
    from.bytes
}

#[cfg(test)]
mod tests {
    use bulkhead_core::units::Bytes;

    use super::*;

    fn reader(curve: &MissRatios, rate: f64) -> Reader<'_> {
        Reader { curve, rate, copies: 1.0 }
    }

    #[test]
    fn evenly_spread_reads_have_ches_footprint() {
        let curve = MissRatios::uniform(Bytes(1000));
        for age in [0.1, 1.0, 10.0] {
            let che = 1000.0 * (1.0 - (-50.0 * age / 1000.0_f64).exp());
            assert!((footprint(&reader(&curve, 50.0), age) - che).abs() < 1e-9);
        }
    }

    #[test]
    fn what_fits_is_read_once() {
        let curve = MissRatios::uniform(Bytes(1000));
        assert_eq!(miss_ratios(2000.0, &[reader(&curve, 50.0), reader(&curve, 1.0)]), [0.0, 0.0]);
    }

    #[test]
    fn equal_readers_share_memory_equally() {
        let curve = MissRatios::uniform(Bytes(1000));
        for miss in miss_ratios(500.0, &[reader(&curve, 50.0), reader(&curve, 50.0)]) {
            assert!((miss - 0.75).abs() < 1e-6, "{miss}");
        }
        let many = Reader { copies: 4.0, ..reader(&curve, 50.0) };
        assert!((miss_ratios(2000.0, &[many])[0] - 0.5).abs() < 1e-6);
    }

    #[test]
    fn a_faster_reader_keeps_more() {
        let curve = MissRatios::uniform(Bytes(1000));
        let misses = miss_ratios(1000.0, &[reader(&curve, 500.0), reader(&curve, 50.0)]);
        assert!(misses[0] < 0.2 && misses[1] > 0.6, "{misses:?}");
        let kept: f64 = misses.iter().map(|miss| 1000.0 * (1.0 - miss)).sum();
        assert!((kept - 1000.0).abs() < 1e-3, "{kept}");
    }

    #[test]
    fn a_scan_gets_no_hits_and_takes_the_memory() {
        // Cyclic reads of 1000 bytes: all miss until all fits.
        let scan = MissRatios(vec![MissRatio { bytes: 999.0, miss: 1.0 }, MissRatio { bytes: 1000.0, miss: 0.0 }]);
        let curve = MissRatios::uniform(Bytes(1000));
        let misses = miss_ratios(600.0, &[reader(&scan, 100.0), reader(&curve, 10.0)]);
        assert!(misses[0] > 0.99, "{misses:?}");
        assert!(misses[1] > 0.9, "{misses:?}");
    }
}
