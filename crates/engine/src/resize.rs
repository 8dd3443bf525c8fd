//! Resizing volumes, and replacing their journals.

use bulkhead_api::wire::{Done, VolumeResize, VolumeView};
use bulkhead_core::action::Applied;
use bulkhead_core::backend::{self, Backend};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::journal;
use bulkhead_core::journal::JournalSize;
use bulkhead_core::model::{Pool, Provision, Volume, VolumeFs, VolumeRef, VolumeState};
use bulkhead_core::reason::Reason;
use bulkhead_core::units::Bytes;
use bulkhead_core::volume::{self, scratch_mount_point};

use crate::engine::{Engine, Located};
use crate::room::Allocation;
use crate::volumes::is_thin;

impl Engine {
    /// Changes a volume's size: grows it mounted or not; shrinks ext4 that is not mounted. Replaces the journal of an ext4 that is not
    /// mounted. Idempotent: with the present size, it grows the file system to its device's size. A raw volume only grows.
    ///
    /// # Errors
    /// `InvalidArgument` when it would shrink without `shrink`; `Unsupported`, `InUse`, `NoSpace`.
    pub fn volume_resize(
        &self,
        reference: &VolumeRef,
        request: &VolumeResize,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        let object = format!("volume {reference}");
        let located = match (request.size_bytes, request.journal) {
            (None, None) => {
                return Err(Fault::new(Code::InvalidArgument, object, "neither a size nor a journal is given")
                    .hint("specify a size, a journal, or both"));
            }
            (None, Some(_)) => self.locate_unmounted(reference)?,
            (Some(_), _) => self.locate_ready(reference)?,
        };
        if located.volume.read_only {
            return Err(Fault::new(Code::Unsupported, object, "it is a read-only snapshot").hint("clone it first"));
        }
        self.check_unmapped(&located.volume)?;
        let Located { pool, backend, volume } = located;
        let mut now = volume.clone();
        if let Some(size) = request.size_bytes {
            let space = self.host().space(&pool.source)?;
            now.size_bytes = volume::checked_size(&volume, size, space.extent)?;
        }
        // Before anything is changed.
        let journal = request.journal.map(|asked| self.check_journal(&volume, now.size_bytes, asked)).transpose()?;
        let mut steps = Vec::new();
        if request.size_bytes.is_some() {
            steps.extend(self.change_size(&pool, &volume, now.size_bytes, request.shrink, dry_run)?);
        }
        if let Some(to) = journal {
            // The new journal is written completely, to other blocks than the old one.
            let needs_room = volume.layered || volume.provision == Provision::OnDemand;
            let _room = needs_room.then(|| self.reserve(&pool, to, Allocation::Unobserved, &object)).transpose()?;
            steps.extend(self.replace_journal(backend.as_ref(), &now, to, dry_run)?);
            now.state = VolumeState::Ready;
        }
        let object = (!dry_run).then(|| self.volume_view(&pool, backend.as_ref(), &now));
        Ok(Done { object, steps, dry_run })
    }

    /// Changes a volume to a size that was checked.
    fn change_size(
        &self,
        pool: &Pool,
        volume: &Volume,
        to: Bytes,
        shrink: bool,
        dry_run: bool,
    ) -> Result<Vec<Applied>, Fault> {
        let object = format!("volume {}", volume.reference());
        if to < volume.size_bytes && !shrink {
            let cause = format!("{to} is less than its current size of {}", volume.size_bytes);
            return Err(Fault::new(Code::InvalidArgument, object, cause)
                .reason(Reason::WouldShrink { volume: volume.reference() }));
        }
        let has = match volume.unfilled_from_bytes.filter(|from| *from < volume.size_bytes) {
            // An earlier growth was interrupted: this continues its allocation.
            Some(from) => from.max(self.host().allocated(&pool.source, &volume.name)?),
            None => volume.size_bytes,
        };
        let more = Bytes(to.0.saturating_sub(has.0));
        Self::check_size(&self.host().space(&pool.source)?, more, &object)?;
        let _room = match volume.provision {
            Provision::Full => {
                // A tenant's writes to a volume with layers, or to a thin volume with snapshots, allocate as well.
                let writes_allocate = volume.layered || is_thin(pool);
                let allocation =
                    if writes_allocate { Allocation::Unobserved } else { Allocation::Growth(volume.name.clone()) };
                Some(self.reserve(pool, more, allocation, &object)?)
            }
            Provision::OnDemand => None,
        };
        let mounted_at = self.mounted_at(volume)?;
        let scratch = scratch_mount_point(&self.dirs.run, volume.uuid);
        let plan = volume::resize(backend::backend(pool).as_ref(), volume, to, mounted_at.as_deref(), &scratch)?;
        self.executor.run(&plan, dry_run)
    }

