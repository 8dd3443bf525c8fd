//! Observation: a thread that polls the tracer while there are requests, and resolves the names of what it reports.
//!
//! Owns: the tracers (`bulkhead_sys::bpf`; XFS has one of its own), loading them (once, at the first request), attaching
//! and detaching them; the names of cgroups and file systems. Does not: turn counts into charges or blame
//! (`bulkhead_core::observe`), or write to the host: it makes only scratch file systems in memory, for the self-tests.
//!
//! Nothing runs in the kernel without requests: each one keeps the programs attached for a while.

mod names;
mod runtimes;
mod waits;
mod xfs;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bulkhead_api::wire::Observation;
use bulkhead_core::error::{Code, Fault, chain};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::observe::Observer;
use bulkhead_core::observe::limits::{self, finding};
use bulkhead_core::observe::naming::{Names, activity};
use bulkhead_core::observe::record::{Batch, Kind};
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_sys::bpf::{BpfError, Method, Tracer};
use bulkhead_sys::process;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::scratch::{Scratch, ScratchError};

use self::names::Namer;
pub(crate) use self::names::containers;
use self::waits::wait_list;
use self::xfs::Xfs;
use crate::conditions::log;

/// The poll interval: short enough that the tracer's ring buffer does not overrun.
const LOOK: Duration = Duration::from_millis(200);
/// How often names are looked up.
const NAMES: Duration = Duration::from_secs(2);
/// The same when something without a name occurs.
const NEW_NAMES: Duration = Duration::from_millis(400);
/// How long a request keeps the programs attached: longer than the default interval between Prometheus' scrapes (60 s).
pub const LEASE: Duration = Duration::from_secs(150);
/// How long loading may take (it is slow where the processor is emulated).
const LOAD_LIMIT: Duration = Duration::from_secs(180);
/// How long after a failure a request tries again.
const RETRY: Duration = Duration::from_secs(10);
/// Size of the self-test's journal: the smallest that jbd2 takes, and some.
const SELF_TEST_JOURNAL: Bytes = Bytes(16 << 20);

/// A source of observations: the [`Observatory`], and a fixed answer in tests.
pub trait Observe: Send + Sync + std::fmt::Debug {
    /// The observation up to now, with the longest waits of the last `waits` (none for zero; they are kept for 5
    /// minutes). May block while the observation starts.
    ///
    /// # Errors
    /// `Unsupported` with the reason when this host cannot be observed, `Unavailable` when it takes too long, or after
    /// [`Observe::stop`].
    fn observe(&self, waits: Duration) -> Result<Observation, Fault>;

    /// Known limits of the observation; does not start one.
    fn findings(&self) -> Vec<Finding>;

    /// Answers waiting and further requests with an error.
    fn stop(&self) {}
}

