//! Programs of Go modules that some cases run in guests: built on the host by go, pinned, kept in the cache. Statically linked, they run in
//! any guest. They are neither linked into our programs nor shipped.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cache::Cache;
use crate::command::{command, output};
use crate::say;

const BUILD_LIMIT: Duration = Duration::from_secs(900);

/// A program of a Go module.
#[derive(Debug, Clone, Copy)]
pub struct GoTool {
    name: &'static str,
    package: &'static str,
    version: &'static str,
}

impl GoTool {
    /// All tools that cases use.
    pub const ALL: [Self; 1] = [Self::CSI_SANITY];
    /// Conformance to the Container Storage Interface.
    pub const CSI_SANITY: Self =
        Self { name: "csi-sanity", package: "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity", version: "v5.6.0" };
}

impl std::fmt::Display for GoTool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

/// The program on the host, built first if this version is absent. The caller holds the build lock.
pub(crate) async fn provide(cache: &Cache, tool: GoTool) -> Result<PathBuf> {
    let GoTool { name, package, version } = tool;
    let bin = cache.path("tools").join(format!("{name}-{version}"));
    let program = bin.join(name);
    if !program.is_file() {
        say::progress(format!("building {tool} from its Go module"));
        let mut go = command("go");
        go.env("GOBIN", &bin).env("CGO_ENABLED", "0").arg("install").arg(format!("{package}@{version}"));
        output(go, &format!("go install {tool}"), BUILD_LIMIT).await?;
        ensure!(program.is_file(), "{tool} installed no program {}", program.display());
    }
    program.canonicalize().with_context(|| format!("cannot resolve {}", program.display()))
}
