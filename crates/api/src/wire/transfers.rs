//! Snapshots that are sent and received.

use std::path::PathBuf;

use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// Has a snapshot made ready to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeSend {
    /// A snapshot in the same pool that the receiver has: only what differs from it is sent.
    #[serde(default)]
    pub from: Option<Name>,
    /// Begin where an earlier transfer of the same was interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<ResumeToken>,
}

/// Where an interrupted transfer goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeToken {
    /// What was being sent.
    pub content: Uuid,
    /// What that was based on.
    #[serde(default)]
    pub base: Option<Uuid>,
    /// Up to where it was received.
    pub received_bytes: Bytes,
}

impl From<&ReceiveView> for ResumeToken {
    fn from(view: &ReceiveView) -> Self {
        Self { content: view.content, base: view.base, received_bytes: view.received_bytes }
    }
}

/// A snapshot that is being received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceiveView {
    /// The volume that it becomes.
    pub volume: VolumeRef,
    /// What is received.
    pub content: Uuid,
    /// The layer that it is based on.
    pub base: Option<Uuid>,
    /// Its size.
    pub size_bytes: Bytes,
    /// Everything before this offset is there, after a crash too.
    pub received_bytes: Bytes,
    /// The file into which it is received.
    #[schema(value_type = String)]
    pub part: PathBuf,
}
