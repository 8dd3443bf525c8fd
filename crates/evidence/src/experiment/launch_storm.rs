//! `launch-storm`: ten clones of one image start a service at the same time, as in Zhao et al. 2016.
//!
//! The service is a Python program in a chroot on its clone: interpreter, libraries and modules come from the clone, as does a model of 64 MiB, which
//! the service reads before it reports ready. Clones are created and mounted beforehand, and all caches dropped: only the start of the services is
//! measured. Then the same with the memory of all together limited to half of their page cache.
//! Full form: 4 modes of sharing x 3 rounds of about 150 s, 30 minutes; short form: one round, 10 minutes.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_core::units::Bytes;
use bulkhead_measure::cgroup_run::Cancel;
use bulkhead_measure::cleanup::with_removal;
use bulkhead_measure::experiment::{Extent, Frame, Method, OnProgress, Options, no_choices, set_figure};
use bulkhead_measure::load::noise;
use bulkhead_measure::result::{Experiment, Round};
use bulkhead_sys::file::read_limited;
use bulkhead_sys::spawn::{Running, SpawnSpec, Stdout, spawn};
use bulkhead_sys::tool::Tool;

use super::sharing::{counted, sharing_rounds, with_clones};
use crate::clones::{Clone, Clones, ReadFrom, cached_bytes, drop_caches};
use crate::figure as f;

/// Its entry in the table of experiments.
pub(crate) const METHOD: Method = Method {
    name: "launch-storm",
    what: "ten clones of one image that start a service at once",
    choices: no_choices,
    extent: |options| Extent::new(options, N_CELLS, SECONDS).after(SET_UP_SECONDS),
    work: run,
};

const ABOUT: &str = "Ten clones of one image, each with a service: Python in a chroot on its clone, which imports modules and reads a model \
    of 64 MiB before it says that it is ready. Clones are mounted and all caches dropped before; the time is from the first process \
    to the last service that is ready, and reads of the device are counted in it. Copies are the growth of the page cache in sizes of \
    the image, all of which a service reads. Bounded: the same with memory.max on the cgroup of all clones, their block servers included.";

/// Number of clones that start.
const N_CLONES: usize = 10;
/// Values of the neighbour field, which has the memory limit here.
pub(crate) const UNBOUNDED: &str = "unbounded";
/// See [`UNBOUNDED`].
pub(crate) const BOUNDED: &str = "bounded";
/// Number of modes of sharing, if all are available.
const N_CELLS: usize = ReadFrom::ALL.len();
/// Duration of one round of one mode of sharing with both storms, on the slow disk.
const SECONDS: f64 = 130.0;
/// Duration of creating the image, on the slow disk.
const SET_UP_SECONDS: f64 = 60.0;

const MIB: usize = 1 << 20;
const MODEL_FILES: usize = 4;
const MODEL_FILE_MIB: usize = 16;
const MODEL_BYTES: usize = MODEL_FILES * MODEL_FILE_MIB * MIB;
/// Memory of processes, in addition to their page cache.
const PROCESSES: Bytes = Bytes::mib(160);
/// Time limit for a service to start, and to end.
const START_LIMIT: Duration = Duration::from_secs(300);
const END_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// Modules of the service; missing ones are omitted.
const IMPORTS: &str = r#"import importlib, os, sys
for name in ("re", "struct", "threading", "json", "hashlib"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
"#;
/// The rest of the service.
const SERVE: &str = r#"room, total = bytearray(1 << 20), 0
for name in sorted(os.listdir("/srv/model")):
    with open("/srv/model/" + name, "rb", buffering=0) as part:
        while n := part.readinto(room):
            total += n
print("ready", total, flush=True)
sys.stdin.read()
"#;
/// Lists the files of the modules, including compiled ones.
const TELL: &str = r#"for module in list(sys.modules.values()):
    for path in (getattr(module, "__file__", None), getattr(module, "__cached__", None)):
        if path and os.path.exists(path):
            print(path)
"#;
/// Python's options, on the host and in the chroot.
const PYTHON: [&str; 4] = ["/usr/bin/python3", "-I", "-S", "-B"];

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    with_clones(Frame::new(METHOD.name, ABOUT, options, progress), work)
}

