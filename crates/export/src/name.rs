//! Names of images in a container runtime: `docker-daemon:NAME`, as skopeo has it, `podman:NAME` and `containerd:NAME`. Everything else is
//! a path.

use std::fmt;

use bulkhead_core::error::{Code, Fault};

/// Limit of a name, bytes. Docker allows 255 for a repository, 128 for a tag, and a digest.
const MAX_NAME: usize = 512;

/// Limit of a namespace of containerd, bytes: its own.
const MAX_NAMESPACE: usize = 76;

/// The transports of skopeo and others that have no meaning here, with what is meant.
const OTHERS: [(&str, &str); 8] = [
    ("docker", "pull the image, and specify `docker-daemon:NAME` or `podman:NAME`; nothing is pulled from a registry"),
    (
        "registry",
        "pull the image, and specify `docker-daemon:NAME` or `podman:NAME`; nothing is pulled from a registry",
    ),
    ("containers-storage", "for images of Podman: `podman:NAME`, with `podman.socket` started"),
    ("oci", "specify the path of the layout without `oci:`"),
    ("oci-archive", "specify the path of the archive without `oci-archive:`"),
    ("docker-archive", "specify the path of the archive without `docker-archive:`"),
    ("dir", "specify an OCI layout (`skopeo copy … oci:PATH`) by its path"),
    ("tarball", "specify the path of the archive without `tarball:`"),
];

/// A container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// Docker, `docker-daemon:`.
    Docker,
    /// Podman's service, `podman:`.
    Podman,
    /// containerd, `containerd:`.
    Containerd,
}

const RUNTIMES: [Runtime; 3] = [Runtime::Docker, Runtime::Podman, Runtime::Containerd];

impl Runtime {
    /// The default path of its socket.
    #[must_use]
    pub fn socket(self) -> &'static str {
        match self {
            Self::Docker => "/run/docker.sock",
            Self::Podman => "/run/podman/podman.sock",
            Self::Containerd => "/run/containerd/containerd.sock",
        }
    }

    /// The prefix of its images, without the colon.
    fn transport(self) -> &'static str {
        match self {
            Self::Docker => "docker-daemon",
            Self::Podman => "podman",
            Self::Containerd => "containerd",
        }
    }

    /// Its command.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Containerd => "ctr",
        }
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
            Self::Containerd => "containerd",
        })
    }
}

/// The name of an image in a runtime, in characters that a URL's path can have as they are, without empty or dotted components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageName {
    runtime: Runtime,
    name: String,
    namespace: Option<String>,
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

    /// The same image in a namespace of containerd.
    ///
    /// # Errors
    /// [`BadSource`] for a malformed namespace, and an image of a runtime that has no namespaces.
    pub fn in_namespace(mut self, namespace: &str) -> Result<Self, BadSource> {
        if self.runtime != Runtime::Containerd {
            return Err(BadSource::NoNamespaces(self.runtime));
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if namespace.is_empty() || namespace.len() > MAX_NAMESPACE || !namespace.chars().all(is_plain) {
            return Err(BadSource::Namespace(namespace.chars().take(MAX_NAMESPACE).collect()));
        }
        self.namespace = Some(namespace.to_owned());
        Ok(self)
    }

    /// The namespace of containerd.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    /// The name with registry and tag, as containerd records it.
    pub(crate) fn full_name(&self) -> String {
        let has_registry =
            self.name.split_once('/').is_some_and(|(first, _)| first == "localhost" || first.contains(['.', ':']));
        let registry = match self.name.contains('/') {
            _ if has_registry => "",
            true => "docker.io/",
            false => "docker.io/library/",
        };
        let last = self.name.rsplit('/').next().unwrap_or_default();
        let tag = if last.contains([':', '@']) { "" } else { ":latest" };
        format!("{registry}{}{tag}", self.name)
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
    /// No such file, and no such transport.
    #[error("there is no such file, and {0:?} is not an image transport")]
    Unknown(String),
    /// The namespace is malformed.
    #[error("{0:?} is not a namespace: a namespace has letters, digits and \"-_.\", and at most {MAX_NAMESPACE} bytes")]
    Namespace(String),
    /// A namespace of a runtime that has none.
    #[error("{0} has no namespaces")]
    NoNamespaces(Runtime),
    /// The transport of another program.
    #[error("transport {transport:?} is not supported")]
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
            Self::Name(_) => {
                "for example docker-daemon:debian:13, podman:localhost/web or containerd:docker.io/library/debian:13"
            }
            Self::Unknown(_) => "images of a running runtime are docker-daemon:NAME, podman:NAME and containerd:NAME",
            Self::Namespace(_) => "for example k8s.io, moby or default",
            Self::NoNamespaces(_) => "omit --containerd-namespace, or specify containerd:NAME",
            Self::Transport { hint, .. } => hint,
        };
        let (code, hint) = match self {
            Self::Unknown(_) => (Code::NotFound, hint.to_owned()),
            _ => (Code::InvalidArgument, format!("{hint}; for a file of that name: ./{source}")),
        };
        Fault::new(code, format!("source {source:?}"), self).hint(hint)
    }
}

