//! `kubernetes-noisy-neighbour`: a database's pod beside a noisy pod, on directories of the host and on volumes of Bulkhead's.
//!
//! The lab has started a Kubernetes of one node with the driver, its classes, a pool on the device, and the images. The four pods run
//! throughout, and loads are run in them. Full form: 6 cells x 3 rounds of about 80 s, 25 minutes; short form: 6 cells of about 60 s.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_measure::cgroup_run::wait_until;
use bulkhead_measure::experiment::hold::SETTLE;
use bulkhead_measure::experiment::{
    Choice, Extent, Frame, Method, OnProgress, Options, includes, machine, n_rounds, set_figure,
};
use bulkhead_measure::layout::Target;
use bulkhead_measure::result::{Cell, Experiment, Round, percentile};
use bulkhead_sys::fsync_trace::FsyncTrace;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::tool::Tool;
use serde_json::Value;

use crate::figure as f;

/// Its entry in the table of experiments.
pub(crate) const METHOD: Method = Method {
    name: "kubernetes-noisy-neighbour",
    what: "a database's pod beside a noisy pod, in a real Kubernetes",
    choices: |_| CELLS.map(|cell| (config(cell), cell.2.to_owned())).to_vec(),
    extent: |options| Extent::new(options, chosen(options).len(), seconds(options)).after(SET_UP_SECONDS),
    work: run,
};

const ABOUT: &str = "A pod with PostgreSQL, into which pgbench inserts (autocommit, 4 clients), alone and beside a pod with 4 writers, each of \
    which overwrites a file of 128 MiB again and again without fsync. Shared: both have a hostPath on one ext4. Bulkhead: each has a volume of \
    the StorageClass, the database's with the VolumeAttributesClass of three times the share. With promise: the database's claim has a \
    VolumeAttributesClass with `fsyncP99`, 1.5 times the p99 of the round alone, and the hold has 90 s to settle. Latencies are of all fsync and fdatasync calls of the server \
    in ext4 (its own tracepoints).";

/// Layout, controller and neighbour.
const CELLS: [(&str, &str, &str); 6] = [
    (SHARED, "none", ALONE),
    (SHARED, "none", NOISY_POD),
    (SHARED, "bfq", NOISY_POD),
    (BULKHEAD, "bfq", ALONE),
    (BULKHEAD, "bfq", NOISY_POD),
    (PROMISED, "bfq", NOISY_POD),
];
/// The layout of `hostPath`.
pub(crate) const SHARED: &str = "shared";
/// The layout of volumes.
pub(crate) const BULKHEAD: &str = "bulkhead";
/// The same with a promise for the database's fsyncs.
pub(crate) const PROMISED: &str = "bulkhead+promise";
/// The database is alone.
pub(crate) const ALONE: &str = "none";
/// It has a neighbour.
pub(crate) const NOISY_POD: &str = "noisy-pod";

/// Where the lab has mounted the file system with the pool.
const POOL: &str = "/run/filepool";
const SET_UP_SECONDS: f64 = 180.0;
/// Warm-up and window in seconds.
const FULL: (u32, u32) = (10, 30);
const QUICK: (u32, u32) = (6, 15);
/// Time for starting the loads, and for what the neighbour has written to reach the disk.
const BETWEEN_SECONDS: f64 = 25.0;
/// The promised p99, in that of the database alone.
const PROMISE: f64 = 1.5;
/// Time for a hold to settle after the promise, s: the neighbour's rate is halved at most every 10 s, and five times before fsyncs are no longer
/// delayed by what is in the drive's cache.
const PROMISE_SETTLE: u32 = 2 * SETTLE;
/// Time limit of a command in the cluster.
const LIMIT: Duration = Duration::from_secs(900);
/// The user of the database in its image.
const POSTGRES: u32 = 999;
/// The pods, with words that are replaced.
const PODS: &str = include_str!("kubernetes.yaml");
/// Size of a file that the neighbour writes, MiB.
const FILE_MIB: u64 = 128;

/// The layout whose pods a cell uses: a promise is made to those of volumes.
pub(crate) fn without_promise(layout: &str) -> &str {
    if layout == PROMISED { BULKHEAD } else { layout }
}

