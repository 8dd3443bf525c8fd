//! Volumes; their streams are in `transfer.rs`.

use bulkhead_api::routes::VolumeFilter;
use bulkhead_api::terms::Terms;
use bulkhead_api::wire::{
    Done, HeatRow, ReceiveView, VolumeCheck, VolumeCopy, VolumeCreate, VolumeFlatten, VolumeResize, VolumeRollback,
    VolumeView,
};
use bulkhead_core::error::Fault;
use bulkhead_core::model::VolumeRef;

use super::Service;
use crate::locks::Claim;
use crate::repair::before_repair;

#[expect(clippy::missing_errors_doc, reason = "the engine's methods of the same names say them")]
impl Service {
    /// All volumes, or those of one pool.
    pub async fn volume_list(&self, filter: VolumeFilter) -> Result<Vec<VolumeView>, Fault> {
        self.read(move |engine| engine.volume_list(&filter)).await
    }

    /// One volume.
    pub async fn volume_inspect(&self, volume: VolumeRef) -> Result<VolumeView, Fault> {
        self.read(move |engine| engine.volume_inspect(&volume)).await
    }

    /// Reads of shared blocks, by volume and source.
    pub async fn heatmap(&self) -> Result<Vec<HeatRow>, Fault> {
        self.read(|engine| engine.heatmap()).await
    }

    /// The progress of receiving a volume.
    pub async fn volume_receiving(&self, volume: VolumeRef) -> Result<ReceiveView, Fault> {
        self.read(move |engine| engine.volume_receiving(&volume)).await
    }

    /// Creates a volume with an empty file system.
    pub async fn volume_create(&self, request: VolumeCreate, terms: Terms) -> Result<Done<VolumeView>, Fault> {
        let operation = format!("create volume {}", request.volume);
        let claim = Claim::default().volume(&request.volume);
        self.change(terms, operation, claim, move |engine| engine.volume_create(&request, terms.dry_run)).await
    }

    /// Removes a volume and its data; one that is mounted only with `force`.
    pub async fn volume_remove(&self, volume: VolumeRef, force: bool, terms: Terms) -> Result<Done<VolumeView>, Fault> {
        let operation = format!("remove volume {volume}");
        let removed = volume.clone();
        self.change_with(
            terms,
            operation,
            move |engine| {
                // It is detached from its tenant, and no clone may start to read from it.
                let (holder, _) = engine.holders(&removed)?;
                let claim = Claim::default().volume(&removed).volumes(&engine.readers_of(&removed)?);
                Ok(holder.iter().filter(|_| force).fold(claim, Claim::tenant))
            },
            move |engine| engine.volume_remove(&volume, force, terms.dry_run),
        )
        .await
    }

    /// Changes a volume's size.
    pub async fn volume_resize(
        &self,
        volume: VolumeRef,
        request: VolumeResize,
        terms: Terms,
    ) -> Result<Done<VolumeView>, Fault> {
        let operation = match request.size_bytes {
            Some(size) => format!("resize volume {volume} to {size}"),
            None => format!("replace the journal of volume {volume}"),
        };
        let claim = Claim::default().volume(&volume);
        self.change(terms, operation, claim, move |engine| engine.volume_resize(&volume, &request, terms.dry_run)).await
    }

    /// Creates a snapshot or a clone in the same pool.
    pub async fn volume_copy(
        &self,
        volume: VolumeRef,
        request: VolumeCopy,
        terms: Terms,
    ) -> Result<Done<VolumeView>, Fault> {
        let word = if request.read_only { "snapshot" } else { "clone" };
        let operation = format!("{word} volume {volume} as {}", request.name);
        let copy = VolumeRef { pool: volume.pool.clone(), name: request.name.clone() };
        let claim = Claim::default().volumes([&volume, &copy]);
        self.change(terms, operation, claim, move |engine| engine.volume_copy(&volume, &request, terms.dry_run)).await
    }

    /// Reverts a detached volume to one of its snapshots.
    pub async fn volume_rollback(
        &self,
        volume: VolumeRef,
        request: VolumeRollback,
        terms: Terms,
    ) -> Result<Done<VolumeView>, Fault> {
        let operation = format!("revert volume {volume} to {}", request.to);
        let snapshot = VolumeRef { pool: volume.pool.clone(), name: request.to.clone() };
        let claim = Claim::default().volumes([&volume, &snapshot]);
        self.change(terms, operation, claim, move |engine| engine.volume_rollback(&volume, &request, terms.dry_run))
            .await
    }

    /// Starts or stops flattening a volume.
    pub async fn volume_flatten(
        &self,
        volume: VolumeRef,
        request: VolumeFlatten,
        terms: Terms,
    ) -> Result<Done<VolumeView>, Fault> {
        let word = if request.cancel { "stop flattening" } else { "flatten" };
        let operation = format!("{word} volume {volume}");
        let claim = Claim::default().volume(&volume);
        self.change(terms, operation, claim, move |engine| engine.volume_flatten(&volume, &request, terms.dry_run))
            .await
    }

    /// Discards the staging file of a volume.
    pub async fn volume_receive_abort(&self, volume: VolumeRef, terms: Terms) -> Result<Done<ReceiveView>, Fault> {
        let operation = format!("discard the staging file of volume {volume}");
        let claim = Claim::default().volume(&volume);
        self.change(terms, operation, claim, move |engine| engine.volume_receive_abort(&volume, terms.dry_run)).await
    }

    /// Checks the file system of a volume that is not mounted.
    pub async fn volume_check(
        &self,
        volume: VolumeRef,
        request: VolumeCheck,
        terms: Terms,
    ) -> Result<Done<VolumeView>, Fault> {
        let word = if request.repair || request.full { "repair" } else { "check" };
        let operation = format!("{word} volume {volume}");
        let mut claim = Claim::default().volume(&volume);
        if request.full
            && let Ok(name) = before_repair(&volume.name)
        {
            claim = claim.volume(&VolumeRef { pool: volume.pool.clone(), name });
        }
        self.change(terms, operation, claim, move |engine| engine.volume_check(&volume, &request, terms.dry_run)).await
    }

    /// Provides a volume's device without mounting it.
    pub async fn volume_map(&self, volume: VolumeRef, terms: Terms) -> Result<Done<VolumeView>, Fault> {
        let operation = format!("map volume {volume}");
        let claim = Claim::default().volume(&volume);
        self.change(terms, operation, claim, move |engine| engine.volume_map(&volume, terms.dry_run)).await
    }

    /// Removes the device of a mapped volume.
    pub async fn volume_unmap(&self, volume: VolumeRef, terms: Terms) -> Result<Done<VolumeView>, Fault> {
        let operation = format!("unmap volume {volume}");
        let claim = Claim::default().volume(&volume);
        self.change(terms, operation, claim, move |engine| engine.volume_unmap(&volume, terms.dry_run)).await
    }
}
