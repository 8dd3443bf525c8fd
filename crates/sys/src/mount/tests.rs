use super::table::unescape;
use super::*;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::sync::Arc;

use bulkhead_core::units::Bytes;
use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};

/// Written by hand according to show_mountinfo: a volume, a bind mount of a directory, names with escapes, an empty source.
const SAVED: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
36 35 254:3 / /var/lib/bulkhead/mnt/db rw,nosuid,nodev,noatime shared:12 master:3 - ext4 /dev/dm-3 rw,stripe=16
37 36 254:3 /sub\\040dir /srv/a\\134b\\011c ro,relatime - ext4 /dev/mapper/pool-db rw
38 35 0:30 / /tmp rw - tmpfs  rw,size=1024k
";

#[test]
fn mountinfo_is_read() {
    let mounts = parse_mountinfo(SAVED.as_bytes()).unwrap();
    assert_eq!(mounts.len(), 4);
    let volume = &mounts[1];
    assert_eq!((volume.mount_id, volume.parent, volume.dev), (36, 35, DevNo::new(254, 3)));
    assert_eq!(volume.mount_point, Path::new("/var/lib/bulkhead/mnt/db"));
    assert_eq!((volume.propagation.as_str(), volume.fs_type.as_str()), ("shared:12 master:3", "ext4"));
    assert!(!volume.is_readonly());
    assert_eq!(mounts[2].root, Path::new("/sub dir"));
    assert_eq!(mounts[2].mount_point, Path::new("/srv/a\\b\tc"));
    assert!(mounts[2].is_readonly());
    assert_eq!((mounts[3].source.as_path(), mounts[3].super_options.as_str()), (Path::new(""), "rw,size=1024k"));
}

#[test]
fn the_selinux_context_of_a_file_system_is_found_among_its_options() {
    let context = |options: &str| {
        let line = format!("36 35 254:3 / /mnt rw - ext4 /dev/dm-3 {options}\n");
        parse_mountinfo(line.as_bytes()).unwrap()[0].selinux_context().map(str::to_owned)
    };
    let with_level = Some("system_u:object_r:container_file_t:s0:c1,c2".to_owned());
    assert_eq!(context("rw,context=\"system_u:object_r:container_file_t:s0:c1,c2\",stripe=16"), with_level);
    assert_eq!(context("context=\"system_u:object_r:container_file_t:s0:c1,c2\""), with_level);
    assert_eq!(context("rw,rootcontext=a:b:c,context=u:r:t:s0,stripe=16"), Some("u:r:t:s0".to_owned()));
    for none in ["rw,seclabel", "rw", "rw,rootcontext=\"a:b:c,context=u:r:t\""] {
        assert_eq!(context(none), None, "{none}");
    }
    assert_eq!(split_options("a,b=\"c,d\",,e=\"f,g").collect::<Vec<_>>(), ["a", "b=\"c,d\"", "", "e=\"f,g"]);
    assert_eq!(["\"a\"", "\"a", "a\"", "\"", "", "\"\""].map(unquote), ["a", "\"a", "a\"", "\"", "", ""]);
}

#[test]
fn malformed_lines_are_errors() {
    for line in ["x", "36 35 254 / / rw - ext4 d rw", "36 35 254:3 / / rw ext4 d rw", "36 35 254:3 / / rw - ext4 d"] {
        assert_eq!(parse_mountinfo(line.as_bytes()), Err(line.to_owned()));
    }
    assert_eq!(parse_mountinfo(b""), Ok(Vec::new()));
    assert!(parse_mountinfo(b"1 2 3:4 /\xff / rw - x y z").unwrap()[0].root.as_os_str().as_bytes() == b"/\xff");
}

#[test]
fn escapes_are_decoded_once() {
    for (from, to) in [("a\\040b", "a b"), ("\\134040", "\\040"), ("a\\", "a\\"), ("\\04", "\\04"), ("\\999", "\\999")]
    {
        assert_eq!(unescape(from.as_bytes()), to.as_bytes(), "{from}");
    }
}

