use super::*;
use crate::error::ArchiveError;
use crate::testing::Tar;
use std::os::unix::fs::PermissionsExt as _;
use tar::EntryType;
use tempfile::TempDir;

fn unpack_all(dir: &Path, archives: &[Vec<u8>], is_layer: bool) -> Result<PathBuf, ImportError> {
    let mut report = |_| ();
    let mut meter = Meter::new(&mut report);
    let mut unpacked = Unpacker::create(&dir.join("tree"))?;
    for bytes in archives {
        if is_layer {
            unpacked.apply_whiteouts(&mut Archive::new(&bytes[..], "it", true), "it")?;
        }
        unpacked.unpack(&mut Archive::new(&bytes[..], "it", is_layer), "it", is_layer, &mut meter)?;
    }
    unpacked.finish().map(|finished| finished.path)
}

fn unpacked(archive: Tar) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let tree = unpack_all(dir.path(), &[archive.end()], false).unwrap();
    (dir, tree)
}

fn refused(archive: Tar) -> EntryError {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("precious"), "precious").unwrap();
    let error = unpack_all(dir.path(), &[archive.end()], false).unwrap_err();
    // Files outside of the tree are unchanged.
    assert_eq!(fs::read_to_string(dir.path().join("precious")).unwrap(), "precious");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    match error {
        ImportError::Entry { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn unpacking_restores_files_and_metadata() {
    let (_dir, tree) = unpacked(
        Tar::new()
            .dir("./", 0o750, 11)
            .dir("a/", 0o2775, 12)
            .with(EntryType::Regular, "a/set-uid", b"text", |header| header.set_mode(0o4755))
            .file("a/zeroes", [&[0; 200_000][..], b"end", &[0; 100_000]].concat())
            .file("a/holes", [0; 70_000])
            .link(EntryType::Symlink, "a/link", "/etc/passwd")
            .link(EntryType::Link, "again", "a/set-uid")
            .link(EntryType::Link, "link-again", "./a/link")
            .with(EntryType::Fifo, "pipe", &[], |header| header.set_mode(0o622))
            .file("implied/deep/file", ""),
    );
    let at = |path: &str| fs::symlink_metadata(tree.join(path)).unwrap();
    let seen = |path: &str| (at(path).permissions().mode() & 0o7777, at(path).mtime(), at(path).mtime_nsec());
    assert_eq!(seen(""), (0o750, 11, 0));
    assert_eq!(seen("a"), (0o2775, 12, 0));
    assert_eq!(seen("a/set-uid"), (0o4755, 1_000_000_000, 0));
    assert_eq!(seen("pipe"), (0o622, 1_000_000_000, 0));
    assert_eq!((seen("implied"), seen("implied/deep")), ((0o755, 0, 0), (0o755, 0, 0)));
    assert_eq!(at("again").ino(), at("a/set-uid").ino());
    assert_eq!(at("link-again").ino(), at("a/link").ino());
    assert_eq!(fs::read_link(tree.join("a/link")).unwrap(), Path::new("/etc/passwd"));
    let zeroes = fs::read(tree.join("a/zeroes")).unwrap();
    assert!(zeroes.len() == 300_003 && &zeroes[200_000..200_003] == b"end");
    assert_eq!((at("a/holes").len(), at("a/link").mtime()), (70_000, 1_000_000_000));
}

#[test]
fn sparse_files_count_their_allocated_blocks() {
    let map = |parts: &str, len: u64| {
        let len = len.to_string();
        let records: [(&str, &[u8]); 2] = [("GNU.sparse.size", len.as_bytes()), ("GNU.sparse.map", parts.as_bytes())];
        Tar::new().records(EntryType::XHeader, &records)
    };
    let sparse = map("4095,2,1099511627772,4", 1 << 40).file("sparse", b"abcend");
    // A file of zeroes has no blocks either, but its replacement does.
    let archive = Tar(sparse.0).file("zeroes", vec![0; 100_000]).file("gone", [&[1][..], &[0; 8191]].concat());
    let archive = archive.file("gone", "text").file("whole", vec![1; 5000]);
    let dir = tempfile::tempdir().unwrap();
    let (bytes, mut report) = (archive.end(), |_| ());
    let mut unpacked = Unpacker::create(&dir.path().join("tree")).unwrap();
    unpacked.unpack(&mut Archive::new(&bytes[..], "it", false), "it", false, &mut Meter::new(&mut report)).unwrap();
    let finished = unpacked.finish().unwrap();
    let size = crate::count::count(&finished).unwrap();
    assert_eq!(size.bytes, Bytes((2 + 1) * 4096 + 4096 + 8192));
    let file = File::open(finished.path.join("sparse")).unwrap();
    let (mut start, mut end) = ([9; 8192], [9; 8]);
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut start, 0).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut end, (1 << 40) - 8).unwrap();
    assert_eq!((&start[4095..4097], start.iter().filter(|byte| **byte != 0).count()), (&b"ab"[..], 2));
    assert_eq!((&end, file.metadata().unwrap().len()), (b"\0\0\0\0cend", 1 << 40));
    assert!(file.metadata().unwrap().blocks() < 1000);
}

