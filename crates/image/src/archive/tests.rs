use super::*;
use crate::testing::Tar;
use proptest::prelude::{any, proptest};

fn read(bytes: &[u8]) -> Result<Vec<(Member, Vec<u8>)>, ImportError> {
    let mut archive = Archive::new(bytes, "it", false);
    let mut all = Vec::new();
    while let Some(member) = archive.next()? {
        let mut data = Vec::new();
        archive.data().read_to_end(&mut data).map_err(|error| reading("it", error))?;
        all.push((member, data));
    }
    Ok(all)
}

fn reason(bytes: &[u8]) -> ArchiveError {
    match read(bytes) {
        Err(ImportError::Archive { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

fn refused(bytes: &[u8]) -> EntryError {
    match read(bytes) {
        Err(ImportError::Entry { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_types_of_entries_are_read_in_order() {
    let bytes = Tar::new()
        .dir("a/", 0o1777, 5)
        .file("a/file", "text")
        .link(EntryType::Symlink, "a/link", "../b")
        .link(EntryType::Link, "a/again", "a/file")
        .with(EntryType::Char, "a/null", &[], |header| {
            header.set_device_major(1).unwrap();
            header.set_device_minor(3).unwrap();
        })
        .with(EntryType::Fifo, "a/pipe", &[], |_| ())
        .end();
    let all = read(&bytes).unwrap();
    let kinds: Vec<&Kind> = all.iter().map(|(member, _)| &member.kind).collect();
    let (link, again) = (Kind::Symlink(b"../b".to_vec()), Kind::HardLink(b"a/file".to_vec()));
    assert_eq!(kinds, [&Kind::Directory, &Kind::File, &link, &again, &Kind::Char(1, 3), &Kind::Fifo]);
    assert_eq!((all[0].0.mode, all[0].0.mtime, &all[1].1[..]), (0o1777, 5, &b"text"[..]));
}

#[test]
fn extended_headers_apply_to_the_next_entry_and_global_ones_to_all() {
    let long = format!("{}/name", "long/".repeat(60));
    let value = b"\x01\x00\x00\x02\n\x04\x00\n";
    let bytes = Tar::new()
        .records(EntryType::XGlobalHeader, &[("comment", b"abc"), ("mtime", b"7")])
        .records(
            EntryType::XHeader,
            &[
                ("path", long.as_bytes()),
                ("mtime", b"-1.5"),
                ("uid", b"3000000"),
                ("SCHILY.xattr.security.capability", value),
            ],
        )
        .file("short", "text")
        .with(EntryType::GNULongName, "././@LongLink", &[long.as_bytes(), b"\0"].concat(), |_| ())
        .file("other", "")
        .records(EntryType::XHeader, &[("mtime", b"")])
        .file("last", "")
        .end();
    let all: Vec<Member> = read(&bytes).unwrap().into_iter().map(|(member, _)| member).collect();
    assert_eq!((all[0].path == long.as_bytes(), all[0].mtime, all[0].uid), (true, -2, 3_000_000));
    assert_eq!(all[0].xattrs.get(&b"security.capability"[..]).map(Vec::as_slice), Some(&value[..]));
    assert_eq!((all[1].path == long.as_bytes(), all[1].mtime, all[1].xattrs.len()), (true, 7, 0));
    // An empty value deletes a keyword.
    assert_eq!((&all[2].path[..], all[2].mtime), (&b"last"[..], 1_000_000_000));
}

#[test]
fn an_extended_size_overrides_the_header_and_links_have_no_data() {
    let bytes = Tar::new()
        .records(EntryType::XHeader, &[("size", b"4")])
        .with(EntryType::Regular, "a", b"text", |header| header.set_size(0))
        .with(EntryType::Link, "b", &[], |header| {
            header.set_size(4);
            header.as_old_mut().linkname[0] = b'a';
        })
        .file("c", "more")
        .end();
    let all = read(&bytes).unwrap();
    assert_eq!(all.iter().map(|(_, data)| data.len()).collect::<Vec<_>>(), [4, 0, 4]);
}

#[test]
fn empty_fields_are_zero_and_large_numbers_are_in_base_256() {
    let blank = |header: &mut Header, with: u8| {
        let fields = header.as_gnu_mut().unwrap();
        for field in [&mut fields.mode[..], &mut fields.uid, &mut fields.gid, &mut fields.mtime, &mut fields.size] {
            field.fill(with);
        }
        fields.dev_major.fill(with);
        fields.dev_minor.fill(with);
    };
    let bytes = Tar::new()
        .with(EntryType::Regular, "nuls", &[], |header| blank(header, 0))
        .with(EntryType::Char, "blanks", &[], |header| blank(header, b' '))
        .with(EntryType::Regular, "large", b"data", |header| {
            header.set_uid(3_000_000);
            header.set_mtime((-10_i64).cast_unsigned());
            header.as_old_mut().mtime[..4].fill(0xff);
            header.as_old_mut().size = *b"          4\0";
        })
        .with(EntryType::Regular, "directory/", &[], |_| ())
        .end();
    let all: Vec<Member> = read(&bytes).unwrap().into_iter().map(|(member, _)| member).collect();
    for member in &all[..2] {
        assert_eq!((member.mode, member.uid, member.gid, member.mtime), (0, 0, 0, 0));
    }
    assert_eq!((&all[1].kind, all[2].uid, all[2].mtime), (&Kind::Char(0, 0), 3_000_000, -10));
    assert_eq!(all[3].kind, Kind::Directory);
}

#[test]
fn a_checksum_of_signed_bytes_is_accepted() {
    let mut bytes = Tar::new().file("n\u{e4}me", "").end();
    let header = Header::from_byte_slice(&bytes[..512]);
    let [unsigned, signed] = checksums(header);
    assert!(unsigned > signed);
    bytes[CHECKSUM].copy_from_slice(format!("{signed:06o}\0 ").as_bytes());
    assert_eq!(read(&bytes).unwrap()[0].0.path, "n\u{e4}me".as_bytes());
    bytes[CHECKSUM].copy_from_slice(format!("{:06o}\0 ", signed + 1).as_bytes());
    assert_eq!(reason(&bytes), ArchiveError::Unknown);
}

#[test]
fn truncation_is_reported_at_every_position() {
    let whole = Tar::new().file("a", vec![1; 700]).file("b", "").end();
    assert_eq!(read(&whole).unwrap().len(), 2);
    for len in [513, 600, 1024, 1535, 1536, 1600, 2048] {
        assert_eq!(reason(&whole[..len]), ArchiveError::CutOff, "at {len}");
    }
    // A single block of zeroes also ends an archive.
    assert_eq!(read(&whole[..2560]).unwrap().len(), 2);
    // A verified layer may lack the end-of-archive marker.
    let mut verified = Archive::new(&whole[..2048], "it", true);
    assert!(verified.next().unwrap().is_some() && verified.next().unwrap().is_some());
    assert!(verified.next().unwrap().is_none());
}

#[test]
fn other_formats_are_reported() {
    for bytes in [&[][..], b"text", &[b'x'; 4096], &[&[0; 1024][..], &[7; 1024]].concat()] {
        assert_eq!(reason(bytes), ArchiveError::Unknown);
    }
    let mut flipped = Tar::new().file("a", "").file("b", "").end();
    flipped[513] ^= 1;
    assert!(matches!(reason(&flipped), ArchiveError::Damaged(_)));
    assert!(read(&[0; 10240]).unwrap().is_empty());
}

#[test]
fn memory_per_header_is_bounded() {
    // Claims 1 TiB of attributes, which do not follow.
    let claims = |kind| Tar::new().with(kind, "x", &[], |header| header.set_size(1 << 40)).end();
    for kind in [EntryType::XHeader, EntryType::XGlobalHeader, EntryType::GNULongName, EntryType::GNULongLink] {
        assert!(matches!(reason(&claims(kind)), ArchiveError::Damaged(_)));
    }
    assert_eq!(reason(&claims(EntryType::Regular)), ArchiveError::CutOff);
    // Each is within the limit, but not all together.
    let value = vec![b'x'; 60_000];
    for kind in [EntryType::XHeader, EntryType::XGlobalHeader] {
        let mut many = Tar::new();
        for n in 0..20 {
            many = many.records(kind, &[(&format!("comment.{n}"), &value)]);
        }
        assert!(matches!(reason(&many.file("a", "").end()), ArchiveError::Damaged(_)));
        let words = (0..5000).map(|n| format!("comment.{n}")).collect::<Vec<_>>();
        let words = words.iter().map(|word| (&word[..], &b"x"[..])).collect::<Vec<_>>();
        assert!(matches!(reason(&Tar::new().records(kind, &words).file("a", "").end()), ArchiveError::Damaged(_)));
        let again = (0..20).fold(Tar::new(), |tar, _| tar.records(kind, &[("comment", &value)]));
        assert_eq!(read(&again.file("a", "").end()).unwrap().len(), 1);
    }
    for bad in ["4 =\n", "x a=b\n", "99999999999999999999 a=b\n", "6 a=b\n ", "5 ab\n", "7 a=b\n", "0 a=b\n"] {
        let bytes = Tar::new().with(EntryType::XHeader, "x", bad.as_bytes(), |_| ()).file("a", "").end();
        assert!(matches!(reason(&bytes), ArchiveError::Damaged(_)), "{bad:?}");
    }
}

#[test]
fn numbers_and_types_out_of_range_are_refused() {
    let number = |word, value: &str| {
        refused(&Tar::new().records(EntryType::XHeader, &[(word, value.as_bytes())]).file("a", "").end())
    };
    assert_eq!(number("uid", "4294967295"), EntryError::Number("an owner"));
    assert_eq!(number("gid", "-1"), EntryError::Number("a group"));
    assert_eq!(number("size", "x"), EntryError::Number("a size"));
    assert_eq!(number("mtime", "1e9"), EntryError::Number("a time"));
    assert_eq!(number("GNU.sparse.major", "1"), EntryError::Sparse);
    let of_type = |kind| refused(&Tar::new().with(EntryType::new(kind), "a", &[], |_| ()).end());
    let sparse = Tar::new().with(EntryType::GNUSparse, "a", &[], |header| {
        header.as_gnu_mut().unwrap().sparse[0].numbytes[0] = b'x';
    });
    assert_eq!(refused(&sparse.end()), EntryError::Sparse);
    assert_eq!(of_type(b'M'), EntryError::Type('M'));
}

proptest! {
    #[test]
    fn random_input_does_not_panic(noise in proptest::collection::vec(any::<u8>(), 0..3000), keep in 0usize..3000) {
        let mut bytes = Tar::new().records(EntryType::XHeader, &[("path", b"p")]).file("a", "text").file("b", "").end();
        bytes.truncate(keep);
        bytes.extend(noise);
        let _ = read(&bytes);
    }
}
