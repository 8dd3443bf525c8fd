//! Images that are imported.

use std::path::PathBuf;

use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Makes a snapshot of a tar archive, or of an image in one that is an OCI layout or what `docker save` writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageImport {
    /// What the archive is called, for messages.
    pub source: String,
    /// The size of the snapshot, rounded up to whole blocks; about twice what is in it when left out.
    #[serde(default)]
    pub size_bytes: Option<Bytes>,
    /// Which image of several: `OS/ARCHITECTURE[/VARIANT]`; what this host runs when left out.
    #[serde(default)]
    pub platform: Option<String>,
    /// Which image of several, by its name, its tag or its digest.
    #[serde(default)]
    pub reference: Option<String>,
    /// Refuses a source of which not all extended attributes can be kept, which are left out otherwise.
    #[serde(default)]
    pub strict: bool,
    /// The directory of the host in which archives are unpacked on the way, `/var/tmp` when left out. Nobody but root may be able to
    /// replace what is in it.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub staging: Option<PathBuf>,
    /// The tenant that is charged for the work; without one, nobody is, and it has the lowest priority. The snapshot is not attached to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Name>,
}
