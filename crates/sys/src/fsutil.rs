//! File systems on block devices: make, check, grow, shrink, describe (e2fsprogs, xfsprogs).
//!
//! Owns: the command lines of these programs and what their exit codes mean. A device that carries anything is never
//! formatted: the programs themselves overwrite without asking when nobody sits at a terminal.
//! Does not: mount (`mount`), or resize the volume below (`lvm`, `loopdev`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_core::journal;
use bulkhead_core::model::FsKind;
use bulkhead_core::units::Bytes;

use crate::block::{self, BlockError, Signature};
use crate::tool::{Tool, ToolError, ToolOutput};

mod erase;
mod new_journal;
mod report;
pub mod superblock;
mod tree;

pub use erase::{wipe, write_zeroes};
pub use new_journal::{make_journal, remove_journal};
use report::{parse_dumpe2fs, parse_minimum_blocks, parse_xfs_db, xfs_log_is_dirty};
pub use tree::{TreeOptions, make_of_tree};

/// How long mkfs, a check or a look may take: these read or write all metadata of a volume on a busy device.
const LONG_LIMIT: Duration = Duration::from_secs(6 * 3600);

/// Block size of the file systems made here, in bytes: the page size, and the unit in which clones share data.
pub const BLOCK_BYTES: u64 = 4096;

/// Longest label of ext4 and XFS in bytes.
const EXT4_LABEL_BYTES: usize = 16;
const XFS_LABEL_BYTES: usize = 12;

