//! Volumes: created, deleted and modified.

use bulkhead_api::client::Removal;
use bulkhead_api::wire::{TenantCreate, TenantSet, TenantView, VolumeCopy, VolumeCreate, VolumeResize, VolumeView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{FrontEnd, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use bulkhead_front_end::tenants;
use tonic::Status;

use super::{Controller, OWN, failed};
use crate::capability::Content;
use crate::capacity::{Range, signed};
use crate::parameters::{Mutable, Parameters};
use crate::proto::volume_content_source::Type as Source;
use crate::proto::{
    ControllerModifyVolumeRequest, CreateVolumeRequest, CreateVolumeResponse, Volume, VolumeContentSource,
};
use crate::{capability, names, parameters, status};

impl Controller {
    /// `CreateVolume`: a volume, and a tenant for it where there is none. The same request again finds both, and completes what an
    /// interrupted one has begun.
    pub(super) async fn create(&self, request: &CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        let name = names::of_volume(&request.name).map_err(failed)?;
        let content = capability::check(&request.volume_capabilities).map_err(failed)?;
        let range = Range::parse(request.capacity_range.as_ref()).map_err(failed)?;
        let given = parameters::parse(&request.parameters, &request.mutable_parameters).map_err(failed)?;
        if content == Content::Raw {
            given.check_raw().map_err(failed)?;
        }
        let minimum = content.of_new().min_size();
        if range.limit.is_some_and(|limit| limit < minimum) {
            return Err(status::out_of_range(
                "capacity_range",
                &format!("limit_bytes is below the smallest volume, {minimum}"),
            ));
        }
        self.check_topology(request)?;
        let source = match &request.volume_content_source {
            Some(source) => Some(self.source(source).await.map_err(failed)?),
            None => None,
        };
        let pool = match (&source, &given.pool) {
            (Some(source), Some(pool)) if source.volume.pool != *pool => {
                let cause = format!("a copy is created in the pool of its source, which is {}", source.volume.pool);
                return Err(failed(Fault::new(Code::InvalidArgument, "parameter \"pool\"", cause)));
            }
            (Some(source), _) => source.volume.pool.clone(),
            (None, named) => self.pool(named.as_ref()).await.map_err(failed)?,
        };
        let volume = VolumeRef { pool, name };
        let found = self.existing(&volume).await.map_err(failed)?;
        if let Some(found) = &found {
            check_size_and_source(found, source.as_ref(), content, range)?;
        }
        let tenant = given.tenant.clone().unwrap_or_else(|| volume.name.clone());
        if let Some(found) = &found {
            check_use(found, source.is_some(), content, &given, &tenant).map_err(failed)?;
        }
        // An existing tenant keeps its share and limits, which may have been modified since it was created.
        let existing = self.ensure_tenant(&tenant, given.mutable, &volume.pool).await.map_err(failed)?;
        let made = match &source {
            Some(source) => self.copy(&volume, source, content, range, &given, &tenant).await,
            None => {
                let size = found.map_or_else(|| range.size(self.settings.size, minimum), |found| found.size_bytes);
                self.make(&volume, content, size, &given, &tenant).await.map_err(failed)
            }
        };
        if made.is_err() && existing.is_none() {
            tenants::remove_unused(&self.daemon, FrontEnd::Csi, &tenant).await.map_err(failed)?;
        }
        let volume = self.volume(&made?, request.volume_content_source.clone());
        Ok(CreateVolumeResponse { volume: Some(volume) })
    }

    /// Refuses a volume that has to be reachable from elsewhere only.
    fn check_topology(&self, request: &CreateVolumeRequest) -> Result<(), Status> {
        let Some(topology) = &request.accessibility_requirements else { return Ok(()) };
        if topology.requisite.is_empty() || topology.requisite.iter().any(|topology| self.is_here(topology)) {
            return Ok(());
        }
        let cause = format!("this driver's node, {}, is not in the requested topology", self.settings.node);
        Err(Status::resource_exhausted(format!("accessibility_requirements: {cause}")))
    }

    /// The volume or snapshot that a request is to copy.
    async fn source(&self, source: &VolumeContentSource) -> Result<VolumeView, Fault> {
        match &source.r#type {
            Some(Source::Snapshot(snapshot)) => self.inspect("snapshot_id", &snapshot.snapshot_id).await,
            Some(Source::Volume(volume)) => self.inspect("volume_id", &volume.volume_id).await,
            None => Err(Fault::new(Code::InvalidArgument, "volume_content_source", "it has no type")),
        }
    }

    /// A volume of this driver by that name.
    async fn existing(&self, volume: &VolumeRef) -> Result<Option<VolumeView>, Fault> {
        match self.daemon.volume_inspect(volume).await {
            Err(fault) if fault.code == Code::NotFound => Ok(None),
            Ok(view) if view.created_by != OWN => {
                let cause = "a volume with that name exists, and was not created by this driver";
                Err(Fault::new(Code::AlreadyExists, format!("volume {volume}"), cause))
            }
            found => found.map(Some),
        }
    }

    async fn make(
        &self,
        volume: &VolumeRef,
        content: Content,
        size: Bytes,
        given: &Parameters,
        tenant: &Name,
    ) -> Result<VolumeView, Fault> {
        let request = VolumeCreate {
            fs: content.of_new(),
            provision: given.provision,
            journal: given.journal,
            fast_commit: given.fast_commit,
            mount_options: given.mount_options_of_new(content),
            created_by: OWN,
            default_tenant: Some(tenant.clone()),
            ..VolumeCreate::new(volume.clone(), size)
        };
        let done = self.daemon.volume_create(&request, false).await?;
        self.view(volume, done.object).await
    }

    async fn copy(
        &self,
        volume: &VolumeRef,
        source: &VolumeView,
        content: Content,
        range: Range,
        given: &Parameters,
        tenant: &Name,
    ) -> Result<VolumeView, Status> {
        let object = format!("volume {volume}");
        if !content.accepts(source.fs) {
            let has = capability::described(source.fs);
            let cause = format!("{content} is requested, and its source {} has {has}", source.volume);
            return Err(failed(Fault::new(Code::InvalidArgument, object, cause)));
        }
        let size = source.size_bytes.max(range.required);
        if !range.contains(size) {
            let cause = format!("its source {} has {}, more than the limit", source.volume, source.size_bytes);
            return Err(status::out_of_range(&object, &cause));
        }
        let request = VolumeCopy {
            read_from: given.read_from,
            domain: given.domain.clone(),
            mount_options: given.mount_options.clone(),
            created_by: OWN,
            default_tenant: Some(tenant.clone()),
            ..VolumeCopy::new(volume.name.clone(), false)
        };
        let done = self.daemon.volume_copy(&source.volume, &request, false).await.map_err(failed)?;
        let view = self.view(volume, done.object).await.map_err(failed)?;
        if view.size_bytes >= size {
            return Ok(view);
        }
        self.grow(volume, size).await.map_err(failed)
    }

    /// `DeleteVolume`: removes a volume, and the tenant that was created for it. Succeeds if there is no such volume.
    pub(super) async fn delete(&self, id: &str) -> Result<(), Status> {
        let Some(volume) = names::parse_id("volume_id", id).map_err(failed)? else { return Ok(()) };
        let view = match self.daemon.volume_inspect(&volume).await {
            Err(fault) if fault.code == Code::NotFound => {
                return tenants::remove_unused(&self.daemon, FrontEnd::Csi, &volume.name).await.map_err(failed);
            }
            found => found.map_err(failed)?,
        };
        if view.created_by != OWN || view.read_only {
            let cause = "it is not a volume of this driver";
            return Err(failed(Fault::new(Code::InvalidArgument, format!("volume {id}"), cause)));
        }
        self.daemon.volume_remove(&volume, Removal::default()).await.map_err(failed)?;
        let tenant = view.default_tenant.as_ref().unwrap_or(&volume.name);
        tenants::remove_unused(&self.daemon, FrontEnd::Csi, tenant).await.map_err(failed)
    }

    /// `ControllerModifyVolume`: changes the share, the limits and the promise of the volume's tenant.
    pub(super) async fn modify(&self, request: &ControllerModifyVolumeRequest) -> Result<(), Fault> {
        let view = self.inspect("volume_id", &request.volume_id).await?;
        let mutable = parameters::parse_mutable(&request.mutable_parameters)?;
        let tenant = view.tenant.or(view.default_tenant).unwrap_or(view.volume.name);
        let Some(found) = self.ensure_tenant(&tenant, mutable, &view.volume.pool).await? else { return Ok(()) };
        let limits = match mutable.limits(&found.limits, &[]) {
            None => None,
            Some(_) => mutable.limits(&found.limits, &self.disks(&view.volume.pool).await?),
        };
        let set =
            TenantSet { share: mutable.share, limits, fsync_p99_us: mutable.fsync_p99_us, ..TenantSet::default() };
        if set == TenantSet::default() {
            return Ok(());
        }
        self.daemon.tenant_set(&tenant, &set, false).await.map(drop)
    }

    /// An existing tenant as it is; `None` if it was created, with this share, these limits and this promise.
    async fn ensure_tenant(&self, name: &Name, mutable: Mutable, pool: &Name) -> Result<Option<TenantView>, Fault> {
        let limits = match mutable.limits(&[], &[]) {
            None => Vec::new(),
            Some(_) => mutable.limits(&[], &self.disks(pool).await?).unwrap_or_default(),
        };
        let request = TenantCreate {
            share: mutable.share.unwrap_or_default(),
            limits,
            fsync_p99_us: mutable.fsync_p99_us.filter(|us| *us > 0),
            created_by: OWN,
            ..TenantCreate::new(name.clone())
        };
        tenants::ensure(&self.daemon, &request).await
    }

    /// The disks below a pool, by their kernel names.
    async fn disks(&self, pool: &Name) -> Result<Vec<String>, Fault> {
        let disks = self.daemon.pool_inspect(pool).await?.physical_devices;
        if disks.is_empty() {
            let cause = "its disks are unknown, so I/O on them cannot be limited";
            return Err(Fault::new(Code::Unsupported, format!("pool {pool}"), cause));
        }
        Ok(disks)
    }

    async fn grow(&self, volume: &VolumeRef, size: Bytes) -> Result<VolumeView, Fault> {
        let request = VolumeResize { size_bytes: Some(size), ..VolumeResize::default() };
        let done = self.daemon.volume_resize(volume, &request, false).await?;
        self.view(volume, done.object).await
    }

    /// The volume that a request to the daemon was answered with, if it was.
    pub(super) async fn view(&self, volume: &VolumeRef, answered: Option<VolumeView>) -> Result<VolumeView, Fault> {
        match answered {
            Some(view) => Ok(view),
            None => self.daemon.volume_inspect(volume).await,
        }
    }

    /// What an id names; `what` is the field of the request.
    pub(super) async fn inspect(&self, what: &str, id: &str) -> Result<VolumeView, Fault> {
        match names::parse_id(what, id)? {
            Some(volume) => self.daemon.volume_inspect(&volume).await,
            None => Err(Fault::new(Code::NotFound, format!("{what} {id:?}"), "nothing has that id")),
        }
    }

    pub(super) fn volume(&self, view: &VolumeView, content_source: Option<VolumeContentSource>) -> Volume {
        Volume {
            capacity_bytes: signed(view.size_bytes),
            volume_id: names::id(&view.volume),
            volume_context: Default::default(),
            content_source,
            accessible_topology: vec![self.topology()],
        }
    }
}

/// Refuses an existing volume with another source, file system or size.
fn check_size_and_source(
    found: &VolumeView,
    source: Option<&VolumeView>,
    content: Content,
    range: Range,
) -> Result<(), Status> {
    let differs =
        |cause: String| Err(failed(Fault::new(Code::AlreadyExists, format!("volume {}", found.volume), cause)));
    if found.origin.as_ref() != source.map(|source| &source.volume.name) {
        return differs("it exists with another content source".to_owned());
    }
    if !content.accepts(found.fs) {
        return differs(format!("it exists with file system {}, not {content}", capability::described(found.fs)));
    }
    // A copy that is smaller than required is one whose growth was interrupted.
    let can_grow = source.is_some() && found.size_bytes < range.required;
    if !range.contains(found.size_bytes) && !can_grow {
        return differs(format!("it exists with {}, outside capacity_range", found.size_bytes));
    }
    Ok(())
}

/// Refuses an existing volume of another tenant, or one that is mounted in another way.
fn check_use(
    found: &VolumeView,
    is_copy: bool,
    content: Content,
    given: &Parameters,
    tenant: &Name,
) -> Result<(), Fault> {
    let differs = |cause: String| Err(Fault::new(Code::AlreadyExists, format!("volume {}", found.volume), cause));
    match &found.default_tenant {
        Some(other) if other != tenant => return differs(format!("it exists for tenant {other}, not {tenant}")),
        _ => {}
    }
    // A copy has the directory of its source, unless another one is given.
    let wanted = if is_copy { given.mount_options.clone() } else { given.mount_options_of_new(content) };
    let has = &found.mount_options;
    let subdir_differs = wanted.subdir.is_some() && wanted.subdir != has.subdir;
    if subdir_differs || (wanted.suid, wanted.dev) != (has.suid, has.dev) {
        return differs("it exists with other values of subdir, suid or dev".to_owned());
    }
    Ok(())
}
