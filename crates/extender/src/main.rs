//! `bulkhead-extender`: the program. See the library.

#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_api::client::{Client, DEFAULT_SOCKET};
use bulkhead_extender::api::Api;
use bulkhead_extender::cluster::{Cluster, Settings};
use bulkhead_extender::directory;
use bulkhead_extender::publish::{self, Times};
use bulkhead_extender::server::{Extender, Limits};
use bulkhead_extender::watch::{Follower, Kind};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Variable with the level of the log.
const LOG_VARIABLE: &str = "BULKHEAD_LOG";

/// How long a probe waits: less than the kubelet does.
const PROBE_LIMIT: Duration = Duration::from_secs(4);

/// How often directories are read again.
const REREAD: Duration = Duration::from_secs(10);

/// A scheduler extender for Kubernetes: what a pod gets on each node, and what the others there lose
#[derive(Debug, Parser)]
#[command(name = "bulkhead-extender", version, max_term_width = 100, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer a scheduler: /filter and /prioritize, with /healthz, /readyz and /metrics
    Serve(ServeArgs),
    /// Publish the report of a node's daemon as an object of the cluster, when it has changed and every few minutes
    Report(ReportArgs),
    /// Ask a `serve` that listens on the loopback address, as a probe of its container
    Probe(ProbeArgs),
}

#[derive(Debug, Args)]
struct ProbeArgs {
    /// Its address
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9479")]
    address: SocketAddr,
    /// What to ask for: /healthz, whether it answers, or /readyz, whether it knows the cluster
    #[arg(long, value_name = "PATH", default_value = "/healthz", value_parser = ["/healthz", "/readyz"])]
    path: String,
}

/// The API server, through a proxy that has the credentials.
#[derive(Debug, Args)]
struct ProxyArgs {
    /// Address of a `kubectl proxy`, through which the API server is reached
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8001")]
    proxy: SocketAddr,
}

#[derive(Debug, Args)]
struct ReportArgs {
    /// Name of the node
    #[arg(long, value_name = "NAME", env = "NODE_NAME", value_parser = NonEmptyStringValueParser::new())]
    node: String,
    /// Path of the daemon's socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// How often the daemon is asked, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    look: u64,
    /// How often the report is published at least, seconds: less than half of the extender's `--max-age`
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    publish: u64,
    #[command(flatten)]
    api: ProxyArgs,
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Address to listen on; it authenticates nobody
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9479")]
    listen: SocketAddr,
    /// Directory with the demands of workloads, as WORKLOAD.json, which go before those of reports
    #[arg(long, value_name = "DIR")]
    demands: Option<PathBuf>,
    /// Directory with the reports of nodes, as NODE.json, in place of the cluster's: pods are not watched then
    #[arg(long, value_name = "DIR", conflicts_with = "proxy")]
    reports: Option<PathBuf>,
    #[command(flatten)]
    api: ProxyArgs,
    /// Age from which on a report is not used, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 900, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    max_age: u64,
    /// How long a pod counts on the node that was preferred for it, without being seen there, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    assume: u64,
    /// Lowest part of its throughput alone that any workload must keep, 0 to 1
    #[arg(long, value_name = "PART", default_value_t = 0.0, value_parser = part)]
    floor: f64,
}

fn part(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|part| (0.0..=1.0).contains(part));
    part.ok_or_else(|| format!("{text:?} is not a number from 0 to 1"))
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    match start_log().and_then(|()| run(command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start_log() -> Result<()> {
    let text = std::env::var(LOG_VARIABLE).unwrap_or_else(|_| "info".to_owned());
    let filter: Targets = text.parse().with_context(|| format!("{LOG_VARIABLE}: {text:?}"))?;
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false).log_internal_errors(false);
    tracing_subscriber::registry().with(log.json().flatten_event(true).with_filter(filter)).try_init()?;
    Ok(())
}

fn run(command: Command) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("cannot start")?;
    match command {
        Command::Serve(args) => runtime.block_on(serve(args)),
        Command::Report(args) => runtime.block_on(report(args)),
        Command::Probe(args) => runtime.block_on(async {
            let api = Api { proxy: args.address };
            let asked = api.text(&args.path);
            tokio::time::timeout(PROBE_LIMIT, asked).await.context("no answer")??;
            Ok(())
        }),
    }
}

