//! Charges of containers estimated from numbers of calls (Tobimatsu et al.), for comparison with actual charges.

use std::collections::BTreeMap;

use bulkhead_core::observe::cost::{Call, CallCost};
use bulkhead_measure::load::storm::BATCH;
use bulkhead_measure::load::{LoadKind, LoadResult};

/// Size of writes of both loads.
const BLOCK_BYTES: u64 = 4096;

/// Numbers of a load's calls, and of the commits with its metadata.
#[derive(Debug, PartialEq)]
pub(crate) struct Counts {
    calls: BTreeMap<Call, f64>,
    n_commits: f64,
}

impl Counts {
    /// From the result of a probe, which syncs each append, or of a storm, which does not sync and has one batch per commit.
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

    /// By the paper's weights; a call that the paper lacks counts as a write.
    pub(crate) fn by_paper(&self) -> Option<f64> {
        let weight = |call: Call| Some(call.paper().or(Call::Write.paper())?.mean_kib * 1024.0 / 1000.0);
        self.calls.iter().map(|(call, n)| Some(n * weight(*call)?)).sum()
    }

    /// By measured weights with two terms: one per call, and one per commit, shared by the calls in it.
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
    fn a_storm_is_estimated_from_its_calls() {
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
        // The paper has writes only.
        assert!((counts.by_paper().unwrap() - 7.0 * 0.268 * 1024.0).abs() < 1e-6);
        assert_eq!(counts.by_weights(&[]), None);
    }
}
