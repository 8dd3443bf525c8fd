use super::*;
use crate::archive::{Archive, Kind};
use std::os::unix::fs::{FileExt as _, symlink};

fn packed(source: &Path) -> Result<Vec<u8>, ImportError> {
    let mut archive = Vec::new();
    Source::open(source, Path::new("/nonexistent"))?.write_to(&mut archive).map(|()| archive)
}

#[test]
fn packing_and_reading_a_directory_round_trips() {
    let dir = tempfile::tempdir().unwrap();
    let long = "long/".repeat(30);
    fs::create_dir_all(dir.path().join(&long)).unwrap();
    fs::write(dir.path().join(&long).join("file"), "x").unwrap();
    fs::write(dir.path().join("a"), vec![7; 1000]).unwrap();
    fs::hard_link(dir.path().join("a"), dir.path().join("b")).unwrap();
    symlink("/nowhere".repeat(20), dir.path().join("c")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("d")).unwrap();
    let old = rustix::fs::Timespec { tv_sec: -10, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
    rustix::fs::utimensat(CWD, dir.path().join("a"), &times, AtFlags::empty()).unwrap();
    let bytes = packed(dir.path()).unwrap();
    assert_eq!(bytes, packed(dir.path()).unwrap(), "the same again");
    let mut archive = Archive::new(&bytes[..], "x", false);
    let mut seen = Vec::new();
    while let Some(member) = archive.next().unwrap() {
        let mut data = Vec::new();
        archive.data().read_to_end(&mut data).unwrap();
        seen.push((String::from_utf8(member.path).unwrap(), member.kind, member.mtime, data.len()));
    }
    let names: Vec<&str> = seen.iter().map(|(name, ..)| name.as_str()).filter(|name| name.len() < 10).collect();
    assert_eq!(names, ["./", "./a", "./b", "./c", "./long/"], "the socket is omitted");
    assert_eq!((&seen[1].1, seen[1].2, seen[1].3), (&Kind::File, -10, 1000));
    assert_eq!(seen[2].1, Kind::HardLink(b"./a".to_vec()));
    assert_eq!(seen[3].1, Kind::Symlink("/nowhere".repeat(20).into_bytes()));
    let last = seen.last().unwrap();
    assert_eq!((last.0.as_str(), last.3), (format!("./{long}file").as_str(), 1));
}

#[test]
fn holes_are_preserved() {
    let dir = tempfile::tempdir().unwrap();
    let sparse = File::create(dir.path().join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    sparse.write_all_at(b"middle", 1 << 30).unwrap();
    sparse.write_all_at(b"end", (1 << 40) - 3).unwrap();
    File::create(dir.path().join("hole")).unwrap().set_len(10 << 20).unwrap();
    fs::write(dir.path().join("zeroes"), vec![0; 300_000]).unwrap();
    let bytes = packed(dir.path()).unwrap();
    assert!(bytes.len() < 2 << 20, "{} bytes", bytes.len());
    let mut archive = Archive::new(&bytes[..], "x", false);
    let mut seen = Vec::new();
    while let Some(member) = archive.next().unwrap() {
        let mut data = Vec::new();
        archive.data().read_to_end(&mut data).unwrap();
        assert_eq!(data.len() as u64, member.content.segments.iter().map(|segment| segment.len).sum::<u64>());
        let text: Vec<u8> = data.into_iter().filter(|byte| *byte != 0).collect();
        seen.push((String::from_utf8(member.path).unwrap(), member.content.len, String::from_utf8(text).unwrap()));
    }
    let expected =
        [("./", 0, ""), ("./hole", 10 << 20, ""), ("./sparse", 1 << 40, "middleend"), ("./zeroes", 300_000, "")];
    assert_eq!(seen, expected.map(|(name, len, text)| (name.to_owned(), len, text.to_owned())));
}

#[test]
fn the_length_of_a_record_counts_itself() {
    for len in 0..1100 {
        let record = record(b"word", &vec![b'x'; len]);
        let (stated, _) = std::str::from_utf8(&record).unwrap().split_once(' ').unwrap();
        assert_eq!(stated.parse::<usize>().unwrap(), record.len());
    }
}

#[test]
fn mounts_in_a_directory_are_refused() {
    match packed(Path::new("/dev")) {
        Err(ImportError::Directory { reason: DirectoryError::OtherMount, .. }) => {}
        other => panic!("{:?}", other.map(|bytes| bytes.len())),
    }
}

#[test]
fn a_source_that_contains_the_staging_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let staging = dir.path().join("deep");
    fs::create_dir(&staging).unwrap();
    let error = Source::open(dir.path(), &staging).unwrap_err();
    assert!(matches!(error, ImportError::Directory { reason: DirectoryError::HasStaging, .. }), "{error}");
}
