//! Volume capabilities: how a volume is to be used.

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{FsKind, SelinuxContext, VolumeFs};
use bulkhead_sys::mount::{MountFlags, split_options, unquote};

use crate::proto::VolumeCapability;
use crate::proto::volume_capability::AccessType;
use crate::proto::volume_capability::access_mode::Mode;

/// How one capability says that a volume is to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// With this file system; `None` where any will do.
    pub fs: Option<FsKind>,
    /// Mounted with these flags beside those of the volume.
    pub flags: MountFlags,
    /// The SELinux context that all of its files have; `None`: they have their own.
    pub selinux_context: Option<SelinuxContext>,
    /// Published at one path at a time.
    pub exclusive: bool,
}

/// The flags of a mount that a capability may have, as mount(8) calls them.
const FLAGS: [&str; 7] = ["ro", "rw", "noatime", "nodev", "noexec", "nosuid", "context=\"…\""];

impl Use {
    /// Reads a capability.
    ///
    /// # Errors
    /// `InvalidArgument` for one that no volume has: a raw block device, several nodes, another file system, an unknown flag.
    pub fn parse(capability: &VolumeCapability) -> Result<Self, Fault> {
        let mode = capability.access_mode.as_ref().map(|mode| mode.mode());
        match mode {
            Some(
                Mode::SingleNodeWriter
                | Mode::SingleNodeReaderOnly
                | Mode::SingleNodeSingleWriter
                | Mode::SingleNodeMultiWriter,
            ) => {}
            Some(Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter) => {
                return Err(invalid(
                    "it is for several nodes, and a volume belongs to the node that it was created on",
                )
                .hint("use access mode ReadWriteOnce or ReadWriteOncePod"));
            }
            Some(Mode::Unknown) | None => return Err(invalid("it has no access mode")),
        }
        let mount = match &capability.access_type {
            Some(AccessType::Mount(mount)) => mount,
            Some(AccessType::Block(_)) => {
                return Err(invalid(
                    "it is for a raw block device, and a Bulkhead volume has a file system of its own",
                )
                .hint("use volumeMode: Filesystem"));
            }
            None => return Err(invalid("it has no access type")),
        };
        let fs = match mount.fs_type.as_str() {
            "" => None,
            "ext4" => Some(FsKind::Ext4),
            "xfs" => Some(FsKind::Xfs),
            other => return Err(invalid(&format!("{other:?} is not one of the file systems ext4, xfs"))),
        };
        if !mount.volume_mount_group.is_empty() {
            return Err(invalid("it has a volume_mount_group, which this driver does not announce"));
        }
        let (mut flags, selinux_context) = flags(&mount.mount_flags)?;
        flags.readonly |= mode == Some(Mode::SingleNodeReaderOnly);
        Ok(Self { fs, flags, selinux_context, exclusive: mode == Some(Mode::SingleNodeSingleWriter) })
    }

    /// Refuses a volume with another file system, or with none.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn check_fs(&self, found: VolumeFs) -> Result<(), Fault> {
        match (self.fs, found.kind()) {
            (_, None) => Err(invalid("a file system is requested, and the volume has none")),
            (Some(wanted), Some(found)) if wanted != found => {
                Err(invalid(&format!("file system {wanted} is requested, and the volume has {found}")))
            }
            _ => Ok(()),
        }
    }
}

/// The file system that a volume is used with; `None` where any will do.
///
/// # Errors
/// `InvalidArgument` without capabilities, and for one that no volume has, as [`Use::parse`].
pub fn check(capabilities: &[VolumeCapability]) -> Result<Option<FsKind>, Fault> {
    if capabilities.is_empty() {
        return Err(invalid("it is missing"));
    }
    let mut wanted = None;
    for capability in capabilities {
        let fs = Use::parse(capability)?.fs;
        if fs.is_some() && wanted.is_some() && fs != wanted {
            return Err(invalid("two file systems are requested"));
        }
        wanted = wanted.or(fs);
    }
    Ok(wanted)
}

/// The flags, and the SELinux context, of a mount. The kubelet puts the context into double quotes, because its level may have commas, and
/// adds it to the options of the class.
fn flags(words: &[String]) -> Result<(MountFlags, Option<SelinuxContext>), Fault> {
    let (mut flags, mut context) = (MountFlags::default(), None);
    for word in words.iter().flat_map(|word| split_options(word)).filter(|word| !word.is_empty()) {
        if let Some(value) = word.strip_prefix("context=") {
            let given: SelinuxContext = unquote(value).parse().map_err(|error| invalid(&format!("{error}")))?;
            if context.as_ref().is_some_and(|other| *other != given) {
                return Err(invalid("it has two SELinux contexts"));
            }
            context = Some(given);
            continue;
        }
        match word {
            "ro" => flags.readonly = true,
            "rw" => {}
            "noatime" => flags.noatime = true,
            "nodev" => flags.nodev = true,
            "noexec" => flags.noexec = true,
            "nosuid" => flags.nosuid = true,
            // Not shown: it may be confidential.
            _ => {
                return Err(
                    invalid("it has an unsupported mount flag").hint(format!("supported flags: {}", FLAGS.join(", ")))
                );
            }
        }
    }
    Ok((flags, context))
}

fn invalid(cause: &str) -> Fault {
    Fault::new(Code::InvalidArgument, "volume_capability", cause)
}
