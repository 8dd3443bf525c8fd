//! Trimming of volumes: blocks that their file systems no longer use are returned to their pools, part by part.
//!
//! Owns: the checks before each part, since the volume may have changed after the previous one. Does not: claim it
//! (`service/trim.rs`), or choose which volumes are trimmed (`bulkhead_core::trim`).

use std::path::PathBuf;

use bulkhead_api::wire::{Done, TrimView};
use bulkhead_core::action::{Action, Applied};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{Volume, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::reason::Reason;
use bulkhead_core::trim::{self, CHUNK};
use bulkhead_core::units::Bytes;
use bulkhead_core::volume::Plan;
use uuid::Uuid;

use crate::engine::{Engine, Located};

/// The progress of trimming a volume.
#[derive(Debug, Default)]
pub(crate) struct Trimming {
    /// The volume's UUID at the first part: another volume may have its name since.
    uuid: Option<Uuid>,
    /// The start of the next part.
    next: Bytes,
    trimmed: Bytes,
    steps: Vec<Applied>,
}

impl Trimming {
    /// Adds the progress, which is not undone, to the error that ended it.
    pub(crate) fn ended(&self, fault: Fault) -> Fault {
        if self.next == Bytes(0) {
            return fault;
        }
        let why = match fault.code {
            Code::Cancelled => "it was cancelled".to_owned(),
            _ => fault.cause,
        };
        let cause =
            format!("{why}; by then {} of free space in its first {} had been trimmed", self.trimmed, self.next);
        Fault { cause, ..fault }
    }
}

impl Engine {
    /// Trims the next part of a mounted volume, in a dry run all parts. Returns the answer after the last one.
    ///
    /// # Errors
    /// `Unsupported` for a volume that is not to be trimmed; `InvalidArgument` for one that is not mounted, or not any more.
    pub(crate) fn trim_next(
        &self,
        reference: &VolumeRef,
        trimming: &mut Trimming,
        dry_run: bool,
    ) -> Result<Option<Done<TrimView>>, Fault> {
        let Located { backend, volume, .. } = self.locate_ready(reference)?;
        if *trimming.uuid.get_or_insert(volume.uuid) != volume.uuid {
            let cause = "it was removed, and another volume of that name was created";
            return Err(Fault::new(Code::NotFound, format!("volume {reference}"), cause));
        }
        trim::check(backend.as_ref(), &volume)?;
        let (target, tenant) = self.mounted_for(&volume, trimming)?;
        let step = |start| trim::step(&volume, &target, &tenant, start);
        if dry_run {
            let starts = (0..).map(|n: u64| Bytes(n.saturating_mul(CHUNK.0)));
            let steps: Vec<Action> = starts.map_while(step).collect();
            return Ok(Some(Done { object: None, steps: self.executor.run_steps(steps, true)?, dry_run }));
        }
        // A volume that has been shrunk meanwhile has no further part.
        if let Some(action) = step(trimming.next) {
            // There is nothing to undo, so it can be cancelled before each part.
            let plan = Plan { steps: vec![action], on_failure: Vec::new(), can_be_undone: true };
            let applied = self.executor.run(&plan, false)?;
            let trimmed = Bytes(applied.iter().filter_map(|step| step.discarded_bytes).map(|bytes| bytes.0).sum());
            trimming.trimmed = Bytes(trimming.trimmed.0.saturating_add(trimmed.0));
            trimming.next = Bytes(trimming.next.0.saturating_add(CHUNK.0));
            trimming.steps.extend(applied);
            self.count_trimmed(&reference.pool, trimmed);
        }
        if step(trimming.next).is_some() {
            return Ok(None);
        }
        let view = TrimView { volume: reference.clone(), trimmed_bytes: trimming.trimmed };
        Ok(Some(Done { object: Some(view), steps: std::mem::take(&mut trimming.steps), dry_run }))
    }

    /// Where a volume is mounted, and for which tenant.
    fn mounted_for(&self, volume: &Volume, trimming: &Trimming) -> Result<(PathBuf, Name), Fault> {
        let reference = volume.reference();
        let target = self.mounted_at(volume)?;
        let (holder, _) = self.holders(&reference)?;
        if let (Some(target), Some(holder)) = (target, holder) {
            return Ok((target, holder));
        }
        let fault = |cause: &str| Fault::new(Code::InvalidArgument, format!("volume {reference}"), cause);
        if trimming.next > Bytes(0) {
            return Err(fault("it was detached while it was being trimmed"));
        }
        Err(fault("it is not mounted, and only a mounted file system can be trimmed")
            .reason(Reason::VolumeNotAttached { volume: reference.clone() }))
    }

    fn count_trimmed(&self, pool: &Name, trimmed: Bytes) {
        let mut counts = self.trimmed();
        let count = counts.entry(pool.clone()).or_default();
        *count = Bytes(count.0.saturating_add(trimmed.0));
    }
}