/// Resolves on `SIGTERM` and `SIGINT`.
fn stop() -> Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

async fn report(args: ReportArgs) -> Result<()> {
    let stop = stop()?;
    let daemon = Client::new(&args.socket);
    let times = Times { look: Duration::from_secs(args.look), publish: Duration::from_secs(args.publish) };
    let mut said = None;
    // The log has a failure once, and its end.
    let on_outcome = |outcome: Result<(), String>| {
        let cause = outcome.err();
        match &cause {
            Some(cause) if said.as_ref() != Some(cause) => tracing::warn!(cause, "the report is not published"),
            None if said.is_some() => tracing::info!("the report is published again"),
            _ => {}
        }
        said = cause;
    };
    tokio::select! {
        () = stop => {}
        () = publish::run(Api { proxy: args.api.proxy }, &daemon, &args.node, times, on_outcome) => {}
    }
    Ok(())
}

async fn serve(args: ServeArgs) -> Result<()> {
    let settings = Settings {
        max_age: Duration::from_secs(args.max_age),
        assume: Duration::from_secs(args.assume),
        floor: args.floor,
        ..Settings::default()
    };
    let stop = stop()?;
    let listener = TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let extender =
        Arc::new(Extender::new(Cluster::new(settings), Limits::default(), "the reports have not been read yet"));
    tracing::info!(address = %args.listen, "serving");
    let (has_reports, has_pods) = (AtomicBool::new(false), AtomicBool::new(false));
    let listed = |which: &AtomicBool| {
        which.store(true, Ordering::Relaxed);
        if has_reports.load(Ordering::Relaxed) && has_pods.load(Ordering::Relaxed) {
            extender.set_ready(Ok(()));
        }
    };
    let following = async {
        if args.reports.is_some() {
            return std::future::pending().await;
        }
        let api = Api { proxy: args.api.proxy };
        let follow = |kind| Follower::new(kind, Arc::clone(&extender));
        tokio::join!(
            follow(Kind::Reports).run(api, || listed(&has_reports)),
            follow(Kind::Pods).run(api, || listed(&has_pods)),
        );
    };
    tokio::select! {
        served = Arc::clone(&extender).serve(listener, stop) => served.context("cannot serve"),
        () = read_directories(&extender, args.reports.as_deref(), args.demands.as_deref()) => Ok(()),
        () = following => Ok(()),
    }
}

/// Reads the directories, now and again.
async fn read_directories(extender: &Extender, reports: Option<&Path>, demands: Option<&Path>) {
    let mut interval = tokio::time::interval(REREAD);
    let mut said = Vec::new();
    loop {
        interval.tick().await;
        let mut unusable = Vec::new();
        if let Some(demands) = demands {
            match read_demands(extender, demands) {
                Ok(more) => unusable.extend(more),
                Err(error) => unusable.push(format!("{error:#}")),
            }
        }
        if let Some(reports) = reports {
            let outcome = read_reports(extender, reports).map(|more| unusable.extend(more));
            let outcome = outcome.map_err(|error| format!("{error:#}"));
            unusable.extend(outcome.as_ref().err().cloned());
            extender.set_ready(outcome);
        }
        for what in unusable.iter().filter(|what| !said.contains(*what)) {
            tracing::warn!(what, "a file cannot be used");
        }
        said = unusable;
    }
}

fn read_demands(extender: &Extender, directory: &Path) -> Result<Vec<String>> {
    let found = directory::demands(directory);
    let (given, unusable) = found.with_context(|| format!("cannot list {}", directory.display()))?;
    extender.cluster().set_demands(given);
    Ok(unusable)
}

fn read_reports(extender: &Extender, directory: &Path) -> Result<Vec<String>> {
    let found = directory::reports(directory);
    let (found, unusable) = found.with_context(|| format!("cannot list {}", directory.display()))?;
    unusable.iter().for_each(|_| extender.metrics.unusable_report());
    let mut cluster = extender.cluster();
    cluster.retain_reports(|node| found.contains_key(node));
    for (node, report) in found {
        if cluster.report_of(&node) != Some(&report) {
            cluster.set_report(&node, report);
        }
    }
    Ok(unusable)
}
