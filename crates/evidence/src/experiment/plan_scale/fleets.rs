//! Random fleets of `plan-scale`: what their workloads demand, and their files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bulkhead_advise::fleet::parse;
use bulkhead_advise::place::Fleet;
use bulkhead_core::demand::{Access, Demand, Durable, MissRatios, Purpose, Requests};
use bulkhead_core::units::Bytes;
use bulkhead_measure::load::Random;

/// Costs of two kinds of devices, as measured in the lab; the third is a drive that is ten times as fast as the second.
const HDD: &str = include_str!("../../../../../docs/plan/hdd.json");
const SSD: &str = include_str!("../../../../../docs/plan/ssd.json");

/// A directory for a fleet's files, removed with this value.
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn create() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("bulkhead-plan-scale-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    /// Writes a random fleet; returns its file.
    pub(super) fn write(&self, random: &mut Random, workloads: usize, hosts: usize, kinds: usize) -> Result<PathBuf> {
        let demands: Vec<Demand> = (0..kinds).map(|_| demand(random)).collect();
        for (index, demand) in demands.iter().enumerate() {
            self.put(&demand_file(index), &serde_json::to_string(demand)?)?;
        }
        for (name, costs) in costs()? {
            self.put(&format!("{name}.json"), &costs)?;
        }
        let text = text(random, workloads, hosts, kinds)?;
        self.put("fleet.toml", &text)
    }

    fn put(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Left in the temporary directory otherwise.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A fleet of 6 to 10 workloads on 3 or 4 hosts.
pub(super) fn small(random: &mut Random) -> Result<Fleet> {
    let (workloads, hosts) = (6 + random.below(5), 3 + random.below(2));
    let (workloads, hosts) = (usize::try_from(workloads)?, usize::try_from(hosts)?);
    let demands: Vec<String> =
        (0..workloads).map(|_| Ok(serde_json::to_string(&demand(random))?)).collect::<Result<_>>()?;
    let costs = costs()?;
    let read = |path: &Path| -> Result<String, String> {
        let name = path.to_string_lossy();
        let of_device = costs.iter().find(|(device, _)| *name == format!("{device}.json")).map(|(_, text)| text);
        let of_workload = (0..workloads).find(|index| *name == demand_file(*index)).map(|index| &demands[index]);
        of_device.or(of_workload).cloned().ok_or_else(|| format!("no file {name}"))
    };
    let text = text(random, workloads, hosts, workloads)?;
    Ok(parse(&text, &read).map_err(|error| anyhow::anyhow!("a random fleet: {error}"))?.fleet)
}

fn demand_file(kind: usize) -> String {
    format!("demand-{kind}.json")
}

/// Each kind of devices with its costs.
fn costs() -> Result<[(&'static str, String); 3]> {
    let mut fast: serde_json::Value = serde_json::from_str(SSD).context("the costs of an SSD")?;
    speed_up(&mut fast);
    Ok([("hdd", HDD.to_owned()), ("ssd", SSD.to_owned()), ("nvme", fast.to_string())])
}

/// A tenth of each latency, ten times each rate.
fn speed_up(costs: &mut serde_json::Value) {
    let Some(keys) = costs.as_object_mut() else { return };
    for (key, value) in keys {
        match (key.as_str(), value.as_f64()) {
            ("latency-us", Some(latency)) => *value = (latency / 10.0).into(),
            ("per-s", Some(rate)) => *value = (rate * 10.0).into(),
            _ => speed_up(value),
        }
    }
}

fn text(random: &mut Random, workloads: usize, hosts: usize, kinds: usize) -> Result<String> {
    let mut text = String::new();
    for kind in ["hdd", "ssd", "nvme"] {
        writeln!(text, "[[device]]\nkind = \"{kind}\"\ncosts = \"{kind}.json\"\n")?;
    }
    for host in 0..hosts {
        let device = |name: &str, kind: &str, tib: u32| {
            format!("{{ name = \"{name}\", kind = \"{kind}\", space = \"{tib}T\" }}")
        };
        let devices = match (host % 2, random.below(2)) {
            (0, 0) => device("sda", "hdd", 4),
            (0, _) => device("sda", "ssd", 4),
            _ => format!("{}, {}", device("nvme0n1", "nvme", 2), device("nvme1n1", "nvme", 2)),
        };
        let (cpus, memory) = (8 << random.below(3), 32 << random.below(3));
        writeln!(
            text,
            "[[host]]\nname = \"host-{host}\"\ncpus = {cpus}\nmemory = \"{memory}G\"\ndevices = [{devices}]\n"
        )?;
    }
    for workload in 0..workloads {
        let kind = if kinds >= workloads { workload } else { usize::try_from(random.below(kinds as u64))? };
        let (share, space) = (50 << random.below(4), 10 << random.below(5));
        writeln!(
            text,
            "[[workload]]\nname = \"workload-{workload}\"\ndemand = \"{}\"\nshare = {share}\nspace = \"{space}G\"",
            demand_file(kind)
        )?;
        if workload % 30 < 3 {
            writeln!(text, "group = \"group-{}\"", workload / 30)?;
        }
        text.push('\n');
    }
    Ok(text)
}

/// Between two numbers, each order of magnitude as likely as another.
fn between(random: &mut Random, least: f64, most: f64) -> f64 {
    least * (most / least).powf(random.unit())
}

/// Databases, readers, writers and streams, and mixtures of them.
fn demand(random: &mut Random) -> Demand {
    let small = between(random, 4096.0, 65_536.0).round();
    let large = between(random, 131_072.0, 1_048_576.0).round();
    let per_operation = between(random, 0.2, 5.0);
    let request = |access, bytes, purpose| Requests { access, bytes, per_operation, purpose };
    let mut requests = Vec::new();
    let mut miss_ratios = MissRatios::default();
    match random.below(5) {
        0 => requests.push(request(Access::RandomRead, small, Purpose::Direct)),
        1 => {
            requests.push(request(Access::RandomRead, small, Purpose::Cached));
            miss_ratios = MissRatios::uniform(Bytes::mib(1 << (8 + random.below(7))));
        }
        2 => requests.push(request(Access::RandomWrite, small, Purpose::Direct)),
        3 => requests.push(request(Access::SequentialWrite, large, Purpose::WriteBack)),
        _ => requests.push(request(Access::SequentialRead, large, Purpose::Direct)),
    }
    let durable = (random.below(5) < 2).then(|| Durable {
        per_operation: between(random, 0.1, 1.0),
        chain: between(random, 1.0, 3.0),
        is_shared: random.below(2) == 0,
    });
    Demand {
        clients: between(random, 1.0, 32.0).round(),
        think_seconds: between(random, 1e-4, 0.05),
        cpu_seconds: between(random, 2e-5, 2e-3),
        requests,
        durable,
        miss_ratios,
        memory: Bytes::mib(1 << (6 + random.below(5))),
        correction_seconds: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fleets_are_valid_and_the_same_in_each_run() {
        let of = |seed: usize| small(&mut Random::new(seed)).unwrap();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        for seed in 0..20 {
            let fleet = of(seed);
            assert!((6..=10).contains(&fleet.workloads.len()) && (3..=4).contains(&fleet.machines.len()));
        }
        let directory = Directory::create().unwrap();
        let file = directory.write(&mut Random::new(3), 100, 10, 5).unwrap();
        let read = |path: &Path| std::fs::read_to_string(file.with_file_name(path)).map_err(|error| error.to_string());
        let fleet = parse(&std::fs::read_to_string(&file).unwrap(), &read).unwrap().fleet;
        assert_eq!((fleet.workloads.len(), fleet.machines.len(), fleet.demands.len()), (100, 10, 5));
        let path = directory.0.clone();
        drop(directory);
        assert!(!path.exists());
    }
}
