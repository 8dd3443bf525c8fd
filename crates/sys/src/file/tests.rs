use super::*;
use std::os::unix::fs::PermissionsExt;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_that_was_changed_or_replaced_has_another_stamp() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    assert_eq!(Stamp::of(&path), None);
    write_atomic(&path, b"one").unwrap();
    let first = Stamp::of(&path).unwrap();
    assert_eq!(Stamp::of(&path), Some(first));
    // Within the same tick of the clock a change of the same size can only be seen by the number of the file.
    write_atomic(&path, b"two").unwrap();
    let second = Stamp::of(&path).unwrap();
    fs::write(&path, b"three").unwrap();
    let third = Stamp::of(&path).unwrap();
    assert!(first != second && second != third);
    let changed = fs::metadata(&path).unwrap();
    let changed = SystemTime::UNIX_EPOCH
        + Duration::new(changed.ctime().try_into().unwrap(), changed.ctime_nsec().try_into().unwrap());
    for (now, settled) in [
        (changed, false),
        (changed - Duration::from_secs(9), false),
        (changed + CLOCK_MOVES / 2, false),
        (changed + CLOCK_MOVES, true),
    ] {
        assert_eq!(third.is_settled(now), settled, "{now:?}");
    }
}

#[test]
fn who_else_could_replace_a_directory_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("a/pool");
    fs::create_dir_all(&pool).unwrap();
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let above = dir.path().join("a");
    // Whatever is above the temporary directory, root's or ours.
    let own = fs::metadata(dir.path()).unwrap().uid();
    let said = |path: &Path| who_can_replace(path).unwrap();
    if own != 0 {
        assert!(said(&pool).unwrap().contains(&format!("user {own}")));
        return;
    }
    assert_eq!((said(&pool), said(&pool.join("not/there"))), (None, None));
    set(&pool, 0o770);
    assert!(said(&pool).unwrap().contains("may write"));
    // Sticky helps for what is below.
    set(&pool, 0o1777);
    assert!(said(&pool).is_some() && said(&pool.join("made")).is_none());
    set(&pool, 0o755);
    set(&above, 0o1777);
    assert_eq!(said(&pool), None);
    set(&above, 0o777);
    assert!(said(&pool).unwrap().contains("/a"));
    set(&above, 0o755);
    std::os::unix::fs::symlink(&pool, dir.path().join("link")).unwrap();
    assert_eq!(said(&dir.path().join("link")), None);
}

#[test]
fn a_file_is_replaced_and_nothing_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.json");
    // What a crash of a process with our pid left.
    fs::write(dir.path().join(format!(".state.json.{}.0.tmp", std::process::id())), "old").unwrap();
    write_atomic(&path, b"one").unwrap();
    write_atomic(&path, b"two").unwrap();
    assert_eq!(read_limited(&path, Bytes(3)).unwrap(), b"two");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(names(dir.path()).len(), 2);
    assert!(matches!(read_limited(&path, Bytes(2)), Err(FileError::TooLarge { .. })));
    assert!(matches!(write_atomic(Path::new("/"), b""), Err(FileError::NoName { .. })));
    // A directory is in the way: the temporary file goes, the directory stays.
    fs::create_dir_all(dir.path().join("d/x")).unwrap();
    let error = write_atomic(&dir.path().join("d"), b"x").unwrap_err();
    assert!(error.to_string().starts_with("cannot replace "), "{error}");
    assert_eq!(names(dir.path()).len(), 3);
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
fn the_room_of_a_file_system_is_told() {
    let space = free_space(Path::new("/")).unwrap();
    assert!(space.free <= space.total && space.total > Bytes(0));
    assert!(matches!(free_space(Path::new("/nonexistent")), Err(FileError::Io(_))));
}

#[test]
fn the_second_daemon_learns_who_the_first_is() {
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
