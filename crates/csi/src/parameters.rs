//! Parameters of StorageClasses and VolumeAttributesClasses.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::str::FromStr;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::journal::JournalSize;
use bulkhead_core::model::{MountOptions, Provision, ReadFrom};
use bulkhead_core::name::Name;
use bulkhead_core::units::Share;

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

/// Prefix of what Kubernetes' sidecars add on their own: names of the claim and of the volume.
const KUBERNETES: &str = "csi.storage.k8s.io/";

/// How similar an unknown parameter has to be to a known one (Jaro-Winkler, 0 to 1) to be taken for a misspelling of it.
const SIMILAR: f64 = 0.7;

/// The directory of a volume that pods see, as with Docker: the root of an ext4 has a `lost+found`, which databases refuse.
const SUBDIR: &str = "data";

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
    let given = Given(class.iter().chain(attributes).map(|(key, value)| (key.as_str(), value.as_str())).collect());
    let journal = match given.text("journalSize") {
        Some("auto") => Some(JournalSize::Auto),
        _ => given.parsed("journalSize")?.map(JournalSize::Bytes),
    };
    let provisions = [("full", Provision::Full), ("on-demand", Provision::OnDemand)];
    let modes = ReadFrom::ALL.map(|mode| (mode.as_str(), mode));
    Ok(Parameters {
        pool: given.parsed("pool")?,
        tenant: given.parsed("tenant")?,
        share: given.parsed("share")?,
        journal,
        provision: given.one_of("provision", &provisions)?,
        read_from: given.one_of("readFrom", &modes)?,
        domain: given.parsed("domain")?,
        fast_commit: given.flag("fastCommit")?,
        mount_options: MountOptions {
            suid: given.flag("suid")?,
            dev: given.flag("dev")?,
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
    Given(attributes.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()).parsed("share")
}

/// The parameters as they were given.
struct Given<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Given<'a> {
    fn text(&self, key: &str) -> Option<&'a str> {
        self.0.get(key).copied()
    }

    fn parsed<T: FromStr<Err: Display>>(&self, key: &str) -> Result<Option<T>, Fault> {
        self.text(key).map(|text| text.parse().map_err(|error| invalid(key, error))).transpose()
    }

    fn one_of<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>, Fault> {
        let Some(text) = self.text(key) else { return Ok(None) };
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        let known = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        found.map(Some).ok_or_else(|| invalid(key, format!("{text:?} is not one of {}", known())))
    }

    fn flag(&self, key: &str) -> Result<bool, Fault> {
        Ok(self.one_of(key, &[("true", true), ("false", false)])?.unwrap_or(false))
    }
}

fn check_known(given: &HashMap<String, String>, known: &[&str]) -> Result<(), Fault> {
    let is_unknown = |key: &&String| !known.contains(&key.as_str()) && !key.starts_with(KUBERNETES);
    // The first one in order, so that the same request gets the same answer.
    let Some(key) = given.keys().filter(is_unknown).min() else { return Ok(()) };
    let similar = known.iter().map(|word| (strsim::jaro_winkler(word, key), word)).max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = match similar.filter(|(similarity, _)| *similarity > SIMILAR) {
        Some((_, word)) => format!("did you mean {word:?}?"),
        None => format!("the parameters are {}", known.join(", ")),
    };
    Err(invalid(key, "no parameter has that name").hint(hint))
}

fn invalid(key: &str, cause: impl Display) -> Fault {
    Fault::new(Code::InvalidArgument, format!("parameter {key:?}"), cause)
}
