use super::*;

use tempfile::TempDir;

/// `flags` of a kernel thread (PF_KTHREAD among others) and of a user process.
const KERNEL: u64 = 0x0020_8040;
const USER: u64 = 0x0040_0100;

fn fake(processes: &[(u32, &str, u64, &str)]) -> (TempDir, Roots) {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    fs::create_dir_all(roots.proc.join("sys")).unwrap();
    for &(pid, comm, flags, cgroup) in processes {
        let dir = roots.proc.join(pid.to_string());
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("comm"), format!("{comm}\n")).unwrap();
        fs::write(dir.join("stat"), format!("{pid} ({comm}) S 2 0 0 0 -1 {flags} 0 0 0 0 0 0")).unwrap();
        fs::write(dir.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
    }
    (base, roots)
}

#[test]
fn thread_names_match_whole_device_names() {
    for (comm, dev, expected) in [
        ("jbd2/dm-1-8", "dm-1", true),
        ("jbd2/dm-10-8", "dm-1", false),
        ("jbd2/dm-1-8", "dm-10", false),
        ("jbd2/vda1-8", "vda", false),
        ("jbd2/vda1-8", "vda1", true),
        ("jbd2/nvme0n1p2-8", "nvme0n1p2", true),
        ("jbd2/cciss!c0d0-8", "cciss/c0d0", true),
        ("jbd2/cciss!c0d0-8", "cciss!c0d0", true),
        ("jbd2/sdb1", "sdb1", true),
        ("jbd2/sdb1-", "sdb1", false),
        ("jbd2/sdb1-8x", "sdb1", false),
        ("jbd2x/sdb1-8", "sdb1", false),
        ("jbd2/-8", "", false),
        ("kworker/0:1", "0:1", false),
    ] {
        assert_eq!(is_thread_name(comm, "jbd2", dev), expected, "{comm} {dev}");
    }
    assert!(is_thread_name("xfsaild/dm-3", "xfsaild", "dm-3") && !is_thread_name("xfsaild/dm-31", "xfsaild", "dm-3"));
}

#[test]
fn stat_is_parsed_in_spite_of_hostile_names() {
    assert!(is_kthread(b"412 (jbd2/vda1-8) S 2 0 0 0 -1 2129984 0 0 0 0 0 47 0 0 20 0 1 0 183 0 0"));
    assert!(!is_kthread(b"9 (bash) S 1 9 9 0 -1 4194560 0 0"));
    // A user process with forged fields in its name.
    assert!(!is_kthread(b"9 (x) S 2 0 0 0 -1 2129984 ) S 1 9 9 0 -1 4194560 0 0"));
    assert!(!is_kthread(b"9 (a\nb) S 1 9 9 0 -1 4194560 0 0"));
    for broken in [&b""[..], b"9", b"9 (x)", b"9 (x) S 2 0", b"9 (x) S 2 0 0 0 -1 many", b"9 (x) \xff"] {
        assert!(!is_kthread(broken));
    }
}

#[test]
fn only_the_kernel_thread_is_found() {
    let (_base, roots) = fake(&[
        (7, "jbd2/dm-0-8", USER, "/evil"),
        (40, "jbd2/dm-0-8", KERNEL, "/"),
        (41, "jbd2/dm-01-8", KERNEL, "/"),
        (50, "xfsaild/dm-2", KERNEL, "/"),
    ]);
    assert_eq!(find_thread(&roots, "dm-0").unwrap(), Some(40));
    assert_eq!(find_thread(&roots, "dm-2").unwrap(), None);
    assert_eq!(find_xfsaild(&roots, "dm-2").unwrap(), Some(50));
    assert!(matches!(find_thread(&Roots::under("/nonexistent".as_ref()), "dm-0"), Err(Jbd2Error::List { .. })));
}

#[test]
fn a_reused_pid_is_not_waited_for() {
    let (_base, roots) = fake(&[(40, "jbd2/dm-0-8", KERNEL, "/"), (50, "xfsaild/dm-2", KERNEL, "/")]);
    let find = |dev: &str| LogThread::find(&roots, dev).unwrap();
    let (ext4, xfs) = (find("dm-0").unwrap(), find("dm-2").unwrap());
    assert_eq!((ext4.pid, xfs.pid, find("dm-1")), (40, 50, None));
    assert!(!ext4.wait_until_gone(&roots, Duration::ZERO) && !xfs.wait_until_gone(&roots, Duration::ZERO));
    // The pid was reused by another process.
    fs::write(roots.proc.join("40/comm"), "bash\n").unwrap();
    fs::remove_dir_all(roots.proc.join("50")).unwrap();
    assert!(ext4.wait_until_gone(&roots, Duration::ZERO) && xfs.wait_until_gone(&roots, Duration::ZERO));
}

#[test]
fn placing_is_verified() {
    let (_base, roots) = fake(&[(40, "jbd2/dm-0-8", KERNEL, "/")]);
    let journal: CgroupPath = "b.slice/t.slice/journal".parse().unwrap();
    let cgroup_file = roots.proc.join("40/cgroup");
    let run = |act: &dyn Fn()| {
        place_with(&roots, "jbd2", "dm-0", &journal, |pid| {
            assert_eq!(pid, 40);
            act();
            Ok(())
        })
    };
    assert!(matches!(run(&|| {}), Err(Jbd2Error::Strayed { found, .. }) if found.is_root()));
    let accept = || fs::write(&cgroup_file, format!("0::/{journal}\n")).unwrap();
    assert_eq!(run(&accept).unwrap(), Placed { pid: 40, from: CgroupPath::root(), moved: true });
    assert_eq!(run(&|| panic!("it was moved again")).unwrap(), Placed { pid: 40, from: journal.clone(), moved: false });
    // Unmounted, and the pid reused, between the search and the move.
    fs::write(&cgroup_file, "0::/\n").unwrap();
    let reuse = || {
        accept();
        fs::write(roots.proc.join("40/comm"), "bash\n").unwrap();
    };
    assert!(matches!(run(&reuse), Err(Jbd2Error::Ended { pid: 40, .. })));
}

#[test]
fn a_device_without_journal_thread_is_an_error() {
    let (_base, roots) = fake(&[]);
    let error = place(&roots, "dm-9", &CgroupPath::root()).unwrap_err();
    assert_eq!(error.to_string(), "device dm-9 has no kernel thread jbd2");
}

#[test]
fn the_error_for_a_missing_cgroup_has_its_cause() {
    let (_base, roots) = fake(&[(40, "jbd2/dm-0-8", KERNEL, "/")]);
    fs::create_dir_all(&roots.cgroup).unwrap();
    let error = place(&roots, "dm-0", &"nowhere".parse().unwrap()).unwrap_err();
    assert!(
        matches!(&error, Jbd2Error::Move { source, .. } if matches!(**source, CgroupError::NotFound { .. })),
        "{error}"
    );
}
