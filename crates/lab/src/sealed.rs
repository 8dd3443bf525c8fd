//! A sealed machine: a machine in virtual time without any input from the host. Its initramfs holds the command; the host only listens.
//!
//! It executes the same instructions in each run: clock, random numbers and serial ports are QEMU's own, `virtio-pmem` and `ivshmem` are
//! memory, and the one asynchronous device (`virtio-serial`) is unused before the end. Two runs of one build are identical, whatever the
//! load of the host. Owns the initramfs and the QEMU process. Does not own the disks and the root: they are those of any machine in virtual
//! time.

use std::io::Write;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::clock::Clock;
use crate::command::{GroupKiller, command, find_program, last_lines, output};
use crate::disk::{DiskSpec, Disks};
use crate::kernels::Kernel;
use crate::lab::Lab;
use crate::machine::{DISK_WORD, STATIC_NODES, SharedFolder};
use crate::root_image::RootImage;
use crate::say;
use crate::vng::PLAIN_COPIES;

/// Modules that mounting the root needs, besides their dependencies.
const MODULES: [&str; 5] = ["crc32c_generic", "virtio_pmem", "nd_pmem", "ext4", "overlay"];
/// Starts in the initramfs: changes over to the root image and takes /lab along.
const INIT: &str = include_str!("sealed/init.sh");
/// Process 1 in the root image: the work of an init system, then the disk, the command, and the results.
const MAIN: &str = include_str!("sealed/main.sh");
/// Kernel command line: the same addresses in each process and run, warnings on the console, no reboot but an end.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 loglevel=4 norandmaps nokaslr random.trust_cpu=on panic=-1";
/// Seed of the random numbers of QEMU and, through RDRAND, of the guest.
const SEED: &str = "1";
/// When the guest's clock begins.
const CLOCK: &str = "base=2026-01-01,clock=vm";
/// Prefix of the guest's own lines, between those of the command.
const OWN: &str = "sealed: ";
/// Begin of its last line; the exit code of the command follows.
const ENDED: &str = "exit code ";
/// Line of a guest whose disk has lost its server.
const LOST: &str = "the disk server ended";
const STEP_LIMIT: Duration = Duration::from_secs(120);
/// Of the `newc` format: a magic of 6 digits, and 13 fields of 8.
const HEADER_BYTES: usize = 110;
/// Interval at which the host reads the serial port.
const LOOK: Duration = Duration::from_millis(200);

/// A sealed machine.
#[derive(Debug, Clone)]
pub struct SealedSpec {
    /// The kernel.
    pub kernel: Kernel,
    /// The disk.
    pub disk: DiskSpec,
    /// Memory.
    pub memory_mib: u32,
    /// The command, by words; [`DISK_WORD`] stands for the node of the disk.
    pub command: Vec<String>,
    /// How long it may take on the host's clock.
    pub limit: Duration,
    /// Whether the command's output goes to standard output as it comes.
    pub shown: bool,
}

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedEnd {
    /// The command's exit code.
    pub code: i32,
    /// Output of the guest, the command's included.
    pub said: String,
}

/// Boots, runs the command to its end, and unpacks the guest's /lab/out into `out` in `artifacts`, beside `sealed.log` and
/// `sealed.console.log`.
///
/// # Errors
/// When the machine does not start, ends early or too late, or the disk server ends.
pub async fn run_sealed(lab: &Lab, spec: &SealedSpec, artifacts: &Path) -> Result<SealedEnd> {
    let image = lab.kernel(spec.kernel).await?;
    let root = lab.root_image(spec.kernel).await?;
    let disks = Disks::start(lab, &[spec.disk], Clock::Virtual).await?;
    let stage = lab.run_dir().path(&format!("sealed-{}", lab.run_dir().next_number()));
    let initramfs = initramfs(lab, spec, &disks, &image.version, &stage).await?;
    let (console, said, results) =
        (artifacts.join("sealed.console.log"), artifacts.join("sealed.log"), stage.join("out.tar"));
    std::fs::write(&said, "").with_context(|| format!("cannot create {}", said.display()))?;

    say::progress(format!("booting {}, sealed, in virtual time", image.version));
    let mut qemu = command("setpriv");
    // Ends with this process, whatever ends that.
    qemu.args(["--pdeathsig", "KILL", "--"]);
    qemu.arg(find_program("qemu-system-x86_64").context("there is no qemu-system-x86_64")?);
    qemu.args(qemu_options(&root, &disks, spec.memory_mib));
    qemu.arg("-kernel").arg(image.path(lab.root())).arg("-initrd").arg(&initramfs);
    qemu.args(["-append", KERNEL_ARGUMENTS, "-seed", SEED, "-rtc", CLOCK]);
    for port in [&console, &said] {
        qemu.args(["-serial", &format!("file:{}", port.display())]);
    }
    qemu.args(["-chardev", &format!("file,id=out,path={}", results.display())]);
    // Without ioeventfd its queues are served at once, by the thread that runs the guest.
    qemu.args(["-device", "virtio-serial-pci,ioeventfd=off,max_ports=2"]);
    qemu.args(["-device", "virtserialport,chardev=out,nr=1,name=out"]);
    let end = watch(lab, qemu, &said, &console, spec).await?;
    let out = artifacts.join("out");
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let mut unpack = command("tar");
    unpack.arg("--extract").arg("--directory").arg(&out).arg("--file").arg(&results);
    output(unpack, "unpacking the guest's results", STEP_LIMIT).await?;
    std::fs::remove_dir_all(&stage).with_context(|| format!("cannot remove {}", stage.display()))?;
    Ok(end)
}

