//! The directory of the host that a guest sees as /lab.
//!
//! Owns: its place in the run's directory, and the collection of results from it.
//! Does not: mount it in the guest (`boot/host.sh`).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::{command, output};
use crate::lab::Lab;
use crate::machine::DEFAULT_DEADLINE;
use crate::programs::stripped;

/// The host directory that a guest sees as /lab: programs added after the boot in `bin`, results in `out`.
#[derive(Debug)]
pub(crate) struct SharedDir {
    pub(crate) dir: PathBuf,
}

impl SharedDir {
    /// Creates it in the run's directory, which removes it.
    pub(crate) fn create(lab: &Lab) -> Result<Self> {
        let dir = lab.run_dir().path(&format!("shared-{}", lab.run_dir().next_number()));
        for sub in ["bin", "out"].map(|name| dir.join(name)) {
            std::fs::create_dir_all(&sub).with_context(|| format!("cannot create {}", sub.display()))?;
        }
        Ok(Self { dir })
    }

    /// Copies a program to `bin`; returns its name.
    pub(crate) async fn add(&self, program: &Path) -> Result<String> {
        let copied = stripped(program, &self.dir.join("bin")).await?;
        let name = copied.file_name().with_context(|| format!("{} names no program", program.display()))?;
        Ok(name.to_string_lossy().into_owned())
    }

    pub(crate) async fn collect_out(&self, target: &Path) -> Result<()> {
        let out = self.dir.join("out");
        let listing = || std::fs::read_dir(&out).with_context(|| format!("cannot list {}", out.display()));
        if listing()?.next().is_none() {
            return Ok(());
        }
        std::fs::create_dir_all(target).with_context(|| format!("cannot create {}", target.display()))?;
        let mut copy = command("cp");
        copy.args(["-r", "--no-target-directory"]).arg(&out).arg(target);
        output(copy, "copying the guest's results", DEFAULT_DEADLINE).await?;
        for entry in listing()? {
            let path = entry.with_context(|| format!("cannot list {}", out.display()))?.path();
            let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed.with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(())
    }
}
