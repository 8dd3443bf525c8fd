//! Runs cases: one boot for cases of the same profile and kernel, a time limit for each, and after each a look at what
//! it left in the guest.
//!
//! A case that fails or leaves something behind costs its machine: the next one gets a fresh boot. The runner knows
//! machines only as a [`Guest`], so its own rules are tested without any.

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
    /// Folder for the artifacts of the cases.
    pub artifacts: PathBuf,
    /// How long what a case left may take to go away.
    pub leak_grace: Duration,
    /// Called with the machine of a case that failed, before the machine ends.
    pub on_failure: Option<fn(&mut Ctx<G>) -> Inspection<'_>>,
}

/// What [`Plan::on_failure`] returns.
pub type Inspection<'a> = std::pin::Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs a plan; an `interrupt` ends it, and the rest is reported as not run.
pub async fn run<G: Guest>(lab: Arc<G::Lab>, plan: &Plan<'_, G>, interrupt: impl Future) -> Report {
    let mut report = Report::default();
    let finished = {
        let work = pin!(run_all(lab, plan, &mut report));
        let interrupt = pin!(interrupt);
        tokio::select! {
            () = work => true,
            _ = interrupt => false,
        }
    };
    if !finished {
        let done: BTreeSet<(String, String)> =
            report.entries.iter().map(|entry| (entry.case.clone(), entry.kernel.clone())).collect();
        for (case, kernel) in pairs(plan) {
            if !done.contains(&(case.name.to_owned(), kernel.name().to_owned())) {
                record(&mut report, case, kernel, Verdict::NotRun, Duration::ZERO);
            }
        }
    }
    report
}

/// All cases with their kernels, those that share a boot beside each other.
fn pairs<'a, G: Guest>(plan: &Plan<'a, G>) -> Vec<(&'a Case<G>, Kernel)> {
    let mut profiles: Vec<Profile> = Vec::new();
    for case in &plan.cases {
        if !profiles.contains(&case.profile) {
            profiles.push(case.profile);
        }
    }
    let mut pairs = Vec::new();
    for kernel in &plan.kernels {
        for profile in &profiles {
            let wanted = plan.cases.iter().filter(|case| case.profile == *profile && case.kernels.contains(kernel));
            pairs.extend(wanted.map(|case| (*case, *kernel)));
        }
    }
    pairs
}

/// A machine between two cases.
struct Idle<G> {
    machine: G,
    profile: Profile,
    kernel: Kernel,
}

async fn run_all<G: Guest>(lab: Arc<G::Lab>, plan: &Plan<'_, G>, report: &mut Report) {
    let mut idle: Option<Idle<G>> = None;
    for (boots, (case, kernel)) in pairs(plan).into_iter().enumerate() {
        if let Err(error) = G::kernel(&lab, kernel).await {
            let why = format!("kernel {kernel} cannot be had: {error:#}");
            record(report, case, kernel, Verdict::Ran(Outcome::Skipped(why)), Duration::ZERO);
            continue;
        }
        let suits = |idle: &Idle<G>| idle.profile == case.profile && idle.kernel == kernel;
        let name = format!("{}-{kernel}-{boots}", case.profile.name);
        let machine = match idle.take() {
            Some(found) if suits(&found) => Ok(found.machine),
            other => {
                if let Some(other) = other {
                    other.machine.end().await;
                }
                say::progress(format!("booting {name}"));
                G::boot(&lab, kernel, &case.profile, &name).await
            }
        };
        let begin = Instant::now();
        let mut ran = run_on(machine, &lab, plan, case, kernel).await;
        if ran.died_of_emulation {
            let machine = G::boot(&lab, kernel, &case.profile, &format!("{name}-again")).await;
            ran = run_on(machine, &lab, plan, case, kernel).await;
        }
        idle = ran.machine.map(|machine| Idle { machine, profile: case.profile, kernel });
        record(report, case, kernel, Verdict::Ran(ran.outcome), begin.elapsed());
    }
    if let Some(idle) = idle {
        idle.machine.end().await;
    }
}

fn record<G: Guest>(report: &mut Report, case: &Case<G>, kernel: Kernel, verdict: Verdict, time: Duration) {
    let entry = Entry { case: case.name.to_owned(), kernel: kernel.name().to_owned(), verdict, time };
    say::result(entry.line());
    report.entries.push(entry);
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
    let outcome = match checked(&mut ctx, plan, case).await {
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
async fn checked<G: Guest>(ctx: &mut Ctx<G>, plan: &Plan<'_, G>, case: &Case<G>) -> Result<Outcome> {
    std::fs::create_dir_all(&ctx.artifacts).with_context(|| format!("cannot create {}", ctx.artifacts.display()))?;
    ctx.machine.prepare().await.context("before the case")?;
    let before = ctx.machine.snapshot().await.context("before the case")?.unwrap_or_default();
    let result = tokio::time::timeout(case.limit, guarded((case.run)(ctx))).await;
    let artifacts = ctx.artifacts.clone();
    let collected = ctx.machine.collect(&artifacts).await;
    let outcome = match result {
        Err(_) => return Ok(Outcome::Failed(format!("still running after {} s", case.limit.as_secs()))),
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
