use super::*;
use crate::layer::retry_while_locked;

const CONTENT: Uuid = Uuid::from_u128(0x1234);

#[test]
fn a_staging_file_is_resumed_and_becomes_a_layer() {
    let dir = tempfile::tempdir().unwrap();
    let (path, image) = (dir.path().join("v.part"), dir.path().join("v.img"));
    assert_eq!(state(&path).unwrap(), None);
    assert!(create(&path, CONTENT, None, Bytes::mib(8)).unwrap());
    let staging = StagingFile::open(&path).unwrap();
    assert!(matches!(StagingFile::open(&path), Err(LayerError::StagingLocked { .. })));
    assert!(matches!(remove(&path), Err(LayerError::StagingLocked { .. })));
    let state_of =
        |received, layer| Some(StagingState { content: CONTENT, base: None, size: Bytes::mib(8), received, layer });
    let at = |received| state_of(received, StagingLayer::Missing);
    assert_eq!(state(&path).unwrap(), at(Some(Bytes(0))));
    staging.checkpoint(CONTENT, Some(Bytes(4096))).unwrap();
    fs::write(index_path(&path), "index").unwrap();
    assert!(!is_abandoned(&path, Duration::ZERO).unwrap());
    drop(staging);
    retry_while_locked(|| match is_abandoned(&path, Duration::ZERO)? {
        true => Ok(()),
        false => Err(LayerError::StagingLocked { path: path.clone() }),
    })
    .unwrap();
    assert!(!is_abandoned(&path, Duration::from_secs(60)).unwrap());
    assert!(!is_abandoned(&dir.path().join("none"), Duration::ZERO).unwrap());
    assert!(!create(&path, CONTENT, None, Bytes::mib(8)).unwrap());
    assert_eq!(state(&path).unwrap(), at(Some(Bytes(4096))));
    let publish = || retry_while_locked(|| publish(&path, &image));
    assert!(matches!(publish(), Err(LayerError::Incomplete { .. })));
    let other = create(&path, Uuid::from_u128(5), None, Bytes::mib(8));
    assert!(matches!(other, Err(LayerError::OtherStaging { content: CONTENT, .. })));
    retry_while_locked(|| StagingFile::open(&path)).unwrap().checkpoint(CONTENT, None).unwrap();
    publish().unwrap();
    assert_eq!(layer::chain(&image).unwrap(), Some(vec![layer_path(dir.path(), CONTENT)]));
    // Until the daemon removes it, it is a second name of the layer.
    assert_eq!(state(&path).unwrap(), state_of(None, StagingLayer::Same));
    let again = |start| {
        retry_while_locked(|| {
            StagingFile::resume(&path, CONTENT, None, Bytes::mib(8), Bytes(start)).map(|(_, found)| found)
        })
    };
    assert!(matches!(again(0), Err(LayerError::Discarded { .. })));
    // Also while the layer is served.
    let served = File::open(layer_path(dir.path(), CONTENT)).unwrap();
    flock(&served, FlockOperation::LockShared).unwrap();
    assert!(retry_while_locked(|| create(&path, CONTENT, None, Bytes::mib(8))).unwrap());
    assert_eq!(state(&path).unwrap(), state_of(Some(Bytes(0)), StagingLayer::Other));
    assert!(layer_path(dir.path(), CONTENT).exists());
    assert_eq!(again(0).unwrap().received, Some(Bytes(0)));
    assert!(matches!(again(4096), Err(LayerError::Discarded { .. })));
    // The layer is kept for the image that depends on it, also without the staging file.
    assert!(retry_while_locked(|| remove(&path)).unwrap() && !remove(&path).unwrap());
    assert_eq!(layer::sweep(dir.path(), &[]).unwrap(), Vec::<PathBuf>::new());
    fs::remove_file(&image).unwrap();
    let of_layer = [layer_path(dir.path(), CONTENT), layer::index_path(dir.path(), CONTENT)];
    assert_eq!(layer::sweep(dir.path(), &[]).unwrap(), of_layer);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_staging_file_keeps_its_base_and_needs_it() {
    let dir = tempfile::tempdir().unwrap();
    let (path, image) = (dir.path().join("v.part"), dir.path().join("base.img"));
    let base = Uuid::from_u128(9);
    let missing = create(&path, CONTENT, Some(base), Bytes::mib(8));
    assert!(matches!(missing, Err(LayerError::NoBase { layer, .. }) if layer == base));
    assert!(!path.exists());
    let file = File::create_new(&image).unwrap();
    file.set_len(8 << 20).unwrap();
    file.write_all_at(&[7; 4096], 0).unwrap();
    layer::freeze(&image, base, std::time::Duration::from_secs(5), || ()).unwrap();
    create(&path, CONTENT, Some(base), Bytes::mib(8)).unwrap();
    fs::remove_file(&image).unwrap();
    assert_eq!(layer::sweep(dir.path(), &[]).unwrap(), Vec::<PathBuf>::new());
    remove(&path).unwrap();
    assert_eq!(layer::sweep(dir.path(), &[]).unwrap(), [layer_path(dir.path(), base)]);
}

#[test]
fn a_file_with_data_and_no_attribute_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("backup.part");
    fs::write(&path, "precious").unwrap();
    assert!(matches!(remove(&path), Err(LayerError::NotStaging { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    fs::write(&path, "").unwrap();
    assert!(retry_while_locked(|| remove(&path)).unwrap());
}

#[test]
fn an_unknown_attribute_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.part");
    create(&path, CONTENT, None, Bytes::mib(8)).unwrap();
    let file = File::open(&path).unwrap();
    for text in ["", "2 00000000-0000-0000-0000-000000001234 0", "1 x 0", "1 00000000-0000-0000-0000-000000001234 -1"] {
        fsetxattr(&file, ATTRIBUTE, text.as_bytes(), XattrFlags::empty()).unwrap();
        assert!(matches!(state(&path), Err(LayerError::Attribute { .. })), "{text:?}");
    }
}
