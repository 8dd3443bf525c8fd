//! Runs cases: one boot for cases of the same profile and kernel, a time limit for each, and after each a look at what
//! it left in the guest.
//!
//! A case that fails or leaves something behind costs its machine: the next one gets a fresh boot. Machines in virtual time run
//! side by side, as what runs beside them makes no difference to them; one on the wall clock runs when all else has ended, also
//! what the host does beside the run. The runner knows machines only as a [`Guest`], so its own rules are tested without any.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::Instant;

use crate::case::{Case, Ctx, Guest, Outcome, Profile};
use crate::clock::Clock;
use crate::kernels::Kernel;
use crate::report::{Entry, Report, Verdict};
use crate::say;

/// What a run is to do.
#[derive(Debug)]
pub struct Plan<'a, G: Guest> {
    /// The cases, each run on those of its kernels that are in `kernels`.
    pub cases: Vec<&'a Case<G>>,
    /// The kernels, in this order.
    pub kernels: Vec<Kernel>,
    /// The clock of all machines, in place of the one that each case asks for. A kernel without ublk has the wall clock only.
    pub clock: Option<Clock>,
    /// Folder for the artifacts of the cases.
    pub artifacts: PathBuf,
    /// How many machines in virtual time run side by side, at least one.
    pub lanes: usize,
    /// How long what a case left may take to go away.
    pub leak_grace: Duration,
    /// Called with the machine of a case that failed, before the machine ends.
    pub on_failure: Option<fn(&mut Ctx<G>) -> Inspection<'_>>,
}

/// What [`Plan::on_failure`] returns.
pub type Inspection<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs a plan: machines on the wall clock not before the host is `quiet`. An `interrupt` ends it, and the rest is reported as not run.
pub async fn run<G: Guest>(lab: Arc<G::Lab>, plan: &Plan<'_, G>, quiet: impl Future, interrupt: impl Future) -> Report {
    let run = Run { lab, plan, report: RefCell::default() };
    let finished = {
        let work = pin!(run.all(quiet));
        let interrupt = pin!(interrupt);
        tokio::select! {
            () = work => true,
            _ = interrupt => false,
        }
    };
    if !finished {
        let done: BTreeSet<(String, String)> =
            run.report.borrow().entries.iter().map(|entry| (entry.case.clone(), entry.kernel.clone())).collect();
        for Wanted { case, kernel, profile, .. } in wanted(plan) {
            if !done.contains(&(case.name.to_owned(), kernel.name().to_owned())) {
                run.record(case, kernel, profile.clock, Verdict::NotRun, Duration::ZERO);
            }
        }
    }
    run.report.into_inner()
}

/// A case that is to be run on a kernel.
struct Wanted<'a, G: Guest> {
    case: &'a Case<G>,
    kernel: Kernel,
    /// The machine that it is run on.
    profile: Profile,
    /// The name of the machine that is booted for it, if need be.
    machine: String,
}

impl<G: Guest> Wanted<'_, G> {
    fn suits(&self, idle: &Idle<G>) -> bool {
        idle.profile == self.profile && idle.kernel == self.kernel
    }
}

/// All cases with their kernels, those that share a boot beside each other.
fn wanted<'a, G: Guest>(plan: &Plan<'a, G>) -> Vec<Wanted<'a, G>> {
    let mut all = Vec::new();
    for kernel in &plan.kernels {
        let profile = |case: &Case<G>| {
            let own = if kernel.has_ublk() { case.profile.clock } else { Clock::Wall };
            Profile { clock: plan.clock.unwrap_or(own), ..case.profile }
        };
        let mut profiles: Vec<Profile> = Vec::new();
        for case in &plan.cases {
            if !profiles.contains(&profile(case)) {
                profiles.push(profile(case));
            }
        }
        for of_machine in &profiles {
            for case in &plan.cases {
                if profile(case) == *of_machine && case.kernels.contains(kernel) {
                    let machine = format!("{}-{kernel}-{}", of_machine.name, all.len());
                    all.push(Wanted { case, kernel: *kernel, profile: *of_machine, machine });
                }
            }
        }
    }
    all
}

/// A machine between two cases.
struct Idle<G> {
    machine: G,
    profile: Profile,
    kernel: Kernel,
}

