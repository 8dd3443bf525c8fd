//! Volumes: create, list, inspect, remove, snapshot, clone, roll back, flatten.

use std::time::{SystemTime, UNIX_EPOCH};

use bulkhead_api::routes::VolumeFilter;
use bulkhead_api::wire::{Done, VolumeCopy, VolumeCreate, VolumeFlatten, VolumeRollback, VolumeView};
use bulkhead_core::action::Applied;
use bulkhead_core::backend::{self, Backend};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::finding::{Finding, in_order};
use bulkhead_core::health::{self, VolumeFacts};
use bulkhead_core::journal::{self, Accounting};
use bulkhead_core::model::{
    MountOptions, Pool, PoolSource, Provision, ReadFrom, Server, Volume, VolumeFs, VolumeRef, VolumeState,
};
use bulkhead_core::name::Name;
use bulkhead_core::reason::Reason;
use bulkhead_core::units::Bytes;
use bulkhead_core::volume::{self, mount_point};
use uuid::Uuid;

use crate::attach::context_of;
use crate::engine::{Engine, ListedVolume, Located, Occupancy, volume_of};
use crate::findings::lookup_failed;
use crate::room::{Allocation, to_flatten};

/// Used percentage of a thin pool's metadata from which on copies are refused; the rest is left for existing volumes.
const METADATA_FULL_PCT: f64 = 90.0;

impl Engine {
    /// Creates a volume with an empty file system, or a raw one. Idempotent: a repeated request changes nothing.
    ///
    /// # Errors
    /// `InvalidArgument`, `NotFound` (pool), `AlreadyExists` (of another size or kind), `NoSpace`.
    pub fn volume_create(&self, request: &VolumeCreate, dry_run: bool) -> Result<Done<VolumeView>, Fault> {
        let reference = &request.volume;
        let object = format!("volume {reference}");
        let pool = self.pool(&reference.pool)?;
        self.check_identity(&pool)?;
        let backend = backend::backend(&pool);
        let space = self.host().space(&pool.source)?;
        if request.fast_commit && request.fs != VolumeFs::Ext4 {
            return Err(Fault::new(Code::InvalidArgument, object, "fast_commit is a feature of ext4 only")
                .reason(Reason::FastCommitNeedsExt4));
        }
        check_mount_options(request.fs, &request.mount_options, &object)?;
        let wanted = Volume {
            pool: pool.name.clone(),
            name: reference.name.clone(),
            uuid: Uuid::new_v4(),
            size_bytes: request.size_bytes,
            fs: request.fs,
            provision: request.provision.unwrap_or(if is_thin(&pool) { Provision::OnDemand } else { Provision::Full }),
            fast_commit: request.fast_commit,
            read_only: false,
            origin: None,
            layered: false,
            flatten: false,
            unfilled_from_bytes: None,
            read_from: default_read_from(&pool),
            domain: None,
            mount_options: request.mount_options.clone(),
            created_by: request.created_by,
            default_tenant: request.default_tenant.clone(),
            created_unix_seconds: created_now(),
            state: VolumeState::Creating,
        };
        let size_bytes = volume::checked_size(&wanted, request.size_bytes, space.extent)?;
        let wanted = Volume { size_bytes, ..wanted };
        if let Some(found) = self.named(&pool, &reference.name)? {
            let kind = |volume: &Volume| (volume.size_bytes, volume.fs, volume.provision, volume.fast_commit);
            let same = kind(&found) == kind(&wanted)
                && found.mount_options == wanted.mount_options
                && found.default_tenant == wanted.default_tenant;
            if same && found.state == VolumeState::Ready {
                return Ok(Done {
                    object: Some(self.volume_view(&pool, backend.as_ref(), &found)),
                    steps: vec![],
                    dry_run,
                });
            }
            let cause = format!("a volume of that name already exists ({} {})", found.size_bytes, found.fs);
            return Err(Fault::new(Code::AlreadyExists, object, cause).hint("choose another name"));
        }
        if wanted.provision == Provision::OnDemand && matches!(pool.source, PoolSource::Lvm { thin_pool: None, .. }) {
            let cause = "a pool of thick logical volumes cannot provision on demand";
            return Err(Fault::new(Code::Unsupported, object, cause)
                .reason(Reason::OnDemandNeedsThin { pool: pool.name.clone() }));
        }
        Self::check_size(&space, size_bytes, &object)?;
        // A volume provisioned on demand needs no space yet.
        let _room = match wanted.provision {
            Provision::Full => {
                Some(self.reserve(&pool, size_bytes, Allocation::New(reference.name.clone()), &object)?)
            }
            Provision::OnDemand => None,
        };
        let journal = request.journal.map(|asked| journal::checked_size(&wanted, size_bytes, asked)).transpose()?;
        let steps = self.executor.run(&volume::create(backend.as_ref(), &wanted, journal), dry_run)?;
        let ready = wanted.with_state(VolumeState::Ready);
        let object = (!dry_run).then(|| self.volume_view(&pool, backend.as_ref(), &ready));
        Ok(Done { object, steps, dry_run })
    }

