//! Keeps what is known of the cluster as the API server has it: a list of each kind of objects, then a watch from there on.
//!
//! A watch that ends is continued where it was. Where that is not possible any more (the resource version has expired), a new list replaces
//! what is known: objects that are gone meanwhile are forgotten, and no object is missing in between.
//!
//! Owns: the order of lists and watches, and what an object means for [`Cluster`]. Does not: speak HTTP ([`crate::api`]).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bulkhead_core::report::{HostReport, MAX_BYTES};
use hyper::StatusCode;
use serde_json::Value;

use crate::api::{Api, Refused};
use crate::protocol::Metadata;
use crate::publish::KIND_PATH;
use crate::server::Extender;
use crate::wish::{WORKLOAD, Wish};

/// Objects in a page of a list.
const PAGE: usize = 500;
/// How long the server keeps a watch. It sends bookmarks meanwhile, about one a minute.
const WATCH_SECONDS: u64 = 290;
/// A watch in which nothing has come for this time is begun again.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS + 30);
/// Delays after failures: twice as long after each, up to the longest.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// A kind of objects that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reports of nodes.
    Reports,
    /// Pods with a workload that are bound and have not ended.
    Pods,
}

impl Kind {
    /// Its path and query, without what differs between list and watch.
    #[must_use]
    pub fn target(self) -> String {
        match self {
            Self::Reports => format!("{KIND_PATH}?"),
            // `spec.nodeName!=`: bound. Escaped as in a query.
            Self::Pods => format!(
                "/api/v1/pods?labelSelector={}&fieldSelector=spec.nodeName%21%3D%2Cstatus.phase%21%3DSucceeded%2C\
                 status.phase%21%3DFailed&",
                WORKLOAD.replace('/', "%2F")
            ),
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Reports => "reports of nodes",
            Self::Pods => "pods",
        }
    }
}

/// The events of one kind, as they change what is known.
#[derive(Debug)]
pub struct Follower {
    kind: Kind,
    extender: Arc<Extender>,
    /// From where on the next watch goes; `None`: a list comes first.
    version: Option<String>,
}

impl Follower {
    /// Of a kind, before its first list.
    #[must_use]
    pub const fn new(kind: Kind, extender: Arc<Extender>) -> Self {
        Self { kind, extender, version: None }
    }

    /// Lists and watches, for ever. `on_listed` is called after each complete list.
    pub async fn run(mut self, api: Api, mut on_listed: impl FnMut()) {
        let mut delay = FIRST_DELAY;
        loop {
            let outcome = self.step(&api).await;
            match outcome {
                Ok(true) => {
                    on_listed();
                    delay = FIRST_DELAY;
                }
                // A server that ends each watch at once is not asked without a pause.
                Ok(false) => tokio::time::sleep(FIRST_DELAY).await,
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "{} cannot be followed", self.kind.as_str());
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(LONGEST_DELAY);
                }
            }
        }
    }

    /// Lists if that is needed, and watches otherwise; returns whether it has listed.
    async fn step(&mut self, api: &Api) -> Result<bool> {
        let Some(version) = self.version.clone() else {
            let pages = self.pages(api).await?;
            self.listed(pages)?;
            return Ok(true);
        };
        let target = format!(
            "{}watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}",
            self.kind.target()
        );
        let watched = api.watch(&target, SILENCE, |event| self.event(event)).await;
        if let Err(error) = &watched
            && error.downcast_ref::<Refused>().is_some_and(|refused| refused.status == StatusCode::GONE)
        {
            self.version = None;
            return Ok(false);
        }
        watched.map(|()| false)
    }

    /// The pages of a list. They are of one moment, or the list is begun again.
    async fn pages(&self, api: &Api) -> Result<Vec<Value>> {
        let (mut pages, mut token) = (Vec::new(), String::new());
        loop {
            let page = api.get(&format!("{}limit={PAGE}&continue={}", self.kind.target(), escaped(&token))).await?;
            token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            pages.push(page);
            if token.is_empty() {
                return Ok(pages);
            }
        }
    }

    /// Replaces what is known by a list.
    ///
    /// # Errors
    /// For a list without a version.
    pub fn listed(&mut self, pages: Vec<Value>) -> Result<()> {
        let last = pages.last().map(|page| &page["metadata"]["resourceVersion"]);
        let version = last.and_then(Value::as_str).context("the list has no resource version")?.to_owned();
        let mut there = HashSet::new();
        for mut page in pages {
            let Some(items) = page["items"].as_array_mut() else { bail!("the list has no items") };
            for item in items.drain(..) {
                there.extend(self.put(item));
            }
        }
        let mut cluster = self.extender.cluster();
        match self.kind {
            Kind::Reports => cluster.retain_reports(|node| there.contains(node)),
            Kind::Pods => cluster.retain_pods(|uid| there.contains(uid)),
        }
        drop(cluster);
        self.version = Some(version);
        Ok(())
    }

    /// An event of a watch.
    ///
    /// # Errors
    /// For an event that ends the watch; if its version has expired, a list comes next.
    pub fn event(&mut self, mut event: Value) -> Result<()> {
        let object = event["object"].take();
        let kind = event["type"].as_str().unwrap_or_default();
        if kind == "ERROR" {
            if object["code"].as_u64() == Some(u64::from(StatusCode::GONE.as_u16())) {
                self.version = None;
            }
            bail!("the watch ended: {}", object["message"].as_str().unwrap_or("the server does not say why"));
        }
        let version = object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        match kind {
            "ADDED" | "MODIFIED" => drop(self.put(object)),
            "DELETED" => self.remove(&object),
            // A bookmark has nothing but a version; others may come.
            _ => {}
        }
        self.version = version.or(self.version.take());
        Ok(())
    }

    /// Records an object; returns by what it is known, also if its content cannot be used: it is there.
    fn put(&self, mut object: Value) -> Option<String> {
        let metadata: Metadata = serde_json::from_value(object["metadata"].clone()).ok()?;
        match self.kind {
            Kind::Reports => {
                match report(object["report"].take()) {
                    Ok(report) => self.extender.cluster().set_report(&metadata.name, report),
                    Err(cause) => {
                        self.extender.metrics.unusable_report();
                        tracing::warn!(node = metadata.name, cause, "a report cannot be used");
                        self.extender.cluster().remove_report(&metadata.name);
                    }
                }
                Some(metadata.name)
            }
            Kind::Pods => {
                let node = object["spec"]["nodeName"].as_str().unwrap_or_default();
                match Wish::of(&metadata) {
                    Ok(Some(wish)) if !node.is_empty() => self.extender.cluster().bind(&metadata.uid, node, wish),
                    // It was scheduled with the same annotations: that was logged then.
                    _ => self.extender.cluster().remove_pod(&metadata.uid),
                }
                Some(metadata.uid)
            }
        }
    }

    fn remove(&self, object: &Value) {
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
        match self.kind {
            Kind::Reports => self.extender.cluster().remove_report(text("name")),
            Kind::Pods => self.extender.cluster().remove_pod(text("uid")),
        }
    }
}

/// The report in an object.
fn report(value: Value) -> Result<HostReport, String> {
    let text = value.to_string();
    if text.len() > 2 * MAX_BYTES {
        return Err(format!("it has {} bytes, more than {}", text.len(), 2 * MAX_BYTES));
    }
    HostReport::parse(&text).map_err(|error| error.to_string())
}

/// Text as the value of a query.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests;
