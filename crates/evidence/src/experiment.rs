//! The experiments that `bulkhead demo` does not have; a file for each.

pub(crate) mod attribution;
pub(crate) mod churn;
pub(crate) mod clone_read;
mod containers;
mod copies;
pub(crate) mod disk_models;
pub(crate) mod journal_cost;
pub(crate) mod journal_fsync;
pub(crate) mod kubernetes;
pub(crate) mod launch_storm;
pub(crate) mod mixing;
pub(crate) mod plan_scale;
pub(crate) mod scaling;
pub(crate) mod share_correction;
mod sharing;
pub(crate) mod volume_overhead;