#[test]
fn root_owners_devices_and_capabilities_are_kept() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: requires root");
    }
    let capability = b"\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let of = |uid, gid| {
        move |header: &mut tar::Header| {
            header.set_uid(uid);
            header.set_gid(gid);
        }
    };
    let archive = Tar::new()
        .records(EntryType::XHeader, &[("SCHILY.xattr.security.capability", capability)])
        .with(EntryType::Regular, "ping", b"text", of(0, 0))
        .with(EntryType::Symlink, "link", &[], |header| {
            of(1000, 100)(header);
            header.as_old_mut().linkname[0] = b'x';
        })
        .with(EntryType::Regular, "owned", &[], of(70_000, 5));
    let (_dir, tree) = unpacked(archive);
    let owner = |path: &str| {
        let found = fs::symlink_metadata(tree.join(path)).unwrap();
        (found.uid(), found.gid())
    };
    assert_eq!((owner("link"), owner("owned")), ((1000, 100), (70_000, 5)));
    let mut value = [0; 64];
    let len = rustix::fs::lgetxattr(tree.join("ping"), "security.capability", &mut value[..]).unwrap();
    assert_eq!(&value[..len], capability);
    let device = Tar::new().with(EntryType::Char, "null", &[], |header| {
        header.set_device_major(1).unwrap();
        header.set_device_minor(3).unwrap();
    });
    let dir = tempfile::tempdir().unwrap();
    match unpack_all(dir.path(), &[device.end()], false) {
        Ok(tree) => assert_eq!(fs::metadata(tree.join("null")).unwrap().rdev(), makedev(1, 3)),
        // In a container.
        Err(error) => assert_eq!(error.code(), bulkhead_core::error::Code::PermissionDenied),
    }
}

#[test]
fn names_that_lead_out_are_refused() {
    assert_eq!(refused(Tar::new().file("../precious", "x")), EntryError::Outside);
    assert_eq!(refused(Tar::new().file("a/../../precious", "x")), EntryError::Outside);
    let name = "itself";
    let behind = Tar::new().link(EntryType::Symlink, name, name).file("itself/precious", "x");
    assert_eq!(refused(behind), EntryError::LinkLoop(name.to_owned()));
    // A directory replaces a link of the same name, not the target of the link.
    let (dir, tree) =
        unpacked(Tar::new().link(EntryType::Symlink, "link", "..").dir("link/", 0o711, 3).file("link/x", ""));
    assert!(tree.join("link/x").exists() && !dir.path().join("x").exists());
    assert_eq!(refused(Tar::new().file("a", "").file("a/b", "")), EntryError::NotInDirectory);
    assert_eq!(refused(Tar::new().file(".", "")), EntryError::Root);
}

