use super::*;
use rustix::fs::OFlags;
use std::os::unix::fs::PermissionsExt;

fn names(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

fn first_hole(path: &Path) -> u64 {
    seek(File::open(path).unwrap(), SeekFrom::Hole(0)).unwrap()
}

fn fill_all(filler: &Filler) -> u64 {
    let (mut at, mut sum) = (0, 0);
    while let Some(part) = filler.next(at, Bytes(u64::MAX)).unwrap() {
        assert!(part.start >= at && part.end - part.start <= CHUNK, "{part:?}");
        at = part.end;
        sum += filler.fill(part).unwrap().0;
    }
    filler.finish().unwrap();
    sum
}

#[test]
fn images_are_provisioned_as_requested() {
    let dir = tempfile::tempdir().unwrap();
    for (name, provision) in [("sparse", Provision::OnDemand), ("full", Provision::Full)] {
        let path = dir.path().join(name);
        // Not a multiple of the block.
        let size = Bytes(5 * Bytes::MIB / 2 + 4096 + 123);
        create(&path, size, provision).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (size.0, 0o600));
        assert_eq!(allocated(&path).unwrap() >= size, provision == Provision::Full);
        assert_eq!(unwritten(&path).unwrap(), size);
        assert!(fs::read(&path).unwrap().iter().all(|&byte| byte == 0));
        assert!(matches!(create(&path, size, provision), Err(FileError::Exists { .. })));
    }
}

#[test]
fn an_image_that_cannot_fit_is_refused_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let size = Bytes(free_space(dir.path()).unwrap().total.0 * 2);
    let error = create(&path, size, Provision::Full).unwrap_err();
    assert!(matches!(error, FileError::NoSpace { .. } | FileError::Io(_)), "{error:?}");
    assert_eq!((names(dir.path()), allocated(&path).unwrap()), (0, Bytes(0)));
}

#[test]
fn filling_keeps_data_and_writes_all_unwritten_parts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    create(&path, Bytes::mib(6), Provision::Full).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[7; 8192], 3 * Bytes::MIB).unwrap();
    file.sync_all().unwrap();
    assert_eq!(unwritten(&path).unwrap(), Bytes(6 * Bytes::MIB - 8192));
    let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap();
    let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path).unwrap();
    let filler = Filler::new(opened, &path);
    assert_eq!(filler.next(0, Bytes(u64::MAX)).unwrap(), Some(0..CHUNK));
    assert_eq!(filler.next(4096, Bytes(8192)).unwrap(), Some(4096..8192));
    assert_eq!(fill_all(&filler), 6 * Bytes::MIB - 8192);
    assert_eq!((first_hole(&path), unwritten(&path).unwrap()), (Bytes::mib(6).0, Bytes(0)));
    let bytes = fs::read(&path).unwrap();
    assert!(bytes.iter().enumerate().all(|(at, &b)| (b == 7) == (3 << 20..(3 << 20) + 8192).contains(&at)));
    assert_eq!(fill_all(&filler), 0);
    // The same filler finds the part added by growing.
    grow(&path, Bytes::mib(7), Provision::Full).unwrap();
    assert_eq!(fill_all(&filler), Bytes::MIB);
}

#[test]
fn images_grow_and_shrink() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    create(&path, Bytes::mib(1), Provision::OnDemand).unwrap();
    assert_eq!(grow(&path, Bytes::mib(3), Provision::Full).unwrap(), Bytes::mib(1));
    assert_eq!(grow(&path, Bytes::mib(2), Provision::OnDemand).unwrap(), Bytes::mib(3));
    assert_eq!(fs::metadata(&path).unwrap().len(), Bytes::mib(3).0, "growing never truncates");
    assert_eq!(shrink(&path, Bytes::mib(2)).unwrap(), Bytes::mib(3));
    assert_eq!(shrink(&path, Bytes::mib(4)).unwrap(), Bytes::mib(2));
    let too_much = Bytes(free_space(dir.path()).unwrap().total.0 * 2);
    grow(&path, too_much, Provision::Full).unwrap_err();
    assert_eq!(fs::metadata(&path).unwrap().len(), Bytes::mib(2).0);
}
