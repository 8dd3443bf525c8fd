//! Names, ids and page tokens.
//!
//! A volume or snapshot is identified by `POOL/NAME`. Its name in the pool follows from the name that the orchestrator asks for, so that
//! a repeated request finds what an earlier one made: the name itself where a pool allows it, a hash of it otherwise. Volumes and
//! snapshots share a pool's namespace, but not the orchestrator's: names of snapshots get a prefix that no volume has.

use std::fmt::Write as _;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use sha2::{Digest as _, Sha256};

/// Longest requested name that is kept, in bytes: with the pool's name and a slash it is an id of at most 128 bytes.
const MAX_KEPT_BYTES: usize = 57;

/// Start of all names that are not the requested ones.
const PREFIX: &str = "csi-";

/// The name of a new volume in its pool.
///
/// # Errors
/// `InvalidArgument` for an empty name.
pub fn of_volume(requested: &str) -> Result<Name, Fault> {
    named(requested, "", "v-")
}

/// The name of a new snapshot in its pool.
///
/// # Errors
/// `InvalidArgument` for an empty name.
pub fn of_snapshot(requested: &str) -> Result<Name, Fault> {
    named(requested, "csi-s-", "h-")
}

fn named(requested: &str, kept_prefix: &str, hashed_prefix: &str) -> Result<Name, Fault> {
    if requested.is_empty() {
        return Err(Fault::new(Code::InvalidArgument, "name", "it is empty"));
    }
    let is_kept = requested.len() <= MAX_KEPT_BYTES && !requested.starts_with(PREFIX);
    let kept = is_kept.then(|| format!("{kept_prefix}{requested}").parse().ok()).flatten();
    kept.map_or_else(|| hashed(requested, hashed_prefix), Ok)
}

fn hashed(requested: &str, prefix: &str) -> Result<Name, Fault> {
    let name = format!("{PREFIX}{prefix}{:.32}", hash(requested));
    name.parse().map_err(|error| Fault::new(Code::Internal, "name", error))
}

/// SHA-256 of a text, in hexadecimal digits.
pub(crate) fn hash(text: &str) -> String {
    let mut digits = String::new();
    for byte in Sha256::digest(text.as_bytes()) {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// The id of a volume or snapshot.
#[must_use]
pub fn id(volume: &VolumeRef) -> String {
    volume.to_string()
}

/// The volume or snapshot that an id names; `None` for an id that this driver has never given to anything.
///
/// # Errors
/// `InvalidArgument` for an empty id; `what` is the field.
pub fn parse_id(what: &str, id: &str) -> Result<Option<VolumeRef>, Fault> {
    if id.is_empty() {
        return Err(Fault::new(Code::InvalidArgument, what, "it is empty"));
    }
    Ok(reference(id))
}

fn reference(id: &str) -> Option<VolumeRef> {
    let (pool, name) = id.split_once('/')?;
    Some(VolumeRef { pool: pool.parse().ok()?, name: name.parse().ok()? })
}

/// The start of the next page: everything after the volume that the last page ended with, whether it still exists or not.
#[must_use]
pub fn token(last: &VolumeRef) -> String {
    format!("after:{last}")
}

/// The volume after which a page starts; `None` for the first page.
///
/// # Errors
/// `Cancelled`, CSI's `ABORTED`, for a token that [`token`] has not made.
pub fn parse_token(token: &str) -> Result<Option<VolumeRef>, Fault> {
    if token.is_empty() {
        return Ok(None);
    }
    let last = token.strip_prefix("after:").and_then(reference);
    last.map(Some).ok_or_else(|| {
        Fault::new(Code::Cancelled, "starting_token", "it is not from an earlier answer").hint("start without a token")
    })
}
