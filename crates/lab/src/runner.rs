//! Runs cases: one boot for cases of the same profile and kernel, a time limit for each, and a leak check of the guest
//! after each.
//!
//! After a case that fails or leaks, its machine is discarded, and the next case gets a fresh boot. Machines in virtual
//! time run in parallel, because other load does not affect them; a machine on the wall clock runs alone, after all
//! others have ended and the host is quiet. Does not: depend on real machines. The runner knows them only as a
//! [`Guest`], so its rules are tested with a fake.

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

/// Parameters of a run.
#[derive(Debug)]
pub struct Plan<'a, G: Guest> {
    /// The cases, each of which runs on those of its kernels that are in `kernels`.
    pub cases: Vec<&'a Case<G>>,
    /// The kernels, in this order.
    pub kernels: Vec<Kernel>,
    /// Overrides the clock of all cases. A kernel without ublk has the wall clock only.
    pub clock: Option<Clock>,
    /// Directory for the artifacts of the cases.
    pub artifacts: PathBuf,
    /// Number of machines in virtual time that run in parallel, at least one.
    pub lanes: usize,
    /// How long leftovers of a case may take to disappear.
    pub leak_grace: Duration,
    /// Called with the machine of a failed case, before the machine is discarded.
    pub on_failure: Option<fn(&mut Ctx<G>) -> Inspection<'_>>,
}

/// Return type of [`Plan::on_failure`].
pub type Inspection<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs a plan. Machines on the wall clock wait until the host is `quiet`. An `interrupt` ends the run; the remaining
/// cases are reported as not run.
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
        for Scheduled { case, kernel, profile, .. } in scheduled(plan) {
            if !done.contains(&(case.name.to_owned(), kernel.name().to_owned())) {
                run.record(case, kernel, profile.clock, Verdict::NotRun, Duration::ZERO);
            }
        }
    }
    run.report.into_inner()
}

/// A case scheduled on a kernel.
struct Scheduled<'a, G: Guest> {
    case: &'a Case<G>,
    kernel: Kernel,
    /// Profile of its machine, after overrides.
    profile: Profile,
    /// Name of the machine if one is booted for it.
    machine: String,
}

impl<G: Guest> Scheduled<'_, G> {
    fn suits(&self, idle: &Idle<G>) -> bool {
        idle.profile == self.profile && idle.kernel == self.kernel
    }
}

/// All cases with their kernels; cases that can share a boot are adjacent.
fn scheduled<'a, G: Guest>(plan: &Plan<'a, G>) -> Vec<Scheduled<'a, G>> {
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
                    all.push(Scheduled { case, kernel: *kernel, profile: *of_machine, machine });
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
        let (alone, mut parallel): (Vec<_>, Vec<_>) =
            scheduled(self.plan).into_iter().partition(|one| one.profile.clock == Clock::Wall);
        let (n_alone, n_parallel, begin) = (alone.len(), parallel.len(), Instant::now());
        // The longest first, so that the lanes finish at about the same time.
        parallel.sort_by_key(|one| std::cmp::Reverse(one.case.limit));
        let parallel = RefCell::new(parallel);
        let mut lanes: Vec<_> = (0..self.plan.lanes).map(|_| Some(Box::pin(self.lane(&parallel)))).collect();
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
            "{n_parallel} cases in virtual time took {:.0} s, {n_alone} on the wall clock {:.0} s",
            together.as_secs_f64(),
            begin.elapsed().as_secs_f64()
        ));
    }

    /// Runs the cases of a list in turn until it is empty, each on the previous case's machine if that is suitable.
    async fn lane(&self, list: &RefCell<Vec<Scheduled<'a, G>>>) {
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

    /// Runs one case; returns its machine if another case can use it.
    async fn one(&self, scheduled: &Scheduled<'a, G>, idle: Option<Idle<G>>) -> Option<Idle<G>> {
        let Scheduled { case, kernel, profile, machine: name } = scheduled;
        if let Err(error) = G::kernel(&self.lab, *kernel).await {
            let why = format!("kernel {kernel} is not available: {error:#}");
            self.record(case, *kernel, profile.clock, Verdict::Ran(Outcome::Skipped(why)), Duration::ZERO);
            return idle;
        }
        let machine = match idle {
            Some(found) if scheduled.suits(&found) => Ok(found.machine),
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
        if ran.hit_emulator_bug {
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

/// Result of running one case.
struct Ran<G> {
    outcome: Outcome,
    /// The machine, if further cases can use it.
    machine: Option<G>,
    /// Whether it failed because of an emulator bug.
    hit_emulator_bug: bool,
}

/// Runs one case, if its machine has booted.
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
            return Ran { outcome, machine: None, hit_emulator_bug: false };
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
        let hit_emulator_bug = ctx.machine.hit_emulator_bug();
        if hit_emulator_bug {
            say::progress(format!("{} hit an emulator bug: {why}", case.name));
        }
        ctx.machine.end().await;
        return Ran { outcome, machine: None, hit_emulator_bug };
    }
    // A case may end with its machine stopped.
    let is_running = matches!(ctx.machine.snapshot().await, Ok(Some(_)));
    Ran { outcome, machine: is_running.then_some(ctx.machine), hit_emulator_bug: false }
}

/// Runs the case between two snapshots.
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
    Ok(Outcome::Failed(format!("the case passed but did not clean up:\n{}", left.join("\n"))))
}

/// Items added (`+`) or removed (`-`) since `before`, after time to settle.
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
    // A process that has ended is no leak.
    let gone = before.difference(after).filter(|item| !item.starts_with("process ")).map(|item| format!("- {item}"));
    after.difference(before).map(|item| format!("+ {item}")).chain(gone).collect()
}

/// Turns a panic of a case into a failure: the runner must survive to clean up.
async fn guarded(case: impl Future<Output = Result<Outcome>>) -> Result<Outcome> {
    let mut case = pin!(case);
    std::future::poll_fn(move |cx| {
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| case.as_mut().poll(cx)));
        polled.unwrap_or_else(|panic| {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("a panic without a message");
            Poll::Ready(Ok(Outcome::Failed(format!("the case panicked: {text}"))))
        })
    })
    .await
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