/// A run of a plan.
struct Run<'r, 'a, G: Guest> {
    lab: Arc<G::Lab>,
    plan: &'r Plan<'a, G>,
    report: RefCell<Report>,
}

impl<'a, G: Guest> Run<'_, 'a, G> {
    async fn all(&self, quiet: impl Future) {
        let (alone, mut beside): (Vec<_>, Vec<_>) =
            wanted(self.plan).into_iter().partition(|one| one.profile.clock == Clock::Wall);
        let (n_alone, n_beside, begin) = (alone.len(), beside.len(), Instant::now());
        // The longest first, or one lane would wait for the other at the end.
        beside.sort_by_key(|one| std::cmp::Reverse(one.case.limit));
        let beside = RefCell::new(beside);
        let mut lanes: Vec<_> = (0..self.plan.lanes).map(|_| Some(Box::pin(self.lane(&beside)))).collect();
        std::future::poll_fn(|cx| {
            for lane in &mut lanes {
                if lane.as_mut().is_some_and(|lane| lane.as_mut().poll(cx).is_ready()) {
                    *lane = None;
                }
            }
            if lanes.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let together = begin.elapsed();
        if !alone.is_empty() {
            quiet.await;
        }
        let begin = Instant::now();
        self.lane(&RefCell::new(alone)).await;
        say::progress(format!(
            "{n_beside} cases in virtual time took {:.0} s, {n_alone} on the wall clock {:.0} s",
            together.as_secs_f64(),
            begin.elapsed().as_secs_f64()
        ));
    }

    /// Runs cases of a list, one after the other, until there are none; each on the machine of the one before, where it suits.
    async fn lane(&self, list: &RefCell<Vec<Wanted<'a, G>>>) {
        let mut idle: Option<Idle<G>> = None;
        loop {
            let next = {
                let mut list = list.borrow_mut();
                let place = idle.as_ref().and_then(|idle| list.iter().position(|one| one.suits(idle))).unwrap_or(0);
                if place < list.len() { list.remove(place) } else { break }
            };
            idle = self.one(&next, idle).await;
        }
        if let Some(idle) = idle {
            idle.machine.end().await;
        }
    }

    /// Runs one case; returns its machine, if that can serve another one.
    async fn one(&self, wanted: &Wanted<'a, G>, idle: Option<Idle<G>>) -> Option<Idle<G>> {
        let Wanted { case, kernel, profile, machine: name } = wanted;
        if let Err(error) = G::kernel(&self.lab, *kernel).await {
            let why = format!("kernel {kernel} cannot be had: {error:#}");
            self.record(case, *kernel, profile.clock, Verdict::Ran(Outcome::Skipped(why)), Duration::ZERO);
            return idle;
        }
        let machine = match idle {
            Some(found) if wanted.suits(&found) => Ok(found.machine),
            other => {
                if let Some(other) = other {
                    other.machine.end().await;
                }
                say::progress(format!("booting {name}"));
                G::boot(&self.lab, *kernel, profile, name).await
            }
        };
        let begin = Instant::now();
        let mut ran = run_on(machine, &self.lab, self.plan, case, *kernel, profile.clock).await;
        if ran.died_of_emulation {
            let machine = G::boot(&self.lab, *kernel, profile, &format!("{name}-again")).await;
            ran = run_on(machine, &self.lab, self.plan, case, *kernel, profile.clock).await;
        }
        self.record(case, *kernel, profile.clock, Verdict::Ran(ran.outcome), begin.elapsed());
        ran.machine.map(|machine| Idle { machine, profile: *profile, kernel: *kernel })
    }

    fn record(&self, case: &Case<G>, kernel: Kernel, clock: Clock, verdict: Verdict, time: Duration) {
        let entry = Entry { case: case.name.to_owned(), kernel: kernel.name().to_owned(), clock, verdict, time };
        say::result(entry.line());
        self.report.borrow_mut().entries.push(entry);
    }
}

/// What became of one case.
struct Ran<G> {
    outcome: Outcome,
    /// When it can serve further cases.
    machine: Option<G>,
    /// It failed because what emulates its machine did.
    died_of_emulation: bool,
}

/// Runs one case, if there is a machine for it.
async fn run_on<G: Guest>(
    machine: Result<G>,
    lab: &Arc<G::Lab>,
    plan: &Plan<'_, G>,
    case: &Case<G>,
    kernel: Kernel,
    clock: Clock,
) -> Ran<G> {
    let machine = match machine {
        Ok(machine) => machine,
        Err(error) => {
            let outcome = Outcome::Failed(format!("no machine: {error:#}"));
            return Ran { outcome, machine: None, died_of_emulation: false };
        }
    };
    let artifacts = plan.artifacts.join(format!("{}-{kernel}", case.name));
    let mut ctx = Ctx { machine, lab: Arc::clone(lab), artifacts, limit: case.limit, case: case.name };
    let outcome = match checked(&mut ctx, plan, case, clock.patience(case.limit)).await {
        Ok(outcome) => outcome,
        Err(error) => Outcome::Failed(format!("{error:#}")),
    };
    if let Outcome::Failed(why) = &outcome {
        if let Some(inspect) = plan.on_failure {
            say::progress(format!("{} failed: {why}", case.name));
            inspect(&mut ctx).await;
        }
        let died_of_emulation = ctx.machine.died_of_emulation();
        if died_of_emulation {
            say::progress(format!("{} met a fault of the emulation: {why}", case.name));
        }
        ctx.machine.end().await;
        return Ran { outcome, machine: None, died_of_emulation };
    }
    // A case may end with its machine switched off.
    let is_on = matches!(ctx.machine.snapshot().await, Ok(Some(_)));
    Ran { outcome, machine: is_on.then_some(ctx.machine), died_of_emulation: false }
}

/// The case between two snapshots.
async fn checked<G: Guest>(ctx: &mut Ctx<G>, plan: &Plan<'_, G>, case: &Case<G>, limit: Duration) -> Result<Outcome> {
    std::fs::create_dir_all(&ctx.artifacts).with_context(|| format!("cannot create {}", ctx.artifacts.display()))?;
    ctx.machine.prepare().await.context("before the case")?;
    let before = ctx.machine.snapshot().await.context("before the case")?.unwrap_or_default();
    let fault = ctx.machine.fault();
    let run = async {
        tokio::select! {
            outcome = guarded((case.run)(ctx)) => outcome,
            why = fault => Ok(Outcome::Failed(why)),
        }
    };
    let result = tokio::time::timeout(limit, run).await;
    let artifacts = ctx.artifacts.clone();
    let collected = ctx.machine.collect(&artifacts).await;
    let outcome = match result {
        Err(_) => return Ok(Outcome::Failed(format!("still running after {} s", limit.as_secs()))),
        Ok(Err(error)) => return Ok(Outcome::Failed(format!("{error:#}"))),
        Ok(Ok(Outcome::Failed(why))) => return Ok(Outcome::Failed(why)),
        Ok(Ok(outcome)) => outcome,
    };
    collected?;
    let left = leaks(&mut ctx.machine, &before, plan.leak_grace).await.context("after the case")?;
    if left.is_empty() {
        return Ok(outcome);
    }
    Ok(Outcome::Failed(format!("the case ended well but did not clean up:\n{}", left.join("\n"))))
}

/// What is new (`+`) or gone (`-`) since `before`, once it has had time to settle.
async fn leaks<G: Guest>(machine: &mut G, before: &BTreeSet<String>, grace: Duration) -> Result<Vec<String>> {
    let end = Instant::now() + grace;
    loop {
        let Some(after) = machine.snapshot().await? else { return Ok(Vec::new()) };
        let left = difference(before, &after);
        if left.is_empty() || Instant::now() >= end {
            return Ok(left);
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

fn difference(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Vec<String> {
    // A process that is gone is not something left behind.
    let gone = before.difference(after).filter(|item| !item.starts_with("process ")).map(|item| format!("- {item}"));
    after.difference(before).map(|item| format!("+ {item}")).chain(gone).collect()
}

/// Turns a panic of a case into its failure: the runner must live to clean up.
async fn guarded(case: impl Future<Output = Result<Outcome>>) -> Result<Outcome> {
    let mut case = pin!(case);
    std::future::poll_fn(move |cx| {
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| case.as_mut().poll(cx)));
        polled.unwrap_or_else(|panic| {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("a panic without words");
            Poll::Ready(Ok(Outcome::Failed(format!("the case panicked: {text}"))))
        })
    })
    .await
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
