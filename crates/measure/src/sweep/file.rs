//! The sweep file: workloads, and how many copies of each run together, in TOML. docs/sweep.md describes it.
//!
//! Owns: its keys, their defaults, and errors that name line and key. Does not: read files, or run anything.

use std::collections::BTreeMap;
use std::path::Path;

use bulkhead_core::error::{LineError, line_of};
use bulkhead_core::model::VolumeFs;
use bulkhead_core::name::Name;
use bulkhead_core::units::{Bytes, Share};
use regex_lite::Regex;
use serde::Deserialize;
use toml::Spanned;

/// Most copies that run together.
const MAX_COPIES: u32 = 256;
/// Longest run, s.
const MAX_SECONDS: f64 = 86_400.0;
/// Size of a volume that has none in the file.
const SIZE: Bytes = Bytes::mib(1024);

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The pool in which each copy gets a volume.
    pub pool: Name,
    /// Longest time of a run, s: it ends earlier once all rates are known well enough.
    pub seconds: f64,
    /// How exactly rates are to be known: half of the width of the 95 % confidence interval, as a part of the mean.
    pub within: f64,
    /// The workloads, by name.
    pub workloads: Vec<Workload>,
    /// Which run together, in this order.
    pub mixes: Vec<Mix>,
}

/// A command that prints its rate.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// A command that is run once in each volume before.
    pub prepare: Vec<String>,
    /// Finds operations per second in a line of its output.
    pub rate: Regex,
    /// Finds a 99th percentile of latencies there, ms.
    pub p99_ms: Option<Regex>,
    /// Size of a copy's volume.
    pub size: Bytes,
    /// Its file system.
    pub fs: VolumeFs,
    /// The share of a copy's tenant.
    pub share: Share,
}

/// Copies of workloads that run together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Index of the workload in [`Sweep::workloads`], and the number of its copies.
    pub copies: Vec<(usize, u32)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    pool: Spanned<String>,
    seconds: Option<Spanned<f64>>,
    within_percent: Option<Spanned<f64>>,
    #[serde(default)]
    workload: BTreeMap<String, Spanned<Entry>>,
    #[serde(default)]
    mix: Vec<Spanned<BTreeMap<String, Numbers>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Entry {
    command: Spanned<Vec<String>>,
    #[serde(default)]
    prepare: Vec<String>,
    rate: Spanned<String>,
    latency_p99_ms: Option<Spanned<String>>,
    size: Option<Spanned<String>>,
    fs: Option<VolumeFs>,
    share: Option<Spanned<u32>>,
}

/// Numbers of copies.
#[derive(Deserialize)]
#[serde(untagged)]
enum Numbers {
    One(u32),
    Several(Vec<u32>),
}

impl Numbers {
    fn as_slice(&self) -> &[u32] {
        match self {
            Self::One(number) => std::slice::from_ref(number),
            Self::Several(numbers) => numbers,
        }
    }
}

/// Reads a sweep file.
///
/// # Errors
/// The first value that cannot be used, with its line and key.
pub fn parse(text: &str) -> Result<Sweep, LineError> {
    let file: File = toml::from_str(text).map_err(|error| LineError {
        line: error.span().map_or(1, |span| line_of(text, span.start)),
        key: String::new(),
        cause: error.message().to_owned(),
    })?;
    let at =
        |from: usize, key: &str, cause: String| LineError { line: line_of(text, from), key: key.to_owned(), cause };
    let pool = file.pool.get_ref().parse().map_err(|error| at(file.pool.span().start, "pool", format!("{error}")))?;
    let between = |key: &str, value: &Option<Spanned<f64>>, default: f64, (least, most): (f64, f64)| match value {
        None => Ok(default),
        Some(value) if (least..=most).contains(value.get_ref()) => Ok(*value.get_ref()),
        Some(value) => {
            Err(at(value.span().start, key, format!("{} is not between {least} and {most}", value.get_ref())))
        }
    };
    let seconds = between("seconds", &file.seconds, 60.0, (5.0, MAX_SECONDS))?;
    let within = between("within-percent", &file.within_percent, 5.0, (0.1, 100.0))? / 100.0;
    let workloads: Vec<Workload> =
        file.workload.iter().map(|(name, entry)| workload(name, entry, &at)).collect::<Result<_, _>>()?;
    if workloads.is_empty() {
        return Err(at(0, "workload", "the file has none".to_owned()));
    }
    let mut mixes = Vec::new();
    for entry in &file.mix {
        for mix in mixes_of(entry.get_ref(), &workloads).map_err(|cause| at(entry.span().start, "mix", cause))? {
            if !mixes.contains(&mix) {
                mixes.push(mix);
            }
        }
    }
    if mixes.is_empty() {
        return Err(at(0, "mix", "the file has none: say how many copies run together".to_owned()));
    }
    Ok(Sweep { pool, seconds, within, workloads, mixes })
}