/// Unpacks archives, and checks that files outside of the tree are unchanged.
fn within(archives: &[Tar]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("precious"), "precious").unwrap();
    let archives: Vec<Vec<u8>> = archives.iter().map(|archive| archive.clone().end()).collect();
    let tree = unpack_all(dir.path(), &archives, archives.len() > 1).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("precious")).unwrap(), "precious");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    (dir, tree)
}

#[test]
fn absolute_names_start_at_the_root_of_the_tree() {
    let archive = Tar::new()
        .dir("/", 0o711, 9)
        .dir("/etc/", 0o750, 11)
        .file("/etc/passwd", "root")
        .link(EntryType::Link, "//etc/again", "/etc/passwd")
        .link(EntryType::Symlink, "/etc/link", "/etc/passwd");
    let (_dir, tree) = within(&[archive]);
    let at = |path: &str| fs::symlink_metadata(tree.join(path)).unwrap();
    assert_eq!((at("").mode() & 0o7777, at("").mtime(), at("etc").mtime()), (0o711, 9, 11));
    assert_eq!(at("etc/again").ino(), at("etc/passwd").ino());
    assert_eq!(fs::read_link(tree.join("etc/link")).unwrap(), Path::new("/etc/passwd"));
}

#[test]
fn entries_behind_a_link_are_created_in_its_target() {
    let lower = Tar::new()
        .dir("usr/lib", 0o755, 3)
        .dir("usr/lib/old", 0o755, 4)
        .file("usr/lib/old/file", "")
        .file("usr/lib/gone", "")
        .file("usr/lib/opaque/below", "")
        .link(EntryType::Symlink, "lib", "usr/lib")
        .link(EntryType::Symlink, "lib64", "/usr/../lib")
        .link(EntryType::Symlink, "up", "../../..")
        .link(EntryType::Symlink, "dangling", "/srv/data");
    let upper = Tar::new()
        .file("lib/libc.so", "libc")
        .link(EntryType::Link, "lib64/libc.so.6", "/lib/libc.so")
        .file("lib/.wh.gone", "")
        .file("lib64/opaque/.wh..wh..opq", "")
        .file("lib64/opaque/mine", "")
        .dir("lib/old", 0o700, 7)
        .file("up/precious", "mine")
        .file("dangling/file", "made");
    let (_dir, tree) = within(&[lower, upper]);
    let at = |path: &str| fs::symlink_metadata(tree.join(path)).unwrap();
    assert!(at("lib").is_symlink() && at("lib64").is_symlink() && at("dangling").is_symlink());
    assert_eq!(fs::read_to_string(tree.join("usr/lib/libc.so")).unwrap(), "libc");
    assert_eq!(at("usr/lib/libc.so.6").ino(), at("usr/lib/libc.so").ino());
    assert!(!tree.join("usr/lib/gone").exists() && tree.join("usr/lib/old/file").exists());
    assert!(tree.join("usr/lib/opaque/mine").exists() && !tree.join("usr/lib/opaque/below").exists());
    assert_eq!((at("usr/lib/old").mtime(), at("usr/lib/old").mode() & 0o777), (7, 0o700));
    assert_eq!(fs::read_to_string(tree.join("precious")).unwrap(), "mine");
    assert_eq!(fs::read_to_string(tree.join("srv/data/file")).unwrap(), "made");
    // A directory of the upper layer replaces the link; whiteouts in it do not apply to the former target.
    let lower = Tar::new().file("usr/lib/kept", "").link(EntryType::Symlink, "lib", "usr/lib");
    let upper = Tar::new().dir("lib", 0o755, 1).file("lib/.wh.kept", "").file("lib/.wh..wh..opq", "").file("lib/x", "");
    let (_dir, tree) = within(&[lower, upper]);
    assert!(tree.join("usr/lib/kept").exists() && tree.join("lib").is_dir() && !tree.join("usr/lib/x").exists());
}

