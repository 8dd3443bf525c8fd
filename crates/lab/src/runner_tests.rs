//! Tests of the runner on a fake machine: failures, leaks, time limits and panics are recognised, and boots are shared
//! by exactly the cases that may share them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, bail};

use super::{Plan, run};
use crate::case::{Case, Guest, Outcome, Profile};
use crate::clock::Clock;
use crate::init::Init;
use crate::kernels::Kernel;
use crate::report::{Report, Verdict};

/// Records boots and ends of machines.
#[derive(Debug, Default)]
struct FakeLab {
    events: Mutex<Vec<String>>,
    missing_kernel: Option<Kernel>,
    /// Notified by a case that waits or hangs.
    endless: Arc<tokio::sync::Notify>,
}

#[derive(Debug)]
struct FakeMachine {
    lab: Arc<FakeLab>,
    name: String,
    items: BTreeSet<String>,
    running: bool,
    is_broken: bool,
}

impl Guest for FakeMachine {
    type Lab = Arc<FakeLab>;

    async fn kernel(lab: &Arc<FakeLab>, kernel: Kernel) -> Result<()> {
        if lab.missing_kernel == Some(kernel) {
            bail!("the mirror does not answer");
        }
        Ok(())
    }

    async fn boot(lab: &Arc<FakeLab>, kernel: Kernel, profile: &Profile, _name: &str) -> Result<Self> {
        let name = format!("{}/{kernel}", profile.name);
        lab.events.lock().unwrap().push(format!("boot {name}"));
        Ok(Self {
            lab: Arc::clone(lab),
            name,
            items: BTreeSet::from(["mount /".to_owned()]),
            running: true,
            is_broken: false,
        })
    }

    async fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    async fn snapshot(&mut self) -> Result<Option<BTreeSet<String>>> {
        Ok(self.running.then(|| self.items.clone()))
    }

    async fn collect(&mut self, _artifacts: &Path) -> Result<()> {
        Ok(())
    }

    fn fault(&self) -> impl Future<Output = String> + 'static + use<> {
        let is_faulty = self.name.starts_with("faulty/");
        async move { if is_faulty { "the disk is gone".to_owned() } else { std::future::pending().await } }
    }

    fn hit_emulator_bug(&self) -> bool {
        self.is_broken
    }

    async fn end(self) {
        self.lab.events.lock().unwrap().push(format!("end {}", self.name));
    }
}

const SMALL: Profile = Profile {
    name: "small",
    clock: Clock::Virtual,
    init: Init::Script,
    disks: &[],
    memory_mib: 1,
    cpus: 1,
    kernel_arguments: "",
};
const BIG: Profile = Profile { name: "big", ..SMALL };

fn case(name: &'static str, run: fn(&mut super::Ctx<FakeMachine>) -> crate::case::Running<'_>) -> Case<FakeMachine> {
    Case { name, about: "", kernels: &Kernel::ALL, profile: SMALL, limit: Duration::from_millis(200), run }
}

fn passing(name: &'static str) -> Case<FakeMachine> {
    case(name, |_| Box::pin(async { Ok(Outcome::Passed) }))
}

/// Runs cases on the main kernel; returns the report, and the boots and ends of machines.
async fn run_cases(cases: &[Case<FakeMachine>]) -> (Report, Vec<String>) {
    run_in(FakeLab::default(), cases, std::future::pending::<()>()).await
}

async fn run_in(lab: FakeLab, cases: &[Case<FakeMachine>], interrupt: impl Future) -> (Report, Vec<String>) {
    run_in_lanes(1, lab, cases, interrupt).await
}

async fn run_in_lanes(
    lanes: usize,
    lab: FakeLab,
    cases: &[Case<FakeMachine>],
    interrupt: impl Future,
) -> (Report, Vec<String>) {
    run_with_quiet(std::future::ready(()), lanes, lab, cases, interrupt).await
}

