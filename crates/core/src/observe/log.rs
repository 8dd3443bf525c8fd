//! Charges of writes to an XFS log. The charges of a write add up to its bytes exactly.
//!
//! XFS collects changes in memory, one log vector per changed item, and writes them as a checkpoint; checkpoints are
//! written in their order, up to four at a time. The rule is that of a commit (`super::charge`): each owner pays for
//! the bytes that it added to a checkpoint's vectors, with the headers of the records that carry them. The overhead of
//! a checkpoint (its commit record, padding to the log's block size) is paid by the cgroup that forced it; if none did,
//! all pay in proportion. Bytes beyond that were not observed, and have no owner. Checkpointed metadata is split like
//! the active part of the log.

use std::collections::VecDeque;

use super::charge::{Charge, Parts, add, charged, pro_rata, pro_rata_or};
use super::record::{Kind, LogWrite, Tid};

/// Number of checkpoints that XFS writes concurrently (kernel `xlog_cil_init`: `max_active` of `xc_push_wq`).
const PIPELINE: Tid = 4;
/// Maximum number of writes that are remembered individually until their changes are checkpointed.
const MAX_ACTIVE: usize = 1024;

/// The state of one log.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Closed checkpoints with their unwritten bytes by owner, oldest first.
    unwritten: VecDeque<(Tid, Parts)>,
    /// The last closed checkpoint, with its bytes by owner.
    newest: (Tid, Parts),
    /// Writes in the active part of the log, oldest first: bytes, and bytes by owner.
    active: VecDeque<(u64, Parts)>,
}

impl Log {
    /// Closes a checkpoint. `write` is the first write since then, `parts` are bytes of log vectors by owner.
    pub fn close(&mut self, tid: Tid, parts: Parts, write: &LogWrite) {
        let record = u128::from(write.record_bytes);
        let payload = record.saturating_sub(u128::from(write.header_bytes)).max(1);
        let bytes: u128 = parts.values().map(|part| u128::from(*part)).sum();
        let with_headers = bytes.saturating_mul(record.max(1)) / payload;
        self.unwritten.push_back((tid, pro_rata(u64::try_from(with_headers).unwrap_or(u64::MAX), &parts)));
        self.newest = (tid, parts);
    }

    /// Charges a write.
    pub fn write(&mut self, write: &LogWrite) -> Vec<Charge> {
        // Earlier ones are written already; numbers restart with each mount.
        self.unwritten.retain(|(tid, _)| write.checkpoint.wrapping_sub(*tid) < PIPELINE);
        let (mut left, mut paid) = (write.bytes, Parts::new());
        while left > 0
            && let Some((_, parts)) = self.unwritten.front_mut()
        {
            let whole: u64 = parts.values().sum();
            let now = pro_rata(left.min(whole), parts);
            left -= left.min(whole);
            for (owner, bytes) in &now {
                parts.entry(*owner).and_modify(|part| *part -= bytes);
            }
            if parts.values().all(|part| *part == 0) {
                self.unwritten.pop_front();
            }
            add(&mut paid, &now);
        }
        let overhead = left.min(write.overhead_bytes);
        let payers = match write.requester {
            Some(requester) => Parts::from([(Some(requester), overhead)]),
            None if self.newest.0 == write.checkpoint => pro_rata_or(overhead, &self.newest.1, None),
            None => Parts::from([(None, overhead)]),
        };
        add(&mut paid, &payers);
        add(&mut paid, &Parts::from([(None, left - overhead)]));
        paid.retain(|_, bytes| *bytes > 0);
        self.remember(write, paid.clone());
        paid.into_iter().map(|(cgroup, bytes)| Charge { cgroup, kind: Kind::Commit, bytes }).collect()
    }

    /// Charges checkpointed metadata.
    #[must_use]
    pub fn checkpoint(&self, bytes: u64) -> Vec<Charge> {
        let mut owed = Parts::new();
        for (_, parts) in &self.active {
            add(&mut owed, parts);
        }
        charged(bytes, &owed, Kind::Checkpoint)
    }

    fn remember(&mut self, write: &LogWrite, paid: Parts) {
        self.active.push_back((write.bytes, paid));
        let mut held: u64 = self.active.iter().map(|(bytes, _)| bytes).sum();
        while let Some((bytes, _)) = self.active.front()
            && held - bytes >= write.active_bytes
            && self.active.len() > 1
        {
            held -= bytes;
            self.active.pop_front();
        }
        if self.active.len() > MAX_ACTIVE
            && let Some((bytes, oldest)) = self.active.pop_front()
            && let Some((next_bytes, next)) = self.active.front_mut()
        {
            *next_bytes += bytes;
            add(next, &oldest);
        }
    }
}

#[cfg(test)]
mod tests;