fn work(frame: &mut Frame<'_, '_>, clones: &Clones) -> Result<()> {
    frame.say("making the image");
    let tree = clones.staging()?;
    let image_bytes = make_tree(&tree)?;
    clones.make_base(&tree)?;
    let bound = Bytes(N_CLONES as u64 * image_bytes / 2 + PROCESSES.0);
    frame.experiment.notes.push(format!("The image has {} MiB, which every service reads.", image_bytes / Bytes::MIB));
    frame.experiment.commands.push(format!(
        "{N_CLONES} x chroot CLONE {} /srv/service.py; {BOUNDED}: memory.max {} MiB",
        PYTHON.join(" "),
        bound.0 / Bytes::MIB
    ));
    let cancel = &frame.options.cancel.clone();
    sharing_rounds(frame, clones, &[UNBOUNDED, BOUNDED], |clones, mode| {
        let peers = clones.clones(N_CLONES, mode)?;
        let storms = || -> Result<Vec<Round>> {
            let free = storm(clones, &peers, image_bytes as f64, cancel)?;
            drop_caches()?;
            clones.limit_memory(Some(bound))?;
            let bounded = storm(clones, &peers, image_bytes as f64, cancel);
            Ok(vec![free, with_removal(bounded, clones.limit_memory(None))?])
        };
        let found = storms();
        with_removal(found, clones.discard(peers))
    })
}

/// Starts the service of a clone.
fn start(dir: &Path, cgroup: Option<PathBuf>) -> Result<Running> {
    let words = std::iter::once(dir.as_os_str().to_owned());
    let words = words.chain(PYTHON.into_iter().chain(["/srv/service.py"]).map(Into::into));
    Ok(spawn(&SpawnSpec { program: "chroot".into(), args: words.collect(), env: Vec::new(), cgroup })?)
}

/// Starts the services of all clones; returns the figures.
fn storm(clones: &Clones, peers: &[Clone], image: f64, cancel: &Cancel) -> Result<Round> {
    let cgroup = clones.payload()?;
    drop_caches()?;
    // From the host's own file system: it must be in the cache before the measurement.
    Tool::new("chroot").arg("--version").run()?;
    let cached = cached_bytes()?;
    let begin = Instant::now();
    let mut round = Round::default();
    let (services, from_disk) = counted(clones, || {
        let services =
            peers.iter().map(|clone| start(&clone.dir, Some(cgroup.clone()))).collect::<Result<Vec<Running>>>()?;
        for service in &services {
            await_ready(service, cancel)?;
        }
        Ok(services)
    })?;
    set_figure(&mut round, f::READY_SECONDS, begin.elapsed().as_secs_f64());
    set_figure(&mut round, f::LAUNCH_DISK_READS, from_disk.reads);
    set_figure(&mut round, f::LAUNCH_DISK_BYTES, from_disk.bytes);
    set_figure(&mut round, f::COPIES_IN_MEMORY, cached_bytes()?.saturating_sub(cached) as f64 / image);
    let servers: Vec<u32> = peers.iter().filter_map(|clone| clone.server).collect();
    set_figure(&mut round, "servers_pss_mib", pss_mib(&servers)?);
    set_figure(&mut round, "services_pss_mib", pss_mib(&services.iter().map(Running::pid).collect::<Vec<_>>())?);
    let (index, cached_index) = clones.index_bytes()?;
    if index > 0 {
        set_figure(&mut round, "index_bytes", index as f64);
        set_figure(&mut round, f::INDEX_PCT, 100.0 * cached_index as f64 / image);
    }
    for mut service in services {
        service.close_stdin();
        match service.wait(END_LIMIT)? {
            Some(0) => {}
            code => bail!("a service ended with {code:?}: {}", service.stderr()),
        }
    }
    Ok(round)
}

fn await_ready(service: &Running, cancel: &Cancel) -> Result<()> {
    let (deadline, wanted) = (Instant::now() + START_LIMIT, format!("ready {MODEL_BYTES}"));
    loop {
        cancel.check()?;
        match service.read_line(POLL) {
            Stdout::Line(line) if line == wanted => return Ok(()),
            Stdout::Line(line) => bail!("a service said {line:?}, where {wanted:?} was expected"),
            Stdout::Closed => bail!("a service ended early: {}", service.stderr()),
            Stdout::Timeout if Instant::now() >= deadline => {
                bail!("a service is not ready after {} s", START_LIMIT.as_secs())
            }
            Stdout::Timeout => {}
        }
    }
}

/// Memory of processes, with shared memory divided equally (PSS).
fn pss_mib(pids: &[u32]) -> Result<f64> {
    let of = |pid: &u32| {
        let path = format!("/proc/{pid}/smaps_rollup");
        let text = read_limited(Path::new(&path), Bytes(1 << 16)).with_context(|| format!("cannot read {path}"))?;
        parse_pss(&String::from_utf8_lossy(&text)).with_context(|| format!("{path} is not understood"))
    };
    let kib: u64 = pids.iter().map(of).sum::<Result<u64>>()?;
    Ok(kib as f64 / 1024.0)
}

