//! Programs of Go modules that some cases run in guests: built on the host by go, pinned, kept in the cache. Statically linked, they run in
//! any guest. They are neither linked into our programs nor shipped.
//!
//! `go install` builds a program by its name and version ([`GoTool`]), unless its module replaces others. Programs of such modules are tools
//! of a module of ours ([`GoModule`]), whose `go.mod` has the replacements.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cache::{Cache, fingerprint};
use crate::command::{command, output};
use crate::say;

const BUILD_LIMIT: Duration = Duration::from_secs(900);
/// Kubernetes has some 2000 packages.
const MODULE_LIMIT: Duration = Duration::from_secs(5400);
const LIST_LIMIT: Duration = Duration::from_secs(120);

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

/// Programs that are the tools of a module of ours, built together.
#[derive(Debug, Clone, Copy)]
pub struct GoModule {
    name: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
    /// Flags of the linker: variables of the programs.
    variables: &'static str,
    /// A module that the programs are built from, and a directory in it whose files are kept with them.
    files: Option<(&'static str, &'static str)>,
}

impl GoModule {
    /// A Kubernetes: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet and kubectl. The last version that supports the
    /// containerd of Debian 13.
    pub const KUBERNETES: Self = Self {
        name: "kubernetes",
        go_mod: include_str!("../go/kubernetes/go.mod"),
        go_sum: include_str!("../go/kubernetes/go.sum"),
        variables: "-X k8s.io/component-base/version.gitVersion=v1.35.4 -X k8s.io/component-base/version.gitMajor=1 \
                    -X k8s.io/component-base/version.gitMinor=35",
        files: None,
    };
    /// What runs beside CSI drivers: csi-resizer, csi-snapshotter and the snapshot-controller, with the definitions of its resources.
    pub const SIDECARS: Self = Self {
        name: "sidecars",
        go_mod: include_str!("../go/sidecars/go.mod"),
        go_sum: include_str!("../go/sidecars/go.sum"),
        variables: "",
        files: Some(("github.com/kubernetes-csi/external-snapshotter/client/v8", "config/crd")),
    };
    /// The same: csi-provisioner, which requires other libraries.
    pub const PROVISIONER: Self = Self {
        name: "provisioner",
        go_mod: include_str!("../go/provisioner/go.mod"),
        go_sum: include_str!("../go/provisioner/go.sum"),
        variables: "",
        files: None,
    };

    /// Helm, with kustomize: the chart in contrib/helm is compared with the manifests in contrib/kubernetes on the host.
    pub const HELM: Self = Self {
        name: "helm",
        go_mod: include_str!("../go/helm/go.mod"),
        go_sum: include_str!("../go/helm/go.sum"),
        variables: "",
        files: None,
    };

    /// Its programs on the host, built if necessary; for callers without a [`crate::Lab`].
    ///
    /// # Errors
    /// When they are not available, as without `go` on this host.
    pub async fn provide(self) -> Result<GoPrograms> {
        let cache = Cache::locate()?;
        let _building = cache.lock_for_building().await?;
        provide_all(&cache, self).await
    }

    /// Its directory in the cache, which a change of the module renames.
    fn directory(&self, cache: &Cache) -> PathBuf {
        let inputs = [self.go_mod, self.go_sum, self.variables];
        cache.path("tools").join(format!("{}-{:016x}", self.name, fingerprint(inputs)))
    }
}

impl std::fmt::Display for GoModule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Programs of a [`GoModule`] on the host.
#[derive(Debug)]
pub struct GoPrograms {
    directory: PathBuf,
}

impl GoPrograms {
    /// Its programs.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn all(&self) -> Result<Vec<PathBuf>> {
        listed(&self.directory.join("bin"))
    }

    /// The files that are kept with them.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        listed(&self.directory.join("files"))
    }
}

/// Builds the programs of a module, if this version is absent. The caller holds the build lock.
pub(crate) async fn provide_all(cache: &Cache, module: GoModule) -> Result<GoPrograms> {
    let directory = module.directory(cache);
    if !directory.is_dir() {
        say::progress(format!("building {module} from its Go modules, which takes minutes"));
        let work = cache.path(&format!("unfinished-{module}"));
        build(&work, module).await?;
        let tools = cache.path("tools");
        std::fs::create_dir_all(&tools).with_context(|| format!("cannot create {}", tools.display()))?;
        std::fs::rename(&work, &directory)
            .with_context(|| format!("cannot move {module} to {}", directory.display()))?;
    }
    let directory = directory.canonicalize().with_context(|| format!("cannot resolve {}", directory.display()))?;
    Ok(GoPrograms { directory })
}

async fn build(work: &Path, module: GoModule) -> Result<()> {
    if work.exists() {
        std::fs::remove_dir_all(work).with_context(|| format!("cannot remove {}", work.display()))?;
    }
    for sub in ["bin", "files"] {
        let dir = work.join(sub);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    for (name, contents) in [("go.mod", module.go_mod), ("go.sum", module.go_sum)] {
        let path = work.join(name);
        std::fs::write(&path, contents).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let bin = work.canonicalize().with_context(|| format!("cannot resolve {}", work.display()))?.join("bin");
    let mut go = command("go");
    go.current_dir(work).env("GOBIN", bin).env("CGO_ENABLED", "0").args(["install", "-trimpath", "-ldflags"]);
    go.arg(format!("-s -w {}", module.variables)).arg("tool");
    output(go, &format!("go install tool of {module}"), MODULE_LIMIT).await?;
    if let Some((source, directory)) = module.files {
        let mut go = command("go");
        go.current_dir(work).args(["list", "-m", "-f", "{{.Dir}}", source]);
        let source = output(go, &format!("go list {source}"), LIST_LIMIT).await?;
        for file in listed(&Path::new(source.trim()).join(directory))? {
            let copy = work.join("files").join(file.file_name().unwrap_or_default());
            std::fs::copy(&file, &copy)
                .with_context(|| format!("cannot copy {} to {}", file.display(), copy.display()))?;
        }
    }
    Ok(())
}

fn listed(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<_>>>());
    let mut paths = entries.with_context(|| format!("cannot list {}", directory.display()))?;
    paths.sort();
    Ok(paths)
}
