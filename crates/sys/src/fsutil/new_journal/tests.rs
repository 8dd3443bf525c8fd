use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use bulkhead_core::model::FsKind;

use super::*;
use crate::fsutil::{CheckOutcome, Repair, check, grow, info, superblock};

/// An ext4 of 64 MiB, grown to a larger file.
fn grown(dir: &Path, features: &str, to: Bytes) -> PathBuf {
    let path = dir.join("v.img");
    let file = File::create(&path).unwrap();
    file.set_len(64 << 20).unwrap();
    let options = ["-q", "-b", "4096", "-m", "0", "-J", "size=8", "-O", features];
    Tool::new("mkfs.ext4").args(options).arg(&path).run().unwrap();
    file.set_len(to.0).unwrap();
    grow(&path, FsKind::Ext4, None).unwrap();
    path
}

fn journal_bytes(path: &Path) -> std::io::Result<Option<Bytes>> {
    let mut block = [0; superblock::BLOCK_BYTES];
    File::open(path)?.read_exact_at(&mut block, 0)?;
    Ok(superblock::journal_bytes(&block))
}

fn is_installed() -> bool {
    let is_there =
        ["mkfs.ext4", "tune2fs", "wipefs", "blkid"].iter().all(|program| crate::tool::find_program(program).is_some());
    if !is_there {
        eprintln!("skipped: e2fsprogs or util-linux is not installed");
    }
    is_there
}

#[test]
fn replacing_a_journal_keeps_all_other_properties() {
    if !is_installed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for features in ["metadata_csum,metadata_csum_seed", "metadata_csum,metadata_csum_seed,fast_commit"] {
        let path = grown(dir.path(), features, Bytes::mib(1024));
        let before = info(&path).unwrap();
        assert_eq!(before.journal_bytes > Some(Bytes::mib(8)), before.has("fast_commit"), "{before:?}");
        assert_eq!(journal_bytes(&path).unwrap(), before.journal_bytes);
        assert!(!remove_journal(&path, Bytes::mib(8)).unwrap(), "it has that size");
        assert!(!make_journal(&path, Bytes::mib(16)).unwrap(), "it has one");

        assert!(remove_journal(&path, Bytes::mib(16)).unwrap());
        assert!(!remove_journal(&path, Bytes::mib(16)).unwrap());
        assert_eq!((journal_bytes(&path).unwrap(), info(&path).unwrap().has("has_journal")), (None, false));
        // As recovery does.
        let outcome = check(&path, FsKind::Ext4, Repair::Preen).unwrap();
        assert!(matches!(outcome, CheckOutcome::Clean | CheckOutcome::Repaired), "{outcome:?}");

        assert!(make_journal(&path, Bytes::mib(16)).unwrap());
        let after = info(&path).unwrap();
        let fast_commit = Bytes(after.journal_bytes.unwrap().0 - Bytes::mib(16).0);
        assert_eq!(fast_commit.0 > 0, after.has("fast_commit"), "{after:?}");
        assert!(fast_commit <= fast_commit_of(after.size), "{fast_commit}");
        assert_eq!(journal_bytes(&path).unwrap(), after.journal_bytes);
        assert!(!remove_journal(&path, Bytes::mib(16)).unwrap(), "it has that size");
        let sorted = |info: &FsInfo| {
            let mut features = info.features.clone();
            features.sort();
            (info.uuid.clone(), info.label.clone(), info.size, features)
        };
        assert_eq!(sorted(&after), sorted(&before));
        assert_eq!(check(&path, FsKind::Ext4, Repair::No).unwrap(), CheckOutcome::Clean);
    }
}

#[test]
fn a_journal_that_does_not_fit_is_refused_before_the_old_one_is_removed() {
    if !is_installed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = grown(dir.path(), "metadata_csum,metadata_csum_seed", Bytes::mib(64));
    let file = dir.path().join("file");
    File::create(&file).unwrap();
    std::fs::write(&file, vec![1; 40 << 20]).unwrap();
    Tool::new("debugfs").args(["-w", "-R", &format!("write {} file", file.display())]).arg(&path).run().unwrap();
    let error = remove_journal(&path, Bytes::mib(32)).unwrap_err();
    assert!(matches!(error, FsError::NoRoom { .. }), "{error}");
    assert_eq!(journal_bytes(&path).unwrap(), Some(Bytes::mib(8)));
    // Without that check, the journal is reduced to a size that fits.
    Tool::new("tune2fs").args(["-O", "^has_journal"]).arg(&path).run().unwrap();
    assert!(make_journal(&path, Bytes::mib(32)).unwrap());
    let made = journal_bytes(&path).unwrap().unwrap();
    assert!(made >= journal::MIN && made < Bytes::mib(32), "{made}");
    assert_eq!(check(&path, FsKind::Ext4, Repair::No).unwrap(), CheckOutcome::Clean);
}
