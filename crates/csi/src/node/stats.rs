//! How full a volume is, where it is staged or published; and its growth from there.

use std::path::Path;
use std::sync::Arc;

use bulkhead_api::wire::{VolumeResize, VolumeView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::units::Bytes;
use bulkhead_sys::mount::{Place, PlaceError, Usage};
use tonic::Status;

use super::publish::{table, topmost};
use super::{Node, Settings, blocking, failed, paths, required};
use crate::capacity::{Range, signed};
use crate::proto::volume_usage::Unit;
use crate::proto::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    VolumeUsage,
};
use crate::status;

/// The field that names where a volume is staged or published.
const PATH: &str = "volume_path";

impl Node {
    /// `NodeGetVolumeStats`: bytes and inodes.
    pub(super) async fn stats(&self, request: &NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse, Fault> {
        required("volume_id", &request.volume_id)?;
        required(PATH, &request.volume_path)?;
        let view = self.volume(&request.volume_id).await?;
        let Usage { total, free, available, n_inodes, n_free_inodes } =
            self.usage_at(&view, &request.volume_path).await?;
        let bytes = VolumeUsage {
            available: signed(available),
            total: signed(total),
            used: signed(Bytes(total.0.saturating_sub(free.0))),
            unit: Unit::Bytes.into(),
        };
        let inodes = VolumeUsage {
            available: signed(Bytes(n_free_inodes)),
            total: signed(Bytes(n_inodes)),
            used: signed(Bytes(n_inodes.saturating_sub(n_free_inodes))),
            unit: Unit::Inodes.into(),
        };
        Ok(NodeGetVolumeStatsResponse { usage: vec![bytes, inodes] })
    }

    /// `NodeExpandVolume`: grows the volume and its file system, in use. A pool without the space is `OUT_OF_RANGE`, so that the kubelet marks
    /// the expansion infeasible and lets the user ask for less; it is repeated nevertheless.
    pub(super) async fn expand(&self, request: &NodeExpandVolumeRequest) -> Result<NodeExpandVolumeResponse, Status> {
        let checked = async {
            required("volume_id", &request.volume_id)?;
            required(PATH, &request.volume_path)?;
            let view = self.volume(&request.volume_id).await?;
            let range = Range::parse(request.capacity_range.as_ref())?;
            if request.volume_capability.is_some() {
                self.capability(request.volume_capability.as_ref())?;
            }
            self.usage_at(&view, &request.volume_path).await?;
            Ok((view, range))
        };
        let (view, range) = checked.await.map_err(failed)?;
        let size = view.size_bytes.max(range.required);
        if range.limit.is_some_and(|limit| size > limit) {
            let cause = format!("it has {}, more than the limit", view.size_bytes);
            return Err(status::out_of_range(&format!("volume {}", view.volume), &cause));
        }
        if size > view.size_bytes {
            let resize = VolumeResize { size_bytes: Some(size), ..VolumeResize::default() };
            self.daemon.volume_resize(&view.volume, &resize, false).await.map_err(|fault| match fault.code {
                Code::NoSpace => Status::out_of_range(failed(fault).message()),
                _ => failed(fault),
            })?;
        }
        Ok(NodeExpandVolumeResponse { capacity_bytes: signed(size) })
    }

    /// How full a volume is that is staged or published at a path.
    async fn usage_at(&self, view: &VolumeView, path: &str) -> Result<Usage, Fault> {
        let absent = Fault::new(Code::NotFound, PATH, format!("volume {} is not at {path}", view.volume));
        let Some(mounted_at) = view.mounted_at.clone() else { return Err(absent) };
        let is_staged = self.lease(&view.volume, path).await?.is_some();
        let (settings, roots, path) = (Arc::clone(&self.settings), self.roots.clone(), path.to_owned());
        blocking(move || {
            let table = table(&roots)?;
            let Some(source) = topmost(&table, &mounted_at) else { return Err(absent) };
            let used = match is_staged {
                true => Some(Usage::at(&mounted_at)),
                false => published(&settings, &path)?
                    .filter(|place| topmost(&table, place.real_path()).is_some_and(|found| found.dev == source.dev))
                    .map(|place| place.usage()),
            };
            used.ok_or(absent)?.map_err(|error| paths::fault(PATH, &error))
        })
        .await
    }
}

/// The place at a path where nothing may be published.
fn published(settings: &Settings, path: &str) -> Result<Option<Place>, Fault> {
    match paths::open(settings)?.place(Path::new(path)) {
        Err(error @ PlaceError::Failed { .. }) => Err(paths::fault(PATH, &error)),
        // Such a path is refused by publishing, so that no volume is there.
        found => Ok(found.ok().flatten()),
    }
}
