//! Mounting volumes for tenants: permanently (recorded with the tenant) or as long as a
//! process or a user of a front end needs them (a lease); and commands that run in a tenant, with what they leave behind.

use bulkhead_api::wire::{LeaseCreate, LeaseReply, LeaseView, RunStart, RunView};
use bulkhead_core::action::{Action, Applied, CgroupAction, Record, StateAction};
use bulkhead_core::backend::Backend;
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{Holder, Lease, SelinuxContext, Tenant, Volume, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::reason::Reason;
use bulkhead_core::slices;
use bulkhead_core::volume::{self, Plan, mount_point};
use uuid::Uuid;

use crate::engine::{Engine, Located, MountedVolume};

/// Longest id of a front end's user, in bytes.
const MAX_USER_BYTES: usize = 255;

impl Engine {
    /// Mounts volumes for a tenant, until the process that holds the leases exits, or the front end that holds them returns them. A user of a
    /// front end has to return a lease as often as it requests it; a request that is repeated under the same `id` counts once.
    ///
    /// # Errors
    /// `InvalidArgument` unless the request names one holder, and for an SELinux context that the policy does not know, `NotFound` (tenant,
    /// volume, process), `InUse` for a volume of another tenant or in use with another SELinux context, and for a tenant that is being
    /// removed, `Unsupported` for a context without SELinux, and those of mounting.
    pub fn lease_create(&self, request: &LeaseCreate, id: Option<Uuid>) -> Result<LeaseReply, Fault> {
        let tenant = self.tenant(&request.tenant)?;
        if tenant.removing {
            return Err(Fault::new(Code::InUse, format!("tenant {}", tenant.name), "it is being removed")
                .hint("name another tenant, or try again when it is removed"));
        }
        let holder = self.holder(request, id)?;
        let context = request.selinux_context.as_ref();
        if let Some(context) = context
            && !self.host().has_selinux()?
        {
            let cause = "the kernel of this host does not use SELinux, and mounts nothing with a context";
            return Err(Fault::new(Code::Unsupported, format!("SELinux context {context}"), cause)
                .hint("boot with SELinux, or request no context"));
        }
        for reference in &request.volumes {
            self.check_attachable(&tenant.name, reference, context, false)?;
        }
        self.restore_cgroups(&tenant)?;
        let existing = self.leases()?;
        let mut leases: Vec<LeaseView> = Vec::new();
        let mut granted: Vec<Uuid> = Vec::new();
        for reference in &request.volumes {
            let is_same = |lease: &&Lease| {
                holder.user().is_some() && lease.holder.user() == holder.user() && lease.volume == *reference
            };
            let lease = match existing.iter().find(is_same) {
                Some(lease) => Lease {
                    holder: lease.holder.once_more(id),
                    // Another one than now if it was returned before, and could not be unmounted.
                    selinux_context: context.cloned(),
                    ..lease.clone()
                },
                None => Lease {
                    id: Uuid::new_v4(),
                    tenant: tenant.name.clone(),
                    volume: reference.clone(),
                    selinux_context: context.cloned(),
                    holder: holder.clone(),
                },
            };
            granted.push(lease.id);
            match self.grant_lease(&lease) {
                Ok(view) => leases.push(view),
                Err(mut fault) => {
                    for lease in granted {
                        if let Err(second) = self.lease_withdraw(lease, id) {
                            fault.cause = format!("{}; undoing it also failed ({second})", fault.cause);
                        }
                    }
                    return Err(fault);
                }
            }
        }
        Ok(LeaseReply { leases })
    }

    /// What a request for leases names as their holder.
    fn holder(&self, request: &LeaseCreate, id: Option<Uuid>) -> Result<Holder, Fault> {
        let invalid = |cause| Err(Fault::new(Code::InvalidArgument, "lease", cause));
        match (request.pid, &request.user) {
            (Some(pid), None) => match self.host().start_time(pid) {
                Some(start_time_ticks) => Ok(Holder::Process { pid, start_time_ticks }),
                None => Err(Fault::new(Code::NotFound, format!("process {pid}"), "there is no such process")),
            },
            (None, Some(user)) if (1..=MAX_USER_BYTES).contains(&user.id.len()) => {
                Ok(Holder::FrontEnd { user: user.clone(), mounts: 1, counted: id.into_iter().collect() })
            }
            (None, Some(_)) => invalid(format!("the id of its user must have 1 to {MAX_USER_BYTES} bytes")),
            _ => invalid("either a process or a user of a front end must be given".to_owned()),
        }
    }

    /// All leases, and where their volumes are mounted.
    ///
    /// # Errors
    /// When records cannot be read.
    pub fn lease_list(&self) -> Result<Vec<LeaseView>, Fault> {
        let mut leases = self.leases()?;
        leases.sort_by(|a, b| (&a.volume, a.id).cmp(&(&b.volume, b.id)));
        // One whose volume cannot be found is a problem of its own, and is not mounted anywhere.
        Ok(leases.iter().filter_map(|lease| self.lease_view(lease).ok()).collect())
    }

    fn lease_view(&self, lease: &Lease) -> Result<LeaseView, Fault> {
        let mounted_at = mount_point(&self.dirs.run, &self.locate(&lease.volume)?.volume);
        Ok(LeaseView {
            id: lease.id,
            volume: lease.volume.clone(),
            tenant: lease.tenant.clone(),
            pid: lease.holder.pid(),
            user: lease.holder.user().cloned(),
            mounts: lease.holder.mounts(),
            mounted_at,
            selinux_context: lease.selinux_context.clone(),
        })
    }

    /// Ends a lease, and unmounts its volume if it has no other holder; that of a front end's user once it was returned as often as it was
    /// requested. A request that is repeated under the same `request` id counts once. Succeeds if there is no such lease.
    ///
    /// # Errors
    /// `InUse` while processes keep the volume busy; the lease stays, and the daemon tries again.
    pub fn lease_remove(&self, id: Uuid, request: Option<Uuid>) -> Result<(), Fault> {
        self.lease_end(id, |holder| holder.once_less(request))
    }

    /// Undoes a request for a lease.
    fn lease_withdraw(&self, id: Uuid, request: Option<Uuid>) -> Result<(), Fault> {
        self.lease_end(id, |holder| holder.without(request))
    }

    fn lease_end(&self, id: Uuid, after: impl FnOnce(&Holder) -> Holder) -> Result<(), Fault> {
        let Some(lease) = self.leases()?.into_iter().find(|lease| lease.id == id) else { return Ok(()) };
        if lease.holder.mounts() > Some(0) {
            let holder = after(&lease.holder);
            self.record_lease(&Lease { holder: holder.clone(), ..lease.clone() })?;
            if holder.mounts() > Some(0) {
                return Ok(());
            }
        }
        let (kept_by, leases) = self.holders(&lease.volume)?;
        let kept = kept_by.is_some_and(|name| self.is_kept(&name, &lease.volume));
        if !kept && leases.len() == 1 {
            self.unmount(&lease.volume, false)?;
        }
        self.executor.run_steps(
            vec![Action::State(StateAction::RemoveRecord { path: self.dirs.lease_record(&lease) })],
            false,
        )?;
        Ok(())
    }

    /// Moves a command into a tenant, in a cgroup of its own.
    ///
    /// # Errors
    /// `NotFound` without such a tenant or process, `InvalidArgument` when the command is not a child of the one that waits for it.
    pub fn run_start(&self, tenant: &Name, request: &RunStart) -> Result<RunView, Fault> {
        let tenant = self.tenant(tenant)?;
        self.restore_cgroups(&tenant)?;
        let cgroup = self.host().start_run(&slices::payload(&tenant.name), request.pid, request.command_pid)?;
        Ok(RunView { cgroup: cgroup.to_string() })
    }

    /// Ends the remaining processes of a command, and the leases of the process that waited for it. Idempotent.
    ///
    /// # Errors
    /// When a process does not exit, and those of [`Engine::lease_remove`]: the daemon tries again once the waiting process has ended.
    pub fn run_end(&self, tenant: &Name, pid: u32) -> Result<(), Fault> {
        let cgroups = self.kill_run(tenant, pid)?;
        for lease in self.leases_of_run(tenant, pid)? {
            self.lease_remove(lease.id, None)?;
        }
        self.executor.run_steps(cgroups, false).map(drop)
    }

    /// The leases of a process on a tenant's volumes.
    pub(crate) fn leases_of_run(&self, tenant: &Name, pid: u32) -> Result<Vec<Lease>, Fault> {
        Ok(self
            .leases()?
            .into_iter()
            .filter(|lease| lease.tenant == *tenant && lease.holder.pid() == Some(pid))
            .collect())
    }

    /// Ends the remaining processes of a run; the returned actions remove its cgroup.
    pub(crate) fn kill_run(&self, tenant: &Name, pid: u32) -> Result<Vec<Action>, Fault> {
        let runs = self.host().runs(&slices::payload(tenant)).into_iter().filter(|(run, _)| *run == pid);
        runs.map(|(_, cgroup)| self.kill_run_cgroup(tenant, pid, cgroup)).collect()
    }

    /// Ends the remaining processes in one cgroup of a run.
    pub(crate) fn kill_run_cgroup(&self, tenant: &Name, pid: u32, cgroup: CgroupPath) -> Result<Action, Fault> {
        let processes = self.host().processes(&cgroup);
        if !processes.is_empty() {
            tracing::info!(%tenant, pid, n = processes.len(), "killing the processes that a run left behind");
            self.host().kill_all(&cgroup)?;
        }
        Ok(Action::Cgroup(CgroupAction::RemoveCgroup { cgroup }))
    }

    /// Refuses a volume that another tenant has, or that cannot be mounted with this SELinux context now.
    pub(crate) fn check_attachable(
        &self,
        tenant: &Name,
        reference: &VolumeRef,
        context: Option<&SelinuxContext>,
        dry_run: bool,
    ) -> Result<(), Fault> {
        let Located { backend, volume, .. } = self.locate_ready(reference)?;
        check_device_usable(&volume, context)?;
        match self.holders(reference)? {
            (Some(other), _) if other != *tenant => Err(Fault::new(
                Code::InUse,
                format!("volume {reference}"),
                format!("it is mounted for tenant {other}; a volume belongs to one tenant at a time"),
            )
            .reason(Reason::VolumeAttached { volume: reference.clone(), tenant: other })),
            (Some(_), leases) => self.check_context(tenant, reference, &leases, context, dry_run),
            (None, _) => {
                self.check_unmapped(&volume)?;
                self.release_unheld(backend.as_ref(), &volume, dry_run)
            }
        }
    }

    /// Refuses a volume that its tenant uses with another SELinux context: a file system has one for all of its mounts. A volume that was
    /// returned, but could not be unmounted then, is unmounted now.
    fn check_context(
        &self,
        tenant: &Name,
        reference: &VolumeRef,
        leases: &[Lease],
        wanted: Option<&SelinuxContext>,
        dry_run: bool,
    ) -> Result<(), Fault> {
        let is_kept = self.is_kept(tenant, reference);
        let found = if is_kept { None } else { context_of(leases) };
        if found.as_ref() == wanted {
            return Ok(());
        }
        if !is_kept && leases.iter().all(|lease| lease.holder.mounts() == Some(0)) {
            return self.unmount(reference, dry_run).map(drop);
        }
        let with = |context: Option<&SelinuxContext>| match context {
            Some(context) => format!("with SELinux context {context}"),
            None => "without an SELinux context".to_owned(),
        };
        let cause = format!("it is in use {}, and is requested {}", with(found.as_ref()), with(wanted));
        Err(Fault::new(Code::InUse, format!("volume {reference}"), cause)
            .hint("all users of a volume have the same context: end the others first"))
    }

    /// Whether a tenant keeps a volume mounted, also without a lease.
    pub(crate) fn is_kept(&self, tenant: &Name, reference: &VolumeRef) -> bool {
        self.tenant(tenant).is_ok_and(|tenant| tenant.volumes.contains(reference))
    }

    /// Closes a volume without a holder that an operation has left open, before any step that would have to be undone. Fails if it is
    /// still in use: its last tenant may still write to it.
    pub(crate) fn release_unheld(&self, backend: &dyn Backend, volume: &Volume, dry_run: bool) -> Result<(), Fault> {
        let device = backend.device(volume);
        if matches!(self.host().open_device(&device), Err(fault) if fault.code == Code::InUse) {
            self.executor.run_steps(backend.close(volume), dry_run)?;
        }
        if let Some(target) = self.mounted_at(volume)? {
            self.executor.run_steps(volume::unmount(backend, volume, &target), dry_run)?;
        }
        let Some(user) = self.host().in_use(&device)?.filter(|_| !dry_run) else { return Ok(()) };
        let cause = format!("it is attached to no tenant, but still in use: {user}");
        Err(Fault::new(Code::InUse, format!("volume {}", volume.reference()), cause).hint(
            "stop the program that uses the volume: it could still write to the data that the next tenant stores there",
        ))
    }

    /// Mounts a volume for a tenant, which pays for its device and its journal; with this SELinux context, unless it is mounted already. Applied
    /// again, it repairs. Lists no records: while they cannot be listed, volumes are mounted again.
    pub(crate) fn mount_for(
        &self,
        tenant: &Name,
        reference: &VolumeRef,
        context: Option<SelinuxContext>,
        dry_run: bool,
    ) -> Result<Vec<Applied>, Fault> {
        if let Some(watched) = self.maintained_mount(tenant, reference)? {
            return self.executor.run_steps(watched.keep, dry_run);
        }
        let Located { backend, volume, .. } = self.locate_ready(reference)?;
        check_device_usable(&volume, None)?;
        let target = mount_point(&self.dirs.run, &volume);
        let keep = volume::ensure_mounted(backend.as_ref(), &volume, &target, tenant);
        let plan = match self.mounted_at(&volume)? {
            Some(_) => Plan::steps(keep.clone()),
            None => volume::mount(backend.as_ref(), &volume, &target, tenant, context),
        };
        let done = self.executor.run(&plan, dry_run)?;
        if !dry_run {
            let flatten = volume.flatten;
            let watched = MountedVolume { tenant: tenant.clone(), target, keep, proof: None, flatten };
            self.mounted_volumes().insert(reference.clone(), watched);
        }
        Ok(done)
    }

    /// The entry of a volume that is still mounted for this tenant where this daemon mounted it.
    fn maintained_mount(&self, tenant: &Name, reference: &VolumeRef) -> Result<Option<MountedVolume>, Fault> {
        let Some(watched) = self.mounted_volumes().get(reference).cloned() else { return Ok(None) };
        let mounts = self.host().mount_points()?;
        Ok((watched.tenant == *tenant && mounts.contains(&watched.target)).then_some(watched))
    }

    /// Unmounts a volume of a tenant, unless it has a lease as well, and then stops maintaining it: a volume that cannot be unmounted
    /// keeps its tenant.
    pub(crate) fn detach(
        &self,
        tenant: &mut Tenant,
        reference: &VolumeRef,
        dry_run: bool,
    ) -> Result<Vec<Applied>, Fault> {
        if !tenant.volumes.contains(reference) {
            return Ok(Vec::new());
        }
        let is_leased = self.leases()?.iter().any(|lease| lease.volume == *reference);
        let mut steps = if is_leased { Vec::new() } else { self.unmount(reference, dry_run)? };
        steps.extend(self.executor.run_steps(vec![self.without_volume(tenant, reference)], dry_run)?);
        Ok(steps)
    }

    /// Detaches a volume from a tenant; the returned action records that.
    fn without_volume(&self, tenant: &mut Tenant, reference: &VolumeRef) -> Action {
        tenant.volumes.retain(|volume| volume != reference);
        let path = self.dirs.tenant_record(&tenant.name);
        Action::State(StateAction::WriteRecord { path, record: Box::new(Record::Tenant(tenant.clone())) })
    }

    /// Refuses a volume that a tenant has.
    pub(crate) fn check_unheld(&self, reference: &VolumeRef) -> Result<(), Fault> {
        self.check_tenants_readable()?;
        let (Some(tenant), _) = self.holders(reference)? else { return Ok(()) };
        let cause = format!("it is mounted for tenant {tenant}");
        Err(Fault::new(Code::InUse, format!("volume {reference}"), cause)
            .reason(Reason::VolumeAttached { volume: reference.clone(), tenant }))
    }

    /// Ends all leases on a volume, removes it from its tenant's record, and unmounts it.
    pub(crate) fn release_all(&self, reference: &VolumeRef, dry_run: bool) -> Result<Vec<Applied>, Fault> {
        let mut steps = self.unmount(reference, dry_run)?;
        let (holder, leases) = self.holders(reference)?;
        let mut forget: Vec<Action> = leases
            .iter()
            .map(|lease| Action::State(StateAction::RemoveRecord { path: self.dirs.lease_record(lease) }))
            .collect();
        if let Some(mut tenant) = holder.and_then(|name| self.tenant(&name).ok()) {
            forget.push(self.without_volume(&mut tenant, reference));
        }
        steps.extend(self.executor.run_steps(forget, dry_run)?);
        Ok(steps)
    }

    /// Unmounts a volume if it is mounted, and closes its device.
    pub(crate) fn unmount(&self, reference: &VolumeRef, dry_run: bool) -> Result<Vec<Applied>, Fault> {
        if !dry_run {
            self.mounted_volumes().remove(reference);
        }
        let Located { backend, volume, .. } = match self.locate(reference) {
            Err(fault) if fault.code == Code::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let target = mount_point(&self.dirs.run, &volume);
        self.executor.run_steps(volume::unmount(backend.as_ref(), &volume, &target), dry_run)
    }

    fn grant_lease(&self, lease: &Lease) -> Result<LeaseView, Fault> {
        self.record_lease(lease)?;
        self.mount_for(&lease.tenant, &lease.volume, lease.selinux_context.clone(), false)?;
        self.lease_view(lease)
    }

    fn record_lease(&self, lease: &Lease) -> Result<(), Fault> {
        let path = self.dirs.lease_record(lease);
        let write = Action::State(StateAction::WriteRecord { path, record: Box::new(Record::Lease(lease.clone())) });
        self.executor.run_steps(vec![write], false).map(drop)
    }
}

/// The SELinux context that a volume with these leases is mounted with. Those that were returned count only while there is no other.
pub(crate) fn context_of(leases: &[Lease]) -> Option<SelinuxContext> {
    let counting = leases.iter().find(|lease| lease.holder.mounts() != Some(0)).or(leases.first());
    counting.and_then(|lease| lease.selinux_context.clone())
}

/// Refuses to give a tenant the device of a raw volume that must not be written, or shows what is not its own.
fn check_device_usable(volume: &Volume, context: Option<&SelinuxContext>) -> Result<(), Fault> {
    if volume.is_raw() && context.is_some() {
        let cause = "it is a raw volume, which has no files that could have an SELinux context";
        return Err(Fault::new(Code::InvalidArgument, format!("volume {}", volume.reference()), cause));
    }
    if volume.is_raw() && volume.read_only {
        let cause = "it is a snapshot of a raw volume, and whoever has its device could write to it";
        return Err(Fault::new(Code::Unsupported, format!("volume {}", volume.reference()), cause)
            .hint("clone it, and attach the clone"));
    }
    volume::check_shown(volume)
}
