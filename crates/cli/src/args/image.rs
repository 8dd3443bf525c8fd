//! Arguments of `bulkhead image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Write;

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Import a directory, a tar archive or an image as a base snapshot to clone (directory pools)
    ///
    /// Identical sources result in identical bases.
    Import(ImageImportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ImageImportArgs {
    /// Directory; tar archive (plain, gzip, zstd); OCI image layout or output of `docker save` (directory or tar archive); or an image of a
    /// running engine: docker-daemon:NAME, podman:NAME, containerd:NAME
    pub(crate) source: PathBuf,
    /// Snapshot to create: POOL/VOLUME
    pub(crate) volume: String,
    /// Size of the snapshot, for example 10G [default: about twice the size of its content]. Clones can be made larger
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) size: Option<String>,
    /// Select one of several images: OS/ARCHITECTURE[/VARIANT] [default: this host's]
    #[arg(long)]
    pub(crate) platform: Option<String>,
    /// Select one of several images by name, tag or digest, for example alpine:3.20
    #[arg(long, value_name = "NAME")]
    pub(crate) reference: Option<String>,
    /// Refuse a source with extended attributes that cannot be kept; otherwise these are omitted and listed
    #[arg(long)]
    pub(crate) strict: bool,
    /// Socket of the Docker, Podman or containerd that has the image [default: /run/docker.sock, /run/podman/podman.sock,
    /// /run/containerd/containerd.sock]
    #[arg(long, value_name = "PATH")]
    pub(crate) runtime_socket: Option<PathBuf>,
    /// Namespace of containerd that has the image, for example k8s.io [default: default]
    #[arg(long, value_name = "NAME")]
    pub(crate) containerd_namespace: Option<String>,
    /// Temporary directory for unpacking archives
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub(crate) staging: PathBuf,
    /// Tenant to charge for the daemon's part of the work; the snapshot is not attached to it [default: none, at the lowest priority]
    #[arg(long, value_name = "NAME")]
    pub(crate) tenant: Option<String>,
    #[command(flatten)]
    pub(crate) write: Write,
}