/// Why something about a file system failed.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The device carries something: nothing is overwritten.
    #[error("{device} already carries {}", list_signatures(found))]
    HasSignature {
        /// The device.
        device: PathBuf,
        /// What was found on it.
        found: Vec<Signature>,
    },
    /// The device could not be examined.
    #[error("cannot examine {device}")]
    Device {
        /// The device.
        device: PathBuf,
        /// Why.
        #[source]
        source: Box<BlockError>,
    },
    /// It is mounted, or claimed in another way, and must not be for this.
    #[error("cannot {operation} {device} while it is in use")]
    InUse {
        /// What was tried.
        operation: &'static str,
        /// The device.
        device: PathBuf,
    },
    /// A uuid, label or size that the file system does not take.
    #[error("{what} {value:?} cannot be used for {kind}: {reason}", kind = kind.as_str())]
    BadOption {
        /// `uuid`, `label`, `journal size` …
        what: &'static str,
        /// The value.
        value: String,
        /// The file system.
        kind: FsKind,
        /// What is wrong.
        reason: &'static str,
    },
    /// There is no file system of a known kind on the device.
    #[error("{device} carries no ext4 or XFS file system (found: {found})")]
    UnknownFs {
        /// The device.
        device: PathBuf,
        /// What is on it instead.
        found: String,
    },
    /// The journal has to be replayed first, by a mount.
    #[error(
        "cannot {operation} {device}: its journal holds changes that were not replayed; mount and unmount it first"
    )]
    LogDirty {
        /// What was tried.
        operation: &'static str,
        /// The device.
        device: PathBuf,
    },
    /// It has errors that have to be repaired first.
    #[error("cannot {operation} {device}: it has errors: {text}")]
    HasErrors {
        /// What was tried.
        operation: &'static str,
        /// The device.
        device: PathBuf,
        /// The end of what the check said.
        text: String,
    },
    /// The size is less than the content needs.
    #[error("{device} cannot be shrunk to {wanted}: its content needs about {minimum}")]
    TooSmall {
        /// The device.
        device: PathBuf,
        /// The size asked for.
        wanted: Bytes,
        /// The smallest possible size (`resize2fs -P`; an estimate, on the safe side).
        minimum: Bytes,
    },
    /// What is in a directory tree needs more room than the file system, or what it lies on, has.
    #[error("{device} is too small for what is to be in it")]
    TreeTooLarge {
        /// The device.
        device: PathBuf,
        /// What `mke2fs` said.
        #[source]
        source: ToolError,
    },
    /// There is no room in it for a journal of that size.
    #[error("{device} has no room for a journal of {wanted}: without one {free} are free, of which it can have half")]
    NoRoom {
        /// The device.
        device: PathBuf,
        /// The size of the journal.
        wanted: Bytes,
        /// What is free, without a journal.
        free: Bytes,
    },
    /// The size asked for is larger than the file system.
    #[error("{device} cannot be shrunk to {wanted}: it is only {now} large")]
    NotSmaller {
        /// The device.
        device: PathBuf,
        /// The size asked for.
        wanted: Bytes,
        /// The size now.
        now: Bytes,
    },
    /// It has features that the installed tools do not know.
    #[error("cannot {operation} {device}: {text}")]
    Newer {
        /// What was to be done.
        operation: &'static str,
        /// The device.
        device: PathBuf,
        /// What the tool says.
        text: String,
    },
    /// The file system cannot do this.
    #[error("cannot {operation} {device}: {reason}")]
    Unsupported {
        /// What was tried.
        operation: &'static str,
        /// The device.
        device: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// A program's output was not understood.
    #[error("cannot read what {program} said about {device}: {missing} is missing")]
    Report {
        /// The program.
        program: &'static str,
        /// The device.
        device: PathBuf,
        /// What is missing.
        missing: &'static str,
    },
    /// What is to be copied cannot be looked at.
    #[error("cannot look at {tree}")]
    Tree {
        /// The directory.
        tree: PathBuf,
        /// The operating system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The device cannot be written.
    #[error("cannot write to {device}")]
    Write {
        /// The device.
        device: PathBuf,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// A program failed.
    #[error("cannot {operation} {device}")]
    Tool {
        /// What was tried.
        operation: &'static str,
        /// The device.
        device: PathBuf,
        /// The program's failure.
        #[source]
        source: ToolError,
    },
}

/// How to make a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkfsOptions {
    /// Which one.
    pub kind: FsKind,
    /// Its uuid, in the usual form with dashes.
    pub uuid: String,
    /// Its label, at most 16 bytes for ext4 and 12 for XFS; empty for none.
    pub label: String,
    /// ext4's fast commits. XFS has nothing of the kind: an error there.
    pub fast_commit: bool,
    /// Size of the journal; `None`: [`journal::size_for`] for ext4, the choice of `mkfs.xfs` for XFS.
    pub journal_size: Option<Bytes>,
    /// The caller knows that the device reads as zeroes: a new thin volume, a new sparse image, an image that was written
    /// with zeroes. ext4's inode tables and journal are then not zeroed again, so that a sparse device stays sparse, and a
    /// written image stays written (zeroing through loop turns written extents into unwritten ones). A wrong `true`
    /// makes the file system take old data for inodes.
    pub reads_zero: bool,
}

/// What [`check`] may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repair {
    /// Nothing.
    No,
    /// What is safe: replay the journal and repair small things (`e2fsck -p`). For XFS as [`Repair::No`]: mounting replays.
    Preen,
    /// Everything, with yes to all questions. Never throws an XFS log away.
    Yes,
}

/// What [`check`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// No errors.
    Clean,
    /// Errors were found and repaired, or the journal was replayed.
    Repaired,
    /// Errors remain; the end of what the program said.
    Errors(String),
    /// Nothing can be said: the journal holds changes that were not replayed. Mount it, or (ext4) check with [`Repair::Preen`].
    LogDirty,
}

/// What [`new_uuid`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UuidOutcome {
    /// It has the new uuid.
    Changed,
    /// It had that uuid already.
    Unchanged,
    /// XFS keeps its uuid: mount the clone with the option `nouuid`.
    MountNouuid,
}

/// A file system as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsInfo {
    /// Which one.
    pub kind: FsKind,
    /// Its uuid.
    pub uuid: String,
    /// Its label; empty when it has none.
    pub label: String,
    /// Its size, which may be less than the device's.
    pub size: Bytes,
    /// Its block size.
    pub block_size: Bytes,
    /// Size of the internal journal (of the log, for XFS), with what is set aside for fast commits; `None` for ext4 without or with an
    /// external journal.
    pub journal_bytes: Option<Bytes>,
    /// Features, as `dumpe2fs -h` and `xfs_db -c version` name them.
    pub features: Vec<String>,
}

