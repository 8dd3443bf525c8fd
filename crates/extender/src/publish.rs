//! The node's side: publishes the report of its daemon as an object of the cluster, when something has changed, and at least every few minutes.
//!
//! Owns: when a report is published, and the object. Does not: make the report (the daemon).

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bulkhead_api::client::Client;
use bulkhead_core::report::{HostReport, MAX_BYTES};
use serde_json::{Value, json};

use crate::api::Api;

/// The path of all reports.
pub const KIND_PATH: &str = "/apis/bulkhead.dev/v1alpha1/nodereports";
/// Part by which free space has to change to be published before its time.
const CHANGE: f64 = 0.05;

/// A report as it is published.
#[derive(Clone, Debug)]
pub struct Published {
    /// The node.
    pub node: String,
    /// The UID of the node's object, which removes the report with it.
    pub node_uid: String,
    /// The report.
    pub report: HostReport,
}

impl Published {
    /// The object.
    #[must_use]
    pub fn object(&self) -> Value {
        json!({
            "apiVersion": "bulkhead.dev/v1alpha1",
            "kind": "NodeReport",
            "metadata": {
                "name": self.node,
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.node_uid }],
            },
            "report": self.report,
        })
    }
}

/// Whether a report says anything else than another one: not only its time, and no free space that has changed by a few percent.
#[must_use]
pub fn differs(before: &HostReport, now: &HostReport) -> bool {
    let frees = |report: &HostReport| -> Vec<Option<u64>> {
        report
            .devices
            .iter()
            .flat_map(|device| &device.pools)
            .map(|pool| pool.free_bytes.map(|bytes| bytes.0))
            .collect()
    };
    let is_near = |(a, b): (&Option<u64>, &Option<u64>)| match (a, b) {
        (Some(a), Some(b)) => (*a as f64 - *b as f64).abs() <= CHANGE * (*a.max(b) as f64),
        (a, b) => a == b,
    };
    let rest = |report: &HostReport| {
        let mut report = report.clone();
        report.unix_seconds = 0;
        report.devices.iter_mut().flat_map(|device| &mut device.pools).for_each(|pool| pool.free_bytes = None);
        report
    };
    let (old, new) = (frees(before), frees(now));
    old.len() != new.len() || !old.iter().zip(&new).all(is_near) || rest(before) != rest(now)
}

/// When reports are published.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// How often the daemon is asked.
    pub look: Duration,
    /// How often the report is published at least.
    pub publish: Duration,
}

/// Publishes the reports of a node, for ever. `on_outcome` gets each outcome.
pub async fn run(api: Api, daemon: &Client, node: &str, times: Times, mut on_outcome: impl FnMut(Result<(), String>)) {
    let mut last: Option<(HostReport, Instant)> = None;
    let mut interval = tokio::time::interval(times.look);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let outcome = look(api, daemon, node, times, &mut last).await;
        on_outcome(outcome.map_err(|error| format!("{error:#}")));
    }
}

async fn look(
    api: Api,
    daemon: &Client,
    node: &str,
    times: Times,
    last: &mut Option<(HostReport, Instant)>,
) -> Result<()> {
    let report = daemon.host_report().await.context("the daemon does not report")?.within(MAX_BYTES);
    if last.as_ref().is_some_and(|(before, at)| at.elapsed() < times.publish && !differs(before, &report)) {
        return Ok(());
    }
    // Each time: a node that was made again has another UID.
    let found = api.get(&format!("/api/v1/nodes/{node}")).await?;
    let node_uid = found["metadata"]["uid"].as_str().context("the node has no UID")?.to_owned();
    let published = Published { node: node.to_owned(), node_uid, report };
    let target = format!("{KIND_PATH}/{node}?fieldManager=bulkhead-extender&force=true");
    api.apply(&target, &published.object()).await?;
    *last = Some((published.report, Instant::now()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use bulkhead_core::report::{ReportedDevice, ReportedPool};
    use bulkhead_core::units::Bytes;

    use super::*;

    fn report(free_mib: u64) -> HostReport {
        let pools = vec![ReportedPool { name: "fast".parse().unwrap(), free_bytes: Some(Bytes::mib(free_mib)) }];
        HostReport {
            version: 1,
            unix_seconds: free_mib,
            cpus: 4,
            memory_bytes: Bytes::mib(8 << 10),
            domain: None,
            devices: vec![ReportedDevice { name: "sda".to_owned(), costs: None, shares_work: true, pools }],
            workloads: vec![],
            n_left_out: 0,
        }
    }

    #[test]
    fn a_report_is_published_when_more_than_its_time_or_some_space_has_changed() {
        assert!(!differs(&report(1000), &report(1000)) && !differs(&report(1000), &report(960)));
        assert!(differs(&report(1000), &report(940)));
        let unknown = |mut report: HostReport| {
            report.devices[0].pools[0].free_bytes = None;
            report
        };
        assert!(differs(&report(1000), &unknown(report(1000))));
        assert!(!differs(&unknown(report(1000)), &unknown(report(1))));
        assert!(differs(&report(1000), &HostReport { cpus: 5, ..report(1000) }));
        let mut more = report(1000);
        let pool = more.devices[0].pools[0].clone();
        more.devices[0].pools.push(pool);
        assert!(differs(&report(1000), &more));
    }
}
