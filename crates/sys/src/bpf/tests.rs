//! Against this host's kernel, where it permits BPF.

use std::collections::BTreeMap;

use bulkhead_core::observe::Observer;
use bulkhead_core::observe::record::Kind;
use bulkhead_core::units::Bytes;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::generated::N_FIELDS;
use super::*;
use crate::scratch::Scratch;

#[test]
fn root_the_charges_are_what_the_journals_device_saw() {
    charges_match_the_journal_device(Method::TypedTracepoints);
}

#[test]
fn root_plain_tracepoints_give_the_same_sums() {
    let thread = std::thread::spawn(|| {
        if !Roots::host().sys.join("kernel/tracing/events").exists() {
            // SAFETY: CLONE_NEWNS unshares no descriptor table; it concerns this thread only, which ends with the test.
            if let Err(errno) = unsafe { unshare_unsafe(UnshareFlags::NEWNS) } {
                return println!("skipped: cannot unshare the mount namespace: {errno}");
            }
            mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE).unwrap();
            if let Err(errno) = mount("tracefs", "/sys/kernel/tracing", "tracefs", MountFlags::empty(), None) {
                return println!("skipped: cannot mount tracefs: {errno}");
            }
        }
        charges_match_the_journal_device(Method::PlainTracepoints);
    });
    thread.join().unwrap();
}

fn charges_match_the_journal_device(method: Method) {
    let roots = Roots::host();
    let mut tracer = match Tracer::load(&roots, method) {
        Ok(tracer) => tracer,
        Err(error) => return println!("skipped: {error}: {:?}", std::error::Error::source(&error)),
    };
    let scratch = match Scratch::ext4(&roots, Bytes(16 << 20), &[], &[]) {
        Ok(scratch) => scratch,
        Err(error) => return println!("skipped: {error}: {:?}", std::error::Error::source(&error)),
    };
    scratch.settle().unwrap();
    tracer.attach().unwrap();
    let before = scratch.journal_written(&roots).unwrap();
    scratch.exercise().unwrap();
    let written = scratch.journal_written(&roots).unwrap() - before;
    let mut observer = Observer::default();
    observer.set_file_systems([(scratch.fs_dev(), vec![])].into());
    let done = observer.finish(tracer.poll().unwrap());
    tracer.evict_shares(&done).unwrap();
    tracer.detach();
    let totals = observer.totals();
    assert!(!totals.losses.any(), "{:?}", totals.losses);
    let mut charged: BTreeMap<_, u64> = BTreeMap::new();
    for ((cgroup, dev, kind), bytes) in &totals.journal_bytes {
        if *dev == scratch.fs_dev() && *kind == Kind::Commit {
            *charged.entry(*cgroup).or_default() += bytes;
        }
    }
    assert_eq!(charged.values().sum::<u64>(), written);
    assert!(written > 64 * 4096);
    // Nearly all of it is charged to us; the kernel's own threads may have a share.
    let most = charged.iter().filter(|(cgroup, _)| cgroup.is_some()).map(|(_, bytes)| *bytes).max();
    assert!(most.unwrap_or(0) > written / 10 * 9, "{charged:?}");
    // Concurrent tests may call fsync, too.
    assert!(totals.syncs.values().map(|histogram| histogram.count()).max() >= Some(8));
    // Shares of committed transactions are evicted; one entry is reserved for the next transaction.
    let left = tracer.poll().unwrap().shares;
    assert!(left.iter().all(|(key, amount)| key.dev != scratch.fs_dev() || *amount == 0), "{left:?}");
}

#[test]
fn without_btf_the_error_names_its_path() {
    let base = tempfile::tempdir().unwrap();
    let error = Tracer::load(&Roots::under(base.path()), Method::TypedTracepoints).unwrap_err();
    assert!(matches!(&error, BpfError::NoBtf { path } if path.ends_with("sys/kernel/btf/vmlinux")), "{error}");
}