#[test]
fn the_prefix_of_kernel_messages_is_removed() {
    assert_eq!(clean_message(b"e ext4: Unknown parameter 'x'\n"), "ext4: Unknown parameter 'x'");
    assert_eq!(clean_message(b"plain\x1b[31m."), "plain[31m");
}

#[test]
fn users_of_a_device_are_found_once_per_namespace() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    let process = |pid: u32, namespace: &str, mounts: Option<&str>| {
        let dir = roots.proc.join(pid.to_string());
        fs::create_dir_all(dir.join("ns")).unwrap();
        symlink(namespace, dir.join("ns/mnt")).unwrap();
        if let Some(text) = mounts {
            fs::write(dir.join("mountinfo"), text).unwrap();
        }
    };
    // The first process in the first namespace has exited; only its directory is left.
    process(5, "mnt:[100]", None);
    process(9, "mnt:[100]", Some(SAVED));
    process(10, "mnt:[100]", Some(SAVED));
    process(20, "mnt:[200]", Some("1 0 254:3 / /data rw - ext4 /dev/dm-3 rw\n"));
    process(30, "mnt:[300]", Some("1 0 254:4 / /data rw - ext4 /dev/dm-4 rw\n"));
    process(31, "odd", Some(""));
    fs::create_dir_all(roots.proc.join("sys")).unwrap();
    let both = mounts_of_devices(&roots, &BTreeSet::from([DevNo::new(254, 3), DevNo::new(254, 4)])).unwrap();
    assert_eq!(both.mounts.iter().map(|user| user.pid).collect::<Vec<_>>(), [9, 9, 20, 30]);
    let users = mounts_of_device(&roots, DevNo::new(254, 3)).unwrap();
    let seen: Vec<_> = users.mounts.iter().map(|u| (u.pid, u.namespace, u.mount.mount_id)).collect();
    assert_eq!(seen, [(9, 100, 36), (9, 100, 37), (20, 200, 1)]);
    assert_eq!(users.unreadable, [31]);
}

#[test]
fn a_mounted_file_system_is_synced() {
    let roots = Roots::host();
    // The topmost of several mounts.
    let proc = mountinfo(&roots).unwrap().into_iter().rfind(|mount| mount.mount_point == roots.proc).unwrap();
    assert!(sync_device(&roots, proc.dev));
    assert!(!sync_device(&roots, DevNo::new(4095, 1_048_575)));
}

/// Runs `test` in a thread with its own mount namespace, so that its mounts are not visible outside.
fn in_own_namespace(test: impl FnOnce(&Path) + Send) {
    let base = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: CLONE_NEWNS unshares no descriptor table; it concerns this thread only, which ends with the test.
            match unsafe { unshare_unsafe(UnshareFlags::NEWNS) } {
                Ok(()) => {
                    make_slave(Path::new("/")).unwrap();
                    test(base.path());
                }
                Err(errno) => println!("skipped: cannot unshare the mount namespace: {errno}"),
            }
        });
    });
}

fn mount_at(path: &Path) -> Option<MountInfo> {
    let tid = u32::try_from(gettid().as_raw_nonzero().get()).unwrap();
    mountinfo_of(&Roots::host(), tid).unwrap().into_iter().rfind(|mount| mount.mount_point == path)
}

