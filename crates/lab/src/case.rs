//! Definition of a case: a named async function that gets a booted machine and returns an outcome.
//!
//! Does not: list the cases (`cases`) or run them (`runner`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::clock::Clock;
use crate::disk::DiskSpec;
use crate::init::Init;
use crate::kernels::Kernel;
use crate::lab::Lab;
use crate::machine::{Machine, MachineSpec};
use crate::say;

/// How a case ended. A case that cannot run here is skipped with the reason; it never passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All its checks held.
    Passed,
    /// A check failed; the text says which.
    Failed(String),
    /// It cannot run here, for this reason.
    Skipped(String),
}

/// The machine that a case needs. Cases with the same profile share one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Part of log file names.
    pub name: &'static str,
    /// The guest's clock. Each case states the reason for its choice.
    pub clock: Clock,
    /// Its process 1.
    pub init: Init,
    /// The disks, in order of their indexes. They are empty when a case starts.
    pub disks: &'static [DiskSpec],
    /// Memory of the guest.
    pub memory_mib: u32,
    /// CPUs of the guest.
    pub cpus: u32,
    /// Further arguments of its kernel, separated by spaces.
    pub kernel_arguments: &'static str,
}

impl Profile {
    fn spec(&self, kernel: Kernel) -> MachineSpec {
        MachineSpec {
            clock: self.clock,
            init: self.init,
            disks: self.disks.to_vec(),
            memory_mib: self.memory_mib,
            cpus: self.cpus,
            kernel_arguments: self.kernel_arguments,
            ..MachineSpec::new(kernel)
        }
    }
}

/// Return type of a case's function.
pub type Running<'a> = Pin<Box<dyn Future<Output = Result<Outcome>> + 'a>>;

/// A case. `G` is [`Machine`], except in the runner's own tests.
#[derive(Debug)]
pub struct Case<G: Guest = Machine> {
    /// Unique, in snake case.
    pub name: &'static str,
    /// One sentence: the behaviour that a pass confirms.
    pub about: &'static str,
    /// Kernels that it runs on.
    pub kernels: &'static [Kernel],
    /// Machine that it needs.
    pub profile: Profile,
    /// Time limit; the case fails when it is exceeded.
    pub limit: Duration,
    /// An `Err` counts as failed.
    pub run: fn(&mut Ctx<G>) -> Running<'_>,
}

/// Environment of a running case.
#[derive(Debug)]
pub struct Ctx<G: Guest = Machine> {
    /// The machine, running when the case starts.
    pub machine: G,
    /// The lab, for starting the machine again after a crash.
    pub lab: Arc<G::Lab>,
    /// Host directory for the results of this case. Files in [`crate::GUEST_OUT`] are collected here too.
    pub artifacts: PathBuf,
    /// Time limit of the case, on the host's clock; four times as long in virtual time.
    pub limit: Duration,
    pub(crate) case: &'static str,
}

impl<G: Guest> Ctx<G> {
    /// Prints one line of progress.
    pub fn log(&self, line: impl AsRef<str>) {
        say::progress(format!("{}: {}", self.case, line.as_ref()));
    }

    /// Saves a result in the case's artifacts.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, name: &str, contents: &str) -> Result<()> {
        let path = self.artifacts.join(name);
        std::fs::write(&path, contents).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Ctx {
    /// Cuts the power and boots again with the same disks.
    ///
    /// # Errors
    /// When the machine does not boot again.
    pub async fn crash_and_reboot(&mut self) -> Result<()> {
        self.machine.keep_clock().await?;
        self.machine.power_off().await;
        self.machine.start(&self.lab).await
    }

    /// Reboots the machine through systemd, with the same disks and root.
    ///
    /// # Errors
    /// When it does not shut down within `limit`, or does not boot again.
    pub async fn reboot(&mut self, limit: Duration) -> Result<()> {
        self.machine.reboot(&self.lab, limit).await
    }

    /// Path in the guest of a program under test.
    #[must_use]
    pub fn program(&self, name: &str) -> String {
        format!("{}/{name}", crate::machine::GUEST_BIN)
    }
}

/// What the runner requires of a machine. Real machines implement it, and so does the fake in the runner's tests.
pub trait Guest: Sized {
    /// What machines are created from.
    type Lab;

    /// Makes a kernel available. When this fails, the cases that need it are skipped.
    fn kernel(lab: &Self::Lab, kernel: Kernel) -> impl Future<Output = Result<()>>;
    /// Boots a machine; `name` is part of log file names.
    fn boot(lab: &Self::Lab, kernel: Kernel, profile: &Profile, name: &str) -> impl Future<Output = Result<Self>>;
    /// Empties the disks and the kernel's log before a case.
    fn prepare(&mut self) -> impl Future<Output = Result<()>>;
    /// Mounts, devices, cgroups and processes in the guest; `None` when it is not running.
    fn snapshot(&mut self) -> impl Future<Output = Result<Option<BTreeSet<String>>>>;
    /// Collects the files that the case wrote for the host.
    fn collect(&mut self, artifacts: &Path) -> impl Future<Output = Result<()>>;
    /// Completes when the server of one of its disks has ended, with the reason.
    fn fault(&self) -> impl Future<Output = String> + 'static + use<Self>;
    /// Whether its kernel crashed from a known emulator bug, which is no result of the case.
    fn hit_emulator_bug(&self) -> bool;
    /// Shuts the machine down.
    fn end(self) -> impl Future<Output = ()>;
}

impl Guest for Machine {
    type Lab = Lab;

    async fn kernel(lab: &Lab, kernel: Kernel) -> Result<()> {
        lab.kernel(kernel).await.map(drop)
    }

    async fn boot(lab: &Lab, kernel: Kernel, profile: &Profile, name: &str) -> Result<Self> {
        Self::boot(lab, &profile.spec(kernel), name).await
    }

    async fn prepare(&mut self) -> Result<()> {
        for index in 0..self.disks().count() {
            self.erase_disk(index).await?;
        }
        let settled = self.run(&["udevadm", "settle", "--timeout=60"]).await?;
        settled.success("waiting for udev")?;
        // A case that checks for kernel messages must not find those of the previous case; the console log keeps all.
        self.run(&["dmesg", "--clear"]).await?.success("emptying the kernel's log")?;
        Ok(())
    }

    async fn snapshot(&mut self) -> Result<Option<BTreeSet<String>>> {
        if self.is_running() { Machine::snapshot(self).await.map(Some) } else { Ok(None) }
    }

    async fn collect(&mut self, artifacts: &Path) -> Result<()> {
        self.collect_out(artifacts).await
    }

    fn fault(&self) -> impl Future<Output = String> + 'static + use<> {
        Machine::fault(self)
    }

    fn hit_emulator_bug(&self) -> bool {
        self.hit_stray_int3()
    }

    async fn end(mut self) {
        self.shutdown().await;
    }
}
