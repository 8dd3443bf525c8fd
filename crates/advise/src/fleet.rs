//! The fleet file: hosts, devices and workloads, in TOML. docs/plan.md describes it.
//!
//! Owns: its keys, their defaults, and errors that name line and key. Does not: read files; the caller does, also those that the file names.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use bulkhead_core::demand::{Demand, DeviceCosts, Senseless};
use bulkhead_core::error::{LineError, line_of};
use bulkhead_core::units::{Bytes, Latency};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::place::{Apart, Device, Fleet, Group, Machine, Place, Workload};
use crate::predict::{Fitted, Host, fit};

/// Most hosts and most workloads, after `count`.
const MAX_HOSTS: usize = 10_000;
const MAX_WORKLOADS: usize = 100_000;

/// A fleet as it was read, with what a placement does not need.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetFile {
    /// What is to be placed where.
    pub fleet: Fleet,
    /// The pool of each device of each host, for commands.
    pub pools: Vec<Vec<Option<String>>>,
    /// The volumes of each workload, for commands.
    pub volumes: Vec<Vec<String>>,
    /// How demands were corrected by what was measured.
    pub corrections: Vec<Correction>,
    /// What is on hosts with reports, and is not in [`FleetFile::fleet`]: predictions are without it.
    pub unknown: Vec<Unknown>,
}

/// What a host's report has, but not well enough known to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The host.
    pub host: String,
    /// Which of its objects.
    pub what: UnknownWhat,
}

/// See [`Unknown`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownWhat {
    /// A device without costs.
    Device(String),
    /// A tenant without a demand.
    Demand(String),
    /// A tenant without volumes on a device with costs.
    Place(String),
    /// This many tenants that its report left out.
    LeftOut(usize),
}

/// How a demand was corrected by what its workload achieved alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Correction {
    /// The workload, without a number.
    pub workload: String,
    /// Where it was measured.
    pub place: Place,
    /// Its operations per second there.
    pub per_s: f64,
    /// What was predicted, as a part of that, and what is with the correction.
    pub without: f64,
    /// See `without`.
    pub with: f64,
    /// What an operation takes longer than predicted, seconds.
    pub seconds: f64,
}

/// Values that were given in the file, or are in another one.
#[derive(Clone, Debug)]
enum Given<T> {
    File(PathBuf),
    Here(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = Given<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the path of a file, or a table")
            }

            fn visit_str<E: de::Error>(self, path: &str) -> Result<Self::Value, E> {
                Ok(Given::File(path.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Given::Here)
            }
        }

