//! The state of the network, which is iterated until it no longer changes.

/// A load's customers at the stations, and what it achieves: for one copy.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    pub(super) per_s: f64,
    /// Customers at the processors.
    pub(super) cpu: f64,
    /// Work of its requests at the device, seconds: reads, writes that an operation waits for, and pages that are written back.
    pub(super) reads: f64,
    pub(super) writes: f64,
    pub(super) back: f64,
    /// Work of its commits at the device, seconds.
    pub(super) syncs: f64,
    /// Time by which write-back delays an operation, seconds.
    pub(super) throttle: f64,
    /// Parts of the device's time that its reads and its writes use.
    pub(super) reading: f64,
    pub(super) writing: f64,
    /// What its requests wait for at the device, seconds.
    pub(super) waits: Waits,
}

impl State {
    /// The largest relative change to the next state.
    pub(super) fn change(&self, next: &Self) -> f64 {
        let pairs = [
            (self.per_s, next.per_s),
            (self.cpu, next.cpu),
            (self.reads, next.reads),
            (self.writes, next.writes),
            (self.back, next.back),
            (self.syncs, next.syncs),
            (self.throttle, next.throttle),
        ];
        pairs.into_iter().map(|(from, to)| (to - from).abs() / from.abs().max(to.abs()).max(1e-12)).fold(0.0, f64::max)
    }

    /// A part of the way to the next state.
    pub(super) fn blend(&self, next: &Self, part: f64) -> Self {
        let mix = |from: f64, to: f64| from + (to - from) * part;
        Self {
            per_s: mix(self.per_s, next.per_s),
            cpu: mix(self.cpu, next.cpu),
            reads: mix(self.reads, next.reads),
            writes: mix(self.writes, next.writes),
            back: mix(self.back, next.back),
            syncs: mix(self.syncs, next.syncs),
            throttle: mix(self.throttle, next.throttle),
            reading: mix(self.reading, next.reading),
            writing: mix(self.writing, next.writing),
            waits: self.waits.map(next.waits, mix),
        }
    }
}

/// What each of a load's requests waits for at the device, seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    pub(super) reads: f64,
    pub(super) writes: f64,
    pub(super) back: f64,
    pub(super) syncs: f64,
}

impl Waits {
    pub(super) fn map(self, other: Self, change: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            reads: change(self.reads, other.reads),
            writes: change(self.writes, other.writes),
            back: change(self.back, other.back),
            syncs: change(self.syncs, other.syncs),
        }
    }
}
