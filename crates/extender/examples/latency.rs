//! How long the extender takes: 5000 nodes of three kinds with 20 mixes, pods of ten workloads one after the other, each filtered, scored and
//! bound. Prints percentiles of both verbs, of the first requests and of the rest, as they are and in processor time, which another load on the
//! machine does not change; exits with 1 if the 99th of either verb exceeds 20 ms.
//!
//! `cargo run --release --locked -p bulkhead-extender --example latency [PODS]`

#![expect(clippy::print_stdout, reason = "it is what this program is for")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bulkhead_core::demand::{Demand, DeviceCosts};
use bulkhead_core::model::Profile;
use bulkhead_core::report::{HostReport, ReportedDevice, ReportedPool, ReportedWorkload};
use bulkhead_core::units::{Bytes, Share};
use bulkhead_extender::cluster::{Cluster, Settings};
use bulkhead_extender::protocol::Args;
use bulkhead_extender::server::{Extender, Limits, now};
use bulkhead_extender::wish::Wish;
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde_json::{Value, json};

const NODES: usize = 5000;
const MIXES: usize = 20;
const WORKLOADS: usize = 10;
const PODS: usize = 1000;
/// Requests in which the mixes are predicted for the first time.
const FIRST: usize = 50;
const TARGET: Duration = Duration::from_millis(20);

fn main() -> Result<ExitCode> {
    let extender = Extender::new(Cluster::new(Settings::default()), Limits::default(), "starting");
    let began = Instant::now();
    for node in 0..NODES {
        extender.cluster().set_report(&format!("node-{node}"), report(node)?);
    }
    println!("{NODES} reports in {:.0} ms", began.elapsed().as_secs_f64() * 1e3);
    let names: Vec<String> = (0..NODES).map(|node| format!("node-{node}")).collect();
    let (mut filters, mut scores) = (Vec::new(), Vec::new());
    let n_pods = std::env::args().nth(1).map_or(Ok(PODS), |text| text.parse()).context("PODS is not a number")?;
    for pod in 0..n_pods {
        let metadata = json!({
            "name": format!("pod-{pod}"), "namespace": "default", "uid": format!("uid-{pod}"),
            "labels": { "bulkhead.dev/workload": format!("workload-{}", pod % WORKLOADS) },
            "annotations": { "bulkhead.dev/floor": "0.3" },
        });
        let request = serde_json::to_vec(&json!({ "Pod": { "metadata": metadata }, "NodeNames": names }))?;
        let filter = |request: &[u8]| -> Result<Vec<u8>> {
            let args: Args = serde_json::from_slice(request)?;
            extender.filter(&args, now()).map_err(anyhow::Error::msg)
        };
        let began = Clocks::now();
        let filtered = filter(&request)?;
        filters.push(began.elapsed());
        let left: Value = serde_json::from_slice(&filtered)?;
        let request = serde_json::to_vec(&json!({ "Pod": { "metadata": metadata }, "NodeNames": left["NodeNames"] }))?;
        let began = Clocks::now();
        let args: Args = serde_json::from_slice(&request)?;
        let answer = extender.prioritize(&args, now()).map_err(anyhow::Error::msg)?;
        scores.push(began.elapsed());
        let list: Vec<Value> = serde_json::from_slice(&answer)?;
        let best = list.iter().max_by_key(|one| one["Score"].as_i64()).context("no node is left")?;
        let wish = Wish::of(&args.pod.metadata).ok().flatten().context("a pod has no workload")?;
        extender.cluster().bind(&format!("uid-{pod}"), best["Host"].as_str().unwrap_or_default(), wish);
    }
    let mut is_met = true;
    for (verb, times) in [("filter", filters), ("prioritize", scores)] {
        for (which, part) in [("first", &times[..FIRST.min(times.len())]), ("all", &times[..])] {
            for (clock, of) in
                [("time", (|its| its.0) as fn(&(Duration, Duration)) -> Duration), ("processor", |its| its.1)]
            {
                let mut sorted: Vec<Duration> = part.iter().map(of).collect();
                sorted.sort_unstable();
                let at = |percent: usize| sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)];
                let (median, p99, most) = (at(50), at(99), at(100));
                println!(
                    "{verb} {which} {} {clock}: median {median:.1?}, p99 {p99:.1?}, most {most:.1?}",
                    sorted.len()
                );
                is_met &= which != "all" || clock != "time" || p99 <= TARGET;
            }
        }
    }
    println!("{}", extender.metrics.text(extender.cluster().counts(now())));
    Ok(if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A moment, and the processor time of this thread until then.
struct Clocks(Instant, Timespec);

impl Clocks {
    fn now() -> Self {
        Self(Instant::now(), clock_gettime(ClockId::ThreadCPUTime))
    }

    fn elapsed(&self) -> (Duration, Duration) {
        let processor = clock_gettime(ClockId::ThreadCPUTime) - self.1;
        (self.0.elapsed(), processor.try_into().unwrap_or_default())
    }
}

fn report(node: usize) -> Result<HostReport> {
    let mix = node % MIXES;
    let workload = |index: usize| -> Result<ReportedWorkload> {
        let workload = (mix + 3 * index) % WORKLOADS;
        Ok(ReportedWorkload {
            name: format!("tenant-{index}").parse()?,
            share: Share::DEFAULT,
            device: Some("nvme0n1".to_owned()),
            space_bytes: Bytes::mib(1024),
            fsync_p99_us: None,
            volumes: vec![],
            profile: Some(Profile {
                workload: Some(format!("workload-{workload}").parse()?),
                demand: demand(workload)?,
                alone_per_s: None,
                unix_seconds: 1,
            }),
        })
    };
    Ok(HostReport {
        version: 1,
        unix_seconds: now().unix_seconds,
        cpus: 16,
        memory_bytes: Bytes::mib(64 << 10),
        domain: None,
        devices: vec![ReportedDevice {
            name: "nvme0n1".to_owned(),
            costs: Some(costs([2000.0, 20_000.0, 100_000.0][node % 3])?),
            shares_work: true,
            pools: vec![ReportedPool { name: "fast".parse()?, free_bytes: Some(Bytes::mib(100 << 10)) }],
        }],
        workloads: (0..mix % 5).map(workload).collect::<Result<_>>()?,
        n_left_out: 0,
    })
}

fn demand(workload: usize) -> Result<Demand> {
    Ok(serde_json::from_value(json!({
        "clients": 1 + 2 * workload, "think-seconds": 0.01, "cpu-seconds": 0.0001,
        "durable": { "per-operation": u32::from(workload.is_multiple_of(2)), "chain": 2 },
        "requests": [{ "access": "random-read", "bytes": 8192, "per-operation": 2 }],
    }))?)
}

fn costs(per_s: f64) -> Result<DeviceCosts> {
    let cost = json!({ "latency-us": 4e6 / per_s, "per-s": per_s });
    let both = json!({ "small": cost, "large": cost });
    Ok(serde_json::from_value(json!({
        "random-read": both, "sequential-read": both, "random-write": both, "sequential-write": both,
        "durable-write": cost, "read-write-sharing": 0.5, "sequential-run": 2,
    }))?)
}
