//! What an fsync waits for: a chain of durable writes, and the commit before it.
//!
//! Clients that sync while a commit is under way wait for its end and are served together by the next (jbd2's group commit). On a file system
//! that workloads share, this is one commit for all of them, and in `data=ordered` it also waits for everybody's new data.

use super::device::Service;

/// Limits of the part of a shared device that written-back data takes while a commit waits for it.
const ORDERED_MAX: f64 = 0.98;

/// The fsyncs that end in the same commits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Syncs {
    /// Fsyncs per second.
    pub(super) per_s: f64,
    /// Highest number of clients that sync at a time.
    pub(super) clients: f64,
    /// Part of the device's time that data takes which the commit has to wait for.
    pub(super) ordered: f64,
}

/// An fsync under load, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Fsync {
    /// Its whole time.
    pub(super) seconds: f64,
    /// Time of one commit.
    pub(super) commit: f64,
    /// Fsyncs that one commit serves.
    pub(super) batch: f64,
    /// Part of the time in which a commit is under way, 0 to 1.
    pub(super) busy: f64,
}

/// A chain of durable writes, each of which waits at the device for `wait` seconds.
pub(super) fn fsync(chain: f64, service: Service, wait: f64, syncs: &Syncs) -> Fsync {
    let alone = chain * (service.occupies + service.delay + wait);
    let commit = alone / (1.0 - syncs.ordered.clamp(0.0, ORDERED_MAX));
    let batch = (syncs.per_s * commit).clamp(1.0, syncs.clients.max(1.0));
    let busy = (syncs.per_s / batch * commit).min(1.0);
    // A client cannot meet its own commit: a lone one never waits.
    let others = (syncs.clients - 1.0).clamp(0.0, 1.0);
    Fsync { seconds: commit * (1.0 + busy * others / 2.0), commit, batch, busy }
}
