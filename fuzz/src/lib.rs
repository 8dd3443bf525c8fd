//! Fuzz targets: what is done with bytes that come from elsewhere. Each takes any bytes, and panics where something is done that must
//! not be. `cargo xtask fuzz` drives them.
//!
//! Random bytes do not get past a checksum. So most targets take their input in two ways: as it is, and as a description of something
//! whose checksums are right and whose content is not.

#![forbid(unsafe_code)]

mod archive;
mod index;
mod input;
mod layers;
mod peers;
mod stream;

pub use archive::{archive, layout};
pub use index::index;
pub use layers::layers;
pub use peers::peers;
pub use stream::stream;

#[cfg(test)]
mod tests;
