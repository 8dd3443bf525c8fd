//! Comparison of two thin volumes in a pool, from the pool's metadata (thin_delta(8)).
//!
//! Programs read the metadata through a metadata snapshot (`reserve_metadata_snap`, Documentation/admin-guide/device-mapper/
//! thin-provisioning.rst), of which each pool has at most one. Owns: reserving it, and its release, also after a crash. Does not: use
//! LVM, which waits for locks and scans all devices.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_core::units::{Bytes, DevNo};

use crate::block::{self, BlockError};
use crate::file::{self, FileError, LockFile};
use crate::roots::Roots;
use crate::tool::{Tool, ToolError};

/// Time limit of a comparison in the background.
pub const COMPARE_LIMIT: Duration = Duration::from_secs(120);

/// The unit of device-mapper's tables.
const SECTOR_BYTES: u64 = 512;

/// Volumes could not be compared.
#[derive(Debug, thiserror::Error)]
pub enum ThinError {
    /// It is not a block device, or cannot be examined.
    #[error("cannot examine {device}")]
    Device {
        /// The device.
        device: PathBuf,
        /// The cause.
        #[source]
        source: Box<BlockError>,
    },
    /// The device has another dm target.
    #[error("{device} is not a thin volume or thin pool: {table:?}")]
    NotThin {
        /// The device.
        device: String,
        /// Its dm table.
        table: String,
    },
    /// Volumes of different pools share no blocks.
    #[error("{base} and {volume} are not in the same thin pool")]
    OtherPool {
        /// The first volume.
        base: PathBuf,
        /// The second volume.
        volume: PathBuf,
    },
    /// Another program holds the metadata snapshot, or has not released it.
    #[error(
        "the metadata snapshot of thin pool {pool} is already reserved: another program uses it, or did not release it"
    )]
    Reserved {
        /// The pool.
        pool: String,
        /// The error of dmsetup.
        #[source]
        source: ToolError,
    },
    /// A program failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The output of `thin_delta` is malformed or truncated.
    #[error("cannot parse the output of thin_delta: {0}")]
    Delta(String),
    /// The lock, or the marker of a reserved metadata snapshot, cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Blocks that a volume shares with another one, and blocks of its own, in bytes. All other parts of the volume read as zeroes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Shared: mapped to the same blocks of the pool.
    pub same: Vec<Range<u64>>,
    /// Mapped to blocks of its own.
    pub own: Vec<Range<u64>>,
    /// Mapped only in the other volume.
    pub base_only: Vec<Range<u64>>,
}

/// Compares a volume with `base`; if they are the same volume, all its blocks are shared. Both must be active, without I/O in flight,
/// and `base` must not change while the result is used. Waits up to `limit` for another comparison in the same pool, and up to `limit`
/// for the comparison itself.
///
/// # Errors
/// [`ThinError`].
pub fn compare(roots: &Roots, base: &Path, volume: &Path, limit: Duration) -> Result<Comparison, ThinError> {
    let (one, other) = (Thin::read(base)?, Thin::read(volume)?);
    if one.pool != other.pool {
        return Err(ThinError::OtherPool { base: base.to_owned(), volume: volume.to_owned() });
    }
    let pool = Pool::read(roots, one.pool)?;
    let snapshot = MetadataSnapshot::reserve(roots, &pool, limit)?;
    let delta = Tool::new("thin_delta")
        .args(["-m", "--snap1", &one.id.to_string(), "--snap2", &other.id.to_string()])
        .arg(&pool.metadata)
        .limit(limit)
        .run();
    snapshot.release()?;
    parse_delta(&delta?.stdout, pool.block_bytes).map_err(ThinError::Delta)
}

/// A thin volume, from its dm table.
struct Thin {
    pool: DevNo,
    id: u64,
}

impl Thin {
    fn read(device: &Path) -> Result<Self, ThinError> {
        let failed = |source| ThinError::Device { device: device.to_owned(), source: Box::new(source) };
        let table = table_of(block::devno_of(device).map_err(failed)?)?;
        let words: Vec<&str> = table.split_whitespace().collect();
        let parsed = match words[..] {
            [_, _, "thin", pool, id] => pool.parse().ok().zip(id.parse().ok()),
            _ => None,
        };
        let (pool, id) =
            parsed.ok_or_else(|| ThinError::NotThin { device: device.display().to_string(), table: table.clone() })?;
        Ok(Self { pool, id })
    }
}

struct Pool {
    dev: DevNo,
    name: String,
    /// Persistent across reboots.
    uuid: String,
    metadata: PathBuf,
    block_bytes: u64,
}

impl Pool {
    fn read(roots: &Roots, dev: DevNo) -> Result<Self, ThinError> {
        let failed = |source| ThinError::Device { device: dev.to_string().into(), source: Box::new(source) };
        let table = table_of(dev)?;
        let words: Vec<&str> = table.split_whitespace().collect();
        let parsed = match words[..] {
            [_, _, "thin-pool", metadata, _, sectors, ..] => {
                metadata.parse::<DevNo>().ok().zip(sectors.parse::<u64>().ok())
            }
            _ => None,
        };
        let named = block::inspect(roots, dev).map_err(failed)?.dm;
        let (Some((metadata, sectors)), Some(named)) = (parsed, named) else {
            return Err(ThinError::NotThin { device: dev.to_string(), table });
        };
        let metadata = roots.dev.join(block::name_of(roots, metadata).map_err(failed)?);
        Ok(Self { dev, name: named.name, uuid: named.uuid, metadata, block_bytes: sectors * SECTOR_BYTES })
    }