    /// All volumes of all pools, or of one, or those of one name.
    ///
    /// # Errors
    /// When records or a volume group cannot be read.
    pub fn volume_list(&self, filter: &VolumeFilter) -> Result<Vec<VolumeView>, Fault> {
        let must_be_read = filter.complete || filter.pool.is_some();
        let pools: Vec<Pool> = match &filter.pool {
            Some(name) => vec![self.pool(name)?],
            None if filter.complete => self.pools()?.into_iter().collect::<Result<_, _>>()?,
            None => self.pools()?.into_iter().filter_map(Result::ok).collect(),
        };
        let seen = self.occupancy()?;
        let mut views = Vec::new();
        for pool in pools {
            let found = match self.volumes_in(&pool) {
                // One pool that cannot be read does not hide the others; asked for by name, it says why. `inspect` of the pool does too.
                Err(fault) if !must_be_read => {
                    tracing::debug!(pool = %pool.name, %fault, "the volumes of a pool cannot be listed");
                    continue;
                }
                found => found?,
            };
            let is_wanted = |volume: &Volume| filter.name.as_ref().is_none_or(|name| volume.name == *name);
            let volumes: Vec<Volume> = found.into_iter().filter_map(Result::ok).filter(is_wanted).collect();
            if volumes.is_empty() {
                continue;
            }
            let (backend, below) = (backend::backend(&pool), self.below(&pool));
            views.extend(
                volumes.iter().map(|volume| self.volume_view_on(&below, &seen, backend.as_ref(), volume, None)),
            );
        }
        Ok(views)
    }

    /// One volume.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`.
    pub fn volume_inspect(&self, reference: &VolumeRef) -> Result<VolumeView, Fault> {
        let Located { pool, backend, volume } = self.locate(reference)?;
        let mut view = self.volume_view(&pool, backend.as_ref(), &volume);
        view.findings.extend(self.outside(Some(reference)));
        Ok(VolumeView { findings: in_order(view.findings), ..view })
    }

    /// Removes a volume. A mounted one is removed only with `force`, which detaches it from its tenant first. Idempotent.
    ///
    /// # Errors
    /// `InUse` while it is mounted without `force`, or while processes keep it busy.
    pub fn volume_remove(&self, reference: &VolumeRef, force: bool, dry_run: bool) -> Result<Done<VolumeView>, Fault> {
        let located = match self.locate(reference) {
            Err(fault) if fault.code == Code::NotFound => {
                return Ok(Done { object: None, steps: Vec::new(), dry_run });
            }
            other => other?,
        };
        let Located { pool, backend, volume } = located;
        let mut steps = Vec::new();
        if !force {
            self.check_tenants_readable()?;
        }
        self.check_unmapped(&volume)?;
        self.check_has_no_readers(&pool, &volume)?;
        if let (Some(tenant), _) = self.holders(reference)? {
            if !force {
                let cause = format!("it is mounted for tenant {tenant}");
                return Err(Fault::new(Code::InUse, format!("volume {reference}"), cause)
                    .reason(Reason::RemovalOfAttached { volume: reference.clone(), tenant }));
            }
            steps.extend(self.release_all(reference, dry_run)?);
        }
        steps.extend(self.executor.run(&volume::remove(backend.as_ref(), &volume), dry_run)?);
        self.check_layers(&pool);
        Ok(Done { object: None, steps, dry_run })
    }

