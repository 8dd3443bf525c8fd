use super::*;
use bulkhead_core::model::FsKind;
use bulkhead_sys::fsutil::{CheckOutcome, Repair, check, info};
use bulkhead_sys::tool::Tool;

const SIZE: u64 = 64 << 20;

/// Creates an ext4 in a file, with these features in addition to the default.
fn make_ext4(dir: &Path, features: &str) -> std::path::PathBuf {
    let path = dir.join("v.img");
    File::create(&path).unwrap().set_len(SIZE).unwrap();
    let mkfs = Tool::new("mkfs.ext4").args(["-q", "-b", "4096", "-O", features]).arg(&path);
    mkfs.run().unwrap();
    path
}

#[test]
fn a_stamped_file_system_is_clean() {
    let dir = tempfile::tempdir().unwrap();
    let path = make_ext4(dir.path(), "metadata_csum,metadata_csum_seed");
    let uuid = Uuid::from_u128(0x1234);
    assert!(stamp_uuid(&path, uuid).unwrap());
    assert_eq!(info(&path).unwrap().uuid, uuid.to_string());
    assert_eq!(check(&path, FsKind::Ext4, Repair::No).unwrap(), CheckOutcome::Clean);
    // The next check that may write updates the backup superblocks.
    assert!(matches!(check(&path, FsKind::Ext4, Repair::Preen).unwrap(), CheckOutcome::Clean | CheckOutcome::Repaired));
    assert_eq!(info(&path).unwrap().uuid, uuid.to_string());
}

#[test]
fn nothing_is_written_if_more_than_the_superblock_depends_on_the_uuid() {
    let dir = tempfile::tempdir().unwrap();
    for features in
        ["metadata_csum,^metadata_csum_seed", "^metadata_csum,^metadata_csum_seed", "metadata_csum_seed,mmp"]
    {
        let path = make_ext4(dir.path(), features);
        let before = std::fs::read(&path).unwrap();
        assert!(!stamp_uuid(&path, Uuid::from_u128(1)).unwrap(), "{features}");
        assert!(std::fs::read(&path).unwrap() == before, "{features}: the file was changed");
    }
}