async fn run_with_quiet(
    quiet: impl Future,
    lanes: usize,
    lab: FakeLab,
    cases: &[Case<FakeMachine>],
    interrupt: impl Future,
) -> (Report, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let lab = Arc::new(lab);
    let plan = Plan {
        cases: cases.iter().collect(),
        kernels: vec![Kernel::V6_12],
        clock: None,
        lanes,
        artifacts: dir.path().to_owned(),
        leak_grace: Duration::ZERO,
        on_failure: None,
    };
    let report = run(Arc::new(Arc::clone(&lab)), &plan, quiet, interrupt).await;
    let events = lab.events.lock().unwrap().clone();
    (report, events)
}

fn failure(report: &Report, index: usize) -> &str {
    match &report.entries[index].verdict {
        Verdict::Ran(Outcome::Failed(why)) => why,
        other => panic!("{other:?} instead of a failure"),
    }
}

#[tokio::test]
async fn a_case_that_hits_an_emulator_bug_is_retried_once() {
    let faulty = case("faulty", |ctx| {
        let boots = ctx.lab.events.lock().unwrap().len();
        ctx.machine.is_broken = boots == 1;
        Box::pin(async move { if boots == 1 { bail!("the machine ended") } else { Ok(Outcome::Passed) } })
    });
    let broken = case("broken", |ctx| {
        ctx.machine.is_broken = true;
        Box::pin(async { bail!("the machine ended") })
    });
    let wrong = case("wrong", |_| Box::pin(async { bail!("a wrong figure") }));
    let (report, events) = run_cases(&[faulty, broken, wrong]).await;
    assert_eq!(report.summary(), "1 passed, 2 failed, 0 skipped");
    let boots = events.iter().filter(|event| event.starts_with("boot")).count();
    assert_eq!(boots, 4, "{events:?}");
}

#[tokio::test]
async fn the_case_with_the_longest_limit_starts_first() {
    let mut long = passing("long");
    long.limit *= 2;
    let (report, _) = run_cases(&[passing("a"), long, passing("b")]).await;
    let order: Vec<&str> = report.entries.iter().map(|entry| entry.case.as_str()).collect();
    assert_eq!(order, ["long", "a", "b"]);
}

#[tokio::test]
async fn machines_on_the_wall_clock_run_after_all_others() {
    let mut alone = passing("alone");
    alone.profile = Profile { name: "alone", clock: Clock::Wall, ..SMALL };
    let slow = case("slow", |_| {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(Outcome::Passed)
        })
    });
    let cases = [alone, slow, passing("b"), passing("c")];
    let (report, events) = run_in_lanes(2, FakeLab::default(), &cases, std::future::pending::<()>()).await;
    let order: Vec<&str> = report.entries.iter().map(|entry| entry.case.as_str()).collect();
    assert_eq!(order, ["b", "c", "slow", "alone"]);
    let machines = ["boot small/6.12", "boot small/6.12", "end small/6.12", "end small/6.12"];
    assert_eq!(events, [&machines[..], &["boot alone/6.12", "end alone/6.12"]].concat());
}

#[tokio::test]
async fn a_disk_without_its_server_is_a_failure() {
    let mut stuck = case("stuck", |_| Box::pin(std::future::pending()));
    stuck.profile = Profile { name: "faulty", ..SMALL };
    let (report, _) = run_cases(&[stuck, passing("next")]).await;
    assert_eq!(failure(&report, 0), "the disk is gone");
    assert_eq!(report.summary(), "1 passed, 1 failed, 0 skipped");
}

#[tokio::test]
async fn cases_of_one_profile_share_a_boot() {
    let mut other = passing("c");
    other.profile = BIG;
    let (report, events) = run_cases(&[passing("a"), other, passing("b")]).await;
    assert_eq!(report.summary(), "3 passed, 0 failed, 0 skipped");
    assert_eq!(events, ["boot small/6.12", "end small/6.12", "boot big/6.12", "end big/6.12"]);
}

