//! The header of a snapshot's stream, which is also the content of the API's resume token.
//!
//! Does not: define the bytes of a stream; the crate `formats` does.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::VolumeFs;
use crate::units::Bytes;

/// The header of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StreamHeader {
    /// The content of the snapshot: the UUID of its newest layer, or of a snapshot on a thin pool. It is the same on
    /// all hosts, and never changes.
    pub content: Uuid,
    /// The content that the receiver must have, for an incremental stream; `null` for a full one.
    pub base: Option<Uuid>,
    /// Size of the snapshot.
    pub size_bytes: Bytes,
    /// Offset at which this stream starts; not 0 if it resumes an interrupted one.
    pub start_bytes: Bytes,
    /// Upper limit of the data that follows.
    pub data_bytes: Bytes,
    /// Its file system; none for a raw volume.
    pub fs: VolumeFs,
    /// The snapshot's name on the sending host.
    pub snapshot: String,
}
