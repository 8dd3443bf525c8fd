//! `cargo xtask chart`: the Helm chart renders the manifests of `contrib/kubernetes`, and refuses invalid values.
//!
//! Chart and manifests are both written by hand. Rendering the manifests would need Helm for each change of them, and the kustomization of the
//! snapshots is a patch, which no chart renders. So that there is one truth all the same, their objects are compared. Helm and kustomize are
//! built from their Go modules, which takes minutes; therefore the result is recorded, as that of cargo-deny is, and `check` compares a hash.

mod objects;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_lab::{GoModule, GoPrograms, host_command, host_output, say};

use self::objects::{Objects, Source};
use crate::lab::workspace;

const CHART: &str = "contrib/helm/bulkhead-csi";
const MANIFESTS: &str = "contrib/kubernetes";
/// What the result depends on: these, the programs' modules and this check.
const INPUTS: [&str; 5] = [CHART, MANIFESTS, "crates/lab/go/helm", "xtask/src/chart", "xtask/src/chart.rs"];
/// The file that records what was last found right.
const CHECKED: &str = "contrib/helm/chart.checked";

/// Values that differ from all defaults, and what they render: blessed with `BULKHEAD_BLESS=1`.
const EVERY_VALUE: &str = "xtask/src/chart/every-value.yaml";
const RENDERED: &str = "xtask/src/chart/every-value.out.yaml";

/// The release and its namespace, as the manifests name them.
const RELEASE: [&str; 3] = ["bulkhead-csi", "--namespace", "bulkhead"];
/// Of one run of helm or kustomize.
const LIMIT: Duration = Duration::from_secs(60);

/// Values, and the kustomizations with the same objects.
const SAME: [(&[&str], &[&str]); 3] = [
    (&[], &["driver"]),
    (&["snapshots.enabled=true"], &["snapshots"]),
    (&["podMonitor.enabled=true"], &["driver", "monitoring"]),
];

/// Invalid values, and what Helm says.
const REFUSED: [(&str, &str); 6] = [
    ("poool=fast", "at '': additional properties 'poool' not allowed"),
    ("kubeletDir=var/lib/kubelet", "at '/kubeletDir': 'var/lib/kubelet' does not match pattern"),
    ("storageClasses[0].fsType=ext4", "at '/storageClasses/0': missing property 'name'"),
    (
        "volumeAttributesClasses[0].name=a,volumeAttributesClasses[0].parameters.share=300",
        "share': got number, want string",
    ),
    ("storageClasses[0].name=a,storageClasses[0].parameters.shares=x", "additional properties 'shares' not allowed"),
    ("logLevel=verbose", "at '/logLevel': value must be one of '', 'error', 'warn', 'info', 'debug'"),
];

/// Checks the chart, and records the result.
///
/// # Errors
/// What is wrong with it, or that the programs cannot be built.
pub(crate) fn record() -> Result<()> {
    check()?;
    let path = workspace().join(CHECKED);
    std::fs::write(&path, format!("{}\n", checked(&workspace())?))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Checks that chart, manifests and this check are those that were last found right. Requires no Helm.
///
/// # Errors
/// If they are not.
pub(crate) fn check_recorded() -> Result<()> {
    let now = checked(&workspace())?;
    let recorded = std::fs::read_to_string(workspace().join(CHECKED)).unwrap_or_default();
    ensure!(
        recorded.trim() == now,
        "{CHART} or {MANIFESTS} has changed since Helm compared them ({CHECKED}): run `cargo xtask chart`, which builds Helm with go"
    );
    Ok(())
}

/// The content of [`CHECKED`] for a workspace: a hash of all that the result depends on.
fn checked(workspace: &Path) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut files = Vec::new();
    for input in INPUTS {
        collect(&workspace.join(input), &mut files)?;
    }
    files.sort();
    for file in files {
        let bytes = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let name = file.strip_prefix(workspace).unwrap_or(&file);
        hasher.update(blake3::hash(name.as_os_str().as_encoded_bytes()).as_bytes());
        hasher.update(blake3::hash(&bytes).as_bytes());
    }
    Ok(format!("helm, kustomize {}", hasher.finalize()))
}

/// Collects the files in a directory and its subdirectories, or a file.
fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if directory.is_file() {
        files.push(directory.to_owned());
        return Ok(());
    }
    let entries = std::fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    for entry in entries {
        collect(&entry.with_context(|| format!("cannot list {}", directory.display()))?.path(), files)?;
    }
    Ok(())
}

