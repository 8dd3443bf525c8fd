//! The read counts of a block server: how much its volume has read of shared blocks, by source (`/run/bulkhead/blockd/heat/UUID`,
//! docs/formats/state.md).
//!
//! Owns: the file. Does not: count reads (`bulkhead-blockd` does).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bulkhead_core::heat::{HeatSource, ReadCount, ReadCounts};
use bulkhead_core::units::Bytes;
use bulkhead_sys::file::{self, FileError};
use bulkhead_sys::roots::Roots;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::servers;

/// Directory of the files, in the registry of block servers. It is separate because each file is replaced every second: in the registry
/// itself that would wake the supervision of servers ([`servers::RegistryWatcher`]).
const DIR: &str = "heat";

/// The version that is written, and the only one that is read.
const VERSION: u32 = 1;

/// Size limit of a file.
const MAX_FILE: Bytes = Bytes::mib(1);

/// A file's content.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    counts: Vec<Count>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Count {
    #[serde(with = "Source")]
    source: HeatSource,
    requests: u64,
    bytes: Bytes,
}

/// [`HeatSource`] with the written names. A peer is `sibling`, because a daemon of an earlier version also reads the files of servers
/// that were started by a later one.
#[derive(Serialize, Deserialize)]
#[serde(remote = "HeatSource", tag = "from", content = "id", rename_all = "snake_case")]
enum Source {
    Disk(Uuid),
    Cache(Uuid),
    #[serde(rename = "sibling", alias = "peer")]
    Peer(Uuid),
}

/// The file of a volume's server.
#[must_use]
pub fn file_path(roots: &Roots, volume: Uuid) -> PathBuf {
    servers::dir(roots).join(relative_path(volume))
}

/// Its path relative to the registry of servers.
#[must_use]
pub fn relative_path(volume: Uuid) -> PathBuf {
    Path::new(DIR).join(volume.to_string())
}

/// Reads the counts of a volume's server; empty if there is no file.
///
/// # Errors
/// [`FileError`].
pub fn read(roots: &Roots, volume: Uuid) -> Result<ReadCounts, FileError> {
    let path = file_path(roots, volume);
    match file::read_limited(&path, MAX_FILE) {
        Err(error) if error.is_not_found() => Ok(ReadCounts::default()),
        read => decode(&read?).map_err(file::io_error("parse", &path)),
    }
}

/// Writes the counts to a file, atomically.
///
/// # Errors
/// [`FileError`].
pub fn write(path: &Path, counts: &ReadCounts) -> Result<(), FileError> {
    let count = |ReadCount { source, requests, bytes }: &ReadCount| Count {
        source: *source,
        requests: *requests,
        bytes: *bytes,
    };
    let content = Content { version: VERSION, counts: counts.counts.iter().map(count).collect() };
    let text = serde_json::to_vec(&content).map_err(io::Error::from);
    let text = text.map_err(file::io_error("write", path))?;
    file::write_atomic(path, &text)
}

fn decode(text: &[u8]) -> io::Result<ReadCounts> {
    let Content { version, counts } = serde_json::from_slice(text)?;
    if version != VERSION {
        return Err(io::Error::other(format!("it is of version {version}, and {VERSION} is read")));
    }
    let count = |Count { source, requests, bytes }| ReadCount { source, requests, bytes };
    Ok(ReadCounts { counts: counts.into_iter().map(count).collect() })
}

/// Removes the file of a volume's server, and temporary files of a server that was killed while it wrote.
pub(crate) fn remove(roots: &Roots, volume: Uuid) -> Result<(), FileError> {
    let directory = servers::dir(roots).join(DIR);
    let failed = |source| FileError::io("list", &directory, source);
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if name == volume.to_string() || name.starts_with(&format!(".{volume}.")) {
            file::remove_durable(&directory.join(&name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