fn config((layout, controller, _): (&str, &str, &str)) -> String {
    format!("{layout}/{controller}")
}

fn times(quick: bool) -> (u32, u32) {
    if quick { QUICK } else { FULL }
}

fn seconds(options: &Options) -> f64 {
    let (warm_up, window) = times(options.quick);
    f64::from(warm_up + window) + BETWEEN_SECONDS
}

fn chosen(options: &Options) -> Vec<(&'static str, &'static str, &'static str)> {
    let is_chosen = |cell: &(&str, &str, &str)| {
        let (config, neighbour): Choice = (config(*cell), cell.2.to_owned());
        includes(&options.configs, &config) && includes(&options.neighbours, &neighbour)
    };
    CELLS.into_iter().filter(is_chosen).collect()
}

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    let Target::Device { path, .. } = &options.target else { bail!("{} needs a disk", METHOD.name) };
    let device = path.file_name().context("the device has no name")?.to_string_lossy().into_owned();
    let mut frame = Frame::new(METHOD.name, ABOUT, options, progress);
    frame.say("starting the pods");
    let cluster = Cluster { options, device };
    cluster.deploy()?;
    let dev = fs::metadata(path).with_context(|| format!("cannot examine {}", path.display()))?.rdev();
    frame.experiment.disk = machine::disk(&cluster.device, dev_no(dev), &options.simulated);
    let kubectl = cluster.kubectl(&["version", "--output=json"])?;
    let versions: Value = serde_json::from_str(&kubectl).context("the version of Kubernetes")?;
    if let Some(version) = versions["serverVersion"]["gitVersion"].as_str() {
        frame.experiment.machine.programs.insert("kubernetes".to_owned(), version.to_owned());
    }
    let postgres = cluster.in_pod("db-shared", &["/bin/psql", "--version"])?;
    frame.experiment.machine.programs.insert("postgres".to_owned(), postgres.trim().to_owned());
    let (warm_up, window) = times(options.quick);
    frame.experiment.commands.push(format!("{}; window: the last {window} s", pgbench(warm_up + window).join(" ")));
    frame.experiment.commands.push(noise(warm_up + window));
    let cells = chosen(options);
    let cell = |(layout, controller, neighbour): &(&str, &str, &str)| Cell {
        layout: (*layout).to_owned(),
        controller: (*controller).to_owned(),
        neighbour: (*neighbour).to_owned(),
        rounds: Vec::new(),
    };
    frame.experiment.cells = cells.iter().map(cell).collect();
    let n_rounds = n_rounds(options);
    frame.of = usize::try_from(n_rounds).context("too many rounds")? * cells.len();
    for number in 1..=n_rounds {
        let mut promised = None;
        for (index, (layout, controller, neighbour)) in cells.iter().enumerate() {
            options.cancel.check()?;
            let id = frame.experiment.cells[index].id();
            frame.say(&format!("round {number} of {n_rounds}: {id}"));
            let promise = match *layout {
                PROMISED => Some(promised.context("the promise is a multiple of bulkhead/bfq/none")?),
                _ => None,
            };
            let round = cluster.round((layout, controller, neighbour), promise).with_context(|| id)?;
            if (*layout, *neighbour) == (BULKHEAD, ALONE) {
                let alone_ms = round.figures.get(f::POD_FSYNC_P99_MS).context("the database alone has no fsync")?;
                promised = Some(PROMISE * alone_ms);
                cluster.create_class(&text_of(PROMISE * alone_ms))?;
            }
            frame.finish(index, round)?;
        }
    }
    cluster.kubectl(&["delete", "pods,pvc", "--all", "--timeout=10m"])?;
    frame.write()?;
    Ok(frame.experiment)
}

/// A latency as parameters of classes have it.
fn text_of(ms: f64) -> String {
    format!("{}us", (ms * 1e3).round())
}

/// The name of the class with a promise.
fn class_of(p99: &str) -> String {
    format!("fsync-{p99}")
}