    fn message(&self, text: &str) -> Result<(), ToolError> {
        dmsetup("message", self.dev).args(["0", text]).run().map(drop)
    }
}

fn dmsetup(command: &str, dev: DevNo) -> Tool {
    Tool::new("dmsetup").args([command, "-j", &dev.major.to_string(), "-m", &dev.minor.to_string()])
}

fn table_of(dev: DevNo) -> Result<String, ToolError> {
    Ok(dmsetup("table", dev).run()?.stdout.trim().to_owned())
}

/// A reserved metadata snapshot. A lock serialises its users; a snapshot left by a killed process is released by the next user.
struct MetadataSnapshot<'a> {
    pool: &'a Pool,
    /// Exists while the snapshot may be reserved. Persistent, since the reservation survives a reboot.
    marker: PathBuf,
    _lock: LockFile,
}

impl<'a> MetadataSnapshot<'a> {
    fn reserve(roots: &Roots, pool: &'a Pool, limit: Duration) -> Result<Self, ThinError> {
        let dir = roots.base.join("var/lib/bulkhead/thin");
        let locks = dir.join("locks");
        fs::create_dir_all(&locks).map_err(file::io_error("create the directory", &locks))?;
        // Each pool has one metadata snapshot.
        let lock = file::lock_exclusive_within(&locks.join(&pool.uuid), limit)?;
        let marker = dir.join(&pool.uuid);
        if marker.exists() {
            // Fails if it was released before the marker could be removed.
            let _ = pool.message("release_metadata_snap");
        }
        file::write_atomic(&marker, pool.name.as_bytes())?;
        if let Err(source) = pool.message("reserve_metadata_snap") {
            file::remove_durable(&marker)?;
            return Err(ThinError::Reserved { pool: pool.name.clone(), source });
        }
        Ok(Self { pool, marker, _lock: lock })
    }

    fn release(self) -> Result<(), ThinError> {
        self.pool.message("release_metadata_snap")?;
        Ok(file::remove_durable(&self.marker).map(drop)?)
    }
}

/// Parses the output of `thin_delta`: one element per line, in blocks of the pool.
fn parse_delta(text: &str, block_bytes: u64) -> Result<Comparison, String> {
    let mut comparison = Comparison::default();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let head = lines.next().unwrap_or_default();
    if !head.starts_with("<superblock ") || number(head, "data_block_size") != Some(block_bytes / SECTOR_BYTES) {
        return Err(format!("it begins with {head:?} instead of a superblock with blocks of {}", Bytes(block_bytes)));
    }
    for line in lines {
        let list = match line.split_whitespace().next().unwrap_or_default() {
            "</superblock>" => return Ok(comparison),
            "<diff" | "</diff>" => continue,
            "<left_only" => &mut comparison.base_only,
            "<same" => &mut comparison.same,
            "<different" | "<right_only" => &mut comparison.own,
            _ => return Err(format!("{line:?}")),
        };
        let range = number(line, "begin").zip(number(line, "length")).and_then(|(begin, length)| {
            Some(begin.checked_mul(block_bytes)?..begin.checked_add(length)?.checked_mul(block_bytes)?)
        });
        list.push(range.ok_or_else(|| format!("{line:?}"))?);
    }
    Err("it is truncated".to_owned())
}

/// An attribute of an element.
fn number(element: &str, name: &str) -> Option<u64> {
    let value = element.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix("=\""))?;
    value.split('"').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// thin_delta 1.1.0 of a 10 MiB snapshot and a clone, in which blocks were overwritten, appended and (1 MiB) discarded.
    const DELTA: &str = r#"<superblock uuid="" time="2" transaction="3" data_block_size="128" nr_data_blocks="0">
  <diff left="2" right="3">
    <same begin="0" length="6"/>
    <different begin="6" length="1"/>
    <same begin="7" length="9"/>
    <left_only begin="16" length="16"/>
    <same begin="32" length="128"/>
    <right_only begin="312" length="1"/>
  </diff>
</superblock>"#;

    #[test]
    fn a_delta_is_parsed_into_shared_own_and_base_only_ranges() {
        let comparison = parse_delta(DELTA, 65536).unwrap();
        let blocks = |ranges: &[Range<u64>]| ranges.iter().map(|r| r.start / 65536..r.end / 65536).collect::<Vec<_>>();
        assert_eq!(blocks(&comparison.same), [0..6, 7..16, 32..160]);
        assert_eq!(blocks(&comparison.own), [6..7, 312..313]);
        assert_eq!(blocks(&comparison.base_only), std::slice::from_ref(&(16..32)));
        let nothing =
            r#"<superblock data_block_size="128" nr_data_blocks="0"><diff left="2" right="3"></diff></superblock>"#;
        assert!(parse_delta(nothing, 65536).is_err(), "thin_delta prints one element per line");
    }

    #[test]
    fn truncated_and_malformed_output_is_refused() {
        for len in 0..DELTA.len() {
            assert!(parse_delta(&DELTA[..len], 65536).is_err(), "{:?}", &DELTA[..len]);
        }
        for (from, to) in [
            ("data_block_size=\"128\"", "data_block_size=\"256\""),
            ("begin=\"7\"", "begin=\"-7\""),
            ("length=\"9\"", "length=\"99999999999999999\""),
            ("<same begin=\"0\"", "<equal begin=\"0\""),
            ("<right_only begin=\"312\"", "<right_only start=\"312\""),
            ("<left_only begin=\"16\"", "<left_only begin=\"x\""),
        ] {
            assert!(parse_delta(&DELTA.replace(from, to), 65536).is_err(), "{to}");
        }
    }
}
