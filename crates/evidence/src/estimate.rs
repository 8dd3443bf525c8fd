//! What containers would be charged by numbers of calls (Tobimatsu et al.), for comparison with what they are charged.

use std::collections::BTreeMap;

use bulkhead_core::observe::cost::{Call, CallCost};
use bulkhead_measure::load::storm::BATCH;
use bulkhead_measure::load::{LoadKind, LoadResult};

/// What both loads write at a time.
const BLOCK_BYTES: u64 = 4096;

/// How often a load made each call, and in how many commits its metadata was.
#[derive(Debug, PartialEq)]
pub(crate) struct Counts {
    calls: BTreeMap<Call, f64>,
    n_commits: f64,
}

impl Counts {
    /// Of a probe, each of whose appends is synced, or of a storm that syncs nothing and makes a batch for each commit.
    pub(crate) fn from_load(result: &LoadResult) -> Self {
        let blocks = result.tally.written_bytes as f64 / BLOCK_BYTES as f64;
        if result.kind != LoadKind::Storm {
            return Self { calls: [(Call::AppendFsync, blocks)].into(), n_commits: 0.0 };
        }
        let (created, removed) = (blocks, result.tally.ops as f64 - blocks);
        let batches = |files: f64| files / BATCH as f64;
        let calls = [
            (Call::Mkdir, batches(created)),
            (Call::Creat, created),
            (Call::Write, created),
            (Call::Unlink, removed),
            (Call::Rmdir, batches(removed)),
        ];
        Self { calls: calls.into(), n_commits: batches(created) }
    }

    /// By the paper's weights; a call that it does not have costs what a write does there.
    pub(crate) fn by_paper(&self) -> Option<f64> {
        let weight = |call: Call| Some(call.paper().or(Call::Write.paper())?.mean_kib * 1024.0 / 1000.0);
        self.calls.iter().map(|(call, n)| Some(n * weight(*call)?)).sum()
    }

    /// By weights with two terms, as measured: one for each call, and one for each commit, which calls in the same commit share.
    pub(crate) fn by_weights(&self, costs: &[CallCost]) -> Option<f64> {
        let (mut of_calls, mut of_commit) = (0.0, 0.0f64);
        for (call, n) in &self.calls {
            let cost = costs.iter().find(|cost| cost.call == *call)?;
            of_calls += n * cost.per_call_bytes;
            of_commit = of_commit.max(cost.per_commit_bytes);
        }
        Some(of_calls + self.n_commits * of_commit)
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_core::observe::cost::CostRun;

    use super::*;
    use bulkhead_measure::load::Tally;

    fn result(kind: LoadKind, ops: u64, blocks: u64) -> LoadResult {
        let tally = Tally { ops, written_bytes: blocks * BLOCK_BYTES, ..Tally::default() };
        LoadResult { kind, seconds: 1.0, tally }
    }

    /// Each call costs 100 bytes, each commit 1000.
    fn costs() -> Vec<CallCost> {
        let run = CostRun { few_bytes: 1000 + 10 * 100, bytes: 1000 + 1000 * 100 };
        Call::ALL.into_iter().filter_map(|call| CallCost::of("default", call, 1000, 10, vec![run])).collect()
    }

    #[test]
    fn a_storm_is_taken_for_its_calls() {
        let counts = Counts::from_load(&result(LoadKind::Storm, 10 * BATCH, 6 * BATCH));
        let (created, removed) = (6.0 * BATCH as f64, 4.0 * BATCH as f64);
        assert_eq!(counts.calls[&Call::Creat], created);
        assert_eq!(counts.calls[&Call::Unlink], removed);
        assert_eq!((counts.calls[&Call::Mkdir], counts.calls[&Call::Rmdir]), (6.0, 4.0));
        let by_weights = counts.by_weights(&costs()).unwrap();
        assert!((by_weights - (100.0 * (2.0 * created + removed + 10.0) + 6.0 * 1000.0)).abs() < 1e-6, "{by_weights}");
        let kib = |call: Call| call.paper().unwrap().mean_kib / 1000.0;
        let expected = 6.0 * kib(Call::Mkdir)
            + created * (kib(Call::Creat) + kib(Call::Write))
            + removed * kib(Call::Unlink)
            + 4.0 * kib(Call::Rmdir);
        assert!((counts.by_paper().unwrap() - 1024.0 * expected).abs() < 1e-6);
    }

    #[test]
    fn a_probe_appends_and_syncs() {
        let counts = Counts::from_load(&result(LoadKind::Probe, 7, 7));
        assert_eq!(counts, Counts { calls: [(Call::AppendFsync, 7.0)].into(), n_commits: 0.0 });
        // The paper knows writes only.
        assert!((counts.by_paper().unwrap() - 7.0 * 0.268 * 1024.0).abs() < 1e-6);
        assert_eq!(counts.by_weights(&[]), None);
    }
}
