//! `cargo xtask lab`: the command line of `bulkhead-lab`.
//!
//! Owns: building the programs under test, the directories of a run, and an orderly end on signals. Does not: implement machines, disks or cases
//! (`bulkhead-lab` does).

use std::future::ready;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use bulkhead_lab::case::{Case, Ctx};
use bulkhead_lab::runner::{self, Plan};
use bulkhead_lab::{
    Clock, CrateTool, DISK_WORD, DiskSpec, GUEST_BIN, GoTool, Init, IocostLines, Kernel, Lab, LabConfig, Machine,
    MachineSpec, ProcessEvent, SealedSpec, Stream, cases, host_command, run_sealed, say,
};
use clap::{Args, Subcommand};
use tokio::sync::watch;

use crate::check::{WRAPPER, cargo_program};
use crate::deb;

/// The program under test.
pub(crate) const BULKHEAD: &str = "bulkhead";
/// Exit code after SIGINT or SIGTERM, as a shell would show it.
const INTERRUPTED: u8 = 130;
/// Time for leftovers of a case to disappear: emulated guests are slow.
const LEAK_GRACE: Duration = Duration::from_secs(15);
/// Number of machines in virtual time that run in parallel; each is one thread.
const LANES: usize = 2;
/// Number of slowest cases that are reported.
const N_SLOWEST: usize = 10;
/// Memory of a guest for experiments: MariaDB, and the page cache of eight writers.
const BENCH_MEMORY_MIB: u32 = 3072;
/// Size of the disks that experiments run on.
pub(crate) const BENCH_DISK_MIB: u32 = 8192;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Installs missing host packages, builds the guest root, downloads all kernels and builds the crates that cases compare with.
    Prepare {
        #[command(flatten)]
        programs: Programs,
    },
    /// Runs cases; the last line is `N passed, N failed, N skipped`.
    Run {
        /// Names of cases; a trailing `*` matches any ending.
        cases: Vec<String>,
        /// Run all cases except those marked "by name only".
        #[arg(long, conflicts_with = "cases")]
        all: bool,
        /// Run all cases except the long ones; each of these has a shorter counterpart that is included.
        #[arg(long, conflicts_with_all = ["cases", "all"])]
        quick: bool,
        /// Kernel: 6.12, backport, 6.1 or all.
        #[arg(long, default_value = "6.12")]
        kernel: String,
        /// Clock that overrides that of each case: wall or virtual.
        #[arg(long)]
        clock: Option<Clock>,
        /// List the cases and exit.
        #[arg(long)]
        list: bool,
        /// Keep the machine of a failed case and run the lines you type in it, until Ctrl-D.
        #[arg(long)]
        keep: bool,
        #[command(flatten)]
        programs: Programs,
    },
    /// Runs fsx, pjdfstest, fio --verify and stress-ng --verify in rounds on volumes, clones and clones of clones, while servers are killed,
    /// snapshots created and clones flattened; ends with a summary, or at the first failure.
    Soak {
        /// Minutes during which new rounds are started; each takes a few minutes.
        #[arg(long, default_value_t = 60)]
        minutes: u64,
        /// Kernel: 6.12 or backport.
        #[arg(long, default_value = "6.12")]
        kernel: Kernel,
        /// Keep the machine of a failed round, as `run` does.
        #[arg(long)]
        keep: bool,
        #[command(flatten)]
        programs: Programs,
    },
    /// Boots a machine with a shell on its console.
    Shell {
        #[command(flatten)]
        programs: Programs,
        #[command(flatten)]
        machine: MachineArgs,
    },
    /// Boots a machine, runs one command in it and returns its output and exit code; /lab/out is copied to the artifacts.
    Exec {
        #[command(flatten)]
        programs: Programs,
        #[command(flatten)]
        machine: MachineArgs,
        /// Time limit of the command in seconds.
        #[arg(long, default_value_t = 1800)]
        limit: u64,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

/// How the programs under test are built.
#[derive(Debug, Args)]
pub(crate) struct Programs {
    /// Use programs built in release mode.
    #[arg(long)]
    pub(crate) release: bool,
    /// Use the programs in the target directory without building them.
    #[arg(long)]
    pub(crate) no_build: bool,
}

impl Programs {
    /// Development builds.
    pub(crate) const DEV: Self = Self { release: false, no_build: false };
    /// Existing development builds.
    const DEV_NO_BUILD: Self = Self { release: false, no_build: true };
    /// Release builds, for measurements.
    pub(crate) const RELEASE: Self = Self { release: true, no_build: false };
}

#[derive(Debug, Args)]
pub(crate) struct MachineArgs {
    /// Adds a disk: hdd, hdd-nocache, hdd-slow, ssd, ssd-slow, nvme, nvme-slow, fast or faulty, with its size in MiB as in hdd:4096 (default 8192).
    #[arg(long = "disk", value_name = "MODEL[:MIB]")]
    disks: Vec<DiskSpec>,
    /// The kernel: 6.12, backport or 6.1.
    #[arg(long, default_value = "6.12")]
    kernel: Kernel,
    /// The guest's clock: wall, or virtual (counts instructions).
    #[arg(long, default_value = "wall")]
    clock: Clock,
    /// Run systemd as process 1 instead of a script.
    #[arg(long)]
    systemd: bool,
    /// Memory of the guest in MiB.
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(512..=1 << 20))]
    memory: u32,
    /// CPUs of the guest.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
}

