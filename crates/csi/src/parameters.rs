//! Parameters of StorageClasses and VolumeAttributesClasses.

use std::collections::HashMap;

use bulkhead_core::error::Fault;
use bulkhead_core::journal::JournalSize;
use bulkhead_core::model::{MountOptions, Provision, ReadFrom};
use bulkhead_core::name::Name;
use bulkhead_core::units::Share;
use bulkhead_front_end::{Given, SUBDIR};

/// Every parameter of a StorageClass, in the order of the documentation.
pub const KNOWN: [&str; 11] = [
    "pool",
    "share",
    "tenant",
    "journalSize",
    "provision",
    "readFrom",
    "domain",
    "fastCommit",
    "subdir",
    "suid",
    "dev",
];

/// Every parameter of a VolumeAttributesClass.
pub const MUTABLE: [&str; 1] = ["share"];

/// What CSI calls an option.
const WORD: &str = "parameter";

/// Prefix of what Kubernetes' sidecars add on their own: names of the claim and of the volume.
const KUBERNETES: &str = "csi.storage.k8s.io/";

/// What a volume is to be; absent parameters have the daemon's or the driver's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// `pool`: where it is created.
    pub pool: Option<Name>,
    /// `tenant`: whose share its I/O is charged to. Default: a tenant of its own, named as the volume.
    pub tenant: Option<Name>,
    /// `share`: the weight of a tenant that is created for it, 1 to 10000.
    pub share: Option<Share>,
    /// `journalSize`.
    pub journal: Option<JournalSize>,
    /// `provision`.
    pub provision: Option<Provision>,
    /// `readFrom`, for clones.
    pub read_from: Option<ReadFrom>,
    /// `domain`, for clones.
    pub domain: Option<Name>,
    /// `fastCommit`.
    pub fast_commit: bool,
    /// `subdir`, `suid`, `dev`: how it is mounted. A copy has the directory of its source by default.
    pub mount_options: MountOptions,
}

impl Parameters {
    /// How a volume that is no copy is mounted: without `subdir`, its directory `data`.
    #[must_use]
    pub fn mount_options_of_new(&self) -> MountOptions {
        let subdir = self.mount_options.subdir.clone().or_else(|| SUBDIR.parse().ok());
        MountOptions { subdir, ..self.mount_options.clone() }
    }
}

/// Reads the parameters of a new volume, with those of its VolumeAttributesClass, which take precedence.
///
/// # Errors
/// `InvalidArgument`, naming the parameter: unknown (with the most similar known one), or an invalid value.
pub fn parse(class: &HashMap<String, String>, attributes: &HashMap<String, String>) -> Result<Parameters, Fault> {
    check_known(class, &KNOWN)?;
    check_known(attributes, &MUTABLE)?;
    let given = Given::new(WORD, class.iter().chain(attributes));
    Ok(Parameters {
        pool: given.parsed("pool")?,
        tenant: given.parsed("tenant")?,
        share: given.parsed("share")?,
        journal: given.journal("journalSize")?,
        provision: given.provision("provision")?,
        read_from: given.read_from("readFrom")?,
        domain: given.parsed("domain")?,
        fast_commit: flag(&given, "fastCommit")?,
        mount_options: MountOptions {
            suid: flag(&given, "suid")?,
            dev: flag(&given, "dev")?,
            subdir: given.parsed("subdir")?,
        },
    })
}

/// Reads the parameters of a VolumeAttributesClass: the new share.
///
/// # Errors
/// As [`parse`].
pub fn parse_mutable(attributes: &HashMap<String, String>) -> Result<Option<Share>, Fault> {
    check_known(attributes, &MUTABLE)?;
    Given::new(WORD, attributes).parsed("share")
}

fn flag(given: &Given<'_>, key: &str) -> Result<bool, Fault> {
    Ok(given.one_of(key, &[("true", true), ("false", false)])?.unwrap_or(false))
}

fn check_known(given: &HashMap<String, String>, known: &[&str]) -> Result<(), Fault> {
    let given = Given::new(WORD, given.iter().filter(|(key, _)| !key.starts_with(KUBERNETES)));
    match given.unknown(known) {
        Some(key) => Err(given.unknown_key(key, known)),
        None => Ok(()),
    }
}
