//! The guest's root file system: a minimal Debian trixie, the same on every host.
//!
//! Owns: the package list, and the directory in the cache, whose name contains a hash of its inputs: a changed list
//! makes a new root. Does not: add further kernels (`kernels`).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cache::{Cache, CacheLock, fingerprint, write_atomically};
use crate::command::{command, output};
use crate::say;

/// Debian's keys, which verify all downloaded packages.
pub(crate) const DEBIAN_KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The guest's release of Debian.
pub(crate) const RELEASE: &str = "trixie";
const DEFAULT_MIRROR: &str = "http://deb.debian.org/debian";
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
/// Incremented when the build of the root changes without a change of the list.
const RECIPE: &str = "1";
/// Overrides udev's own rule, which loads a driver for every device of QEMU's board: 60 modules, most of a boot's time
/// under emulation.
const DRIVER_RULE: (&str, &str) = (
    "etc/udev/rules.d/80-drivers.rules",
    "ACTION!=\"remove\", ENV{MODALIAS}==\"virtio:*\", RUN{builtin}+=\"kmod load\"\n",
);

/// Packages of the guest, by purpose: base, kernel, storage, workloads, observation.
const PACKAGES: [&str; 30] = [
    "systemd-sysv",
    "dbus",
    "udev",
    "kmod",
    "procps",
    "psmisc",
    "iproute2",
    "python3-minimal",
    "ca-certificates",
    "linux-image-amd64",
    "lvm2",
    "dmsetup",
    "thin-provisioning-tools",
    "e2fsprogs",
    "xfsprogs",
    "btrfs-progs",
    "f2fs-tools",
    "jfsutils",
    "nilfs-tools",
    "reiserfsprogs",
    "attr",
    "nbdkit",
    "fio",
    "mariadb-server",
    "sysbench",
    "stress-ng",
    "nbd-client",
    "qemu-utils",
    "strace",
    "blktrace",
];

/// A complete guest root.
#[derive(Debug)]
pub struct GuestRoot {
    name: String,
    dir: PathBuf,
    _in_use: CacheLock,
}

impl GuestRoot {
    /// The root in the cache, built first if there is none for the current package list.
    pub(crate) async fn provide(cache: &Cache) -> Result<Self> {
        let recipe = [RECIPE, RELEASE, DRIVER_RULE.0, DRIVER_RULE.1].into_iter().chain(PACKAGES);
        let name = format!("guest-root-{:016x}", fingerprint(recipe));
        let in_use = cache.lock_for_use(&name)?;
        let dir = cache.path(&name);
        if !dir.exists() {
            build(cache, &name, &dir).await?;
            cache.remove_unused("guest-root-", &name)?;
        }
        Ok(Self { name, dir, _in_use: in_use })
    }

    /// The directory's name, which identifies its inputs.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The directory on the host.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Names and versions of all packages, one per line, for the record of each result.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn packages(&self) -> Result<String> {
        let path = packages_file(&self.dir);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// A command that runs a program of the guest root on the host, with the guest's loader and libraries.
    ///
    /// There is no chroot: the program sees the host's files and leaves nothing mounted.
    pub(crate) fn host_command(&self, program: &str) -> std::process::Command {
        let libraries = self.libraries();
        let mut loader = command(libraries.join("ld-linux-x86-64.so.2"));
        loader.arg("--argv0").arg(program).arg("--library-path").arg(&libraries);
        loader.arg(self.dir.join("usr/bin").join(program));
        loader
    }

    /// The guest's directory of shared libraries, as seen from the host.
    pub(crate) fn libraries(&self) -> PathBuf {
        self.dir.join("usr/lib/x86_64-linux-gnu")
    }
}

fn packages_file(root: &Path) -> PathBuf {
    root.join("packages.txt")
}

