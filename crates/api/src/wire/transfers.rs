//! Requests and answers about transfers of snapshots.

use std::path::PathBuf;

use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// Sends a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeSend {
    /// A snapshot in the same pool that the receiver has already: only the difference from it is sent. Default: none, which sends the
    /// snapshot in full.
    #[serde(default)]
    pub from: Option<Name>,
    /// Resume an interrupted transfer of the same snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<ResumeToken>,
}

/// The point from which to resume an interrupted transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeToken {
    /// ID of the content that was being sent.
    pub content: Uuid,
    /// ID of the layer that it is based on, if any.
    #[serde(default)]
    pub base: Option<Uuid>,
    /// Offset up to which it was received, bytes.
    pub received_bytes: Bytes,
}

impl From<&ReceiveView> for ResumeToken {
    fn from(view: &ReceiveView) -> Self {
        Self { content: view.content, base: view.base, received_bytes: view.received_bytes }
    }
}

/// An unfinished transfer to a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceiveView {
    /// The volume that it will become.
    pub volume: VolumeRef,
    /// ID of the content.
    pub content: Uuid,
    /// ID of the layer that it is based on, if any.
    pub base: Option<Uuid>,
    /// Size of the volume, bytes.
    pub size_bytes: Bytes,
    /// Offset up to which it was received, bytes; a crash does not lose data before it.
    pub received_bytes: Bytes,
    /// Its staging file.
    #[schema(value_type = String)]
    pub part: PathBuf,
}
