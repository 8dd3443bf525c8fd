//! The daemon: restores the recorded state, listens on its socket, corrects drift, and stops cleanly.
//!
//! Owns: the lock against a second daemon, the socket and its permissions, signals, and notifications to systemd. Stopping
//! leaves everything as it is: tenants keep running, volumes stay mounted, weights stay set.
//!
//! # Who may use the socket
//! Only its permissions decide: mode 0660, owner root, group as given (root by default). A process that can open it can do everything
//! that the daemon can, so that membership of the group is equivalent to being root.
//!
//! # Signals
//! `SIGTERM` and `SIGINT`: no further operation begins, running ones that need only seconds are completed, and the daemon exits; while
//! the host is shutting down, all volumes are unmounted first. `SIGHUP` is ignored.
//! `SIGKILL` is safe at any time: the next start completes or undoes interrupted operations.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::health::HOST;
use bulkhead_sys::cgroup::Mode;
use bulkhead_sys::file::{FileError, LockFile, lock_exclusive};
use bulkhead_sys::probe::HostFacts;
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::carry_out::Executor;
use crate::engine::{Dirs, Engine};
use crate::hold::PERIOD;
use crate::host::Host;
use crate::http;
use crate::observe::Observe;
use crate::service::Service;
use crate::socket::{self, Access};

/// The interval of periodic checks for drift.
const TICK: Duration = Duration::from_secs(2);

/// How long a stopping daemon waits for running operations. Those that take longer are interrupted, which is as safe as
/// `SIGKILL`.
const OPERATIONS_LIMIT: Duration = Duration::from_secs(3);

/// How long unmounting may take when the host shuts down: longer than systemd gives services to stop (90 s), because those keep volumes
/// in use.
const RELEASE_LIMIT: Duration = Duration::from_secs(120);

/// Extensions of systemd's timeout meanwhile: length in microseconds, and interval.
const EXTENSION_US: u32 = 30_000_000;
const EXTENSION_INTERVAL: Duration = Duration::from_secs(10);

/// How long a stopping daemon waits for clients to receive their answers.
const ANSWERS_LIMIT: Duration = Duration::from_secs(1);

/// The options of the daemon's command line.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// The directories of its own files.
    pub dirs: Dirs,
    /// The path of its socket.
    pub socket: PathBuf,
    /// The group that may use the socket: a name of `/etc/group`, or a number. Only root when `None`.
    pub socket_group: Option<String>,
    /// Address that serves `/metrics`, and nothing else, to Prometheus; `None` disables it. It exposes the names of all containers that
    /// do I/O.
    pub metrics: Option<SocketAddr>,
    /// What fails together with the host, for its report.
    pub domain: Option<String>,
    /// For crash tests: the number of steps after which the process aborts ([`crate::carry_out::FAULT_VARIABLE`]).
    pub fault_after: Option<i64>,
}

/// Refuses a host on which Bulkhead cannot work.
///
/// # Errors
/// `PermissionDenied` without root; `Unsupported` without a cgroup v2 hierarchy that has the io controller.
pub fn check_host(facts: &HostFacts) -> Result<(), Fault> {
    if !facts.is_root {
        return Err(Fault::new(
            Code::PermissionDenied,
            "daemon",
            "it needs root to mount volumes and to write to cgroups",
        )
        .hint("start it as root: `systemctl start bulkhead` or `sudo bulkhead daemon`"));
    }
    if facts.cgroup_mode != Mode::V2 {
        let cause = format!("this host uses cgroup {}, but I/O shares require cgroup v2 alone", facts.cgroup_mode);
        return Err(Fault::new(Code::Unsupported, "host", cause).hint(
            "boot with `systemd.unified_cgroup_hierarchy=1` (and without `cgroup_no_v1=`, `cgroup_disable=io`)",
        ));
    }
    if !facts.cgroup_controllers.contains("io") {
        return Err(Fault::new(Code::Unsupported, "host", "its cgroup v2 hierarchy has no io controller")
            .hint(
                "use a kernel with CONFIG_BLK_CGROUP=y, booted without `cgroup_disable=io`, and unmount a cgroup v1 hierarchy that \
                 has taken it as `blkio` (`findmnt -t cgroup`)",
            ));
    }
    Ok(())
}

/// A host that exists only in memory, for tests of other crates: two volume groups, `vg` and `tvg` with a thin pool `thin`.
#[cfg(feature = "sim")]
#[must_use]
pub fn simulated_host() -> Arc<dyn Host> {
    Arc::new(crate::sim::Sim::default().with_group("vg", &[]).with_group("tvg", &["thin"]))
}