fn block_on<T>(work: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.context("cannot start the asynchronous runtime")?.block_on(work))
}

fn check() -> Result<()> {
    block_on(async {
        let programs = GoModule::HELM.provide().await.context("cannot build helm and kustomize")?;
        let helm = Helm { programs, workspace: workspace() };
        helm.lints().await?;
        for (values, kustomizations) in SAME {
            helm.renders(values, kustomizations).await?;
        }
        helm.renders_every_value().await?;
        for (values, error) in REFUSED {
            helm.refuses(values, error).await?;
        }
        say::progress("the chart renders the manifests, and refuses invalid values");
        Ok(())
    })?
}

/// Helm and kustomize, and the files that they read.
struct Helm {
    programs: GoPrograms,
    workspace: PathBuf,
}

impl Helm {
    async fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        let path = self.programs.all()?.into_iter().find(|path| path.file_name().is_some_and(|name| name == program));
        let mut command = host_command(path.with_context(|| format!("there is no program {program}"))?);
        command.current_dir(&self.workspace).args(args);
        host_output(command, &format!("{program} {}", args.join(" ")), LIMIT).await
    }

    async fn template(&self, args: &[&str]) -> Result<String> {
        self.run("helm", &[&["template"][..], &RELEASE[..], &[CHART], args].concat()).await
    }

    async fn lints(&self) -> Result<()> {
        for values in [&[][..], &["--values", EVERY_VALUE]] {
            self.run("helm", &[&["lint", "--strict", "--quiet", CHART][..], values].concat()).await?;
        }
        Ok(())
    }

    /// Whether values render the objects of kustomizations.
    async fn renders(&self, values: &[&str], kustomizations: &[&str]) -> Result<()> {
        let set: Vec<&str> = values.iter().flat_map(|value| ["--set", value]).collect();
        let rendered = self.objects(&self.template(&set).await?, Source::Chart).await?;
        let mut texts = Vec::new();
        for name in kustomizations {
            texts.push(self.run("kustomize", &["build", &format!("{MANIFESTS}/{name}")]).await?);
        }
        let plain = self.objects(&texts.join("\n---\n"), Source::Manifests).await?;
        if let Some(difference) = plain.difference(&rendered) {
            bail!("{MANIFESTS}/{} and the chart with {values:?} differ: {difference}", kustomizations.join(" + "));
        }
        Ok(())
    }

    async fn renders_every_value(&self) -> Result<()> {
        let values = ["--values", EVERY_VALUE];
        let found = self.template(&values).await?;
        let path = self.workspace.join(RENDERED);
        if std::env::var_os("BULKHEAD_BLESS").is_some() {
            return std::fs::write(&path, found).with_context(|| format!("cannot write {}", path.display()));
        }
        let expected = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let (found, expected) = (filled(&found), filled(&expected));
        let line = found.iter().zip(&expected).find(|(found, expected)| found != expected);
        ensure!(
            found == expected,
            "the rendering of every value differs from {RENDERED} ({line:?}): bless it with BULKHEAD_BLESS=1"
        );
        Ok(())
    }

    async fn refuses(&self, values: &str, error: &str) -> Result<()> {
        match self.template(&["--set", values]).await {
            Ok(_) => bail!("the chart accepts {values}"),
            Err(refusal) => {
                let refusal = format!("{refusal:#}");
                ensure!(refusal.contains(error), "{values} is refused, but not with {error:?}:\n{refusal}");
                Ok(())
            }
        }
    }

    /// The objects of a text. Helm reads its YAML: a chart of one file prints it as JSON.
    async fn objects(&self, text: &str, source: Source) -> Result<Objects> {
        let dir = self.workspace.join("target/chart");
        let write = |name: &str, content: &str| {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(&dir))
                .and_then(|()| std::fs::write(&path, content))
                .with_context(|| format!("cannot write {}", path.display()))
        };
        write("Chart.yaml", "apiVersion: v2\nname: objects\nversion: 0.0.0\n")?;
        write("templates/objects.yaml", objects::TEMPLATE)?;
        write("objects", text)?;
        let printed = self.run("helm", &["template", "objects", "target/chart"]).await?;
        Objects::parse(&printed, source)
    }
}

/// The lines that are not empty.
fn filled(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.trim().is_empty()).collect()
}
