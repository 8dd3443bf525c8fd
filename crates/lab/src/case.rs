//! What a case is: a named async function that gets a booted machine and says how it ended.
//!
//! The list of cases is in `cases`, the running of them in `runner`.

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
    /// All it checked was so.
    Passed,
    /// What was not so.
    Failed(String),
    /// Why it cannot run here.
    Skipped(String),
}

/// The machine that a case wants. Cases of the same profile share one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Part of log file names.
    pub name: &'static str,
    /// What the guest's clock runs by, which each case says the reason of.
    pub clock: Clock,
    /// What its process 1 is.
    pub init: Init,
    /// The disks, in the order of their numbers. They are empty when a case begins.
    pub disks: &'static [DiskSpec],
    /// Memory of the guest.
    pub memory_mib: u32,
    /// CPUs of the guest.
    pub cpus: u32,
}

impl Profile {
    fn spec(&self, kernel: Kernel) -> MachineSpec {
        MachineSpec {
            clock: self.clock,
            init: self.init,
            disks: self.disks.to_vec(),
            memory_mib: self.memory_mib,
            cpus: self.cpus,
            ..MachineSpec::new(kernel)
        }
    }
}

/// What the function of a case returns.
pub type Running<'a> = Pin<Box<dyn Future<Output = Result<Outcome>> + 'a>>;

/// A case. `G` is [`Machine`] but in the runner's own tests.
#[derive(Debug)]
pub struct Case<G: Guest = Machine> {
    /// Unique, in snake case.
    pub name: &'static str,
    /// One sentence: what holds when it passes.
    pub about: &'static str,
    /// The kernels it is meant for.
    pub kernels: &'static [Kernel],
    /// The machine it wants.
    pub profile: Profile,
    /// It fails when it takes longer.
    pub limit: Duration,
    /// An `Err` counts as failed.
    pub run: fn(&mut Ctx<G>) -> Running<'_>,
}

/// What a case works with.
#[derive(Debug)]
pub struct Ctx<G: Guest = Machine> {
    /// The machine; it is on when the case begins.
    pub machine: G,
    /// The lab, for starting the machine again after a crash.
    pub lab: Arc<G::Lab>,
    /// Folder on the host for the results of this case. What it writes to [`crate::GUEST_OUT`] is put here too.
    pub artifacts: PathBuf,
    /// How long the case may take: it fails when it takes longer (four times as long in virtual time, by the host's clock).
    pub limit: Duration,
    pub(crate) case: &'static str,
}

impl<G: Guest> Ctx<G> {
    /// One line of progress.
    pub fn log(&self, line: impl AsRef<str>) {
        say::progress(format!("{}: {}", self.case, line.as_ref()));
    }

    /// Writes a result into the case's artifacts.
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
        self.machine.power_off().await;
        self.machine.start(&self.lab).await
    }

    /// Has systemd reboot the machine, with the same disks and root.
    ///
    /// # Errors
    /// When it does not end in `limit`, or does not boot again.
    pub async fn reboot(&mut self, limit: Duration) -> Result<()> {
        self.machine.reboot(&self.lab, limit).await
    }

    /// Path in the guest of a program that the runner brought.
    #[must_use]
    pub fn program(&self, name: &str) -> String {
        format!("{}/{name}", crate::machine::GUEST_BIN)
    }
}

/// What the runner needs of a machine: real machines have it, and so has the fake in the runner's tests.
pub trait Guest: Sized {
    /// What it is made from.
    type Lab;

    /// Makes a kernel available; when this fails, the cases that want it are skipped.
    fn kernel(lab: &Self::Lab, kernel: Kernel) -> impl Future<Output = Result<()>>;
    /// Boots a machine; `name` is part of log file names.
    fn boot(lab: &Self::Lab, kernel: Kernel, profile: &Profile, name: &str) -> impl Future<Output = Result<Self>>;
    /// Empties the disks and the kernel's log before a case.
    fn prepare(&mut self) -> impl Future<Output = Result<()>>;
    /// What exists in the guest; `None` when it is off.
    fn snapshot(&mut self) -> impl Future<Output = Result<Option<BTreeSet<String>>>>;
    /// Fetches what the case wrote for the host.
    fn collect(&mut self, artifacts: &Path) -> impl Future<Output = Result<()>>;
    /// Ends when a disk of it does not work any more because what simulates it ended; says why.
    fn fault(&self) -> impl Future<Output = String> + 'static + use<Self>;
    /// Whether its kernel died of a known fault of what emulates it, which says nothing about the case.
    fn died_of_emulation(&self) -> bool;
    /// Switches off in order.
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
        // A case that looks for complaints is not to find those of the case before; the console log keeps all.
        self.run(&["dmesg", "--clear"]).await?.success("emptying the kernel's log")?;
        Ok(())
    }

    async fn snapshot(&mut self) -> Result<Option<BTreeSet<String>>> {
        if self.is_on() { Machine::snapshot(self).await.map(Some) } else { Ok(None) }
    }

    async fn collect(&mut self, artifacts: &Path) -> Result<()> {
        self.collect_out(artifacts).await
    }

    fn fault(&self) -> impl Future<Output = String> + 'static + use<> {
        Machine::fault(self)
    }

    fn died_of_emulation(&self) -> bool {
        self.met_stray_int3()
    }

    async fn end(mut self) {
        self.shutdown().await;
    }
}
