//! What calls cost in journal bytes: Table 1 of Tobimatsu et al., "Controlling journaling I/O in container environments".
//!
//! Owns: the calls, the paper's figures, and the arithmetic from measured bytes to weights with two terms, one for each commit
//! and one for each call. Does not measure (`bulkhead journal calibrate` does).

use serde::{Deserialize, Serialize};

/// A system call that changes metadata, made on a file (or directory entry) of its own each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// A new directory.
    Mkdir,
    /// A new file.
    Creat,
    /// A new named pipe.
    Mknod,
    /// An empty file becomes a sparse one.
    Truncate,
    /// An empty file goes.
    Unlink,
    /// 4 KiB into an empty file.
    Write,
    /// An empty directory goes.
    Rmdir,
    /// A file gets another name in the same directory.
    Rename,
    /// A second name for a file.
    Link,
    /// A symbolic link, short enough for its inode.
    Symlink,
    /// One extended attribute of 16 bytes.
    Setxattr,
    /// Other permissions.
    Chmod,
    /// 4 KiB at the end of the same file, and fsync: each call is a commit of its own.
    AppendFsync,
}

/// What the paper measured for 1000 calls.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PaperCost {
    /// Mean, KiB.
    pub mean_kib: f64,
    /// Standard deviation, KiB.
    pub deviation_kib: f64,
    /// Coefficient of variation.
    pub variation: f64,
}

impl Call {
    /// All of them: first those of the paper, in its order.
    pub const ALL: [Self; 13] = [
        Self::Mkdir,
        Self::Creat,
        Self::Mknod,
        Self::Truncate,
        Self::Unlink,
        Self::Write,
        Self::Rmdir,
        Self::Rename,
        Self::Link,
        Self::Symlink,
        Self::Setxattr,
        Self::Chmod,
        Self::AppendFsync,
    ];

    /// For people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Mkdir => "mkdir",
            Self::Creat => "creat",
            Self::Mknod => "mknod",
            Self::Truncate => "truncate",
            Self::Unlink => "unlink",
            Self::Write => "write",
            Self::Rmdir => "rmdir",
            Self::Rename => "rename",
            Self::Link => "link",
            Self::Symlink => "symlink",
            Self::Setxattr => "setxattr",
            Self::Chmod => "chmod",
            Self::AppendFsync => "append+fsync",
        }
    }

    /// The paper's row; it has the first seven.
    #[must_use]
    pub fn paper(self) -> Option<PaperCost> {
        let (mean_kib, deviation_kib, variation) = match self {
            Self::Mkdir => (4442.4, 47.5, 0.011),
            Self::Creat => (323.6, 14.6, 0.045),
            Self::Mknod => (318.8, 12.7, 0.040),
            Self::Truncate => (261.2, 2.6, 0.010),
            Self::Unlink => (296.0, 0.0, 0.000),
            Self::Write => (268.0, 0.0, 0.000),
            Self::Rmdir => (327.6, 4.4, 0.013),
            _ => return None,
        };
        Some(PaperCost { mean_kib, deviation_kib, variation })
    }
}

/// Journal bytes of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostRun {
    /// Of a few calls and the commit after them.
    pub few_bytes: u64,
    /// Of all further calls of the run and the commit after them.
    pub bytes: u64,
}

/// What one kind of call costs on one kind of file system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallCost {
    /// The features of the file system, for example `default` or `fast_commit`.
    pub features: String,
    /// The call.
    pub call: Call,
    /// How often it was called for [`CostRun::bytes`], and for [`CostRun::few_bytes`].
    pub n_calls: u32,
    /// See there.
    pub n_few_calls: u32,
    /// Every run.
    pub runs: Vec<CostRun>,
    /// Mean over the runs of what `n_calls` calls cost, KiB.
    pub mean_kib: f64,
    /// Its standard deviation (of a sample), KiB; 0 for a single run.
    pub deviation_kib: f64,
    /// Standard deviation by mean.
    pub variation: f64,
    /// What a commit costs in which there is such a call at all, bytes; 0 when each call is a commit.
    pub per_commit_bytes: f64,
    /// What each call costs beyond that, bytes.
    pub per_call_bytes: f64,
    /// What the paper found for 1000 calls; only where that was measured here as well.
    pub paper: Option<PaperCost>,
}