impl FsInfo {
    /// Whether it has a feature, for example `fast_commit` or `needs_recovery`.
    #[must_use]
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|found| found == feature)
    }
}

/// Makes a file system on a blank device. Nothing is initialised later in the background, and nothing is discarded.
///
/// Discarding would take the space away from an image that was written on purpose (and a new thin volume has none yet).
/// ext4 gets 4 KiB blocks, no blocks reserved for root, and `metadata_csum_seed`, with which a clone's new uuid is one write.
///
/// # Errors
/// [`FsError::HasSignature`] when the device carries anything at all, [`FsError::InUse`], [`FsError::BadOption`], [`FsError::Device`]
/// (also: not a block device), [`FsError::Tool`].
pub fn mkfs(device: &Path, options: &MkfsOptions) -> Result<(), FsError> {
    const FORMAT: &str = "format";
    let examine = |source| FsError::Device { device: device.to_owned(), source: Box::new(source) };
    // If the device is missing, mkfs would make a regular file in /dev.
    block::devno_of(device).map_err(examine)?;
    let size = device_size(device)?;
    let tool = mkfs_tool(device, options, size)?;
    let found = block::signatures(device).map_err(examine)?;
    if !found.is_empty() {
        return Err(FsError::HasSignature { device: device.to_owned(), found });
    }
    refuse_in_use(FORMAT, device)?;
    tool.run().map(drop).map_err(|source| tool_error(FORMAT, device, source))
}

/// Checks an unmounted file system, and repairs it as far as allowed.
///
/// # Errors
/// [`FsError::InUse`], [`FsError::Device`], [`FsError::Tool`] when a program cannot do its work. Errors of the file system are
/// an outcome, not an error.
pub fn check(device: &Path, kind: FsKind, repair: Repair) -> Result<CheckOutcome, FsError> {
    refuse_in_use("check", device)?;
    match kind {
        FsKind::Ext4 => check_ext4(device, repair),
        FsKind::Xfs => check_xfs(device, repair),
    }
}

/// Grows a file system to the size of its device; does nothing when it has it.
///
/// ext4 mounted (`mount_point` given) or not, in which case it is checked first; XFS only mounted.
///
/// # Errors
/// [`FsError::Unsupported`] for an unmounted XFS, [`FsError::InUse`] when it is mounted and no mount point was given,
/// [`FsError::HasErrors`], [`FsError::Tool`].
pub fn grow(device: &Path, kind: FsKind, mount_point: Option<&Path>) -> Result<(), FsError> {
    const GROW: &str = "grow";
    let tool = match (kind, mount_point) {
        (FsKind::Ext4, Some(_)) => Tool::new("resize2fs").arg(device),
        (FsKind::Ext4, None) => {
            preen(GROW, device)?;
            Tool::new("resize2fs").arg(device)
        }
        (FsKind::Xfs, Some(mount_point)) => Tool::new("xfs_growfs").arg("-d").arg(mount_point),
        (FsKind::Xfs, None) => {
            let reason = "XFS grows only while it is mounted";
            return Err(FsError::Unsupported { operation: GROW, device: device.to_owned(), reason });
        }
    };
    run_to_end(GROW, device, tool)
}

/// Shrinks an unmounted ext4 to `size` (rounded down to whole blocks), after a check; returns its new size.
///
/// Does nothing when it has that size.
///
/// # Errors
/// [`FsError::TooSmall`] with the smallest possible size, [`FsError::NotSmaller`], [`FsError::Unsupported`] for XFS,
/// [`FsError::InUse`], [`FsError::HasErrors`], [`FsError::Tool`].
pub fn shrink(device: &Path, size: Bytes) -> Result<Bytes, FsError> {
    const SHRINK: &str = "shrink";
    let before = info(device)?;
    if before.kind == FsKind::Xfs {
        let reason = "XFS cannot be made smaller";
        return Err(FsError::Unsupported { operation: SHRINK, device: device.to_owned(), reason });
    }
    let blocks = size.0 / before.block_size.0.max(1);
    let wanted = Bytes(blocks * before.block_size.0);
    match wanted.cmp(&before.size) {
        std::cmp::Ordering::Equal => return Ok(wanted),
        std::cmp::Ordering::Greater => {
            return Err(FsError::NotSmaller { device: device.to_owned(), wanted: size, now: before.size });
        }
        std::cmp::Ordering::Less => {}
    }
    preen(SHRINK, device)?;
    let estimate = run(SHRINK, device, Tool::new("resize2fs").arg("-P").arg(device))?;
    let minimum = parse_minimum_blocks(&estimate.stdout).ok_or_else(|| FsError::Report {
        program: "resize2fs -P",
        device: device.to_owned(),
        missing: "the minimum size",
    })?;
    if blocks < minimum {
        let minimum = Bytes(minimum.saturating_mul(before.block_size.0));
        return Err(FsError::TooSmall { device: device.to_owned(), wanted: size, minimum });
    }
    // A number without unit is in blocks of the file system.
    run_to_end(SHRINK, device, Tool::new("resize2fs").arg(device).arg(blocks.to_string()))?;
    Ok(info(device)?.size)
}