/// The observation of that host: always the same.
#[cfg(feature = "sim")]
#[must_use]
pub fn simulated_observation() -> Arc<dyn Observe> {
    Arc::new(crate::sim::Observed::default())
}

/// Runs until `SIGTERM` or `SIGINT`. Call [`check_host`] first. `facts` are shown by `GET /v1/host`.
///
/// # Errors
/// `InUse` if another daemon runs, `InvalidArgument` for a group that does not exist, `Internal` otherwise. Only the start can fail:
/// problems with pools, volumes and tenants do not end the daemon.
pub async fn run(
    options: DaemonOptions,
    host: Arc<dyn Host>,
    observe: Arc<dyn Observe>,
    facts: serde_json::Value,
) -> Result<(), Fault> {
    let on = |kind| {
        signal(kind).map_err(|error| Fault::new(Code::Internal, "daemon", format!("cannot handle signals ({error})")))
    };
    let (terminate, interrupt) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
    // Never read: SIGHUP is ignored through a handler, which helper programs do not inherit.
    let _hangup: Signal = on(SignalKind::hangup())?;
    let stop = async move {
        let (mut terminate, mut interrupt) = (terminate, interrupt);
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
            _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
        }
    };
    run_until(options, host, observe, facts, stop).await
}

/// The same, until `stop` resolves.
///
/// # Errors
/// As [`run`].
pub async fn run_until(
    options: DaemonOptions,
    host: Arc<dyn Host>,
    observe: Arc<dyn Observe>,
    facts: serde_json::Value,
    stop: impl Future<Output = ()>,
) -> Result<(), Fault> {
    let group = options.socket_group.as_deref().map(group_id).transpose()?;
    make_dirs(&options.dirs)?;
    let lock = lock(&options.dirs.run)?;
    let (dirs, fault_after, domain) = (options.dirs.clone(), options.fault_after, options.domain.clone());
    let acting = Arc::clone(&host);
    let reconcile = move || {
        let engine = Engine::new(dirs, Executor::new(acting, fault_after)).in_domain(domain);
        engine.reconcile();
        engine
    };
    let engine = tokio::task::spawn_blocking(reconcile)
        .await
        .map_err(|error| Fault::new(Code::Internal, "daemon", format!("reconciliation failed: {error}")))?;
    let n_problems = engine.problems().len();
    let service = Service::new(engine, facts, observe, options.socket.clone());
    // Before the socket, so that nothing is left behind when the address is taken.
    let metrics = match options.metrics {
        Some(address) => Some(tokio::spawn(serve_metrics(address, service.clone()).await?)),
        None => None,
    };
    let listener = socket::listen(&options.socket, Access::Group(group)).await?;
    let (close, closed) = oneshot::channel::<()>();
    let server = tokio::spawn(http::serve(listener, service.clone(), async move {
        // An error means that the sender is gone: stop as well.
        let _ = closed.await;
    }));
    tracing::info!(socket = %options.socket.display(), n_problems, version = env!("CARGO_PKG_VERSION"), "ready");
    notify_systemd(&[NotifyState::Ready]);
    tokio::select! {
        () = stop => {}
        () = tick(&service) => {}
        () = hold(&service) => {}
        () = watchdog() => {}
    }
    notify_systemd(&[NotifyState::Stopping]);
    // The order matters: no new connections, then no new operations, then the remaining answers.
    let _ = close.send(());
    if timeout(OPERATIONS_LIMIT, service.close()).await.is_err() {
        let interrupted = service.running().join(", ");
        tracing::warn!(interrupted, "operations did not finish in time: the next start completes or undoes them");
    }
    if timeout(ANSWERS_LIMIT, server).await.is_err() {
        tracing::warn!("clients kept their connections open; closing them");
    }
    if let Some(metrics) = metrics {
        metrics.abort();
    }
    let goes_down = tokio::task::spawn_blocking(move || host.is_going_down()).await.unwrap_or_default();
    if goes_down {
        release(&service).await;
    }
    socket::remove(&options.socket);
    drop(lock);
    if !goes_down {
        tracing::info!("stopped; tenants keep running and volumes stay mounted");
    }
    Ok(())
}