    /// Refuses the removal of a snapshot on LVM from which block servers of its clones read.
    fn check_has_no_readers(&self, pool: &Pool, snapshot: &Volume) -> Result<(), Fault> {
        for reference in self.readers_in(pool, snapshot)? {
            if let (Some(tenant), _) = self.holders(&reference)? {
                let cause = format!("its clone {reference} shares memory with it, and is mounted for tenant {tenant}");
                return Err(Fault::new(Code::InUse, format!("volume {}", snapshot.reference()), cause)
                    .reason(Reason::VolumeAttached { volume: reference, tenant }));
            }
        }
        Ok(())
    }

    /// The volumes whose block servers read from a volume.
    pub(crate) fn readers_of(&self, reference: &VolumeRef) -> Result<Vec<VolumeRef>, Fault> {
        match self.locate(reference) {
            Ok(Located { pool, volume, .. }) => self.readers_in(&pool, &volume),
            Err(fault) if fault.code == Code::NotFound => Ok(Vec::new()),
            Err(fault) => Err(fault),
        }
    }

    fn readers_in(&self, pool: &Pool, snapshot: &Volume) -> Result<Vec<VolumeRef>, Fault> {
        if !snapshot.read_only || !matches!(pool.source, PoolSource::Lvm { .. }) {
            return Ok(Vec::new());
        }
        let shares =
            |volume: &Volume| volume.origin.as_ref() == Some(&snapshot.name) && volume.read_from != ReadFrom::Disk;
        let clones = self.volumes_in(pool)?.into_iter().filter_map(Result::ok).filter(shares);
        Ok(clones.map(|clone| clone.reference()).collect())
    }

    /// Creates a snapshot (read-only) or a clone, where the pool supports it. The origin may be mounted. Idempotent.
    ///
    /// # Errors
    /// `Unsupported` on thick pools and on loop devices, `AlreadyExists`; `NoSpace` for one that is being flattened.
    pub fn volume_copy(
        &self,
        reference: &VolumeRef,
        request: &VolumeCopy,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        let Located { pool, backend, volume: origin } = self.locate_ready(reference)?;
        let copy = Volume {
            name: request.name.clone(),
            uuid: Uuid::new_v4(),
            read_only: request.read_only,
            origin: Some(origin.name.clone()),
            provision: Provision::OnDemand,
            layered: matches!(pool.source, PoolSource::File { .. }),
            flatten: false,
            unfilled_from_bytes: None,
            read_from: request.read_from.unwrap_or(match &pool.source {
                PoolSource::File { .. } => origin.read_from,
                PoolSource::Lvm { .. } => default_read_from(&pool),
            }),
            domain: request.domain.clone().or_else(|| origin.domain.clone()),
            // A copy inherits the directory that is mounted, but not `suid` and `dev`.
            mount_options: MountOptions {
                subdir: request.mount_options.subdir.clone().or_else(|| origin.mount_options.subdir.clone()),
                ..request.mount_options
            },
            created_by: request.created_by,
            default_tenant: request.default_tenant.clone(),
            created_unix_seconds: created_now(),
            state: VolumeState::Creating,
            ..origin.clone()
        };
        check_mount_options(copy.fs, &copy.mount_options, &format!("volume {}", copy.reference()))?;
        check_sharing(&pool, request, &copy, &origin)?;
        if let Some(found) = self.named(&pool, &request.name)? {
            let kind = |copy: &Volume| (copy.origin.clone(), copy.read_only, copy.read_from, copy.domain.clone());
            let same = kind(&found) == kind(&copy) && found.mount_options == copy.mount_options;
            if same && found.state == VolumeState::Ready {
                let view = self.volume_view(&pool, backend.as_ref(), &found);
                return Ok(Done { object: Some(view), steps: Vec::new(), dry_run });
            }
            return Err(already_exists(&found));
        }
        self.check_metadata(&pool, &copy)?;
        let mounted_at = self.mounted_at(&origin)?;
        let plan = volume::snapshot(backend.as_ref(), &origin, &copy, mounted_at.as_deref())?;
        let _room = self.reserve_for_copy(&pool, backend.as_ref(), &origin)?;
        let steps = self.executor.run(&plan, dry_run)?;
        self.check_layers(&pool);
        // It is maintained by its new record from now on.
        self.mounted_volumes().remove(reference);
        let ready = copy.with_state(VolumeState::Ready);
        let object = (!dry_run).then(|| self.volume_view(&pool, backend.as_ref(), &ready));
        Ok(Done { object, steps, dry_run })
    }

