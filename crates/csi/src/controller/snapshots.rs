//! Snapshots: created, deleted, and as CSI shows them.

use bulkhead_api::client::Removal;
use bulkhead_api::wire::{VolumeCopy, VolumeView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::VolumeRef;
use prost_types::Timestamp;

use super::{Controller, OWN};
use crate::capacity::signed;
use crate::names;
use crate::proto::{CreateSnapshotRequest, Snapshot};

impl Controller {
    /// `CreateSnapshot`. The same request again finds it.
    pub(super) async fn snapshot(&self, request: &CreateSnapshotRequest) -> Result<Snapshot, Fault> {
        let name = names::of_snapshot(&request.name)?;
        let source = self.inspect("source_volume_id", &request.source_volume_id).await?;
        // A name is unique among the snapshots of all pools.
        let is_own = |view: &VolumeView| view.read_only && view.created_by == OWN;
        let found = self.daemon.volumes_named(&name, false).await?.into_iter().find(is_own);
        if let Some(found) = &found
            && Self::source_of(found) != names::id(&source.volume)
        {
            let cause = format!("a snapshot of that name exists, of volume {}", Self::source_of(found));
            return Err(Fault::new(Code::AlreadyExists, format!("snapshot {:?}", request.name), cause));
        }
        let copy = VolumeCopy { created_by: OWN, ..VolumeCopy::new(name.clone(), true) };
        let done = self.daemon.volume_copy(&source.volume, &copy, false).await?;
        let made = VolumeRef { pool: source.volume.pool.clone(), name };
        Ok(self.snapshot_of(&self.view(&made, done.object).await?))
    }

    /// `DeleteSnapshot`. Succeeds if there is no such snapshot.
    pub(super) async fn delete_snapshot(&self, id: &str) -> Result<(), Fault> {
        let Some(snapshot) = names::parse_id("snapshot_id", id)? else { return Ok(()) };
        match self.daemon.volume_inspect(&snapshot).await {
            Err(fault) if fault.code == Code::NotFound => Ok(()),
            Err(fault) => Err(fault),
            // Another driver's, an operator's, or a volume: not a snapshot that this id could have been given to.
            Ok(view) if view.created_by != OWN || !view.read_only => {
                Err(Fault::new(Code::InvalidArgument, format!("snapshot {id}"), "it is not a snapshot of this driver"))
            }
            Ok(_) => self.daemon.volume_remove(&snapshot, Removal::default()).await.map(drop),
        }
    }

    /// The id of the volume that a snapshot was made of.
    pub(super) fn source_of(view: &VolumeView) -> String {
        let source = |name| VolumeRef { pool: view.volume.pool.clone(), name };
        view.origin.clone().map(|name| names::id(&source(name))).unwrap_or_default()
    }

    pub(super) fn snapshot_of(&self, view: &VolumeView) -> Snapshot {
        let created = view.created_unix_seconds.and_then(|seconds| i64::try_from(seconds).ok());
        Snapshot {
            size_bytes: signed(view.size_bytes),
            snapshot_id: names::id(&view.volume),
            source_volume_id: Self::source_of(view),
            creation_time: created.map(|seconds| Timestamp { seconds, nanos: 0 }),
            ready_to_use: true,
            group_snapshot_id: String::new(),
            accessible_topology: vec![self.topology()],
        }
    }
}
