//! The QEMU command line of all machines. Does not: talk to the guest.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::clock::Clock;
use crate::command::{command, find_program};
use crate::disk::Disks;
use crate::init::{self, Init, State};
use crate::initramfs::{self, Work};
use crate::kernels::KernelImage;
use crate::lab::Lab;
use crate::machine::MachineSpec;
use crate::protocol::PORT_NAME;
use crate::root_image::RootImage;

/// Warnings and worse are printed on the console from the start; all messages would slow an emulated machine down.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 loglevel=5 panic=-1";
/// Emulation translates code again for each address that it runs at: with programs at the same addresses in each
/// process, starting one takes 12 ms instead of 33.
const SAME_ADDRESSES: &str = "norandmaps";
/// Debian's kernels clear each page that they allocate; users that need cleared pages clear them in any case.
const PAGES_NOT_CLEARED: &str = "init_on_alloc=0";
/// Calibration of the local APIC timer spins for 0.1 s of guest time. Each iteration reads the clock, and with
/// `-icount` that ends a block of translated code: 5 of the 18 CPU seconds of a boot. The HPET needs no calibration,
/// but is one timer for all CPUs, which would wake each other.
const NO_PROCESSOR_TIMER: &str = "nolapic_timer";
/// An emulated processor copies byte by byte where its flags claim that this is fast: without the flags, memory is
/// copied 1.5 to 4 times as fast.
const PLAIN_COPIES: &str = "max,-erms,-fsrm";
/// Nice value of machines on the host: processes that wait for the lab come before those that compute.
const NICE: &str = "5";
/// Mounts the directories of the host in a machine with an agent or a console.
const MOUNT_HOST_DIRS: &str = include_str!("boot/host.sh");

/// A QEMU command, to be extended. QEMU ends with its parent, however that ends.
pub(crate) fn qemu() -> Result<Command> {
    let program = find_program("qemu-system-x86_64").context("qemu-system-x86_64 is not installed")?;
    let mut qemu = command("setpriv");
    qemu.args(["--pdeathsig", "KILL", "--", "nice", "-n", NICE]).arg(program);
    Ok(qemu)
}

/// Processors, memory, root and disks of a machine.
pub(crate) fn hardware(spec: &MachineSpec, kvm: bool, root: &RootImage, disks: &Disks) -> Vec<String> {
    let (machine, cpu) = if kvm { ("q35,accel=kvm", "host") } else { ("q35,accel=tcg", PLAIN_COPIES) };
    let cpus = spec.cpus.to_string();
    let fixed = ["-machine", machine, "-cpu", cpu, "-smp", &cpus, "-nodefaults", "-display", "none", "-no-reboot"];
    let mut options: Vec<String> = fixed.map(str::to_owned).to_vec();
    options.extend(spec.clock.qemu_options());
    let state_mib = if spec.init == Init::Systemd { State::size_mib() } else { 0 };
    options.extend(root.qemu_options(spec.memory_mib, state_mib));
    options.extend(disks.qemu_options());
    options
}

/// A machine with an agent or a console, to be started.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) spec: &'a MachineSpec,
    pub(crate) image: &'a KernelImage,
    pub(crate) disks: &'a Disks,
    pub(crate) root: &'a RootImage,
    /// Its writable root state, kept across boots, under systemd.
    pub(crate) state: Option<&'a State>,
    /// The host directory that the guest sees as /lab.
    pub(crate) shared: &'a Path,
    /// The guest's clock (UTC, ISO 8601); `None` for that of the host.
    pub(crate) clock: Option<&'a str>,
}

