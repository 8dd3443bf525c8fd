//! Parameters of StorageClasses and VolumeAttributesClasses.

use std::collections::HashMap;
use std::fmt::Display;
use std::str::FromStr;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::journal::JournalSize;
use bulkhead_core::model::{IoLimit, MountOptions, Provision, ReadFrom};
use bulkhead_core::name::Name;
use bulkhead_core::units::{Bytes, Share};
use bulkhead_front_end::{Given, SUBDIR};

use crate::capability::Content;

/// Every parameter of a StorageClass, in the order of the documentation.
pub const KNOWN: [&str; 16] = [
    "pool",
    "share",
    "readBytesPerSecond",
    "writeBytesPerSecond",
    "readIops",
    "writeIops",
    "fsyncP99",
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
pub const MUTABLE: [&str; 6] =
    ["share", "readBytesPerSecond", "writeBytesPerSecond", "readIops", "writeIops", "fsyncP99"];

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
    /// The share, the limits and the promise of a tenant that is created for it.
    pub mutable: Mutable,
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

/// What a VolumeAttributesClass changes of a volume's tenant. Limits are for each disk below the volume's pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mutable {
    /// `share`: its weight, 1 to 10000.
    pub share: Option<Share>,
    /// `readBytesPerSecond`.
    pub read_bytes_per_second: Limit,
    /// `writeBytesPerSecond`.
    pub write_bytes_per_second: Limit,
    /// `readIops`.
    pub read_iops: Limit,
    /// `writeIops`.
    pub write_iops: Limit,
    /// `fsyncP99`: the promised 99th percentile of the latency of its fsyncs, microseconds; 0 for `none`.
    pub fsync_p99_us: Option<u64>,
}

/// What a parameter says about a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// Nothing.
    #[default]
    Unchanged,
    /// `max`: there is none.
    Unlimited,
    /// Bytes or operations per second.
    PerSecond(u64),
}

impl Mutable {
    /// Limits of a tenant with these changes, on disks by their kernel names; `None` if nothing is said about limits.
    #[must_use]
    pub fn limits(&self, existing: &[IoLimit], disks: &[String]) -> Option<Vec<IoLimit>> {
        let (reads, writes) = (self.read_bytes_per_second, self.write_bytes_per_second);
        if [reads, writes, self.read_iops, self.write_iops] == [Limit::Unchanged; 4] {
            return None;
        }
        let path = |disk: &String| format!("/dev/{disk}");
        let (here, mut limits): (Vec<IoLimit>, Vec<IoLimit>) =
            existing.iter().cloned().partition(|limit| disks.iter().any(|disk| path(disk) == limit.device));
        for device in disks.iter().map(path) {
            let found = here.iter().find(|limit| limit.device == device).cloned();
            let old = found.unwrap_or(IoLimit { device, ..IoLimit::default() });
            let new = IoLimit {
                read_bytes_per_second: reads.after(old.read_bytes_per_second),
                write_bytes_per_second: writes.after(old.write_bytes_per_second),
                read_iops: self.read_iops.after(old.read_iops),
                write_iops: self.write_iops.after(old.write_iops),
                device: old.device.clone(),
            };
            if new != (IoLimit { device: old.device, ..IoLimit::default() }) {
                limits.push(new);
            }
        }
        Some(limits)
    }
}

impl Limit {
    fn after(self, old: Option<u64>) -> Option<u64> {
        match self {
            Self::Unchanged => old,
            Self::Unlimited => None,
            Self::PerSecond(limit) => Some(limit),
        }
    }
}

impl Parameters {
    /// How a volume that is no copy is mounted: without `subdir`, its directory `data`. A raw volume is not.
    #[must_use]
    pub fn mount_options_of_new(&self, content: Content) -> MountOptions {
        if content == Content::Raw {
            return self.mount_options.clone();
        }
        let subdir = self.mount_options.subdir.clone().or_else(|| SUBDIR.parse().ok());
        MountOptions { subdir, ..self.mount_options.clone() }
    }

    /// Refuses what says how a file system is made or mounted, for a raw volume, which has none.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the parameter.
    pub fn check_raw(&self) -> Result<(), Fault> {
        let MountOptions { suid, dev, subdir } = &self.mount_options;
        let given = [
            ("journalSize", self.journal.is_some()),
            ("fastCommit", self.fast_commit),
            ("subdir", subdir.is_some()),
            ("suid", *suid),
            ("dev", *dev),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((key, _)) => {
                let cause = "a raw volume (volumeMode: Block) has no file system";
                Err(Fault::new(Code::InvalidArgument, format!("{WORD} {key:?}"), cause)
                    .hint("use a StorageClass without that parameter"))
            }
        }
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
        mutable: mutable(&given)?,
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

/// Reads the parameters of a VolumeAttributesClass.
///
/// # Errors
/// As [`parse`].
pub fn parse_mutable(attributes: &HashMap<String, String>) -> Result<Mutable, Fault> {
    check_known(attributes, &MUTABLE)?;
    mutable(&Given::new(WORD, attributes))
}

fn mutable(given: &Given<'_>) -> Result<Mutable, Fault> {
    let bytes = |key| limit(given, key, |bytes: Bytes| bytes.0);
    let operations = |key| limit(given, key, |operations: u64| operations);
    Ok(Mutable {
        share: given.parsed("share")?,
        read_bytes_per_second: bytes("readBytesPerSecond")?,
        write_bytes_per_second: bytes("writeBytesPerSecond")?,
        read_iops: operations("readIops")?,
        write_iops: operations("writeIops")?,
        fsync_p99_us: given.promise("fsyncP99")?,
    })
}

fn limit<T: FromStr<Err: Display>>(given: &Given<'_>, key: &str, number: impl Fn(T) -> u64) -> Result<Limit, Fault> {
    match given.text(key) {
        Some("max") => Ok(Limit::Unlimited),
        _ => match given.parsed(key)?.map(number) {
            Some(0) => Err(given.invalid(key, "a limit of 0 stops all I/O").hint("`max` removes the limit")),
            limit => Ok(limit.map_or(Limit::Unchanged, Limit::PerSecond)),
        },
    }
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
