//! Trimming: returning the unused blocks of a mounted volume's file system to its pool (FITRIM).
//!
//! Owns: which volumes are trimmed, and in which steps. Does not: claim a volume, or decide when.

use std::path::Path;

use crate::action::{Action, MountAction};
use crate::backend::Backend;
use crate::error::{Code, Fault};
use crate::model::Volume;
use crate::name::Name;
use crate::slices;
use crate::units::Bytes;

/// The range of one step. Other operations on the volume wait for at most one step; and 1 GiB is a whole number of
/// block groups, which ext4 skips the next time if nothing was freed in them.
pub const CHUNK: Bytes = Bytes(Bytes::GIB);

/// Refuses a volume for which trimming is useless or harmful.
///
/// # Errors
/// `Unsupported`, with the reason.
pub fn check(backend: &dyn Backend, volume: &Volume) -> Result<(), Fault> {
    let refused = |cause: &str| Fault::new(Code::Unsupported, format!("volume {}", volume.reference()), cause);
    if volume.read_only {
        return Err(refused("it is a read-only snapshot, in which nothing is ever freed")
            .hint("remove it when it is no longer needed"));
    }
    if volume.is_raw() {
        return Err(refused("it is a raw volume: which of its blocks are unused is known to its user only")
            .hint("discard them there, as with `fstrim` in a virtual machine, or `blkdiscard` for the whole device"));
    }
    backend.discard_obstacle(volume).map_or(Ok(()), |reason| Err(refused(reason)))
}

/// The step that trims a volume's range from `start` on, for the tenant that has it mounted at `target`; `None` at the
/// end.
#[must_use]
pub fn step(volume: &Volume, target: &Path, tenant: &Name, start: Bytes) -> Option<Action> {
    let rest = volume.size_bytes.0.checked_sub(start.0).filter(|rest| *rest > 0)?;
    Some(Action::Mount(MountAction::TrimFs {
        target: target.to_owned(),
        cgroup: slices::server(tenant),
        start_bytes: start,
        length_bytes: CHUNK.min(Bytes(rest)),
    }))
}

#[cfg(test)]
mod tests;
