//! Requests about imports of images.

use std::path::PathBuf;

use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Imports a tar archive, or an image in an archive of an OCI image layout or of `docker save`, as a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageImport {
    /// Name of the archive, for messages.
    pub source: String,
    /// Size of the snapshot in bytes, rounded up to whole blocks. Default: about twice the size of its content.
    #[serde(default)]
    pub size_bytes: Option<Bytes>,
    /// Selects one of several images by platform, `OS/ARCHITECTURE[/VARIANT]`. Default: this host's.
    #[serde(default)]
    pub platform: Option<String>,
    /// Selects one of several images by name, tag or digest.
    #[serde(default)]
    pub reference: Option<String>,
    /// Refuse a source with extended attributes that cannot be kept. Default: false, which omits and lists them.
    #[serde(default)]
    pub strict: bool,
    /// Temporary directory on the host for unpacking archives. Only root may be able to replace files in it. Default: `/var/tmp`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub staging: Option<PathBuf>,
    /// The tenant to charge for the work. Default: none, at the lowest priority. The snapshot is not attached to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Name>,
}
