//! A scheduler extender for Kubernetes: what a pod would get on each node, and what the others there would lose, as the planner predicts it
//! from the reports of the nodes' daemons.
//!
//! It must never keep a pod from being scheduled for a reason of its own: whatever is not known well enough passes the filter with a neutral
//! score, is counted, and is logged when that changes. Start at [`cluster`]; docs/scheduler.md is for its users.
//!
//! Owns: the extender's protocol ([`protocol`], [`server`]), what is known of nodes and pods ([`cluster`]), decisions ([`decide`]), and the
//! ways of reports from nodes to here ([`publish`], [`watch`]). Does not: predict (`bulkhead_advise`), or bind pods.

#![forbid(unsafe_code)]

pub mod api;
pub mod cluster;
pub mod decide;
pub mod directory;
pub mod metrics;
pub mod protocol;
pub mod publish;
pub mod server;
pub mod watch;
pub mod wish;
