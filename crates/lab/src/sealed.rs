//! A sealed machine: a machine in virtual time without any input from the host. Its initramfs contains the command; the
//! host only reads its output.
//!
//! It executes the same instructions in each run: clock, random numbers and serial ports are QEMU's own, `virtio-pmem`
//! and `ivshmem` are memory, and the only asynchronous device (`virtio-serial`) is unused before the end. Two runs of
//! one build are identical under any load of the host. Owns the initramfs and the QEMU process. Does not: own the disks
//! and the root, which are those of any machine in virtual time.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::clock::Clock;
use crate::command::{GroupKiller, command, last_lines, output};
use crate::disk::{DiskSpec, Disks};
use crate::initramfs::{self, Work};
use crate::kernels::Kernel;
use crate::lab::Lab;
use crate::machine::{DISK_WORD, MachineSpec};
use crate::qemu::{hardware, qemu};
use crate::say;

/// All output goes to the second serial port.
const BEFORE: &str = "exec </dev/null >/dev/ttyS1 2>&1\n";
/// Starts the disk, runs the command, and sends the results.
const WORK: &str = include_str!("boot/sealed.sh");
/// Kernel command line: the same addresses in each process and run, warnings on the console, exit on a panic.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 loglevel=4 norandmaps nokaslr random.trust_cpu=on panic=-1";
/// Seed of the random numbers of QEMU and, through RDRAND, of the guest.
const SEED: &str = "1";
/// Start of the guest's clock.
const CLOCK: &str = "base=2026-01-01,clock=vm";
/// Prefix of lines of the lab's own script, among those of the command.
const OWN: &str = "sealed: ";
/// Prefix of its last line; the exit code of the command follows.
const ENDED: &str = "exit code ";
/// Line that reports the end of the disk server.
const LOST: &str = "the disk server ended";
const STEP_LIMIT: Duration = Duration::from_secs(120);
/// Interval at which the host reads the serial port.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// A sealed machine.
#[derive(Debug, Clone)]
pub struct SealedSpec {
    /// The kernel.
    pub kernel: Kernel,
    /// The disk.
    pub disk: DiskSpec,
    /// Memory.
    pub memory_mib: u32,
    /// The command; [`DISK_WORD`] stands for the device node of the disk.
    pub command: Vec<String>,
    /// Time limit on the host's clock.
    pub limit: Duration,
    /// Whether the command's output is copied to standard output as it arrives.
    pub shown: bool,
}

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedOutcome {
    /// The command's exit code.
    pub code: i32,
    /// Output of the guest, the command's included.
    pub output: String,
}

/// Boots, runs the command to completion, and unpacks the guest's /lab/out into `out` in `artifacts`, next to
/// `sealed.log` and `sealed.console.log`.
///
/// # Errors
/// When the machine does not start, ends early or too late, or the disk server ends.
pub async fn run_sealed(lab: &Lab, spec: &SealedSpec, artifacts: &Path) -> Result<SealedOutcome> {
    let image = lab.kernel(spec.kernel).await?;
    let root = lab.root_image(spec.kernel).await?;
    let disks = Disks::start(lab, &[spec.disk], Clock::Virtual).await?;
    let stage = lab.run_dir().path(&format!("sealed-{}", lab.run_dir().next_number()));
    let script = work(spec, &disks)?;
    let work = Work::Script { before: BEFORE, work: &script };
    let initramfs = initramfs::make(lab, &image.version, work, &stage).await?;
    let (console, log_path, results) =
        (artifacts.join("sealed.console.log"), artifacts.join("sealed.log"), stage.join("out.tar"));
    std::fs::write(&log_path, "").with_context(|| format!("cannot create {}", log_path.display()))?;

    say::progress(format!("booting {}, sealed, in virtual time", image.version));
    let machine =
        MachineSpec { clock: Clock::Virtual, cpus: 1, memory_mib: spec.memory_mib, ..MachineSpec::new(spec.kernel) };
    let mut qemu = qemu()?;
    qemu.args(hardware(&machine, false, &root, &disks));
    qemu.arg("-kernel").arg(image.path(lab.root())).arg("-initrd").arg(&initramfs);
    qemu.args(["-append", KERNEL_ARGUMENTS, "-seed", SEED, "-rtc", CLOCK]);
    for port in [&console, &log_path] {
        qemu.args(["-serial", &format!("file:{}", port.display())]);
    }
    qemu.args(["-chardev", &format!("file,id=out,path={}", results.display())]);
    // Without ioeventfd its queues are served synchronously, by the thread that runs the guest.
    qemu.args(["-device", "virtio-serial-pci,ioeventfd=off,max_ports=2"]);
    qemu.args(["-device", "virtserialport,chardev=out,nr=1,name=out"]);
    let outcome = watch(lab, qemu, &log_path, &console, spec).await?;
    let out = artifacts.join("out");
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let mut unpack = command("tar");
    unpack.arg("--extract").arg("--directory").arg(&out).arg("--file").arg(&results);
    output(unpack, "unpacking the guest's results", STEP_LIMIT).await?;
    std::fs::remove_dir_all(&stage).with_context(|| format!("cannot remove {}", stage.display()))?;
    Ok(outcome)
}

