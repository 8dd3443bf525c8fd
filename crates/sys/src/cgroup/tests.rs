//! Against a fake hierarchy in a temporary directory.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bulkhead_core::units::DevNo;
use tempfile::TempDir;

use super::iostat::parse_io_limits;
use super::watch::MAX_WATCHED_BYTES;
use super::*;
use crate::spawn::{SpawnSpec, spawn};

fn path(text: &str) -> CgroupPath {
    text.parse().unwrap()
}

/// A fake v2 hierarchy with io and memory, and the cgroups given.
fn fake(cgroups: &[&str]) -> (TempDir, Roots) {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    fs::create_dir_all(&roots.proc).unwrap();
    for cgroup in ["/"].iter().chain(cgroups) {
        let dir = roots.cgroup_dir(&path(cgroup));
        fs::create_dir_all(&dir).unwrap();
        for (file, text) in [
            ("cgroup.controllers", "cpu io memory pids\n"),
            ("cgroup.subtree_control", ""),
            ("cgroup.procs", ""),
            ("cgroup.events", "populated 0\nfrozen 0\n"),
            ("cgroup.freeze", "0\n"),
            ("cgroup.kill", ""),
        ] {
            fs::write(dir.join(file), text).unwrap();
        }
    }
    (base, roots)
}

fn put(roots: &Roots, cgroup: &str, file: &str, text: &str) {
    fs::write(roots.cgroup_dir(&path(cgroup)).join(file), text).unwrap();
}

#[test]
fn paths_stay_below_the_root() {
    for good in ["a", "bulkhead.slice/bulkhead-db.slice/bulkhead-db-payload.slice", "/system.slice", "a b"] {
        assert!(good.parse::<CgroupPath>().is_ok(), "{good}");
    }
    for bad in ["", "..", "a/../b", "a//b", "a/", "//a", "./a", "a\nb", "a\0b", &"n".repeat(256)] {
        assert!(bad.parse::<CgroupPath>().is_err(), "{bad:?}");
    }
    assert_eq!(path("/").to_string(), "/");
    assert_eq!(path("/a/b").to_string(), "a/b");
    assert_eq!(path("a/b").parent(), Some(path("a")));
    assert_eq!(path("a").parent(), Some(CgroupPath::root()));
    assert_eq!(CgroupPath::root().parent(), None);
    assert_eq!(CgroupPath::root().join("a/b").unwrap(), path("a/b"));
    assert!(path("a").join("").is_err() && path("a").join("/b").is_err() && path("a").join("..").is_err());
    assert_eq!((path("a/b").name(), CgroupPath::root().name()), ("b", ""));
}

#[test]
fn the_cgroup_mode_is_detected_by_files() {
    let (_base, roots) = fake(&[]);
    assert_eq!(mode(&roots), Mode::V2);
    assert_eq!(controllers(&roots).unwrap().into_iter().collect::<Vec<_>>().join(" "), "cpu io memory pids");

    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    assert_eq!(mode(&roots), Mode::None);
    fs::create_dir_all(roots.cgroup.join("blkio")).unwrap();
    fs::write(roots.cgroup.join("blkio/tasks"), "").unwrap();
    assert_eq!(mode(&roots), Mode::V1);
    assert!(controllers(&roots).unwrap().is_empty());
    fs::create_dir_all(roots.cgroup.join("unified")).unwrap();
    fs::write(roots.cgroup.join("unified/cgroup.controllers"), "hugetlb\n").unwrap();
    assert_eq!(mode(&roots), Mode::Hybrid);
    assert_eq!(controllers(&roots).unwrap().len(), 1);
}