#[test]
fn root_without_ext4_devices_are_traced_if_an_xfs_is_mounted() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    std::fs::create_dir_all(roots.sys.join("kernel/btf/vmlinux")).unwrap();
    std::fs::create_dir_all(&roots.proc).unwrap();
    std::fs::write(roots.proc.join("filesystems"), "nodev\tproc\n\txfs\n").unwrap();
    assert!(matches!(Tracer::load(&roots, Method::TypedTracepoints).unwrap_err(), BpfError::NoExt4));
    std::fs::create_dir_all(roots.sys.join("fs/xfs/sdb1")).unwrap();
    std::fs::create_dir_all(roots.sys.join("class/block/sdb1")).unwrap();
    std::fs::write(roots.sys.join("class/block/sdb1/dev"), "8:17\n").unwrap();
    let mut tracer = match Tracer::load(&roots, Method::TypedTracepoints) {
        Ok(tracer) => tracer,
        Err(error) => return println!("skipped: {error}: {:?}", std::error::Error::source(&error)),
    };
    assert!(!tracer.has_ext4());
    tracer.attach().unwrap();
    let loaded: Vec<_> = tracer.object.progs().filter(|program| program.autoload()).collect();
    assert!(loaded.len() > 3 && !loaded.iter().any(|program| is_of_ext4(program.section())), "{loaded:?}");
    assert_eq!(tracer.links.len(), loaded.len());
}

/// Instruction counts of each program, as compiled and as verified, recorded in `instructions.txt`: code that runs on every fsync
/// and request must not grow unnoticed. After an intended change, run this test with `UPDATE_EXPECT=1`. A second number of 0 means
/// unknown: it was not recorded on a kernel that accepts the program.
#[test]
fn root_programs_are_as_long_as_recorded() {
    let recorded = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bpf/instructions.txt");
    let roots = Roots::host();
    let tracer = match Tracer::load(&roots, Method::TypedTracepoints) {
        Ok(tracer) => tracer,
        Err(error) => return println!("skipped: {error}: {:?}", std::error::Error::source(&error)),
    };
    let mut programs = tracer.programs(&roots).unwrap();
    match Tracer::load_xfs() {
        Ok(xfs) => programs.extend(xfs.programs(&roots).unwrap()),
        Err(error) => println!("skipped for XFS: {error}: {:?}", std::error::Error::source(&error)),
    }
    // Their length does not depend on the offsets.
    let plain = tracer::programs(&roots, &plain::load(&[8; N_FIELDS as usize]).unwrap()).unwrap();
    programs.extend(plain.into_iter().map(|program| Program { name: format!("plain/{}", program.name), ..program }));
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    let known = std::fs::read_to_string(&recorded).unwrap();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let lines = programs.iter().map(|p| format!("{} {} {}\n", p.name, p.n_instructions, p.n_verified));
        // Programs that this kernel refuses keep their line.
        let others = known.lines().filter(|line| !programs.iter().any(|p| line.split(' ').next() == Some(&p.name)));
        let mut lines: Vec<String> = lines.chain(others.map(|line| format!("{line}\n"))).collect();
        lines.sort();
        return std::fs::write(&recorded, lines.concat()).unwrap();
    }
    for program in programs {
        let line = known.lines().find(|line| line.split(' ').next() == Some(&program.name));
        let numbers: Vec<u64> =
            line.into_iter().flat_map(|l| l.split(' ').skip(1)).map(|n| n.parse().unwrap()).collect();
        let [instructions, verified] = numbers[..] else { panic!("{} is not in {}", program.name, recorded.display()) };
        // Compilers and verifiers differ a little from one version to the next.
        let limits = (instructions + instructions / 10 + 8, verified + verified / 4 + 32);
        let is_longer = program.n_instructions > limits.0 || verified > 0 && program.n_verified > limits.1;
        assert!(!is_longer, "{program:?}, recorded {numbers:?}");
    }
}

#[test]
fn what_ends_something_comes_after_what_begins_it_and_so_is_attached_first() {
    let pairs = [
        ("ext4_writepages", "ext4_writepages_result"),
        ("jbd2_start_commit", "jbd2_end_commit"),
        ("ext4_fc_commit_start", "ext4_fc_commit_stop"),
        ("ext4_sync_file_enter", "ext4_sync_file_exit"),
        ("block_rq_issue", "block_rq_requeue"),
        ("block_rq_issue", "block_rq_complete"),
        ("writeback_single_inode_start", "writeback_single_inode"),
    ];
    let sources = [include_str!("bulkhead.bpf.c"), include_str!("plain.bpf.c")];
    let mut n_pairs = 0;
    for source in sources {
        let at = |name: &str| {
            source.lines().position(|line| line.starts_with("SEC(") && line.ends_with(&format!("/{name}\")")))
        };
        for (begins, ends) in pairs {
            let (Some(first), Some(last)) = (at(begins), at(ends)) else { continue };
            assert!(first < last, "{begins} has to come before {ends}");
            n_pairs += 1;
        }
    }
    assert_eq!(n_pairs, 10);
}
