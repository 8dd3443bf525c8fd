//! Attribution of journal bytes and of waits in fsync: from the kernel's counts to charges and blame.
//!
//! Owns: the tracer's records ([`record`]), the charges of a commit ([`charge`]) and of a log's checkpoints ([`log`]),
//! the causes of a wait ([`blame`]), container names of runtimes ([`runtime`]), latency histograms ([`histogram`]), the
//! longest waits ([`waits`]), the target shares of cgroups ([`shares`]), the [`Observer`] with its sums, their names
//! ([`naming`]), the activity of containers ([`activity`]), and the cost of calls in journal bytes ([`cost`]). Does
//! not: know BPF, read a clock or look up a cgroup. Every function here can replay a recorded trace.

pub mod activity;
pub mod blame;
pub mod charge;
pub mod cost;
pub mod histogram;
pub mod limits;
pub mod log;
pub mod naming;
mod observer;
pub mod record;
#[cfg(test)]
mod replay_tests;
pub mod runtime;
pub mod shares;
pub mod waits;

pub use observer::{Observer, Totals};
