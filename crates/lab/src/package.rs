//! Programs that only single cases want: a Debian package, unpacked into a folder of its own in the guest root.
//!
//! Not in the guest root's own list, so that a mirror without the package costs only those cases. Nothing is installed: what the
//! package would do to a system (users, services) does not happen, neither on the host nor in guests.

use anyhow::{Context, Result};

use crate::apt::PrivateApt;
use crate::cache::{Cache, write_atomically};
use crate::guest_root::{GuestRoot, RELEASE};
use crate::say;

/// A package that guests can run programs of.
#[derive(Debug, Clone)]
pub struct GuestPackage {
    name: &'static str,
    /// Its name and version, for the record.
    pub version: String,
}

impl GuestPackage {
    /// Path in the guest of a file that the package has at this path.
    #[must_use]
    pub fn path(&self, file: &str) -> String {
        format!("/opt/{}/{file}", self.name)
    }
}

/// The package from the guest root, downloaded first if it is not there. The caller holds the build lock.
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
