//! A virtual machine: its boots, and the operations on the running guest.
//!
//! Owns the current boot (`vm`), the directory shared with the guest, and the disks. Dropping it removes them all. The
//! disks survive [`Machine::power_off`] and [`Machine::start`]. Does not: build QEMU's command line (`qemu`).

mod disks;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::channel::Channel;
use crate::clock::Clock;
use crate::disk::{DiskSpec, Disks};
use crate::init::{Init, State};
use crate::kernels::{Kernel, KernelImage};
use crate::lab::Lab;
use crate::process::{Output, Process};
use crate::protocol::{Event, Payload, Request};
use crate::qemu::Start;
use crate::root_image::RootImage;
use crate::say;
use crate::shared_dir::SharedDir;
use crate::vm::Vm;
use crate::wait;

/// Default time limit of a request to the guest: emulated machines are slow.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(30);
/// How long a machine is off when it boots again, by its own clock; more than a shutdown takes.
const TIME_OFF: Duration = Duration::from_secs(600);
/// Copies a program that was added after the boot: the host's directory is mounted below the one in memory.
const BRING: &str = "
mkdir /run/lab-below
mount --bind /lab /run/lab-below
cp /run/lab-below/bin/PROGRAM /run/lab-bin/
umount /run/lab-below
rmdir /run/lab-below";
/// Placeholder in a command for the device node of the first disk.
pub const DISK_WORD: &str = "{disk}";
/// Directory of programs in the guest.
pub const GUEST_BIN: &str = "/lab/bin";
/// Directory in the guest whose files are collected on the host.
pub const GUEST_OUT: &str = "/lab/out";

/// A machine to be booted.
#[derive(Debug, Clone)]
pub struct MachineSpec {
    /// The kernel to boot.
    pub kernel: Kernel,
    /// Its clock.
    pub clock: Clock,
    /// Its process 1.
    pub init: Init,
    /// The disks, in order of their indexes.
    pub disks: Vec<DiskSpec>,
    /// Memory.
    pub memory_mib: u32,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Further arguments of the kernel, separated by spaces.
    pub kernel_arguments: &'static str,
    /// How long the boot may take.
    pub boot_timeout: Duration,
}

impl MachineSpec {
    /// A machine on the wall clock with 2 CPUs, 2 GiB and no disk.
    #[must_use]
    pub fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            clock: Clock::Wall,
            init: Init::Script,
            disks: Vec::new(),
            memory_mib: 2048,
            cpus: 2,
            kernel_arguments: "",
            boot_timeout: Duration::from_secs(240),
        }
    }
}

/// A machine, running or not.
#[derive(Debug)]
pub struct Machine {
    name: String,
    spec: MachineSpec,
    image: KernelImage,
    root: RootImage,
    state: Option<State>,
    shared: SharedDir,
    logs: PathBuf,
    is_kvm: bool,
    /// Why the server of a disk in the guest exited.
    fault: watch::Sender<Option<String>>,
    boots: u32,
    boot_time: Duration,
    /// The guest's clock at the next boot; `None` for that of the host.
    next_clock: Option<String>,
    // Before the disks: QEMU ends first.
    running: Option<Running>,
    disks: Disks,
}

/// State that exists only while the machine is running.
#[derive(Debug)]
struct Running {
    channel: Channel,
    vm: Vm,
    /// Device nodes of the disks that are served in the guest, by index.
    nodes: BTreeMap<usize, String>,
    // Aborted when the machine ends.
    _watchers: Vec<AbortOnDrop>,
}

