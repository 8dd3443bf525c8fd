use super::*;
use crate::archive::{Archive, Member};
use crate::error::{ArchiveError, EntryError, ImportError};
use crate::testing::Tar;
use tar::{EntryType, GnuExtSparseHeader};

const LEN: &str = "3145732";
const DATA: &[u8] = b"startend\n";

/// The first entry, and its data.
fn read(archive: Tar) -> Result<(Member, Vec<u8>), ImportError> {
    let bytes = archive.end();
    let mut archive = Archive::new(&bytes[..], "it", false);
    let member = archive.next()?.unwrap();
    let mut data = Vec::new();
    archive.data().read_to_end(&mut data).unwrap();
    assert!(archive.next()?.is_none(), "another entry");
    Ok((member, data))
}

fn refused(archive: Tar) -> EntryError {
    match read(archive) {
        Err(ImportError::Entry { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

/// An entry of the old format: segments in its header, and in the blocks after it.
fn old(real: u64, first: &[(u64, u64)], more: &[&[(u64, u64)]], data: &[u8]) -> Tar {
    let mut bytes = Vec::new();
    for (n, parts) in more.iter().enumerate() {
        let mut block = GnuExtSparseHeader::new();
        for (place, (at, len)) in block.sparse.iter_mut().zip(*parts) {
            place.set_offset(*at);
            place.set_length(*len);
        }
        block.set_is_extended(n + 1 < more.len());
        bytes.extend(block.as_bytes());
    }
    bytes.extend(data);
    Tar::new().with(EntryType::GNUSparse, "file", &bytes, |header| {
        header.set_size(data.len() as u64);
        let header = header.as_gnu_mut().unwrap();
        for (place, (at, len)) in header.sparse.iter_mut().zip(first) {
            place.set_offset(*at);
            place.set_length(*len);
        }
        header.set_is_extended(!more.is_empty());
        header.set_real_size(real);
    })
}

fn with_records(records: &[(&str, &str)], data: &[u8]) -> Tar {
    let records: Vec<(&str, &[u8])> = records.iter().map(|(word, value)| (*word, value.as_bytes())).collect();
    Tar::new().records(EntryType::XHeader, &records).file("GNUSparseFile.7/file", data)
}

/// An entry of version 1.0.
fn before(real: &str, map: &str, data: &[u8]) -> Tar {
    let mut bytes = map.as_bytes().to_vec();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes.extend(data);
    let version = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0")];
    with_records(&[&version[..], &[("GNU.sparse.name", "file"), ("GNU.sparse.realsize", real)]].concat(), &bytes)
}

#[test]
fn each_format_gives_the_same_file() {
    let parts = [(1_048_576, 5), (3_145_728, 4)];
    let len = LEN.parse().unwrap();
    let one_by_one = [
        ("path", "file"),
        ("GNU.sparse.size", LEN),
        ("GNU.sparse.numblocks", "3"),
        ("GNU.sparse.offset", "1048576"),
        ("GNU.sparse.numbytes", "5"),
        ("GNU.sparse.offset", "3145728"),
        ("GNU.sparse.numbytes", "4"),
        ("GNU.sparse.offset", LEN),
        ("GNU.sparse.numbytes", "0"),
    ];
    let listed = [
        ("GNU.sparse.size", LEN),
        ("GNU.sparse.numblocks", "3"),
        ("GNU.sparse.name", "file"),
        ("GNU.sparse.map", "1048576,5,3145728,4,3145732,0"),
    ];
    let segments = parts.map(|(at, len)| Segment { offset: at, len }).to_vec();
    let wanted = Content { len, segments };
    for archive in [
        old(len, &parts, &[], DATA),
        old(len, &parts[..1], &[&[], &parts[1..], &[(len, 0)]], DATA),
        with_records(&one_by_one, DATA),
        with_records(&listed, DATA),
        before(LEN, "3\n1048576\n5\n3145728\n4\n3145732\n0\n", DATA),
    ] {
        let (member, data) = read(archive).unwrap();
        assert_eq!((&member.path[..], &member.content, &data[..]), (&b"file"[..], &wanted, DATA));
    }
    // A map can be longer than a block, and a file can be one hole.
    let map = (0..200).map(|n| format!("{}\n1\n", n * 4096)).collect::<String>();
    let (member, data) = read(before("1000000", &format!("200\n{map}"), &[7; 200])).unwrap();
    assert_eq!(
        (member.content.segments.len(), member.content.segments[199].offset, data),
        (200, 199 * 4096, vec![7; 200])
    );
    for hole in [before("1099511627776", "0\n", b""), with_records(&[("GNU.sparse.size", "1099511627776")], b"")] {
        assert_eq!(read(hole).unwrap().0.content, Content { len: 1 << 40, segments: Vec::new() });
    }
}

#[test]
fn malformed_maps_are_refused() {
    for map in ["", "x", "1\n0\n", "1\n0\nx\n", "-1\n", "111111111111111111111\n", "1048577\n", "\n", "2\n0\n4\n2\n4\n"]
    {
        assert_eq!(refused(before("100", map, b"12345678")), EntryError::Sparse, "{map:?}");
    }
    // Longer than the file, more than is stored, and beyond the range of a number.
    for map in ["1\n97\n4\n", "1\n0\n9\n", "1\n18446744073709551615\n1\n"] {
        assert_eq!(refused(before("100", map, b"12345678")), EntryError::Sparse, "{map:?}");
    }
    for map in ["1", "1,2,3", "0,4,2,4", ",", "0,4;"] {
        let archive = with_records(&[("GNU.sparse.size", "100"), ("GNU.sparse.map", map)], b"12345678");
        assert_eq!(refused(archive), EntryError::Sparse, "{map:?}");
    }
    let version = [("GNU.sparse.major", "2"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "8")];
    assert_eq!(refused(with_records(&version, b"12345678")), EntryError::Sparse);
    assert_eq!(refused(with_records(&[("GNU.sparse.size", "x")], b"")), EntryError::Sparse);
    assert_eq!(refused(old(100, &[(0, 4), (2, 4)], &[], b"12345678")), EntryError::Sparse);
    assert_eq!(refused(before("17592186040321", "0\n", b"")), EntryError::Number("a size"));
    let cut = old(100, &[], &[&[], &[(0, 4)]], b"1234").end();
    let error = Archive::new(&cut[..1200], "it", false).next().unwrap_err();
    assert!(matches!(error, ImportError::Archive { reason: ArchiveError::CutOff, .. }), "{error:?}");
}