/// Gives a clone its own uuid; where more than the superblock depends on it, after a check that replays the journal. The clone must not be mounted.
///
/// XFS keeps its uuid: changing it means rewriting the log, and may turn on an incompatible feature; see [`UuidOutcome::MountNouuid`].
///
/// # Errors
/// [`FsError::BadOption`] for something that is not a uuid, [`FsError::InUse`], [`FsError::HasErrors`], [`FsError::Tool`].
pub fn new_uuid(device: &Path, kind: FsKind, uuid: &str) -> Result<UuidOutcome, FsError> {
    const CHANGE: &str = "change the uuid of";
    check_uuid(kind, uuid)?;
    if kind == FsKind::Xfs {
        return Ok(UuidOutcome::MountNouuid);
    }
    let info = ext4_info(device)?;
    if info.uuid == uuid {
        return Ok(UuidOutcome::Unchanged);
    }
    refuse_in_use(CHANGE, device)?;
    // Where checksums do not depend on the UUID it is the superblock alone that is written, and nothing else has to be right.
    if info.has("needs_recovery") || !info.has("metadata_csum_seed") {
        preen(CHANGE, device)?;
    }
    run_to_end(CHANGE, device, Tool::new("tune2fs").args(["-U", uuid]).arg(device))?;
    Ok(UuidOutcome::Changed)
}

/// What is on the device, from its superblock. Works also while it is mounted, but a mounted XFS writes its superblock late:
/// its size and label may be old.
///
/// # Errors
/// [`FsError::UnknownFs`], [`FsError::Device`], [`FsError::Tool`], [`FsError::Report`].
pub fn info(device: &Path) -> Result<FsInfo, FsError> {
    let found = block::signatures(device)
        .map_err(|source| FsError::Device { device: device.to_owned(), source: Box::new(source) })?;
    match found.as_slice() {
        [only] if only.kind == "ext4" => ext4_info(device),
        [only] if only.kind == "xfs" => xfs_info(device),
        [] => Err(FsError::UnknownFs { device: device.to_owned(), found: "nothing".to_owned() }),
        found => Err(FsError::UnknownFs { device: device.to_owned(), found: list_signatures(found) }),
    }
}

/// Where the file system on a device ends, also that of an XFS that is mounted at `mounted_at`: behind that the device is nobody's.
///
/// # Errors
/// As [`info`]; [`FsError::Device`] when what is mounted there cannot be looked at.
pub fn end(device: &Path, mounted_at: Option<&Path>) -> Result<Bytes, FsError> {
    let found = info(device)?;
    let Some(mounted_at) = mounted_at.filter(|_| found.kind == FsKind::Xfs) else { return Ok(found.size) };
    let counted = rustix::fs::statvfs(mounted_at).map_err(|errno| FsError::Device {
        device: device.to_owned(),
        source: Box::new(BlockError::Read { path: mounted_at.to_owned(), source: errno.into() }),
    })?;
    // It does not count its log (kernel `xfs_statvfs_data`).
    let counted = counted.f_blocks.saturating_mul(counted.f_frsize);
    let log = found.journal_bytes.unwrap_or_default();
    Ok(found.size.max(Bytes(counted.saturating_add(log.0))))
}

