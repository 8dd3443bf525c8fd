//! Names of images in a container runtime: `docker-daemon:NAME`, as skopeo has it, and `podman:NAME`. Everything else is a path.

use std::fmt;

use bulkhead_core::error::{Code, Fault};

/// Limit of a name, bytes. Docker allows 255 for a repository, 128 for a tag, and a digest.
const MAX_NAME: usize = 512;

/// The transports of skopeo and others that have no meaning here, with what is meant.
const OTHERS: [(&str, &str); 9] = [
    ("docker", "pull the image, and specify `docker-daemon:NAME` or `podman:NAME`; nothing is pulled from a registry"),
    (
        "registry",
        "pull the image, and specify `docker-daemon:NAME` or `podman:NAME`; nothing is pulled from a registry",
    ),
    ("containers-storage", "for images of Podman: `podman:NAME`, with `podman.socket` started"),
    ("containerd", "import the output of `ctr images export - NAME` through a pipe, as /dev/stdin"),
    ("oci", "specify the path of the layout without `oci:`"),
    ("oci-archive", "specify the path of the archive without `oci-archive:`"),
    ("docker-archive", "specify the path of the archive without `docker-archive:`"),
    ("dir", "specify an OCI layout (`skopeo copy … oci:PATH`) by its path"),
    ("tarball", "specify the path of the archive without `tarball:`"),
];

/// A container runtime with Docker's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// Docker, `docker-daemon:`.
    Docker,
    /// Podman's service, `podman:`.
    Podman,
}

impl Runtime {
    /// The default path of its socket.
    #[must_use]
    pub fn socket(self) -> &'static str {
        match self {
            Self::Docker => "/run/docker.sock",
            Self::Podman => "/run/podman/podman.sock",
        }
    }

    /// The prefix of its images, without the colon.
    fn transport(self) -> &'static str {
        match self {
            Self::Docker => "docker-daemon",
            Self::Podman => "podman",
        }
    }

    /// Its command.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        })
    }
}

/// The name of an image in a runtime, in characters that a URL's path can have as they are, without empty or dotted components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageName {
    runtime: Runtime,
    name: String,
}

impl ImageName {
    /// The runtime that has the image.
    #[must_use]
    pub fn runtime(&self) -> Runtime {
        self.runtime
    }

    /// The name in the runtime: with or without registry and tag, or an ID.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.runtime.transport(), self.name)
    }
}

/// Why a source is neither a path nor the name of an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSource {
    /// The name is malformed.
    #[error(
        "{0:?} is not the name of an image: names have letters, digits and \"-_.+/:@\", and at most {MAX_NAME} bytes"
    )]
    Name(String),
    /// The transport of another program.
    #[error("images cannot be imported by {transport:?}")]
    Transport {
        /// The transport, without the colon.
        transport: String,
        /// The form to use in its place.
        hint: &'static str,
    },
}

impl BadSource {
    /// Converts the error to a fault about `source`.
    #[must_use]
    pub fn fault(&self, source: &str) -> Fault {
        let hint = match self {
            Self::Name(_) => "for example docker-daemon:debian:13 or podman:localhost/web",
            Self::Transport { hint, .. } => hint,
        };
        let hint = format!("{hint}; for a file of that name: ./{source}");
        Fault::new(Code::InvalidArgument, format!("source {source:?}"), self).hint(hint)
    }
}

/// The image that a source names; `None` if the source is a path. A path that begins like a transport is written with `./`.
///
/// # Errors
/// [`BadSource`].
pub fn parse(source: &str) -> Result<Option<ImageName>, BadSource> {
    let Some((transport, name)) = source.split_once(':') else { return Ok(None) };
    let Some(runtime) = [Runtime::Docker, Runtime::Podman].into_iter().find(|known| known.transport() == transport)
    else {
        return match OTHERS.iter().find(|(other, _)| *other == transport) {
            Some((_, hint)) => Err(BadSource::Transport { transport: transport.to_owned(), hint }),
            None => Ok(None),
        };
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.+/:@".contains(c);
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    if name.len() > MAX_NAME || !name.chars().all(is_plain) || !name.split('/').all(is_part) {
        return Err(BadSource::Name(name.chars().take(MAX_NAME).collect()));
    }
    Ok(Some(ImageName { runtime, name: name.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_selects_the_runtime_and_all_else_is_a_path() {
        for (source, runtime, name) in [
            ("docker-daemon:debian", Runtime::Docker, "debian"),
            ("docker-daemon:debian:13", Runtime::Docker, "debian:13"),
            ("docker-daemon:sha256:0123", Runtime::Docker, "sha256:0123"),
            ("podman:localhost:5000/a/b:1", Runtime::Podman, "localhost:5000/a/b:1"),
        ] {
            let found = parse(source).unwrap().unwrap();
            assert_eq!((found.runtime(), found.name(), found.to_string().as_str()), (runtime, name, source));
        }
        for path in ["rootfs", "/dev/stdin", "./docker-daemon:debian", "a/docker:b", "strange:name", ":", ""] {
            assert_eq!(parse(path), Ok(None), "{path}");
        }
    }

    #[test]
    fn names_that_would_change_the_request_are_refused() {
        for name in ["", "a b", "a/../b", "..", "a//b", "/a", "a/", "a?b", "a#b", "a%2fb", "a\r\nHost: b", "ä"] {
            let error = parse(&format!("docker-daemon:{name}")).unwrap_err();
            assert_eq!(error, BadSource::Name(name.to_owned()));
        }
        assert!(parse(&format!("podman:{}", "a".repeat(MAX_NAME + 1))).is_err());
    }

    #[test]
    fn transports_of_other_programs_are_refused_with_the_form_to_use() {
        for (source, hint) in [
            ("docker://debian", "docker-daemon:NAME"),
            ("docker:debian", "docker-daemon:NAME"),
            ("containers-storage:debian", "podman:NAME"),
            ("containerd:debian", "ctr images export"),
            ("oci:layout", "without `oci:`"),
        ] {
            let fault = parse(source).unwrap_err().fault(source);
            assert_eq!(fault.code, Code::InvalidArgument);
            assert!(fault.hint.contains(hint) && fault.hint.contains("./"), "{fault:?}");
        }
    }
}
