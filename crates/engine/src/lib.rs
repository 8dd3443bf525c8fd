//! The Bulkhead daemon as a library.
//!
//! Owns: the recorded state and its files, carrying out plans (with undo, dry run and fault injection), reconcile, the
//! HTTP front end and its client. `kernel.rs` is where actions meet `bulkhead-sys`.
//! Does not: decide what a plan is (`bulkhead-core`), or call the kernel itself (`bulkhead-sys`).

#![forbid(unsafe_code)]

mod attach;
pub mod carry_out;
pub mod engine;
pub mod host;
mod pools;
mod reconcile;
pub mod store;
mod tenants;
#[cfg(test)]
mod tests;
mod volumes;
#[cfg(test)]
mod sim;