/// Observes on a thread of its own. Dropping this ends the thread and unloads the programs.
#[derive(Debug)]
pub struct Observatory {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted_until: Option<Instant>,
    stop: bool,
    /// Requested and completed polls: a poll answers the requests from before its start.
    asked: u64,
    answered: u64,
    /// Why there are no polls.
    failure: Option<(Instant, Fault)>,
    /// Why the last poll failed, until one succeeds; it is logged once.
    last_failure: Option<Fault>,
    observer: Observer,
    names: Names,
    method: Option<Method>,
    findings: Vec<Finding>,
    observed: Duration,
    table_entries: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of the thread leaves sums that lack at most one poll; the failure is reported as well.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observatory {
    /// For this host. Nothing is loaded yet.
    #[must_use]
    pub fn new(roots: Roots) -> Self {
        let shared = Arc::new(Shared::default());
        let worker = Arc::clone(&shared);
        let spawned = std::thread::Builder::new().name("observe".to_owned()).spawn(move || {
            let guard = Ended(&worker);
            Worker::new(roots, &worker).run();
            drop(guard);
        });
        if let Err(error) = &spawned {
            let fault = Fault::new(Code::Internal, "observation", format!("cannot start its thread ({error})"));
            shared.lock().failure = Some((Instant::now(), fault));
        }
        Self { shared, thread: spawned.ok() }
    }

    fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Observe for Observatory {
    fn observe(&self, waits: Duration) -> Result<Observation, Fault> {
        let shared = &*self.shared;
        let mut state = shared.lock();
        state.wanted_until = Some(Instant::now() + LEASE);
        state.asked += 1;
        let number = state.asked;
        if state.failure.as_ref().is_some_and(|(when, _)| when.elapsed() >= RETRY) && self.is_alive() {
            state.failure = None;
        }
        shared.changed.notify_all();
        let deadline = Instant::now() + LOAD_LIMIT;
        while state.answered < number {
            if state.stop {
                return Err(Fault::new(Code::Unavailable, "observation", "the daemon is stopping"));
            }
            if let Some((_, fault)) = &state.failure {
                return Err(fault.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Fault::new(Code::Unavailable, "observation", "the BPF programs are still being loaded")
                    .hint("try again later"));
            }
            state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let seen = activity(state.observer.totals(), state.observer.pending_bytes(), &state.names);
        let (now_ns, within_ns) = (process::monotonic_ns(), u64::try_from(waits.as_nanos()).unwrap_or(u64::MAX));
        let longest = || wait_list(&state.observer.longest_waits(now_ns, within_ns), now_ns, &state.names);
        Ok(Observation {
            waits: (!waits.is_zero()).then(longest),
            observed_seconds: state.observed.as_secs_f64(),
            method: state.method.map_or("", Method::word).to_owned(),
            findings: state.findings.clone(),
            table_entries: state.table_entries,
            ..Observation::new(seen)
        })
    }

    fn findings(&self) -> Vec<Finding> {
        let state = self.shared.lock();
        let failure = state.failure.as_ref().map(|(_, fault)| fault).or(state.last_failure.as_ref());
        let failure = failure.map(|fault| limits::not_observed(fault.clone()));
        let lost = limits::losses(state.observer.totals()).finding();
        failure.into_iter().chain(state.findings.iter().cloned()).chain(lost).collect()
    }

    fn stop(&self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Observatory {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // Its panic has been logged already.
            let _ = thread.join();
        }
    }
}

/// Reports the end of the thread, also after a panic.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let fault = Fault::new(Code::Internal, "observation", "its thread has ended")
            .hint("restart the daemon; if that was a panic, report it with the daemon's log");
        self.0.lock().failure = Some((Instant::now(), fault));
        self.0.changed.notify_all();
    }
}

/// The thread's own state.
struct Worker<'a> {
    roots: Roots,
    shared: &'a Shared,
    tracer: Option<Tracer>,
    xfs: Xfs,
    namer: Namer,
    /// The result of the tracer's self-test.
    findings: Vec<Finding>,
    last_poll: Option<Instant>,
    last_names: Option<Instant>,
}

impl<'a> Worker<'a> {
    fn new(roots: Roots, shared: &'a Shared) -> Self {
        let namer = Namer::new(roots.clone());
        let xfs = Xfs::default();
        Self { roots, shared, tracer: None, xfs, namer, findings: Vec::new(), last_poll: None, last_names: None }
    }

    fn run(&mut self) {
        while self.wait() {
            if let Err(fault) = self.poll() {
                self.rest();
                let mut state = self.shared.lock();
                if state.last_failure.as_ref() != Some(&fault) {
                    log(&limits::not_observed(fault.clone()));
                }
                state.last_failure = Some(fault.clone());
                state.failure = Some((Instant::now(), fault));
                drop(state);
                self.shared.changed.notify_all();
            }
        }
    }

