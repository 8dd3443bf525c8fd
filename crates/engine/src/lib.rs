//! The Bulkhead daemon as a library.
//!
//! Owns: the recorded state and its files, carrying out plans (with undo, dry run and fault injection), reconciliation, and the
//! HTTP front end. `kernel` is where actions meet `bulkhead-sys`, `sim` is a host in memory for tests.
//! Does not: decide about plans (`bulkhead-core`), or call the kernel itself (`bulkhead-sys`).

#![forbid(unsafe_code)]

mod attach;
pub mod carry_out;
mod check;
pub mod conditions;
pub mod daemon;
mod devices;
pub mod engine;
mod findings;
mod heatmap;
pub mod hold;
pub mod host;
pub mod http;
pub mod jobs;
pub mod kernel;
mod locks;
mod merge;
pub mod metrics;
pub mod observe;
mod outside;
mod parallel;
mod pools;
mod problems;
mod reconcile;
mod release;
mod repair;
mod report;
mod resize;
mod room;
mod roster;
pub mod servers;
pub mod service;
#[cfg(any(test, feature = "sim"))]
#[cfg_attr(not(test), expect(dead_code, reason = "tests of other crates use only part of it"))]
#[expect(clippy::unwrap_used, reason = "it is for tests only, of this crate and of others")]
mod sim;
pub mod socket;
pub mod store;
mod tenants;
#[cfg(test)]
mod tests;
mod transfer;
mod trim;
mod volumes;
mod work;