/// The image that a source names; `None` if the source is a path. A path that begins like a transport is written with `./`.
///
/// # Errors
/// [`BadSource`].
pub fn parse(source: &str) -> Result<Option<ImageName>, BadSource> {
    let Some((transport, name)) = source.split_once(':') else { return Ok(None) };
    let Some(runtime) = RUNTIMES.into_iter().find(|known| known.transport() == transport) else {
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
    Ok(Some(ImageName { runtime, name: name.to_owned(), namespace: None }))
}

/// The error for a path that does not exist and looks like the name of an image.
#[must_use]
pub fn unknown_transport(path: &str) -> Option<BadSource> {
    let (transport, _) = path.split_once(':')?;
    let is_transport = transport.starts_with(|c: char| c.is_ascii_lowercase())
        && transport.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    is_transport.then(|| BadSource::Unknown(transport.to_owned()))
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
            ("containerd:docker.io/library/debian:13", Runtime::Containerd, "docker.io/library/debian:13"),
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
    fn a_path_that_looks_like_a_transport_is_recognised() {
        let fault = unknown_transport("nerdctl:web").unwrap().fault("nerdctl:web");
        assert!(fault.code == Code::NotFound && fault.hint.contains("containerd:NAME"), "{fault:?}");
        for path in ["/srv/a:b", "./a:b", "rootfs", "C:x", "", ":"] {
            assert_eq!(unknown_transport(path), None, "{path}");
        }
    }

    #[test]
    fn a_short_name_has_a_full_one_in_containerd() {
        for (short, full) in [
            ("debian", "docker.io/library/debian:latest"),
            ("debian:13", "docker.io/library/debian:13"),
            ("bitnami/redis", "docker.io/bitnami/redis:latest"),
            ("localhost/web", "localhost/web:latest"),
            ("host:5000/web", "host:5000/web:latest"),
            ("registry.example/a/web:1", "registry.example/a/web:1"),
            ("debian@sha256:01", "docker.io/library/debian@sha256:01"),
        ] {
            assert_eq!(parse(&format!("containerd:{short}")).unwrap().unwrap().full_name(), full);
        }
    }

    #[test]
    fn a_namespace_is_checked_and_is_containerds_only() {
        let image = |source: &str| parse(source).unwrap().unwrap();
        assert_eq!(image("containerd:web").namespace(), "default");
        assert_eq!(image("containerd:web").in_namespace("k8s.io").unwrap().namespace(), "k8s.io");
        for namespace in ["", "a/b", "a b", "ä", "a\r\nb", &"a".repeat(MAX_NAMESPACE + 1)] {
            let error = image("containerd:web").in_namespace(namespace).unwrap_err();
            assert_eq!(error, BadSource::Namespace(namespace.chars().take(MAX_NAMESPACE).collect()));
        }
        let fault = image("podman:web").in_namespace("k8s.io").unwrap_err().fault("podman:web");
        assert!(fault.to_string().contains("Podman has no namespaces"), "{fault}");
    }

    #[test]
    fn transports_of_other_programs_are_refused_with_the_form_to_use() {
        for (source, hint) in [
            ("docker://debian", "docker-daemon:NAME"),
            ("docker:debian", "docker-daemon:NAME"),
            ("containers-storage:debian", "podman:NAME"),
            ("oci:layout", "without `oci:`"),
        ] {
            let fault = parse(source).unwrap_err().fault(source);
            assert_eq!(fault.code, Code::InvalidArgument);
            assert!(fault.hint.contains(hint) && fault.hint.contains("./"), "{fault:?}");
        }
    }
}
