//! The options of `docker volume create --opt KEY=VALUE` and of `driver_opts` in a Compose file.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::journal::JournalSize;
use bulkhead_core::model::{FsKind, MountOptions, Provision, ReadFrom};
use bulkhead_core::name::Name;
use bulkhead_core::units::{Bytes, Share};

/// Every option, in the order of the documentation.
pub const KNOWN: [&str; 14] = [
    "size",
    "fs",
    "pool",
    "share",
    "tenant",
    "journal-size",
    "provision",
    "clone-of",
    "read-from",
    "domain",
    "fast-commit",
    "subdir",
    "suid",
    "dev",
];

/// How similar an unknown option has to be to a known one (Jaro-Winkler, 0 to 1) to be taken for a misspelling of it: as clap does.
const SIMILAR: f64 = 0.7;

/// The directory of a volume that its containers see. The root of an ext4 has a `lost+found`, for which Docker takes the volume for one
/// that is not empty, and copies nothing from the image into it; database images refuse to initialise such a directory.
const SUBDIR: &str = "data";

/// What a volume is to be; absent options have the daemon's or the plugin's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `pool`: where it is created.
    pub pool: Option<Name>,
    /// `tenant`: whose share its I/O is charged to. Default: a tenant of its own, named as the volume.
    pub tenant: Option<Name>,
    /// `share`: the weight of a tenant that is created for it, 1 to 10000.
    pub share: Option<Share>,
    /// What it is made of.
    pub source: Source,
    /// `subdir`, `suid`, `dev`: how it is mounted.
    pub mount_options: MountOptions,
}

/// What a volume is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An empty file system.
    Empty {
        /// `size`.
        size: Option<Bytes>,
        /// `fs`.
        fs: FsKind,
        /// `provision`.
        provision: Option<Provision>,
        /// `journal-size`.
        journal: Option<JournalSize>,
        /// `fast-commit`.
        fast_commit: bool,
    },
    /// A copy of a volume or snapshot in the same pool.
    CloneOf {
        /// `clone-of`.
        origin: Name,
        /// `read-from`.
        read_from: Option<ReadFrom>,
        /// `domain`.
        domain: Option<Name>,
    },
}

impl Default for Source {
    fn default() -> Self {
        Self::Empty { size: None, fs: FsKind::default(), provision: None, journal: None, fast_commit: false }
    }
}

/// Reads the options of one request.
///
/// # Errors
/// `InvalidArgument`, naming the option: unknown (with the most similar known one), an invalid value, or one that does not go with another.
pub fn parse(options: &BTreeMap<String, String>) -> Result<Options, Fault> {
    if let Some(unknown) = options.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        return Err(unknown_option(unknown));
    }
    let given = Given(options);
    let (pool_of_origin, source) = match given.text("clone-of") {
        Some(origin) => given.clone_of(origin)?,
        None => (None, given.empty()?),
    };
    let pool = given.parsed("pool")?;
    if let (Some(pool), Some(origin)) = (&pool, &pool_of_origin)
        && pool != origin
    {
        let cause = format!("a clone is created in the pool of its origin, which is {origin}, not {pool}");
        return Err(invalid("pool", cause).hint("omit --opt pool"));
    }
    let subdir = match given.parsed("subdir")? {
        None if matches!(source, Source::Empty { .. }) => SUBDIR.parse().ok(),
        subdir => subdir,
    };
    Ok(Options {
        pool: pool.or(pool_of_origin),
        tenant: given.parsed("tenant")?,
        share: given.parsed("share")?,
        source,
        mount_options: MountOptions { suid: given.flag("suid")?, dev: given.flag("dev")?, subdir },
    })
}

/// The options as they were given.
struct Given<'a>(&'a BTreeMap<String, String>);

impl Given<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
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

    /// `true`, `false`, or nothing at all for true, as in `--opt suid`.
    fn flag(&self, key: &str) -> Result<bool, Fault> {
        Ok(self.one_of(key, &[("", true), ("true", true), ("false", false)])?.unwrap_or(false))
    }

    fn empty(&self) -> Result<Source, Fault> {
        for key in ["read-from", "domain"] {
            if self.0.contains_key(key) {
                return Err(invalid(key, "only a clone shares blocks with another volume")
                    .hint("set --opt clone-of=VOLUME as well"));
            }
        }
        let size = self.parsed::<Bytes>("size")?;
        if size == Some(Bytes(0)) {
            return Err(invalid("size", "a volume cannot have size 0").hint("set a size such as --opt size=10G"));
        }
        let journal = match self.text("journal-size") {
            Some("auto") => Some(JournalSize::Auto),
            _ => self.parsed("journal-size")?.map(JournalSize::Bytes),
        };
        let provisions = [("full", Provision::Full), ("on-demand", Provision::OnDemand)];
        let file_systems = [("ext4", FsKind::Ext4), ("xfs", FsKind::Xfs)];
        Ok(Source::Empty {
            size,
            fs: self.one_of("fs", &file_systems)?.unwrap_or_default(),
            provision: self.one_of("provision", &provisions)?,
            journal,
            fast_commit: self.flag("fast-commit")?,
        })
    }

    fn clone_of(&self, origin: &str) -> Result<(Option<Name>, Source), Fault> {
        for key in ["size", "fs", "provision", "journal-size", "fast-commit"] {
            if self.0.contains_key(key) {
                return Err(invalid(key, "a clone has the size and the file system of its origin")
                    .hint(format!("omit --opt {key}")));
            }
        }
        let (pool, origin) = match origin.split_once('/') {
            Some((pool, origin)) => (Some(pool), origin),
            None => (None, origin),
        };
        let name = |text: &str| text.parse::<Name>().map_err(|error| invalid("clone-of", error));
        let modes = ReadFrom::ALL.map(|mode| (mode.as_str(), mode));
        let read_from = self.one_of("read-from", &modes)?;
        let source = Source::CloneOf { origin: name(origin)?, read_from, domain: self.parsed("domain")? };
        Ok((pool.map(name).transpose()?, source))
    }
}

fn unknown_option(key: &str) -> Fault {
    let similar =
        KNOWN.iter().map(|known| (strsim::jaro_winkler(known, key), known)).max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = match similar.filter(|(similarity, _)| *similarity > SIMILAR) {
        _ if matches!(key, "type" | "o" | "device") => "it belongs to Docker's own driver `local`: omit it".to_owned(),
        Some((_, known)) => format!("did you mean {known:?}?"),
        None => format!("the options are {}", KNOWN.join(", ")),
    };
    invalid(key, "no option has that name").hint(hint)
}

fn invalid(key: &str, cause: impl Display) -> Fault {
    Fault::new(Code::InvalidArgument, format!("option {key:?}"), cause)
}
