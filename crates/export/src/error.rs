//! Errors of a container runtime, with hints.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use bulkhead_core::error::{Code, Fault, chain};

use crate::name::{ImageName, Runtime};

/// Limit of a message that is shown, characters.
const SHOWN: usize = 300;

/// A runtime's words, shortened, with control characters escaped.
pub(crate) fn shown(text: &str) -> String {
    text.trim().chars().take(SHOWN).flat_map(char::escape_debug).collect()
}

/// Why a runtime does not provide an image.
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
    #[error("{runtime} refused the request with status {status}: {message}")]
    Refused {
        /// The runtime.
        runtime: Runtime,
        /// The status of HTTP or gRPC.
        status: String,
        /// Its words, with control characters escaped.
        message: String,
    },
    /// The answer is not one of HTTP or gRPC, or the connection ended within it.
    #[error("the answer ended early, or the service on that socket is not {runtime}")]
    Answer {
        /// The runtime.
        runtime: Runtime,
        /// The error of the client.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The content store has no image for any platform.
    #[error("containerd does not have all of the image: {digest} is missing")]
    Incomplete {
        /// The first blob that is missing.
        digest: String,
    },
    /// A blob, or what describes it, is malformed.
    #[error("{digest} is malformed: {cause}")]
    Blob {
        /// The digest, or the name of the image.
        digest: String,
        /// What is wrong.
        cause: String,
    },
    /// The documents of an image exceed the limits.
    #[error("the image's indexes and manifests are larger than 64 MiB, or nested deeper than 4 levels")]
    TooLarge,
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
            Self::NotRunning { runtime: Runtime::Containerd, .. } => {
                (Code::Unavailable, "start it: `systemctl start containerd`, or specify its socket".to_owned())
            }
            Self::NoImage { runtime: Runtime::Containerd, .. } => (
                Code::NotFound,
                format!(
                    "`ctr -n {} images ls` lists the images; use `--containerd-namespace k8s.io` for images of Kubernetes, \
                     `moby` for those of Docker",
                    image.namespace()
                ),
            ),
            Self::NoImage { .. } => {
                (Code::NotFound, format!("`{command} pull {}`; `{command} images` lists the images", image.name()))
            }
            Self::Refused { runtime: Runtime::Containerd, .. } => {
                (Code::Unavailable, format!("try `ctr -n {} images export`", image.namespace()))
            }
            Self::Refused { .. } => (Code::Unavailable, format!("try `{command} save {}`", image.name())),
            Self::Answer { .. } => {
                (Code::Unavailable, format!("the log of {} has the cause; try again", image.runtime()))
            }
            Self::Incomplete { .. } => (
                Code::NotFound,
                format!(
                    "fetch it: `ctr -n {} content fetch {}`; with `discard_unpacked_layers = true`, containerd does \
                     not keep layers",
                    image.namespace(),
                    image.full_name()
                ),
            ),
            Self::Blob { .. } | Self::TooLarge => {
                (Code::Corrupt, "remove the image from containerd, and pull it again".to_owned())
            }
            Self::Output(_) | Self::Client(_) => (Code::Internal, "try again".to_owned()),
        };
        Fault::new(code, format!("source {image}"), chain(self)).hint(hint)
    }
}
