//! Images of a running Docker or Podman, by name, as the archive that `docker save` writes.
//!
//! Owns: the syntax of such sources ([`ImageName`]) and the request to the runtime's socket ([`write_to`]). Does not: read the archive, which
//! the worker of the import does, or store it: it is passed on as it arrives.

#![forbid(unsafe_code)]

mod error;
mod http;
mod name;
#[cfg(test)]
mod tests;

pub use error::ExportError;
pub use http::write_to;
pub use name::{BadSource, ImageName, Runtime, parse};