#[test]
fn hard_links_that_lead_out_are_refused() {
    let link = |to: &str| refused(Tar::new().link(EntryType::Symlink, "up", "..").link(EntryType::Link, "x", to));
    let bad = |to: &str, reason| EntryError::BadTarget { target: to.to_owned(), reason: Box::new(reason) };
    assert_eq!(link("../precious"), bad("../precious", EntryError::Outside));
    // Their targets are looked up in the tree, where they do not exist.
    for target in ["/etc/passwd", "up/precious", "/precious"] {
        assert_eq!(link(target), EntryError::NoTarget(target.to_owned()));
    }
    assert!(matches!(link("/"), EntryError::BadTarget { .. }));
    assert_eq!(link("missing"), EntryError::NoTarget("missing".to_owned()));
    assert!(matches!(link("."), EntryError::BadTarget { .. }));
    let of_directory = Tar::new().dir("d", 0o755, 1).link(EntryType::Link, "x", "d");
    assert!(matches!(refused(of_directory), EntryError::BadTarget { .. }));
    // A link to itself changes nothing; a link to what it replaces has no target.
    let (_dir, tree) = unpacked(Tar::new().file("a", "text").link(EntryType::Link, "a", "./a"));
    assert_eq!(fs::read_to_string(tree.join("a")).unwrap(), "text");
    let within = Tar::new().file("d/a", "text").link(EntryType::Link, "d", "d/a");
    assert_eq!(refused(within), EntryError::NoTarget("d/a".to_owned()));
}

#[test]
fn the_last_entry_of_a_name_wins() {
    let (_dir, tree) = unpacked(
        Tar::new()
            .file("a", "first")
            .link(EntryType::Link, "linked", "a")
            .file("a", "second")
            .file("d/old", "")
            .file("d", "now a file")
            .file("f", "")
            .dir("f", 0o700, 9)
            .file("f/new", "")
            .dir("e", 0o755, 1)
            .file("e/kept", "")
            .dir("e", 0o700, 2),
    );
    let text = |path: &str| fs::read_to_string(tree.join(path)).unwrap();
    // Other names of a replaced file are unchanged.
    assert_eq!((text("a"), text("linked"), text("d")), ("second".into(), "first".into(), "now a file".into()));
    assert!(tree.join("f/new").exists() && tree.join("e/kept").exists());
    assert_eq!(
        (fs::metadata(tree.join("e")).unwrap().mode() & 0o777, fs::metadata(tree.join("f")).unwrap().mtime()),
        (0o700, 9)
    );
}

#[test]
fn whiteouts_hide_lower_layers_only() {
    let lower = Tar::new()
        .file("gone", "")
        .file("kept", "")
        .file("anew", "old")
        .file("opaque/below", "")
        .file("opaque/deep/below", "")
        .file("tree/a/b", "");
    let upper = Tar::new()
        .file("anew", "new")
        .file(".wh.anew", "")
        .file(".wh.gone", "")
        .file(".wh.never-there", "")
        .file("nowhere/.wh.x", "")
        .file("opaque/mine", "")
        .file("opaque/.wh..wh..opq", "")
        .file(".wh..wh.plnk", "")
        .file(".wh.tree", "");
    let dir = tempfile::tempdir().unwrap();
    let tree = unpack_all(dir.path(), &[lower.end(), upper.end()], true).unwrap();
    let mut names: Vec<_> = fs::read_dir(&tree).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["anew", "kept", "opaque"]);
    assert_eq!(fs::read_to_string(tree.join("anew")).unwrap(), "new");
    assert_eq!(fs::read_dir(tree.join("opaque")).unwrap().count(), 1);
}

