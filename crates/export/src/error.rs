//! Errors of a container runtime, with hints.

use std::io;
use std::path::PathBuf;

use bulkhead_core::error::{Code, Fault, chain};

use crate::name::{ImageName, Runtime};

/// Why an image cannot be had from a runtime.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Nothing listens on the socket.
    #[error("{runtime} is not running: nothing listens on {socket}", socket = socket.display())]
    NotRunning {
        /// The runtime.
        runtime: Runtime,
        /// Its socket.
        socket: PathBuf,
    },
    /// The socket cannot be connected to.
    #[error("cannot connect to {runtime} on {socket}", socket = socket.display())]
    Connect {
        /// The runtime.
        runtime: Runtime,
        /// Its socket.
        socket: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The runtime has no image of that name.
    #[error("{runtime} has no such image: {message}")]
    NoImage {
        /// The runtime.
        runtime: Runtime,
        /// Its words, with control characters escaped.
        message: String,
    },
    /// The runtime refused the request.
    #[error("{runtime} refused it with status {status}: {message}")]
    Refused {
        /// The runtime.
        runtime: Runtime,
        /// The status of HTTP.
        status: u16,
        /// Its words, with control characters escaped.
        message: String,
    },
    /// The answer is not one of HTTP, or the connection ended within it.
    #[error("{runtime} ended the answer early, or does not speak Docker's API")]
    Answer {
        /// The runtime.
        runtime: Runtime,
        /// The error of the HTTP client.
        #[source]
        source: hyper::Error,
    },
    /// The archive cannot be passed on.
    #[error("cannot write the archive")]
    Output(#[source] io::Error),
    /// This process cannot wait for the runtime.
    #[error("cannot start a client")]
    Client(#[source] io::Error),
}

impl ExportError {
    /// Converts the error to a fault about the image.
    #[must_use]
    pub fn fault(&self, image: &ImageName) -> Fault {
        let command = image.runtime().command();
        let (code, hint) = match self {
            Self::NotRunning { runtime: Runtime::Docker, .. } => {
                (Code::Unavailable, "start it: `systemctl start docker`, or specify its socket".to_owned())
            }
            Self::NotRunning { runtime: Runtime::Podman, .. } => (
                Code::Unavailable,
                "start its service: `systemctl start podman.socket`, or specify its socket".to_owned(),
            ),
            Self::Connect { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => (
                Code::PermissionDenied,
                "run this as root, or as a member of the group that the socket belongs to".to_owned(),
            ),
            Self::Connect { .. } => (Code::Unavailable, "specify the path of its socket".to_owned()),
            Self::NoImage { .. } => {
                (Code::NotFound, format!("`{command} pull {}`; `{command} images` lists what there is", image.name()))
            }
            Self::Refused { .. } => (Code::Unavailable, format!("try `{command} save {}`", image.name())),
            Self::Answer { .. } => {
                (Code::Unavailable, format!("the log of {} has the cause; try again", image.runtime()))
            }
            Self::Output(_) | Self::Client(_) => (Code::Internal, "try again".to_owned()),
        };
        Fault::new(code, format!("source {image}"), chain(self)).hint(hint)
    }
}