    /// Refuses a copy in a thin pool whose metadata is nearly full. Each copy, and the first write to each of its blocks, needs metadata;
    /// when it is full, all volumes of the pool refuse writes.
    fn check_metadata(&self, pool: &Pool, copy: &Volume) -> Result<(), Fault> {
        let PoolSource::Lvm { vg, thin_pool: Some(thin), .. } = &pool.source else { return Ok(()) };
        let used = self.host().space(&pool.source)?.metadata_pct;
        let Some(pct) = used.filter(|pct| *pct >= METADATA_FULL_PCT) else { return Ok(()) };
        let cause = format!(
            "the metadata of thin pool {vg}/{thin} is {pct:.0} % full, and writes to all of its volumes fail when it is full"
        );
        Err(Fault::new(Code::NoSpace, format!("volume {}", copy.reference()), cause)
            .hint(format!("remove snapshots, or `lvextend --poolmetadatasize +1G {vg}/{thin}`")))
    }

    /// Reverts a detached volume to one of its snapshots; later changes are lost.
    ///
    /// # Errors
    /// `InUse`, `NotFound`, `InvalidArgument` if it is not a snapshot of it, or without confirmation; `Unsupported` on LVM.
    pub fn volume_rollback(
        &self,
        reference: &VolumeRef,
        request: &VolumeRollback,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        let Located { pool, backend, volume } = self.locate_ready(reference)?;
        let object = format!("volume {reference}");
        let to = VolumeRef { pool: pool.name.clone(), name: request.to.clone() };
        let snapshot = self.locate_ready(&to)?.volume;
        if !snapshot.read_only || snapshot.origin.as_ref() != Some(&volume.name) {
            return Err(Fault::new(Code::InvalidArgument, object, format!("{to} is not a snapshot of it"))
                .reason(Reason::NoSnapshotOfIt { snapshot: to }));
        }
        self.check_unheld(reference)?;
        self.check_unmapped(&volume)?;
        if !request.lose_changes {
            let cause = format!("all changes since {to} was created would be lost");
            return Err(Fault::new(Code::InvalidArgument, object, cause)
                .reason(Reason::WouldLoseChanges { volume: reference.clone() }));
        }
        let plan = volume::rollback(backend.as_ref(), &volume, &snapshot, Uuid::new_v4())?;
        let steps = self.executor.run(&plan, dry_run)?;
        let object = if dry_run { None } else { Some(self.volume_inspect(reference)?) };
        Ok(Done { object, steps, dry_run })
    }