#[test]
fn create_enables_controllers_in_the_ancestors_only() {
    let (_base, roots) = fake(&["b.slice", "b.slice/db.slice"]);
    put(&roots, "b.slice", "cgroup.subtree_control", "memory\n");
    let leaf = path("b.slice/db.slice/payload");
    assert!(create(&roots, &leaf, &["io", "memory"]).unwrap());
    assert!(!create(&roots, &leaf, &["io", "memory"]).unwrap());
    assert_eq!(read(&roots, &path("/"), "cgroup.subtree_control").unwrap(), "+io +memory");
    // What is enabled already is not written again.
    put(&roots, "b.slice", "cgroup.subtree_control", "memory io\n");
    create(&roots, &leaf, &["io", "memory"]).unwrap();
    assert_eq!(read(&roots, &path("b.slice"), "cgroup.subtree_control").unwrap(), "memory io\n");
    assert_eq!(read(&roots, &path("b.slice/db.slice"), "cgroup.subtree_control").unwrap(), "+io +memory");
    assert!(fs::read_dir(roots.cgroup_dir(&leaf)).unwrap().next().is_none());
}

#[test]
fn a_controller_is_enabled_below_one_cgroup_and_the_old_value_returned() {
    let (_base, roots) = fake(&["b.slice"]);
    put(&roots, "b.slice", "cgroup.subtree_control", "io memory\n");
    assert_eq!(enable(&roots, &path("b.slice"), &["cpu"]).unwrap().as_deref(), Some("io memory"));
    assert_eq!(read(&roots, &path("b.slice"), "cgroup.subtree_control").unwrap(), "+cpu");
    put(&roots, "b.slice", "cgroup.subtree_control", "cpu io memory\n");
    assert_eq!(enable(&roots, &path("b.slice"), &["cpu"]).unwrap(), None);
    assert_eq!(read(&roots, &path("/"), "cgroup.subtree_control").unwrap(), "");
    assert!(matches!(enable(&roots, &path("b.slice"), &["rdma"]), Err(CgroupError::MissingController { .. })));
    assert!(matches!(enable(&roots, &path("no"), &["cpu"]), Err(CgroupError::NotFound { .. })));
}

#[test]
fn a_missing_controller_is_named() {
    let (_base, roots) = fake(&["b.slice"]);
    put(&roots, "/", "cgroup.controllers", "cpu memory\n");
    let error = create(&roots, &path("b.slice/x"), &["memory", "io"]).unwrap_err();
    assert_eq!(error.to_string(), "controller io is not available in cgroup / (available: cpu memory)");
    assert!(!exists(&roots, &path("b.slice/x")));
}

#[test]
fn a_write_returns_the_old_value_and_a_missing_cgroup_differs_from_a_missing_file() {
    let (_base, roots) = fake(&["a"]);
    put(&roots, "a", "io.weight", "default 100\n");
    assert_eq!(write(&roots, &path("a"), "io.weight", "50").unwrap(), "default 100");
    assert_eq!(read(&roots, &path("a"), "io.weight").unwrap(), "50");
    let check = |cgroup: &str, file: &str| write(&roots, &path(cgroup), file, "1").unwrap_err();
    assert!(matches!(check("a", "io.max"), CgroupError::NoFile { .. }));
    assert!(matches!(check("nowhere", "io.max"), CgroupError::NotFound { .. }));
    assert!(matches!(check("a", "../cgroup.procs"), CgroupError::BadFile { .. }));
    assert!(matches!(check("a", "x/y"), CgroupError::BadFile { .. }));
}

#[test]
fn removal_of_a_populated_cgroup_fails_and_names_its_processes() {
    let (_base, roots) = fake(&[]);
    // No files: a directory of a fake kernel can only be removed when it is empty.
    fs::create_dir_all(roots.cgroup.join("t/payload/deep")).unwrap();
    fs::create_dir_all(roots.cgroup.join("t/journal")).unwrap();
    put(&roots, "t/journal", "cgroup.procs", "77\n0\n12\n");
    let error = remove_tree(&roots, &path("t")).unwrap_err();
    assert_eq!(error.to_string(), "cgroup t is in use by processes (12 77)");
    assert!(exists(&roots, &path("t/payload/deep")));
    fs::remove_file(roots.cgroup.join("t/journal/cgroup.procs")).unwrap();
    assert!(remove_tree(&roots, &path("t")).unwrap());
    assert!(!remove_tree(&roots, &path("t")).unwrap());
    assert!(!remove(&roots, &path("t")).unwrap());
    assert!(remove_tree(&roots, &CgroupPath::root()).is_err());
}

