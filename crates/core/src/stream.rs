//! What a stream of a snapshot contains, as the sender announces it: the header of the stream, and of the API's resume token.
//!
//! Does not: know the stream's bytes, which are in the crate `formats`.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::FsKind;
use crate::units::Bytes;

/// What a stream is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StreamHeader {
    /// What is sent, wherever it is: the UUID of its newest layer, or of a snapshot on a thin pool. What it holds never changes.
    pub content: Uuid,
    /// What the receiver must have already, for only what differs from that is sent; `null` when all is sent.
    pub base: Option<Uuid>,
    /// Size of the snapshot.
    pub size_bytes: Bytes,
    /// Where this stream begins; not at 0 when another one was interrupted there.
    pub start_bytes: Bytes,
    /// How much data follows, at most.
    pub data_bytes: Bytes,
    /// The file system in it.
    pub fs: FsKind,
    /// What it was called where it was sent.
    pub snapshot: String,
}
