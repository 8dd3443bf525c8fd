//! The arm: its position, and the time that it takes from there to a place.
//!
//! Owns: the sum of overhead, seek and rotation. Does not: choose the next place (`super`, `queue`, `cache`).

use super::geometry::{Geometry, Place};

/// The arm, at the end of its last access.
#[derive(Debug)]
pub(super) struct Arm {
    pub(super) track: u64,
    pub(super) end: u64,
    pub(super) ended_ns: u64,
    pub(super) wrote: bool,
    pub(super) access_overhead_ns: u64,
}

impl Arm {
    /// Time from `now_ns` until the place is under the head and the head may read or write.
    pub(super) fn positioning_ns(
        &self,
        now_ns: u64,
        start: u64,
        place: Place,
        writes: bool,
        geometry: &Geometry,
    ) -> u64 {
        if self.continues(now_ns, start, writes) {
            return 0;
        }
        let moved_ns = self.move_ns(place, writes, geometry);
        moved_ns + geometry.rotation_ns(now_ns + moved_ns, place)
    }

    /// Whether the access starts where and when the last one ended, so that the transfer continues.
    pub(super) fn continues(&self, now_ns: u64, start: u64, writes: bool) -> bool {
        now_ns == self.ended_ns && start == self.end && writes == self.wrote
    }

    /// Time until the head is on the track: a lower bound of the positioning time, which rises with the distance.
    pub(super) fn move_ns(&self, place: Place, writes: bool, geometry: &Geometry) -> u64 {
        self.access_overhead_ns + geometry.seek_ns(self.track, place.track, writes)
    }
}