fn mkfs_tool(device: &Path, options: &MkfsOptions, size: Bytes) -> Result<Tool, FsError> {
    let MkfsOptions { kind, uuid, label, .. } = options;
    let bad =
        |what, value: &str, reason| Err(FsError::BadOption { what, value: value.to_owned(), kind: *kind, reason });
    check_uuid(*kind, uuid)?;
    if label.starts_with('-') || label.chars().any(char::is_control) {
        return bad("label", label, "it starts with a dash or has control characters");
    }
    let longest = match kind {
        FsKind::Ext4 => EXT4_LABEL_BYTES,
        FsKind::Xfs => XFS_LABEL_BYTES,
    };
    if label.len() > longest {
        return bad("label", label, "it is too long (16 bytes for ext4, 12 for XFS)");
    }
    let mut tool = match kind {
        FsKind::Ext4 => Tool::new("mkfs.ext4"),
        FsKind::Xfs => Tool::new("mkfs.xfs"),
    };
    tool = tool.arg("-q").limit(LONG_LIMIT);
    if !label.is_empty() {
        tool = tool.args(["-L", label]);
    }
    match kind {
        FsKind::Ext4 => {
            let journal = options.journal_size.unwrap_or_else(|| journal::size_for(size));
            if journal < journal::MIN || journal.0 > size.0 / 2 {
                return bad("journal size", &journal.to_string(), "at least 4 MiB, at most half of the volume");
            }
            let fast_commit = if options.fast_commit { ",fast_commit" } else { "" };
            let zeroed = if options.reads_zero { ",assume_storage_prezeroed=1" } else { "" };
            tool = tool
                .args(["-b", &BLOCK_BYTES.to_string(), "-m", "0", "-U", uuid])
                .args(["-J", &format!("size={}", journal.0 / Bytes::MIB)])
                .args(["-O", &format!("metadata_csum,metadata_csum_seed{fast_commit}")])
                .args(["-E", &format!("lazy_itable_init=0,lazy_journal_init=0,nodiscard{zeroed}")]);
        }
        FsKind::Xfs => {
            if options.fast_commit {
                return bad("fast_commit", "true", "only ext4 has it");
            }
            tool = tool.args(["-K", "-m", &format!("uuid={uuid}")]);
            if let Some(journal) = options.journal_size {
                tool = tool.args(["-l", &format!("size={}", journal.0 / BLOCK_BYTES * BLOCK_BYTES)]);
            }
        }
    }
    Ok(tool.arg(device))
}

fn check_ext4(device: &Path, repair: Repair) -> Result<CheckOutcome, FsError> {
    // `e2fsck -n` ignores the journal, and ends with 0 in spite of the errors that it then sees.
    if repair == Repair::No && ext4_info(device).is_ok_and(|info| info.has("needs_recovery")) {
        return Ok(CheckOutcome::LogDirty);
    }
    let mode = match repair {
        Repair::No => "-n",
        Repair::Preen => "-p",
        Repair::Yes => "-y",
    };
    // e2fsck(8), a sum: 1 errors corrected, 2 the same and a reboot is advised (for the root file system), 4 errors left,
    // 8 operational error. 12 is a file system too broken to go on with; 8 alone says nothing about the file system.
    let tool = Tool::new("e2fsck").args(["-f", mode]).arg(device).ok_codes(&(0..16).collect::<Vec<i32>>());
    let output = run_repair(device, repair, tool)?;
    let said = format!("{}{}", output.stdout, output.stderr);
    if output.code & 12 != 0 && said.contains("unsupported feature") {
        return Err(FsError::Newer {
            operation: "check",
            device: device.to_owned(),
            text: report::last_lines(&output),
        });
    }
    if output.code & 12 == 8 {
        let error = ToolError::Failed {
            command: "e2fsck".to_owned(),
            status: format!("exit status: {}", output.code),
            code: output.code,
            stderr: report::last_lines(&output),
        };
        return Err(tool_error("check", device, error));
    }
    Ok(match output.code {
        0 => CheckOutcome::Clean,
        code if code & 4 != 0 => CheckOutcome::Errors(report::last_lines(&output)),
        _ => CheckOutcome::Repaired,
    })
}

