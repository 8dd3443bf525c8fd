//! The measurements of the `bulkhead` program: load generators, calibration, costs of system calls, and the experiments of `bulkhead demo` with
//! their reports.
//!
//! Owns: the load generators, the layouts that are compared (shared or own journal, with and without accounting and controller), the frame
//! and the result of an experiment, the calibration of io.cost, and the reports.
//! Does not: boot machines (`lab`), create tenants or volumes (`engine`), or contain experiments, judgements and pages that only the project's
//! own evidence needs (`evidence`).

#![forbid(unsafe_code)]

pub mod calibrate;
pub mod cgroup_run;
pub mod cleanup;
pub mod costs;
pub mod daemon;
pub mod experiment;
pub mod image;
pub mod isolation;
pub mod journal_cost;
pub mod layout;
pub mod load;
pub mod mariadb;
pub mod nest;
pub mod pair;
pub mod profile;
pub mod report;
pub mod result;
pub mod sample;
pub mod sweep;