#[test]
fn root_mount_bind_and_unmount_on_the_real_kernel() {
    in_own_namespace(|base| {
        let (volume, view) = (base.join("volume"), base.join("view"));
        fs::create_dir(&volume).unwrap();
        fs::create_dir(&view).unwrap();
        let flags = MountFlags { nosuid: true, nodev: true, noatime: true, ..MountFlags::default() };
        mount(Path::new("none"), "tmpfs", &volume, flags, &[("size", Some("1M"))]).unwrap();
        let info = mount_at(&volume).unwrap();
        let dev_at = |path: &Path| mounted_at(&Roots::host(), path).unwrap();
        assert_eq!((dev_at(&volume), dev_at(&view), dev_at(&base.join("none"))), (Some(info.dev), None, None));
        assert_eq!((info.options.as_str(), info.fs_type.as_str()), ("rw,nosuid,nodev,noatime", "tmpfs"));
        assert!(info.super_options.contains("size=1024k"), "{info:?}");

        fs::write(volume.join("file"), "x").unwrap();
        bind(&volume, &view, true).unwrap();
        let view_info = mount_at(&view).unwrap();
        std::os::unix::fs::symlink(&view, base.join("link")).unwrap();
        assert_eq!((dev_at(&view), dev_at(&base.join("link"))), (Some(info.dev), None));
        // The flags of the source are kept, and read-only is added.
        assert_eq!(view_info.options, "ro,nosuid,nodev,noatime");
        assert_eq!(view_info.dev, info.dev);
        assert_eq!(fs::read(view.join("file")).unwrap(), b"x");
        assert!(fs::write(view.join("file"), "y").is_err());
        bind(&volume.join("file"), &view.join("file"), false).unwrap();
        assert_eq!(mount_at(&view.join("file")).unwrap().root, Path::new("/file"));

        // In place of its root, a directory of it.
        let inner = base.join("inner");
        fs::create_dir(&inner).unwrap();
        bind(&volume, &inner, false).unwrap();
        std::os::unix::fs::symlink("/etc", volume.join("link")).unwrap();
        for wrong in ["link", "file"] {
            assert!(matches!(mount_subdirectory(&inner, wrong), Err(MountError::Bind { .. })), "{wrong}");
        }
        mount_subdirectory(&inner, "data").unwrap();
        fs::write(inner.join("new"), "z").unwrap();
        let info = mount_at(&inner).unwrap();
        assert_eq!((info.root.as_path(), info.options.as_str()), (Path::new("/data"), "rw,nosuid,nodev,noatime"));
        assert_eq!(fs::read(volume.join("data/new")).unwrap(), b"z");
        unmount(&inner).unwrap();
        assert_eq!(dev_at(&inner), None);

        assert!(matches!(unmount(&view), Err(MountError::Busy { .. })));
        unmount(&view.join("file")).unwrap();
        unmount(&view).unwrap();
        make_slave(&volume).unwrap();
        unmount(&volume).unwrap();
        assert_eq!(mount_at(&volume), None);
    });
}

#[test]
fn root_all_mounts_of_a_device_but_one_are_unmounted() {
    in_own_namespace(|base| {
        let [volume, first, second, other] = ["volume", "first", "second", "other"].map(|name| base.join(name));
        for directory in [&volume, &first, &second, &other] {
            fs::create_dir(directory).unwrap();
        }
        for directory in [&volume, &other] {
            mount(Path::new("none"), "tmpfs", directory, MountFlags::default(), &[]).unwrap();
        }
        fs::create_dir(volume.join("below")).unwrap();
        bind(&volume, &first, false).unwrap();
        bind(&volume, &second, true).unwrap();
        bind(&volume.join("below"), &other, false).unwrap();
        let table = || {
            let tid = u32::try_from(gettid().as_raw_nonzero().get()).unwrap();
            mountinfo_of(&Roots::host(), tid).unwrap()
        };
        let dev = mount_at(&volume).unwrap().dev;
        let places = |table: &[MountInfo]| -> Vec<PathBuf> {
            table.iter().filter(|mount| mount.dev == dev).map(|mount| mount.mount_point.clone()).collect()
        };
        assert_eq!(places(&table()).len(), 4);

        // One is in use: the later ones are unmounted.
        let open = fs::File::open(&second).unwrap();
        let busy = unmount_others(&table(), dev, &volume).unwrap_err();
        assert!(matches!(&busy, MountError::Busy { target } if *target == second), "{busy}");
        assert_eq!(places(&table()), [&volume, &first, &second].map(PathBuf::clone));
        drop(open);

        // What is mounted there by now is another file system, and stays, as does what it covers.
        mount(Path::new("none"), "tmpfs", &first, MountFlags::default(), &[]).unwrap();
        let old = table();
        unmount_others(&old, dev, &volume).unwrap();
        assert_eq!(places(&table()), [&volume, &first].map(PathBuf::clone));
        unmount(&first).unwrap();
        // So does a path that leads elsewhere by now.
        let moved = base.join("moved");
        let link = base.join("dir");
        fs::create_dir_all(link.join("bound")).unwrap();
        bind(&volume, &link.join("bound"), false).unwrap();
        let old = table();
        fs::rename(&link, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &link).unwrap();
        unmount_others(&old, dev, &volume).unwrap();
        assert_eq!(places(&table()), [volume.clone(), moved.join("bound")]);
        unmount_others(&table(), dev, &volume).unwrap();
        assert_eq!((places(&table()), mount_at(&other).map(|mount| mount.dev != dev)), (vec![volume], Some(true)));
    });
}

