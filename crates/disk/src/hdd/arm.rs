//! The arm: where it is, and how long it takes from there to a place.
//!
//! Owns: the sum of overhead, seek and rotation. Does not: choose where to go (`super`, `queue`, `cache`).

use super::geometry::{Geometry, Place};

/// The arm where its last access has left it.
#[derive(Debug)]
pub(super) struct Arm {
    pub(super) track: u64,
    pub(super) end: u64,
    pub(super) ended_ns: u64,
    pub(super) wrote: bool,
    pub(super) access_overhead_ns: u64,
}

impl Arm {
    /// From `now_ns` until the place is under the head and the head may read or write.
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

    /// The access starts where and when the last has ended: the transfer just goes on.
    pub(super) fn continues(&self, now_ns: u64, start: u64, writes: bool) -> bool {
        now_ns == self.ended_ns && start == self.end && writes == self.wrote
    }

    /// Until the head is on the track: a lower bound of the positioning time, which rises with the distance.
    pub(super) fn move_ns(&self, place: Place, writes: bool, geometry: &Geometry) -> u64 {
        self.access_overhead_ns + geometry.seek_ns(self.track, place.track, writes)
    }
}