/// A task that is aborted when this is dropped.
#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Machine {
    /// Creates the disks and boots. `name` is part of log file names.
    ///
    /// # Errors
    /// When the kernel is not available, a disk does not start, or the agent does not answer in time; the message
    /// includes the end of the console log.
    pub async fn boot(lab: &Lab, spec: &MachineSpec, name: &str) -> Result<Self> {
        let image = lab.kernel(spec.kernel).await?;
        let root = lab.root_image(spec.kernel).await?;
        let disks = Disks::start(lab, &spec.disks, spec.clock).await?;
        let state = match spec.init {
            Init::Script => None,
            Init::Systemd => {
                Some(State::create(lab.run_dir().path(&format!("state-{}", lab.run_dir().next_number()))).await?)
            }
        };
        let mut machine = Self {
            name: name.to_owned(),
            spec: spec.clone(),
            image,
            root,
            state,
            shared: SharedDir::create(lab)?,
            logs: lab.config().artifacts.clone(),
            is_kvm: lab.kvm_for(spec.clock),
            fault: watch::Sender::default(),
            boots: 0,
            boot_time: Duration::ZERO,
            next_clock: None,
            running: None,
            disks,
        };
        machine.start(lab).await?;
        Ok(machine)
    }

    /// Boots (again) with the same disks.
    ///
    /// # Errors
    /// As for [`Machine::boot`], and when the machine is already running.
    pub async fn start(&mut self, lab: &Lab) -> Result<()> {
        if self.running.is_some() {
            bail!("machine {} is already running", self.name);
        }
        match self.start_once(lab).await {
            Err(error) if self.hit_stray_int3() => {
                say::progress(format!("boot {} hit an emulator bug, retrying: {error:#}", self.boots));
                self.start_once(lab).await
            }
            started => started,
        }
    }

    /// Whether the kernel crashed on a stray breakpoint. Kernels patch their own code with int3 (static keys); emulated
    /// processors may execute one that has been removed already. Seen with 7.3 and 6.12, both in `sched_clock_cpu`, in
    /// one boot of about 30, and where tracepoints are enabled under load. Never with KVM.
    pub(crate) fn hit_stray_int3(&self) -> bool {
        !self.is_kvm
            && std::fs::read(self.console_log()).is_ok_and(|log| String::from_utf8_lossy(&log).contains("Oops: int3"))
    }

    /// The console log of this boot, on the host.
    pub(crate) fn console_log(&self) -> PathBuf {
        self.logs.join(format!("{}-boot{}.console.log", self.name, self.boots))
    }

    async fn start_once(&mut self, lab: &Lab) -> Result<()> {
        let begin = Instant::now();
        self.boots += 1;
        let (name, version) = (&self.name, &self.image.version);
        let log = self.console_log();
        let socket = lab.run_dir().path(&format!("agent-{}.sock", lab.run_dir().next_number()));
        let start = Start {
            lab,
            spec: &self.spec,
            image: &self.image,
            disks: &self.disks,
            root: &self.root,
            state: self.state.as_ref(),
            shared: &self.shared.dir,
            clock: self.next_clock.as_deref(),
        };
        let mut vm = Vm::launch(start.with_agent(&socket, &log).await?, lab, &log)?;
        let (channel, kernel) = match vm.agent(&socket, self.spec.boot_timeout).await {
            Ok(agent) => agent,
            Err(error) => {
                let tail = vm.log_tail();
                vm.kill().await;
                return Err(error.context(format!("machine {name} with kernel {version} did not boot; {tail}\ncause")));
            }
        };
        if kernel != *version {
            vm.kill().await;
            bail!("machine {name} runs kernel {kernel} instead of {version}");
        }
        self.running = Some(Running { channel, vm, nodes: BTreeMap::new(), _watchers: Vec::new() });
        self.boot_time = begin.elapsed();
        self.serve_disks().await?;
        self.describe_disks().await
    }

    /// Waits until `probe` returns a value or `deadline` has passed on the guest's clock. The pauses between probes
    /// grow to 1 s.
    ///
    /// # Errors
    /// When the probe fails, or when the deadline has passed, with `what` in the message.
    pub async fn wait_until<T, F>(&self, what: &str, deadline: Duration, probe: F) -> Result<T>
    where
        F: AsyncFnMut() -> Result<Option<T>>,
    {
        self.wait_with(wait::pause, what, deadline, probe).await
    }

    /// [`Machine::wait_until`] for a transient state: the pauses stay at 0.1 s.
    ///
    /// # Errors
    /// As for `wait_until`.
    pub async fn catch<T, F>(&self, what: &str, deadline: Duration, probe: F) -> Result<T>
    where
        F: AsyncFnMut() -> Result<Option<T>>,
    {
        self.wait_with(|_| wait::STEP, what, deadline, probe).await
    }

    async fn wait_with<T, F>(
        &self,
        pause: fn(Duration) -> Duration,
        what: &str,
        deadline: Duration,
        mut probe: F,
    ) -> Result<T>
    where
        F: AsyncFnMut() -> Result<Option<T>>,
    {
        if self.spec.clock == Clock::Wall {
            return wait::wait_with(pause, what, deadline, probe).await;
        }
        let mut waited = Duration::ZERO;
        loop {
            if let Some(value) = probe().await? {
                return Ok(value);
            }
            if waited >= deadline {
                bail!("timed out after {:.0} s, waiting for: {what}", deadline.as_secs_f64());
            }
            let milliseconds = u64::try_from(pause(waited).as_millis()).unwrap_or(u64::MAX);
            self.ask(Request::Pause { milliseconds }).await?;
            waited += pause(waited);
        }
    }

    /// Runs a program to completion within [`DEFAULT_DEADLINE`]; `PATH` starts with [`GUEST_BIN`].
    ///
    /// # Errors
    /// When it cannot be started, exceeds the deadline, or the machine ends. A failing program is no error here: see
    /// [`Output::success`].
    pub async fn run(&self, argv: &[&str]) -> Result<Output> {
        self.run_within(argv, DEFAULT_DEADLINE).await
    }

    /// Like [`Machine::run`], with a deadline.
    ///
    /// # Errors
    /// As for [`Machine::run`].
    pub async fn run_within(&self, argv: &[&str], deadline: Duration) -> Result<Output> {
        self.spawn(argv, &[]).await?.wait(deadline).await
    }

    /// Runs a script with `bash -euo pipefail`, which must succeed, and returns its standard output.
    ///
    /// # Errors
    /// As for [`Machine::run`], and when the script fails.
    pub async fn sh(&self, script: &str) -> Result<String> {
        self.sh_within(script, DEFAULT_DEADLINE).await
    }

    /// Like [`Machine::sh`], with a deadline.
    ///
    /// # Errors
    /// As for [`Machine::sh`].
    pub async fn sh_within(&self, script: &str, deadline: Duration) -> Result<String> {
        let output = self.run_within(&["bash", "-euo", "pipefail", "-c", script], deadline).await?;
        let first = script.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        Ok(output.success(&format!("script `{first}`"))?.stdout)
    }

    /// Starts a program without waiting for it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn spawn(&self, argv: &[&str], env: &[(&str, &str)]) -> Result<Process> {
        self.spawn_with_input(argv, env, b"").await
    }

    /// Starts a program with `stdin` as its standard input.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn spawn_with_input(&self, argv: &[&str], env: &[(&str, &str)], stdin: &[u8]) -> Result<Process> {
        Process::start(self.channel()?, self.spec.clock, argv, env, stdin).await
    }

    /// Reads a file of the guest.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn read_file(&self, path: &str) -> Result<Vec<u8>> {
        match self.ask(Request::ReadFile { path: path.to_owned() }).await? {
            Event::File(data) => {
                data.into_bytes().with_context(|| format!("{path} was damaged in transit from the guest"))
            }
            other => bail!("the agent answered the reading of {path} with {other:?}"),
        }
    }

    /// Reads a text file of the guest.
    ///
    /// # Errors
    /// When it cannot be read or is not UTF-8.
    pub async fn read_text(&self, path: &str) -> Result<String> {
        let data = self.read_file(path).await?;
        String::from_utf8(data).with_context(|| format!("{path} in the guest is not text"))
    }

    /// Writes a file of the guest with one write, as files in /sys and /proc require.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn write_file(&self, path: &str, data: &[u8]) -> Result<()> {
        let request = Request::WriteFile { path: path.to_owned(), data: Payload::new(data) };
        self.ask(request).await.map(drop)
    }

    /// Adds a program of the host to [`GUEST_BIN`], for this boot and later ones.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub async fn bring(&self, program: &Path) -> Result<()> {
        let name = self.shared.add(program).await?;
        self.sh(&BRING.replace("PROGRAM", &name)).await.with_context(|| format!("cannot copy {name} to the guest"))?;
        Ok(())
    }

    /// Copies a file of the host to the shared directory, for this boot and later ones; returns its path in the guest.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub fn show(&self, file: &Path) -> Result<String> {
        let name = file.file_name().with_context(|| format!("{} names no file", file.display()))?;
        let copy = self.shared.dir.join(name);
        std::fs::copy(file, &copy).with_context(|| format!("cannot copy {} to {}", file.display(), copy.display()))?;
        Ok(format!("/lab/{}", name.to_string_lossy()))
    }

    /// Takes a snapshot of the guest, for comparison with a later one.
    pub(crate) async fn snapshot(&self) -> Result<std::collections::BTreeSet<String>> {
        match self.ask(Request::Snapshot).await? {
            Event::Snapshot(items) => Ok(items),
            other => bail!("the agent answered the snapshot with {other:?}"),
        }
    }

    /// The disks.
    #[must_use]
    pub fn disks(&self) -> &Disks {
        &self.disks
    }

    /// What it consists of.
    #[must_use]
    pub fn spec(&self) -> &MachineSpec {
        &self.spec
    }

    /// Its clock.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.spec.clock
    }

    /// Its kernel.
    #[must_use]
    pub fn kernel(&self) -> &KernelImage {
        &self.image
    }

    /// How long the last boot took.
    #[must_use]
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// Whether the machine is running, as far as the caller has started and stopped it.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Shuts the machine down; kills it if that takes too long.
    pub async fn shutdown(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        let asked = tokio::time::timeout(SHUTDOWN_LIMIT, running.channel.ask(Request::Shutdown)).await;
        if matches!(asked, Ok(Ok(_))) {
            // Ignored: it is killed next in any case, so that nothing is left.
            let _ = running.vm.exited(SHUTDOWN_LIMIT).await;
        }
        running.vm.kill().await;
    }

    /// Reboots through systemd, with the same disks and the same writable root. The console log shows how long each
    /// part took.
    ///
    /// # Errors
    /// When it does not shut down within `limit` (on the host's clock), or does not boot again.
    pub async fn reboot(&mut self, lab: &Lab, limit: Duration) -> Result<()> {
        self.keep_clock().await?;
        // Waiting for the command keeps the guest's clock running until the machine ends.
        let command = self.spawn(&["bash", "-c", "systemctl reboot && sleep infinity"], &[]).await?;
        let mut running = self.running.take().with_context(|| format!("machine {} is not running", self.name))?;
        let exited = tokio::select! {
            exited = running.vm.exited(limit) => exited,
            output = command.wait(limit) => match output {
                Ok(output) => bail!("systemctl reboot ended with {}: {}", output.status, output.stderr.trim()),
                Err(_) => running.vm.exited(SHUTDOWN_LIMIT).await,
            },
        };
        running.vm.kill().await;
        if !exited {
            bail!("machine {} did not end within {} s", self.name, limit.as_secs());
        }
        self.start(lab).await
    }

    /// In virtual time a guest's clock can be ahead of the host's: at the next boot it is later than now, as after a boot by the wall clock. (A kubelet
    /// whose clock has gone back takes a container of the last boot for the latest.)
    ///
    /// # Errors
    /// When the guest does not answer.
    pub async fn keep_clock(&mut self) -> Result<()> {
        if self.spec.clock == Clock::Virtual {
            let later = format!("date --utc --date '{} seconds' +%FT%T", TIME_OFF.as_secs());
            self.next_clock = Some(self.sh(&later).await?.trim().to_owned());
        }
        Ok(())
    }

    /// Kills QEMU, as a power cut. Unflushed writes may be lost; the disks stay.
    pub async fn power_off(&mut self) {
        if let Some(running) = self.running.take() {
            running.vm.kill().await;
        }
    }

    /// Moves the files in the guest's [`GUEST_OUT`] to a directory of the host.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub async fn collect_out(&self, target: &Path) -> Result<()> {
        self.shared.collect_out(target).await
    }

    fn channel(&self) -> Result<&Channel> {
        let running = self.running.as_ref();
        Ok(&running.with_context(|| format!("machine {} is not running", self.name))?.channel)
    }

    async fn ask(&self, request: Request) -> Result<Event> {
        let what = format!("{request:?}");
        let answer = tokio::time::timeout(DEFAULT_DEADLINE, self.channel()?.ask(request)).await;
        answer.with_context(|| format!("no answer from the guest within {} s to {what}", DEFAULT_DEADLINE.as_secs()))?
    }
}