fn workload(
    name: &str,
    entry: &Spanned<Entry>,
    at: &dyn Fn(usize, &str, String) -> LineError,
) -> Result<Workload, LineError> {
    let Entry { command, prepare, rate, latency_p99_ms, size, fs, share } = entry.get_ref();
    let key = |word: &str| format!("workload {name}: {word}");
    let of_copy = copy_name(name, MAX_COPIES);
    if let Err(error) = of_copy.parse::<Name>() {
        return Err(at(entry.span().start, &format!("workload {name}"), format!("{error}")));
    }
    if command.get_ref().is_empty() {
        return Err(at(command.span().start, &key("command"), "it is empty".to_owned()));
    }
    let pattern = |text: &Spanned<String>, word: &str| {
        let error = |cause: String| at(text.span().start, &key(word), cause);
        let pattern = Regex::new(text.get_ref()).map_err(|cause| error(cause.to_string()))?;
        // The whole match is the first.
        if pattern.captures_len() < 2 {
            return Err(error("it has no group in parentheses, which finds the number".to_owned()));
        }
        Ok(pattern)
    };
    let size = match size {
        None => SIZE,
        Some(text) => text.get_ref().parse().map_err(|error: bulkhead_core::units::ParseBytesError| {
            at(text.span().start, &key("size"), error.to_string())
        })?,
    };
    let fs = fs.unwrap_or_default();
    if fs.kind().is_none() {
        return Err(at(
            entry.span().start,
            &key("fs"),
            "a command needs a directory, which a raw volume has not".to_owned(),
        ));
    }
    let share = match share {
        None => Share::DEFAULT,
        Some(share) => Share::try_from(*share.get_ref())
            .map_err(|error| at(share.span().start, &key("share"), error.to_string()))?,
    };
    Ok(Workload {
        name: name.to_owned(),
        command: command.get_ref().clone(),
        prepare: prepare.clone(),
        rate: pattern(rate, "rate")?,
        p99_ms: latency_p99_ms.as_ref().map(|text| pattern(text, "latency-p99-ms")).transpose()?,
        size,
        fs,
        share,
    })
}

/// The mixes of a table: the first numbers of all workloads, the second ones, and so on; a single number stays.
fn mixes_of(numbers: &BTreeMap<String, Numbers>, workloads: &[Workload]) -> Result<Vec<Mix>, String> {
    let n_mixes = numbers.values().map(|numbers| numbers.as_slice().len()).max().unwrap_or(0);
    let mut mixes = vec![Mix { copies: Vec::new() }; n_mixes];
    for (name, numbers) in numbers {
        let Some(index) = workloads.iter().position(|workload| workload.name == *name) else {
            let known: Vec<&str> = workloads.iter().map(|workload| workload.name.as_str()).collect();
            return Err(format!("there is no workload {name:?}: the file has {}", known.join(", ")));
        };
        let numbers = numbers.as_slice();
        if numbers.len() != n_mixes && numbers.len() != 1 {
            return Err(format!("{name} has {} numbers of copies, another workload has {n_mixes}", numbers.len()));
        }
        for (at, mix) in mixes.iter_mut().enumerate() {
            mix.copies.push((index, numbers[at.min(numbers.len() - 1)]));
        }
    }
    for mix in &mut mixes {
        mix.copies.retain(|(_, copies)| *copies > 0);
        let all: u32 = mix.copies.iter().map(|(_, copies)| *copies).fold(0, u32::saturating_add);
        if !(1..=MAX_COPIES).contains(&all) {
            return Err(format!("{all} copies run together: it must be 1 to {MAX_COPIES}"));
        }
    }
    Ok(mixes)
}

/// Name of a copy's tenant and volume; copies are numbered from 1.
#[must_use]
pub fn copy_name(workload: &str, number: u32) -> String {
    format!("sweep-{workload}-{number}")
}

impl Workload {
    /// A command of the file for a copy: `{dir}` is its volume's directory, `{copy}` its number, and `{seconds}` the longest time of a run.
    #[must_use]
    pub fn words(command: &[String], dir: &Path, copy: u32, seconds: f64) -> Vec<String> {
        let word = |word: &String| {
            word.replace("{dir}", &dir.display().to_string())
                .replace("{copy}", &copy.to_string())
                .replace("{seconds}", &format!("{:.0}", seconds.ceil()))
        };
        command.iter().map(word).collect()
    }
}

impl Mix {
    /// Names of its workloads, `database+mail`.
    #[must_use]
    pub fn workloads(&self, sweep: &Sweep) -> String {
        self.copies.iter().map(|(index, _)| sweep.workloads[*index].name.as_str()).collect::<Vec<_>>().join("+")
    }

