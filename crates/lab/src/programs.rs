//! Programs for guests, copied once for all machines of a run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command::{command, output};

const LIMIT: Duration = Duration::from_secs(120);

/// Copies a program into a folder without its debugging information, which would take memory of the guest; returns the copy.
///
/// # Errors
/// When it is no program, or cannot be copied.
pub(crate) async fn stripped(program: &Path, folder: &Path) -> Result<PathBuf> {
    let name = program.file_name().with_context(|| format!("{} names no program", program.display()))?;
    let copy = folder.join(name);
    let mut strip = command("strip");
    strip.arg("--strip-debug").arg("-o").arg(&copy).arg(program);
    output(strip, &format!("copying {} for the guest", program.display()), LIMIT).await?;
    Ok(copy)
}
