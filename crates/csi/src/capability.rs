//! Volume capabilities: how a volume is to be used.

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::FsKind;

use crate::proto::VolumeCapability;
use crate::proto::volume_capability::AccessType;
use crate::proto::volume_capability::access_mode::Mode;

/// The file system that a volume is used with; `None` where any will do.
///
/// # Errors
/// `InvalidArgument` without capabilities, and for one that no volume has: a raw block device, several nodes, another file system.
pub fn check(capabilities: &[VolumeCapability]) -> Result<Option<FsKind>, Fault> {
    if capabilities.is_empty() {
        return Err(invalid("there is none"));
    }
    let mut wanted = None;
    for capability in capabilities {
        let fs = check_one(capability)?;
        if fs.is_some() && wanted.is_some() && fs != wanted {
            return Err(invalid("they name two file systems"));
        }
        wanted = wanted.or(fs);
    }
    Ok(wanted)
}

fn check_one(capability: &VolumeCapability) -> Result<Option<FsKind>, Fault> {
    match capability.access_mode.as_ref().map(|mode| mode.mode()) {
        Some(
            Mode::SingleNodeWriter
            | Mode::SingleNodeReaderOnly
            | Mode::SingleNodeSingleWriter
            | Mode::SingleNodeMultiWriter,
        ) => {}
        Some(Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter) => {
            return Err(invalid("it is for several nodes, and a volume belongs to the node that it was created on")
                .hint("use access mode ReadWriteOnce or ReadWriteOncePod"));
        }
        Some(Mode::Unknown) | None => return Err(invalid("it has no access mode")),
    }
    match &capability.access_type {
        Some(AccessType::Mount(mount)) => match mount.fs_type.as_str() {
            "" => Ok(None),
            "ext4" => Ok(Some(FsKind::Ext4)),
            "xfs" => Ok(Some(FsKind::Xfs)),
            other => Err(invalid(&format!("{other:?} is not one of the file systems ext4, xfs"))),
        },
        Some(AccessType::Block(_)) => {
            Err(invalid("it is for a raw block device, and a Bulkhead volume has a file system of its own")
                .hint("use volumeMode: Filesystem"))
        }
        None => Err(invalid("it has no access type")),
    }
}

fn invalid(cause: &str) -> Fault {
    Fault::new(Code::InvalidArgument, "volume_capability", cause)
}