/// Runs QEMU to its end, and passes on what the guest says.
async fn watch(
    lab: &Lab,
    mut qemu: std::process::Command,
    said: &Path,
    console: &Path,
    spec: &SealedSpec,
) -> Result<SealedEnd> {
    use std::os::unix::process::CommandExt as _;
    qemu.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = tokio::process::Command::from(qemu).kill_on_drop(true).spawn().context("cannot start QEMU")?;
    let _group = GroupKiller::new(child.id());
    if let Some(pid) = child.id() {
        lab.run_dir().record_group(pid)?;
    }
    let started = Instant::now();
    let mut told = 0;
    let mut code = None;
    let (ended, text) = loop {
        let status = child.try_wait().context("cannot ask for the state of QEMU")?;
        let text = std::fs::read(said).with_context(|| format!("cannot read {}", said.display()))?;
        let complete = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        for line in String::from_utf8_lossy(&text[told..complete.max(told)]).lines() {
            let line = line.trim_end();
            match line.strip_prefix(OWN) {
                Some(LOST) => bail!("the disk server in the machine ended, see {}", said.display()),
                Some(own) => match own.strip_prefix(ENDED) {
                    Some(number) => code = number.parse().ok(),
                    None => say::progress(own),
                },
                None if spec.shown => say::result(line),
                None => {}
            }
        }
        told = complete.max(told);
        if let Some(status) = status {
            break (status, text);
        }
        if started.elapsed() > spec.limit {
            bail!("the machine did not end within {} s", spec.limit.as_secs());
        }
        tokio::time::sleep(LOOK).await;
    };
    let Some(code) = code else {
        let log = String::from_utf8_lossy(&std::fs::read(console).unwrap_or_default()).into_owned();
        let mut stderr = String::new();
        if let Some(mut pipe) = child.stderr.take() {
            let _ = tokio::io::AsyncReadExt::read_to_string(&mut pipe, &mut stderr).await;
        }
        bail!("the machine ended early ({ended}): {}\n{}", stderr.trim(), last_lines(&log, 15));
    };
    Ok(SealedEnd { code, said: String::from_utf8_lossy(&text).into_owned() })
}

fn qemu_options(root: &RootImage, disks: &Disks, memory_mib: u32) -> Vec<String> {
    let fixed = ["-machine", "q35,accel=tcg", "-smp", "1", "-nodefaults", "-display", "none", "-no-reboot"];
    let mut options: Vec<String> = fixed.into_iter().chain(PLAIN_COPIES).map(str::to_owned).collect();
    options.extend(Clock::Virtual.qemu_options());
    options.extend(root.qemu_options(memory_mib));
    options.extend(disks.qemu_options());
    options
}

