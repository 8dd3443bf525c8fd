//! Jobs: operations in progress, and their results.

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

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It waits for other operations on the same objects.
    Waiting,
    /// It is in progress.
    Running,
    /// It succeeded.
    Done,
    /// It failed.
    Failed,
    /// It was cancelled, and what it had done was undone.
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

/// An operation that is in progress or ended recently.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    /// Number of the job. Numbers start again at 1 when the daemon restarts.
    pub id: u64,
    /// The operation, for example `remove volume db/data`.
    pub operation: String,
    /// The client's ID of the request, from the header `Bulkhead-Request`, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Uuid>,
    /// The objects that it changes; other operations on them wait until it ends.
    pub objects: Vec<String>,
    /// Its state.
    pub state: JobState,
    /// The current step, or the last one if it has ended.
    pub step: Option<String>,
    /// How long it has been at that step, in seconds.
    pub step_seconds: f64,
    /// Its duration so far, or in total if it has ended, in seconds.
    pub seconds: f64,
    /// How long ago it ended, in seconds.
    pub ended_seconds_ago: Option<f64>,
    /// Numbers of the jobs that it waits for.
    pub waits_for: Vec<u64>,
    /// The error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// The bytes that it has processed, if it reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<JobProgress>,
    /// The number of steps that it has completed, if it reports them; `step` is the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<JobSteps>,
    /// Measurements so far, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<String>,
    /// Its result, if its request was answered before it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JobResult>,
}

/// The result of a job whose request was answered before it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobResult {
    /// A snapshot was sent.
    Sent {
        /// Bytes that were read from the snapshot.
        read_bytes: Bytes,
    },
    /// A snapshot was received, and is now a volume.
    Received(Box<Done<VolumeView>>),
    /// An image was imported.
    Imported {
        /// The snapshot.
        done: Box<Done<VolumeView>>,
        /// ID of its base.
        content: Uuid,
        /// Number of entries in it: files, directories, links and so on.
        entries: u64,
        /// Extended attributes of the source that were omitted.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<LeftOut>,
    },
    /// A device was measured, and its calibration is stored.
    Calibrated(Box<Done<DeviceView>>),
    /// The effect of a device's stored calibration was measured.
    Verified(Vec<Verified>),
}
