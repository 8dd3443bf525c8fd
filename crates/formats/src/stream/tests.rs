use super::*;
use bulkhead_core::model::VolumeFs;
use bulkhead_core::units::Bytes;
use proptest::prelude::{any, prop_assert_eq, proptest};
use uuid::Uuid;

fn header() -> StreamHeader {
    StreamHeader {
        content: Uuid::from_u128(7),
        base: Some(Uuid::from_u128(6)),
        size_bytes: Bytes::mib(64),
        start_bytes: Bytes(8192),
        data_bytes: Bytes::mib(3),
        fs: VolumeFs::Ext4,
        snapshot: "file/monday".to_owned(),
    }
}

fn read(bytes: &[u8]) -> Result<(StreamHeader, ChecksumChain), StreamError> {
    let preamble = bytes.first_chunk().unwrap();
    let len = header_len(preamble)?;
    let (text, sum) = bytes[PREAMBLE_BYTES..].split_at(len);
    decode_header(preamble, text, sum.first_chunk().unwrap())
}

#[test]
fn version_1_round_trips() {
    let bytes = encode_header(&header()).unwrap();
    assert_eq!(bytes[..12], *b"BULKHEAD\x01\0\0\0");
    let text = r#"{"content":"00000000-0000-0000-0000-000000000007","base":"00000000-0000-0000-0000-000000000006","size_bytes":67108864,"start_bytes":8192,"data_bytes":3145728,"fs":"ext4","snapshot":"file/monday"}"#;
    assert_eq!(String::from_utf8_lossy(&bytes[PREAMBLE_BYTES..bytes.len() - CHECKSUM_BYTES]), text);
    let (found, mut sums) = read(&bytes).unwrap();
    assert_eq!(found, header());
    let head = encode_head(Record::Data { offset: 4096, len: 8192 });
    assert_eq!(head, *b"\x01\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x20\0\0\0\0\0\0");
    let sum = sums.next(&head, &[7; 8192]);
    let expected = "bad0e121";
    assert_eq!(sum[..4].iter().map(|byte| format!("{byte:02x}")).collect::<String>(), expected);
}

#[test]
fn invalid_headers_are_refused() {
    let good = encode_header(&header()).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        read(&bytes).map(|_| ()).unwrap_err()
    };
    assert_eq!(with(0, b'b'), StreamError::Unknown);
    assert_eq!(with(8, 2), StreamError::Version(2));
    assert_eq!(with(15, 1), StreamError::Header("it is too long".to_owned()));
    assert_eq!(with(20, b'x'), StreamError::Checksum(0));
    assert_eq!(with(good.len() - 1, good[good.len() - 1] ^ 1), StreamError::Checksum(0));
    for wrong in [
        StreamHeader { size_bytes: Bytes(0), ..header() },
        StreamHeader { size_bytes: Bytes(4097), ..header() },
        StreamHeader { start_bytes: Bytes::mib(65), ..header() },
        StreamHeader { start_bytes: Bytes(1), ..header() },
    ] {
        let read = read(&encode_header(&wrong).unwrap()).map(|_| ());
        assert_eq!(read, Err(StreamError::Header("its sizes are not those of a volume".to_owned())), "{wrong:?}");
    }
    let endless = StreamHeader { snapshot: "x".repeat(1 << 16), ..header() };
    assert!(matches!(encode_header(&endless), Err(StreamError::Header(_))));
}

#[test]
fn records_are_in_order_and_within_the_volume() {
    let size = 10 << 20;
    let at = |record| decode_head(&encode_head(record), 8192, size);
    for good in [
        Record::Data { offset: 8192, len: MAX_DATA_BYTES },
        Record::Zeroes { offset: 8192, len: size - 8192 },
        Record::End,
    ] {
        assert_eq!(at(good), Ok(good));
    }
    for (bad, what) in [
        (Record::Data { offset: 4096, len: 4096 }, "starts before the end of the previous one"),
        (Record::Data { offset: 8192, len: MAX_DATA_BYTES + 4096 }, "has too much data"),
        (Record::Data { offset: 8192, len: 0 }, "is not aligned to blocks"),
        (Record::Zeroes { offset: 8193, len: 4096 }, "is not aligned to blocks"),
        (Record::Zeroes { offset: 8192, len: size }, "extends beyond the end of the volume"),
        (Record::Zeroes { offset: u64::MAX - 4095, len: 8192 }, "extends beyond the end of the volume"),
    ] {
        assert_eq!(at(bad), Err(StreamError::Record(what)), "{bad:?}");
    }
    let mut head = encode_head(Record::End);
    head[9] = 1;
    assert_eq!(decode_head(&head, 0, size), Err(StreamError::Record("that ends the stream is not empty")));
    let mut head = encode_head(Record::Zeroes { offset: 0, len: 4096 });
    head[0] = 9;
    assert_eq!(decode_head(&head, 0, size), Err(StreamError::Record("has an unknown type")));
}

proptest! {
    #[test]
    fn decoded_heads_encode_to_the_same_bytes(head in any::<[u8; HEAD_BYTES]>(), small in any::<[u8; 3]>()) {
        // Random numbers are hardly ever in range: test small ones as well.
        let mut near = [0; HEAD_BYTES];
        (near[0], near[9], near[17]) = (small[0] % 5, small[1] & 0xf0, small[2] & 0xf0);
        for head in [head, near] {
            if let Ok(record) = decode_head(&head, 0, 1 << 20) {
                prop_assert_eq!(encode_head(record), head);
            }
        }
    }
}
