use super::sysfs::is_backed_by;
use super::*;

fn write(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn fake_loop(roots: &Roots, number: u32, backing: Option<&str>) {
    let dir = roots.sys.join(format!("block/loop{number}"));
    write(dir.join("dev"), &format!("7:{number}\n"));
    write(dir.join("ro"), "0\n");
    write(dir.join("queue/logical_block_size"), "4096\n");
    if let Some(backing) = backing {
        for (name, text) in [("offset", "0"), ("sizelimit", "0"), ("autoclear", "0"), ("dio", "1")] {
            write(dir.join("loop").join(name), &format!("{text}\n"));
        }
        write(dir.join("loop/backing_file"), &format!("{backing}\n"));
    }
}

#[test]
fn attached_devices_are_listed_by_number() {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots::under(dir.path());
    assert_eq!(list(&roots).unwrap(), []);
    fake_loop(&roots, 10, Some("/srv/b c.img"));
    fake_loop(&roots, 2, Some("/srv/a.img (deleted)"));
    fake_loop(&roots, 3, None);
    fs::create_dir_all(roots.sys.join("block/loopback")).unwrap();
    let found = list(&roots).unwrap();
    assert_eq!(found.iter().map(|info| info.dev.minor).collect::<Vec<_>>(), [2, 10]);
    let info = &found[1];
    assert_eq!(info.backing_file, Path::new("/srv/b c.img"));
    assert_eq!((info.dev_path.as_path(), info.backing), (roots.dev.join("loop10").as_path(), None));
    assert_eq!((info.direct_io, info.read_only, info.autoclear, info.block_size), (true, false, false, 4096));
}

#[test]
fn a_backing_file_is_found_by_name_if_the_node_cannot_be_queried() {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots::under(dir.path());
    let image = dir.path().join("a.img");
    let image = fs::canonicalize(dir.path()).unwrap().join(image.file_name().unwrap());
    fake_loop(&roots, 1, Some(&format!("{} (deleted)", image.display())));
    // The image does not exist: the deleted one matches.
    assert_eq!(find_by_backing(&roots, &image).unwrap().unwrap().dev.minor, 1);
    // A new file of that name is not the deleted one.
    fs::write(&image, "x").unwrap();
    assert_eq!(find_by_backing(&roots, &image).unwrap(), None);
    fake_loop(&roots, 4, Some(&image.display().to_string()));
    assert_eq!(find_by_backing(&roots, &image).unwrap().unwrap().dev.minor, 4);
}

#[test]
fn identity_takes_precedence_over_the_name() {
    let id = |inode| BackingId { dev: DevNo::new(254, 0), inode };
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots::under(dir.path());
    fake_loop(&roots, 0, Some("/a"));
    let info = LoopInfo { backing: Some(id(5)), ..list(&roots).unwrap().remove(0) };
    assert!(is_backed_by(&info, Some(id(5)), Path::new("/other/name")));
    assert!(!is_backed_by(&info, Some(id(6)), Path::new("/a")));
    assert!(is_backed_by(&info, None, Path::new("/a")));
}

#[test]
fn detaching_a_detached_device_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots::under(dir.path());
    fake_loop(&roots, 0, Some("/a"));
    let info = list(&roots).unwrap().remove(0);
    fs::remove_dir_all(roots.sys.join("block/loop0/loop")).unwrap();
    detach(&roots, &info).unwrap();
    // Another file is attached by now: it is not detached (the fake has no node).
    fake_loop(&roots, 0, Some("/b"));
    detach(&roots, &info).unwrap();
}

#[test]
fn the_block_size_depends_on_the_image_size() {
    assert_eq!(block_bytes_for(1 << 20, None), 4096);
    assert_eq!(block_bytes_for((1 << 20) + 512, None), 512);
    assert_eq!(block_bytes_for(1 << 20, Some(512)), 512);
}

#[test]
fn unsuitable_images_are_refused_without_a_system_call() {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots::under(dir.path());
    let image = dir.path().join("image");
    assert!(matches!(attach(&roots, &image, AttachOptions::default()), Err(LoopError::Image { .. })));
    fs::write(&image, "").unwrap();
    assert!(matches!(attach(&roots, &image, AttachOptions::default()), Err(LoopError::Unsuitable { .. })));
    assert!(matches!(attach(&roots, dir.path(), AttachOptions::default()), Err(LoopError::Unsuitable { .. })));
    fs::write(&image, [0; 4096]).unwrap();
    let error = attach(&roots, &image, AttachOptions::default()).unwrap_err();
    assert!(matches!(error, LoopError::Unavailable { .. }), "{error}");
}

#[test]
fn encoded_device_numbers_are_decoded() {
    // new_encode_dev(253, 3), and a minor above 255.
    assert_eq!(decode_dev(0xfd03), DevNo::new(253, 3));
    assert_eq!(decode_dev((259 << 8) | 0x01 | (0x100 << 12)), DevNo::new(259, 0x101));
}

/// Runs against the real kernel if loop devices can be attached; otherwise prints why it is skipped.
#[test]
fn root_attach_grow_and_detach_on_this_host() {
    let roots = Roots::host();
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
    let options = AttachOptions { direct_io: true, ..AttachOptions::default() };
    let info = match attach(&roots, &image, options) {
        Ok(info) => info,
        Err(LoopError::Unavailable { source, .. } | LoopError::Device(PathError { source, .. })) => {
            eprintln!("skipped: no loop devices here ({source})");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(info.direct_io, info.direct_io_lost.is_none(), "{info:?}");
    assert_eq!(info.block_size, 4096);
    let again = attach(&roots, &image, options).unwrap();
    assert_eq!(again, info);
    let buffered = attach(&roots, &image, AttachOptions::default()).unwrap();
    assert!(!buffered.direct_io && buffered.dev == info.dev);
    let other = attach(&roots, &image, AttachOptions { read_only: true, ..options });
    assert!(matches!(other, Err(LoopError::Conflict { .. })), "{other:?}");
    fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(16 << 20).unwrap();
    assert_eq!(set_capacity(&roots, &info).unwrap(), Bytes::mib(16));
    // Attaching the image again clears a pending autoclear.
    let holder = fs::File::open(&info.dev_path).unwrap();
    set_autoclear(&info);
    assert!(find_by_backing(&roots, &image).unwrap().unwrap().autoclear);
    let kept = attach(&roots, &image, options).unwrap();
    assert!(!kept.autoclear && kept.dev == info.dev, "{kept:?}");
    drop(holder);
    assert_eq!(find_by_backing(&roots, &image).unwrap().map(|found| found.dev), Some(info.dev));
    detach(&roots, &info).unwrap();
    detach(&roots, &info).unwrap();
    assert_eq!(find_by_backing(&roots, &image).unwrap(), None);
}

/// The state after a detach of a device in use: LOOP_CLR_FD while another process has it open.
fn set_autoclear(info: &LoopInfo) {
    let node = open_node(&info.dev_path, true).unwrap();
    // SAFETY: LOOP_CLR_FD takes no argument.
    let request = unsafe { NoArg::<{ request::LOOP_CLR_FD }>::new() };
    // SAFETY: `node` is a loop device node that this test attached.
    unsafe { ioctl(&node, request) }.unwrap();
}
