//! Who wrote which journal bytes, and who waited for whom: the arithmetic from what the kernel counts to charges and blame.
//!
//! Owns: the records as values ([`record`]), the charges of a commit ([`charge`]) and of a log's checkpoints ([`log`]), the causes
//! of a wait ([`blame`]), what runtimes call a container ([`runtime`]), latency histograms ([`histogram`]), the longest
//! waits ([`waits`]), the shares that cgroups are meant to have ([`shares`]), the [`Observer`], which keeps the sums, their
//! names ([`naming`]) and what containers did ([`activity`]), and what calls cost in journal bytes ([`cost`]).
//! Does not: know BPF, read a clock or look a cgroup up. Every function here can replay a recorded trace.

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
