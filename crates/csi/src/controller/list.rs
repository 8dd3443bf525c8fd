//! Lists, in pages; what an id has; capabilities and capacity.

use bulkhead_api::wire::VolumeView;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::VolumeRef;

use super::{Controller, OWN};
use crate::capacity::signed;
use crate::proto::validate_volume_capabilities_response::Confirmed;
use crate::proto::{
    ControllerListVolumeHealthRequest, ControllerListVolumeHealthResponse, GetCapacityRequest, GetCapacityResponse,
    ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse, Snapshot,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, list_snapshots_response,
    list_volumes_response,
};
use crate::{capability, health, names, parameters};

impl Controller {
    pub(super) async fn list_volumes(&self, request: &ListVolumesRequest) -> Result<ListVolumesResponse, Fault> {
        let volumes = self.own(|view| !view.read_only).await?;
        let (page, next_token) = page(volumes, request.max_entries, &request.starting_token)?;
        let entry = |view: &VolumeView| list_volumes_response::Entry {
            volume: Some(self.volume(view, None)),
            status: Some(list_volumes_response::VolumeStatus::default()),
        };
        Ok(ListVolumesResponse { entries: page.iter().map(entry).collect(), next_token })
    }

    pub(super) async fn list_snapshots(&self, request: &ListSnapshotsRequest) -> Result<ListSnapshotsResponse, Fault> {
        let is_wanted = |view: &VolumeView| {
            let id = (request.snapshot_id.as_str(), names::id(&view.volume));
            let source = (request.source_volume_id.as_str(), Self::source_of(view));
            view.read_only && [id, source].iter().all(|(wanted, found)| wanted.is_empty() || wanted == found)
        };
        let snapshots = self.own(is_wanted).await?;
        let (page, next_token) = page(snapshots, request.max_entries, &request.starting_token)?;
        let entry = |view: &VolumeView| list_snapshots_response::Entry { snapshot: Some(self.snapshot_of(view)) };
        Ok(ListSnapshotsResponse { entries: page.iter().map(entry).collect(), next_token })
    }

    /// The health of all volumes, those without a problem included.
    pub(super) async fn list_health(
        &self,
        request: &ControllerListVolumeHealthRequest,
    ) -> Result<ControllerListVolumeHealthResponse, Fault> {
        let volumes = self.own(|view| !view.read_only).await?;
        let (page, next_token) = page(volumes, request.max_entries, &request.starting_token)?;
        Ok(ControllerListVolumeHealthResponse { entries: page.iter().map(health::of).collect(), next_token })
    }

    /// A volume of this driver.
    pub(super) async fn own_volume(&self, id: &str) -> Result<VolumeView, Fault> {
        let view = self.inspect("volume_id", id).await?;
        let is_own = view.created_by == OWN && !view.read_only;
        is_own
            .then_some(view)
            .ok_or_else(|| Fault::new(Code::NotFound, format!("volume {id}"), "it was not created by this driver"))
    }

    /// A snapshot of this driver.
    pub(super) async fn own_snapshot(&self, id: &str) -> Result<Snapshot, Fault> {
        let view = self.inspect("snapshot_id", id).await?;
        if view.created_by != OWN || !view.read_only {
            return Err(Fault::new(Code::NotFound, format!("snapshot {id}"), "it was not created by this driver"));
        }
        Ok(self.snapshot_of(&view))
    }

    pub(super) async fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Fault> {
        let view = self.inspect("volume_id", &request.volume_id).await?;
        if request.volume_capabilities.is_empty() {
            return Err(Fault::new(Code::InvalidArgument, "volume_capabilities", "it is missing"));
        }
        let refused = |message: String| ValidateVolumeCapabilitiesResponse { confirmed: None, message };
        match capability::check(&request.volume_capabilities) {
            Err(fault) => return Ok(refused(fault.to_string())),
            Ok(content) if !content.accepts(view.fs) => {
                return Ok(refused(format!("the volume's file system is {}", capability::described(view.fs))));
            }
            Ok(_) => {}
        }
        if let Err(fault) = parameters::parse(&request.parameters, &request.mutable_parameters) {
            return Ok(refused(fault.to_string()));
        }
        let confirmed = Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        };
        Ok(ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
    }

    /// The free space of a pool of this node; 0 where no volume could be created.
    pub(super) async fn capacity(&self, request: &GetCapacityRequest) -> Result<GetCapacityResponse, Fault> {
        let none = GetCapacityResponse { available_capacity: 0, maximum_volume_size: None, minimum_volume_size: None };
        let is_elsewhere = request.accessible_topology.as_ref().is_some_and(|topology| !self.is_here(topology));
        let capabilities = &request.volume_capabilities;
        if is_elsewhere || !capabilities.is_empty() && capability::check(capabilities).is_err() {
            return Ok(none);
        }
        let parameters = parameters::parse(&request.parameters, &Default::default())?;
        let pool = self.pool(parameters.pool.as_ref()).await?;
        let free = self.daemon.pool_inspect(&pool).await?.free_bytes.map_or(0, signed);
        Ok(GetCapacityResponse { available_capacity: free, maximum_volume_size: Some(free), minimum_volume_size: None })
    }

    /// The volumes and snapshots of this driver that are wanted, in order.
    async fn own(&self, is_wanted: impl Fn(&VolumeView) -> bool) -> Result<Vec<VolumeView>, Fault> {
        let mut views = self.daemon.volume_list(None).await?;
        views.retain(|view| view.created_by == OWN && is_wanted(view));
        views.sort_by(|a, b| a.volume.cmp(&b.volume));
        Ok(views)
    }
}

/// The page after a token, of at most so many entries (0: all), and the token of the next one.
fn page(views: Vec<VolumeView>, max: i32, token: &str) -> Result<(Vec<VolumeView>, String), Fault> {
    let max = usize::try_from(max)
        .map_err(|_| Fault::new(Code::InvalidArgument, "max_entries", format!("{max} is negative")))?;
    let after: Option<VolumeRef> = names::parse_token(token)?;
    let mut page: Vec<VolumeView> =
        views.into_iter().filter(|view| after.as_ref().is_none_or(|after| view.volume > *after)).collect();
    if max == 0 || page.len() <= max {
        return Ok((page, String::new()));
    }
    page.truncate(max);
    let next = page.last().map(|last| names::token(&last.volume)).unwrap_or_default();
    Ok((page, next))
}