impl MachineArgs {
    fn spec(&self) -> MachineSpec {
        let mut spec = MachineSpec::new(self.kernel);
        spec.clock = self.clock;
        if self.systemd {
            spec.init = Init::Systemd;
        }
        spec.disks.clone_from(&self.disks);
        spec.memory_mib = self.memory;
        spec.cpus = self.cpus;
        spec
    }
}

/// The state of the checks that run in parallel with cases: `None` until they have ended, then whether they succeeded.
pub(crate) type Checks = watch::Receiver<Option<bool>>;

/// Runs the quick cases on the main kernel, with existing programs. Cases on the wall clock wait until the checks have ended, including the build
/// of the package; if the checks fail, the run ends.
pub(crate) fn run_quick(checks: &Checks) -> Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the asynchronous runtime")?;
    let ended = |success: bool| {
        let mut checks = checks.clone();
        async move {
            // A dropped sender means failure.
            if checks.wait_for(|ended| *ended == Some(success)).await.is_err() && success {
                std::future::pending::<()>().await;
            }
        }
    };
    runtime.block_on(async {
        let signal = interrupted()?;
        let interrupt = async {
            tokio::select! {
                signal = signal => signal,
                () = ended(false) => "checks failed",
            }
        };
        let mut config = config(&Programs::DEV_NO_BUILD)?;
        config.package = Some(deb::path(false));
        run_plan(cases::quick(), vec![Kernel::V6_12], None, false, config, ended(true), interrupt).await
    })
}

/// Runs a lab command until it ends or a signal arrives.
pub(crate) fn run(command: Command) -> Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the asynchronous runtime")?;
    let result = runtime.block_on(async {
        if let Command::Run { cases, all, quick, kernel, clock, list, keep, programs } = command {
            if list {
                return list_cases();
            }
            let cases = match (all, quick) {
                (true, _) => cases::all(),
                (_, true) => cases::quick(),
                _ => named_cases(&cases)?,
            };
            let kernels = if kernel == "all" { Kernel::ALL.to_vec() } else { vec![kernel.parse()?] };
            let mut config = config(&programs)?;
            if cases.iter().any(|case| case.profile.init == Init::Systemd) {
                config.package = Some(deb::make(programs.release)?);
            }
            return run_plan(cases, kernels, clock, keep, config, ready(()), interrupted()?).await;
        }
        if let Command::Soak { minutes, kernel, keep, programs } = command {
            let soak = cases::soak_of_suites(Duration::from_secs(minutes * 60));
            if !soak.kernels.contains(&kernel) {
                bail!("kernel {kernel} has no block servers: choose 6.12 or backport");
            }
            return run_plan(vec![&soak], vec![kernel], None, keep, config(&programs)?, ready(()), interrupted()?)
                .await;
        }
        let interrupt = interrupted()?;
        tokio::select! {
            result = dispatch(command) => result,
            // Dropping the command kills its machines and disks, and removes its temporary directory.
            signal = interrupt => {
                say::progress(format!("{signal}: cleaning up"));
                Ok(ExitCode::from(INTERRUPTED))
            }
        }
    });
    // A read from the terminal cannot be cancelled: do not wait for it.
    runtime.shutdown_background();
    result
}