#[test]
fn children_are_the_directories() {
    let (_base, roots) = fake(&["t/b", "t/a"]);
    assert_eq!(children(&roots, &path("t")).unwrap(), [path("t/a"), path("t/b")]);
    assert!(matches!(children(&roots, &path("no")), Err(CgroupError::NotFound { .. })));
}

#[test]
fn waiting_times_out_with_the_remaining_processes() {
    let (_base, roots) = fake(&["t", "t/payload"]);
    put(&roots, "t/payload", "cgroup.procs", "5\n");
    put(&roots, "t", "cgroup.events", "populated 1\nfrozen 0\n");
    let error = kill_all(&roots, &path("t"), Duration::from_millis(30)).unwrap_err();
    assert_eq!(error.to_string(), "cgroup t did not reach 'populated 0' within 30 ms (processes: 5)");
    assert_eq!(read(&roots, &path("t"), "cgroup.kill").unwrap(), "1");
    assert!(is_populated(&roots, &path("t")).unwrap());
    assert!(matches!(
        freeze(&roots, &path("t"), Duration::from_millis(1)),
        Err(CgroupError::TimedOut { wanted, .. }) if wanted == "frozen 1"
    ));
    thaw(&roots, &path("t"), Duration::ZERO).unwrap();
    assert!(!is_frozen(&roots, &path("t")).unwrap());
    put(&roots, "t", "cgroup.events", "nonsense\n");
    assert!(matches!(is_frozen(&roots, &path("t")), Err(CgroupError::Parse { .. })));
}

#[test]
fn waiting_ends_when_the_state_changes() {
    let (_base, roots) = fake(&["t"]);
    put(&roots, "t", "cgroup.events", "populated 1\nfrozen 0\n");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| kill_all(&roots, &path("t"), Duration::from_secs(20)));
        // Whichever comes first, the change or the first read, waiting ends well before its limit.
        let file = OpenOptions::new().write(true).open(roots.cgroup_dir(&path("t")).join("cgroup.events")).unwrap();
        file.write_all_at(b"0", "populated ".len() as u64).unwrap();
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn the_cgroup_of_a_process_is_on_the_line_of_hierarchy_0() {
    let (_base, roots) = fake(&[]);
    let set = |pid: u32, text: &str| {
        fs::create_dir_all(roots.proc.join(pid.to_string())).unwrap();
        fs::write(roots.proc.join(format!("{pid}/cgroup")), text).unwrap();
    };
    set(1, "12:blkio:/x\n1:name=systemd:/init\n0::/init.scope\n");
    set(2, "0::/\n");
    set(3, "12:blkio:/x\n");
    set(4, "0::/gone (deleted)\n");
    set(5, "0::/../../outside\n");
    assert_eq!(cgroup_of(&roots, 1).unwrap(), path("init.scope"));
    assert_eq!(cgroup_of(&roots, 2).unwrap(), CgroupPath::root());
    assert!(matches!(cgroup_of(&roots, 3), Err(CgroupError::NotUnified { pid: 3 })));
    assert!(matches!(cgroup_of(&roots, 4), Err(CgroupError::Removed { pid: 4 })));
    assert!(matches!(cgroup_of(&roots, 5), Err(CgroupError::Unnameable { pid: 5, .. })));
    assert!(matches!(cgroup_of(&roots, 6), Err(CgroupError::NoProcess { pid: 6 })));
}

