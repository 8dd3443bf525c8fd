//! Geometry and mechanics: the location of a byte, the time of a seek, and when a place passes under the head.
//!
//! Owns: zones, tracks, skew, the seek curve. Does not: handle commands or the cache.
//!
//! The disk's bytes are spread over the whole stroke: a small disk has few tracks, far apart. A place has a *pass*: the
//! time at which a head that reads from byte 0 without a pause reaches it. The pass modulo a revolution is the angle,
//! and the difference of two passes is the time of a sequential transfer, track switches included.

use crate::HddParameters;

#[derive(Debug)]
pub(super) struct Geometry {
    zones: Vec<Zone>,
    size_bytes: u64,
    revolution_ns: u64,
    /// A revolution plus the skew.
    pitch_ns: u64,
    seek: SeekCurve,
    write_settle_ns: u64,
    write_settle_single_track_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) track: u64,
    pub(super) pass_ns: u64,
}

#[derive(Debug)]
struct Zone {
    first_byte: u64,
    first_track: u64,
    track_bytes: u64,
}

#[derive(Debug)]
struct SeekCurve {
    single_ns: u64,
    /// Square of the factor of the square root, per track.
    square_per_track: u64,
    knee_tracks: u64,
    knee_ns: u64,
    full_ns: u64,
    span_tracks: u64,
    /// Precomputed times of short distances, which the search for the nearest place needs most.
    near_ns: Vec<u64>,
}

const BLOCK_BYTES: u64 = 4096;
const N_NEAR: u64 = 4096;

impl Geometry {
    pub(super) fn new(table: &HddParameters, size_bytes: u64) -> Self {
        let pitch_ns = table.revolution_ns + table.track_skew_ns;
        let last = table.n_zones - 1;
        let track_bytes = |zone: u64| {
            let fall = table.outer_bytes_per_s - table.inner_bytes_per_s;
            let rate = table.outer_bytes_per_s - fall * zone / last.max(1);
            rate * (pitch_ns / 1000) / 1_000_000 / BLOCK_BYTES * BLOCK_BYTES
        };
        let bytes_per_track_of_each: u64 = (0..table.n_zones).map(track_bytes).sum();
        let zone_tracks = size_bytes.div_ceil(bytes_per_track_of_each);
        let mut zones: Vec<Zone> = Vec::new();
        let mut first_byte = 0;
        for zone in 0..table.n_zones {
            let track_bytes = track_bytes(zone);
            if first_byte < size_bytes {
                zones.push(Zone { first_byte, first_track: zone * zone_tracks, track_bytes });
            }
            first_byte += zone_tracks * track_bytes;
        }
        let mut geometry = Self {
            zones,
            size_bytes,
            revolution_ns: table.revolution_ns,
            pitch_ns,
            seek: SeekCurve::new(table, 1),
            write_settle_ns: table.write_settle_ns,
            write_settle_single_track_ns: table.write_settle_single_track_ns,
        };
        geometry.seek = SeekCurve::new(table, geometry.place(size_bytes - 1).track.max(1));
        geometry
    }

    pub(super) fn place(&self, offset: u64) -> Place {
        let offset = offset.min(self.size_bytes);
        let zone_idx = self.zones.partition_point(|zone| zone.first_byte <= offset) - 1;
        let zone = &self.zones[zone_idx];
        let within = offset - zone.first_byte;
        let track = zone.first_track + within / zone.track_bytes;
        let pass_ns = track * self.pitch_ns + within % zone.track_bytes * self.revolution_ns / zone.track_bytes;
        Place { track, pass_ns }
    }

    /// The inverse of `pass_ns`: the first byte that has not yet passed.
    pub(super) fn offset_at(&self, pass_ns: u64) -> u64 {
        let track = pass_ns / self.pitch_ns;
        let zone_idx = self.zones.partition_point(|zone| zone.first_track <= track) - 1;
        let zone = &self.zones[zone_idx];
        let turned_ns = (pass_ns % self.pitch_ns).min(self.revolution_ns);
        let start = zone.first_byte + (track - zone.first_track) * zone.track_bytes;
        (start + turned_ns * zone.track_bytes / self.revolution_ns).min(self.size_bytes)
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(super) fn transfer_ns(&self, from: u64, to: u64) -> u64 {
        self.place(to).pass_ns - self.place(from).pass_ns
    }

    pub(super) fn seek_ns(&self, from_track: u64, to_track: u64, writes: bool) -> u64 {
        let distance = from_track.abs_diff(to_track);
        let settle_ns = match distance {
            _ if !writes => 0,
            0 => 0,
            1 => self.write_settle_single_track_ns,
            _ => self.write_settle_ns,
        };
        self.seek.ns(distance) + settle_ns
    }

    /// Time from `at_ns` until the place is under the head.
    pub(super) fn rotation_ns(&self, at_ns: u64, place: Place) -> u64 {
        let angle_ns = place.pass_ns % self.revolution_ns;
        (angle_ns + self.revolution_ns - at_ns % self.revolution_ns) % self.revolution_ns
    }
}

impl SeekCurve {
    fn new(table: &HddParameters, span_tracks: u64) -> Self {
        let square_per_track = table.seek_sqrt_ns * table.seek_sqrt_ns / span_tracks;
        let knee_tracks = span_tracks * table.seek_knee_per_mille / 1000;
        let mut curve = Self {
            single_ns: table.seek_single_track_ns,
            square_per_track,
            knee_tracks,
            knee_ns: table.seek_single_track_ns + (square_per_track * knee_tracks).isqrt(),
            full_ns: table.seek_full_stroke_ns,
            span_tracks,
            near_ns: Vec::new(),
        };
        curve.near_ns = (0..=span_tracks.min(N_NEAR)).map(|distance| curve.compute_ns(distance)).collect();
        curve
    }

