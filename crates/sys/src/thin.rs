//! What two thin volumes of one pool have in common, as the pool's metadata say (thin_delta(8)).
//!
//! The kernel keeps the metadata as they are at one moment for programs to read (`reserve_metadata_snap`, Documentation/admin-guide/
//! device-mapper/thin-provisioning.rst), one such moment at a time for each pool. Owns: taking it, and that it is given back, also
//! after a crash. Does not: use LVM, which waits for locks and looks at every device.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_core::units::{Bytes, DevNo};

use crate::block::{self, BlockError};
use crate::file::{self, FileError, LockFile};
use crate::roots::Roots;
use crate::tool::{Tool, ToolError};

/// How long a comparison may wait and take where nobody waits for it.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The unit of device-mapper's tables.
const SECTOR_BYTES: u64 = 512;

/// Why volumes cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum ThinError {
    /// It is no block device, or cannot be looked at.
    #[error("cannot look at {device}")]
    Device {
        /// The device.
        device: PathBuf,
        /// Why.
        #[source]
        source: Box<BlockError>,
    },
    /// Only thin volumes have something in common.
    #[error("{device} is no thin volume, or no thin pool: {table:?}")]
    NotThin {
        /// The device.
        device: String,
        /// Its table.
        table: String,
    },
    /// Nothing is shared between pools.
    #[error("{base} and {volume} are not in the same thin pool")]
    OtherPool {
        /// The one.
        base: PathBuf,
        /// The other.
        volume: PathBuf,
    },
    /// Another program reads the metadata, or left them reserved.
    #[error("somebody else reads the metadata of thin pool {pool}, or has left them reserved")]
    Reserved {
        /// The pool.
        pool: String,
        /// What dmsetup said.
        #[source]
        source: ToolError,
    },
    /// A program failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// What `thin_delta` printed is not understood, or was cut off.
    #[error("thin_delta printed what is not understood: {0}")]
    Delta(String),
    /// The lock, or the note of what is reserved.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What a volume has of its own, and what in common with another, in bytes. What neither of these lists has reads as zeroes from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Common {
    /// In common: the same blocks of the pool.
    pub same: Vec<Range<u64>>,
    /// Of its own.
    pub own: Vec<Range<u64>>,
    /// What only the other one has.
    pub base_only: Vec<Range<u64>>,
}

/// Finds out what a volume has in common with another one; with itself, that is all that it has. Both are active, and nothing is under
/// way on either; `base` must not change as long as the answer counts. It waits `patience` for others who compare volumes of the same
/// pool, and as long again for the comparison itself.
///
/// # Errors
/// [`ThinError`].
pub fn compare(roots: &Roots, base: &Path, volume: &Path, patience: Duration) -> Result<Common, ThinError> {
    let (one, other) = (Thin::of(base)?, Thin::of(volume)?);
    if one.pool != other.pool {
        return Err(ThinError::OtherPool { base: base.to_owned(), volume: volume.to_owned() });
    }
    let pool = Pool::of(roots, one.pool)?;
    let reserved = Reserved::take(roots, &pool, patience)?;
    let delta = Tool::new("thin_delta")
        .args(["-m", "--snap1", &one.id.to_string(), "--snap2", &other.id.to_string()])
        .arg(&pool.metadata)
        .limit(patience)
        .run();
    reserved.give_back()?;
    parse_delta(&delta?.stdout, pool.block_bytes).map_err(ThinError::Delta)
}

/// A thin volume, as the kernel knows it.
struct Thin {
    pool: DevNo,
    id: u64,
}

impl Thin {
    fn of(device: &Path) -> Result<Self, ThinError> {
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
    /// Its name, and what it is called also after the next boot.
    name: String,
    uuid: String,
    metadata: PathBuf,
    block_bytes: u64,
}

impl Pool {
    fn of(roots: &Roots, dev: DevNo) -> Result<Self, ThinError> {
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

/// Metadata that the kernel keeps for us. Who asks is alone with that, and what an asker left that was killed is given back by the next.
struct Reserved<'a> {
    pool: &'a Pool,
    /// There as long as they may be reserved; it outlives a boot, as what is reserved does.
    note: PathBuf,
    _lock: LockFile,
}

impl<'a> Reserved<'a> {
    fn take(roots: &Roots, pool: &'a Pool, patience: Duration) -> Result<Self, ThinError> {
        let dir = roots.base.join("var/lib/bulkhead/thin");
        let locks = dir.join("locks");
        fs::create_dir_all(&locks).map_err(file::io_error("make the directory", &locks))?;
        // A pool has one such copy of its metadata, and other pools have theirs.
        let lock = file::lock_exclusive_within(&locks.join(&pool.uuid), patience)?;
        let note = dir.join(&pool.uuid);
        if note.exists() {
            // It may have been given back before the note went.
            let _ = pool.message("release_metadata_snap");
        }
        file::write_atomic(&note, pool.name.as_bytes())?;
        if let Err(source) = pool.message("reserve_metadata_snap") {
            file::remove_durable(&note)?;
            return Err(ThinError::Reserved { pool: pool.name.clone(), source });
        }
        Ok(Self { pool, note, _lock: lock })
    }

    fn give_back(self) -> Result<(), ThinError> {
        self.pool.message("release_metadata_snap")?;
        Ok(file::remove_durable(&self.note).map(drop)?)
    }
}

/// Reads what `thin_delta` prints: one element a line, in blocks of the pool.
fn parse_delta(text: &str, block_bytes: u64) -> Result<Common, String> {
    let mut common = Common::default();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let head = lines.next().unwrap_or_default();
    if !head.starts_with("<superblock ") || number(head, "data_block_size") != Some(block_bytes / SECTOR_BYTES) {
        return Err(format!("{head:?} instead of a superblock with blocks of {}", Bytes(block_bytes)));
    }
    for line in lines {
        let list = match line.split_whitespace().next().unwrap_or_default() {
            "</superblock>" => return Ok(common),
            "<diff" | "</diff>" => continue,
            "<left_only" => &mut common.base_only,
            "<same" => &mut common.same,
            "<different" | "<right_only" => &mut common.own,
            _ => return Err(format!("{line:?}")),
        };
        let range = number(line, "begin").zip(number(line, "length")).and_then(|(begin, length)| {
            Some(begin.checked_mul(block_bytes)?..begin.checked_add(length)?.checked_mul(block_bytes)?)
        });
        list.push(range.ok_or_else(|| format!("{line:?}"))?);
    }
    Err("it ends in the middle".to_owned())
}

/// An attribute of an element.
fn number(element: &str, name: &str) -> Option<u64> {
    let value = element.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix("=\""))?;
    value.split('"').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// thin_delta 1.1.0 of a snapshot of 10 MiB and a clone of it, which was written to inside that and beyond, and discarded 1 MiB.
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
    fn a_delta_says_what_is_in_common_and_what_is_not() {
        let common = parse_delta(DELTA, 65536).unwrap();
        let blocks = |ranges: &[Range<u64>]| ranges.iter().map(|r| r.start / 65536..r.end / 65536).collect::<Vec<_>>();
        assert_eq!(blocks(&common.same), [0..6, 7..16, 32..160]);
        assert_eq!(blocks(&common.own), [6..7, 312..313]);
        assert_eq!(blocks(&common.base_only), std::slice::from_ref(&(16..32)));
        let nothing =
            r#"<superblock data_block_size="128" nr_data_blocks="0"><diff left="2" right="3"></diff></superblock>"#;
        assert!(parse_delta(nothing, 65536).is_err(), "it is a line for each element");
    }

    #[test]
    fn what_is_cut_off_or_not_understood_is_refused() {
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
