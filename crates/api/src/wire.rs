//! Requests and answers of the daemon's API, by subject. docs/openapi.json is generated from them.
//!
//! Owns: their JSON. Does not: decide anything. Values that the daemon bases decisions on are types of `bulkhead-core`, re-exported
//! here.

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

pub use self::devices::{CostsStore, DeviceArbiter, DeviceControl, DeviceMeasure, DeviceView, HostView};
pub use self::holds::{HoldStart, HoldTenant, HoldView, StandingView};
pub use self::images::ImageImport;
pub use self::jobs::{JobResult, JobState, JobView};
pub use self::observation::{CausesView, CommitView, CulpritView, Observation, WaitList, WaitView};
pub use self::pools::{NewPoolSource, PoolCreate, PoolMove, PoolView};
pub use self::tenants::{
    IoBytes, LeaseCreate, LeaseReply, LeaseView, ProfileStore, RunStart, RunView, TenantCreate, TenantSet, TenantView,
};
pub use self::transfers::{ReceiveView, ResumeToken, VolumeSend};
pub use self::volumes::{
    HeatRow, TrimView, VolumeCheck, VolumeCopy, VolumeCreate, VolumeFlatten, VolumeResize, VolumeRollback, VolumeView,
};

/// Request header with a UUID that the client chooses, by which it finds the request's job.
pub const REQUEST_HEADER: &str = "bulkhead-request";

/// Response header with the number of the job that a stream belongs to, sent with status 101.
pub const JOB_HEADER: &str = "bulkhead-job";

/// Protocol that a connection is upgraded to (RFC 9110, 7.8): the bytes of one stream, until the connection is closed.
pub const STREAM_PROTOCOL: &str = "bulkhead-stream";

/// The result of an operation: the object, and the steps that were carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Done<T> {
    /// The object after the operation; can be absent in a dry run and after a removal.
    pub object: Option<T>,
    /// The steps, in order; empty if nothing had to be changed.
    pub steps: Vec<Applied>,
    /// Whether this was a dry run, so that nothing was changed.
    pub dry_run: bool,
}
