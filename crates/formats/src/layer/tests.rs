use std::os::unix::fs::PermissionsExt as _;

use super::attributes::{Backing, SEAL, attribute, parse_backing};
use super::*;
use bulkhead_core::model::Provision;
use bulkhead_sys::image;
use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};

const LIMIT: Duration = Duration::from_millis(50);

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn write(path: &Path, byte: u8, at: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[byte; 4096], at).unwrap();
}

/// An empty image on layer `…1`, which has its content.
fn frozen() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), "v.img");
    write(&image, 7, 0);
    freeze(&image, Uuid::from_u128(1), LIMIT, || ()).unwrap();
    (dir, image)
}

fn image(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    image::create(&path, Bytes::mib(4), Provision::OnDemand).unwrap();
    path
}

#[test]
fn a_frozen_image_is_backed_by_its_former_content() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), "v.img");
    write(&image, 7, 8192);
    assert_eq!(chain(&image).unwrap(), None);
    let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let mut stopped = 0;
    assert!(freeze(&image, first, LIMIT, || stopped += 1).unwrap());
    assert_eq!(chain(&image).unwrap(), Some(vec![layer_path(dir.path(), first)]));
    assert!(!extents::has_data(&File::open(&image).unwrap()).unwrap());
    assert_eq!(fs::metadata(&image).unwrap().len(), Bytes::mib(4).0);
    let layer = fs::metadata(layer_path(dir.path(), first)).unwrap();
    assert_eq!((layer.permissions().mode() & 0o777, layer.nlink()), (0o400, 1));
    // Repeated, or with another layer while the image is empty: no change.
    assert!(!freeze(&image, first, LIMIT, || stopped += 1).unwrap());
    assert!(!freeze(&image, second, LIMIT, || stopped += 1).unwrap());
    assert_eq!(stopped, 1);
    write(&image, 8, 0);
    assert!(freeze(&image, second, LIMIT, || stopped += 1).unwrap());
    assert_eq!(chain(&image).unwrap(), Some([second, first].map(|id| layer_path(dir.path(), id)).to_vec()));
    let copy = dir.path().join("copy.img");
    create_with_backing_of(&copy, &image).unwrap();
    assert_eq!(chain(&copy).unwrap(), chain(&image).unwrap());
    assert!(matches!(create_with_backing_of(&copy, &image), Err(LayerError::File(FileError::Exists { .. }))));
    assert_eq!(names(dir.path()).len(), 4);
}

/// With and without a snapshot while it was small.
#[test]
fn an_image_that_grows_again_exposes_no_old_content() {
    for with_snapshot in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let image = image(dir.path(), "v.img");
        for at in [8192, 3 << 20, (3 << 20) + 8192] {
            write(&image, 7, at);
        }
        freeze(&image, Uuid::from_u128(1), LIMIT, || ()).unwrap();
        image::shrink(&image, Bytes::mib(2)).unwrap();
        if with_snapshot {
            write(&image, 8, 4096);
            freeze(&image, Uuid::from_u128(2), LIMIT, || ()).unwrap();
        }
        mask_layers_beyond_end(&image, Bytes::mib(4)).unwrap();
        image::grow(&image, Bytes::mib(4), Provision::OnDemand).unwrap();
        let mut own = Vec::new();
        extents::extents(&File::open(&image).unwrap(), 0..Bytes::mib(4).0, |range, kind| {
            own.extend((kind == Kind::Data).then_some(range));
            Ok(())
        })
        .unwrap();
        let at = 3 << 20;
        assert_eq!(own, [at..at + 4096, at + 8192..at + 12288]);
        let mut block = [1; 4096];
        File::open(&image).unwrap().read_exact_at(&mut block, at).unwrap();
        assert_eq!(block, [0; 4096]);
    }
}

#[test]
fn freeze_waits_until_the_image_is_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), "v.img");
    write(&image, 7, 8192);
    let serve = || {
        let server = File::open(&image).unwrap();
        rustix::fs::flock(&server, FlockOperation::LockExclusive).unwrap();
        Some(server)
    };
    let mut server = serve();
    let refused = freeze(&image, Uuid::from_u128(1), LIMIT, || ());
    assert!(matches!(refused, Err(LayerError::Locked { .. })), "{refused:?}");
    assert_eq!((names(dir.path()), chain(&image).unwrap()), (vec!["v.img".to_owned()], Some(vec![])));
    // A server is stopped, and its successor starts at once.
    let mut successors = 1;
    let stop = || {
        server = None;
        if successors > 0 {
            successors -= 1;
            server = serve();
        }
    };
    assert!(freeze(&image, Uuid::from_u128(1), LIMIT, stop).unwrap());
}