#[test]
fn io_stat_is_read_with_unknown_keys_and_run_together_lines() {
    // Written by hand after blkcg_print_stat: with iocost's debug keys, and with devices that have no line of their own.
    let text = "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0 cost.vrate=100.00 cost.usage=77\n\
                8:16 rbytes=1 wbytes=18446744073709551615 rios=3 wios=4 dbytes=5 dios=6\n\
                7:0 7:1 253:3 rbytes=9 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n\
                8:32 \nnonsense rbytes=1\n";
    let stat = parse_io_stat(text);
    assert_eq!(stat.len(), 3);
    assert_eq!((stat[&DevNo::new(254, 0)].wbytes, stat[&DevNo::new(254, 0)].cost_usage_us), (8192, 77));
    assert_eq!(
        stat[&DevNo::new(8, 16)],
        IoStat { rbytes: 1, wbytes: u64::MAX, rios: 3, wios: 4, dbytes: 5, dios: 6, cost_usage_us: 0 }
    );
    assert_eq!(stat[&DevNo::new(253, 3)].rbytes, 9);
    assert!(parse_io_stat("").is_empty());
}

/// A writable v2 hierarchy of this machine (its controllers do not matter), or why there is none.
fn real_hierarchy() -> Result<Roots, &'static str> {
    if !rustix::process::geteuid().is_root() {
        return Err("not root");
    }
    let mut roots = Roots::host();
    for dir in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
        if Path::new(dir).join("cgroup.controllers").exists() {
            roots.cgroup = dir.into();
            return Ok(roots);
        }
    }
    Err("no cgroup v2 hierarchy is mounted")
}

/// Removes the cgroup and kills its processes, also if a test fails.
struct Guard<'a>(&'a Roots, CgroupPath);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let _ = thaw(self.0, &self.1, Duration::from_secs(5));
        let _ = kill_all(self.0, &self.1, Duration::from_secs(5));
        let _ = remove_tree(self.0, &self.1);
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test needs a process to freeze and kill")]
fn root_a_real_process_is_moved_frozen_and_killed() {
    let roots = match real_hierarchy() {
        Ok(roots) => roots,
        Err(why) => return println!("skipped: {why}"),
    };
    let top = path(&format!("bulkhead-test-{}", std::process::id()));
    let leaf = top.join("payload").unwrap();
    match create(&roots, &leaf, &[]) {
        Ok(created) => assert!(created),
        Err(error) => return println!("skipped: {error}"),
    }
    let _guard = Guard(&roots, top.clone());
    let limit = Duration::from_secs(10);
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let pid = child.id();
    move_pid(&roots, pid, &leaf).unwrap();
    assert_eq!(procs(&roots, &leaf).unwrap(), [pid]);
    assert_eq!(cgroup_of(&roots, pid).unwrap(), leaf);
    assert!(matches!(remove_tree(&roots, &top), Err(CgroupError::Busy { pids, .. }) if pids == [pid]));
    assert!(matches!(remove(&roots, &leaf), Err(CgroupError::Busy { pids, .. }) if pids == [pid]));
    freeze(&roots, &top, limit).unwrap();
    assert!(is_frozen(&roots, &leaf).unwrap());
    thaw(&roots, &top, limit).unwrap();
    assert!(!is_frozen(&roots, &leaf).unwrap());
    kill_all(&roots, &top, limit).unwrap();
    child.wait().unwrap();
    assert!(!is_populated(&roots, &top).unwrap());
    assert!(matches!(move_pid(&roots, pid, &leaf), Err(CgroupError::NoProcess { .. })));
    assert!(remove_tree(&roots, &top).unwrap());
    assert!(!exists(&roots, &top));
}

#[test]
fn io_limits_are_read_for_one_device() {
    let text = "8:0 rbps=max wbps=1048576 riops=50 wiops=max\n254:16 rbps=max wbps=max riops=max wiops=7\n";
    let none = IoLimits::default();
    assert_eq!(parse_io_limits(text, DevNo::new(8, 0)), IoLimits { wbps: Some(1_048_576), riops: Some(50), ..none });
    assert_eq!(parse_io_limits(text, DevNo::new(254, 16)), IoLimits { wiops: Some(7), ..none });
    assert_eq!(parse_io_limits(text, DevNo::new(254, 1)), none);
    assert_eq!(parse_io_limits("", DevNo::new(8, 0)), none);
}

