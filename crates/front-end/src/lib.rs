//! What the front ends for container engines have in common: [`Given`] reads the options of a request, [`tenants`] creates and removes the
//! tenants of volumes, [`repeat`] repeats requests while the daemon restarts, [`Connections`] accepts clients. Does not: know a protocol.

#![forbid(unsafe_code)]

mod connections;
mod given;
pub mod repeat;
pub mod tenants;

pub use connections::{Connections, Listener};
pub use given::Given;

/// The directory of a volume that containers see. The root of an ext4 has a `lost+found`, for which Docker takes the volume for one that is
/// not empty, and copies nothing from the image into it; database images refuse to initialise such a directory.
pub const SUBDIR: &str = "data";
