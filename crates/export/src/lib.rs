//! Images of a running Docker, Podman or containerd, by name, as an archive: of Docker and Podman what `docker save` writes, of containerd an
//! OCI layout.
//!
//! Owns: the syntax of such sources ([`ImageName`]) and the requests to the runtime's socket ([`write_to`]). Does not: read the archive, which
//! the worker of the import does, or store it: it is passed on as it arrives.

#![forbid(unsafe_code)]

mod containerd;
mod error;
mod http;
mod name;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::Path;

pub use error::ExportError;
pub use name::{BadSource, ImageName, Runtime, parse, unknown_transport};

/// Writes an image as an archive, as it arrives. Blocks until the end.
///
/// # Errors
/// [`ExportError`]; then `out` has a part of the archive, or nothing.
pub fn write_to(image: &ImageName, socket: &Path, out: &mut impl Write) -> Result<(), ExportError> {
    let threads = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ExportError::Client)?;
    threads.block_on(async {
        match image.runtime() {
            Runtime::Docker | Runtime::Podman => http::transfer(image, socket, out).await,
            Runtime::Containerd => containerd::transfer(image, socket, out).await,
        }
    })
}

fn unreachable(runtime: Runtime, socket: &Path, source: io::Error) -> ExportError {
    let socket = socket.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ExportError::NotRunning { runtime, socket },
        _ => ExportError::Connect { runtime, socket, source },
    }
}
