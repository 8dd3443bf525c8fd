//! Fuzz targets: the parsers of untrusted input. Each accepts any bytes, and panics if an invariant is violated. `cargo xtask fuzz` runs
//! them.
//!
//! Random bytes do not get past a checksum. So most targets interpret their input in one of two ways: as the file itself, or as a
//! description of a file with correct checksums and arbitrary content.

#![forbid(unsafe_code)]

mod archive;
mod csi;
mod docker;
mod image_name;
mod index;
mod input;
mod layers;
mod peers;
mod runtime;
mod stream;

pub use archive::{archive, layout};
pub use csi::csi;
pub use docker::docker;
pub use image_name::image_name;
pub use index::index;
pub use layers::layers;
pub use peers::peers;
pub use runtime::runtime;
pub use stream::stream;

#[cfg(test)]
mod tests;