#[test]
fn root_the_mount_points_are_read_again_after_a_change() {
    in_own_namespace(|base| {
        let target = base.join("t");
        fs::create_dir(&target).unwrap();
        let tid = gettid().as_raw_nonzero().get();
        let mut points = MountPoints::open_path(format!("/proc/{tid}/mountinfo").into()).unwrap();
        let before = points.current().unwrap();
        assert!(!before.contains(&target) && before.contains(Path::new("/")));
        assert!(Arc::ptr_eq(&before, &points.current().unwrap()), "nothing has changed");
        mount(Path::new("none"), "tmpfs", &target, MountFlags::default(), &[]).unwrap();
        let mounted = points.current().unwrap();
        assert!(mounted.contains(&target));
        assert!(Arc::ptr_eq(&mounted, &points.current().unwrap()));
        unmount(&target).unwrap();
        assert_eq!(points.current().unwrap(), before);
    });
}

#[test]
fn root_errors_contain_the_kernels_message() {
    in_own_namespace(|base| {
        let target = base.join("t");
        fs::create_dir(&target).unwrap();
        let plain = MountFlags::default();
        let error = mount(Path::new("none"), "tmpfs", &target, plain, &[("no_such", Some("1"))]).unwrap_err();
        let text = error.to_string();
        assert!(error.is_invalid_option("no_such") && !error.is_invalid_option("no"), "{error:?}");
        assert!(text.contains("option no_such=1: kernel message: tmpfs: Unknown parameter 'no_such'"), "{text}");
        let error = mount(Path::new("none"), "nosuchfs", &target, plain, &[]).unwrap_err();
        assert!(matches!(error, MountError::UnknownFs { .. }), "{error}");

        let link = base.join("link");
        symlink(&target, &link).unwrap();
        for path in [link.clone(), base.join("link/")] {
            let error = mount(Path::new("none"), "tmpfs", &path, plain, &[]).unwrap_err();
            assert!(matches!(error, MountError::Symlink { .. }), "{error}");
            assert!(matches!(bind(base, &path, false), Err(MountError::Symlink { .. })));
        }
        assert!(matches!(
            mount(Path::new("none"), "tmpfs", &base.join("no"), plain, &[]),
            Err(MountError::Open { .. })
        ));
        assert!(matches!(bind(&base.join("no"), &target, false), Err(MountError::Open { .. })));
        assert!(matches!(unmount(&target), Err(MountError::NotMounted { .. })));
        assert!(matches!(make_slave(&target), Err(MountError::Change { .. })));
    });
}