fn check_xfs(device: &Path, repair: Repair) -> Result<CheckOutcome, FsError> {
    if repair != Repair::Yes {
        let log = run("check", device, Tool::new("xfs_logprint").arg("-t").arg(device))?;
        // `xfs_repair -n` ignores the log, and reports errors that a replay would repair.
        if xfs_log_is_dirty(&log.stdout) {
            return Ok(CheckOutcome::LogDirty);
        }
        // xfs_repair(8): 1 means corruption found under -n.
        let output = run("check", device, Tool::new("xfs_repair").arg("-n").arg(device).ok_codes(&[0, 1]))?;
        return Ok(match output.code {
            0 => CheckOutcome::Clean,
            _ => CheckOutcome::Errors(report::last_lines(&output)),
        });
    }
    // With -e: 4 means that something was repaired, 2 that the log is dirty; 1 is a failure.
    let tool = Tool::new("xfs_repair").arg("-e").arg(device).ok_codes(&[0, 1, 2, 4]);
    let output = run_repair(device, repair, tool)?;
    Ok(match output.code {
        0 => CheckOutcome::Clean,
        2 => CheckOutcome::LogDirty,
        4 => CheckOutcome::Repaired,
        _ => CheckOutcome::Errors(report::last_lines(&output)),
    })
}

/// The check that resize2fs and tune2fs ask for: replays the journal and repairs what is safe.
fn preen(operation: &'static str, device: &Path) -> Result<(), FsError> {
    refuse_in_use(operation, device)?;
    match check_ext4(device, Repair::Preen)? {
        CheckOutcome::Clean | CheckOutcome::Repaired => Ok(()),
        CheckOutcome::Errors(text) => Err(FsError::HasErrors { operation, device: device.to_owned(), text }),
        CheckOutcome::LogDirty => Err(FsError::LogDirty { operation, device: device.to_owned() }),
    }
}

fn ext4_info(device: &Path) -> Result<FsInfo, FsError> {
    let output = run("describe", device, Tool::new("dumpe2fs").arg("-h").arg(device))?;
    parse_dumpe2fs(&output.stdout).map_err(|missing| FsError::Report {
        program: "dumpe2fs",
        device: device.to_owned(),
        missing,
    })
}

fn xfs_info(device: &Path) -> Result<FsInfo, FsError> {
    let commands = ["-r", "-c", "sb 0", "-c", "p uuid fname blocksize dblocks logblocks", "-c", "version"];
    let output = run("describe", device, Tool::new("xfs_db").args(commands).arg(device))?;
    parse_xfs_db(&output.stdout).map_err(|missing| FsError::Report {
        program: "xfs_db",
        device: device.to_owned(),
        missing,
    })
}

fn refuse_in_use(operation: &'static str, device: &Path) -> Result<(), FsError> {
    match block::claimed(device) {
        Ok(false) => Ok(()),
        Ok(true) => Err(FsError::InUse { operation, device: device.to_owned() }),
        Err(source) => Err(FsError::Device { device: device.to_owned(), source: Box::new(source) }),
    }
}

/// Size of a block device, by seeking to its end.
fn device_size(device: &Path) -> Result<Bytes, FsError> {
    use std::io::{Seek, SeekFrom};
    let size = std::fs::File::open(device).and_then(|mut file| file.seek(SeekFrom::End(0)));
    size.map(Bytes).map_err(|source| FsError::Device {
        device: device.to_owned(),
        source: Box::new(BlockError::Read { path: device.to_owned(), source }),
    })
}

/// The form with dashes only: `tune2fs -U` and `mkfs` also take words such as `random`.
fn check_uuid(kind: FsKind, uuid: &str) -> Result<(), FsError> {
    let parts: Vec<&str> = uuid.split('-').collect();
    let lengths = [8, 4, 4, 4, 12];
    let good = parts.len() == lengths.len()
        && parts.iter().zip(lengths).all(|(part, n)| part.len() == n && part.bytes().all(|b| b.is_ascii_hexdigit()));
    if good {
        return Ok(());
    }
    let reason = "a uuid has the form 01234567-89ab-cdef-0123-456789abcdef";
    Err(FsError::BadOption { what: "uuid", value: uuid.to_owned(), kind, reason })
}