/// `Pss:                1234 kB`
fn parse_pss(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// Copies Python with its files, the service, and the model; returns the total size.
fn make_tree(tree: &Path) -> Result<u64> {
    let python = fs::canonicalize(PYTHON[0]).context("python3 is not installed (Debian package python3-minimal)")?;
    let version = python.file_name().and_then(|name| name.to_str()).context("python3 has no name")?;
    let output = Tool::new("python3").args(&PYTHON[1..]).arg("-c").arg(format!("{IMPORTS}{TELL}")).run();
    let output = output.context("the modules of python3")?.stdout;
    let mut files: Vec<PathBuf> = output.lines().map(PathBuf::from).chain([python.clone()]).collect();
    let binaries: Vec<PathBuf> = files
        .iter()
        .filter(|path| **path == python || path.extension().is_some_and(|end| end == "so"))
        .cloned()
        .collect();
    for binary in &binaries {
        files.extend(libraries(&Tool::new("ldd").arg(binary).run().context("the libraries of python3")?.stdout));
    }
    files.sort();
    files.dedup();
    let copied: u64 = files.iter().map(|path| copy(path, tree)).sum::<Result<_>>()?;
    let make = |path: &Path| fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()));
    for name in ["lib", "lib64", "bin"] {
        make(&tree.join("usr").join(name))?;
        symlink(format!("usr/{name}"), tree.join(name)).with_context(|| format!("cannot link {name}"))?;
    }
    symlink(version, tree.join("usr/bin/python3")).context("cannot link python3")?;
    // Python looks for its build files here, even if there are none.
    make(&tree.join("usr/lib").join(version).join("lib-dynload"))?;
    let (srv, model) = (tree.join("srv"), tree.join("srv/model"));
    make(&model)?;
    fs::write(srv.join("service.py"), format!("{IMPORTS}{SERVE}")).context("cannot write the service")?;
    for number in 0..MODEL_FILES {
        let path = model.join(format!("part{number}"));
        let bytes: Vec<u8> =
            (0..MODEL_FILE_MIB).flat_map(|part| noise(MIB, (number * 1000 + part + 1) as u64)).collect();
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(copied + MODEL_BYTES as u64)
}

/// Copies a file to the same path below `tree`, with its mode, and its time, by which Python matches modules with their compiled form. It keeps its
/// name, because libraries are found by the names of links; the path of its directory is resolved. Returns its size.
fn copy(path: &Path, tree: &Path) -> Result<u64> {
    let context = || format!("cannot copy {}", path.display());
    let dir = fs::canonicalize(path.parent().with_context(context)?).with_context(context)?;
    let to = tree.join(dir.strip_prefix("/").with_context(context)?);
    fs::create_dir_all(&to).with_context(context)?;
    let to = to.join(path.file_name().with_context(context)?);
    let n_bytes = fs::copy(path, &to).with_context(context)?;
    let modified = fs::metadata(path).and_then(|meta| meta.modified()).with_context(context)?;
    File::options().write(true).open(&to).and_then(|file| file.set_modified(modified)).with_context(context)?;
    Ok(n_bytes)
}

/// Paths in the output of `ldd`: `libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f…)`, `/lib64/ld-linux-x86-64.so.2 (0x00007f…)`.
fn libraries(text: &str) -> Vec<PathBuf> {
    text.split_ascii_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use bulkhead_sys::tool::find_program;

    use super::*;

    #[test]
    fn libraries_are_found() {
        let text = "\tlinux-vdso.so.1 (0x7ff)\n\tlibm.so.6 => /lib/x/libm.so.6 (0x7f0)\n\t/lib64/ld-linux-x86-64.so.2 (0x7f1)\n";
        assert_eq!(libraries(text), [Path::new("/lib/x/libm.so.6"), Path::new("/lib64/ld-linux-x86-64.so.2")]);
    }

    #[test]
    fn root_the_service_starts_from_its_tree_alone() {
        if !rustix::process::geteuid().is_root() || find_program("python3").is_none() {
            println!("skipped: chroot needs root, and the service Python");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(make_tree(dir.path()).unwrap() > MODEL_BYTES as u64);
        let mut service = start(dir.path(), None).unwrap();
        await_ready(&service, &Cancel::new()).unwrap();
        assert!(pss_mib(&[service.pid()]).unwrap() > 0.5);
        service.close_stdin();
        assert_eq!(service.wait(END_LIMIT).unwrap(), Some(0), "{}", service.stderr());
    }

    #[test]
    fn memory_is_read() {
        assert_eq!(parse_pss("7f0-7f1 ---p [rollup]\nRss:  9 kB\nPss:        1234 kB\nPss_Anon: 1 kB\n"), Some(1234));
        assert!(pss_mib(&[std::process::id()]).unwrap() > 0.1);
    }

    #[test]
    fn what_is_copied_keeps_its_place() {
        let dir = tempfile::tempdir().unwrap();
        copy(Path::new("/usr/bin/env"), dir.path()).unwrap();
        let times = [Path::new("/usr/bin/env"), &dir.path().join("usr/bin/env")];
        let times = times.map(|path| fs::metadata(path).unwrap().modified().unwrap());
        assert_eq!(times[0], times[1]);
    }
}
