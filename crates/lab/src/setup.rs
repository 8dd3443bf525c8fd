//! What the host must have before anything boots: programs from the distribution.
//!
//! Installs missing packages on Debian-like hosts when run as root, otherwise says which are missing. Changes nothing
//! else on the host.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::command::{command, find_program, output};
use crate::say;

const INSTALL_LIMIT: Duration = Duration::from_secs(900);

/// A thing the host needs and the Debian package that has it.
struct Need {
    wanted: Wanted,
    package: &'static str,
}

enum Wanted {
    Program(&'static str),
    File(&'static str),
}

const NEEDS: [Need; 9] = [
    Need { wanted: Wanted::Program("qemu-system-x86_64"), package: "qemu-system-x86" },
    Need { wanted: Wanted::Program("mmdebstrap"), package: "mmdebstrap" },
    // For the modules of a downloaded kernel.
    Need { wanted: Wanted::Program("depmod"), package: "kmod" },
    // Of the initramfs: not linked to anything.
    Need { wanted: Wanted::Program("busybox"), package: "busybox-static" },
    Need { wanted: Wanted::Program("dpkg-deb"), package: "dpkg" },
    Need { wanted: Wanted::Program("mke2fs"), package: "e2fsprogs" },
    Need { wanted: Wanted::Program("apt-get"), package: "apt" },
    Need { wanted: Wanted::Program("strip"), package: "binutils" },
    Need { wanted: Wanted::File(crate::guest_root::DEBIAN_KEYRING), package: "debian-archive-keyring" },
];

/// Makes sure that the host has all programs.
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
    let missing = missing_packages();
    if !missing.is_empty() {
        bail!("installed, but still missing what these packages should bring: {}", missing.join(" "));
    }
    Ok(())
}

fn missing_packages() -> Vec<&'static str> {
    let mut missing = Vec::new();
    for need in &NEEDS {
        let found = match need.wanted {
            Wanted::Program(name) => find_program(name).is_some(),
            Wanted::File(path) => Path::new(path).is_file(),
        };
        if !found {
            missing.push(need.package);
        }
    }
    missing
}
