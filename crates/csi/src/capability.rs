//! Volume capabilities: how a volume is to be used.

use std::fmt;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{FsKind, SelinuxContext, VolumeFs};
use bulkhead_sys::mount::{MountFlags, split_options, unquote};

use crate::proto::VolumeCapability;
use crate::proto::volume_capability::AccessType;
use crate::proto::volume_capability::access_mode::Mode;

/// What a capability says that a volume contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Any file system.
    AnyFs,
    /// This file system.
    Fs(FsKind),
    /// None: a raw volume, whose device is published (`volumeMode: Block`).
    Raw,
}

impl Content {
    /// The file system of a volume that is created for it.
    #[must_use]
    pub fn of_new(self) -> VolumeFs {
        match self {
            Self::AnyFs => FsKind::default().into(),
            Self::Fs(kind) => kind.into(),
            Self::Raw => VolumeFs::None,
        }
    }

    /// Whether a volume with that file system can be used so.
    #[must_use]
    pub fn accepts(self, found: VolumeFs) -> bool {
        match self {
            Self::AnyFs => found.kind().is_some(),
            Self::Fs(kind) => found.kind() == Some(kind),
            Self::Raw => found == VolumeFs::None,
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AnyFs => f.write_str("a file system"),
            Self::Fs(kind) => write!(f, "file system {kind}"),
            Self::Raw => f.write_str("a raw block device"),
        }
    }
}

/// How one capability says that a volume is to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// What it contains.
    pub content: Content,
    /// Mounted with these flags beside those of the volume; none for a raw volume.
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
    /// `InvalidArgument` for one that no volume has: several nodes, another file system, an unknown flag, a block device for reading only.
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
        let exclusive = mode == Some(Mode::SingleNodeSingleWriter);
        let mount = match &capability.access_type {
            Some(AccessType::Mount(mount)) => mount,
            Some(AccessType::Block(_)) if mode == Some(Mode::SingleNodeReaderOnly) => return Err(no_reader()),
            Some(AccessType::Block(_)) => {
                return Ok(Self {
                    content: Content::Raw,
                    flags: MountFlags::default(),
                    selinux_context: None,
                    exclusive,
                });
            }
            None => return Err(invalid("it has no access type")),
        };
        let content = match mount.fs_type.as_str() {
            "" => Content::AnyFs,
            "ext4" => Content::Fs(FsKind::Ext4),
            "xfs" => Content::Fs(FsKind::Xfs),
            other => return Err(invalid(&format!("{other:?} is not one of the file systems ext4, xfs"))),
        };
        if !mount.volume_mount_group.is_empty() {
            return Err(invalid("it has a volume_mount_group, which this driver does not announce"));
        }
        let (mut flags, selinux_context) = flags(&mount.mount_flags)?;
        flags.readonly |= mode == Some(Mode::SingleNodeReaderOnly);
        Ok(Self { content, flags, selinux_context, exclusive })
    }

    /// Refuses a volume with another file system; a raw one where a file system is requested, and the other way round.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn check_fs(&self, found: VolumeFs) -> Result<(), Fault> {
        if self.content.accepts(found) {
            return Ok(());
        }
        let (wanted, has) = (self.content, described(found));
        Err(invalid(&format!("{wanted} is requested, and the volume has {has}")))
    }
}

/// What a volume has, for errors.
#[must_use]
pub fn described(found: VolumeFs) -> String {
    found.kind().map_or_else(|| "none: it is a raw volume".to_owned(), |kind| kind.to_string())
}

/// The refusal of a raw volume that is to be read only.
#[must_use]
pub fn no_reader() -> Fault {
    invalid("a block device is to be read only, and a read-only mount of its node would not prevent writes")
        .hint("publish it for writing, or use volumeMode: Filesystem")
}

/// What a volume is used with.
///
/// # Errors
/// `InvalidArgument` without capabilities, for two that no volume has together, and for one that no volume has, as [`Use::parse`].
pub fn check(capabilities: &[VolumeCapability]) -> Result<Content, Fault> {
    let mut wanted: Option<Content> = None;
    for capability in capabilities {
        let content = Use::parse(capability)?.content;
        wanted = Some(match (wanted, content) {
            (None, content) => content,
            (Some(one), other) if one == other => one,
            (Some(Content::Raw), _) | (_, Content::Raw) => {
                return Err(invalid("a file system and a raw block device are requested"));
            }
            (Some(Content::AnyFs), kind) | (Some(kind), Content::AnyFs) => kind,
            _ => return Err(invalid("two file systems are requested")),
        });
    }
    wanted.ok_or_else(|| invalid("it is missing"))
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
