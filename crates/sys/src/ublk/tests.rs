use super::*;

fn device(id: u32) -> DeviceInfo {
    DeviceInfo { id, state: State::Live, server_pid: None, owner: 7, queues: 1, depth: 64, max_io_bytes: 1 << 17 }
}

fn put(roots: &Roots, path: &str, text: &str) {
    let path = roots.sys.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn a_volume_is_its_disk_or_the_first_partition_of_an_oversized_one() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    let (exact, large) = (device(0), device(1));
    assert_eq!(sized::size(&roots, &exact), None, "not started");
    put(&roots, "class/block/ublkb0/size", "2048\n");
    assert_eq!(sized::size(&roots, &exact), Some(Bytes::mib(1)));
    assert_eq!(sized::node(&roots, &exact), roots.dev.join("ublkb0"));
    let disk = sized::disk_size(Features(0), Bytes::mib(1));
    put(&roots, "class/block/ublkb1/size", &format!("{}\n", disk.0 / 512));
    assert_eq!(sized::size(&roots, &large), None, "not exposed");
    put(&roots, "class/block/ublkb1p1/size", "4096\n");
    assert_eq!(sized::size(&roots, &large), Some(Bytes::mib(2)));
    assert_eq!(sized::node(&roots, &large), roots.dev.join("ublkb1p1"));
    assert_eq!(sized::disk_size(Features(uapi::F_UPDATE_SIZE), Bytes::mib(1)), Bytes::mib(1));
}

#[test]
fn a_missing_driver_is_reported() {
    let base = tempfile::tempdir().unwrap();
    let error = Control::open(&Roots::under(base.path())).unwrap_err();
    assert!(matches!(&error, UblkError::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("ublk-control"), "{error}");
}

#[test]
fn a_device_known_to_belong_to_another_owner_is_not_queried_again() {
    let known = Owners::default();
    let find = |devices: &[(u64, u32)], owner: u64, owners: &[(u32, u64)]| {
        let mut queried = Vec::new();
        let found = known.find(devices, owner, |id| {
            queried.push(id);
            let owned = owners.iter().find(|(device, _)| *device == id);
            match owned {
                // An unprivileged user's device.
                Some((_, 0)) => Err(refused(uapi::GET_DEV_INFO, id, Errno::PERM)),
                _ => Ok(owned.map(|(_, owner)| DeviceInfo { owner: *owner, ..device(id) })),
            }
        });
        (found.unwrap().map(|device| device.id), queried)
    };
    let all = [(100, 0), (101, 1), (102, 2)];
    let owners = [(0, 70), (1, 0), (2, 72)];
    assert_eq!(find(&all, 72, &owners), (Some(2), vec![0, 1, 2]));
    assert_eq!(find(&all, 72, &owners), (Some(2), vec![2]));
    assert_eq!(find(&all, 73, &owners), (None, vec![]));
    // The first device is removed, and its number is reused by another one with a different inode number.
    let all = [(103, 0), (101, 1), (102, 2)];
    assert_eq!(find(&all, 73, &[(0, 73), (1, 0), (2, 72)]), (Some(0), vec![0]));
    assert_eq!(find(&all, 70, &[(0, 73), (1, 0), (2, 72)]), (None, vec![]));
    // A device that vanishes during the search is not found.
    assert_eq!(find(&[(104, 4)], 74, &[]), (None, vec![4]));
    assert_eq!(find(&[(104, 4)], 74, &[(4, 74)]), (Some(4), vec![4]));
}
