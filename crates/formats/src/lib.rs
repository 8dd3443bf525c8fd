//! Bulkhead's own files and messages, byte for byte (docs/formats).
//!
//! Owns: the attributes of layers and staging files, streams of snapshots, block indexes, the registry of block servers, their
//! slots for taking turns, and the messages of the peer reader. Reads and writes them through `bulkhead-sys`.
//! Does not: decide when a file is made or removed (the engine does), nor serve, send or receive (`bulkhead-blockd` does).

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod arbiter;
pub mod first_block;
pub mod index;
pub mod layer;
pub mod merge;
pub mod peers;
pub mod read_counts;
pub mod servers;
pub mod staging;
pub mod stream;
