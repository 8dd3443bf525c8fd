//! What is known of the cluster: reports of nodes, pods that are bound, and pods that are assumed to be.
//!
//! A report lags behind, and a scheduler places many pods in a second. So the workloads on a node are those of its report, and as many pods with
//! a workload's label as exceed the report's tenants of that workload; a pod counts from the moment on in which this has preferred a node for it
//! ([`Cluster::assume`]), until it is seen bound, or for a limited time. Of pods that the report has already, none is counted twice.
//!
//! Owns: these records, and a node's mix that follows from them. Does not: watch anything, read a clock, or judge (`decide`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_advise::outlook::{Class, Member, Outlook, Verdict};
use bulkhead_core::demand::{Demand, DeviceCosts};
use bulkhead_core::report::{HostReport, ReportedDevice, ReportedWorkload};
use bulkhead_core::units::Bytes;

use crate::wish::Wish;

/// Classes and mixes that are remembered, before all are forgotten: some 100 MB.
const MAX_CLASSES: usize = 20_000;
const MAX_MIXES: usize = 200_000;

/// How decisions are made.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// From this age on a report is not used.
    pub max_age: Duration,
    /// How long a pod is assumed to be where this has preferred it, without being seen there.
    pub assume: Duration,
    /// Lowest normalised throughput of workloads without their own floor, 0 to 1.
    pub floor: f64,
    /// Time for predictions in one request; nodes that are left get a neutral answer.
    pub budget: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_age: Duration::from_secs(900),
            assume: Duration::from_secs(30),
            floor: 0.0,
            budget: Duration::from_millis(15),
        }
    }
}

/// The moment of a request, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The one that only rises.
    pub instant: Instant,
    /// Seconds since the Unix epoch.
    pub unix_seconds: u64,
}

/// A pod on a node.
#[derive(Clone, Debug, PartialEq)]
struct Placed {
    node: String,
    wish: Wish,
    /// Until when it is assumed to be there; `None`: it is bound.
    until: Option<Instant>,
}

#[derive(Debug)]
struct Node {
    report: HostReport,
    mix: Option<Arc<Mix>>,
}

/// The workloads on a node, as they are predicted.
#[derive(Clone, Debug)]
pub(crate) struct Mix {
    /// Stands for kind and members: nodes with the same number are alike.
    pub(crate) state: usize,
    pub(crate) kind: usize,
    pub(crate) members: Vec<Member>,
    /// For each device of the kind, its index in the report.
    pub(crate) devices: Vec<usize>,
    /// For each device of the kind, space that pods take which are not in the report.
    pub(crate) taken: Vec<Bytes>,
    /// When an assumption ends that it contains.
    until: Option<Instant>,
}

/// Why nothing is known of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unknown {
    /// It has published no report that can be used.
    NoReport,
    /// Its report is too old.
    Stale,
    /// None of its devices has costs.
    NoCosts,
    /// The demand of the pod's workload is not known.
    Workload,
    /// The pod has an annotation that cannot be used.
    Annotation,
    /// There was no time left to predict it.
    Busy,
}

impl Unknown {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::NoReport, Self::Stale, Self::NoCosts, Self::Workload, Self::Annotation, Self::Busy];

    /// As the label of a metric.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoReport => "no_report",
            Self::Stale => "stale_report",
            Self::NoCosts => "no_costs",
            Self::Workload => "unknown_workload",
            Self::Annotation => "bad_annotation",
            Self::Busy => "no_time",
        }
    }
}

/// What is known.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) settings: Settings,
    pub(crate) outlook: Outlook,
    nodes: HashMap<String, Node>,
    pods: HashMap<String, Placed>,
    /// The pods of each node, in the order in which they came.
    pods_of: HashMap<String, Vec<String>>,
    /// Demands from files.
    given: BTreeMap<String, Demand>,
    /// Demands from reports, by workload; the last is the latest.
    reported: HashMap<String, BTreeMap<(u64, String), Demand>>,
    states: HashMap<(usize, Vec<Member>), usize>,
    /// A workload of each class, for messages.
    names: HashMap<usize, String>,
}

