use super::*;
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

#[test]
fn a_hello_round_trips() {
    let all = [
        Hello::Read { content: Uuid::from_u128(7), index: "/pool/7.index".into(), domain: "pool/".into() },
        Hello::Attach { volume: Uuid::from_u128(8), id: 3, domain: "pool/a".into() },
        Hello::Detach { volume: Uuid::from_u128(8) },
    ];
    for hello in all {
        let text = serde_json::to_string(&hello).unwrap();
        assert_eq!(serde_json::from_str::<Hello>(&text).unwrap(), hello, "{text}");
    }
    assert!(serde_json::from_str::<Hello>(r#"{"say":"detach"}"#).is_err());
}

#[test]
fn each_domain_and_layer_has_its_own_table() {
    let name = |content, domain| access::file_name(Uuid::from_u128(content), domain);
    assert_eq!(name(1, "a/"), name(1, "a/"));
    assert!(name(1, "a/") != name(1, "a/b") && name(1, "a/") != name(2, "a/"));
    assert_eq!(access::reader(access::entry(5)), Some(5));
    assert_eq!(access::reader([0; 4]), None);
}

proptest! {
    #[test]
    fn a_read_round_trips(block in 0..1u64 << 50, count in 1..=MAX_BLOCKS, peer in any::<u32>()) {
        let read = Read { block, count, peer };
        prop_assert_eq!(Read::decode(&read.encode()), Some(read));
        let found = Found { hits: peer, of_files: count, volume: Uuid::from_u128(block.into()) };
        prop_assert_eq!(Found::decode(&found.encode()), Some(found));
    }

    #[test]
    fn random_packets_decode_to_valid_reads_only(packet in proptest::collection::vec(any::<u8>(), 0..40)) {
        if let Some(read) = Read::decode(&packet) {
            prop_assert!(read.count >= 1 && read.count <= MAX_BLOCKS && read.block < u64::MAX / 4096);
        }
        let _ = Found::decode(&packet);
    }
}
