//! Programs that the host must have before anything boots.
//!
//! Owns their list. On Debian-like hosts, as root, it installs missing packages; otherwise it reports them. Does not:
//! change anything else on the host.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::command::{command, find_program, output};
use crate::say;

const INSTALL_LIMIT: Duration = Duration::from_secs(900);

/// A requirement of the host, and the Debian package that provides it.
struct Need {
    requirement: Requirement,
    package: &'static str,
}

enum Requirement {
    Program(&'static str),
    File(&'static str),
}

const NEEDS: [Need; 9] = [
    Need { requirement: Requirement::Program("qemu-system-x86_64"), package: "qemu-system-x86" },
    Need { requirement: Requirement::Program("mmdebstrap"), package: "mmdebstrap" },
    // For the modules of a downloaded kernel.
    Need { requirement: Requirement::Program("depmod"), package: "kmod" },
    // For the initramfs: statically linked.
    Need { requirement: Requirement::Program("busybox"), package: "busybox-static" },
    Need { requirement: Requirement::Program("dpkg-deb"), package: "dpkg" },
    Need { requirement: Requirement::Program("mke2fs"), package: "e2fsprogs" },
    Need { requirement: Requirement::Program("apt-get"), package: "apt" },
    Need { requirement: Requirement::Program("strip"), package: "binutils" },
    Need { requirement: Requirement::File(crate::guest_root::DEBIAN_KEYRING), package: "debian-archive-keyring" },
];

/// Ensures that the host has all programs.
pub(crate) async fn host_programs() -> Result<()> {
    let missing = missing_packages();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    let can_install = rustix::process::geteuid().is_root()
        && find_program("apt-get").is_some()
        && Path::new("/etc/debian_version").exists();
    if !can_install {
        bail!("install these Debian packages or their equivalents first: {list}");
    }
    say::progress(format!("installing on this host: {list}"));
    let mut update = command("apt-get");
    update.arg("update");
    output(update, "apt-get update", INSTALL_LIMIT).await?;
    let mut install = command("apt-get");
    install.args(["install", "-y", "--no-install-recommends"]).args(&missing);
    install.env("DEBIAN_FRONTEND", "noninteractive");
    output(install, &format!("installing {list}"), INSTALL_LIMIT).await?;
    let missing = missing_packages();
    if !missing.is_empty() {
        bail!("programs are still missing after the installation of: {}", missing.join(" "));
    }
    Ok(())
}

fn missing_packages() -> Vec<&'static str> {
    let mut missing = Vec::new();
    for need in &NEEDS {
        let found = match need.requirement {
            Requirement::Program(name) => find_program(name).is_some(),
            Requirement::File(path) => Path::new(path).is_file(),
        };
        if !found {
            missing.push(need.package);
        }
    }
    missing
}
