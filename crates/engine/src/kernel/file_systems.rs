//! File systems that are not mounted: making, checking and resizing them, and their journals.

use bulkhead_core::action::{DeviceRef, FsAction};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model;
use bulkhead_core::reason::Reason;
use bulkhead_formats::first_block;
use bulkhead_formats::servers::lvm;
use bulkhead_sys::fsutil::{self, CheckOutcome, FsError, MkfsOptions, Repair};
use bulkhead_sys::lvm::LvKind;

use super::Kernel;
use super::act::Outcome;
use super::faults::{Classify, file as file_object};

impl Kernel {
    pub(super) fn act_on_fs(&self, action: &FsAction) -> Result<Outcome, Fault> {
        use FsAction as A;
        match action {
            A::Mkfs { device, fs, uuid, label, fast_commit, journal } => {
                let node = self.node(device)?;
                let options = MkfsOptions {
                    kind: *fs,
                    uuid: uuid.to_string(),
                    label: label.clone(),
                    fast_commit: *fast_commit,
                    journal_size: *journal,
                    reads_zero: reads_zero(device)?,
                };
                fsutil::mkfs(&node, &options).map_err(|e| e.fault(device))?;
            }
            A::CheckFs { device, fs, repair } => {
                let node = self.node(device)?;
                let how = match repair {
                    model::Repair::No => Repair::No,
                    model::Repair::Safe => Repair::Preen,
                    model::Repair::Full => Repair::Yes,
                };
                let outcome = fsutil::check(&node, *fs, how).map_err(|e| e.fault(device))?;
                match outcome {
                    CheckOutcome::Clean => return Ok(Outcome::UNCHANGED),
                    CheckOutcome::Repaired => {}
                    CheckOutcome::LogDirty => {
                        let cause = "its log has not been replayed; XFS does that at the next mount";
                        return Err(Fault::new(Code::InUse, device, cause).hint("mount it once, then check again"));
                    }
                    CheckOutcome::Errors(text) => {
                        return Err(Fault::new(Code::Corrupt, device, format!("its {fs} has errors: {text}"))
                            .reason(Reason::FileSystemErrors));
                    }
                }
            }
            A::NewFsUuid { device, fs, uuid } => {
                fsutil::new_uuid(&self.node(device)?, *fs, &uuid.to_string()).map_err(|e| e.fault(device))?;
            }
            A::StampFsUuid { image, uuid, otherwise } => {
                if !first_block::stamp_uuid(image, *uuid).map_err(|e| e.fault(file_object(image)))? {
                    otherwise.iter().try_for_each(|step| self.act(step).map(drop))?;
                }
            }
            A::GrowFs { device, fs, mounted_at } => {
                fsutil::grow(&self.node(device)?, *fs, mounted_at.as_deref()).map_err(|e| e.fault(device))?;
            }
            A::ShrinkFs { device, size_bytes } => {
                match fsutil::shrink(&self.node(device)?, *size_bytes) {
                    // An earlier attempt was interrupted after it was done: nothing is left to do.
                    Err(FsError::NotSmaller { .. }) => return Ok(Outcome::UNCHANGED),
                    other => other.map_err(|e| e.fault(device))?,
                };
            }
            A::RemoveJournal { device, wanted_bytes } => {
                let removed =
                    fsutil::remove_journal(&self.node(device)?, *wanted_bytes).map_err(|e| e.fault(device))?;
                return Ok(Outcome::changed(removed));
            }
            A::MakeJournal { device, size_bytes } => {
                let made = fsutil::make_journal(&self.node(device)?, *size_bytes).map_err(|e| e.fault(device))?;
                return Ok(Outcome::changed(made));
            }
        }
        Ok(Outcome::DONE)
    }
}

/// Whether a new device reads as zeroes: images and thin volumes do, a thick volume shows old data.
fn reads_zero(device: &DeviceRef) -> Result<bool, Fault> {
    match device {
        DeviceRef::Image { .. } => Ok(true),
        DeviceRef::Lv { vg, lv } => {
            let found = lvm().lv(vg, lv).map_err(|e| e.fault(device))?;
            Ok(found.is_some_and(|lv| matches!(lv.kind, LvKind::Thin { .. })))
        }
    }
}