/// A VolumeAttributesClass with a promise.
fn promising_class(p99: &str) -> String {
    let name = class_of(p99);
    format!(
        "apiVersion: storage.k8s.io/v1\nkind: VolumeAttributesClass\nmetadata: {{name: {name}}}\ndriverName: csi.bulkhead.dev\n\
         parameters: {{fsyncP99: {p99}}}\n"
    )
}

/// The load of the database, for this many seconds.
fn pgbench(seconds: u32) -> Vec<String> {
    let words =
        format!("/bin/pgbench --no-vacuum --file=/tmp/insert.sql --client=4 --progress=1 --time={seconds} postgres");
    words.split(' ').map(str::to_owned).collect()
}

/// The load of the neighbour, for this many seconds: it prints a line for each file that it has written.
fn noise(seconds: u32) -> String {
    format!(
        "end=$(($(date +%s) + {seconds})); for i in 1 2 3 4; do while [ $(date +%s) -lt $end ]; do \
         dd if=/dev/zero of=/data/$i bs=1M count={FILE_MIB} conv=notrunc 2>/dev/null; echo $i; done & done; wait"
    )
}

/// The Kubernetes that the lab has started.
struct Cluster<'a> {
    options: &'a Options,
    /// The kernel's name of the disk.
    device: String,
}

