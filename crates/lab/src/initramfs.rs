//! The initramfs of all machines: busybox, the modules for the root image, and the script that runs there.
//!
//! It switches to the root image (`boot/init.sh`), where a script does the work of an init system (`boot/start.sh`) and
//! then that of the caller, or systemd starts. Does not: define the caller's work.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command::{command, find_program, output};
use crate::lab::Lab;

/// Modules required to mount the root, without their dependencies.
const MODULES: [&str; 4] = ["virtio_pmem", "nd_pmem", "ext4", "overlay"];
/// Further modules, for kernels that do not have them built in.
const OPTIONAL_MODULES: [&str; 2] = ["virtio_pci", "crc32c_generic"];
/// Process 1 of the initramfs.
const INIT: &str = include_str!("boot/init.sh");
/// First part of process 1 in the root image.
const START: &str = include_str!("boot/start.sh");
/// Last part of process 1: powers the machine off.
const END: &str = "echo o >/proc/sysrq-trigger\nsleep 60\n";
/// Header of the `newc` format: a magic number of 6 digits, and 13 fields of 8 digits.
const HEADER_BYTES: usize = 110;
const STEP_LIMIT: Duration = Duration::from_secs(120);

/// Process 1 in the root image.
#[derive(Debug)]
pub(crate) enum Work<'a> {
    /// A script.
    Script {
        /// Runs first.
        before: &'a str,
        /// Runs when devices are ready; then the machine powers itself off.
        work: &'a str,
    },
    /// systemd, with these files added to its root; a file without text is a masked unit.
    Systemd(Vec<(PathBuf, Option<String>)>),
}

/// Writes an initramfs with a kernel's modules and the lab's programs to `stage`, a new directory.
///
/// # Errors
/// When the host has no busybox, the kernel lacks a module, or a file cannot be written.
pub(crate) async fn make(lab: &Lab, version: &str, work: Work<'_>, stage: &Path) -> Result<PathBuf> {
    let tree = stage.join("tree");
    for dir in ["bin", "dev", "proc", "sys", "mnt", "new", "mod", "lab/bin"] {
        let path = tree.join(dir);
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    }
    let copy = |from: &Path, to: PathBuf| {
        std::fs::copy(from, &to)
            .map(drop)
            .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
    };
    copy(&find_program("busybox").context("busybox is not installed")?, tree.join("bin/busybox"))?;
    let modules = lab.root().dir().join("usr/lib/modules").join(version);
    let listed = modules.join("modules.dep");
    let listed = std::fs::read_to_string(&listed).with_context(|| format!("cannot read {}", listed.display()))?;
    for (number, module) in load_order(&listed)?.into_iter().enumerate() {
        let name = Path::new(module).file_name().context("a module without a name")?.to_string_lossy();
        let to = tree.join("mod").join(format!("{number:02}-{name}"));
        copy(&modules.join(module), to.clone())?;
        if name.ends_with(".xz") {
            let mut unpack = command("busybox");
            unpack.arg("unxz").arg(&to);
            output(unpack, "unpacking a module of the guest's kernel", STEP_LIMIT).await?;
        }
    }
    for program in lab.programs() {
        let name = program.file_name().context("a program without a name")?;
        copy(program, tree.join("lab/bin").join(name))?;
    }
    let write = |path: PathBuf, text: &str| {
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        let executable = Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, executable).with_context(|| format!("cannot change {}", path.display()))
    };
    write(tree.join("init"), INIT)?;
    match work {
        Work::Script { before, work } => write(tree.join("main.sh"), &[before, START, work, END].concat())?,
        Work::Systemd(files) => {
            for (path, text) in files {
                let path = tree.join("files").join(path);
                let dir = path.parent().context("a file without a directory")?;
                std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
                match text {
                    Some(text) => {
                        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
                    }
                    None => std::os::unix::fs::symlink("/dev/null", &path)
                        .with_context(|| format!("cannot link {}", path.display()))?,
                }
            }
        }
    }
    let initramfs = stage.join("initramfs");
    pack(&tree, &initramfs)?;
    std::fs::remove_dir_all(&tree).with_context(|| format!("cannot remove {}", tree.display()))?;
    Ok(initramfs)
}

/// Files of [`MODULES`] and their dependencies from a modules.dep, each after its dependencies.
fn load_order(listed: &str) -> Result<Vec<&str>> {
    let mut order: Vec<&str> = Vec::new();
    for module in OPTIONAL_MODULES.into_iter().chain(MODULES) {
        let entry = listed.lines().find_map(|line| {
            let (file, needs) = line.split_once(':')?;
            let name = file.rsplit('/').next()?.split('.').next()?;
            (name.replace('-', "_") == module).then_some((file, needs))
        });
        if entry.is_none() && OPTIONAL_MODULES.contains(&module) {
            continue;
        }
        let (file, needs) = entry.with_context(|| format!("the guest's kernel has no module {module}"))?;
        // depmod lists the deepest dependency last.
        for path in needs.split_whitespace().rev().chain([file]) {
            if !order.contains(&path) {
                order.push(path);
            }
        }
    }
    Ok(order)
}

