use super::*;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};

fn create_tree(at: &Path) {
    fs::create_dir_all(at.join("etc/deep")).unwrap();
    fs::set_permissions(at, fs::Permissions::from_mode(0o711)).unwrap();
    for n in 0..40 {
        fs::write(at.join(format!("etc/deep/{n}")), vec![b'x'; 5000 * n]).unwrap();
    }
    fs::hard_link(at.join("etc/deep/7"), at.join("etc/seven")).unwrap();
    symlink("/etc/passwd", at.join("link")).unwrap();
    // A hole is not data.
    fs::File::create(at.join("sparse")).unwrap().write_at(b"end", 8 << 20).unwrap();
    let when = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for name in ["etc/deep", "etc", "sparse", "etc/seven", "."] {
        fs::File::open(at.join(name)).unwrap().set_modified(when).unwrap();
    }
    for n in 0..40 {
        fs::File::open(at.join(format!("etc/deep/{n}"))).unwrap().set_modified(when).unwrap();
    }
    let times = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: times, last_modification: times };
    let link = at.join("link");
    rustix::fs::utimensat(rustix::fs::CWD, &link, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

#[test]
fn equal_trees_give_equal_file_systems() {
    if crate::tool::find_program("mkfs.ext4").is_none() {
        println!("Skipped: mkfs.ext4 is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let size = Bytes::mib(64);
    let mut made = Vec::new();
    for name in ["a", "b"] {
        let (tree, image) = (dir.path().join(name), dir.path().join(format!("{name}.img")));
        create_tree(&tree);
        fs::File::create(&image).unwrap().set_len(size.0).unwrap();
        let options = TreeOptions { tree: &tree, entries: 50, size, scratch: dir.path() };
        make_of_tree(&image, &options).unwrap();
        let check = Tool::new("e2fsck").args(["-f", "-n"]).arg(&image).run().unwrap();
        assert_eq!(check.code, 0, "{}", check.stdout);
        let root = Tool::new("debugfs").args(["-R", "stat /"]).arg(&image).run().unwrap().stdout;
        assert!(root.contains("Mode:  0711") && root.contains("mtime: 0x3b9aca00:00000000"), "{root}");
        // The second tree is created in another second, after the files of the first were read.
        let now = std::time::SystemTime::now();
        while now.elapsed().is_ok_and(|passed| passed.as_millis() < 1100) {
            crate::process::pause(std::time::Duration::from_millis(50));
        }
        made.push(fs::read(&image).unwrap());
    }
    assert!(made[0] == made[1], "the file systems differ");
}

#[test]
fn large_directories_have_hashed_indexes() {
    if crate::tool::find_program("mkfs.ext4").is_none() {
        println!("Skipped: mkfs.ext4 is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    fs::create_dir_all(tree.join("large")).unwrap();
    fs::create_dir(tree.join("small")).unwrap();
    for n in 0..2000 {
        fs::write(tree.join(format!("large/file-{n}")), "").unwrap();
    }
    fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
    make_of_tree(&image, &TreeOptions { tree: &tree, entries: 2002, size: Bytes::mib(32), scratch: dir.path() })
        .unwrap();
    let check = Tool::new("e2fsck").args(["-f", "-n"]).arg(&image).run().unwrap();
    assert_eq!(check.code, 0, "{}", check.stdout);
    // EXT4_INDEX_FL, in addition to EXT4_EXTENTS_FL.
    for (name, flags) in [("large", "Flags: 0x81000"), ("small", "Flags: 0x80000")] {
        let stat = Tool::new("debugfs").args(["-R", &format!("stat /{name}")]).arg(&image).run().unwrap().stdout;
        assert!(stat.contains(flags), "{name}: {stat}");
    }
}

#[test]
fn a_tree_that_does_not_fit_is_an_error() {
    if crate::tool::find_program("mkfs.ext4").is_none() {
        println!("Skipped: mkfs.ext4 is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("large"), vec![1; 40 << 20]).unwrap();
    fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
    let options = TreeOptions { tree: &tree, entries: 1, size: Bytes::mib(32), scratch: dir.path() };
    let error = make_of_tree(&image, &options).unwrap_err();
    assert!(matches!(&error, FsError::TreeTooLarge { .. }), "{error:?}");
}