#[tokio::test]
async fn a_leak_fails_the_case_and_costs_the_machine() {
    let leaking = case("leaking", |ctx| {
        Box::pin(async {
            ctx.machine.items.insert("loop loop0 /x".to_owned());
            ctx.machine.items.remove("mount /");
            Ok(Outcome::Passed)
        })
    });
    let (report, events) = run_cases(&[leaking, passing("next")]).await;
    let why = failure(&report, 0);
    assert!(why.contains("+ loop loop0 /x") && why.contains("- mount /"), "{why}");
    assert_eq!(report.summary(), "1 passed, 1 failed, 0 skipped");
    assert_eq!(events, ["boot small/6.12", "end small/6.12", "boot small/6.12", "end small/6.12"]);
}

#[tokio::test]
async fn failures_errors_panics_and_timeouts_are_distinguished() {
    let cases = [
        case("failure", |_| Box::pin(async { Ok(Outcome::Failed("too slow".into())) })),
        case("error", |_| Box::pin(async { bail!("no such disk") })),
        case("panic", |_| Box::pin(async { panic!("index out of range") })),
        case("endless", |_| Box::pin(std::future::pending())),
        case("skipped", |_| Box::pin(async { Ok(Outcome::Skipped("no ublk".into())) })),
    ];
    let (report, events) = run_cases(&cases).await;
    assert_eq!(failure(&report, 0), "too slow");
    assert_eq!(failure(&report, 1), "no such disk");
    assert_eq!(failure(&report, 2), "the case panicked: index out of range");
    assert!(failure(&report, 3).starts_with("still running after"));
    assert_eq!(report.summary(), "0 passed, 4 failed, 1 skipped");
    assert!(!report.good());
    assert_eq!(events.iter().filter(|event| event.starts_with("boot")).count(), 5, "{events:?}");
}

#[tokio::test]
async fn a_stopped_machine_is_replaced() {
    let crash = case("crash", |ctx| {
        Box::pin(async {
            ctx.machine.running = false;
            Ok(Outcome::Passed)
        })
    });
    let (report, events) = run_cases(&[crash, passing("next")]).await;
    assert_eq!(report.summary(), "2 passed, 0 failed, 0 skipped");
    assert_eq!(events.iter().filter(|event| event.starts_with("boot")).count(), 2, "{events:?}");
}

#[tokio::test]
async fn an_unavailable_kernel_skips_its_cases() {
    let lab = FakeLab { missing_kernel: Some(Kernel::V6_12), ..FakeLab::default() };
    let (report, _) = run_in(lab, &[passing("a")], std::future::pending::<()>()).await;
    assert_eq!(report.summary(), "0 passed, 0 failed, 1 skipped");
    assert!(report.entries[0].line().contains("the mirror does not answer"));
}

#[tokio::test]
async fn the_wall_clock_waits_until_the_host_is_quiet() {
    let mut alone = passing("alone");
    alone.profile = Profile { name: "alone", clock: Clock::Wall, ..SMALL };
    let mut last = passing("last");
    last.run = |ctx| {
        ctx.lab.endless.notify_one();
        Box::pin(async { Ok(Outcome::Passed) })
    };
    let lab = FakeLab::default();
    let is_last = Arc::clone(&lab.endless);
    let (report, _) =
        run_with_quiet(std::future::pending::<()>(), 1, lab, &[alone, passing("beside"), last], is_last.notified())
            .await;
    assert_eq!((report.summary().as_str(), report.not_run()), ("2 passed, 0 failed, 0 skipped", 1));
    assert_eq!(report.entries.last().map(|entry| entry.case.as_str()), Some("alone"));
}

#[tokio::test]
async fn an_interrupt_leaves_the_rest_not_run() {
    let mut cases = [passing("first"), passing("endless"), passing("last")];
    cases[1].run = |ctx| {
        ctx.lab.endless.notify_one();
        Box::pin(std::future::pending())
    };
    cases.iter_mut().for_each(|case| case.limit = Duration::from_secs(600));
    let lab = FakeLab::default();
    let endless = Arc::clone(&lab.endless);
    let (report, _) = run_in(lab, &cases, endless.notified()).await;
    assert_eq!(report.summary(), "1 passed, 0 failed, 0 skipped");
    assert_eq!(report.not_run(), 2);
}
