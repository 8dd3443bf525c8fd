//! The driver's metrics: its calls by method and outcome, in Prometheus' text format.
//!
//! Calls are counted where they are answered, so that those which the protocol itself refuses are included. The name, labels and buckets of
//! the histogram are those of other CSI drivers and, with `csi_sidecar` in place of `csi_plugin`, of the sidecars: their dashboards apply.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tonic::Code;

use crate::DRIVER;

/// All methods of the protocols, as paths.
const METHODS: &[&str] = include!(concat!(env!("OUT_DIR"), "/methods.rs"));

/// The method of all calls of no known method: clients choose paths, and each would be a series of its own.
const OTHER: &str = "other";

/// Upper bounds of the buckets, in seconds.
const BOUNDS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// The calls of a driver since its start.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<Calls>>);

#[derive(Debug, Default)]
struct Calls {
    in_progress: BTreeMap<&'static str, usize>,
    /// By method and code.
    ended: BTreeMap<(&'static str, &'static str), Durations>,
}

/// Durations of calls.
#[derive(Debug, Default)]
struct Durations {
    /// Calls by the first bound that they do not exceed; the last are those that exceed all.
    buckets: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

impl Metrics {
    /// Counts a call of a method, given as a path, from now on.
    pub(crate) fn begin(&self, path: &str) -> Call {
        let method = METHODS.iter().find(|method| **method == path).copied().unwrap_or(OTHER);
        *self.calls().in_progress.entry(method).or_default() += 1;
        Call { metrics: self.clone(), method, started: Instant::now(), outcome: Code::Cancelled }
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In Prometheus' text format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = self.calls().write(&mut text);
        text
    }
}

impl Calls {
    fn write(&self, to: &mut String) -> std::fmt::Result {
        head(to, "bulkhead_csi_build_info", "gauge", "The driver's version; always 1")?;
        writeln!(to, "bulkhead_csi_build_info{{version={:?}}} 1", env!("CARGO_PKG_VERSION"))?;
        head(to, "bulkhead_csi_calls_in_progress", "gauge", "Calls that have not been answered yet, by method")?;
        for (method, n_calls) in &self.in_progress {
            writeln!(to, "bulkhead_csi_calls_in_progress{{method_name=\"{method}\"}} {n_calls}")?;
        }
        let name = "csi_plugin_operations_seconds";
        head(to, name, "histogram", "Duration of the driver's calls in seconds, by method and gRPC status code")?;
        for ((method, code), durations) in &self.ended {
            let labels = format!("driver_name=\"{DRIVER}\",method_name=\"{method}\",grpc_status_code=\"{code}\"");
            let mut n_calls = 0;
            let bounds = BOUNDS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
            for (bound, n_more) in bounds.zip(durations.buckets) {
                n_calls += n_more;
                writeln!(to, "{name}_bucket{{{labels},le=\"{bound}\"}} {n_calls}")?;
            }
            writeln!(to, "{name}_sum{{{labels}}} {}", durations.sum.as_secs_f64())?;
            writeln!(to, "{name}_count{{{labels}}} {n_calls}")?;
        }
        Ok(())
    }
}

fn head(to: &mut String, name: &str, kind: &str, help: &str) -> std::fmt::Result {
    writeln!(to, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

/// A call in progress. Without an outcome it counts as canceled: its client has closed the connection.
#[derive(Debug)]
pub(crate) struct Call {
    metrics: Metrics,
    method: &'static str,
    started: Instant,
    outcome: Code,
}

impl Call {
    /// Counts its end; returns its duration.
    pub(crate) fn end(mut self, outcome: Code) -> Duration {
        self.outcome = outcome;
        self.started.elapsed()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let took = self.started.elapsed();
        let bucket = BOUNDS.iter().position(|bound| took.as_secs_f64() <= *bound).unwrap_or(BOUNDS.len());
        let mut calls = self.metrics.calls();
        if let Some(n_calls) = calls.in_progress.get_mut(self.method) {
            *n_calls = n_calls.saturating_sub(1);
        }
        let durations = calls.ended.entry((self.method, word(self.outcome))).or_default();
        durations.buckets[bucket] += 1;
        durations.sum += took;
    }
}

/// A status code as sidecars spell it.
fn word(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
