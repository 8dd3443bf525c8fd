//! Calls that are about volumes: their life, copies, transfers and repair.

use bulkhead_core::error::Fault;
use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use bulkhead_core::stream::StreamHeader;

use super::{Client, Removal, Streamed, dry};
use crate::routes::{self, NoQuery, Receive, VolumeFilter};
use crate::wire::{
    Done, HeatRow, ImageImport, ReceiveView, TrimView, VolumeCheck, VolumeCopy, VolumeCreate, VolumeFlatten,
    VolumeResize, VolumeRollback, VolumeSend, VolumeView,
};

/// Volumes.
#[expect(clippy::missing_errors_doc, reason = "documented once, at the first `impl` block of `Client`")]
impl Client {
    /// Lists the volumes of all pools, or of one.
    pub async fn volume_list(&self, pool: Option<&Name>) -> Result<Vec<VolumeView>, Fault> {
        self.query(routes::volume_list(), &(), VolumeFilter { pool: pool.cloned(), ..VolumeFilter::default() }).await
    }

    /// The volumes of a name in all pools; if `complete`, fails with the error of a pool that cannot be read.
    pub async fn volumes_named(&self, name: &Name, complete: bool) -> Result<Vec<VolumeView>, Fault> {
        let filter = VolumeFilter { pool: None, name: Some(name.clone()), complete };
        self.query(routes::volume_list(), &(), filter).await
    }

    /// Creates a volume.
    pub async fn volume_create(&self, request: &VolumeCreate, dry_run: bool) -> Result<Done<VolumeView>, Fault> {
        self.submit(routes::volume_create(), &(), dry(dry_run), request).await
    }

    /// Shows a volume.
    pub async fn volume_inspect(&self, volume: &VolumeRef) -> Result<VolumeView, Fault> {
        self.query(routes::volume_inspect(), volume, NoQuery {}).await
    }

    /// Removes a volume and its data.
    pub async fn volume_remove(&self, volume: &VolumeRef, how: Removal) -> Result<Done<VolumeView>, Fault> {
        self.submit(routes::volume_remove(), volume, how.into(), &()).await
    }

    /// Resizes a volume, its journal, or both.
    pub async fn volume_resize(
        &self,
        volume: &VolumeRef,
        request: &VolumeResize,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        self.submit(routes::volume_resize(), volume, dry(dry_run), request).await
    }

    /// Creates a snapshot or a clone.
    pub async fn volume_copy(
        &self,
        volume: &VolumeRef,
        request: &VolumeCopy,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        self.submit(routes::volume_copy(), volume, dry(dry_run), request).await
    }

    /// Shows from where volumes have read the blocks that they share.
    pub async fn heatmap(&self) -> Result<Vec<HeatRow>, Fault> {
        self.query(routes::heatmap(), &(), NoQuery {}).await
    }

    /// Reverts a volume to one of its snapshots.
    pub async fn volume_rollback(
        &self,
        volume: &VolumeRef,
        request: &VolumeRollback,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        self.submit(routes::volume_rollback(), volume, dry(dry_run), request).await
    }

    /// Starts or stops copying the blocks that a volume shares into its own image.
    pub async fn volume_flatten(
        &self,
        volume: &VolumeRef,
        request: &VolumeFlatten,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        self.submit(routes::volume_flatten(), volume, dry(dry_run), request).await
    }

    /// Sends a snapshot: the caller reads it from the stream.
    pub async fn volume_send(
        &self,
        volume: &VolumeRef,
        request: &VolumeSend,
        dry_run: bool,
    ) -> Result<Streamed<Done<VolumeView>>, Fault> {
        self.stream(routes::volume_send(), volume, dry(dry_run), request).await
    }

    /// Receives a snapshot, or resumes receiving one: the caller writes it to the stream. `tenant` is charged for the work.
    pub async fn volume_receive(
        &self,
        volume: &VolumeRef,
        header: &StreamHeader,
        tenant: Option<&Name>,
        dry_run: bool,
    ) -> Result<Streamed<Done<ReceiveView>>, Fault> {
        let query = Receive { dry_run, tenant: tenant.cloned(), wait_seconds: None };
        self.stream(routes::volume_receive(), volume, query, header).await
    }

    /// Shows the state of an unfinished transfer to a volume.
    pub async fn volume_receiving(&self, volume: &VolumeRef) -> Result<ReceiveView, Fault> {
        self.query(routes::volume_receiving(), volume, NoQuery {}).await
    }

    /// Discards the received data of an unfinished transfer.
    pub async fn volume_receive_abort(&self, volume: &VolumeRef, dry_run: bool) -> Result<Done<ReceiveView>, Fault> {
        self.submit(routes::volume_receive_abort(), volume, dry(dry_run), &()).await
    }

    /// Imports an image: the caller writes the archive to the stream.
    pub async fn volume_import(
        &self,
        volume: &VolumeRef,
        request: &ImageImport,
        dry_run: bool,
    ) -> Result<Streamed<Done<ReceiveView>>, Fault> {
        self.stream(routes::volume_import(), volume, dry(dry_run), request).await
    }

    /// Checks, and repairs if requested, the file system of a volume.
    pub async fn volume_check(
        &self,
        volume: &VolumeRef,
        request: &VolumeCheck,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        self.submit(routes::volume_check(), volume, dry(dry_run), request).await
    }

    /// Trims a mounted volume. Dropping the future ends the trimming.
    pub async fn volume_trim(&self, volume: &VolumeRef, dry_run: bool) -> Result<Done<TrimView>, Fault> {
        self.submit(routes::volume_trim(), volume, dry(dry_run), &()).await
    }

    /// Provides the block device of a volume without mounting it.
    pub async fn volume_map(&self, volume: &VolumeRef, dry_run: bool) -> Result<Done<VolumeView>, Fault> {
        self.submit(routes::volume_map(), volume, dry(dry_run), &()).await
    }

    /// Removes the block device of a mapped volume.
    pub async fn volume_unmap(&self, volume: &VolumeRef, dry_run: bool) -> Result<Done<VolumeView>, Fault> {
        self.submit(routes::volume_unmap(), volume, dry(dry_run), &()).await
    }
}