impl CallCost {
    /// The figures of some runs; `None` when there is no run, or when both parts have equally many calls.
    #[must_use]
    pub fn of(features: &str, call: Call, n_calls: u32, n_few_calls: u32, runs: Vec<CostRun>) -> Option<Self> {
        let mean = mean(runs.iter().map(|run| run.bytes))?;
        let mean_few = self::mean(runs.iter().map(|run| run.few_bytes))?;
        let squares = runs.iter().map(|run| (as_f64(run.bytes) - mean).powi(2)).sum::<f64>();
        let deviation = (squares / as_f64(runs.len() as u64 - 1).max(1.0)).sqrt();
        if n_calls == n_few_calls {
            return None;
        }
        let per_call = ((mean - mean_few) / (f64::from(n_calls) - f64::from(n_few_calls))).max(0.0);
        Some(Self {
            features: features.to_owned(),
            call,
            n_calls,
            n_few_calls,
            runs,
            mean_kib: mean / 1024.0,
            deviation_kib: deviation / 1024.0,
            variation: if mean > 0.0 { deviation / mean } else { 0.0 },
            per_commit_bytes: (mean_few - per_call * f64::from(n_few_calls)).max(0.0),
            per_call_bytes: per_call,
            paper: call.paper().filter(|_| n_calls == 1000),
        })
    }
}

fn mean(values: impl ExactSizeIterator<Item = u64>) -> Option<f64> {
    let n = values.len() as u64;
    (n > 0).then(|| as_f64(values.sum()) / as_f64(n))
}

/// A number of bytes to calculate with: above 2^53 it is the nearest that there is.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "2^53 bytes are far more than any run writes")]
pub fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cost(runs: &[(u64, u64)]) -> CallCost {
        let runs = runs.iter().map(|&(few_bytes, bytes)| CostRun { few_bytes, bytes }).collect();
        CallCost::of("default", Call::Creat, 1000, 10, runs).expect("there are runs")
    }

    #[test]
    fn the_papers_column_stands_beside_a_thousand_calls_only() {
        assert_eq!(cost(&[(30_000, 300_000)]).paper.map(|paper| paper.mean_kib), Some(323.6));
        let run = vec![CostRun { few_bytes: 1, bytes: 2 }];
        assert_eq!(CallCost::of("default", Call::Creat, 500, 10, run.clone()).unwrap().paper, None);
        assert_eq!(CallCost::of("default", Call::Chmod, 1000, 10, run).unwrap().paper, None);
    }

    #[test]
    fn spread_is_that_of_a_sample() {
        let cost = cost(&[(0, 1024), (0, 3072)]);
        assert!((cost.mean_kib - 2.0).abs() < 1e-9 && (cost.deviation_kib - 2f64.sqrt()).abs() < 1e-9, "{cost:?}");
        assert!((cost.variation - 2f64.sqrt() / 2.0).abs() < 1e-9, "{cost:?}");
    }

    #[test]
    fn one_run_has_no_spread_and_none_has_no_figures() {
        assert_eq!(cost(&[(10, 20)]).deviation_kib, 0.0);
        assert_eq!(CallCost::of("default", Call::Creat, 1000, 10, Vec::new()), None);
        assert_eq!(CallCost::of("default", Call::Creat, 10, 10, vec![CostRun { few_bytes: 1, bytes: 1 }]), None);
    }

    proptest! {
        #[test]
        fn what_was_made_of_two_terms_is_found_again(per_commit in 0u64..1 << 20, per_call in 0u64..1 << 16) {
            let cost = cost(&[(per_commit + 10 * per_call, per_commit + 1000 * per_call)]);
            prop_assert!((cost.per_call_bytes - per_call as f64).abs() < 1e-6);
            prop_assert!((cost.per_commit_bytes - per_commit as f64).abs() < 1e-3);
        }
    }
}