#[test]
fn a_cgroup_is_created_while_its_empty_parent_is_removed_concurrently() {
    let (_base, roots) = fake(&[]);
    let above = roots.cgroup_dir(&path("t"));
    for n in 0..100 {
        let done = AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Each removal costs the creator at most one attempt. Removing fails while there are children.
                let mut left = CREATE_TRIES;
                while left > 0 && !done.load(Ordering::Relaxed) {
                    left -= usize::from(fs::remove_dir(&above).is_ok());
                }
            });
            let below = path(&format!("t/{n}"));
            let outcome = create(&roots, &below, &[]).and_then(|_| remove(&roots, &below));
            done.store(true, Ordering::Relaxed);
            outcome
        });
        assert!(matches!(outcome, Ok(true)), "{n}: {outcome:?}");
    }
}

#[test]
fn a_membership_holds_while_the_process_is_alive_and_in_the_cgroup() {
    let (_base, roots) = fake(&[]);
    let file = roots.proc.join("7/cgroup");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let own = path("bulkhead.slice/bulkhead-db.slice/bulkhead-db-server.slice");
    assert!(matches!(Membership::open(&roots, 7, &own), Err(CgroupError::NoProcess { pid: 7 })));
    // With an additional v1 hierarchy.
    let say = |cgroup: &str| fs::write(&file, format!("1:name=systemd:/other\n0::{cgroup}\n")).unwrap();
    say(&format!("/{own}"));
    let membership = Membership::open(&roots, 7, &own).unwrap();
    assert!(membership.holds() && membership.holds());
    for other in ["/".to_owned(), "/bulkhead.slice".to_owned(), format!("/{own}/below"), format!("/{own} (deleted)")] {
        say(&other);
        assert!(!membership.holds(), "{other}");
    }
    say("/");
    assert!(Membership::open(&roots, 7, &CgroupPath::root()).unwrap().holds());
    fs::write(&file, "").unwrap();
    assert!(!membership.holds());
}

#[test]
fn an_exited_process_is_not_in_a_cgroup() {
    let roots = Roots::host();
    let spec = SpawnSpec { program: "sleep".into(), args: vec!["60".into()], ..SpawnSpec::default() };
    let child = spawn(&spec).unwrap();
    let Ok(at) = cgroup_of(&roots, child.pid()) else {
        println!("skipped: there is no cgroup v2 here");
        return;
    };
    let membership = Membership::open(&roots, child.pid(), &at).unwrap();
    assert!(membership.holds());
    // Kills and reaps it.
    drop(child);
    assert!(!membership.holds());
}

#[test]
fn a_file_watch_follows_changes_of_the_file() {
    let (_base, roots) = fake(&["a"]);
    put(&roots, "a", "io.weight", "default 100\n8:0 300\n");
    let a = path("a");
    let weight = FileWatch::line(&roots, &a, "io.weight", "default 100").unwrap();
    let controllers = FileWatch::words(&roots, &a, "cgroup.controllers", &["io", "memory"]).unwrap();
    assert!(weight.holds() && weight.holds() && controllers.holds());
    assert!(!FileWatch::line(&roots, &a, "io.weight", "default 10").unwrap().holds());
    assert!(!FileWatch::words(&roots, &a, "cgroup.controllers", &["io", "mem"]).unwrap().holds());
    put(&roots, "a", "io.weight", "default 1000\n");
    put(&roots, "a", "cgroup.controllers", "cpu memory pids\n");
    assert!(!weight.holds() && !controllers.holds());
    // Empty, as for a removed cgroup, or larger than the buffer.
    put(&roots, "a", "io.weight", "");
    assert!(!weight.holds());
    put(&roots, "a", "io.weight", &format!("{}default 100\n", "8:0 300\n".repeat(MAX_WATCHED_BYTES / 8)));
    assert!(!weight.holds());
    assert!(matches!(FileWatch::line(&roots, &a, "io.max", "x"), Err(CgroupError::NoFile { .. })));
    assert!(matches!(FileWatch::line(&roots, &path("b"), "io.max", "x"), Err(CgroupError::NotFound { .. })));
}