async fn build(cache: &Cache, name: &str, dir: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("building the guest root requires root, to preserve file owners: run `cargo xtask lab prepare` as root");
    }
    let mirror = debian_mirror();
    say::progress(format!("building the guest root {} from {mirror} (about a minute)", dir.display()));
    let started = Instant::now();
    let unfinished = cache.path(&format!("unfinished-{name}"));
    if unfinished.exists() {
        unmount_below(&unfinished)?;
        std::fs::remove_dir_all(&unfinished).with_context(|| format!("cannot remove {}", unfinished.display()))?;
    }
    let mut bootstrap = command("mmdebstrap");
    bootstrap
        .args(["--variant=minbase", "--quiet"])
        .arg(format!("--keyring={DEBIAN_KEYRING}"))
        .arg(format!("--include={}", PACKAGES.join(",")))
        .arg(RELEASE)
        .arg(&unfinished)
        .arg(&mirror);
    output(bootstrap, &format!("mmdebstrap of {RELEASE} from {mirror}"), BUILD_LIMIT).await?;
    let (rule, text) = DRIVER_RULE;
    write_atomically(&unfinished.join(rule), text)?;
    let shared = unfinished.join("lab");
    std::fs::create_dir_all(&shared).with_context(|| format!("cannot create {}", shared.display()))?;
    let mut query = command("dpkg-query");
    query.arg(format!("--admindir={}", unfinished.join("var/lib/dpkg").display()));
    query.args(["--show", "--showformat=${Package} ${Version}\\n"]);
    let list = output(query, "listing the guest's packages", Duration::from_secs(60)).await?;
    write_atomically(&packages_file(&unfinished), &list)?;
    std::fs::rename(&unfinished, dir).with_context(|| format!("cannot rename to {}", dir.display()))?;
    say::progress(format!("guest root built in {:.0} s", started.elapsed().as_secs_f64()));
    Ok(())
}

/// A killed mmdebstrap may leave /proc, /sys or /dev mounted in its directory, which must not be removed through it.
fn unmount_below(dir: &Path) -> Result<()> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
    let mut below: Vec<&Path> = points.filter(|point| point.starts_with(dir)).collect();
    // Unmount in reverse order: the last mount is on top.
    below.reverse();
    for point in below {
        rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH)
            .with_context(|| format!("cannot unmount {}, left by a killed build", point.display()))?;
    }
    Ok(())
}

/// The Debian mirror that this host uses.
pub(crate) fn debian_mirror() -> String {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = std::fs::read_dir("/etc/apt/sources.list.d") {
        let mut more: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        more.sort();
        files.extend(more);
    }
    files
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .find_map(|text| mirror_in(&text))
        .unwrap_or_else(|| DEFAULT_MIRROR.to_owned())
}

/// The first address of a Debian archive (not of its security archive) in an apt sources file of either format.
fn mirror_in(sources: &str) -> Option<String> {
    let is_archive = |uri: &&str| {
        let path = uri.trim_end_matches('/');
        uri.starts_with("http") && path.ends_with("/debian")
    };
    sources
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("URIs:") || line.starts_with("deb "))
        .flat_map(str::split_whitespace)
        .find(is_archive)
        .map(|uri| uri.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirror_is_found_in_both_formats() {
        let deb822 = "Types: deb\n# http://snapshot/debian\nURIs: http://mirror.example/debian\nSuites: bookworm\n\n\
                      Types: deb\nURIs: http://deb.debian.org/debian-security\nSuites: bookworm-security\n";
        assert_eq!(mirror_in(deb822).unwrap(), "http://mirror.example/debian");
        let one_line =
            "# deb http://old/debian x main\ndeb [arch=amd64] https://ftp.de.debian.org/debian/ trixie main\n";
        assert_eq!(mirror_in(one_line).unwrap(), "https://ftp.de.debian.org/debian");
        assert_eq!(mirror_in("deb https://packages.cloud.google.com/apt cloud-sdk main\n"), None);
        assert_eq!(mirror_in("URIs: http://deb.debian.org/debian-security\n"), None);
    }
}