/// Runs QEMU until it exits, and forwards the output of the guest.
async fn watch(
    lab: &Lab,
    mut qemu: std::process::Command,
    log_path: &Path,
    console: &Path,
    spec: &SealedSpec,
) -> Result<SealedOutcome> {
    use std::os::unix::process::CommandExt as _;
    qemu.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = tokio::process::Command::from(qemu).kill_on_drop(true).spawn().context("cannot start QEMU")?;
    let _group = GroupKiller::new(child.id());
    if let Some(pid) = child.id() {
        lab.run_dir().record_group(pid)?;
    }
    let started = Instant::now();
    let mut n_shown = 0;
    let mut code = None;
    let (ended, text) = loop {
        let status = child.try_wait().context("cannot query the state of QEMU")?;
        let text = std::fs::read(log_path).with_context(|| format!("cannot read {}", log_path.display()))?;
        let complete = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        for line in String::from_utf8_lossy(&text[n_shown..complete.max(n_shown)]).lines() {
            let line = line.trim_end();
            match line.strip_prefix(OWN) {
                Some(LOST) => bail!("the disk server in the machine ended, see {}", log_path.display()),
                Some(own) => match own.strip_prefix(ENDED) {
                    Some(number) => code = number.parse().ok(),
                    None => say::progress(own),
                },
                None if spec.shown => say::result(line),
                None => {}
            }
        }
        n_shown = complete.max(n_shown);
        if let Some(status) = status {
            break (status, text);
        }
        if started.elapsed() > spec.limit {
            bail!("the machine did not end within {} s", spec.limit.as_secs());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    let Some(code) = code else {
        let log = String::from_utf8_lossy(&std::fs::read(console).unwrap_or_default()).into_owned();
        let mut stderr = String::new();
        if let Some(mut pipe) = child.stderr.take() {
            let _ = tokio::io::AsyncReadExt::read_to_string(&mut pipe, &mut stderr).await;
        }
        bail!("the machine ended early ({ended}): {}\n{}", stderr.trim(), last_lines(&log, 15));
    };
    Ok(SealedOutcome { code, output: String::from_utf8_lossy(&text).into_owned() })
}

/// The guest's script: starts the disk, runs the command, sends the results.
fn work(spec: &SealedSpec, disks: &Disks) -> Result<String> {
    let server = disks.guest_server(0, true).context("a sealed machine needs a disk in the guest")?;
    Ok(WORK
        .replace("@DISK@", &quoted(&server.arguments))
        .replace("@COMMAND@", &quoted(&spec.command).replace(&format!("'{DISK_WORD}'"), "\"$disk\""))
        .replace("@LOST@", LOST)
        .replace("@NAME@", &server.serial)
        .replace("@OWN@", OWN)
        .replace("@ENDED@", ENDED))
}

/// Quotes words for a shell, so that each is taken literally.
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
}
