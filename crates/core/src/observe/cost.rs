//! The cost of system calls in journal bytes: Table 1 of Tobimatsu et al., "Controlling journaling I/O in container
//! environments".
//!
//! Owns: the calls, the paper's figures, and the arithmetic from measured bytes to weights with two terms, one for each commit
//! and one for each call. Does not measure (`bulkhead journal calibrate` does).

use serde::{Deserialize, Serialize};

/// A system call that changes metadata, on another file (or directory entry) each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Creates a directory.
    Mkdir,
    /// Creates a file.
    Creat,
    /// Creates a named pipe.
    Mknod,
    /// Extends an empty file to a sparse one.
    Truncate,
    /// Removes an empty file.
    Unlink,
    /// Writes 4 KiB to an empty file.
    Write,
    /// Removes an empty directory.
    Rmdir,
    /// Renames a file within its directory.
    Rename,
    /// Adds a second name to a file.
    Link,
    /// Creates a symbolic link that fits into its inode.
    Symlink,
    /// Sets an extended attribute of 16 bytes.
    Setxattr,
    /// Changes permissions.
    Chmod,
    /// Appends 4 KiB to the same file each time and calls fsync: each call is a commit of its own.
    AppendFsync,
}

/// The paper's figures for 1000 calls.
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
    /// All calls, first those of the paper in its order.
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

    /// Its name in tables.
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

    /// The paper's row; it has rows for the first seven calls.
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
    /// Bytes of a few calls and the commit after them.
    pub few_bytes: u64,
    /// Bytes of the further calls of the run and the commit after them.
    pub bytes: u64,
}

/// The cost of a call on one kind of file system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallCost {
    /// The features of the file system, for example `default` or `fast_commit`.
    pub features: String,
    /// The call.
    pub call: Call,
    /// Number of calls in [`CostRun::bytes`].
    pub n_calls: u32,
    /// Number of calls in [`CostRun::few_bytes`].
    pub n_few_calls: u32,
    /// The runs.
    pub runs: Vec<CostRun>,
    /// Mean cost of `n_calls` calls over the runs, KiB.
    pub mean_kib: f64,
    /// Its sample standard deviation, KiB; 0 for a single run.
    pub deviation_kib: f64,
    /// Coefficient of variation.
    pub variation: f64,
    /// Cost of a commit with at least one such call, bytes; 0 if each call is a commit.
    pub per_commit_bytes: f64,
    /// Additional cost of each call, bytes.
    pub per_call_bytes: f64,
    /// The paper's figures for 1000 calls, if as many were measured here.
    pub paper: Option<PaperCost>,
}

impl CallCost {
    /// The cost from measured runs; `None` without runs, or if both parts have the same number of calls.
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

/// A number of bytes as a float: above 2^53 the nearest representable one.
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
    fn paper_figures_are_shown_for_a_thousand_calls_only() {
        assert_eq!(cost(&[(30_000, 300_000)]).paper.map(|paper| paper.mean_kib), Some(323.6));
        let run = vec![CostRun { few_bytes: 1, bytes: 2 }];
        assert_eq!(CallCost::of("default", Call::Creat, 500, 10, run.clone()).unwrap().paper, None);
        assert_eq!(CallCost::of("default", Call::Chmod, 1000, 10, run).unwrap().paper, None);
    }

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        let cost = cost(&[(0, 1024), (0, 3072)]);
        assert!((cost.mean_kib - 2.0).abs() < 1e-9 && (cost.deviation_kib - 2f64.sqrt()).abs() < 1e-9, "{cost:?}");
        assert!((cost.variation - 2f64.sqrt() / 2.0).abs() < 1e-9, "{cost:?}");
    }

    #[test]
    fn one_run_has_no_deviation_and_no_run_has_no_figures() {
        assert_eq!(cost(&[(10, 20)]).deviation_kib, 0.0);
        assert_eq!(CallCost::of("default", Call::Creat, 1000, 10, Vec::new()), None);
        assert_eq!(CallCost::of("default", Call::Creat, 10, 10, vec![CostRun { few_bytes: 1, bytes: 1 }]), None);
    }

    proptest! {
        #[test]
        fn both_cost_terms_are_recovered(per_commit in 0u64..1 << 20, per_call in 0u64..1 << 16) {
            let cost = cost(&[(per_commit + 10 * per_call, per_commit + 1000 * per_call)]);
            prop_assert!((cost.per_call_bytes - per_call as f64).abs() < 1e-6);
            prop_assert!((cost.per_commit_bytes - per_commit as f64).abs() < 1e-3);
        }
    }
}