impl Cluster {
    /// A cluster of which nothing is known yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            outlook: Outlook::default(),
            nodes: HashMap::new(),
            pods: HashMap::new(),
            pods_of: HashMap::new(),
            given: BTreeMap::new(),
            reported: HashMap::new(),
            states: HashMap::new(),
            names: HashMap::new(),
        }
    }

    /// Demands of workloads, which go before those of reports. They must have been checked.
    pub fn set_demands(&mut self, given: BTreeMap<String, Demand>) {
        if self.given != given {
            self.given = given;
            self.forget_mixes();
        }
    }

    /// Replaces the report of a node.
    pub fn set_report(&mut self, node: &str, report: HostReport) {
        self.replace(node, Some(report));
    }

    /// Forgets a node that is gone.
    pub fn remove_report(&mut self, node: &str) {
        self.replace(node, None);
    }

    fn replace(&mut self, node: &str, report: Option<HostReport>) {
        let old = self.nodes.remove(node).map(|node| node.report);
        let profiled = |report: &Option<HostReport>| -> Vec<(String, u64, Demand)> {
            let workloads = report.iter().flat_map(|report| &report.workloads);
            let profile = |its: &ReportedWorkload| {
                its.profile.as_ref().map(|one| (its.workload().to_string(), one.unix_seconds, one.demand.clone()))
            };
            workloads.filter_map(profile).collect()
        };
        let (gone, come) = (profiled(&old), profiled(&report));
        let names: BTreeSet<&String> = gone.iter().chain(&come).map(|(workload, ..)| workload).collect();
        let before: Vec<Option<Demand>> = names.iter().map(|workload| self.demand(workload).cloned()).collect();
        for (workload, unix_seconds, _) in &gone {
            if let Some(known) = self.reported.get_mut(workload) {
                known.remove(&(*unix_seconds, node.to_owned()));
            }
        }
        for (workload, unix_seconds, demand) in &come {
            let known = self.reported.entry(workload.clone()).or_default();
            known.insert((*unix_seconds, node.to_owned()), demand.clone());
        }
        self.reported.retain(|_, known| !known.is_empty());
        let changed = names.iter().zip(before).filter(|(workload, before)| self.demand(workload) != before.as_ref());
        let changed: Vec<String> = changed.map(|(workload, _)| (*workload).clone()).collect();
        if let Some(report) = report {
            self.nodes.insert(node.to_owned(), Node { report, mix: None });
        }
        changed.iter().for_each(|workload| self.demand_changed(workload));
    }

    /// Forgets the mixes that contain a workload.
    fn demand_changed(&mut self, workload: &str) {
        let has_pod = self.pods.values().filter(|placed| placed.wish.workload == workload);
        let with_pods: BTreeSet<&str> = has_pod.map(|placed| placed.node.as_str()).collect();
        for (name, node) in &mut self.nodes {
            let is_reported = node.report.workloads.iter().any(|its| its.workload().as_str() == workload);
            if is_reported || with_pods.contains(name.as_str()) {
                node.mix = None;
            }
        }
    }

    fn forget_mixes(&mut self) {
        self.nodes.values_mut().for_each(|node| node.mix = None);
    }

    /// A pod is bound to a node.
    pub fn bind(&mut self, uid: &str, node: &str, wish: Wish) {
        self.put(uid, Placed { node: node.to_owned(), wish, until: None });
    }

    /// A pod probably goes to this node, because it was preferred.
    pub fn assume(&mut self, uid: &str, node: &str, wish: Wish, now: Now) {
        // One that is bound is not scheduled again; the request came late.
        if self.pods.get(uid).is_none_or(|placed| placed.until.is_some()) {
            self.put(uid, Placed { node: node.to_owned(), wish, until: Some(now.instant + self.settings.assume) });
        }
    }

    fn put(&mut self, uid: &str, placed: Placed) {
        if self.pods.get(uid) == Some(&placed) {
            return;
        }
        self.remove_pod(uid);
        self.pods_of.entry(placed.node.clone()).or_default().push(uid.to_owned());
        self.changed(&placed.node);
        self.pods.insert(uid.to_owned(), placed);
    }

    /// A pod is gone, or has ended.
    pub fn remove_pod(&mut self, uid: &str) {
        let Some(placed) = self.pods.remove(uid) else { return };
        if let Some(pods) = self.pods_of.get_mut(&placed.node) {
            pods.retain(|other| other != uid);
            if pods.is_empty() {
                self.pods_of.remove(&placed.node);
            }
        }
        self.changed(&placed.node);
    }

    /// Forgets bound pods that are not among these: a complete list has been read.
    pub fn retain_pods(&mut self, is_there: impl Fn(&str) -> bool) {
        let gone = self.pods.iter().filter(|(uid, placed)| placed.until.is_none() && !is_there(uid));
        let gone: Vec<String> = gone.map(|(uid, _)| uid.clone()).collect();
        gone.iter().for_each(|uid| self.remove_pod(uid));
    }

    /// Forgets nodes that are not among these.
    pub fn retain_reports(&mut self, is_there: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.nodes.keys().filter(|node| !is_there(node)).cloned().collect();
        gone.iter().for_each(|node| self.remove_report(node));
    }

    fn changed(&mut self, node: &str) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.mix = None;
        }
    }

    /// Numbers of nodes with a report, of those whose report is too old, and of bound and assumed pods.
    #[must_use]
    pub fn counts(&self, now: Now) -> [usize; 4] {
        let n_stale = self.nodes.values().filter(|node| self.is_stale(&node.report, now)).count();
        let n_bound = self.pods.values().filter(|placed| placed.until.is_none()).count();
        [self.nodes.len(), n_stale, n_bound, self.pods.len() - n_bound]
    }

    fn is_stale(&self, report: &HostReport, now: Now) -> bool {
        // A clock that is ahead would make it fresh for ever.
        now.unix_seconds.abs_diff(report.unix_seconds) > self.settings.max_age.as_secs()
    }

    /// The demand of a workload.
    #[must_use]
    pub fn demand(&self, workload: &str) -> Option<&Demand> {
        self.given.get(workload).or_else(|| Some(self.reported.get(workload)?.last_key_value()?.1))
    }

    /// The class of a pod; `None` if the demand of its workload is not known.
    pub(crate) fn class(&mut self, wish: &Wish) -> Option<usize> {
        let demand = self.demand(&wish.workload)?.clone();
        let floor = wish.floor.unwrap_or(self.settings.floor);
        let class = self.outlook.class(&Class { demand, share: wish.share, floor, fsync_p99: wish.fsync_p99 });
        self.names.entry(class).or_insert_with(|| wish.workload.clone());
        Some(class)
    }

    /// The workload that a class was first seen of.
    pub(crate) fn workload_of(&self, class: usize) -> Option<&str> {
        self.names.get(&class).map(String::as_str)
    }

    /// Forgets where a pod is assumed to be.
    pub(crate) fn forget_assumed(&mut self, uid: &str) {
        if self.pods.get(uid).is_some_and(|placed| placed.until.is_some()) {
            self.remove_pod(uid);
        }
    }

    /// The report of a node.
    #[must_use]
    pub fn report_of(&self, node: &str) -> Option<&HostReport> {
        self.nodes.get(node).map(|node| &node.report)
    }

    /// Prepares a request: what has ended is removed, and too large a memory is begun again.
    pub(crate) fn begin(&mut self, now: Now) {
        let ended = self.pods.iter().filter(|(_, placed)| placed.until.is_some_and(|until| until <= now.instant));
        let ended: Vec<String> = ended.map(|(uid, _)| uid.clone()).collect();
        ended.iter().for_each(|uid| self.remove_pod(uid));
        let (n_classes, n_mixes) = self.outlook.size();
        if n_classes > MAX_CLASSES || n_mixes > MAX_MIXES || self.states.len() > MAX_MIXES {
            self.outlook = Outlook::default();
            self.states.clear();
            self.names.clear();
            self.forget_mixes();
        }
    }

    /// The mix of a node.
    ///
    /// # Errors
    /// Why it is not known.
    pub(crate) fn mix(&mut self, name: &str, now: Now, has_time: impl Fn() -> bool) -> Result<Arc<Mix>, Unknown> {
        let node = self.nodes.get(name).ok_or(Unknown::NoReport)?;
        if self.is_stale(&node.report, now) {
            return Err(Unknown::Stale);
        }
        if let Some(mix) = &node.mix
            && mix.until.is_none_or(|until| until > now.instant)
        {
            return Ok(Arc::clone(mix));
        }
        // Pods that are not in the report are predicted on each device.
        if !has_time() {
            return Err(Unknown::Busy);
        }
        let mix = Arc::new(self.compute(name)?);
        if let Some(node) = self.nodes.get_mut(name) {
            node.mix = Some(Arc::clone(&mix));
        }
        Ok(mix)
    }

    fn compute(&mut self, name: &str) -> Result<Mix, Unknown> {
        let Some(Node { report, .. }) = self.nodes.get(name) else { return Err(Unknown::NoReport) };
        let known = report.devices.iter().enumerate().filter_map(|(index, its)| Some((index, its.costs.as_ref()?)));
        let (devices, costs): (Vec<usize>, Vec<&DeviceCosts>) = known.unzip();
        if devices.is_empty() {
            return Err(Unknown::NoCosts);
        }
        let kind = self.outlook.kind(f64::from(report.cpus), report.memory_bytes, &costs);
        let mut members: Vec<Member> = Vec::new();
        let mut n_reported: HashMap<&str, usize> = HashMap::new();
        for its in &report.workloads {
            let Some(profile) = &its.profile else { continue };
            *n_reported.entry(its.workload().as_str()).or_default() += 1;
            let at = devices.iter().position(|device| Some(&report.devices[*device].name) == its.device.as_ref());
            let Some(device) = at else { continue };
            // All copies of a workload have one demand, so that nodes with the same copies are alike.
            let named = self
                .given
                .get(its.workload().as_str())
                .or_else(|| Some(self.reported.get(its.workload().as_str())?.last_key_value()?.1));
            let class = Class {
                demand: named.unwrap_or(&profile.demand).clone(),
                share: f64::from(u32::from(its.share)),
                floor: self.settings.floor,
                fsync_p99: its.fsync_p99_us.map(|us| us as f64 / 1e6),
            };
            let class = self.outlook.class(&class);
            self.names.entry(class).or_insert_with(|| its.workload().to_string());
            add(&mut members, class, device);
        }
        // Pods that the report does not have: of each workload the last ones.
        let (mut extra, mut until) = (Vec::new(), None::<Instant>);
        for uid in self.pods_of.get(name).into_iter().flatten() {
            let Some(placed) = self.pods.get(uid) else { continue };
            if let Some(ends) = placed.until {
                until = Some(until.map_or(ends, |until| until.min(ends)));
            }
            match n_reported.get_mut(placed.wish.workload.as_str()) {
                Some(n) if *n > 0 => *n -= 1,
                _ => extra.push(placed.wish.clone()),
            }
        }
        let mut taken = vec![Bytes(0); devices.len()];
        for wish in extra {
            let Some(class) = self.class(&wish) else { continue };
            let Some(device) = self.best_device(name, kind, &members, &devices, class, &wish) else { continue };
            add(&mut members, class, device);
            taken[device] = Bytes(taken[device].0.saturating_add(wish.space.0));
        }
        members.sort_unstable();
        let n_states = self.states.len();
        let state = *self.states.entry((kind, members.clone())).or_insert(n_states);
        Ok(Mix { state, kind, members, devices, taken, until })
    }

    /// The device on which a pod costs least.
    fn best_device(
        &mut self,
        name: &str,
        kind: usize,
        members: &[Member],
        devices: &[usize],
        class: usize,
        wish: &Wish,
    ) -> Option<usize> {
        let report = &self.nodes.get(name)?.report;
        let allowed: Vec<usize> =
            (0..devices.len()).filter(|device| has_pool(&report.devices[devices[*device]], wish)).collect();
        let verdicts = allowed.into_iter().map(|device| (device, self.outlook.verdict(kind, members, class, device)));
        verdicts.max_by(|(_, a), (_, b)| order(a, b)).map(|(device, _)| device)
    }
}

/// The better verdict is the greater: what breaks less, then what gains more.
pub(crate) fn order(a: &Verdict, b: &Verdict) -> std::cmp::Ordering {
    b.breaks.len().cmp(&a.breaks.len()).then(a.gain().total_cmp(&b.gain()))
}

/// Whether a pod's volumes can be on a device.
pub(crate) fn has_pool(device: &ReportedDevice, wish: &Wish) -> bool {
    wish.pool.as_ref().is_none_or(|wanted| device.pools.iter().any(|pool| pool.name == *wanted))
}

fn add(members: &mut Vec<Member>, class: usize, device: usize) {
    match members.iter_mut().find(|member| (member.class, member.device) == (class, device)) {
        Some(member) => member.copies += 1,
        None => members.push(Member { class, device, copies: 1 }),
    }
}
