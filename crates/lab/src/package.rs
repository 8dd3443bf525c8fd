//! Debian packages that only some cases need, each unpacked into its own directory of the guest root.
//!
//! They are not in the guest root's own list, so that a mirror without the package affects only those cases. Does not:
//! install them. Maintainer scripts (users, services) run neither on the host nor in guests.

use anyhow::{Context, Result};

use crate::apt::PrivateApt;
use crate::cache::{Cache, write_atomically};
use crate::guest_root::{GuestRoot, RELEASE};
use crate::say;

/// A package whose programs guests can run.
#[derive(Debug, Clone)]
pub struct GuestPackage {
    name: &'static str,
    /// Its name and version, for the record.
    pub version: String,
}

impl GuestPackage {
    /// Path in the guest of a file of the package.
    #[must_use]
    pub fn path(&self, file: &str) -> String {
        format!("/opt/{}/{file}", self.name)
    }
}

/// The package in the guest root, downloaded first if absent. The caller holds the build lock.
pub(crate) async fn provide(cache: &Cache, root: &GuestRoot, name: &'static str) -> Result<GuestPackage> {
    let place = root.dir().join("opt").join(name);
    let record = place.join("package.txt");
    if !record.exists() {
        say::progress(format!("downloading the package {name} of {RELEASE}"));
        let work = cache.path(&format!("unfinished-package-{name}"));
        if work.exists() {
            std::fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
        }
        let apt = PrivateApt::new(&work, RELEASE)?;
        apt.run("apt-get", &["update", "-qq"]).await?;
        apt.run("apt-get", &["download", "-qq", name]).await?;
        let unpacked = work.join("unpacked");
        let packages = apt.unpack(&unpacked).await?;
        write_atomically(&unpacked.join("package.txt"), &packages.join("\n"))?;
        std::fs::rename(&unpacked, &place).with_context(|| format!("cannot move {name} to {}", place.display()))?;
        std::fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    }
    let version = std::fs::read_to_string(&record).with_context(|| format!("cannot read {}", record.display()))?;
    Ok(GuestPackage { name, version })
}