    /// Starts or stops flattening a copied volume, in the background and while it is in use. Idempotent.
    ///
    /// # Errors
    /// `NoSpace`; `Unsupported` if it is not a copy in a file pool.
    pub fn volume_flatten(
        &self,
        reference: &VolumeRef,
        request: &VolumeFlatten,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        let Located { pool, backend, volume } = self.locate_ready(reference)?;
        let object = format!("volume {reference}");
        if request.cancel {
            let now = Volume { flatten: false, ..volume.clone() };
            let mut steps = Vec::new();
            if volume.flatten {
                steps.extend(self.executor.run_steps(vec![backend.record(&volume, &now)], dry_run)?);
                steps.extend(self.remount(reference, dry_run)?);
            }
            let object = (!dry_run).then(|| self.volume_view(&pool, backend.as_ref(), &now));
            return Ok(Done { object, steps, dry_run });
        }
        let layers = self.host().layers(&backend.device(&volume))?;
        let shared = layers.filter(|layers| !layers.below.is_empty());
        let Some(shared) = shared.filter(|_| !volume.flatten) else {
            if volume.layered {
                let object = (!dry_run).then(|| self.volume_view(&pool, backend.as_ref(), &volume));
                return Ok(Done { object, steps: Vec::new(), dry_run });
            }
            return Err(Fault::new(
                Code::Unsupported,
                object,
                "it depends on no layers: it has no shared blocks to copy",
            )
            .hint("nothing needs to be done: it does not depend on another volume"));
        };
        // Once recorded, it counts as reserved.
        let _room =
            self.reserve(&pool, to_flatten(&volume, &shared), Allocation::Flattening(volume.name.clone()), &object)?;
        let now = Volume { flatten: true, ..volume.clone() };
        let mut steps = self.executor.run_steps(vec![backend.record(&volume, &now)], dry_run)?;
        steps.extend(self.remount(reference, dry_run)?);
        let object = (!dry_run).then(|| self.volume_view(&pool, backend.as_ref(), &now));
        Ok(Done { object, steps, dry_run })
    }

    /// Ends the flattening of a mounted volume that no longer depends on layers: its server closes them, and they can be removed.
    pub(crate) fn end_flattening(&self, reference: &VolumeRef) -> Result<(), Fault> {
        let Located { backend, volume, .. } = self.locate(reference)?;
        let layers = self.host().layers(&backend.device(&volume))?;
        if !volume.flatten || layers.is_some_and(|layers| !layers.below.is_empty()) {
            return Ok(());
        }
        let done = Volume { flatten: false, ..volume.clone() };
        self.executor.run_steps(vec![backend.record(&volume, &done)], false)?;
        self.remount(reference, false)?;
        self.executor.run_steps(backend.sweep(), false).map(drop)
    }

    /// Mounts a volume again as recorded now, if it is mounted.
    fn remount(&self, reference: &VolumeRef, dry_run: bool) -> Result<Vec<Applied>, Fault> {
        let leases: Vec<_> = self.leases()?.into_iter().filter(|lease| lease.volume == *reference).collect();
        let Some(watched) = self.mounted_volumes().remove(reference) else { return Ok(Vec::new()) };
        let context = if self.is_kept(&watched.tenant, reference) { None } else { context_of(&leases) };
        self.mount_for(&watched.tenant, reference, context, dry_run)
    }

    /// The volume of this name, if there is one. Fails if the pool has something else of that name, so that undoing an operation never
    /// removes it.
    pub(crate) fn named(&self, pool: &Pool, name: &Name) -> Result<Option<Volume>, Fault> {
        let (volume, other) = match &pool.source {
            PoolSource::File { directory, .. } => {
                match self.locate(&VolumeRef { pool: pool.name.clone(), name: name.clone() }) {
                    Err(fault) if fault.code == Code::NotFound => {}
                    located => return located.map(|located| Some(located.volume)),
                }
                let image = backend::image_path(directory, name);
                (None, self.host().image_size(&image)?.map(|_| format!("file {}", image.display())))
            }
            PoolSource::Lvm { vg, .. } => {
                let found = self.group_volumes(pool, vg)?.into_iter().find(|lv| lv.name == name.as_str());
                let volume = found.as_ref().and_then(|lv| volume_of(pool, lv)).transpose()?;
                (volume, found.map(|_| format!("logical volume {vg}/{name}")))
            }
        };
        let (None, Some(other)) = (&volume, other) else { return Ok(volume) };
        let cause = format!("there is a {other}, which is not a Bulkhead volume");
        Err(Fault::new(Code::HasData, format!("volume {}/{name}", pool.name), cause)
            .hint("choose another name, or move it away"))
    }

