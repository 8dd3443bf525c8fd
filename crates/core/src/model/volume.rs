//! Volumes, with their stage of life and mount options, and mappings.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::read_from::read_from_tag;
use super::{FrontEnd, Provision, ReadFrom, VolumeFs};
use crate::name::{Name, NameError};
use crate::units::Bytes;

/// A volume's stage of life.
///
/// ```text
///            create                    rm
///   (none) ─────────▶ Creating ─▶ Ready ────▶ Removing ─▶ (none)
///                        │        ▲   │           ▲
///      crash: rolled back└────────┼───┼───────────┘ crash: rolled forward
///                                 │   ▼ resize
///                                Resizing    crash: rolled forward, unless its room has yet to be taken
/// ```
///
/// `ReplacingJournal` follows `Ready` and returns to it, as `Resizing` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum VolumeState {
    /// Being created; not yet reported to the caller. After a crash it is removed.
    Creating,
    /// Usable.
    Ready,
    /// Being resized. After a crash the resize is completed, unless [`Volume::unfilled_from_bytes`] is set: filling
    /// takes long, and is left to the next request.
    Resizing {
        /// The future size.
        to_bytes: Bytes,
    },
    /// Its journal is being replaced, and may be missing: it must not be mounted. After a crash it gets the new journal
    /// if it has none, and otherwise keeps the old one.
    ReplacingJournal {
        /// The journal's future size.
        to_bytes: Bytes,
    },
    /// Being removed. After a crash the removal is completed.
    Removing,
}

/// Deviations from the default mount options, which are `nosuid,nodev` and the root of the file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MountOptions {
    /// Set-user-ID programs and file capabilities take effect, as the root file system of a container needs it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub suid: bool,
    /// Device nodes can be opened.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dev: bool,
    /// The directory in the file system's root that is mounted instead of the root; it is created if it does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(nullable = false))]
    pub subdir: Option<Name>,
}

impl MountOptions {
    /// Whether these are the default options.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let option = |is_set, set: &'static str, unset: &'static str| if is_set { set } else { unset };
        write!(f, "{},{}", option(self.suid, "suid", "nosuid"), option(self.dev, "dev", "nodev"))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// A volume as recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Its pool.
    pub pool: Name,
    /// Its name, unique in the pool.
    pub name: Name,
    /// Its identity, also the UUID of its file system, if it has one.
    pub uuid: Uuid,
    /// Size of the block device.
    pub size_bytes: Bytes,
    /// Its file system; none for a raw volume.
    pub fs: VolumeFs,
    /// When its blocks are allocated.
    pub provision: Provision,
    /// ext4's fast_commit feature.
    #[serde(default)]
    pub fast_commit: bool,
    /// A snapshot: mounted read-only, and not attached if it is a raw volume.
    #[serde(default)]
    pub read_only: bool,
    /// The volume that this one is a snapshot or clone of.
    #[serde(default)]
    pub origin: Option<Name>,
    /// In a directory pool: its image was copied or is a copy, and names its backing chain itself (docs/formats/layers.md).
    #[serde(default)]
    pub layered: bool,
    /// The content of its layers is being copied into its image while it is in use, until it depends on no layer.
    #[serde(default)]
    pub flatten: bool,
    /// Fully provisioned on a thin pool, after an interrupted growth: offset from which on its blocks are not allocated
    /// yet. Its file system ends there, or before. Of a raw volume: from there on its device may show old data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfilled_from_bytes: Option<Bytes>,
    /// From where it reads shared blocks.
    #[serde(rename = "share", default, with = "read_from_tag")]
    pub read_from: ReadFrom,
    /// Its sharing domain: only volumes of the same domain read from each other's page cache. `None` is the pool's
    /// default domain.
    #[serde(default)]
    pub domain: Option<Name>,
    /// Its mount options.
    #[serde(default, skip_serializing_if = "MountOptions::is_default")]
    pub mount_options: MountOptions,
    /// The front end that created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<FrontEnd>,
    /// The tenant that a front end mounts it for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_tenant: Option<Name>,
    /// When it was created, in seconds since the Unix epoch by the host's clock. `None`: by a version that did not
    /// record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_unix_seconds: Option<u64>,
    /// Its stage of life.
    pub state: VolumeState,
}

impl Volume {
    /// Its name in requests and output.
    #[must_use]
    pub fn reference(&self) -> VolumeRef {
        VolumeRef { pool: self.pool.clone(), name: self.name.clone() }
    }

    /// Its sharing domain, qualified by the pool.
    #[must_use]
    pub fn sharing_domain(&self) -> String {
        // Names of pools and domains have no slashes.
        let domain = self.domain.as_ref().map_or("", Name::as_str);
        format!("{}/{domain}", self.pool)
    }

    /// Whether it is a raw volume: without a file system of Bulkhead's.
    #[must_use]
    pub const fn is_raw(&self) -> bool {
        matches!(self.fs, VolumeFs::None)
    }

    /// A copy of the record in another stage.
    #[must_use]
    pub fn with_state(&self, state: VolumeState) -> Self {
        Self { state, ..self.clone() }
    }

    /// The file system's label: the volume's name, cut to 12 bytes (XFS allows 12, ext4 16).
    #[must_use]
    pub fn label(&self) -> &str {
        let name = self.name.as_str();
        &name[..name.len().min(12)]
    }
}

/// `pool/volume`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeRef {
    /// The pool.
    pub pool: Name,
    /// The volume in it.
    pub name: Name,
}

/// An invalid volume reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeRefError {
    /// There is no slash.
    #[error("{0:?} does not name a volume: write POOL/VOLUME")]
    NoPool(String),
    /// One of the two parts is not a valid name.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl FromStr for VolumeRef {
    type Err = VolumeRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (pool, name) = text.split_once('/').ok_or_else(|| VolumeRefError::NoPool(text.to_owned()))?;
        Ok(Self { pool: pool.parse()?, name: name.parse()? })
    }
}

impl TryFrom<String> for VolumeRef {
    type Error = VolumeRefError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

#[cfg(feature = "schema")]
impl utoipa::PartialSchema for VolumeRef {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        String::schema()
    }
}

#[cfg(feature = "schema")]
impl utoipa::ToSchema for VolumeRef {}

impl From<VolumeRef> for String {
    fn from(reference: VolumeRef) -> String {
        reference.to_string()
    }
}

impl fmt::Display for VolumeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.pool, self.name))
    }
}

/// A volume that an operator has mapped: it has a device without being mounted. Lasts until a reboot at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// The volume.
    pub volume: VolumeRef,
}

#[cfg(test)]
impl Volume {
    /// `p/v`, a fully provisioned ext4 of 64 MiB, for tests.
    pub(crate) fn sample() -> Self {
        Self {
            mount_options: MountOptions::default(),
            created_by: None,
            default_tenant: None,
            created_unix_seconds: None,
            pool: "p".parse().unwrap(),
            name: "v".parse().unwrap(),
            uuid: Uuid::from_u128(7),
            size_bytes: Bytes::mib(64),
            fs: VolumeFs::Ext4,
            provision: Provision::Full,
            fast_commit: false,
            read_only: false,
            origin: None,
            layered: false,
            flatten: false,
            unfilled_from_bytes: None,
            read_from: ReadFrom::Disk,
            domain: None,
            state: VolumeState::Ready,
        }
    }
}