impl Cluster<'_> {
    /// Starts the pods, and waits until they are ready.
    fn deploy(&self) -> Result<()> {
        let host = Path::new(POOL).join("host");
        for (name, owner) in [("db", POSTGRES), ("noise", 0)] {
            let path = host.join(name);
            fs::create_dir_all(&path)
                .and_then(|()| chown(&path, Some(owner), Some(owner)))
                .with_context(|| format!("cannot prepare {}", path.display()))?;
        }
        let in_host = |name: &str| format!("hostPath: {{path: {}, type: Directory}}", host.join(name).display());
        let in_claim = |name: &str| format!("persistentVolumeClaim: {{claimName: {name}}}");
        let pods = PODS.split("---\n").take(2).collect::<Vec<_>>().join("---\n");
        let claims = PODS.split("---\n").skip(2).collect::<Vec<_>>().join("---\n");
        let of = |layout: &str, volume: &dyn Fn(&str) -> String| {
            pods.replace("LAYOUT", layout).replace("DATABASE", &volume("db")).replace("NOISE", &volume("noise"))
        };
        let manifest = format!("{claims}---\n{}---\n{}", of(SHARED, &in_host), of(BULKHEAD, &in_claim));
        let path = "/var/lib/kubernetes/pods.yaml";
        fs::write(path, manifest).with_context(|| format!("cannot write {path}"))?;
        self.kubectl(&["apply", "--validate=strict", "--filename", path])?;
        self.create_class("none")?;
        let ready = self.kubectl(&["wait", "--for=condition=Ready", "pods", "--all", "--timeout=14m"]);
        ready.map(drop).map_err(|error| {
            let events = self.kubectl(&["get", "pods,pvc,events", "--output=wide"]);
            error.context(events.unwrap_or_else(|error| format!("{error:#}")))
        })
    }

    /// Measures one cell.
    fn round(&self, (layout, controller, neighbour): (&str, &str, &str), promise_ms: Option<f64>) -> Result<Round> {
        let layout = without_promise(layout);
        let beside = neighbour == NOISY_POD;
        self.bulkhead(&["device", "control", &self.device, "--policy", controller])?;
        let (database, neighbour) = (format!("db-{layout}"), format!("noise-{layout}"));
        let dev = self.file_system(layout)?;
        let (mut warm_up, window) = times(self.options.quick);
        if let Some(ms) = promise_ms {
            self.promise(&text_of(ms))?;
            warm_up = PROMISE_SETTLE;
        }
        let total = warm_up + window;
        let mut round = Round::default();
        set_figure(&mut round, "promised_p99_ms", promise_ms);
        let (inserted, written, calls) = thread::scope(|scope| {
            let noise = beside.then(|| scope.spawn(|| self.in_pod(&neighbour, &["/bin/sh", "-c", &noise(total + 4)])));
            let words = pgbench(total + 2);
            let client = scope.spawn(move || {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                self.in_pod(&database, &words)
            });
            let traced = || -> Result<_> {
                let cancel = &self.options.cancel;
                wait_until(Instant::now() + Duration::from_secs(u64::from(warm_up)), cancel)?;
                let trace = FsyncTrace::start(&Roots::host(), dev)?;
                wait_until(Instant::now() + Duration::from_secs(u64::from(window)), cancel)?;
                let server = self.server(layout)?;
                let mut calls = trace.stop()?;
                calls.retain(|call| server.contains(&call.tid));
                Ok(calls)
            };
            let calls = traced();
            let join = |thread: thread::ScopedJoinHandle<'_, Result<String>>| {
                thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the load panicked")))
            };
            let inserted = join(client).context("pgbench");
            let written = noise.map(|thread| join(thread).context("the neighbour")).transpose();
            anyhow::Ok((inserted?, written?, calls?))
        })?;
        set_figure(&mut round, f::POD_INSERTS_PER_S, inserts_per_s(&inserted, warm_up));
        let mut ms: Vec<f64> = calls.iter().map(|call| call.ms).collect();
        ms.sort_by(f64::total_cmp);
        set_figure(
            &mut round,
            f::POD_FSYNC_MEAN_MS,
            (!ms.is_empty()).then(|| ms.iter().sum::<f64>() / ms.len() as f64),
        );
        set_figure(&mut round, f::POD_FSYNC_P99_MS, percentile(&ms, 99.0));
        set_figure(&mut round, "pod_fsyncs_per_s", ms.len() as f64 / f64::from(window));
        if let Some(written) = written {
            let bytes = written.lines().count() as u64 * FILE_MIB * Bytes::MIB;
            set_figure(&mut round, f::POD_NEIGHBOUR_BYTES_PER_S, bytes as f64 / f64::from(total + 4));
        }
        let ms = calls.iter().map(|call| (call.ms * 1e3).round() / 1e3).collect();
        round.series.insert("fsync_ms".to_owned(), ms);
        if promise_ms.is_some() {
            self.promise("none")?;
        }
        // What the neighbour has written must not be written in the next round.
        self.in_pod(&neighbour, &["/bin/sh", "-c", "rm -f /data/[0-9]; sync"])?;
        Ok(round)
    }

    /// The device of the file system with the database.
    fn file_system(&self, layout: &str) -> Result<DevNo> {
        let path = match layout {
            SHARED => POOL.to_owned(),
            _ => {
                let volume = format!("file/{}", self.volume_of("db")?);
                let said = self.bulkhead(&["--output", "json", "volume", "inspect", &volume])?;
                let view: Value = serde_json::from_str(&said).context("the volume's description")?;
                view["mounted_at"].as_str().with_context(|| format!("{volume} is not mounted"))?.to_owned()
            }
        };
        Ok(dev_no(fs::metadata(&path).with_context(|| format!("cannot examine {path}"))?.dev()))
    }

    /// Creates a VolumeAttributesClass with this promise.
    fn create_class(&self, p99: &str) -> Result<()> {
        let path = "/var/lib/kubernetes/promise.yaml";
        fs::write(path, promising_class(p99)).with_context(|| format!("cannot write {path}"))?;
        self.kubectl(&["apply", "--validate=strict", "--filename", path]).map(drop)
    }

    /// Gives the database's claim the class with this promise, and waits until it has it.
    fn promise(&self, p99: &str) -> Result<()> {
        let class = class_of(p99);
        let patch = format!("{{\"spec\": {{\"volumeAttributesClassName\": \"{class}\"}}}}");
        self.kubectl(&["patch", "pvc", "db", "--patch", &patch])?;
        let reached = format!("--for=jsonpath={{.status.currentVolumeAttributesClassName}}={class}");
        let waited = self.kubectl(&["wait", &reached, "pvc/db", "--timeout=10m"]);
        waited.map(drop).with_context(|| self.report())
    }

    /// What an operator would look at after a claim did not get its class.
    fn report(&self) -> String {
        let logs = |container| {
            ["--namespace=bulkhead", "logs", "daemonset/bulkhead-csi", "--tail=40", "--container", container]
        };
        let questions = [&["describe", "pvc", "db"][..], &logs("csi-resizer"), &logs("driver")];
        let mut report: Vec<_> = questions.iter().map(|words| self.kubectl(words)).collect();
        report.push(self.bulkhead(&["job", "ls"]));
        report.push(self.bulkhead(&["host"]));
        report.into_iter().map(|said| said.unwrap_or_else(|error| format!("{error:#}"))).collect::<Vec<_>>().join("\n")
    }

    /// The name of a claim's volume, which is also that of its tenant.
    fn volume_of(&self, claim: &str) -> Result<String> {
        Ok(self.kubectl(&["get", "pvc", claim, "--output=jsonpath={.spec.volumeName}"])?.trim().to_owned())
    }

    /// Runs `bulkhead`; returns its output.
    fn bulkhead(&self, words: &[&str]) -> Result<String> {
        Ok(Tool::bulkhead(&self.options.program).args(words).limit(LIMIT).run()?.stdout)
    }

    /// The processes of the database's server.
    fn server(&self, layout: &str) -> Result<HashSet<u32>> {
        let pod = format!("db-{layout}");
        let uid = self.kubectl(&["get", "pod", &pod, "--output=jsonpath={.metadata.uid}"])?;
        let mut found = HashSet::new();
        for entry in fs::read_dir("/proc").context("cannot list processes")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
            if read("cgroup").contains(uid.trim()) && read("comm").trim() == "postgres" {
                found.insert(pid);
            }
        }
        if found.is_empty() {
            bail!("{pod} has no process of the database");
        }
        Ok(found)
    }

    fn in_pod(&self, pod: &str, words: &[&str]) -> Result<String> {
        self.kubectl(&[&["exec", pod, "--"], words].concat())
    }

    /// Runs `kubectl`; returns both outputs.
    fn kubectl(&self, words: &[&str]) -> Result<String> {
        let said =
            Tool::new("kubectl").arg("--kubeconfig=/var/lib/kubernetes/admin.conf").args(words).limit(LIMIT).run()?;
        Ok(said.stdout + &said.stderr)
    }
}

