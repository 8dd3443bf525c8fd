//! What the host must have before anything boots: programs from the distribution, and virtme-ng in its own venv.
//!
//! Installs missing packages on Debian-like hosts when run as root, otherwise says which are missing. Changes nothing
//! else on the host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cache::Cache;
use crate::command::{command, find_program, output};
use crate::say;

/// The pinned release of virtme-ng.
const VIRTME_NG_VERSION: &str = "1.42";
/// How its initramfs mounts the guest's root: each look at a file asks the host.
const ROOT_ASKS_HOST: &str = "trans=virtio,access=any,msize=524288 /dev/root";
/// The root never changes under a running guest: what was read once is kept. Under emulation a boot takes 9 s in place of 15,
/// and the start of a program 11 ms in place of 16 (`cache` in the kernel's Documentation/filesystems/9p.rst).
const ROOT_IS_KEPT: &str = "trans=virtio,access=any,msize=524288,cache=loose /dev/root";
const INSTALL_LIMIT: Duration = Duration::from_secs(900);

/// A thing the host needs and the Debian package that has it.
struct Need {
    wanted: Wanted,
    package: &'static str,
}

enum Wanted {
    Program(&'static str),
    File(&'static str),
    PythonModule(&'static str),
}

const NEEDS: [Need; 11] = [
    Need { wanted: Wanted::Program("qemu-system-x86_64"), package: "qemu-system-x86" },
    Need { wanted: Wanted::Program("mmdebstrap"), package: "mmdebstrap" },
    // virtme-ng looks for the modules of the guest's kernel with modprobe ...
    Need { wanted: Wanted::Program("modprobe"), package: "kmod" },
    // ... and puts a static busybox into the initramfs.
    Need { wanted: Wanted::Program("busybox"), package: "busybox-static" },
    Need { wanted: Wanted::Program("python3"), package: "python3" },
    Need { wanted: Wanted::PythonModule("ensurepip"), package: "python3-venv" },
    Need { wanted: Wanted::Program("dpkg-deb"), package: "dpkg" },
    Need { wanted: Wanted::Program("mke2fs"), package: "e2fsprogs" },
    Need { wanted: Wanted::Program("apt-get"), package: "apt" },
    Need { wanted: Wanted::Program("strip"), package: "binutils" },
    Need { wanted: Wanted::File(crate::guest_root::DEBIAN_KEYRING), package: "debian-archive-keyring" },
];

/// Makes sure that the host has all programs.
pub(crate) async fn host_programs() -> Result<()> {
    let missing = missing_packages().await;
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    let can_install = rustix::process::geteuid().is_root()
        && find_program("apt-get").is_some()
        && Path::new("/etc/debian_version").exists();
    if !can_install {
        bail!("the lab needs these Debian packages (or what corresponds to them), install them first: {list}");
    }
    say::progress(format!("installing on this host: {list}"));
    let mut update = command("apt-get");
    update.arg("update");
    output(update, "apt-get update", INSTALL_LIMIT).await?;
    let mut install = command("apt-get");
    install.args(["install", "-y", "--no-install-recommends"]).args(&missing);
    install.env("DEBIAN_FRONTEND", "noninteractive");
    output(install, &format!("installing {list}"), INSTALL_LIMIT).await?;
    let missing = missing_packages().await;
    if !missing.is_empty() {
        bail!("installed, but still missing what these packages should bring: {}", missing.join(" "));
    }
    Ok(())
}

async fn missing_packages() -> Vec<&'static str> {
    let mut missing = Vec::new();
    for need in &NEEDS {
        let found = match need.wanted {
            Wanted::Program(name) => find_program(name).is_some(),
            Wanted::File(path) => Path::new(path).is_file(),
            Wanted::PythonModule(name) => {
                let mut import = command("python3");
                import.args(["-c", &format!("import {name}")]);
                output(import, "python import", Duration::from_secs(30)).await.is_ok()
            }
        };
        if !found {
            missing.push(need.package);
        }
    }
    missing
}

/// The `bin` folder of a venv with the pinned virtme-ng, whose guests keep what they read of their root.
pub(crate) async fn virtme_ng(cache: &Cache) -> Result<PathBuf> {
    let venv = cache.path(&format!("venv-virtme-ng-{VIRTME_NG_VERSION}-root-kept"));
    // A venv cannot be moved, so completeness is a file in it and not its name.
    let complete = venv.join("complete");
    let bin = venv.join("bin");
    if complete.exists() {
        return Ok(bin);
    }
    say::progress(format!("installing virtme-ng {VIRTME_NG_VERSION} into {}", venv.display()));
    if venv.exists() {
        std::fs::remove_dir_all(&venv).with_context(|| format!("cannot remove unfinished {}", venv.display()))?;
    }
    let mut create = command("python3");
    create.args(["-m", "venv"]).arg(&venv);
    output(create, "creating a Python venv", INSTALL_LIMIT).await?;
    let mut install = command(bin.join("pip"));
    install.args(["install", "--quiet", &format!("virtme-ng=={VIRTME_NG_VERSION}")]);
    output(install, "installing virtme-ng from PyPI", INSTALL_LIMIT).await?;
    keep_root(&venv)?;
    std::fs::write(&complete, "").with_context(|| format!("cannot write {}", complete.display()))?;
    Ok(bin)
}

/// Changes how guests mount their root; virtme-ng has no option for it.
fn keep_root(venv: &Path) -> Result<()> {
    let library = venv.join("lib");
    let pythons = std::fs::read_dir(&library).with_context(|| format!("cannot read {}", library.display()))?;
    let path = pythons
        .flatten()
        .map(|python| python.path().join("site-packages/virtme/mkinitramfs.py"))
        .find(|path| path.is_file())
        .with_context(|| format!("there is no virtme/mkinitramfs.py below {}", library.display()))?;
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    if text.matches(ROOT_ASKS_HOST).count() != 1 {
        bail!("{} does not mount the root as virtme-ng {VIRTME_NG_VERSION} does: it cannot be changed", path.display());
    }
    std::fs::write(&path, text.replace(ROOT_ASKS_HOST, ROOT_IS_KEPT))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_kept_or_refused() {
        let venv = tempfile::tempdir().unwrap();
        assert!(keep_root(venv.path()).unwrap_err().to_string().starts_with("cannot read "));
        let folder = venv.path().join("lib/python3.11/site-packages/virtme");
        std::fs::create_dir_all(&folder).unwrap();
        assert!(keep_root(venv.path()).unwrap_err().to_string().starts_with("there is no virtme/mkinitramfs.py"));
        let path = folder.join("mkinitramfs.py");
        let mounts =
            "mount -t 9p -o {access},version=9p2000.L,trans=virtio,access=any,msize=524288 /dev/root /newroot/\n";
        std::fs::write(&path, mounts).unwrap();
        keep_root(venv.path()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), mounts.replace("524288", "524288,cache=loose"));
        assert!(keep_root(venv.path()).unwrap_err().to_string().contains("cannot be changed"));
    }
}