/// Writes a directory as an archive that the kernel unpacks (`newc`,
/// Documentation/driver-api/early-userspace/buffer-format.rst). Inode numbers and times of the host's files are omitted:
/// one more digit to parse, and the guest would no longer execute the same instructions.
fn pack(tree: &Path, archive: &Path) -> Result<()> {
    let context = || format!("cannot write {}", archive.display());
    let mut file = std::io::BufWriter::new(std::fs::File::create(archive).with_context(context)?);
    let mut paths = vec![tree.to_owned()];
    let mut number = 1;
    // Directories before their entries, sorted.
    while let Some(path) = paths.pop() {
        let about = std::fs::symlink_metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut data = Vec::new();
        if about.is_dir() {
            let mut inside: Vec<PathBuf> = std::fs::read_dir(&path)
                .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
                .with_context(|| format!("cannot list {}", path.display()))?;
            inside.sort();
            paths.extend(inside.into_iter().rev());
        } else if about.is_symlink() {
            let target = std::fs::read_link(&path).with_context(|| format!("cannot read {}", path.display()))?;
            data = target.into_os_string().into_encoded_bytes();
        } else {
            data = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        }
        let name = path.strip_prefix(tree).ok().filter(|name| !name.as_os_str().is_empty());
        let name = name.map_or_else(|| ".".into(), |name| name.to_string_lossy());
        entry(&mut file, number, about.mode(), &name, &data).with_context(context)?;
        number += 1;
    }
    entry(&mut file, 0, 0, "TRAILER!!!", &[]).and_then(|()| file.flush()).with_context(context)
}

fn entry(to: &mut impl Write, number: u32, mode: u32, name: &str, data: &[u8]) -> std::io::Result<()> {
    let len = |of: usize| u32::try_from(of).map_err(std::io::Error::other);
    // Inode, mode, uid, gid, links, mtime, size, major and minor of the device and of the special device, length of the
    // name, no checksum.
    let fields = [number, mode, 0, 0, 1, 0, len(data.len())?, 0, 0, 0, 0, len(name.len() + 1)?, 0];
    write!(to, "070701")?;
    fields.iter().try_for_each(|field| write!(to, "{field:08x}"))?;
    let pad = |len: usize| [0; 3].get(..(4 - len % 4) % 4).unwrap_or_default().to_vec();
    to.write_all(name.as_bytes())?;
    to.write_all(&[0])?;
    to.write_all(&pad(HEADER_BYTES + name.len() + 1))?;
    to.write_all(data)?;
    to.write_all(&pad(data.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_contains_only_names_modes_and_contents() {
        let dir = tempfile::tempdir().unwrap();
        let made = ["a", "b"].map(|name| {
            let tree = dir.path().join(name);
            std::fs::create_dir_all(tree.join("bin")).unwrap();
            std::fs::write(tree.join("bin/tool"), "12345").unwrap();
            std::fs::write(tree.join("init"), "x").unwrap();
            let archive = dir.path().join(format!("{name}.cpio"));
            pack(&tree, &archive).unwrap();
            std::fs::read(archive).unwrap()
        });
        assert!(made[0] == made[1] && made[0].len().is_multiple_of(4));
        let text = String::from_utf8_lossy(&made[0]);
        let places =
            [".\0", "bin\0", "bin/tool\0", "12345", "init\0", "TRAILER!!!"].map(|part| text.find(part).unwrap());
        assert!(places.is_sorted(), "{places:?}");
        assert_eq!(places[3] % 4, 0, "contents start at a multiple of 4");
    }

    #[test]
    fn modules_come_after_their_dependencies() {
        let listed = "k/crc32c_generic.ko.xz:\nk/nd_virtio.ko.xz: k/libnvdimm.ko.xz\n\
            k/virtio_pmem.ko.xz: k/nd_virtio.ko.xz k/libnvdimm.ko.xz\nk/nd_pmem.ko.xz: k/nd_btt.ko.xz k/libnvdimm.ko.xz\n\
            k/ext4.ko.xz: k/jbd2.ko.xz\nk/overlay.ko.xz:\n";
        let order = load_order(listed).unwrap();
        assert_eq!(order.len(), 9);
        assert_eq!(order[1..4], ["k/libnvdimm.ko.xz", "k/nd_virtio.ko.xz", "k/virtio_pmem.ko.xz"]);
        assert!(!load_order(&listed.replace("crc32c_generic", "other")).unwrap().contains(&"k/other.ko.xz"));
        assert!(load_order("").unwrap_err().to_string().contains("virtio_pmem"));
    }
}