/// Makes the initramfs: busybox, the modules for the root, and /lab with the programs and the command.
async fn initramfs(lab: &Lab, spec: &SealedSpec, disks: &Disks, version: &str, stage: &Path) -> Result<PathBuf> {
    let tree = stage.join("tree");
    for folder in ["bin", "dev", "proc", "sys", "mnt", "new", "mod"] {
        let path = tree.join(folder);
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    }
    let copy = |from: &Path, to: PathBuf| {
        std::fs::copy(from, &to)
            .map(drop)
            .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
    };
    copy(&find_program("busybox").context("there is no busybox")?, tree.join("bin/busybox"))?;
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
    // The folder has the layout of /lab in other machines.
    let shared = SharedFolder::create(lab).await?;
    std::fs::rename(&shared.dir, tree.join("lab")).context("cannot move the guest's programs")?;
    let server = disks.guest_server(0, true).context("a disk on the host")?;
    let script = MAIN
        .replace("@DISK@", &quoted(&server.arguments))
        .replace("@COMMAND@", &quoted(&spec.command).replace(&format!("'{DISK_WORD}'"), "\"$disk\""))
        .replace("@STATIC_NODES@", STATIC_NODES)
        .replace("@LOST@", LOST)
        .replace("@NAME@", &server.serial)
        .replace("@OWN@", OWN)
        .replace("@ENDED@", ENDED);
    std::fs::write(tree.join("lab/main.sh"), script).context("cannot write the script of the guest")?;
    let init = tree.join("init");
    std::fs::write(&init, INIT).with_context(|| format!("cannot write {}", init.display()))?;
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&init, executable).with_context(|| format!("cannot change {}", init.display()))?;
    let initramfs = stage.join("initramfs");
    pack(&tree, &initramfs)?;
    std::fs::remove_dir_all(&tree).with_context(|| format!("cannot remove {}", tree.display()))?;
    Ok(initramfs)
}

/// The files of [`MODULES`] and of what they depend on, each after what it needs, from a modules.dep.
fn load_order(listed: &str) -> Result<Vec<&str>> {
    let mut order: Vec<&str> = Vec::new();
    for module in MODULES {
        let entry = listed.lines().find_map(|line| {
            let (file, needs) = line.split_once(':')?;
            let name = file.rsplit('/').next()?.split('.').next()?;
            (name.replace('-', "_") == module).then_some((file, needs))
        });
        let (file, needs) = entry.with_context(|| format!("the guest's kernel has no module {module}"))?;
        // depmod lists the deepest need last.
        for path in needs.split_whitespace().rev().chain([file]) {
            if !order.contains(&path) {
                order.push(path);
            }
        }
    }
    Ok(order)
}

/// Writes a folder as an archive that the kernel unpacks (`newc`, Documentation/driver-api/early-userspace/buffer-format.rst). Numbers
/// and times of the host's files are left out: a digit more to read, and the guest would not do the same to the instruction.
fn pack(tree: &Path, archive: &Path) -> Result<()> {
    let context = || format!("cannot write {}", archive.display());
    let mut file = std::io::BufWriter::new(std::fs::File::create(archive).with_context(context)?);
    let mut paths = vec![tree.to_owned()];
    let mut number = 1;
    // Folders before what is in them, in order.
    while let Some(path) = paths.pop() {
        let about = std::fs::symlink_metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut data = Vec::new();
        if about.is_dir() {
            let mut inside: Vec<PathBuf> = std::fs::read_dir(&path)
                .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
                .with_context(|| format!("cannot list {}", path.display()))?;
            inside.sort();
            paths.extend(inside.into_iter().rev());
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
    // Number, mode, owner, group, links, time, size, device and special device by halves, length of the name, no checksum.
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

/// Words for a shell, each taken literally.
fn quoted(words: &[String]) -> String {
    words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_taken_literally() {
        let words = ["a b", "it's", "$x", "{disk}"].map(str::to_owned);
        assert_eq!(quoted(&words), r"'a b' 'it'\''s' '$x' '{disk}'");
    }

    #[test]
    fn an_archive_has_nothing_of_the_hosts_files_but_names_modes_and_contents() {
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
        assert_eq!(places[3] % 4, 0, "contents begin at a multiple of 4");
    }

    #[test]
    fn modules_come_after_what_they_need() {
        let listed = "k/crc32c_generic.ko.xz:\nk/nd_virtio.ko.xz: k/libnvdimm.ko.xz\n\
            k/virtio_pmem.ko.xz: k/nd_virtio.ko.xz k/libnvdimm.ko.xz\nk/nd_pmem.ko.xz: k/nd_btt.ko.xz k/libnvdimm.ko.xz\n\
            k/ext4.ko.xz: k/jbd2.ko.xz\nk/overlay.ko.xz:\n";
        let order = load_order(listed).unwrap();
        assert_eq!(order.len(), 9);
        assert_eq!(order[1..4], ["k/libnvdimm.ko.xz", "k/nd_virtio.ko.xz", "k/virtio_pmem.ko.xz"]);
        assert!(load_order("").unwrap_err().to_string().contains("crc32c_generic"));
    }
}
