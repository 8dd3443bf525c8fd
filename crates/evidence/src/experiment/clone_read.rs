//! `clone-read`: the first read of blocks that other clones of the base have read before, as in Zhao et al. 2016.
//!
//! A base with one large file and some ordinary ones; three clones for each mode of sharing. The first clone reads the large file from disk; the
//! second one after it, and again from its own cache; the third one reads it with `md5sum`. Then the first one reads it when it is no longer in any
//! cache, which shows the cost of a miss. Full form: 4 cells x 3 rounds of about 65 s, 14 minutes
//! for a disk; short form: one round, 5 minutes.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_measure::cgroup_run::{Cancel, wait_until};
use bulkhead_measure::cleanup::with_removal;
use bulkhead_measure::experiment::{Extent, Frame, Method, OnProgress, Options, no_choices, set_figure};
use bulkhead_measure::load::noise;
use bulkhead_measure::result::{Experiment, Round};
use bulkhead_sys::tool::Tool;

use super::sharing::{counted, sharing_rounds, with_clones};
use crate::clones::{Clone, Clones, ReadFrom, cached_bytes, drop_caches};
use crate::figure as f;

/// Its entry in the table of experiments.
pub(crate) const METHOD: Method = Method {
    name: "clone-read",
    what: "the first read of a file that another clone of the same base has read",
    choices: no_choices,
    extent: |options| Extent::new(options, N_CELLS, SECONDS).after(SET_UP_SECONDS),
    work: run,
};

const ABOUT: &str = "Clones of one base on a file pool. After all caches were dropped, and all directories and inodes and the base's \
    index read again, and a pause of 10 s: the first clone reads a large file (from the disk), the second one reads it for the first \
    time, then again three times from its own cache, and the third one reads it by md5sum, twice. Reads of the device are counted meanwhile; copies are the growth of the page cache \
    in sizes of the file, after all three have read it. Then the first two read the ordinary files. At last caches are dropped again, \
    and the first clone reads the large file, which others had and have no more.";

/// Number of cells, if all modes of sharing are available.
const N_CELLS: usize = ReadFrom::ALL.len();
/// Duration of one round of one cell, on the slow disk.
const SECONDS: f64 = 65.0;
/// Duration of creating the base, on the slow disk.
const SET_UP_SECONDS: f64 = 60.0;

const MIB: usize = 1 << 20;
/// The large file, on a disk with an arm and on others: some seconds of reading.
const LARGE_MIB: (usize, usize) = (64, 128);
/// Ordinary files, of 4 KiB and up to 64 KiB.
const N_FILES: usize = 200;
/// Number of reads of a clone from its own cache.
const N_HITS: u32 = 3;
const READ_LIMIT: Duration = Duration::from_secs(300);
/// Wait until only the experiment reads. Within 5 s of a mount (`EXT4_DEF_LI_MAX_START_DELAY`) the kernel's `ext4lazyinit` reads the
/// bitmaps of a clone's block groups, and after caches were dropped the daemon reads its state again.
const SETTLE: Duration = Duration::from_secs(10);

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    with_clones(Frame::new(METHOD.name, ABOUT, options, progress), work)
}

fn work(frame: &mut Frame<'_, '_>, clones: &Clones) -> Result<()> {
    let disk = &frame.experiment.disk;
    let is_slow = disk.is_rotational() || disk.model.starts_with("hdd");
    let large_mib = if is_slow { LARGE_MIB.0 } else { LARGE_MIB.1 };
    frame.say("making the base");
    let tree = clones.staging()?;
    make_tree(&tree, large_mib)?;
    let digest = md5(&tree.join("large"))?.1;
    clones.make_base(&tree)?;
    frame.experiment.commands.push(format!(
        "read large ({large_mib} MiB) by read(2) of 1 MiB; md5sum large; read {N_FILES} files of 4 to 64 KiB; caches dropped by sync \
         and /proc/sys/vm/drop_caches"
    ));
    let options = frame.options;
    sharing_rounds(frame, clones, &[""], |clones, mode| {
        let peers = clones.clones(3, mode)?;
        let round = round(clones, &peers, (large_mib * MIB) as f64, &digest, &options.cancel);
        let discarded = clones.discard(peers);
        Ok(vec![with_removal(round, discarded)?])
    })
}

/// One large file and ordinary ones, in a few directories.
fn make_tree(tree: &Path, large_mib: usize) -> Result<()> {
    let context = |path: &Path| format!("cannot write {}", path.display());
    let large = tree.join("large");
    let mut file = File::create(&large).with_context(|| context(&large))?;
    for number in 0..large_mib {
        file.write_all(&noise(MIB, number as u64 + 1)).with_context(|| context(&large))?;
    }
    for number in 0..N_FILES {
        let dir = tree.join(format!("d{}", number % 10));
        fs::create_dir_all(&dir).with_context(|| context(&dir))?;
        let path = dir.join(format!("f{number}"));
        fs::write(&path, noise(4096 << (number % 5), number as u64 + 1000)).with_context(|| context(&path))?;
    }
    file.sync_all().with_context(|| context(&large))
}

