//! The decisions of Bulkhead, as pure functions of values.
//!
//! Owns: units and validated names, the recorded objects ([`model`]), the [`action`] vocabulary and the plans of
//! volumes and tenants (those of pools are in engine's `pools.rs`), errors and findings, the attribution of journal I/O ([`observe`]), the enforcement of
//! shares ([`control`]), and the messages between the daemon and its helper processes. Does not: read a clock, touch a
//! file, start a thread, or call the kernel. `sys` does that.
//!
//! Modules form layers: there are no cycles among them.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod action;
pub mod arbiter;
pub mod backend;
pub mod base;
pub mod cgroup;
pub mod control;
pub mod cow;
pub mod demand;
pub mod devname;
pub mod error;
pub mod facts;
pub mod finding;
pub mod fix;
pub mod health;
pub mod heat;
pub mod identity;
pub mod isolation;
pub mod journal;
pub mod merge;
pub mod model;
pub mod name;
pub mod observe;
pub mod reason;
pub mod report;
pub mod room;
pub mod round_robin;
pub mod serve;
pub mod slices;
pub mod stack;
pub mod stream;
pub mod tenant;
pub mod trim;
pub mod units;
pub mod volume;
pub mod work;