    fn ns(&self, distance: u64) -> u64 {
        let near = usize::try_from(distance).ok().and_then(|idx| self.near_ns.get(idx));
        near.copied().unwrap_or_else(|| self.compute_ns(distance))
    }

    fn compute_ns(&self, distance: u64) -> u64 {
        match distance {
            0 => 0,
            1 => self.single_ns,
            _ if distance <= self.knee_tracks => self.single_ns + (self.square_per_track * distance).isqrt(),
            _ => {
                let beyond = distance - self.knee_tracks;
                self.knee_ns + (self.full_ns - self.knee_ns) * beyond / (self.span_tracks - self.knee_tracks)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parameters;

    fn table() -> HddParameters {
        let Parameters::Hdd(table) = Parameters::HDD else { unreachable!("HDD is a hard disk") };
        table
    }

    #[test]
    fn the_average_seek_matches_the_published_one() {
        let geometry = Geometry::new(&table(), 8 << 30);
        let tracks = geometry.seek.span_tracks + 1;
        let average = |writes| {
            // Every distance, weighted with the number of pairs that have it.
            let (mut sum, mut n) = (0u128, 0u128);
            for distance in 1..tracks {
                let weight = u128::from(tracks - distance);
                sum += u128::from(geometry.seek_ns(0, distance, writes)) * weight;
                n += weight;
            }
            u64::try_from(sum / n).unwrap()
        };
        assert!(average(false).abs_diff(7_400_000) < 40_000, "{}", average(false));
        assert!(average(true).abs_diff(8_200_000) < 40_000, "{}", average(true));
        assert_eq!(geometry.seek_ns(7, 7, true), 0);
        assert_eq!(geometry.seek_ns(7, 8, false), 230_000);
        assert_eq!(geometry.seek_ns(8, 7, true), 320_000);
        assert_eq!(geometry.seek_ns(0, tracks - 1, false), 16_000_000);
    }

    #[test]
    fn the_curve_rises() {
        let geometry = Geometry::new(&table(), 8 << 30);
        let mut last = 0;
        for distance in 0..=geometry.seek.span_tracks {
            let ns = geometry.seek.ns(distance);
            assert!(ns >= last, "at {distance}");
            last = ns;
        }
    }

    #[test]
    fn zones_fall_from_the_outer_to_the_inner_rate() {
        let geometry = Geometry::new(&table(), 8 << 30);
        assert_eq!(geometry.zones.len(), 30);
        let rate = |offset: u64| (64 << 20) / (geometry.transfer_ns(offset, offset + (64 << 20)) / 1000);
        assert!(rate(0).abs_diff(227) <= 2, "{}", rate(0));
        let inner = rate((8 << 30) - (64 << 20));
        assert!(inner.abs_diff(108) <= 2, "{inner}");
        assert!(rate(4 << 30) < rate(0) && rate(4 << 30) > inner);
    }

    #[test]
    fn a_place_passes_once_per_revolution() {
        let geometry = Geometry::new(&table(), 8 << 30);
        let place = geometry.place(123 << 20);
        let wait = geometry.rotation_ns(1000, place);
        assert!(wait < 8_333_333);
        assert_eq!(geometry.rotation_ns(1000 + wait, place), 0);
        assert_eq!(geometry.rotation_ns(1001 + wait, place), 8_333_332);
    }

    #[test]
    fn the_skew_covers_the_switch_to_the_next_track() {
        let geometry = Geometry::new(&table(), 8 << 30);
        let track_bytes = geometry.zones[0].track_bytes;
        let (end, next) = (geometry.place(track_bytes - 512), geometry.place(track_bytes));
        assert_eq!(next.track, end.track + 1);
        let at = end.pass_ns + geometry.seek_ns(end.track, next.track, true);
        assert!(geometry.rotation_ns(at, next) < 200_000);
    }

    #[test]
    fn offset_at_inverts_pass_ns() {
        for size in [1 << 20, 64 << 20, 8 << 30, 4_000_787_030_016] {
            let geometry = Geometry::new(&table(), size);
            for part in 0..1000 {
                let offset = size / 1000 * part / 512 * 512;
                let back = geometry.offset_at(geometry.place(offset).pass_ns);
                assert!(back.abs_diff(offset) <= 512, "{offset} {back} of {size}");
            }
        }
    }
}