        deserializer.deserialize_any(Either(PhantomData))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    #[serde(default)]
    floor: f64,
    #[serde(default)]
    divided_by: DividedBy,
    #[serde(default)]
    layout: Layout,
    #[serde(default)]
    device: Vec<Spanned<KindEntry>>,
    #[serde(default)]
    host: Vec<Spanned<HostEntry>>,
    #[serde(default)]
    workload: Vec<Spanned<WorkloadEntry>>,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum DividedBy {
    #[default]
    Shares,
    Arrival,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum Layout {
    #[default]
    Volumes,
    SharedFileSystem,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct KindEntry {
    kind: String,
    costs: Given<DeviceCosts>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct HostEntry {
    name: String,
    count: Option<usize>,
    cpus: Option<f64>,
    memory: Option<String>,
    domain: Option<String>,
    devices: Option<Vec<DeviceEntry>>,
    report: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct DeviceEntry {
    name: String,
    kind: String,
    space: String,
    pool: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WorkloadEntry {
    name: String,
    count: Option<usize>,
    demand: Given<Demand>,
    share: Option<f64>,
    space: Option<String>,
    importance: Option<f64>,
    floor: Option<f64>,
    fsync_p99: Option<String>,
    group: Option<String>,
    apart: Option<ApartWord>,
    #[serde(default)]
    only: Vec<String>,
    on: Option<String>,
    measured: Option<MeasuredEntry>,
    #[serde(default)]
    volumes: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct MeasuredEntry {
    per_s: f64,
    on: String,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum ApartWord {
    Hosts,
    Domains,
}

/// A table of the file: where it is, and what it is about.
struct At<'a> {
    text: &'a str,
    from: usize,
    object: String,
}

impl At<'_> {
    /// An error about one of its keys.
    fn error(&self, key: &str, cause: impl Into<String>) -> LineError {
        let line = line_of(self.text, self.from) + self.line_below(&[key]);
        LineError { line, key: format!("{}: {key}", self.object), cause: cause.into() }
    }

    /// An error about a key of the table that one of its keys is.
    fn senseless(&self, key: &str, error: &Senseless) -> LineError {
        let inner = error.key.split(['.', '[']).next().unwrap_or_default();
        let line = line_of(self.text, self.from) + self.line_below(&[key, inner]);
        LineError { line, key: format!("{}: {key}", self.object), cause: error.to_string() }
    }

    /// The line of the last of nested keys that is found, counted from that of the table, which ends where the next one of a list begins.
    fn line_below(&self, keys: &[&str]) -> usize {
        let table = self.text.get(self.from..).unwrap_or_default();
        let own: Vec<&str> = table
            .lines()
            .enumerate()
            .take_while(|(at, line)| *at == 0 || !line.starts_with("[["))
            .map(|it| it.1)
            .collect();
        let mut at = 0;
        for key in keys {
            let is_key = |line: &&str| {
                let is_header = line.starts_with('[') && line.trim_end().ends_with(&format!(".{key}]"));
                let rest = line.trim_start().strip_prefix(key).unwrap_or_default();
                is_header || rest.starts_with('.') || rest.trim_start().starts_with('=')
            };
            at += own[at..].iter().position(is_key).unwrap_or_default();
        }
        at
    }

    fn bytes(&self, key: &str, text: &str) -> Result<Bytes, LineError> {
        text.parse().map_err(|error: bulkhead_core::units::ParseBytesError| self.error(key, error.to_string()))
    }

    /// A number above 0.
    fn positive(&self, key: &str, value: f64) -> Result<f64, LineError> {
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(self.error(key, format!("{value} is not a number above 0")))
        }
    }

    fn part(&self, key: &str, value: f64) -> Result<f64, LineError> {
        if (0.0..=1.0).contains(&value) {
            Ok(value)
        } else {
            Err(self.error(key, format!("{value} is not between 0 and 1")))
        }
    }

    fn name(&self, key: &str, name: &str) -> Result<(), LineError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        // Not an option: names become arguments of printed commands.
        if name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.len() <= 128 && name.chars().all(is_plain) {
            return Ok(());
        }
        Err(self.error(
            key,
            format!("{name:?} is not a name: use letters, digits, '.', '_' and '-', a letter or digit first"),
        ))
    }
}

/// Reads a fleet file; `read` returns the text of a file that it names.
///
/// # Errors
/// The first value that cannot be used, with its line and key.
pub fn parse(text: &str, read: &dyn Fn(&Path) -> Result<String, String>) -> Result<FleetFile, LineError> {
    let file: File = toml::from_str(text).map_err(|error| LineError {
        line: error.span().map_or(1, |span| line_of(text, span.start)),
        key: String::new(),
        cause: error.message().to_owned(),
    })?;
    let top = At { text, from: 0, object: "fleet".to_owned() };
    let mut parser = Parser { floor: top.part("floor", file.floor)?, ..Parser::empty(text, read) };
    parser.fleet.has_shares = file.divided_by == DividedBy::Shares;
    parser.fleet.is_journal_shared = file.layout == Layout::SharedFileSystem;
    file.device.iter().try_for_each(|entry| parser.kind(entry))?;
    file.host.iter().try_for_each(|entry| parser.host(entry))?;
    if parser.fleet.machines.is_empty() {
        return Err(LineError { line: 1, key: "host".to_owned(), cause: "the fleet has none".to_owned() });
    }
    file.workload.iter().try_for_each(|entry| parser.workload(entry))?;
    let Parser { fleet, pools, volumes, corrections, unknown, .. } = parser;
    Ok(FleetFile { fleet, pools, volumes, corrections, unknown })
}

struct Parser<'a> {
    text: &'a str,
    read: &'a dyn Fn(&Path) -> Result<String, String>,
    floor: f64,
    kinds: BTreeMap<String, usize>,
    machines: BTreeMap<String, usize>,
    names: BTreeMap<String, usize>,
    fleet: Fleet,
    pools: Vec<Vec<Option<String>>>,
    volumes: Vec<Vec<String>>,
    corrections: Vec<Correction>,
    unknown: Vec<Unknown>,
}

impl<'a> Parser<'a> {
    fn empty(text: &'a str, read: &'a dyn Fn(&Path) -> Result<String, String>) -> Self {
        Self {
            text,
            read,
            floor: 0.0,
            kinds: BTreeMap::new(),
            machines: BTreeMap::new(),
            names: BTreeMap::new(),
            fleet: Fleet::default(),
            pools: Vec::new(),
            volumes: Vec::new(),
            corrections: Vec::new(),
            unknown: Vec::new(),
        }
    }

    fn at<T>(&self, entry: &Spanned<T>, object: String) -> At<'a> {
        At { text: self.text, from: entry.span().start, object }
    }

    fn given<T: DeserializeOwned + Clone>(&self, at: &At<'_>, key: &str, given: &Given<T>) -> Result<T, LineError> {
        match given {
            Given::Here(value) => Ok(value.clone()),
            Given::File(path) => {
                let text = (self.read)(path).map_err(|error| at.error(key, error))?;
                let parsed = serde_json::from_str(&text);
                parsed.map_err(|error| at.error(key, format!("{}: {error}", path.display())))
            }
        }
    }

    fn kind(&mut self, entry: &Spanned<KindEntry>) -> Result<(), LineError> {
        let its = entry.get_ref();
        let at = self.at(entry, format!("device {:?}", its.kind));
        at.name("kind", &its.kind)?;
        let costs = self.given(&at, "costs", &its.costs)?;
        costs.check().map_err(|error| at.senseless("costs", &error))?;
        if self.kinds.insert(its.kind.clone(), self.fleet.costs.len()).is_some() {
            return Err(at.error("kind", "there is another kind of this name"));
        }
        self.fleet.costs.push(costs);
        Ok(())
    }

    fn host(&mut self, entry: &Spanned<HostEntry>) -> Result<(), LineError> {
        let its = entry.get_ref();
        let at = self.at(entry, format!("host {:?}", its.name));
        at.name("name", &its.name)?;
        if let Some(report) = &its.report {
            return self.reported(&at, its, report);
        }
        let missing = |key: &str| at.error(key, "it is missing, and there is no `report`");
        let cpus = at.positive("cpus", its.cpus.ok_or_else(|| missing("cpus"))?)?;
        let memory = at.bytes("memory", its.memory.as_ref().ok_or_else(|| missing("memory"))?)?;
        let entries = its.devices.as_ref().ok_or_else(|| missing("devices"))?;
        if entries.is_empty() {
            return Err(at.error("devices", "it has none"));
        }
        let (mut devices, mut pools) = (Vec::new(), Vec::new());
        for device in entries {
            at.name("devices", &device.name)?;
            let costs = self.kinds.get(&device.kind).copied();
            let costs = costs
                .ok_or_else(|| at.error("devices", format!("there is no [[device]] of kind {:?}", device.kind)))?;
            if devices.iter().any(|other: &Device| other.name == device.name) {
                return Err(at.error("devices", format!("{:?} is there twice", device.name)));
            }
            let space = at.bytes("devices", &device.space)?;
            devices.push(Device { name: device.name.clone(), costs, space });
            if let Some(pool) = &device.pool {
                at.name("devices", pool)?;
            }
            pools.push(device.pool.clone());
        }
        for name in names(&at, &its.name, its.count, MAX_HOSTS - self.fleet.machines.len())? {
            if self.machines.insert(name.clone(), self.fleet.machines.len()).is_some() {
                return Err(at.error("name", format!("there is another host {name:?}")));
            }
            let domain = its.domain.clone().unwrap_or_else(|| name.clone());
            self.fleet.machines.push(Machine { name, domain, cpus, memory, devices: devices.clone() });
            self.pools.push(pools.clone());
        }
        Ok(())
    }

    fn workload(&mut self, entry: &Spanned<WorkloadEntry>) -> Result<(), LineError> {
        let its = entry.get_ref();
        let at = self.at(entry, format!("workload {:?}", its.name));
        at.name("name", &its.name)?;
        let demand = self.given(&at, "demand", &its.demand)?;
        demand.check().map_err(|error| at.senseless("demand", &error))?;
        let demand = match &its.measured {
            Some(measured) => {
                let per_s = at.positive("measured", measured.per_s)?;
                let place = self.place(&at, "measured", &measured.on)?;
                self.corrected(&its.name, demand, per_s, place)
            }
            None => demand,
        };
        let demand = self.interned(demand);
        let group = self.group(&at, its)?;
        let latency = |text: &String| {
            let latency: Result<Latency, _> = text.parse();
            latency.map(|latency| latency.us() as f64 / 1e6).map_err(|error| at.error("fsync-p99", error.to_string()))
        };
        let now = its.on.as_ref().map(|on| self.place(&at, "on", on)).transpose()?;
        let workload = Workload {
            name: String::new(),
            demand,
            share: its.share.map_or(Ok(100.0), |share| at.positive("share", share))?,
            space: its.space.as_ref().map_or(Ok(Bytes(0)), |space| at.bytes("space", space))?,
            importance: its.importance.map_or(Ok(1.0), |importance| at.positive("importance", importance))?,
            floor: its.floor.map_or(Ok(self.floor), |floor| at.part("floor", floor))?,
            fsync_p99: its.fsync_p99.as_ref().map(latency).transpose()?,
            group,
            only: its.only.iter().map(|name| self.machine(&at, "only", name)).collect::<Result<_, _>>()?,
            now,
        };
        if its.count.is_some() && !its.volumes.is_empty() {
            return Err(at.error("volumes", "copies have volumes of their own: list such workloads one by one"));
        }
        for name in names(&at, &its.name, its.count, MAX_WORKLOADS - self.fleet.workloads.len())? {
            if self.names.insert(name.clone(), self.fleet.workloads.len()).is_some() {
                return Err(at.error("name", format!("there is another workload {name:?}")));
            }
            self.fleet.workloads.push(Workload { name, ..workload.clone() });
            self.volumes.push(its.volumes.clone());
        }
        Ok(())
    }

    fn machine(&self, at: &At<'_>, key: &str, name: &str) -> Result<usize, LineError> {
        let known = self.machines.get(name).copied();
        known.ok_or_else(|| at.error(key, format!("there is no host {name:?}")))
    }

    /// The place that `HOST/DEVICE` names.
    fn place(&self, at: &At<'_>, key: &str, named: &str) -> Result<Place, LineError> {
        let (host, device) =
            named.split_once('/').ok_or_else(|| at.error(key, format!("{named:?} is not HOST/DEVICE")))?;
        let machine = self.machine(at, key, host)?;
        let device = self.fleet.machines[machine].devices.iter().position(|its| its.name == device);
        let device =
            device.ok_or_else(|| at.error(key, format!("host {host:?} has no device of this name: {named:?}")))?;
        Ok(Place { machine, device })
    }

    /// The index of a demand.
    fn interned(&mut self, demand: Demand) -> usize {
        let known = self.fleet.demands.iter().position(|known| *known == demand);
        known.unwrap_or_else(|| {
            self.fleet.demands.push(demand);
            self.fleet.demands.len() - 1
        })
    }

    /// A demand, corrected by what its workload achieved alone at a place.
    fn corrected(&mut self, workload: &str, demand: Demand, per_s: f64, place: Place) -> Demand {
        let machine = &self.fleet.machines[place.machine];
        let host = Host {
            cpus: machine.cpus,
            cache: Bytes(machine.memory.0.saturating_sub(demand.memory.0)),
            devices: &[&self.fleet.costs[machine.devices[place.device].costs]],
            is_journal_shared: self.fleet.is_journal_shared,
            has_shares: self.fleet.has_shares,
        };
        let Fitted { demand, without, with } = fit(&host, 0, &demand, per_s);
        let seconds = demand.correction_seconds;
        self.corrections.push(Correction { workload: workload.to_owned(), place, per_s, without, with, seconds });
        demand
    }

    /// The index of a workload's group, which its first member defines.
    fn group(&mut self, at: &At<'_>, entry: &WorkloadEntry) -> Result<Option<usize>, LineError> {
        let Some(name) = &entry.group else {
            return if entry.apart.is_some() { Err(at.error("apart", "it is in no group")) } else { Ok(None) };
        };
        let apart = entry.apart.map(|word| if word == ApartWord::Hosts { Apart::Hosts } else { Apart::Domains });
        match self.fleet.groups.iter().position(|group| group.name == *name) {
            Some(known) if apart.is_some_and(|apart| apart != self.fleet.groups[known].apart) => {
                Err(at.error("apart", format!("another member of group {name:?} says otherwise")))
            }
            Some(known) => Ok(Some(known)),
            None => {
                self.fleet.groups.push(Group { name: name.clone(), apart: apart.unwrap_or(Apart::Hosts) });
                Ok(Some(self.fleet.groups.len() - 1))
            }
        }
    }
}

/// The names of `count` objects: the name itself, or with a number.
fn names(at: &At<'_>, name: &str, count: Option<usize>, most: usize) -> Result<Vec<String>, LineError> {
    match count {
        Some(0) => Err(at.error("count", "0 is not a number of at least 1")),
        Some(count) if count > most => {
            Err(at.error("count", format!("{count} are too many: {most} more can be planned")))
        }
        None if most == 0 => Err(at.error("name", "there are too many already")),
        Some(count) => Ok((1..=count).map(|number| format!("{name}-{number}")).collect()),
        None => Ok(vec![name.to_owned()]),
    }
}

mod reported;
#[cfg(test)]
mod tests;
