//! Pure decisions of Bulkhead: everything here is a function of values.
//!
//! Owns: units, validated names, the wire types, the `Action` vocabulary, the life cycles of pools, volumes and
//! tenants, the stack rules, and the iocost model arithmetic.
//! Does not: read a clock, touch a file, start a thread, or know how a kernel is called. `sys` does that.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod action;
pub mod backend;
pub mod base;
pub mod control;
pub mod cow;
pub mod error;
pub mod finding;
pub mod health;
pub mod heat;
pub mod index;
pub mod isolation;
pub mod journal;
pub mod merge;
pub mod model;
pub mod name;
pub mod observe;
pub mod reason;
pub mod room;
pub mod rota;
pub mod serve;
pub mod siblings;
pub mod stream;
pub mod tenant;
pub mod trim;
pub mod units;
pub mod volume;
pub mod wire;
pub mod work;