#[test]
fn sweep_keeps_layers_that_an_image_depends_on() {
    let (dir, image) = frozen();
    let copy = dir.path().join("copy.img");
    create_with_backing_of(&copy, &image).unwrap();
    write(&image, 8, 0);
    freeze(&image, Uuid::from_u128(2), LIMIT, || ()).unwrap();
    // Files that a crash leaves between link and rename, and before.
    fs::hard_link(&image, layer_path(dir.path(), Uuid::from_u128(3))).unwrap();
    fs::write(dir.path().join(format!("{}.new", Uuid::from_u128(4))), "").unwrap();
    fs::write(dir.path().join("other.layer"), "").unwrap();
    assert_eq!(sweep(dir.path(), &[]).unwrap().len(), 2);
    assert_eq!(sweep(dir.path(), &[]).unwrap(), Vec::<PathBuf>::new());
    assert_eq!(chain(&image).unwrap().map(|chain| chain.len()), Some(2));
    fs::remove_file(&image).unwrap();
    assert_eq!(sweep(dir.path(), &[]).unwrap(), [layer_path(dir.path(), Uuid::from_u128(2))]);
    // An unreadable attribute keeps all layers.
    let bad = dir.path().join("bad.img");
    fs::write(&bad, "").unwrap();
    fsetxattr(File::open(&bad).unwrap(), ATTRIBUTE, b"2 none 1", XattrFlags::empty()).unwrap();
    fs::remove_file(&copy).unwrap();
    assert!(matches!(sweep(dir.path(), &[]), Err(LayerError::Attribute { .. })));
    fs::remove_file(&bad).unwrap();
    assert_eq!(sweep(dir.path(), &[]).unwrap(), [layer_path(dir.path(), Uuid::from_u128(1))]);
    assert_eq!(names(dir.path()), ["other.layer"]);
}

#[test]
fn sweep_keeps_served_images_and_their_layers() {
    let (dir, image) = frozen();
    let new = dir.path().join(format!("{}.new", Uuid::from_u128(4)));
    create_with_backing_of(&new, &image).unwrap();
    let served = File::open(&new).unwrap();
    lock(&served, &new, LIMIT, || ()).unwrap();
    fs::remove_file(&image).unwrap();
    assert_eq!(sweep(dir.path(), &[]).unwrap(), Vec::<PathBuf>::new());
    assert!(chain(&new).unwrap().is_some());
    drop(served);
    // Its server is gone, and a successor is not started yet.
    assert_eq!(sweep(dir.path(), std::slice::from_ref(&new)).unwrap(), Vec::<PathBuf>::new());
    // A child that another test has just forked inherits the lock until it calls execve.
    let give_up = std::time::Instant::now() + LIMIT;
    let mut removed = sweep(dir.path(), &[]).unwrap();
    while removed.is_empty() && std::time::Instant::now() < give_up {
        removed = sweep(dir.path(), &[]).unwrap();
    }
    assert_eq!(removed, [new, layer_path(dir.path(), Uuid::from_u128(1))]);
}

#[test]
fn copied_images_and_missing_layers_are_refused() {
    let (dir, image) = frozen();
    let copy = dir.path().join("copy.img");
    fs::copy(&image, &copy).unwrap();
    let mut text = [0; 100];
    let n = fgetxattr(File::open(&image).unwrap(), ATTRIBUTE, &mut text[..]).unwrap();
    fsetxattr(File::open(&copy).unwrap(), ATTRIBUTE, &text[..n], XattrFlags::empty()).unwrap();
    assert!(matches!(chain(&copy), Err(LayerError::Copied { .. })));
    fs::remove_file(layer_path(dir.path(), Uuid::from_u128(1))).unwrap();
    assert!(matches!(chain(&image), Err(LayerError::Missing { .. })));
    // A cycle.
    let layer = layer_path(dir.path(), Uuid::from_u128(1));
    fs::write(&layer, "").unwrap();
    set_backing(&File::open(&layer).unwrap(), &layer, Some(Uuid::from_u128(1))).unwrap();
    assert!(matches!(chain(&image), Err(LayerError::TooMany { .. })));
}

#[test]
fn a_layer_that_was_written_to_is_refused() {
    let (dir, image) = frozen();
    let layer = layer_path(dir.path(), Uuid::from_u128(1));
    let sealed = fs::metadata(&layer).unwrap().modified().unwrap();
    // The format in docs/formats/layers.md.
    let since = sealed.duration_since(std::time::UNIX_EPOCH).unwrap();
    let text = format!("1 {}.{:09} 4194304", since.as_secs(), since.subsec_nanos());
    assert_eq!(attribute(&File::open(&layer).unwrap(), &layer, SEAL).unwrap(), Some(text));
    // Changes that do not affect the content are allowed.
    fs::set_permissions(&layer, Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(&layer, dir.path().join("link")).unwrap();
    assert_eq!(chain(&image).unwrap().map(|chain| chain.len()), Some(1));
    write(&layer, 8, 0);
    assert!(matches!(chain(&image), Err(LayerError::Changed { .. })));
    // Restored with its old modification time, as from a backup.
    File::open(&layer).unwrap().set_modified(sealed).unwrap();
    assert_eq!(chain(&image).unwrap().map(|chain| chain.len()), Some(1));
    let file = File::open(&layer).unwrap();
    fsetxattr(&file, SEAL, b"2 something", XattrFlags::empty()).unwrap();
    assert!(matches!(chain(&image), Err(LayerError::Attribute { name: SEAL, .. })));
    fremovexattr(&file, SEAL).unwrap();
    assert_eq!(chain(&image).unwrap().map(|chain| chain.len()), Some(1));
}

#[test]
fn the_attribute_is_parsed_as_documented() {
    let id = "00000000-0000-0000-0000-000000000001";
    let backing = |layer| Some((Backing { layer }, 42));
    assert_eq!(parse_backing(&format!("1 {id} 42")), backing(Some(Uuid::from_u128(1))));
    assert_eq!(parse_backing("1 none 42"), backing(None));
    for bad in ["", "1", "1 none", "1 none 42 ", "2 none 42", "1 some 42", "1 none -42", "1  none 42", "1 none 42\n"] {
        assert_eq!(parse_backing(bad), None, "{bad:?}");
    }
}