/// The mean of what pgbench reports for each second after the warm-up.
fn inserts_per_s(said: &str, warm_up: u32) -> Option<f64> {
    let rates: Vec<f64> = said
        .lines()
        .filter_map(|line| {
            let (at, rest) = line.strip_prefix("progress: ")?.split_once(" s, ")?;
            (at.parse::<f64>().ok()? > f64::from(warm_up)).then(|| rest.split_once(" tps")?.0.parse::<f64>().ok())?
        })
        .collect();
    (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
}

fn dev_no(raw: u64) -> DevNo {
    DevNo::new(rustix::fs::major(raw), rustix::fs::minor(raw))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_inserts_is_that_after_the_warm_up() {
        let said = "pgbench (17.6)\nprogress: 1.0 s, 10.0 tps, lat 40.1 ms stddev 0.1, 0 failed\n\
                    progress: 2.0 s, 30.0 tps, lat 40.1 ms stddev 0.1, 0 failed\nprogress: 3.0 s, 50.0 tps, lat 1 ms stddev 0.1, 0 failed\ntps = 1\n";
        assert_eq!(inserts_per_s(said, 1), Some(40.0));
        assert_eq!(inserts_per_s("", 1), None);
    }

    #[test]
    fn the_class_with_a_promise_has_the_parameter_of_the_driver() {
        let manifest = promising_class("16024us");
        assert!(manifest.contains("metadata: {name: fsync-16024us}\n"), "{manifest}");
        assert!(manifest.ends_with("\nparameters: {fsyncP99: 16024us}\n"), "{manifest}");
    }

    #[test]
    fn the_manifest_has_two_pods_and_two_claims() {
        let kinds: Vec<&str> = PODS.lines().filter_map(|line| line.strip_prefix("kind: ")).collect();
        assert_eq!(kinds, ["Pod", "Pod", "PersistentVolumeClaim", "PersistentVolumeClaim"]);
        assert!(["LAYOUT", "DATABASE", "NOISE"].iter().all(|word| PODS.contains(word)));
    }
}
