//! The options of `docker volume create --opt KEY=VALUE` and of `driver_opts` in a Compose file.

use std::collections::BTreeMap;

use bulkhead_core::error::Fault;
use bulkhead_core::journal::JournalSize;
use bulkhead_core::model::{FsKind, MountOptions, Provision, ReadFrom};
use bulkhead_core::name::Name;
use bulkhead_core::units::{Bytes, Share};
use bulkhead_front_end::{Given, SUBDIR};

/// Every option, in the order of the documentation.
pub const KNOWN: [&str; 15] = [
    "size",
    "fs",
    "pool",
    "share",
    "fsync-p99",
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

/// What a volume is to be; absent options have the daemon's or the plugin's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `pool`: where it is created.
    pub pool: Option<Name>,
    /// `tenant`: whose share its I/O is charged to. Default: a tenant of its own, named as the volume.
    pub tenant: Option<Name>,
    /// `share`: the weight of a tenant that is created for it, 1 to 10000.
    pub share: Option<Share>,
    /// `fsync-p99`: the promised 99th percentile of the latency of that tenant's fsyncs, microseconds; 0 for `none`.
    pub fsync_p99_us: Option<u64>,
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
    let given = Given::new("option", options);
    if let Some(unknown) = given.unknown(&KNOWN) {
        return Err(unknown_option(&given, unknown));
    }
    let (pool_of_origin, source) = match given.text("clone-of") {
        Some(origin) => clone_of(&given, origin)?,
        None => (None, empty(&given)?),
    };
    let pool = given.parsed("pool")?;
    if let (Some(pool), Some(origin)) = (&pool, &pool_of_origin)
        && pool != origin
    {
        let cause = format!("a clone is created in the pool of its origin, which is {origin}, not {pool}");
        return Err(given.invalid("pool", cause).hint("omit --opt pool"));
    }
    let subdir = match given.parsed("subdir")? {
        None if matches!(source, Source::Empty { .. }) => SUBDIR.parse().ok(),
        subdir => subdir,
    };
    Ok(Options {
        pool: pool.or(pool_of_origin),
        tenant: given.parsed("tenant")?,
        share: given.parsed("share")?,
        fsync_p99_us: given.promise("fsync-p99")?,
        source,
        mount_options: MountOptions { suid: flag(&given, "suid")?, dev: flag(&given, "dev")?, subdir },
    })
}

/// `true`, `false`, or nothing at all for true, as in `--opt suid`.
fn flag(given: &Given<'_>, key: &str) -> Result<bool, Fault> {
    Ok(given.one_of(key, &[("", true), ("true", true), ("false", false)])?.unwrap_or(false))
}

fn empty(given: &Given<'_>) -> Result<Source, Fault> {
    for key in ["read-from", "domain"] {
        if given.has(key) {
            return Err(given
                .invalid(key, "only a clone shares blocks with another volume")
                .hint("set --opt clone-of=VOLUME as well"));
        }
    }
    let size = given.parsed::<Bytes>("size")?;
    if size == Some(Bytes(0)) {
        return Err(given.invalid("size", "a volume cannot have size 0").hint("set a size such as --opt size=10G"));
    }
    let journal = given.journal("journal-size")?;
    if given.text("fs") == Some("none") {
        let cause = "a raw volume has no directory, and Docker mounts directories";
        return Err(given.invalid("fs", cause).hint("`bulkhead volume create --fs none` makes one for other uses"));
    }
    let file_systems = [("ext4", FsKind::Ext4), ("xfs", FsKind::Xfs)];
    Ok(Source::Empty {
        size,
        fs: given.one_of("fs", &file_systems)?.unwrap_or_default(),
        provision: given.provision("provision")?,
        journal,
        fast_commit: flag(given, "fast-commit")?,
    })
}

fn clone_of(given: &Given<'_>, origin: &str) -> Result<(Option<Name>, Source), Fault> {
    for key in ["size", "fs", "provision", "journal-size", "fast-commit"] {
        if given.has(key) {
            return Err(given
                .invalid(key, "a clone has the size and the file system of its origin")
                .hint(format!("omit --opt {key}")));
        }
    }
    let (pool, origin) = match origin.split_once('/') {
        Some((pool, origin)) => (Some(pool), origin),
        None => (None, origin),
    };
    let name = |text: &str| text.parse::<Name>().map_err(|error| given.invalid("clone-of", error));
    let read_from = given.read_from("read-from")?;
    let source = Source::CloneOf { origin: name(origin)?, read_from, domain: given.parsed("domain")? };
    Ok((pool.map(name).transpose()?, source))
}

fn unknown_option(given: &Given<'_>, key: &str) -> Fault {
    let fault = given.unknown_key(key, &KNOWN);
    match key {
        "type" | "o" | "device" => fault.hint("it belongs to Docker's own driver `local`: omit it"),
        _ => fault,
    }
}
