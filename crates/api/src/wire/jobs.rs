//! Jobs: operations that are going on, and what came of them.

use std::fmt;

use bulkhead_core::base::LeftOut;
use bulkhead_core::error::Fault;
use bulkhead_core::isolation::Verified;
use bulkhead_core::units::Bytes;
use bulkhead_core::work::{JobProgress, JobSteps};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{DeviceView, Done, VolumeView};

/// How an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It waits for other operations on the same objects.
    Waiting,
    /// It goes on.
    Running,
    /// It succeeded.
    Done,
    /// It failed.
    Failed,
    /// It was cancelled, and what it had begun was undone.
    Cancelled,
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            JobState::Waiting => "waiting",
            JobState::Running => "running",
            JobState::Done => "done",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        })
    }
}

/// An operation that is under way, or ended lately. Numbers begin anew with the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    /// Its number.
    pub id: u64,
    /// What it does, for example `remove volume db/data`.
    pub operation: String,
    /// What the client gave in the header `Bulkhead-Request`, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Uuid>,
    /// What it changes; nobody else changes that meanwhile.
    pub objects: Vec<String>,
    /// How it is.
    pub state: JobState,
    /// The step that it is at, or was at when it ended.
    pub step: Option<String>,
    /// For how long it has been at that step.
    pub step_seconds: f64,
    /// For how long it has been going on, or did.
    pub seconds: f64,
    /// How long ago it ended.
    pub ended_seconds_ago: Option<f64>,
    /// The jobs that have what it wants.
    pub waits_for: Vec<u64>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// How far it is, where that is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<JobProgress>,
    /// How many steps it has done, where that is told: `step` is the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<JobSteps>,
    /// What it has measured so far, a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<String>,
    /// What came of it, where its request was answered before its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JobResult>,
}

/// What came of a job whose request was answered before its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobResult {
    /// A snapshot was sent.
    Sent {
        /// What was read of it.
        read_bytes: Bytes,
    },
    /// A snapshot was received, and is a volume now.
    Received(Box<Done<VolumeView>>),
    /// An image was imported.
    Imported {
        /// The volume.
        done: Box<Done<VolumeView>>,
        /// The base that it lies on.
        content: Uuid,
        /// How many files, directories and so on are in it.
        entries: u64,
        /// Extended attributes of the source that it does not have.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<LeftOut>,
    },
    /// A device was measured, and what was found is recorded.
    Calibrated(Box<Done<DeviceView>>),
    /// It was measured what the recorded calibration of a device does.
    Verified(Vec<Verified>),
}