/// What a program is run beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing else is in the machine.
    Alone,
    /// A Kubernetes of one node, with the driver.
    Kubernetes,
}

/// Builds one of the workspace's programs, and runs it in a machine in virtual time with one disk, as `lab exec` does. Its arguments include the description of
/// the simulated disk, and the parameters of io.cost for it. Returns its exit code and the artifacts directory. `companions` are further
/// programs to install in the program's directory, which also contains `bulkhead`.
pub(crate) fn run_on(
    disk: DiskSpec,
    place: Place,
    program: &str,
    programs: &Programs,
    arguments: Vec<String>,
    companions: &[PathBuf],
    limit: Duration,
) -> Result<(ExitCode, PathBuf)> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the asynchronous runtime")?;
    let result = runtime.block_on(async {
        let interrupt = interrupted()?;
        let run = async {
            let mut config = config_with(programs, Some(program).filter(|program| *program != BULKHEAD))?;
            config.programs.extend_from_slice(companions);
            let lab = Arc::new(Lab::open(config).await?);
            let mut command = vec![format!("{GUEST_BIN}/{program}")];
            command.extend(arguments);
            let clock = Clock::Virtual;
            let rate = clock
                .instructions_per_second()
                .map_or_else(String::new, |rate| format!(": {rate} instructions a second, of all processors together"));
            command.extend(["--disk".to_owned(), disk.model.describe(clock)]);
            command.extend(["--disk-model", disk.model.name(), "--clock"].map(str::to_owned));
            command.push(format!("{clock}{rate}"));
            command.extend(disk.model.iocost(clock, lab.kvm()).into_iter().flat_map(IocostLines::options));
            let (kernel, memory_mib) = (Kernel::V6_12, BENCH_MEMORY_MIB);
            let code = match place {
                Place::Kubernetes => {
                    let mut machine = cases::kubernetes_on(Arc::clone(&lab), disk).await?;
                    exec_on(&lab, &mut machine, limit, &command).await?
                }
                Place::Alone => {
                    let spec = SealedSpec { kernel, disk, memory_mib, command, limit, shown: true };
                    exit_code(run_sealed(&lab, &spec, &lab.config().artifacts).await?.code)
                }
            };
            Ok((code, lab.config().artifacts.clone()))
        };
        tokio::select! {
            result = run => result,
            signal = interrupt => bail!("{signal}: the machine was ended"),
        }
    });
    runtime.shutdown_background();
    result
}