#[test]
fn root_a_place_is_below_its_directory_and_hides_no_file() {
    in_own_namespace(|base| {
        let (dir, link) = (base.join("dir"), base.join("link-to-dir"));
        let (volume, elsewhere) = (base.join("volume"), base.join("elsewhere"));
        for made in [&dir.join("pods"), &dir.join("full"), &volume, &elsewhere] {
            fs::create_dir_all(made).unwrap();
        }
        fs::write(dir.join("full/file"), "").unwrap();
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        std::os::unix::fs::symlink(&elsewhere, dir.join("pods/link")).unwrap();
        mount(Path::new("none"), "tmpfs", &volume, MountFlags::default(), &[("size", Some("1M"))]).unwrap();
        fs::write(volume.join("file"), "x").unwrap();

        // The directory's own path may contain links, but no place may.
        let places = PlacesBelow::open(&link).unwrap();
        let place = |below: &str| places.place(&link.join(below));
        assert!(matches!(places.place(&dir.join("pods/a")), Err(PlaceError::Outside { .. })));
        for outside in ["../elsewhere", "pods/../x", ""] {
            assert!(matches!(place(outside), Err(PlaceError::Outside { .. })), "{outside}");
        }
        assert!(matches!(place("pods/link/x"), Err(PlaceError::Link { .. })));
        assert!(matches!(place("full/file/x"), Err(PlaceError::NotADirectory { .. })));
        assert!(place("none/x").unwrap().is_none());
        let of_link = place("pods/link").unwrap().unwrap();
        assert!(matches!(of_link.exists(), Err(PlaceError::Link { .. })));
        let full = place("full").unwrap().unwrap();
        assert!(matches!(full.bind(&volume, MountFlags::default()), Err(PlaceError::HasFiles { .. })));
        assert!(matches!(full.remove(), Err(PlaceError::HasFiles { .. })));

        let place_a = place("pods/a").unwrap().unwrap();
        assert!(!place_a.exists().unwrap());
        place_a.bind(&volume, MountFlags { readonly: true, noexec: true, ..MountFlags::default() }).unwrap();
        let info = mount_at(&dir.join("pods/a")).unwrap();
        assert_eq!((place_a.real_path(), info.options.as_str()), (dir.join("pods/a").as_path(), "ro,noexec,relatime"));
        assert_eq!(place_a.usage().unwrap(), Usage::at(&volume).unwrap());
        assert_eq!(place_a.usage().unwrap().total, Bytes(1 << 20));
        assert!(matches!(place("pods/a/file"), Err(PlaceError::OtherMount { .. })));
        assert!(matches!(place_a.remove(), Err(PlaceError::Busy { .. })));
        let open = fs::File::open(dir.join("pods/a/file")).unwrap();
        assert!(matches!(place_a.unmount(), Err(PlaceError::Busy { .. })));
        drop(open);

        // A directory of the kubelet can be a mount of its own.
        let plugins = dir.join("plugins");
        fs::create_dir(&plugins).unwrap();
        mount(Path::new("none"), "tmpfs", &plugins, MountFlags::default(), &[]).unwrap();
        for below in ["a", "b/b"] {
            fs::create_dir_all(plugins.join(below).parent().unwrap()).unwrap();
            let inside = place(&format!("plugins/{below}")).unwrap().unwrap();
            inside.bind(&volume, MountFlags::default()).unwrap();
            assert_eq!(inside.real_path(), mount_at(&plugins.join(below)).unwrap().mount_point);
            assert!(matches!(place(&format!("plugins/{below}/x")), Err(PlaceError::OtherMount { .. })));
            inside.unmount().unwrap();
            inside.remove().unwrap();
        }

        // It stays where it was, whatever its path leads to now.
        fs::rename(dir.join("pods"), dir.join("moved")).unwrap();
        place_a.unmount().unwrap();
        place_a.remove().unwrap();
        place_a.remove().unwrap();
        assert!(!dir.join("moved/a").exists() && mount_at(&volume).is_some());
    });
}

