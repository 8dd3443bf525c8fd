use super::*;
use proptest::prelude::{any, prop_assert, proptest};

fn head(extents: &[IndexExtent]) -> IndexHead {
    let blocks = extents.iter().map(|extent| u64::from(extent.blocks)).sum();
    IndexHead::new(Uuid::from_u128(7), 1, [3; KEY_BYTES], extents.len() as u64, blocks)
}

fn sample_extents() -> Vec<IndexExtent> {
    let file = FileId { inode: 12, generation: 99 };
    let extent = |block, blocks, file_block, hash| IndexExtent { block, blocks, file, file_block, hash };
    vec![extent(5, 3, 0, 0), extent(8, 1, 7, 3), extent(1000, 20, 3, 4)]
}

fn encoded(extents: &[IndexExtent]) -> Vec<u8> {
    let head = head(extents);
    let mut checker = Checker::new(head);
    let mut bytes = head.encode().to_vec();
    for extent in extents {
        checker.next(&extent.encode()).unwrap();
        bytes.extend(extent.encode());
    }
    bytes.extend(checker.checksum());
    bytes
}

fn read(bytes: &[u8]) -> Result<Vec<IndexExtent>, IndexError> {
    let truncated = || IndexError::Damaged("truncated");
    let head = IndexHead::decode(bytes.first_chunk().ok_or_else(truncated)?)?;
    let mut checker = Checker::new(head);
    let mut extents = Vec::new();
    let mut at = HEAD_BYTES;
    for _ in 0..head.extents {
        let extent = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or_else(truncated)?;
        extents.push(checker.next(extent)?);
        at += EXTENT_BYTES;
    }
    checker.end(bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or_else(truncated)?)?;
    Ok(extents)
}

#[test]
fn an_index_round_trips() {
    assert_eq!(read(&encoded(&sample_extents())), Ok(sample_extents()));
    assert_eq!(read(&encoded(&[])), Ok(Vec::new()));
    let head = head(&sample_extents());
    assert_eq!((head.hashes_offset(), head.len()), (4096, 4096 + 24 * 16));
    assert_ne!(head.hasher().hash(&[1; 4096]), head.hasher().hash(&[2; 4096]));
    assert!(!format!("{head:?} {:?}", head.hasher()).to_lowercase().contains("key"));
}

/// The bytes are those of docs/formats/index.md.
#[test]
fn both_versions_are_decoded() {
    let mut head = *b"BHINDEX\0\x02\0\0\0\x81\0\0\0\
        \x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff\x01\
        0123456789abcdef\x02\0\0\0\0\0\0\0\x05\x01\0\0\0\0\0\0";
    let content = Uuid::from_u128(0x1122_3344_5566_7788_99aa_bbcc_ddee_ff01);
    let expected = IndexHead::new(content, 0x81, *b"0123456789abcdef", 2, 0x105);
    let read = IndexHead::decode(&head).unwrap();
    assert_eq!((read, read.encode()), (expected, head));
    head[8] = 1;
    let read = IndexHead::decode(&head).unwrap();
    assert_eq!((read, read.encode()), (IndexHead { version: 1, ..expected }, head));
    let extent = *b"\x08\x07\x06\x05\x04\x03\x02\x01\x01\x02\0\0\0\0\0\0\
        \x03\0\0\0\0\0\0\0\x04\x01\0\0\0\0\0\0\x09\x08\x07\x06\x11\0\0\0";
    let read = IndexExtent::decode(&extent);
    let file = FileId { inode: 0x201, generation: 0x0607_0809 };
    let expected = IndexExtent { block: 0x0102_0304_0506_0708, blocks: 17, file, file_block: 3, hash: 0x104 };
    assert_eq!((read, read.encode()), (expected, extent));
}

/// The first 128-bit test vector of the reference implementation: empty input, key 00 01 … 0f.
#[test]
fn hashes_are_those_of_siphash() {
    let key = *b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f";
    let expected = *b"\xa3\x81\x7f\x04\xba\x25\xa8\xe6\x6d\xf6\x72\x14\xc7\x55\x02\x93";
    assert_eq!(IndexHead { version: 1, key, ..head(&[]) }.hasher().hash(&[]), expected);
}

/// The first 128-bit test vector of the reference implementation: empty input, key 00 01 … 1f.
#[test]
fn hashes_are_those_of_highwayhash() {
    let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908, 0x1716_1514_1312_1110, 0x1f1e_1d1c_1b1a_1918];
    let expected = [0x0fed_268f_9d8f_fec7_u64, 0x3356_5e76_7f09_3e6f].map(u64::to_le_bytes).concat();
    assert_eq!(BlockHasher::Highway(Key(key)).hash(&[]), *expected);
    // The hash of a block with the key of an index must not change: it is on disk.
    assert_eq!(hex(&head(&[]).hasher().hash(&[7; 4096])), "fce9b144d25611599939aac5dac16499");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn invalid_heads_and_extents_are_refused() {
    let mut newer = encoded(&sample_extents());
    newer[8] = 3;
    assert_eq!(read(&newer), Err(IndexError::Version(3)));
    assert_eq!(read(&[0; 200]), Err(IndexError::Unknown));
    let mut overlapping = sample_extents();
    overlapping[1].block = 7;
    let mut checker = Checker::new(head(&overlapping));
    checker.next(&overlapping[0].encode()).unwrap();
    assert!(matches!(checker.next(&overlapping[1].encode()), Err(IndexError::Damaged(_))));
}

#[test]
fn handles_have_the_encoding_of_the_kernel() {
    let file = FileId { inode: 0x0102_0304, generation: 9 };
    for handle_type in [1, 0x81] {
        let handle = file.handle(handle_type).unwrap();
        assert_eq!(FileId::from_handle(handle_type, &handle), Some(file));
    }
    assert_eq!(FileId { inode: 1 << 32, generation: 0 }.handle(1), None);
    assert_eq!(FileId::from_handle(1, &[0; 12]), None);
}

proptest! {
    #[test]
    fn every_flipped_bit_is_detected(at in 0usize..64 + 3 * 40 + 32, bit in 0u8..8) {
        let mut bytes = encoded(&sample_extents());
        bytes[at] ^= 1 << bit;
        prop_assert!(read(&bytes).is_err());
    }

    #[test]
    fn random_bytes_do_not_panic(noise in proptest::collection::vec(any::<u8>(), 0..400), keep in 0usize..65) {
        let mut bytes = encoded(&sample_extents());
        bytes.truncate(keep);
        bytes.extend(noise);
        let _ = read(&bytes);
    }
}
