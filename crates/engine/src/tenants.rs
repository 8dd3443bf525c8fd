//! Tenants: make, list, inspect, change, remove. Mounting volumes for them is in `attach.rs`.

use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead_api::wire::{Done, ProfileStore, TenantCreate, TenantSet, TenantView};
use bulkhead_core::action::{Action, Applied, CgroupAction, Record, StateAction};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::finding::{Finding, in_order};
use bulkhead_core::health::{self, TenantFacts};
use bulkhead_core::model::{Holder, IoLimit, Lease, Profile, Tenant, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::reason::Reason;
use bulkhead_core::slices;
use bulkhead_core::tenant::{self, ResolvedLimits};
use bulkhead_core::units::DevNo;

use crate::engine::{Engine, WithoutCpu};
use crate::findings::lookup_failed;
use crate::hold::promises::check_promise;
use crate::volumes::created_now;

/// Delay before a refused controller is enabled again: each attempt blocks all forks for a moment.
const CPU_RETRY_DELAY: Duration = Duration::from_secs(600);

impl Engine {
    /// Creates a tenant: record, cgroups, weights, limits, volumes. Idempotent.
    ///
    /// # Errors
    /// `AlreadyExists` if it exists and differs, `Unsupported` without the io controller, and those of mounting.
    pub fn tenant_create(&self, request: &TenantCreate, dry_run: bool) -> Result<Done<TenantView>, Fault> {
        let object = format!("tenant {}", request.name);
        let mut wanted = Tenant {
            name: request.name.clone(),
            share: request.share,
            limits: request.limits.clone(),
            fsync_p99_us: request.fsync_p99_us,
            volumes: request.volumes.clone(),
            created_by: request.created_by,
            removing: false,
            profile: None,
        };
        let is_new = match self.tenant(&request.name) {
            // A profile comes later, and is kept.
            Ok(found) if found.clone().without_profile() == wanted => {
                wanted.profile = found.profile;
                false
            }
            Ok(_) => {
                return Err(Fault::new(
                    Code::AlreadyExists,
                    object,
                    "a tenant of that name already exists, and differs",
                )
                .reason(Reason::TenantDiffers { tenant: request.name.clone() }));
            }
            Err(fault) if fault.code == Code::NotFound => true,
            Err(fault) => return Err(fault),
        };
        check_promise(&object, request.fsync_p99_us)?;
        let limits = self.resolve(&request.limits)?;
        for reference in &request.volumes {
            self.check_attachable(&request.name, reference, None, dry_run)?;
        }
        let record = self.dirs.tenant_record(&request.name);
        let (limits, of_holds) = self.without_held_limits(&request.name, limits);
        let plan = [tenant::create(record, &wanted, &self.host().weight_files(), &limits), of_holds].concat();
        let mut steps = match self.executor.run_steps(plan, dry_run) {
            Err(fault) if is_new && !dry_run => return Err(self.undo_create(&wanted, fault)),
            done => done?,
        };
        steps.extend(self.prioritize_serving(&wanted.name, dry_run)?);
        if !dry_run {
            // Some weight files appear only with the first slice: set those of the first tenant now.
            steps.extend(self.restore_cgroups(&wanted)?.into_iter().filter(|step| step.changed));
        }
        for reference in &request.volumes {
            match self.mount_for(&request.name, reference, None, dry_run) {
                Ok(more) => steps.extend(more),
                Err(fault) if is_new => return Err(self.undo_create(&wanted, fault)),
                Err(fault) => return Err(fault),
            }
        }
        let object = (!dry_run).then(|| self.tenant_view(&wanted));
        Ok(Done { object, steps, dry_run })
    }

    /// All tenants.
    ///
    /// # Errors
    /// When the records cannot be listed.
    pub fn tenant_list(&self) -> Result<Vec<TenantView>, Fault> {
        Ok(self.tenants()?.into_iter().filter_map(Result::ok).map(|tenant| self.tenant_view(&tenant)).collect())
    }

    /// One tenant.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`.
    pub fn tenant_inspect(&self, name: &Name) -> Result<TenantView, Fault> {
        Ok(self.tenant_view(&self.tenant(name)?))
    }

    /// Records what a tenant demands, for plans. Replaces an earlier profile.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` for a profile that makes no sense.
    pub fn profile_store(&self, name: &Name, request: &ProfileStore, dry_run: bool) -> Result<Done<TenantView>, Fault> {
        let mut tenant = self.tenant(name)?;
        let ProfileStore { workload, demand, alone_per_s } = request.clone();
        let profile = Profile { workload, demand, alone_per_s, unix_seconds: created_now().unwrap_or_default() };
        if let Err(error) = profile.check() {
            let cause = format!("its profile makes no sense: {error}");
            return Err(Fault::new(Code::InvalidArgument, format!("tenant {name}"), cause));
        }
        tenant.profile = Some(profile);
        let (path, record) = (self.dirs.tenant_record(name), Box::new(Record::Tenant(tenant.clone())));
        let write = Action::State(StateAction::WriteRecord { path, record });
        let steps = self.executor.run_steps(vec![write], dry_run)?;
        Ok(Done { object: (!dry_run).then(|| self.tenant_view(&tenant)), steps, dry_run })
    }

    /// Changes share, limits, promise and volumes. Idempotent.
    ///
    /// # Errors
    /// `NotFound`, `InUse` for a volume of another tenant, and those of mounting and unmounting.
    pub fn tenant_set(&self, name: &Name, request: &TenantSet, dry_run: bool) -> Result<Done<TenantView>, Fault> {
        let before = self.tenant(name)?;
        for reference in &request.attach {
            self.check_attachable(name, reference, None, dry_run)?;
        }
        for reference in &request.detach {
            // A volume that is not attached is no error; one that does not exist is.
            self.locate(reference)?;
        }
        let mut limits = self.resolve(request.limits.as_ref().unwrap_or(&before.limits))?;
        let (mut after, mut steps) = (before.clone(), Vec::new());
        for reference in &request.detach {
            steps.extend(self.detach(&mut after, reference, dry_run)?);
        }
        after.share = request.share.unwrap_or(after.share);
        after.limits = request.limits.clone().unwrap_or(after.limits);
        after.fsync_p99_us = match request.fsync_p99_us {
            None => after.fsync_p99_us,
            Some(us) => Some(us).filter(|us| *us > 0),
        };
        let kept = after.volumes.clone();
        after.volumes.extend(request.attach.iter().filter(|r| !kept.contains(r)).cloned());
        // A removed limit is overwritten with `max`, if its device still exists.
        let dropped = before.limits.iter().filter(|old| !after.limits.iter().any(|limit| limit.device == old.device));
        limits.extend(dropped.filter_map(|old| self.without_limit(old)));
        let (limits, of_holds) = self.without_held_limits(name, limits);
        let plan = tenant::create(self.dirs.tenant_record(name), &after, &self.host().weight_files(), &limits);
        steps.extend(self.executor.run_steps([plan, of_holds].concat(), dry_run)?);
        steps.extend(self.prioritize_serving(name, dry_run)?);
        for reference in &request.attach {
            match self.mount_for(name, reference, None, dry_run) {
                Ok(more) => steps.extend(more),
                Err(fault) => {
                    // A volume that could not be mounted is not recorded as attached.
                    let kept = Tenant { volumes: kept, ..after };
                    let write = tenant::create(self.dirs.tenant_record(name), &kept, &[], &Vec::new());
                    return Err(join(fault, self.executor.run_steps(write, dry_run).err()));
                }
            }
        }
        let object = (!dry_run).then(|| self.tenant_view(&after));
        Ok(Done { object, steps, dry_run })
    }

    /// Removes a tenant: unmounts its volumes (which stay), removes its cgroups. With `force`, its processes are killed.
    /// Idempotent.
    ///
    /// # Errors
    /// `InUse` while processes run in it, or a front end's users have its volumes, without `force`.
    pub fn tenant_remove(&self, name: &Name, force: bool, dry_run: bool) -> Result<Done<TenantView>, Fault> {
        let tenant = match self.tenant(name) {
            Err(fault) if fault.code == Code::NotFound => {
                return Ok(Done { object: None, steps: Vec::new(), dry_run });
            }
            other => other?,
        };
        let processes = self.processes_of(name);
        if !processes.is_empty() && !force {
            return Err(Fault::new(
                Code::InUse,
                format!("tenant {name}"),
                format!("processes run in it: {} ({})", processes.len(), list(&processes)),
            )
            .reason(Reason::TenantHasProcesses { tenant: name.clone() }));
        }
        let is_used = |lease: &Lease| matches!(&lease.holder, Holder::FrontEnd { mounts, .. } if *mounts > 0);
        let leases = self.leases()?;
        if let Some(lease) = leases.iter().find(|lease| lease.tenant == *name && is_used(lease) && !force) {
            let cause = format!("a container that may run elsewhere uses its volume {}", lease.volume);
            return Err(Fault::new(Code::InUse, format!("tenant {name}"), cause).hint("stop that container first"));
        }
        let record = self.dirs.tenant_record(name);
        let mut steps = self.executor.run_steps(vec![tenant::mark_removing(record, &tenant)], dry_run)?;
        if !processes.is_empty() && !dry_run {
            self.kill_processes_of(name)?;
        }
        steps.extend(self.complete_removal(&tenant, dry_run)?);
        Ok(Done { object: None, steps, dry_run })
    }

    /// Unmounts the volumes of a tenant that is marked as being removed, and removes its cgroups and record.
    pub(crate) fn complete_removal(&self, tenant: &Tenant, dry_run: bool) -> Result<Vec<Applied>, Fault> {
        let mut steps = Vec::new();
        for reference in self.volumes_of(tenant)? {
            steps.extend(self.release_all(&reference, dry_run)?);
        }
        let others = self.tenants()?.into_iter().any(|other| other.is_ok_and(|other| other.name != tenant.name));
        let plan = tenant::remove(self.dirs.tenant_record(&tenant.name), tenant, !others);
        steps.extend(self.executor.run_steps(plan, dry_run)?);
        if !dry_run {
            self.without_cpu().remove(&tenant.name);
            // Of tenants that are removed at once, none may have been the last one when its removal was planned.
            if others && self.tenants()?.is_empty() {
                steps.extend(self.executor.run_steps(vec![tenant::remove_slice()], false)?);
            }
        }
        Ok(steps)
    }

    /// Schedules a tenant's journal threads and servers before its processes. If the kernel has no cpu controller or refuses it, the
    /// tenant works without it, and a finding gives the reason.
    fn prioritize_serving(&self, tenant: &Name, dry_run: bool) -> Result<Vec<Applied>, Fault> {
        let refused_lately =
            self.without_cpu().get(tenant).is_some_and(|refused| refused.tried.elapsed() < CPU_RETRY_DELAY);
        if refused_lately || !self.host().controllers().contains(tenant::CPU) {
            return Ok(Vec::new());
        }
        match self.executor.run_steps(tenant::prioritize_serving(tenant), dry_run) {
            Err(fault) if matches!(fault.code, Code::Unsupported | Code::InUse) => {
                self.without_cpu().insert(tenant.clone(), WithoutCpu { fault, tried: Instant::now() });
                Ok(Vec::new())
            }
            done => {
                if !dry_run {
                    self.without_cpu().remove(tenant);
                }
                done
            }
        }
    }

    /// Applies a tenant's record to the kernel: cgroups, weights, limits. A limit on a missing device fails after everything
    /// else.
    pub(crate) fn restore_cgroups(&self, tenant: &Tenant) -> Result<Vec<Applied>, Fault> {
        let (mut present, mut absent) = (ResolvedLimits::new(), None);
        for limit in &tenant.limits {
            match self.resolve_one(limit) {
                Ok(limit) => present.push(limit),
                Err(fault) => absent = Some(fault),
            }
        }
        let (present, of_holds) = self.without_held_limits(&tenant.name, present);
        let plan = [tenant::cgroups(tenant, &self.host().weight_files(), &present), of_holds].concat();
        let mut steps = self.executor.run_steps(plan, false)?;
        steps.extend(self.take_over(&tenant.name)?);
        steps.extend(self.prioritize_serving(&tenant.name, false)?);
        absent.map_or(Ok(steps), Err)
    }

    /// Moves processes started by version 0.1 into the tenant's present slice. Its journal threads and servers move with the volumes.
    fn take_over(&self, name: &Name) -> Result<Vec<Applied>, Fault> {
        let Some((slice, payload)) = slices::version_0_1(name) else { return Ok(Vec::new()) };
        let runs: Vec<u32> = self.host().runs(&payload).into_iter().map(|(pid, _)| pid).collect();
        let mut plan = tenant::move_version_0_1_processes(name, &payload, &runs);
        if self.host().processes(&slice).is_empty() {
            plan.push(Action::Cgroup(CgroupAction::RemoveCgroup { cgroup: slice }));
        }
        let steps = self.executor.run_steps(plan, false)?;
        Ok(steps.into_iter().filter(|step| step.changed).collect())
    }

    /// The processes of a tenant: all in its slice, except its block servers.
    pub(crate) fn processes_of(&self, name: &Name) -> Vec<u32> {
        let serving: Vec<u32> =
            [slices::journal(name), slices::server(name)].iter().flat_map(|leaf| self.host().processes(leaf)).collect();
        let mut all = self.host().processes(&slices::tenant(name));
        all.retain(|pid| !serving.contains(pid));
        all
    }

    /// Kills the processes of a tenant.
    fn kill_processes_of(&self, name: &Name) -> Result<(), Fault> {
        let (above, serving) = (slices::tenant(name), [slices::journal(name), slices::server(name)]);
        for (cgroup, _) in self.host().containers()? {
            if cgroup.parent().as_ref() == Some(&above) && !serving.contains(&cgroup) {
                self.host().kill_all(&cgroup)?;
            }
        }
        Ok(())
    }

    /// The volumes of a tenant, and those of its leases.
    pub(crate) fn volumes_of(&self, tenant: &Tenant) -> Result<Vec<VolumeRef>, Fault> {
        let mut volumes = tenant.volumes.clone();
        for lease in self.leases()? {
            if lease.tenant == tenant.name && !volumes.contains(&lease.volume) {
                volumes.push(lease.volume);
            }
        }
        Ok(volumes)
    }

    fn undo_create(&self, tenant: &Tenant, fault: Fault) -> Fault {
        join(fault, self.complete_removal(tenant, false).err())
    }

    fn resolve(&self, limits: &[IoLimit]) -> Result<ResolvedLimits, Fault> {
        limits.iter().map(|limit| self.resolve_one(limit)).collect()
    }

    /// The entry that removes a limit; `None` when its device is gone.
    pub(crate) fn without_limit(&self, limit: &IoLimit) -> Option<(DevNo, IoLimit)> {
        let dev = self.host().limited_device(Path::new(&limit.device)).ok()?;
        Some((dev, IoLimit { device: limit.device.clone(), ..IoLimit::default() }))
    }

    fn resolve_one(&self, limit: &IoLimit) -> Result<(DevNo, IoLimit), Fault> {
        let values = [limit.read_bytes_per_second, limit.write_bytes_per_second, limit.read_iops, limit.write_iops];
        if values.contains(&Some(0)) {
            let object = format!("limit on {}", limit.device);
            return Err(Fault::new(Code::InvalidArgument, object, "a limit of 0 would stop all I/O permanently")
                .hint("omit it for no limit; to stop a tenant, write 1 to `cgroup.freeze` of its cgroup `payload`"));
        }
        Ok((self.host().limited_device(Path::new(&limit.device))?, limit.clone()))
    }

    fn tenant_view(&self, tenant: &Tenant) -> TenantView {
        let mut findings = self.tenant_findings(tenant, self.tenant_facts());
        let volumes = self.volumes_of(tenant).unwrap_or_else(|fault| {
            findings.push(lookup_failed(fault));
            tenant.volumes.clone()
        });
        let io = |cgroup: CgroupPath| self.host().io_bytes(&cgroup);
        let (journal_io, server_io) = (io(slices::journal(&tenant.name)), io(slices::server(&tenant.name)));
        TenantView {
            name: tenant.name.clone(),
            share: tenant.share,
            limits: tenant.limits.clone(),
            fsync_p99_us: tenant.fsync_p99_us,
            volumes,
            created_by: tenant.created_by,
            slice: slices::tenant(&tenant.name).to_string(),
            n_processes: self.processes_of(&tenant.name).len(),
            payload_io: io(slices::tenant(&tenant.name)).without(journal_io).without(server_io),
            journal_io,
            server_io,
            findings: in_order(findings),
        }
    }

    /// The host's facts that concern tenants.
    pub(crate) fn tenant_facts(&self) -> TenantFacts<'static> {
        TenantFacts {
            has_weight_files: !self.host().weight_files().is_empty(),
            has_cpu: self.host().controllers().contains(tenant::CPU),
            cpu_refused: None,
            unkept_promise: None,
        }
    }

    /// Findings about a tenant, except those about its volumes.
    pub(crate) fn tenant_findings(&self, tenant: &Tenant, host: TenantFacts<'_>) -> Vec<Finding> {
        let cpu_refused = self.without_cpu().get(&tenant.name).map(|refused| refused.fault.clone());
        let unkept = self.unkept_promise(&tenant.name);
        let facts = TenantFacts { cpu_refused: cpu_refused.as_ref(), unkept_promise: unkept.as_ref(), ..host };
        health::tenant_findings(tenant, &facts)
    }
}

fn join(mut first: Fault, second: Option<Fault>) -> Fault {
    if let Some(second) = second {
        first.cause = format!("{}; undoing it also failed ({second})", first.cause);
    }
    first
}

fn list(pids: &[u32]) -> String {
    let shown: Vec<String> = pids.iter().take(5).map(ToString::to_string).collect();
    let more = if pids.len() > 5 { ", …" } else { "" };
    format!("pid {}{more}", shown.join(", "))
}
