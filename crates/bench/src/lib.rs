//! Workload drivers and experiments that run inside tenants; their results as JSON, tables, SVG and HTML.
//!
//! Owns: the load generators, the layouts that are compared (shared or own journal, with and without accounting and
//! controller), the experiments of the evidence files, the calibration of io.cost, the judge's thresholds, and the reports.
//! Does not: boot machines (`lab`), or decide how a tenant or volume is made (`engine`).

#![forbid(unsafe_code)]

pub mod calibrate;
mod calls;
pub mod cgroup_run;
mod cleanup;
mod clones;
mod estimate;
pub mod experiment;
pub mod experiments;
pub mod journal_cost;
pub mod judge;
pub mod layout;
pub mod load;
pub mod mariadb;
mod pair;
pub mod report;
pub mod result;
pub mod sample;
mod served;
mod shapley;
