//! Checking and repairing volumes, and mapping their devices without a mount.

use bulkhead_api::wire::{Done, VolumeCheck, VolumeView};
use bulkhead_core::action::{Action, Applied, Record, StateAction};
use bulkhead_core::backend::Backend;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{
    Mapping, MountOptions, Pool, PoolSource, Provision, ReadFrom, Repair, Volume, VolumeRef, VolumeState,
};
use bulkhead_core::name::{Name, NameError};
use bulkhead_core::reason::Reason;
use bulkhead_core::volume;
use uuid::Uuid;

use crate::engine::{Engine, Located};
use crate::volumes::created_now;

impl Engine {
    /// Checks a volume's file system, which must not be mounted. Before a full repair it takes a snapshot,
    /// `NAME-before-repair`, if the pool supports snapshots.
    ///
    /// # Errors
    /// `InUse` while it is mounted or mapped, `Unsupported` for a raw volume, `Corrupt` when the check finds errors that it did not repair, `AlreadyExists` while there
    /// is a snapshot of an earlier repair.
    pub fn volume_check(
        &self,
        reference: &VolumeRef,
        request: &VolumeCheck,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        let Located { pool, backend, volume } = self.locate_unmounted(reference)?;
        let repair = match request {
            VolumeCheck { full: true, .. } => Repair::Full,
            VolumeCheck { repair: true, .. } => Repair::Safe,
            VolumeCheck { .. } => Repair::No,
        };
        let plan = volume::check(backend.as_ref(), &volume, repair)?;
        if let Some(at) = self.mounted_at(&volume)? {
            let cause = format!("it is mounted at {}, and can be checked only while it is not mounted", at.display());
            return Err(
                Fault::new(Code::InUse, format!("volume {reference}"), cause).hint("detach it from its tenant first")
            );
        }
        self.check_unmapped(&volume)?;
        let mut steps = Vec::new();
        if repair == Repair::Full && !volume.read_only {
            steps.extend(self.keep_before_repair(&pool, backend.as_ref(), &volume, dry_run)?);
        }
        steps.extend(self.executor.run(&plan, dry_run)?);
        let object = (!dry_run).then(|| self.volume_view(&pool, backend.as_ref(), &volume));
        Ok(Done { object, steps, dry_run })
    }

    /// Takes a snapshot of a volume before its repair; does nothing if the pool does not support snapshots.
    fn keep_before_repair(
        &self,
        pool: &Pool,
        backend: &dyn Backend,
        volume: &Volume,
        dry_run: bool,
    ) -> Result<Vec<Applied>, Fault> {
        let name = before_repair(&volume.name)?;
        let copy = Volume {
            name,
            uuid: Uuid::new_v4(),
            read_only: true,
            origin: Some(volume.name.clone()),
            provision: Provision::OnDemand,
            layered: matches!(pool.source, PoolSource::File { .. }),
            flatten: false,
            unfilled_from_bytes: None,
            read_from: ReadFrom::Disk,
            mount_options: MountOptions { suid: false, dev: false, ..volume.mount_options.clone() },
            created_by: None,
            default_tenant: None,
            created_unix_seconds: created_now(),
            state: VolumeState::Creating,
            ..volume.clone()
        };
        let plan = match volume::safety_copy(backend, volume, &copy) {
            Err(fault) if fault.code == Code::Unsupported => return Ok(Vec::new()),
            plan => plan?,
        };
        if self.named(pool, &copy.name)?.is_some() {
            let kept = copy.reference();
            let cause = format!("{kept} already exists: its state before an earlier repair");
            return Err(Fault::new(Code::AlreadyExists, format!("volume {}", volume.reference()), cause)
                .reason(Reason::EarlierRepairKept { kept }));
        }
        let _room = self.reserve_for_copy(pool, backend, volume)?;
        match self.executor.run(&plan, dry_run) {
            // Without ublk, volumes are on loop devices, which cannot be copied.
            Err(fault) if fault.code == Code::Unsupported => Ok(Vec::new()),
            kept => kept,
        }
    }

    /// Provides a volume's device without mounting it, until it is unmapped or the host reboots. Idempotent.
    ///
    /// # Errors
    /// `InUse` while it is mounted, or held by a tenant.
    pub fn volume_map(&self, reference: &VolumeRef, dry_run: bool) -> Result<Done<VolumeView>, Fault> {
        let Located { pool, backend, volume } = self.locate_ready(reference)?;
        self.check_unheld(reference)?;
        volume::check_shown(&volume)?;
        let is_mapped = self.is_mapped(&volume);
        if is_mapped && self.host().open_device(&backend.device(&volume))?.is_some() {
            let object = (!dry_run).then(|| self.volume_view(&pool, backend.as_ref(), &volume));
            return Ok(Done { object, steps: Vec::new(), dry_run });
        }
        // A recorded mapping without a device is left by a crash.
        if !is_mapped {
            self.release_unheld(backend.as_ref(), &volume, dry_run)?;
        }
        let path = self.dirs.mapping_record(volume.uuid);
        let record = Record::Mapping(Mapping { volume: reference.clone() });
        let write = Action::State(StateAction::WriteRecord { path: path.clone(), record: Box::new(record) });
        let mut plan = volume::map(backend.as_ref(), &volume, write);
        plan.on_failure.push(Action::State(StateAction::RemoveRecord { path }));
        let steps = self.executor.run(&plan, dry_run)?;
        let object = (!dry_run).then(|| self.volume_view(&pool, backend.as_ref(), &volume));
        Ok(Done { object, steps, dry_run })
    }

    /// Removes the device of a mapped volume. Idempotent.
    ///
    /// # Errors
    /// `InUse` while something uses the device.
    pub fn volume_unmap(&self, reference: &VolumeRef, dry_run: bool) -> Result<Done<VolumeView>, Fault> {
        let Located { pool, backend, volume } = self.locate_ready(reference)?;
        let mut steps = Vec::new();
        if self.is_mapped(&volume) {
            let user = self.host().in_use(&backend.device(&volume))?;
            if let Some(user) = user {
                return Err(
                    Fault::new(Code::InUse, format!("volume {reference}"), user).hint("stop what uses its device")
                );
            }
            let forget = Action::State(StateAction::RemoveRecord { path: self.dirs.mapping_record(volume.uuid) });
            steps = self.executor.run_steps([backend.close(&volume), vec![forget]].concat(), dry_run)?;
        }
        let object = (!dry_run).then(|| self.volume_view(&pool, backend.as_ref(), &volume));
        Ok(Done { object, steps, dry_run })
    }

    pub(crate) fn is_mapped(&self, volume: &Volume) -> bool {
        // A damaged record counts as well: the device may be in use.
        self.host().record(&self.dirs.mapping_record(volume.uuid)).is_some()
    }

    /// Refuses a mapped volume.
    pub(crate) fn check_unmapped(&self, volume: &Volume) -> Result<(), Fault> {
        if !self.is_mapped(volume) {
            return Ok(());
        }
        let volume = volume.reference();
        Err(Fault::new(Code::InUse, format!("volume {volume}"), "it is mapped: an operator is working on its device")
            .reason(Reason::VolumeMapped { volume }))
    }
}

/// The name of the snapshot that is taken before a repair.
pub(crate) fn before_repair(name: &Name) -> Result<Name, Fault> {
    format!("{name}-before-repair").parse().map_err(|error: NameError| {
        Fault::new(
            Code::InvalidArgument,
            format!("volume {name}"),
            format!("its state before the repair cannot be kept: {error}"),
        )
        .hint("clone it under a shorter name, and repair the clone")
    })
}