    /// Refuses a name that a volume, or something else in the pool, has.
    pub(crate) fn check_unused(&self, pool: &Pool, name: &Name) -> Result<(), Fault> {
        self.named(pool, name)?.map_or(Ok(()), |found| Err(already_exists(&found)))
    }

    pub(crate) fn volume_view(&self, pool: &Pool, backend: &dyn Backend, volume: &Volume) -> VolumeView {
        let (occupancy, fault) = match self.occupancy() {
            Ok(occupancy) => (occupancy, None),
            Err(fault) => (Occupancy::default(), Some(fault)),
        };
        let journal = self.journal_bytes(backend, volume);
        let mut view = self.volume_view_on(&self.below(pool), &occupancy, backend, volume, journal);
        view.findings.extend(fault.map(lookup_failed));
        VolumeView { findings: in_order(view.findings), ..view }
    }

    /// `below`: the physical devices of the pool and findings about them, which are the same for all its volumes.
    fn volume_view_on(
        &self,
        below: &(Vec<String>, Vec<Finding>),
        occupancy: &Occupancy,
        backend: &dyn Backend,
        volume: &Volume,
        journal: Option<Bytes>,
    ) -> VolumeView {
        let mut findings = Vec::new();
        let mut note = |fault: Fault| findings.push(lookup_failed(fault));
        let device = backend.device(volume);
        let open = self.host().open_device(&device).map_err(&mut note).ok().flatten();
        let mounted_at = Some(mount_point(&self.dirs.run, volume)).filter(|target| occupancy.mounts.contains(target));
        let tenant = occupancy.holders.get(&volume.reference()).cloned();
        let layers = self.host().layers(&device).map_err(&mut note).ok().flatten();
        let (physical_devices, of_devices) = below.clone();
        let accounting = match (&mounted_at, &tenant) {
            (None, _) => Accounting::NotMounted,
            (Some(_), None) => Accounting::None { reason: "it is mounted, but attached to no tenant".to_owned() },
            (Some(_), Some(name)) => self.host().accounting(&device, volume.fs.kind(), name),
        };
        let facts = VolumeFacts {
            backing: open.as_ref().map(|open| &open.backing),
            layers: layers.as_ref(),
            is_mapped: occupancy.mapped.contains(&self.dirs.mapping_record(volume.uuid)),
            journal,
            accounting: Some(&accounting),
        };
        findings.extend(of_devices);
        findings.extend(health::volume_findings(volume, &facts));
        VolumeView {
            volume: volume.reference(),
            uuid: volume.uuid,
            state: state_name(volume.state).to_owned(),
            size_bytes: volume.size_bytes,
            fs: volume.fs,
            provision: volume.provision,
            read_only: volume.read_only,
            origin: volume.origin.clone(),
            layers,
            read_from: volume.read_from,
            domain: volume.domain.clone(),
            mount_options: volume.mount_options.clone(),
            created_by: volume.created_by,
            default_tenant: volume.default_tenant.clone(),
            created_unix_seconds: volume.created_unix_seconds,
            tenant,
            mounted_at,
            logical_block_bytes: open.as_ref().and_then(|open| open.logical_block_bytes),
            device: open.map(|open| open.path.display().to_string()),
            physical_devices,
            accounting,
            findings: in_order(findings),
        }
    }

    /// The volumes of a pool that an interrupted operation left, and those with damaged records.
    pub(crate) fn unfinished(found: Vec<ListedVolume>) -> (Vec<Volume>, Vec<Fault>) {
        let mut unfinished = Vec::new();
        let mut faults = Vec::new();
        for item in found {
            match item {
                Ok(volume) if volume.state != VolumeState::Ready => unfinished.push(volume),
                Ok(_) => {}
                Err(fault) => faults.push(fault),
            }
        }
        (unfinished, faults)
    }
}