/// Unmounts all volumes, before the file systems of their pools are unmounted.
async fn release(service: &Service) {
    let began = Instant::now();
    let release = service.release(RELEASE_LIMIT);
    tokio::pin!(release);
    let mut extensions = interval(EXTENSION_INTERVAL);
    let left = loop {
        tokio::select! {
            left = &mut release => break left,
            _ = extensions.tick() => notify_systemd(&[NotifyState::ExtendTimeoutUsec(EXTENSION_US)]),
        }
    };
    for fault in &left {
        tracing::error!(object = %fault.object, cause = %fault.cause, "not unmounted before the host shuts down");
    }
    tracing::info!(
        seconds = began.elapsed().as_secs_f64(),
        left = left.len(),
        "the host is shutting down: volumes are unmounted"
    );
}

/// Creates the daemon's directories.
///
/// # Errors
/// If they cannot be created.
pub fn make_dirs(dirs: &Dirs) -> Result<(), Fault> {
    make_dir(&dirs.state, 0o700)?;
    // The members of the socket's group must be able to reach the socket; its subdirectories are 0700.
    make_dir(&dirs.run, 0o755)
}

/// Listens for Prometheus; the returned future answers.
async fn serve_metrics(
    address: SocketAddr,
    service: Service,
) -> Result<impl Future<Output = ()> + Send + 'static, Fault> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| io_fault(&error, format!("address {address}"), "listen for Prometheus"))?;
    tracing::info!(%address, "serving /metrics");
    Ok(async move {
        let reporter = service.clone();
        if let Err(error) = axum::serve(listener, http::metrics_router(service)).await {
            let evidence = format!("/metrics is no longer served ({error})");
            let finding = Finding::new(FindingId::MetricsNotServed, HOST, evidence);
            reporter.conditions().set(finding.advise("restart the daemon"));
        }
    })
}

async fn tick(service: &Service) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    // The first tick comes at once, right after reconciliation.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        service.tick();
    }
}

async fn hold(service: &Service) {
    let mut periods = interval(PERIOD);
    periods.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        periods.tick().await;
        service.hold_step().await;
    }
}

/// Keeps systemd's watchdog satisfied, if it is enabled. Long operations do not delay this: they run on other threads.
async fn watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let mut beats = interval(limit / 2);
    loop {
        beats.tick().await;
        notify_systemd(&[NotifyState::Watchdog]);
    }
}

fn notify_systemd(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify systemd of the daemon's state");
    }
}

fn make_dir(path: &Path, mode: u32) -> Result<(), Fault> {
    let made = if path.is_dir() {
        Ok(())
    } else {
        std::fs::create_dir_all(path)
            .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)))
    };
    made.map_err(|error| io_fault(&error, format!("directory {}", path.display()), "create it"))
}

pub(crate) fn io_fault(error: &io::Error, object: String, what: &str) -> Fault {
    Fault::new(Code::of_io(error.kind()), object, format!("cannot {what} ({error})"))
}

fn lock(run_dir: &Path) -> Result<LockFile, Fault> {
    let path = run_dir.join("daemon.lock");
    lock_exclusive(&path).map_err(|error| match error {
        FileError::AlreadyLocked { pid, .. } => {
            let who = pid.map_or_else(String::new, |pid| format!(" with process id {pid}"));
            Fault::new(
                Code::InUse,
                "daemon",
                format!("another daemon is already running{who} (it holds {})", path.display()),
            )
            .hint("use that one, or stop it first with `systemctl stop bulkhead`")
        }
        error => {
            let source = std::error::Error::source(&error).map_or_else(String::new, |source| format!(": {source}"));
            Fault::new(Code::Internal, format!("lock file {}", path.display()), format!("{error}{source}"))
        }
    })
}

/// The number of a group. Only `/etc/group` is read, no directory services.
fn group_id(group: &str) -> Result<u32, Fault> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let object = format!("group {group:?}");
    let list =
        std::fs::read_to_string("/etc/group").map_err(|error| io_fault(&error, object.clone(), "read /etc/group"))?;
    group_in(&list, group).ok_or_else(|| {
        Fault::new(Code::InvalidArgument, object, "there is no such group in /etc/group")
            .hint(format!("create it: `groupadd --system {group}`, or give a group number"))
    })
}

fn group_in(list: &str, group: &str) -> Option<u32> {
    list.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name_and_number() {
        let list = "root:x:0:\n# comment\nbulkhead:x:987:alice,bob\nbroken\n";
        assert_eq!(group_in(list, "bulkhead"), Some(987));
        assert_eq!((group_in(list, "broken"), group_in(list, "nobody")), (None, None));
        assert_eq!(group_id("12"), Ok(12));
        assert_eq!(group_id("no such group").map_err(|fault| fault.code), Err(Code::InvalidArgument));
    }
}
