//! Requests and answers of the daemon's API (docs/openapi.json is generated from them), by what they are about.
//!
//! Owns: what JSON shows. Does not: decide anything. The values in it by which the daemon decides are those of `bulkhead-core`, and
//! are exported here as well.

mod devices;
mod holds;
mod images;
mod jobs;
mod observation;
mod pools;
mod tenants;
mod transfers;
mod volumes;

use bulkhead_core::action::Applied;
pub use bulkhead_core::base::LeftOut;
pub use bulkhead_core::cow::{LayerView, LayersView};
pub use bulkhead_core::isolation::Verified;
pub use bulkhead_core::journal::{Accounting, JournalSize};
pub use bulkhead_core::observe::activity::{
    BlameView, ContainerView, DeviceShare, DeviceTime, FileSystemShare, FileSystemView, JournalBytes, LossView,
};
pub use bulkhead_core::work::{JobProgress, JobSteps};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::devices::{DeviceControl, DeviceMeasure, DeviceView, HostView};
pub use self::holds::{HoldStart, HoldTenant, HoldView, StandingView};
pub use self::images::ImageImport;
pub use self::jobs::{JobResult, JobState, JobView};
pub use self::observation::{CausesView, CommitView, CulpritView, Observation, WaitList, WaitView};
pub use self::pools::{NewPoolSource, PoolCreate, PoolMove, PoolView};
pub use self::tenants::{
    IoBytes, LeaseCreate, LeaseReply, LeaseView, RunStart, RunView, TenantCreate, TenantSet, TenantView,
};
pub use self::transfers::{ReceiveView, ResumeToken, VolumeSend};
pub use self::volumes::{
    HeatRow, TrimView, VolumeCheck, VolumeCopy, VolumeCreate, VolumeFlatten, VolumeResize, VolumeRollback, VolumeView,
};

/// Header in which a client gives its request a UUID, by which it finds the request's job.
pub const REQUEST_HEADER: &str = "bulkhead-request";

/// Header in which the daemon says which job a stream belongs to, where it switches protocols.
pub const JOB_HEADER: &str = "bulkhead-job";

/// The protocol that a connection is switched to (RFC 9110, 7.8): the bytes of a stream, and nothing else, until it is closed.
pub const STREAM_PROTOCOL: &str = "bulkhead-stream";

/// What happened: the object as it is now, and the steps that were taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Done<T> {
    /// The object after the operation; in a dry run and after a removal there may be none.
    pub object: Option<T>,
    /// The steps; empty when everything was as asked for already.
    pub steps: Vec<Applied>,
    /// Whether this was a dry run.
    pub dry_run: bool,
}
