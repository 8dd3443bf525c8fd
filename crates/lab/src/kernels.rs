//! The kernels that cases run on: their origin, and their identity (version and sha256) for the record.
//!
//! 6.12 is part of the guest root; the others are downloaded with a private apt configuration, so that the host's own
//! apt state is never touched, and added to the guest root. Does not: boot.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use crate::apt::PrivateApt;
use crate::cache::{Cache, write_atomically};
use crate::command::{command, output};
use crate::guest_root::GuestRoot;
use crate::say;

const STEP_LIMIT: Duration = Duration::from_secs(180);

/// A kernel to test on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kernel {
    /// Debian trixie's kernel: the main one.
    V6_12,
    /// The newest kernel of trixie-backports.
    Backport,
    /// Debian bookworm's kernel: no ublk, so the fallbacks are tested.
    V6_1,
}

impl Kernel {
    /// All of them, the main one first.
    pub const ALL: [Self; 3] = [Self::V6_12, Self::Backport, Self::V6_1];

    /// The name used on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V6_12 => "6.12",
            Self::Backport => "backport",
            Self::V6_1 => "6.1",
        }
    }

    /// Whether disks can be served in the guest, which virtual time requires.
    pub(crate) fn has_ublk(self) -> bool {
        self != Self::V6_1
    }

    /// The Debian suite to download from; `None` for the kernel of the guest root itself.
    fn suite(self) -> Option<&'static str> {
        match self {
            Self::V6_12 => None,
            Self::Backport => Some("trixie-backports"),
            Self::V6_1 => Some("bookworm"),
        }
    }
}

impl std::fmt::Display for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Kernel {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|kernel| kernel.name() == name);
        found.ok_or_else(|| anyhow!("unknown kernel {name:?}: choose 6.12, backport or 6.1"))
    }
}

/// A kernel that is ready to boot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KernelImage {
    /// As `uname -r` prints it.
    pub version: String,
    /// Path of the image below the guest root.
    image: PathBuf,
    /// Digest of the image.
    pub sha256: String,
    /// Its packages, with versions.
    pub packages: Vec<String>,
}

impl KernelImage {
    /// Path of the image on the host.
    #[must_use]
    pub fn path(&self, root: &GuestRoot) -> PathBuf {
        root.dir().join(&self.image)
    }
}

/// The kernel in the guest root, downloaded first if absent. The caller holds the build lock.
pub(crate) async fn provide(cache: &Cache, root: &GuestRoot, kernel: Kernel) -> Result<KernelImage> {
    let record = root.dir().join(format!("boot/bulkhead-kernel-{kernel}.json"));
    if let Ok(text) = std::fs::read_to_string(&record) {
        let known = serde_json::from_str(&text);
        return known.with_context(|| format!("{} is damaged: remove it and retry", record.display()));
    }
    let image = match kernel.suite() {
        None => own_kernel(root).await?,
        Some(suite) => download(cache, root, kernel, suite).await?,
    };
    write_atomically(&record, &serde_json::to_string_pretty(&image)?)?;
    Ok(image)
}

/// The kernel that came with the guest root's packages.
async fn own_kernel(root: &GuestRoot) -> Result<KernelImage> {
    let boot = root.dir().join("boot");
    let entries = std::fs::read_dir(&boot).with_context(|| format!("cannot list {}", boot.display()))?;
    let version = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("vmlinuz-").map(str::to_owned))
        .max()
        .ok_or_else(|| anyhow!("no vmlinuz-* in {}: remove the guest root and retry", boot.display()))?;
    let image = PathBuf::from(format!("boot/vmlinuz-{version}"));
    let sha256 = sha256(&root.dir().join(&image)).await?;
    let prefix = format!("linux-image-{version} ");
    let packages = root.packages()?.lines().filter(|line| line.starts_with(&prefix)).map(str::to_owned).collect();
    Ok(KernelImage { version, image, sha256, packages })
}