    /// A volume that can be changed, or one whose journal could not be replaced: that can be checked, and its journal replaced again.
    pub(crate) fn locate_unmounted(&self, reference: &VolumeRef) -> Result<Located, Fault> {
        match self.locate(reference)? {
            located if matches!(located.volume.state, VolumeState::ReplacingJournal { .. }) => Ok(located),
            _ => self.locate_ready(reference),
        }
    }

    /// The size of the journal that a volume of `volume_size` is to get.
    ///
    /// # Errors
    /// `Unsupported` for XFS and raw volumes, `InvalidArgument`; `InUse` while a tenant holds it.
    fn check_journal(&self, volume: &Volume, size: Bytes, requested: JournalSize) -> Result<Bytes, Fault> {
        let wanted = journal::checked_size(volume, size, requested)?;
        self.check_unheld(&volume.reference())?;
        Ok(wanted)
    }

    /// Replaces the journal of a volume that is not mounted with one of another size. A failure half-way is recovered at once, as after a crash.
    ///
    /// # Errors
    /// `InUse`, `Corrupt` when its file system has errors, `NoSpace` when there is no room in it.
    fn replace_journal(
        &self,
        backend: &dyn Backend,
        volume: &Volume,
        to: Bytes,
        dry_run: bool,
    ) -> Result<Vec<Applied>, Fault> {
        let plan = volume::replace_journal(backend, volume, to, self.mounted_at(volume)?.as_deref())?;
        let fault = match self.executor.run(&plan, dry_run) {
            Err(fault) if !dry_run => fault,
            outcome => return outcome,
        };
        match self.recover_journal(volume) {
            Ok(()) => Err(fault),
            Err(second) => {
                tracing::error!(volume = %volume.reference(), fault = %second, "it may be without a journal, and is not mounted");
                let cause = format!("{}; its journal could not be restored either ({second})", fault.cause);
                Err(Fault { cause, ..fault }.reason(Reason::JournalUnmended { volume: volume.reference() }))
            }
        }
    }

    fn recover_journal(&self, volume: &Volume) -> Result<(), Fault> {
        let Located { backend, volume: now, .. } = self.locate(&volume.reference())?;
        if !matches!(now.state, VolumeState::ReplacingJournal { .. }) {
            return Ok(());
        }
        let scratch = scratch_mount_point(&self.dirs.run, now.uuid);
        let plan = volume::recover(backend.as_ref(), &now, None, &scratch)?;
        plan.map_or(Ok(()), |plan| self.executor.run(&plan, false).map(drop))
    }

    /// The size of a volume's journal, if it is known now.
    pub(crate) fn journal_bytes(&self, backend: &dyn Backend, volume: &Volume) -> Option<Bytes> {
        if volume.fs != VolumeFs::Ext4 {
            return None;
        }
        match self.host().journal_bytes(&backend.device(volume)) {
            Ok(bytes) => bytes,
            // Other findings report problems of the device.
            Err(fault) => {
                tracing::debug!(volume = %volume.reference(), %fault, "its journal cannot be examined");
                None
            }
        }
    }
}
