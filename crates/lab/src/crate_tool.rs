//! Programs from crates.io that some cases run in guests: built on the host by cargo, pinned, kept in the cache.
//!
//! They run in the guest because its libraries are newer than those of any host that the lab runs on. They are neither
//! linked into our programs nor shipped.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cache::Cache;
use crate::command::{command, output};
use crate::say;

const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// A package of crates.io that contains one program of the same name.
#[derive(Debug, Clone, Copy)]
pub struct CrateTool {
    name: &'static str,
    version: &'static str,
}

impl CrateTool {
    /// All tools that cases use.
    pub const ALL: [Self; 2] = [Self::FSX, Self::PJDFSTEST];
    /// Random file operations, with checks of the data that each reads.
    pub const FSX: Self = Self { name: "fsx", version: "0.3.2" };
    /// Conformance of file system calls to POSIX.
    pub const PJDFSTEST: Self = Self { name: "pjdfstest", version: "0.2.2" };
}

impl std::fmt::Display for CrateTool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

/// The program on the host, built first if this version is absent. The caller holds the build lock.
pub(crate) async fn provide(cache: &Cache, tool: CrateTool) -> Result<PathBuf> {
    let CrateTool { name, version } = tool;
    // One directory for each version: another checkout may need another version.
    let root = cache.path("tools").join(format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    if !program.is_file() {
        say::progress(format!("building {tool} from crates.io"));
        let mut cargo = command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["install", "--quiet", "--locked", "--version", version, "--root"]).arg(&root).arg(name);
        output(cargo, &format!("cargo install {tool}"), BUILD_LIMIT).await?;
        ensure!(program.is_file(), "{tool} installed no program {}", program.display());
    }
    program.canonicalize().with_context(|| format!("cannot resolve {}", program.display()))
}