fn round(clones: &Clones, peers: &[Clone], large: f64, digest: &str, cancel: &Cancel) -> Result<Round> {
    let [first, second, third] = peers else { bail!("three clones were expected") };
    let file = |clone: &Clone| clone.dir.join("large");
    let mut round = Round::default();
    let rate = |seconds: f64| large / seconds;
    let files = prepare(clones, peers, cancel)?;
    let cached = cached_bytes()?;
    let (seconds, from_disk) = counted(clones, || read(&file(first)))?;
    set_figure(&mut round, f::FIRST_CLONE_BYTES_PER_S, rate(seconds));
    set_figure(&mut round, "first_clone_disk_bytes", from_disk.bytes);
    set_figure(&mut round, "first_clone_disk_reads", from_disk.reads);
    let (seconds, from_disk) = counted(clones, || read(&file(second)))?;
    set_figure(&mut round, f::SECOND_CLONE_BYTES_PER_S, rate(seconds));
    set_figure(&mut round, f::SECOND_CLONE_DISK_READS, from_disk.reads);
    set_figure(&mut round, f::SECOND_CLONE_DISK_BYTES, from_disk.bytes);
    let mut hits = 0.0;
    for _ in 0..N_HITS {
        hits += read(&file(second))?;
    }
    set_figure(&mut round, f::CACHE_HIT_BYTES_PER_S, rate(hits / f64::from(N_HITS)));
    // The program must be in the cache before the measurement.
    md5(&first.dir.join(files.first().context("there are no ordinary files")?))?;
    let ((seconds, found), from_disk) = counted(clones, || md5(&file(third)))?;
    if found != digest {
        bail!("what a clone read is not what was written: {found}, where {digest} was expected");
    }
    set_figure(&mut round, f::MD5_SECONDS, seconds);
    set_figure(&mut round, "md5_disk_reads", from_disk.reads);
    set_figure(&mut round, f::MD5_HIT_SECONDS, md5(&file(third))?.0);
    set_figure(&mut round, f::COPIES_IN_MEMORY, cached_bytes()?.saturating_sub(cached) as f64 / large);
    let all_of = |clone: &Clone| -> Result<f64> { files.iter().map(|path| read(&clone.dir.join(path))).sum() };
    let (seconds, from_disk) = counted(clones, || all_of(first))?;
    set_figure(&mut round, "files_first_seconds", seconds);
    set_figure(&mut round, "files_first_disk_reads", from_disk.reads);
    let (seconds, from_disk) = counted(clones, || all_of(second))?;
    set_figure(&mut round, "files_second_seconds", seconds);
    set_figure(&mut round, "files_second_disk_reads", from_disk.reads);
    prepare(clones, peers, cancel)?;
    set_figure(&mut round, f::STALE_BYTES_PER_S, rate(read(&file(first))?));
    Ok(round)
}

/// Drops all caches, and reads directories and inodes of all clones and the index of the base again, so that only file data is counted. Returns
/// the ordinary files, relative to a clone's directory.
fn prepare(clones: &Clones, peers: &[Clone], cancel: &Cancel) -> Result<Vec<PathBuf>> {
    drop_caches()?;
    clones.indexes()?.iter().try_for_each(|path| read(path).map(drop))?;
    let mut files = Vec::new();
    for clone in peers {
        let mut found = Vec::new();
        walk(&clone.dir, &mut found)?;
        files = found.iter().map(|path| Ok(path.strip_prefix(&clone.dir)?.to_owned())).collect::<Result<_>>()?;
    }
    files.retain(|path: &PathBuf| path.as_os_str() != "large");
    files.sort();
    wait_until(Instant::now() + SETTLE, cancel)?;
    Ok(files)
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let context = || format!("cannot list {}", dir.display());
    for entry in fs::read_dir(dir).with_context(context)? {
        let path = entry.with_context(context)?.path();
        let kind = fs::symlink_metadata(&path).with_context(|| format!("cannot inspect {}", path.display()))?;
        if kind.is_dir() {
            walk(&path, files)?;
        } else if kind.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// Reads a file sequentially; returns the duration.
fn read(path: &Path) -> Result<f64> {
    let context = || format!("cannot read {}", path.display());
    let begin = Instant::now();
    let mut file = File::open(path).with_context(context)?;
    let mut room = vec![0; MIB];
    while file.read(&mut room).with_context(context)? > 0 {}
    Ok(begin.elapsed().as_secs_f64())
}

/// Duration and output of `md5sum` on a file.
fn md5(path: &Path) -> Result<(f64, String)> {
    let begin = Instant::now();
    let output = Tool::new("md5sum").arg(path).limit(READ_LIMIT).run()?;
    let digest = output.stdout.split(' ').next().unwrap_or_default().to_owned();
    Ok((begin.elapsed().as_secs_f64(), digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_as_described() {
        let dir = tempfile::tempdir().unwrap();
        make_tree(dir.path(), 1).unwrap();
        let mut files = Vec::new();
        walk(dir.path(), &mut files).unwrap();
        assert_eq!(files.len(), N_FILES + 1);
        assert_eq!(fs::metadata(dir.path().join("large")).unwrap().len(), 1 << 20);
        assert_eq!(md5(&dir.path().join("large")).unwrap().1.len(), 32);
        assert!(read(&dir.path().join("large")).unwrap() > 0.0);
    }
}