    /// Its numbers of copies, `2+4`.
    #[must_use]
    pub fn numbers(&self) -> String {
        self.copies.iter().map(|(_, copies)| copies.to_string()).collect::<Vec<_>>().join("+")
    }
}

/// The number in a line that a pattern finds: that of its first group, times 1000 or more if its second one is `k`, `M` or `G`.
#[must_use]
pub fn number(pattern: &Regex, line: &str) -> Option<f64> {
    let found = pattern.captures(line)?;
    let value: f64 = found.get(1)?.as_str().parse().ok()?;
    let factor = match found.get(2).map_or("", |unit| unit.as_str()) {
        "k" | "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        _ => 1.0,
    };
    let value = value * factor;
    (value.is_finite() && value >= 0.0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
pool = "data"
within-percent = 2

[workload.database]
command = ["sysbench", "--dir={dir}", "--time={seconds}", "--seed={copy}"]
rate = 'tps: ([0-9.]+)'
size = "2G"
share = 300

[workload.mail]
command = ["mail"]
rate = 'IOPS=([0-9.]+)([kM]?)'
latency-p99-ms = 'p99 ([0-9.]+)'
fs = "xfs"

[[mix]]
database = [1, 2, 4]

[[mix]]
database = [1, 2]
mail = 3
"#;

    #[test]
    fn a_file_is_read() {
        let sweep = parse(FILE).unwrap();
        assert_eq!((sweep.pool.as_str(), sweep.seconds, sweep.within), ("data", 60.0, 0.02));
        let mixes: Vec<String> =
            sweep.mixes.iter().map(|mix| format!("{} {}", mix.workloads(&sweep), mix.numbers())).collect();
        assert_eq!(mixes, ["database 1", "database 2", "database 4", "database+mail 1+3", "database+mail 2+3"]);
        let database = &sweep.workloads[0];
        assert_eq!((database.size, database.fs), (Bytes::mib(2048), VolumeFs::default()));
        let words = Workload::words(&database.command, Path::new("/d"), 7, 12.5);
        assert_eq!(words, ["sysbench", "--dir=/d", "--time=13", "--seed=7"]);
        assert_eq!(number(&database.rate, "[ 3s ] thds: 4 tps: 19.97 qps: 4"), Some(19.97));
        assert_eq!(number(&sweep.workloads[1].rate, "IOPS=1.5k"), Some(1500.0));
        assert_eq!(number(&database.rate, "tps: nothing"), None);
    }

    #[test]
    fn the_examples_are_sweep_files() {
        for text in
            [include_str!("../../../../docs/sweep/fio.toml"), include_str!("../../../../docs/sweep/mariadb.toml")]
        {
            parse(text).unwrap();
        }
    }

    #[test]
    fn errors_name_line_and_key() {
        for (from, to, wanted) in [
            ("pool = \"data\"", "pool = \"../x\"", "line 2: pool: "),
            ("within-percent = 2", "within-percent = 0", "line 3: within-percent: 0 is not between 0.1 and 100"),
            ("within-percent = 2", "within-percent = nan", "line 3: within-percent: NaN is not between"),
            ("within-percent = 2", "seconds = -1", "line 3: seconds: -1 is not between 5 and 86400"),
            ("within-percent = 2", "withn = 2", "line 3: unknown field `withn`"),
            ("rate = 'tps: ([0-9.]+)'", "rate = 'tps: ('", "line 7: workload database: rate: "),
            ("rate = 'tps: ([0-9.]+)'", "rate = 'tps'", "line 7: workload database: rate: it has no group"),
            ("size = \"2G\"", "size = \"2Q\"", "line 8: workload database: size: "),
            ("share = 300", "share = 0", "line 9: workload database: share: "),
            ("command = [\"mail\"]", "command = []", "line 12: workload mail: command: it is empty"),
            ("fs = \"xfs\"", "fs = \"none\"", "workload mail: fs: a command needs a directory"),
            ("mail = 3", "mial = 3", "line 20: mix: there is no workload \"mial\": the file has database, mail"),
            ("mail = 3", "mail = [1, 2, 3]", "line 20: mix: database has 2 numbers of copies, another workload has 3"),
            ("mail = 3", "mail = 300", "line 20: mix: 301 copies run together: it must be 1 to 256"),
            ("[1, 2, 4]", "[0]", "line 17: mix: 0 copies run together"),
        ] {
            assert!(FILE.contains(from), "{from}");
            let error = parse(&FILE.replacen(from, to, 1)).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{to}: {error}");
        }
        assert!(parse("pool = \"p\"").unwrap_err().to_string().contains("workload: the file has none"));
    }
}