fn run(operation: &'static str, device: &Path, tool: Tool) -> Result<ToolOutput, FsError> {
    tool.limit(LONG_LIMIT).run().map_err(|source| tool_error(operation, device, source))
}

/// A check, which has a time limit unless it repairs.
fn run_repair(device: &Path, repair: Repair, tool: Tool) -> Result<ToolOutput, FsError> {
    match repair {
        Repair::No => run("check", device, tool),
        Repair::Preen | Repair::Yes => tool.unlimited().run().map_err(|source| tool_error("check", device, source)),
    }
}

/// Without a time limit: a program that moves blocks or rewrites checksums leaves a broken file system when it is killed.
fn run_to_end(operation: &'static str, device: &Path, tool: Tool) -> Result<(), FsError> {
    tool.unlimited().run().map(drop).map_err(|source| tool_error(operation, device, source))
}

fn tool_error(operation: &'static str, device: &Path, source: ToolError) -> FsError {
    FsError::Tool { operation, device: device.to_owned(), source }
}

fn list_signatures(found: &[Signature]) -> String {
    found.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "11111111-2222-3333-4444-555555555555";

    fn options(kind: FsKind) -> MkfsOptions {
        MkfsOptions {
            kind,
            uuid: UUID.to_owned(),
            label: "vol1".to_owned(),
            fast_commit: false,
            journal_size: None,
            reads_zero: false,
        }
    }

    fn line(options: &MkfsOptions) -> Result<String, FsError> {
        mkfs_tool(Path::new("/dev/x"), options, Bytes::mib(2048)).map(|tool| tool.command_line())
    }

    #[test]
    fn mkfs_command_lines() {
        assert_eq!(
            line(&options(FsKind::Ext4)).unwrap(),
            format!(
                "mkfs.ext4 -q -L vol1 -b 4096 -m 0 -U {UUID} -J size=32 -O metadata_csum,metadata_csum_seed \
                 -E lazy_itable_init=0,lazy_journal_init=0,nodiscard /dev/x"
            )
        );
        let fast = MkfsOptions {
            fast_commit: true,
            reads_zero: true,
            label: String::new(),
            journal_size: Some(Bytes::mib(64)),
            ..options(FsKind::Ext4)
        };
        assert_eq!(
            line(&fast).unwrap(),
            format!(
                "mkfs.ext4 -q -b 4096 -m 0 -U {UUID} -J size=64 -O metadata_csum,metadata_csum_seed,fast_commit \
                 -E lazy_itable_init=0,lazy_journal_init=0,nodiscard,assume_storage_prezeroed=1 /dev/x"
            )
        );
        assert_eq!(line(&options(FsKind::Xfs)).unwrap(), format!("mkfs.xfs -q -L vol1 -K -m uuid={UUID} /dev/x"));
    }

    #[test]
    fn bad_options_are_refused() {
        let ext4 = options(FsKind::Ext4);
        for bad in [
            MkfsOptions { uuid: "random".into(), ..ext4.clone() },
            MkfsOptions { uuid: format!("-{UUID}"), ..ext4.clone() },
            MkfsOptions { label: "-L".into(), ..ext4.clone() },
            MkfsOptions { label: "seventeen-bytes-x".into(), ..ext4.clone() },
            MkfsOptions { label: "thirteen-byte".into(), ..options(FsKind::Xfs) },
            MkfsOptions { journal_size: Some(Bytes::mib(1025)), ..ext4.clone() },
            MkfsOptions { journal_size: Some(Bytes::mib(3)), ..ext4.clone() },
            MkfsOptions { fast_commit: true, ..options(FsKind::Xfs) },
        ] {
            assert!(matches!(line(&bad), Err(FsError::BadOption { .. })), "{bad:?}");
        }
    }

    #[test]
    fn nothing_but_a_block_device_is_formatted() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, vec![0; 1 << 20]).unwrap();
        for path in [image.as_path(), Path::new("/dev/null"), Path::new("/dev/no-such-device")] {
            assert!(matches!(mkfs(path, &options(FsKind::Ext4)), Err(FsError::Device { .. })), "{}", path.display());
        }
    }

    /// e2fsprogs works on plain files, so most of the life of a file system can be tried without root.
    #[test]
    fn an_ext4_image_is_checked_shrunk_grown_and_renamed() {
        if ["mkfs.ext4", "wipefs", "blkid"].iter().any(|program| crate::tool::find_program(program).is_none()) {
            eprintln!("skipped: e2fsprogs or util-linux is not installed");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let wanted = MkfsOptions { fast_commit: true, ..options(FsKind::Ext4) };
        mkfs_tool(&image, &wanted, Bytes::mib(64)).unwrap().run().unwrap();
        let made = info(&image).unwrap();
        assert_eq!((made.kind, made.uuid.as_str(), made.label.as_str()), (FsKind::Ext4, UUID, "vol1"));
        assert_eq!((made.size, made.block_size), (Bytes::mib(64), Bytes(4096)));
        assert!(made.has("fast_commit") && made.has("metadata_csum_seed"), "{made:?}");
        // Blocks for fast commits come on top of the 8 MiB.
        assert!(made.journal_bytes > Some(Bytes::mib(8)) && made.journal_bytes <= Some(Bytes::mib(9)), "{made:?}");
        for repair in [Repair::No, Repair::Preen, Repair::Yes] {
            assert_eq!(check(&image, FsKind::Ext4, repair).unwrap(), CheckOutcome::Clean);
        }
        let error = shrink(&image, Bytes::mib(1)).unwrap_err();
        assert!(matches!(error, FsError::TooSmall { minimum, .. } if minimum < Bytes::mib(64)), "{error}");
        assert!(matches!(shrink(&image, Bytes::mib(65)), Err(FsError::NotSmaller { .. })));
        assert_eq!(shrink(&image, Bytes(40 * Bytes::MIB + 5)).unwrap(), Bytes::mib(40));
        assert_eq!(shrink(&image, Bytes::mib(40)).unwrap(), Bytes::mib(40));
        // resize2fs cuts off a plain file.
        std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(64 << 20).unwrap();
        grow(&image, FsKind::Ext4, None).unwrap();
        grow(&image, FsKind::Ext4, None).unwrap();
        assert_eq!(info(&image).unwrap().size, Bytes::mib(64));
        let uuid = "99999999-2222-3333-4444-555555555555";
        assert_eq!(new_uuid(&image, FsKind::Ext4, uuid).unwrap(), UuidOutcome::Changed);
        assert_eq!(new_uuid(&image, FsKind::Ext4, uuid).unwrap(), UuidOutcome::Unchanged);
        assert_eq!(info(&image).unwrap().uuid, uuid);
        assert_eq!(new_uuid(&image, FsKind::Xfs, uuid).unwrap(), UuidOutcome::MountNouuid);
    }

    #[test]
    fn damage_is_found_and_repaired() {
        if ["mkfs.ext4", "wipefs", "blkid"].iter().any(|program| crate::tool::find_program(program).is_none()) {
            eprintln!("skipped: e2fsprogs or util-linux is not installed");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        mkfs_tool(&image, &options(FsKind::Ext4), Bytes::mib(64)).unwrap().run().unwrap();
        // The root directory's inode.
        Tool::new("debugfs").args(["-w", "-R", "clri <2>"]).arg(&image).run().unwrap();
        assert!(
            matches!(check(&image, FsKind::Ext4, Repair::No).unwrap(), CheckOutcome::Errors(text) if !text.is_empty())
        );
        let error = preen("shrink", &image).unwrap_err();
        assert!(matches!(error, FsError::HasErrors { .. }), "{error}");
        assert_eq!(check(&image, FsKind::Ext4, Repair::Yes).unwrap(), CheckOutcome::Repaired);
        assert_eq!(check(&image, FsKind::Ext4, Repair::No).unwrap(), CheckOutcome::Clean);
    }

    #[test]
    fn other_content_is_not_taken_for_a_file_system() {
        if crate::tool::find_program("wipefs").is_none() {
            eprintln!("skipped: wipefs is not installed");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, vec![0; 1 << 20]).unwrap();
        assert!(matches!(info(&image), Err(FsError::UnknownFs { .. })));
    }
}
