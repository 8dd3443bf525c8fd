//! Checking and repairing a file system (e2fsck(8), xfs_repair(8)).

use std::path::Path;

use bulkhead_core::model::FsKind;

use super::error::tool_error;
use super::report::{self, xfs_log_is_dirty};
use super::{FsError, ext4_info, refuse_in_use, run};
use crate::tool::{Tool, ToolError, ToolOutput};

/// Changes that [`check`] may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repair {
    /// None.
    No,
    /// Safe ones: replay of the journal and minor repairs (`e2fsck -p`). For XFS the same as [`Repair::No`], since mounting replays.
    Preen,
    /// All, answering yes to every question. Never discards an XFS log.
    Yes,
}

/// Result of [`check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// No errors.
    Clean,
    /// Errors were found and repaired, or the journal was replayed.
    Repaired,
    /// Errors remain; the last lines of the program's output.
    Errors(String),
    /// Unknown, because the journal was not replayed. Mount the file system, or (ext4) check with [`Repair::Preen`].
    LogDirty,
}

/// Checks an unmounted file system, and repairs it as far as permitted.
///
/// # Errors
/// [`FsError::InUse`], [`FsError::Device`], [`FsError::Tool`] if a program cannot do its work. Errors in the file system are an
/// outcome, not an error.
pub fn check(device: &Path, kind: FsKind, repair: Repair) -> Result<CheckOutcome, FsError> {
    refuse_in_use("check", device)?;
    match kind {
        FsKind::Ext4 => check_ext4(device, repair),
        FsKind::Xfs => check_xfs(device, repair),
    }
}

fn check_ext4(device: &Path, repair: Repair) -> Result<CheckOutcome, FsError> {
    // `e2fsck -n` ignores the journal, and exits with 0 in spite of the errors that it then finds.
    if repair == Repair::No && ext4_info(device).is_ok_and(|info| info.has("needs_recovery")) {
        return Ok(CheckOutcome::LogDirty);
    }
    let mode = match repair {
        Repair::No => "-n",
        Repair::Preen => "-p",
        Repair::Yes => "-y",
    };
    // e2fsck(8), a sum: 1 errors corrected, 2 the same and a reboot is advised (for the root file system), 4 errors left uncorrected,
    // 8 operational error. 12 means that the file system is too corrupt to continue; 8 alone does not refer to the file system.
    let tool = Tool::new("e2fsck").args(["-f", mode]).arg(device).ok_codes(&(0..16).collect::<Vec<i32>>());
    let output = run_repair(device, repair, tool)?;
    let text = format!("{}{}", output.stdout, output.stderr);
    if output.code & 12 != 0 && text.contains("unsupported feature") {
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
        // `xfs_repair -n` ignores the log, and reports errors that a replay would fix.
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
    // With -e: 4 means that errors were repaired, 2 that the log is dirty; 1 is a failure.
    let tool = Tool::new("xfs_repair").arg("-e").arg(device).ok_codes(&[0, 1, 2, 4]);
    let output = run_repair(device, repair, tool)?;
    Ok(match output.code {
        0 => CheckOutcome::Clean,
        2 => CheckOutcome::LogDirty,
        4 => CheckOutcome::Repaired,
        _ => CheckOutcome::Errors(report::last_lines(&output)),
    })
}

/// The check that resize2fs and tune2fs require: replays the journal and makes safe repairs.
pub(super) fn preen(operation: &'static str, device: &Path) -> Result<(), FsError> {
    refuse_in_use(operation, device)?;
    match check_ext4(device, Repair::Preen)? {
        CheckOutcome::Clean | CheckOutcome::Repaired => Ok(()),
        CheckOutcome::Errors(text) => Err(FsError::HasErrors { operation, device: device.to_owned(), text }),
        CheckOutcome::LogDirty => Err(FsError::LogDirty { operation, device: device.to_owned() }),
    }
}

/// Runs a check, with a time limit unless it repairs.
fn run_repair(device: &Path, repair: Repair, tool: Tool) -> Result<ToolOutput, FsError> {
    match repair {
        Repair::No => run("check", device, tool),
        Repair::Preen | Repair::Yes => tool.unlimited().run().map_err(|source| tool_error("check", device, source)),
    }
}