#[test]
fn times_of_removed_directories_are_dropped() {
    let mut meter = |_| ();
    let mut meter = Meter::new(&mut meter);
    let dir = tempfile::tempdir().unwrap();
    let mut unpacked = Unpacker::create(&dir.path().join("tree")).unwrap();
    let lower = Tar::new().dir("a", 0o755, 1).dir("a/b", 0o755, 1).dir("ab", 0o755, 1).dir("c", 0o755, 1);
    let lower = lower.dir("c/d", 0o755, 1).file("a", "").dir("e", 0o755, 1).dir("e/f", 0o755, 1).end();
    unpacked.unpack(&mut Archive::new(&lower[..], "it", true), "it", true, &mut meter).unwrap();
    let upper = Tar::new().file("c/.wh..wh..opq", "").file(".wh.e", "").end();
    unpacked.apply_whiteouts(&mut Archive::new(&upper[..], "it", true), "it").unwrap();
    let left: Vec<_> = unpacked.times.keys().map(|path| path.display().to_string()).collect();
    assert_eq!(left, ["", "ab", "c"]);
}

#[test]
fn an_opaque_directory_replaces_a_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("precious"), "precious").unwrap();
    let lower = Tar::new().link(EntryType::Symlink, "link", "..").file("file", "x").link(EntryType::Symlink, "a", "..");
    let upper = Tar::new()
        .dir("link", 0o755, 0)
        .file("link/.wh..wh..opq", "")
        .file("link/precious", "mine")
        .dir("file", 0o755, 0)
        .file("file/.wh.x", "")
        .dir("a", 0o755, 0)
        .dir("a/b", 0o755, 0)
        .file("a/b/.wh..wh..opq", "");
    let tree = unpack_all(dir.path(), &[lower.end(), upper.end()], true).unwrap();
    assert_eq!(fs::read_to_string(tree.join("link/precious")).unwrap(), "mine");
    assert!(tree.join("file").is_dir() && tree.join("a/b").is_dir());
    assert_eq!(fs::read_to_string(dir.path().join("precious")).unwrap(), "precious");
}

#[test]
fn no_layer_leads_out_through_links_of_another() {
    let lower = || {
        let lower = Tar::new().link(EntryType::Symlink, "link", "..").dir("a", 0o755, 0);
        lower.link(EntryType::Symlink, "a/link", "../..").link(EntryType::Symlink, "a/loop", "loop")
    };
    for upper in [
        Tar::new().file("link/precious", "x"),
        Tar::new().file("link/.wh.precious", ""),
        Tar::new().file("link/.wh..wh..opq", ""),
        Tar::new().dir("link/deep", 0o755, 0).file("link/deep/.wh..wh..opq", ""),
        // The layer's own directory does not replace the link below it.
        Tar::new().dir("a", 0o755, 0).file("a/link/.wh.precious", ""),
        Tar::new().dir("a", 0o755, 0).file("a/link/.wh..wh..opq", ""),
    ] {
        within(&[lower(), upper]);
    }
    for upper in [
        Tar::new().file(".wh...", ""),
        Tar::new().file(".wh..", ""),
        Tar::new().file("a/loop/.wh.precious", ""),
        Tar::new().dir("a/loop/deep", 0o755, 0),
        Tar::new().link(EntryType::Link, "x", "link/precious"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("precious"), "precious").unwrap();
        let error = unpack_all(dir.path(), &[lower().end(), upper.end()], true).unwrap_err();
        assert!(matches!(error, ImportError::Entry { .. }), "{error:?}");
        assert_eq!(fs::read_to_string(dir.path().join("precious")).unwrap(), "precious");
    }
}

#[test]
fn errors_name_the_entry_and_escape_control_characters() {
    let dir = tempfile::tempdir().unwrap();
    let error = unpack_all(dir.path(), &[Tar::new().file("../\x1b[31mred\n", "").end()], false).unwrap_err();
    assert_eq!(error.to_string(), r#"it: entry "../\u{1b}[31mred\n" has a name that leads out of the archive"#);
    let (cut, dir) = (Tar::new().file("a", [1; 5000]).end(), tempfile::tempdir().unwrap());
    let error = unpack_all(dir.path(), &[cut[..3000].to_vec()], false);
    assert!(matches!(error, Err(ImportError::Archive { reason: ArchiveError::CutOff, .. })), "{error:?}");
}
