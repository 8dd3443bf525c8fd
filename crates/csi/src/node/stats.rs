//! How full a volume is, where it is staged or published; and its growth from there.

use std::path::Path;
use std::sync::Arc;

use bulkhead_api::wire::{VolumeResize, VolumeView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::VolumeFs;
use bulkhead_core::units::Bytes;
use bulkhead_sys::mount::{Place, PlaceError, Usage};
use tonic::Status;

use super::publish::{is_same, table, topmost};
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
    /// `NodeGetVolumeStats`: bytes and inodes; of a raw volume only its size, as what is used of it is known to its user alone.
    pub(super) async fn stats(&self, request: &NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse, Fault> {
        required("volume_id", &request.volume_id)?;
        required(PATH, &request.volume_path)?;
        let view = self.volume(&request.volume_id).await?;
        let Some(Usage { total, free, available, n_inodes, n_free_inodes }) =
            self.usage_at(&view, &request.volume_path).await?
        else {
            let size = VolumeUsage { total: signed(view.size_bytes), unit: Unit::Bytes.into(), ..Default::default() };
            return Ok(NodeGetVolumeStatsResponse { usage: vec![size] });
        };
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

    /// `NodeExpandVolume`: grows the volume and its file system, if it has one, in use. A pool without the space is `OUT_OF_RANGE`, so that the kubelet marks
    /// the expansion infeasible and lets the user ask for less; it is repeated nevertheless.
    pub(super) async fn expand(&self, request: &NodeExpandVolumeRequest) -> Result<NodeExpandVolumeResponse, Status> {
        let checked = async {
            required("volume_id", &request.volume_id)?;
            required(PATH, &request.volume_path)?;
            let view = self.volume(&request.volume_id).await?;
            let range = Range::parse(request.capacity_range.as_ref())?;
            if request.volume_capability.is_some() {
                self.capability(request.volume_capability.as_ref())?.check_fs(view.fs)?;
            }
            match self.usage_at(&view, &request.volume_path).await {
                // Of a raw volume, the kubelet may name the path of its own that it has given the device.
                Err(absent) if absent.code == Code::NotFound && view.fs == VolumeFs::None => {
                    self.lease(&view.volume, &request.staging_target_path).await?.ok_or(absent).map(drop)?;
                }
                found => drop(found?),
            }
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

    /// How full a volume is that is staged or published at a path; `None` for a raw volume.
    async fn usage_at(&self, view: &VolumeView, path: &str) -> Result<Option<Usage>, Fault> {
        let absent = Fault::new(Code::NotFound, PATH, format!("volume {} is not at {path}", view.volume));
        let Some(mounted_at) = view.mounted_at.clone() else { return Err(absent) };
        let is_staged = self.lease(&view.volume, path).await?.is_some();
        let is_raw = view.fs == VolumeFs::None;
        let (settings, roots, path) = (Arc::clone(&self.settings), self.roots.clone(), path.to_owned());
        blocking(move || {
            let table = table(&roots)?;
            let Some(source) = topmost(&table, &mounted_at) else { return Err(absent) };
            let is_there =
                |place: &Place| topmost(&table, place.real_path()).is_some_and(|found| is_same(is_raw, found, source));
            let used = match is_staged {
                true if is_raw => return Ok(None),
                true => Usage::at(&mounted_at),
                false => {
                    let place = published(&settings, &path)?.filter(is_there).ok_or(absent)?;
                    if is_raw {
                        return Ok(None);
                    }
                    place.usage()
                }
            };
            used.map(Some).map_err(|error| paths::fault(PATH, &error))
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