    /// Waits until a poll is due; false when it has to stop.
    fn wait(&mut self) -> bool {
        loop {
            let mut state = self.shared.lock();
            if state.stop {
                return false;
            }
            let now = Instant::now();
            let is_leased = state.wanted_until.is_some_and(|until| now < until);
            let wanted = state.failure.is_none() && (is_leased || state.answered < state.asked);
            if !wanted {
                drop(state);
                self.rest();
                state = self.shared.lock();
                let has_waiting_query = state.failure.is_none() && state.answered < state.asked;
                if !state.stop && !has_waiting_query {
                    drop(self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner));
                }
                continue;
            }
            let due = self.last_poll.map_or(Duration::ZERO, |last| (last + LOOK).saturating_duration_since(now));
            if due.is_zero() || state.answered < state.asked {
                return true;
            }
            drop(self.shared.changed.wait_timeout(state, due).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Stops the programs when there are no requests.
    fn rest(&mut self) {
        if let Some(tracer) = self.tracer.as_mut().filter(|tracer| tracer.is_attached()) {
            tracer.detach();
            // Events since the last poll, while the shares of its commits still exist.
            self.xfs.detach();
            match tracer.poll() {
                Ok(mut batch) => {
                    batch.merge(self.xfs.poll());
                    self.shared.lock().observer.finish(batch);
                }
                Err(error) => tracing::warn!(%error, "the last poll failed"),
            }
        }
        // At the next request, a missing file system or module may exist.
        if self.xfs.has_failed() || self.tracer.as_ref().is_some_and(|tracer| !tracer.has_ext4()) {
            (self.tracer, self.xfs) = (None, Xfs::default());
        }
        self.last_poll = None;
    }

    fn poll(&mut self) -> Result<(), Fault> {
        let asked = self.shared.lock().asked;
        let mut tracer = match self.tracer.take() {
            Some(tracer) => tracer,
            None => self.load()?,
        };
        let polled = self.poll_tracer(&mut tracer);
        self.tracer = Some(tracer);
        polled.map_err(|error| fault(&error))?;
        let mut state = self.shared.lock();
        (state.answered, state.last_failure) = (asked, None);
        drop(state);
        self.shared.changed.notify_all();
        Ok(())
    }

    fn poll_tracer(&mut self, tracer: &mut Tracer) -> Result<(), BpfError> {
        let began = Instant::now();
        if !tracer.is_attached() {
            self.names(tracer)?;
            tracer.attach()?;
            self.xfs.attach();
            self.shared.lock().observer.observation_started(process::monotonic_ns());
        }
        let mut batch = tracer.poll()?;
        batch.merge(self.xfs.poll());
        let mut state = self.shared.lock();
        if let Some(last) = self.last_poll.replace(began) {
            state.observed += began - last;
        }
        state.table_entries = (batch.shares.len() + batch.writes.len() + batch.services.len()) as u64;
        let unknown = batch.records.len() + batch.shares.len() > 0 && self.namer.has_unknown(&batch);
        let used_up = state.observer.step(batch);
        drop(state);
        tracer.evict_shares(&used_up)?;
        self.xfs.evict_shares(&used_up);
        let due = if unknown { NEW_NAMES } else { NAMES };
        if self.last_names.is_none_or(|last| last.elapsed() >= due) {
            self.names(tracer)?;
        }
        Ok(())
    }

    /// Resolves names, and evicts cgroups and file systems that are gone.
    fn names(&mut self, tracer: &Tracer) -> Result<(), BpfError> {
        self.last_names = Some(Instant::now());
        let state = self.shared.lock();
        let (devices, cgroups) = (state.observer.devices(), state.observer.cgroups());
        drop(state);
        let changes = self.namer.refresh(&devices, &cgroups);
        // Including cgroups that have been gone for longer: their last pages may be written only now.
        if !changes.gone.is_empty() {
            tracer.evict_cgroups(&changes.gone)?;
            self.xfs.evict_cgroups(&changes.gone);
        }
        self.xfs.refresh(&self.roots, &changes.xfs, tracer.is_attached());
        let mut state = self.shared.lock();
        state.observer.sums_evicted(&changes.gone);
        for (gone, into) in changes.fold {
            state.observer.fold(gone, into);
        }
        state.observer.set_file_systems(changes.disks);
        if let Some(tree) = changes.tree {
            state.observer.set_tree(tree);
        }
        state.names = self.namer.names();
        let findings: Vec<Finding> =
            self.findings.iter().cloned().chain(self.xfs.findings()).chain(changes.findings).collect();
        findings.iter().filter(|finding| !state.findings.contains(finding)).for_each(log);
        state.findings = findings;
        drop(state);
        tracer.add_journals(&changes.journals)
    }

    /// Loads the programs of the best method that works here.
    fn load(&mut self) -> Result<Tracer, Fault> {
        let began = Instant::now();
        let (tracer, findings) = match load(&self.roots, Method::TypedTracepoints) {
            Ok(loaded) => loaded,
            Err(typed) => match load(&self.roots, Method::PlainTracepoints) {
                Ok((tracer, mut findings)) => {
                    let evidence = format!(
                        "only plain tracepoints can be used, without type information: {}; a container that forces commits early \
                         is not charged for the blocks that are logged again, and device time is not shown",
                        typed.cause
                    );
                    findings.insert(0, finding(FindingId::ObservationUntyped, evidence));
                    (tracer, findings)
                }
                // All methods lack the same.
                Err(plain) if plain == typed => return Err(typed),
                Err(plain) => {
                    let cause = format!("{}; nor can plain tracepoints be used: {}", typed.cause, plain.cause);
                    return Err(Fault { cause, ..typed });
                }
            },
        };
        let (method, took_ms) = (tracer.method(), began.elapsed().as_millis());
        tracing::info!(method = method.word(), took_ms, "the BPF programs are loaded");
        self.findings = findings;
        let mut state = self.shared.lock();
        state.method = Some(method);
        state.observer.tracer_loaded();
        drop(state);
        Ok(tracer)
    }
}

/// Loads the programs of a method and runs their self-test. Also returns what they cannot observe here.
fn load(roots: &Roots, method: Method) -> Result<(Tracer, Vec<Finding>), Fault> {
    let mut tracer = Tracer::load(roots, method).map_err(|error| fault(&error))?;
    let mut findings = Vec::new();
    let tested = if tracer.has_ext4() { self_test(roots, &mut tracer) } else { Ok(()) };
    if !tracer.has_ext4() {
        let evidence = "ext4: not attributed: ext4 was not loaded when the observation began";
        findings.push(finding(FindingId::Ext4NotObserved, evidence));
    }
    // With plain tracepoints that is always the case.
    if let Some(cause) = tracer.without_functions().filter(|_| method == Method::TypedTracepoints) {
        let evidence = format!(
            "a container that forces commits early is not charged for the blocks that are logged again, because the kernel \
             refuses fentry programs: {cause}"
        );
        findings.push(finding(FindingId::EarlyCommitsNotCharged, evidence));
    }
    match tested {
        Ok(()) => {}
        Err(SelfTest::NotMade(error)) => {
            let evidence = format!("the self-test could not be run: {}", chain(&error));
            findings.push(finding(FindingId::SelfTestNotMade, evidence));
        }
        Err(SelfTest::Failed(cause)) => {
            return Err(Fault::new(Code::Unsupported, "observation", cause)
                .hint("report this with the kernel's version (`uname -a`)"));
        }
        Err(SelfTest::Bpf(error)) => return Err(fault(&error)),
    }
    Ok((tracer, findings))
}

enum SelfTest {
    NotMade(ScratchError),
    Failed(String),
    Bpf(BpfError),
}

/// Writes to a scratch file system and compares what is charged with what its journal's device saw.
fn self_test(roots: &Roots, tracer: &mut Tracer) -> Result<(), SelfTest> {
    let scratch = Scratch::ext4(roots, SELF_TEST_JOURNAL, &[], &[]).map_err(SelfTest::NotMade)?;
    let failed = |cause: String| SelfTest::Failed(format!("its self-test failed: {cause}"));
    let written = || scratch.journal_written(roots).map_err(|error| failed(error.to_string()));
    scratch.settle().map_err(|error| failed(format!("cannot write to the scratch file system ({error})")))?;
    tracer.attach().map_err(SelfTest::Bpf)?;
    let before = written()?;
    scratch.exercise().map_err(|error| failed(format!("cannot write to the scratch file system ({error})")))?;
    let saw = written()? - before;
    let batch = tracer.poll().map_err(SelfTest::Bpf)?;
    tracer.detach();
    let Charged { owned, unowned, pending } = charged(batch, scratch.fs_dev());
    // On a slow host the journal's superblock may be written after the last commit: the next one would pay for it.
    if owned + pending != saw || unowned != 0 {
        let cause = format!(
            "the journal's device received {saw} bytes, but {owned} were charged to their owners, {unowned} have no owner, and {pending} \
             are waiting for a commit"
        );
        return Err(failed(cause));
    }
    tracer.reset().map_err(SelfTest::Bpf)
}

/// Journal bytes of a file system.
struct Charged {
    owned: u64,
    unowned: u64,
    /// What the next commit will be charged.
    pending: u64,
}

fn charged(batch: Batch, dev: DevNo) -> Charged {
    let mut observer = Observer::default();
    observer.set_file_systems([(dev, Vec::new())].into());
    observer.finish(batch);
    let charges = observer.totals().journal_bytes.iter();
    let ours = charges.filter(|((_, of, kind), _)| *of == dev && *kind == Kind::Commit);
    let (owned, unowned): (Vec<_>, Vec<_>) = ours.partition(|((owner, _, _), _)| owner.is_some());
    let sum = |charges: Vec<(_, &u64)>| charges.into_iter().map(|(_, bytes)| *bytes).sum::<u64>();
    let pending = observer.pending_bytes().filter(|(of, _)| *of == dev).map(|(_, bytes)| bytes).sum();
    Charged { owned: sum(owned), unowned: sum(unowned), pending }
}

fn fault(error: &BpfError) -> Fault {
    let (code, hint) = match error {
        BpfError::NoBtf { .. } => {
            (Code::Unsupported, "use a kernel with CONFIG_DEBUG_INFO_BTF=y (distributions have it)")
        }
        BpfError::NoTracefs { .. } => {
            (Code::Unsupported, "mount it (`mount -t tracefs tracefs /sys/kernel/tracing`), and try again")
        }
        BpfError::NoField { .. } => (Code::Unsupported, ""),
        BpfError::NoExt4 => (Code::Unsupported, "mount an ext4 or XFS file system, or `modprobe ext4`, then try again"),
        BpfError::Load { .. } | BpfError::Attach { .. } => (Code::Unsupported, ""),
        BpfError::Read { .. } | BpfError::Map { .. } => (Code::Internal, ""),
    };
    Fault::new(code, "observation", chain(error)).hint(hint)
}
