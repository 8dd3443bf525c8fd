//! `bulkhead daemon`: sets up the log and the options, and runs `bulkhead_engine::daemon`.

use std::path::PathBuf;
use std::sync::Arc;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::health::HOST;
use bulkhead_engine::carry_out::FAULT_VARIABLE;
use bulkhead_engine::daemon::{self, DaemonOptions};
use bulkhead_engine::engine::Dirs;
use bulkhead_engine::host::Host as _;
use bulkhead_engine::kernel::Kernel;
use bulkhead_engine::observe::Observatory;
use bulkhead_engine::servers;
use bulkhead_sys::probe::probe;
use bulkhead_sys::process;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::systemd;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::{DaemonArgs, LogFormat};

/// Environment variable that sets the log level, for example `debug` or `bulkhead_engine=debug,info`.
const LOG_VARIABLE: &str = "BULKHEAD_LOG";

/// Runs the daemon until a signal stops it.
///
/// # Errors
/// Those of [`daemon::run`], and an unsupported host.
pub(crate) fn run(args: DaemonArgs, socket: PathBuf) -> Result<(), Fault> {
    start_log(args.log_format)?;
    let fault_after = match std::env::var(FAULT_VARIABLE) {
        Ok(text) => Some(text.parse().map_err(|_| {
            Fault::new(Code::InvalidArgument, FAULT_VARIABLE, format!("{text:?} is not a number of steps"))
        })?),
        Err(_) => None,
    };
    let facts = probe(&Roots::host());
    daemon::check_host(&facts)?;
    let internal = |error: &dyn std::fmt::Display| Fault::new(Code::Internal, "daemon", error);
    let host_facts = serde_json::to_value(&facts).map_err(|error| internal(&error))?;
    let options = DaemonOptions {
        dirs: Dirs { state: args.state_dir, run: args.run_dir },
        socket,
        socket_group: args.socket_group,
        metrics: args.metrics,
        domain: args.domain,
        fault_after,
    };
    daemon::make_dirs(&options.dirs)?;
    if let Err(error) = process::raise_open_files() {
        tracing::warn!(%error, "cannot raise the limit of open files; the default suffices for about 200 volumes");
    }
    // Comes first, because later steps may wait for a volume whose server is gone.
    let kernel = Arc::new(Kernel::host().with_requests(args.volume_requests).with_processes());
    facts.findings.into_iter().chain(missing_bus()).for_each(|finding| kernel.conditions().set(finding));
    servers::watch_servers(Arc::clone(&kernel))?;
    let observe = Arc::new(Observatory::new(Roots::host()));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| internal(&error))?;
    let ended = runtime.block_on(daemon::run(options, kernel, observe, host_facts));
    // Operations that have not ended in time are cut off with the process.
    runtime.shutdown_background();
    ended
}

/// The finding of a host where systemd runs without a system bus.
fn missing_bus() -> Option<Finding> {
    let lacks_bus = systemd::is_running(&Roots::host()) && !systemd::has_bus(&Roots::host());
    lacks_bus.then(|| {
        let evidence =
            "there is no system bus: tenants are not systemd units, and volumes are not unmounted before a shutdown";
        Finding::new(FindingId::SystemBusMissing, HOST, evidence).advise("apt-get install dbus, and restart the daemon")
    })
}

/// Starts the log on standard error, at the level that the environment sets.
///
/// # Errors
/// For an invalid level, and if a log was started before.
pub(crate) fn start_log(format: LogFormat) -> Result<(), Fault> {
    let text = std::env::var(LOG_VARIABLE).unwrap_or_else(|_| "info".to_owned());
    let filter: Targets =
        text.parse().map_err(|error| Fault::new(Code::InvalidArgument, LOG_VARIABLE, format!("{text:?}: {error}")))?;
    // Standard error is where the log could not be written: reporting that there as well would end the process.
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false).log_internal_errors(false);
    let started = match format {
        LogFormat::Text => tracing_subscriber::registry().with(log.with_filter(filter)).try_init(),
        LogFormat::Json => {
            tracing_subscriber::registry().with(log.json().flatten_event(true).with_filter(filter)).try_init()
        }
    };
    started.map_err(|error| Fault::new(Code::Internal, "log", error))
}
