//! The API of the daemon, for both ends: a front end depends on this crate, and not on the daemon.
//!
//! Owns: requests and answers, the table of routes, the OpenAPI document and the client that are derived from it, and the terms of a
//! request. Findings, errors and their reasons belong to `bulkhead-core`, which bases decisions on them; they are re-exported here.
//! Does not: handle requests (`bulkhead-engine` does), or word errors for users (each front end does, from their reasons).

#![forbid(unsafe_code)]

pub use bulkhead_core::{error, finding, reason};

pub mod client;
pub mod openapi;
pub mod routes;
pub mod terms;
pub mod wire;
