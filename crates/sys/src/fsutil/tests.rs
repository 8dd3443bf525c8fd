use super::mkfs::mkfs_tool;
use super::*;

const UUID: &str = "11111111-2222-3333-4444-555555555555";

fn options(kind: FsKind) -> MkfsOptions {
    MkfsOptions {
        kind,
        uuid: UUID.to_owned(),
        label: "vol1".to_owned(),
        fast_commit: false,
        journal_size: None,
        reads_zero: false,
    }
}

fn line(options: &MkfsOptions) -> Result<String, FsError> {
    mkfs_tool(Path::new("/dev/x"), options, Bytes::mib(2048)).map(|tool| tool.command_line())
}

#[test]
fn mkfs_command_lines() {
    assert_eq!(
        line(&options(FsKind::Ext4)).unwrap(),
        format!(
            "mkfs.ext4 -q -L vol1 -b 4096 -m 0 -U {UUID} -J size=32 -O metadata_csum,metadata_csum_seed \
             -E lazy_itable_init=0,lazy_journal_init=0,nodiscard /dev/x"
        )
    );
    let fast = MkfsOptions {
        fast_commit: true,
        reads_zero: true,
        label: String::new(),
        journal_size: Some(Bytes::mib(64)),
        ..options(FsKind::Ext4)
    };
    assert_eq!(
        line(&fast).unwrap(),
        format!(
            "mkfs.ext4 -q -b 4096 -m 0 -U {UUID} -J size=64 -O metadata_csum,metadata_csum_seed,fast_commit \
             -E lazy_itable_init=0,lazy_journal_init=0,nodiscard,assume_storage_prezeroed=1 /dev/x"
        )
    );
    assert_eq!(line(&options(FsKind::Xfs)).unwrap(), format!("mkfs.xfs -q -L vol1 -K -m uuid={UUID} /dev/x"));
}

#[test]
fn bad_options_are_refused() {
    let ext4 = options(FsKind::Ext4);
    for bad in [
        MkfsOptions { uuid: "random".into(), ..ext4.clone() },
        MkfsOptions { uuid: format!("-{UUID}"), ..ext4.clone() },
        MkfsOptions { label: "-L".into(), ..ext4.clone() },
        MkfsOptions { label: "seventeen-bytes-x".into(), ..ext4.clone() },
        MkfsOptions { label: "thirteen-byte".into(), ..options(FsKind::Xfs) },
        MkfsOptions { journal_size: Some(Bytes::mib(1025)), ..ext4.clone() },
        MkfsOptions { journal_size: Some(Bytes::mib(3)), ..ext4.clone() },
        MkfsOptions { fast_commit: true, ..options(FsKind::Xfs) },
    ] {
        assert!(matches!(line(&bad), Err(FsError::BadOption { .. })), "{bad:?}");
    }
}

#[test]
fn only_block_devices_are_formatted() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    for path in [image.as_path(), Path::new("/dev/null"), Path::new("/dev/no-such-device")] {
        assert!(matches!(mkfs(path, &options(FsKind::Ext4)), Err(FsError::Device { .. })), "{}", path.display());
    }
}

/// e2fsprogs works on regular files, so most operations can be tested without root.
#[test]
fn an_ext4_image_is_checked_shrunk_grown_and_renamed() {
    if ["mkfs.ext4", "wipefs", "blkid"].iter().any(|program| crate::tool::find_program(program).is_none()) {
        eprintln!("skipped: e2fsprogs or util-linux is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let wanted = MkfsOptions { fast_commit: true, ..options(FsKind::Ext4) };
    mkfs_tool(&image, &wanted, Bytes::mib(64)).unwrap().run().unwrap();
    let made = info(&image).unwrap();
    assert_eq!((made.kind, made.uuid.as_str(), made.label.as_str()), (FsKind::Ext4, UUID, "vol1"));
    assert_eq!((made.size, made.block_size), (Bytes::mib(64), Bytes(4096)));
    assert!(made.has("fast_commit") && made.has("metadata_csum_seed"), "{made:?}");
    // The fast-commit area is in addition to the 8 MiB.
    assert!(made.journal_bytes > Some(Bytes::mib(8)) && made.journal_bytes <= Some(Bytes::mib(9)), "{made:?}");
    for repair in [Repair::No, Repair::Preen, Repair::Yes] {
        assert_eq!(check(&image, FsKind::Ext4, repair).unwrap(), CheckOutcome::Clean);
    }
    let error = shrink(&image, Bytes::mib(1)).unwrap_err();
    assert!(matches!(error, FsError::TooSmall { minimum, .. } if minimum < Bytes::mib(64)), "{error}");
    assert!(matches!(shrink(&image, Bytes::mib(65)), Err(FsError::NotSmaller { .. })));
    assert_eq!(shrink(&image, Bytes(40 * Bytes::MIB + 5)).unwrap(), Bytes::mib(40));
    assert_eq!(shrink(&image, Bytes::mib(40)).unwrap(), Bytes::mib(40));
    // resize2fs truncates a regular file.
    std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(64 << 20).unwrap();
    grow(&image, FsKind::Ext4, None).unwrap();
    grow(&image, FsKind::Ext4, None).unwrap();
    assert_eq!(info(&image).unwrap().size, Bytes::mib(64));
    let uuid = "99999999-2222-3333-4444-555555555555";
    assert_eq!(new_uuid(&image, FsKind::Ext4, uuid).unwrap(), UuidOutcome::Changed);
    assert_eq!(new_uuid(&image, FsKind::Ext4, uuid).unwrap(), UuidOutcome::Unchanged);
    assert_eq!(info(&image).unwrap().uuid, uuid);
    assert_eq!(new_uuid(&image, FsKind::Xfs, uuid).unwrap(), UuidOutcome::MountNouuid);
}

#[test]
fn damage_is_found_and_repaired() {
    if ["mkfs.ext4", "wipefs", "blkid"].iter().any(|program| crate::tool::find_program(program).is_none()) {
        eprintln!("skipped: e2fsprogs or util-linux is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    mkfs_tool(&image, &options(FsKind::Ext4), Bytes::mib(64)).unwrap().run().unwrap();
    // The root directory's inode.
    Tool::new("debugfs").args(["-w", "-R", "clri <2>"]).arg(&image).run().unwrap();
    assert!(matches!(check(&image, FsKind::Ext4, Repair::No).unwrap(), CheckOutcome::Errors(text) if !text.is_empty()));
    let error = preen("shrink", &image).unwrap_err();
    assert!(matches!(error, FsError::HasErrors { .. }), "{error}");
    assert_eq!(check(&image, FsKind::Ext4, Repair::Yes).unwrap(), CheckOutcome::Repaired);
    assert_eq!(check(&image, FsKind::Ext4, Repair::No).unwrap(), CheckOutcome::Clean);
}

#[test]
fn other_content_is_not_recognised_as_a_file_system() {
    if crate::tool::find_program("wipefs").is_none() {
        eprintln!("skipped: wipefs is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    assert!(matches!(info(&image), Err(FsError::UnknownFs { .. })));
}
