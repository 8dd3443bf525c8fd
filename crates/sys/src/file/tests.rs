use super::*;
use std::os::unix::fs::PermissionsExt;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_stamp_changes_if_a_file_is_modified_or_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    assert_eq!(Stamp::read(&path), None);
    write_atomic(&path, b"one").unwrap();
    let first = Stamp::read(&path).unwrap();
    assert_eq!(Stamp::read(&path), Some(first));
    // Within one clock tick, a change without a change of size is visible only by the inode number.
    write_atomic(&path, b"two").unwrap();
    let second = Stamp::read(&path).unwrap();
    fs::write(&path, b"three").unwrap();
    let third = Stamp::read(&path).unwrap();
    assert!(first != second && second != third);
    let changed = fs::metadata(&path).unwrap();
    let changed = SystemTime::UNIX_EPOCH
        + Duration::new(changed.ctime().try_into().unwrap(), changed.ctime_nsec().try_into().unwrap());
    for (now, settled) in [
        (changed, false),
        (changed - Duration::from_secs(9), false),
        (changed + SETTLE_TIME / 2, false),
        (changed + SETTLE_TIME, true),
    ] {
        assert_eq!(third.is_settled(now), settled, "{now:?}");
    }
}

#[test]
fn users_who_could_replace_a_directory_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("a/pool");
    fs::create_dir_all(&pool).unwrap();
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let above = dir.path().join("a");
    // The ancestors of the temporary directory belong to root or to us.
    let own = fs::metadata(dir.path()).unwrap().uid();
    let user = |path: &Path| who_can_replace(path).unwrap();
    if own != 0 {
        assert!(user(&pool).unwrap().contains(&format!("user {own}")));
        return;
    }
    assert_eq!((user(&pool), user(&pool.join("not/there"))), (None, None));
    set(&pool, 0o770);
    assert!(user(&pool).unwrap().contains("can write"));
    // The sticky bit protects entries.
    set(&pool, 0o1777);
    assert!(user(&pool).is_some() && user(&pool.join("made")).is_none());
    set(&pool, 0o755);
    set(&above, 0o1777);
    assert_eq!(user(&pool), None);
    set(&above, 0o777);
    assert!(user(&pool).unwrap().contains("/a"));
    set(&above, 0o755);
    std::os::unix::fs::symlink(&pool, dir.path().join("link")).unwrap();
    assert_eq!(user(&dir.path().join("link")), None);
}

#[test]
fn a_file_is_replaced_without_leftovers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.json");
    // A leftover of a crashed process with our pid.
    fs::write(dir.path().join(format!(".state.json.{}.0.tmp", std::process::id())), "old").unwrap();
    write_atomic(&path, b"one").unwrap();
    write_atomic(&path, b"two").unwrap();
    assert_eq!(read_limited(&path, Bytes(3)).unwrap(), b"two");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(names(dir.path()).len(), 2);
    assert!(matches!(read_limited(&path, Bytes(2)), Err(FileError::TooLarge { .. })));
    assert!(matches!(write_atomic(Path::new("/"), b""), Err(FileError::NoName { .. })));
    // The target is a directory: the temporary file is removed, the directory is kept.
    fs::create_dir_all(dir.path().join("d/x")).unwrap();
    let error = write_atomic(&dir.path().join("d"), b"x").unwrap_err();
    assert!(error.to_string().starts_with("cannot replace "), "{error}");
    assert_eq!(names(dir.path()).len(), 3);
}

#[test]
fn what_killed_writers_of_a_file_left_is_removed_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v1.volume");
    let own = format!(".v1.volume.{}.0.tmp", std::process::id());
    let mut kept =
        [own.as_str(), ".v1.volume.tmp", ".v1.volume.x.0.tmp", ".v11.volume.1.0.tmp", "v1.volume", "v1.volume.1.0.tmp"];
    for name in kept.into_iter().chain([".v1.volume.1.0.tmp", ".v1.volume.4194304.12.tmp"]) {
        fs::write(dir.path().join(name), "").unwrap();
    }
    remove_leftovers(&path).unwrap();
    kept.sort_unstable();
    assert_eq!(names(dir.path()), kept);
    remove_leftovers(&dir.path().join("no/v1.volume")).unwrap();
}

#[test]
fn removal_is_idempotent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    fs::write(&path, "").unwrap();
    assert!(remove_durable(&path).unwrap());
    assert!(!remove_durable(&path).unwrap());
    assert!(!remove_durable(&dir.path().join("no/x")).unwrap());
    assert!(remove_durable(dir.path()).is_err());
}

#[test]
fn free_space_is_at_most_the_total() {
    let space = free_space(Path::new("/")).unwrap();
    assert!(space.free <= space.total && space.total > Bytes(0));
    assert!(matches!(free_space(Path::new("/nonexistent")), Err(FileError::Io(_))));
}

#[test]
fn a_held_lock_is_reported_with_the_pid_of_its_holder() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    fs::write(&path, "999999 left by a longer pid\n").unwrap();
    let lock = lock_exclusive(&path).unwrap();
    let error = lock_exclusive(&path).unwrap_err();
    let expected = format!("{} is locked by process {}", path.display(), std::process::id());
    assert_eq!(error.to_string(), expected);
    drop(lock);
    let _lock = lock_exclusive(&path).unwrap();
    std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
    assert!(matches!(lock_exclusive(&dir.path().join("link")), Err(FileError::Io(_))));
}