impl Start<'_> {
    /// QEMU with an agent, which is reached on `socket`; the console output is appended to `log`.
    pub(crate) async fn with_agent(&self, socket: &Path, log: &Path) -> Result<Command> {
        let agent = init::agent_command(self.spec.clock == Clock::Virtual);
        let mut qemu = match self.spec.init {
            Init::Script => {
                let work = format!("{MOUNT_HOST_DIRS}{agent}\n");
                self.common("agent", Work::Script { before: "exec </dev/null\n", work: &work }).await?
            }
            Init::Systemd => self.common("systemd", Work::Systemd(init::files(MOUNT_HOST_DIRS, &agent))).await?,
        };
        // In a QEMU option, a comma is escaped by doubling it.
        let log = log.display().to_string().replace(',', ",,");
        qemu.args(["-chardev", &format!("file,id=console,path={log},append=on"), "-serial", "chardev:console"]);
        // QEMU polls the queues of all possible ports. Port 0 is reserved for a console.
        qemu.args(["-device", "virtio-serial-pci,id=agent,max_ports=2"]);
        qemu.args(["-chardev", &format!("socket,id=agent,path={},server=on,wait=off", socket.display())]);
        qemu.args(["-device", &format!("virtserialport,bus=agent.0,nr=1,chardev=agent,name={PORT_NAME}")]);
        qemu.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(qemu)
    }

    /// QEMU with a shell on the caller's terminal, which has this size.
    pub(crate) async fn with_console(&self, (rows, columns): (u16, u16)) -> Result<Command> {
        let work = format!(
            "{MOUNT_HOST_DIRS}stty rows {rows} columns {columns} </dev/ttyS0\ncd /root\n\
             setsid --ctty bash --login </dev/ttyS0 >/dev/ttyS0 2>&1\n"
        );
        let mut qemu = self.common("console", Work::Script { before: "", work: &work }).await?;
        // Ctrl-C goes to the guest.
        qemu.args(["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]);
        Ok(qemu)
    }

    async fn common(&self, kind: &str, work: Work<'_>) -> Result<Command> {
        let Self { lab, spec, image, disks, root, state, shared, clock } = self;
        let kvm = lab.kvm_for(spec.clock);
        let mut qemu = qemu()?;
        qemu.args(hardware(spec, kvm, root, disks));
        qemu.args(state.map(State::qemu_options).unwrap_or_default());
        if let Some(clock) = clock {
            qemu.args(["-rtc", &format!("base={clock}")]);
        }
        for (tag, dir, access) in
            [("lab", shared.to_path_buf(), ""), ("opt", lab.root().dir().join("opt"), ",readonly=on")]
        {
            let about = format!("local,id={tag},path={},security_model=none,multidevs=remap{access}", dir.display());
            qemu.args(["-fsdev", &about, "-device", &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}")]);
        }
        let initramfs = self.initramfs(kind, work).await?;
        qemu.arg("-kernel").arg(image.path(lab.root())).arg("-initrd").arg(initramfs);
        let mut arguments = vec![KERNEL_ARGUMENTS];
        if !kvm {
            arguments.extend([SAME_ADDRESSES, PAGES_NOT_CLEARED]);
        }
        if spec.clock == Clock::Virtual && spec.cpus == 1 {
            arguments.push(NO_PROCESSOR_TIMER);
        }
        arguments.extend(spec.kernel_arguments.split_ascii_whitespace());
        qemu.args(["-append", &arguments.join(" ")]);
        Ok(qemu)
    }

    /// The initramfs, shared by all machines of a kind.
    async fn initramfs(&self, kind: &str, work: Work<'_>) -> Result<PathBuf> {
        let Self { lab, spec, image, .. } = self;
        let path = lab.run_dir().path(&format!("initramfs-{}-{}-{kind}", image.version, spec.clock));
        if !path.exists() {
            let stage = lab.run_dir().path(&format!("boot-{}", lab.run_dir().next_number()));
            let made = initramfs::make(lab, &image.version, work, &stage).await?;
            std::fs::rename(&made, &path).with_context(|| format!("cannot rename to {}", path.display()))?;
            std::fs::remove_dir_all(&stage).with_context(|| format!("cannot remove {}", stage.display()))?;
        }
        Ok(path)
    }
}