async fn download(cache: &Cache, root: &GuestRoot, kernel: Kernel, suite: &str) -> Result<KernelImage> {
    say::progress(format!("downloading the kernel of {suite}"));
    let work = cache.path(&format!("unfinished-kernel-{kernel}"));
    if work.exists() {
        std::fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    }
    let apt = PrivateApt::new(&work, suite)?;
    apt.run("apt-get", &["update", "-qq"]).await?;
    let meta = apt.run("apt-cache", &["depends", "linux-image-amd64"]).await?;
    let newest = dependencies(&meta)
        .find(|name| name.starts_with("linux-image-"))
        .ok_or_else(|| anyhow!("linux-image-amd64 of {suite} depends on no linux-image-*:\n{meta}"))?
        .to_owned();
    let version = newest.trim_start_matches("linux-image-").to_owned();
    // Newer packages are split: the image in linux-binary-*, the modules in linux-modules-*.
    let parts = apt.run("apt-cache", &["depends", &newest]).await?;
    let mut names = vec![newest.as_str()];
    names.extend(
        dependencies(&parts).filter(|name| name.starts_with("linux-binary-") || name.starts_with("linux-modules-")),
    );
    let mut arguments = vec!["download", "-qq"];
    arguments.extend(&names);
    apt.run("apt-get", &arguments).await?;

    let unpacked = work.join("unpacked");
    let packages = apt.unpack(&unpacked).await?;
    let modules = merge_modules(&unpacked, &version).await?;
    let image = modules.join("vmlinuz");
    if !image.exists() {
        let separate = unpacked.join(format!("boot/vmlinuz-{version}"));
        std::fs::rename(&separate, &image)
            .with_context(|| format!("packages {} contain no image at {}", names.join(" "), separate.display()))?;
    }
    let place = PathBuf::from(format!("usr/lib/modules/{version}"));
    let target = root.dir().join(&place);
    if target.exists() {
        std::fs::remove_dir_all(&target).with_context(|| format!("cannot replace {}", target.display()))?;
    }
    std::fs::rename(&modules, &target).with_context(|| format!("cannot move modules to {}", target.display()))?;
    let mut depmod = command("depmod");
    depmod.arg("-b").arg(root.dir()).arg(&version);
    output(depmod, &format!("depmod for {version}"), STEP_LIMIT).await?;
    std::fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    let image = place.join("vmlinuz");
    let sha256 = sha256(&root.dir().join(&image)).await?;
    Ok(KernelImage { version, image, sha256, packages })
}

/// Names in the output of `apt-cache depends`, direct dependencies only.
fn dependencies(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "))
}

/// Older packages have modules in lib/, newer ones in usr/lib/.
async fn merge_modules(unpacked: &Path, version: &str) -> Result<PathBuf> {
    let (old, new) = (unpacked.join("lib/modules").join(version), unpacked.join("usr/lib/modules").join(version));
    match (old.exists(), new.exists()) {
        (true, false) => Ok(old),
        (false, true) => Ok(new),
        (true, true) => {
            let mut copy = command("cp");
            copy.args(["-a", "--link"]).arg(old.join(".")).arg(&new);
            output(copy, "merging module directories", STEP_LIMIT).await?;
            Ok(new)
        }
        (false, false) => bail!("the packages contain no lib/modules/{version}"),
    }
}

async fn sha256(file: &Path) -> Result<String> {
    let mut sum = command("sha256sum");
    sum.arg(file);
    let text = output(sum, &format!("sha256 of {}", file.display()), STEP_LIMIT).await?;
    let digest = text.split_whitespace().next().map(str::to_owned);
    digest.ok_or_else(|| anyhow!("sha256sum printed nothing for {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for kernel in Kernel::ALL {
            assert_eq!(kernel.name().parse::<Kernel>().unwrap(), kernel);
        }
        assert!("5.10".parse::<Kernel>().is_err());
    }

    #[test]
    fn dependencies_are_direct_ones_only() {
        let text = "linux-image-amd64\n  Depends: linux-base-amd64\n  Depends: linux-image-7.3.4+deb13-amd64\n  \
                    Breaks: x\n";
        assert_eq!(dependencies(text).collect::<Vec<_>>(), ["linux-base-amd64", "linux-image-7.3.4+deb13-amd64"]);
    }
}
