//! The API of the daemon, for both of its ends: a front end needs this, and nothing of the daemon.
//!
//! Owns: requests and answers, the table of routes, the OpenAPI document and the client that come from it, and the terms of a
//! request. Findings, errors and their reasons are core's, because it decides by them, and are exported here.
//! Does not: handle a request (`bulkhead-engine` does), or word an error for people (each front end does, from its reason).

#![forbid(unsafe_code)]

pub use bulkhead_core::{error, finding, reason};

pub mod client;
pub mod openapi;
pub mod routes;
pub mod terms;
pub mod wire;
