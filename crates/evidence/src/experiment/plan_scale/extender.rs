//! The latency of the scheduler extender in `plan-scale`: in this process, without the network.

use std::time::Instant;

use anyhow::{Context as _, Result};
use bulkhead_core::demand::{Demand, DeviceCosts};
use bulkhead_core::model::Profile;
use bulkhead_core::report::{HostReport, ReportedDevice, ReportedPool, ReportedWorkload};
use bulkhead_core::units::{Bytes, Share};
use bulkhead_extender::cluster::{Cluster, Settings};
use bulkhead_extender::protocol::Args;
use bulkhead_extender::server::{Extender, Limits, now};
use bulkhead_extender::wish::Wish;
use bulkhead_measure::experiment::{Options, set_figure};
use bulkhead_measure::result::{Round, percentile};
use serde_json::{Value, json};

use crate::figure as f;

const MIXES: usize = 20;
const WORKLOADS: usize = 10;
const PODS: usize = 300;
/// Requests in which the mixes are predicted for the first time.
const FIRST: usize = 50;

/// Filters, scores and binds the pods, one after the other.
pub(super) fn round(options: &Options, nodes: usize) -> Result<Round> {
    let extender = Extender::new(Cluster::new(Settings::default()), Limits::default(), "starting");
    for node in 0..nodes {
        extender.cluster().set_report(&format!("node-{node}"), report(node)?);
    }
    let names: Vec<String> = (0..nodes).map(|node| format!("node-{node}")).collect();
    let (mut filters, mut scores) = (Vec::new(), Vec::new());
    for pod in 0..PODS {
        options.cancel.check()?;
        let metadata = json!({
            "name": format!("pod-{pod}"), "namespace": "default", "uid": format!("uid-{pod}"),
            "labels": { "bulkhead.dev/workload": format!("workload-{}", pod % WORKLOADS) },
            "annotations": { "bulkhead.dev/floor": "0.3" },
        });
        let request = serde_json::to_vec(&json!({ "Pod": { "metadata": metadata }, "NodeNames": names }))?;
        let began = Instant::now();
        let args: Args = serde_json::from_slice(&request)?;
        let filtered = extender.filter(&args, now()).map_err(anyhow::Error::msg)?;
        filters.push(began.elapsed().as_secs_f64() * 1e3);
        let left: Value = serde_json::from_slice(&filtered)?;
        let request = serde_json::to_vec(&json!({ "Pod": { "metadata": metadata }, "NodeNames": left["NodeNames"] }))?;
        let began = Instant::now();
        let args: Args = serde_json::from_slice(&request)?;
        let answer = extender.prioritize(&args, now()).map_err(anyhow::Error::msg)?;
        scores.push(began.elapsed().as_secs_f64() * 1e3);
        let list: Vec<Value> = serde_json::from_slice(&answer)?;
        let best = list.iter().max_by_key(|one| one["Score"].as_i64()).context("no node is left")?;
        let wish = Wish::of(&args.pod.metadata).ok().flatten().context("a pod has no workload")?;
        extender.cluster().bind(&format!("uid-{pod}"), best["Host"].as_str().unwrap_or_default(), wish);
    }
    let mut round = Round::default();
    let first: Vec<f64> = filters[..FIRST].iter().chain(&scores[..FIRST]).copied().collect();
    set_figure(&mut round, f::FILTER_P99_MS, p99(filters));
    set_figure(&mut round, f::PRIORITIZE_P99_MS, p99(scores));
    set_figure(&mut round, f::FIRST_P99_MS, p99(first));
    Ok(round)
}

fn p99(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    percentile(&times, 99.0)
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