/// The host's time, for the record of a new volume; `None` for a clock that was never set.
pub(crate) fn created_now() -> Option<u64> {
    SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

fn already_exists(volume: &Volume) -> Fault {
    let object = format!("volume {}", volume.reference());
    Fault::new(Code::AlreadyExists, object, "a volume of that name already exists").hint("choose another name")
}

pub(crate) fn is_thin(pool: &Pool) -> bool {
    matches!(pool.source, PoolSource::Lvm { thin_pool: Some(_), .. })
}

/// Where volumes of a pool read shared blocks by default: on LVM a volume without shared blocks is faster without a block server.
fn default_read_from(pool: &Pool) -> ReadFrom {
    match pool.source {
        PoolSource::File { .. } => ReadFrom::default(),
        PoolSource::Lvm { .. } => ReadFrom::Disk,
    }
}

/// Refuses sources of shared blocks that a volume cannot have.
fn check_sharing(pool: &Pool, request: &VolumeCopy, copy: &Volume, origin: &Volume) -> Result<(), Fault> {
    let object = || format!("volume {}", copy.reference());
    let is_requested = request.read_from.is_some() || request.domain.is_some();
    match &pool.source {
        PoolSource::File { server: Server::Auto, .. } => {}
        PoolSource::Lvm { thin_pool: Some(_), .. } if request.domain.is_none() => {
            check_sharing_on_lvm(request, copy, origin)?;
        }
        _ if is_requested => {
            let cause = "only volumes with their own block server can choose where shared blocks are read from";
            return Err(Fault::new(Code::Unsupported, object(), cause).reason(Reason::ReadFromFixed));
        }
        _ => {}
    }
    if copy.domain.is_some() && copy.read_from.caches_layers() {
        let cause = format!("`{}` reads through the host page cache, which has no sharing domains", copy.read_from);
        return Err(Fault::new(Code::InvalidArgument, object(), cause).reason(Reason::DomainNeedsPeers));
    }
    Ok(())
}

/// Refuses options of a mount for a volume that is never mounted.
fn check_mount_options(fs: VolumeFs, options: &MountOptions, object: &str) -> Result<(), Fault> {
    let given = [(options.suid, "suid"), (options.dev, "dev"), (options.subdir.is_some(), "subdir")];
    match given.iter().find(|(is_given, _)| fs == VolumeFs::None && *is_given) {
        None => Ok(()),
        Some((_, option)) => {
            let cause = format!("`{option}` is an option of a mount, and a raw volume is not mounted");
            Err(Fault::new(Code::InvalidArgument, object, cause).hint(format!("omit `{option}`")))
        }
    }
}

/// On a thin pool a clone can share page cache with the snapshot that it was made from.
fn check_sharing_on_lvm(request: &VolumeCopy, copy: &Volume, origin: &Volume) -> Result<(), Fault> {
    let refused = |code, cause: &str| Fault::new(code, format!("volume {}", copy.reference()), cause);
    if copy.read_from == ReadFrom::Disk {
        return Ok(());
    }
    if copy.read_from.uses_peers() {
        let cause = "reading from peers needs the index of an imported image, and LVM pools have none";
        return Err(refused(Code::Unsupported, cause).reason(Reason::PeersNeedIndex));
    }
    match copy.fs {
        VolumeFs::Ext4 => {}
        VolumeFs::Xfs => {
            let cause = "mounting an XFS snapshot writes to it, and what LVM volumes share must not change";
            return Err(refused(Code::Unsupported, cause).hint("use ext4, or a directory pool"));
        }
        VolumeFs::None => {
            let cause = "a raw volume on LVM reads from its own device only, which is closed whenever it is detached";
            return Err(refused(Code::Unsupported, cause).hint("omit the source, or use a directory pool"));
        }
    }
    if request.read_only || !origin.read_only {
        let cause = "on LVM, only a clone of a snapshot can share memory, because the snapshot does not change";
        let reason = Reason::SnapshotNeeded { volume: origin.reference() };
        return Err(refused(Code::InvalidArgument, cause).reason(reason));
    }
    Ok(())
}

fn state_name(state: VolumeState) -> &'static str {
    match state {
        VolumeState::Creating => "creating",
        VolumeState::Ready => "ready",
        VolumeState::Resizing { .. } => "resizing",
        VolumeState::ReplacingJournal { .. } => "replacing journal",
        VolumeState::Removing => "removing",
    }
}