/// Devices whose nodes exist; they are not opened.
fn two_nodes() -> Option<[PathBuf; 2]> {
    let found = fs::read_dir("/dev").ok()?.filter_map(Result::ok);
    let is_block = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    let mut nodes: Vec<PathBuf> = found.map(|entry| entry.path()).filter(is_block).collect();
    nodes.sort();
    Some([nodes.first()?.clone(), nodes.get(1)?.clone()])
}

#[test]
fn root_a_node_is_bound_replaced_and_found_elsewhere() {
    let Some(nodes) = two_nodes() else {
        println!("skipped: there are no two block devices");
        return;
    };
    in_own_namespace(|base| {
        let roots = Roots::host();
        let [one, other] = nodes.each_ref().map(|node| crate::block::devno_of(node).unwrap());
        let target = base.join("pool/v");
        fs::create_dir(base.join("pool")).unwrap();
        assert_eq!(bound_node(&roots, &target).unwrap(), None);
        assert!(bind_node(&roots, &nodes[0], one, &target).unwrap());
        assert!(!bind_node(&roots, &nodes[0], one, &target).unwrap(), "repeated");
        assert_eq!(bound_node(&roots, &target).unwrap(), Some(one));
        // That of another device is replaced; that of a device with another number than expected is not bound.
        assert!(bind_node(&roots, &nodes[1], other, &target).unwrap());
        assert_eq!(bound_node(&roots, &target).unwrap(), Some(other));
        assert!(matches!(bind_node(&roots, &nodes[1], one, &target), Err(MountError::Place { .. })));
        assert_eq!((bound_node(&roots, &target).unwrap(), target.exists()), (None, false));

        assert!(bind_node(&roots, &nodes[0], one, &target).unwrap());
        let [again, else_] = ["again", "else"].map(|name| base.join(name));
        for (node, place) in [(&target, &again), (&nodes[1], &else_)] {
            fs::write(place, "").unwrap();
            bind(node, place, false).unwrap();
        }
        let tid = u32::try_from(gettid().as_raw_nonzero().get()).unwrap();
        let table = || mountinfo_of(&roots, tid).unwrap();
        assert_eq!(other_binds(&table(), &target), [again.as_path()]);
        let chroot = base.join("chroot").join(target.strip_prefix("/").unwrap());
        fs::create_dir_all(chroot.parent().unwrap()).unwrap();
        fs::write(&chroot, "").unwrap();
        bind(&target, &chroot, false).unwrap();
        assert_eq!(other_binds(&table(), &target), [again.as_path()], "it came along with the directories above");
        unmount(&chroot).unwrap();
        unmount_other_binds(&table(), &target).unwrap();
        assert_eq!((other_binds(&table(), &target).len(), mount_at(&again)), (0, None));
        assert!(mount_at(&else_).is_some() && mount_at(&target).is_some());
        unmount(&else_).unwrap();
        for changed in [true, false] {
            assert_eq!(unbind_node(&roots, &target).unwrap(), changed);
        }

        // What is in the way stays.
        fs::write(&target, "data").unwrap();
        assert!(matches!(bind_node(&roots, &nodes[0], one, &target), Err(MountError::Place { .. })));
        assert!(!unbind_node(&roots, &target).unwrap() && fs::read(&target).unwrap() == b"data");
        fs::remove_file(&target).unwrap();
        symlink(&again, &target).unwrap();
        assert!(matches!(bind_node(&roots, &nodes[0], one, &target), Err(MountError::Place { .. })));
        fs::remove_file(&target).unwrap();
        fs::create_dir(&target).unwrap();
        mount(Path::new("none"), "tmpfs", &target, MountFlags::default(), &[]).unwrap();
        assert!(matches!(bind_node(&roots, &nodes[0], one, &target), Err(MountError::Place { .. })));
        assert!(matches!(unbind_node(&roots, &target), Err(MountError::Place { .. })));
        unmount(&target).unwrap();
        assert!(fs::metadata(&again).unwrap().is_file(), "a link was followed");
    });
}