async fn dispatch(command: Command) -> Result<ExitCode> {
    match command {
        Command::Run { .. } | Command::Soak { .. } => bail!("cases handle their interruption themselves"),
        Command::Prepare { programs } => prepare(&programs).await,
        Command::Shell { programs, machine } => {
            let lab = open(&programs).await?;
            let status = bulkhead_lab::shell(&lab, &machine.spec()).await?;
            Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Exec { programs, machine, limit, command } => {
            exec(&open(&programs).await?, &machine.spec(), Duration::from_secs(limit), &command).await
        }
    }
}

async fn prepare(programs: &Programs) -> Result<ExitCode> {
    let lab = open(programs).await?;
    let mut code = ExitCode::SUCCESS;
    say::result(format!("guest root {}", lab.root().dir().display()));
    say::result(format!("kvm {}", if lab.kvm() { "yes" } else { "no: guests are emulated" }));
    for kernel in Kernel::ALL {
        match lab.kernel(kernel).await {
            Ok(image) => say::result(format!("kernel {kernel} = {} sha256 {}", image.version, image.sha256)),
            Err(error) => {
                say::result(format!("kernel {kernel} is not available: {error:#}"));
                code = ExitCode::FAILURE;
            }
        }
    }
    for tool in CrateTool::ALL {
        match lab.crate_tool(tool).await {
            Ok(program) => say::result(format!("program {tool} = {}", program.display())),
            Err(error) => {
                say::result(format!("program {tool} is not available: {error:#}"));
                code = ExitCode::FAILURE;
            }
        }
    }
    for tool in GoTool::ALL {
        match lab.go_tool(tool).await {
            Ok(program) => say::result(format!("program {tool} = {}", program.display())),
            // Its case is skipped without it.
            Err(error) => say::result(format!("program {tool} is not available: {error:#}")),
        }
    }
    Ok(code)
}

async fn exec(lab: &Lab, spec: &MachineSpec, limit: Duration, argv: &[String]) -> Result<ExitCode> {
    let mut machine = Machine::boot(lab, spec, "exec").await?;
    exec_on(lab, &mut machine, limit, argv).await
}

/// Runs a command in a machine, and shuts the machine down.
async fn exec_on(lab: &Lab, machine: &mut Machine, limit: Duration, argv: &[String]) -> Result<ExitCode> {
    let disks = machine.spec().disks.clone();
    let (kernel, seconds) = (&machine.kernel().version, machine.boot_time().as_secs_f64());
    let cpu = match (machine.clock(), lab.kvm()) {
        (Clock::Virtual, _) => "virtual time",
        (Clock::Wall, true) => "KVM",
        (Clock::Wall, false) => "emulated",
    };
    say::progress(format!("booted {kernel} after {seconds:.1} s of the host's time ({cpu})"));
    for (index, disk) in disks.iter().enumerate() {
        let node = machine.disk(index).await?;
        say::progress(format!("disk {index}: {node}, {} {} MiB", disk.model, disk.size_mib));
    }
    let first = if disks.is_empty() { String::new() } else { machine.disk(0).await? };
    let words: Vec<&str> =
        argv.iter().map(|word| if word == DISK_WORD { first.as_str() } else { word.as_str() }).collect();
    let mut process = machine.spawn(&words, &[]).await?;
    let fault = machine.fault();
    let run = async {
        loop {
            match process.next().await? {
                ProcessEvent::Output(stream, data) => say::pass_on(stream, &data),
                ProcessEvent::Exited(status) => return anyhow::Ok(status),
            }
        }
    };
    let outcome = tokio::time::timeout(limit, async {
        tokio::select! {
            status = run => status,
            why = fault => bail!("{why}"),
        }
    })
    .await;
    machine.collect_out(&lab.config().artifacts.join("out")).await?;
    for index in (0..disks.len()).filter(|_| machine.clock() == Clock::Virtual) {
        say::progress(format!("disk {index} served {}", machine.command_disk(index, "stats").await?.trim()));
    }
    machine.shutdown().await;
    let Ok(status) = outcome else {
        bail!("the command did not end within {} s", limit.as_secs());
    };
    Ok(exit_code(status?.shell_code()))
}

fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

fn list_cases() -> Result<ExitCode> {
    let quick = cases::quick();
    for case in cases::all() {
        let kernels: Vec<&str> = case.kernels.iter().map(|kernel| kernel.name()).collect();
        let long = if quick.iter().any(|other| other.name == case.name) { "" } else { "long, " };
        say::result(format!("{:<24} [{long}{}] {}", case.name, kernels.join(", "), case.about));
    }
    for case in cases::soak() {
        say::result(format!("{:<24} [by name only] {}", case.name, case.about));
    }
    Ok(ExitCode::SUCCESS)
}

async fn run_plan(
    cases: Vec<&Case>,
    kernels: Vec<Kernel>,
    clock: Option<Clock>,
    keep: bool,
    config: LabConfig,
    quiet: impl Future,
    interrupt: impl Future<Output = &'static str>,
) -> Result<ExitCode> {
    let mut interrupt = std::pin::pin!(interrupt);
    let lab = tokio::select! {
        lab = Lab::open(config) => Arc::new(lab?),
        signal = &mut interrupt => bail!("{signal} before the first case"),
    };
    let plan = Plan {
        cases,
        kernels,
        clock,
        lanes: if keep { 1 } else { LANES },
        artifacts: lab.config().artifacts.clone(),
        leak_grace: LEAK_GRACE,
        on_failure: keep.then_some(|ctx: &mut Ctx| Box::pin(inspect(ctx)) as runner::Inspection<'_>),
    };
    let report = runner::run(Arc::clone(&lab), &plan, quiet, interrupt).await;
    report.write_json(&lab.config().artifacts.join("report.json"), &lab)?;
    report.failures().into_iter().for_each(say::result);
    if report.entries.len() > N_SLOWEST {
        say::result(format!("the {N_SLOWEST} slowest cases:"));
        report.slowest(N_SLOWEST).into_iter().for_each(say::result);
    }
    if report.not_run() > 0 {
        say::result(format!("{} not run", report.not_run()));
    }
    say::result(report.summary());
    Ok(if report.good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn named_cases(names: &[String]) -> Result<Vec<&'static Case>> {
    let known: Vec<&'static Case> = cases::all().into_iter().chain(cases::soak()).collect();
    if names.is_empty() {
        bail!("specify cases, --all or --quick; --list shows all cases");
    }
    let matches = |case: &Case, name: &str| match name.strip_suffix('*') {
        Some(prefix) => case.name.starts_with(prefix),
        None => case.name == name,
    };
    for name in names {
        if !known.iter().any(|case| matches(case, name)) {
            bail!("there is no case {name}: --list shows all cases");
        }
    }
    Ok(known.into_iter().filter(|case| names.iter().any(|name| matches(case, name))).collect())
}

/// Runs lines from standard input in the machine of a failed case.
async fn inspect(ctx: &mut Ctx) {
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    say::progress("the machine is kept: enter commands to run in it, Ctrl-D to continue");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match ctx.machine.run(&["bash", "-c", &line]).await {
            Ok(output) => {
                say::pass_on(Stream::Stdout, output.stdout.as_bytes());
                say::pass_on(Stream::Stderr, output.stderr.as_bytes());
                say::progress(output.status.to_string());
            }
            Err(error) => say::progress(format!("{error:#}")),
        }
    }
}

async fn open(programs: &Programs) -> Result<Lab> {
    Lab::open(config(programs)?).await
}

/// Builds the programs, and creates the directory for this run's artifacts.
fn config(programs: &Programs) -> Result<LabConfig> {
    config_with(programs, None)
}

/// The same with another program.
fn config_with(programs: &Programs, other: Option<&str>) -> Result<LabConfig> {
    let (target, profile) = (target_dir(), programs_dir(programs.release));
    build_with(programs, other)?;
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?;
    let runs = target.join("lab/runs");
    let artifacts = runs.join(format!("{}-{}", seconds.as_secs(), std::process::id()));
    std::fs::create_dir_all(&artifacts).with_context(|| format!("cannot create {}", artifacts.display()))?;
    say::progress(format!("artifacts in {}", artifacts.display()));
    let own = [BULKHEAD].into_iter().chain(other);
    let [agent, disk] = ["bulkhead-lab-agent", "bulkhead-lab-disk"].map(|name| profile.join(name));
    Ok(LabConfig { agent, disk, programs: own.map(|name| profile.join(name)).collect(), package: None, artifacts })
}

/// Builds the programs under test, unless existing ones are to be used.
pub(crate) fn build(programs: &Programs) -> Result<()> {
    build_with(programs, None)
}

/// The same with one more program.
pub(crate) fn build_with(programs: &Programs, other: Option<&str>) -> Result<()> {
    if programs.no_build {
        return Ok(());
    }
    let mut cargo = host_command(cargo_program());
    cargo.current_dir(workspace()).args(["build", "--quiet", "--bin", "bulkhead", "--bin", "bulkhead-lab-agent"]);
    // The last two are only in packages and images.
    cargo.args(["--bin", "bulkhead-lab-disk", "--bin", "bulkhead-runtime", "--bin", "bulkhead-extender"]);
    cargo.args(other.into_iter().flat_map(|name| ["--bin", name]));
    if programs.release {
        cargo.arg("--release").env_remove(WRAPPER);
    } else {
        // The tests enable this feature: without it, cargo compiles the engine a second time.
        cargo.args(["--features", "bulkhead-engine/sim"]);
    }
    say::progress(format!("building the programs, {}", if programs.release { "optimised" } else { "not optimised" }));
    let status = cargo.status().context("cannot start cargo to build the programs under test")?;
    if !status.success() {
        bail!("the build of the programs under test failed ({status}); --no-build uses existing ones");
    }
    Ok(())
}

pub(crate) fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The directory that programs are built in.
pub(crate) fn programs_dir(is_release: bool) -> PathBuf {
    target_dir().join(if is_release { "release" } else { "debug" })
}

pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// Resolves on SIGINT or SIGTERM.
fn interrupted() -> Result<impl Future<Output = &'static str>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => "interrupted",
            _ = terminate.recv() => "terminated",
        }
    })
}
