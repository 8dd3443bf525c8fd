//! State files, whole and damaged.

use bulkhead_core::model::{
    FrontEnd, MountOptions, Pool, PoolSource, Provision, ReadFrom, Server, Volume, VolumeFs, VolumeState,
};
use bulkhead_core::units::Bytes;
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
use uuid::Uuid;

use super::*;

fn record() -> Record {
    Record::Pool(Pool {
        name: "fast".parse().unwrap(),
        uuid: Uuid::from_u128(7),
        source: PoolSource::File { directory: "/srv/bulkhead".into(), server: Server::Auto },
    })
}

#[test]
fn a_record_round_trips() {
    assert_eq!(decode(Path::new("/x"), &encode(&record())), Ok(record()));
}

/// As docs/formats/state.md has it: one with all fields, and one with those alone that must be there.
#[test]
fn a_volume_of_version_1_is_read() {
    let read =
        |crc: &str, body: &str| decode(Path::new("/x"), format!("bulkhead volume 1 crc32 {crc}\n{body}\n").as_bytes());
    let whole = concat!(
        r#"{"pool":"p","name":"v","uuid":"00000000-0000-0000-0000-000000000007","size_bytes":4096,"#,
        r#""fs":"ext4","provision":"on_demand","fast_commit":true,"read_only":false,"origin":"o","#,
        r#""layered":true,"flatten":true,"share":"drr","domain":"d","state":{"stage":"resizing","#,
        r#""to_bytes":8192}}"#,
    );
    let expected = Volume {
        mount_options: MountOptions::default(),
        created_by: None,
        default_tenant: None,
        created_unix_seconds: None,
        pool: "p".parse().unwrap(),
        name: "v".parse().unwrap(),
        uuid: Uuid::from_u128(7),
        size_bytes: Bytes(4096),
        fs: VolumeFs::Ext4,
        provision: Provision::OnDemand,
        fast_commit: true,
        read_only: false,
        origin: Some("o".parse().unwrap()),
        layered: true,
        flatten: true,
        unfilled_from_bytes: None,
        read_from: ReadFrom::Peers,
        domain: Some("d".parse().unwrap()),
        state: VolumeState::Resizing { to_bytes: Bytes(8192) },
    };
    assert_eq!(read("57d6417f", whole), Ok(Record::Volume(expected.clone())));
    let least = concat!(
        r#"{"pool":"p","name":"v","uuid":"00000000-0000-0000-0000-000000000007","size_bytes":4096,"#,
        r#""fs":"ext4","provision":"full","state":{"stage":"ready"}}"#,
    );
    let expected = Volume {
        provision: Provision::Full,
        fast_commit: false,
        origin: None,
        layered: false,
        flatten: false,
        unfilled_from_bytes: None,
        read_from: ReadFrom::HostCache,
        domain: None,
        state: VolumeState::Ready,
        ..expected
    };
    assert_eq!(read("99bea900", least), Ok(Record::Volume(expected.clone())));
    let mounted = least.replace(r#""state""#, r#""mount_options":{"suid":true,"subdir":"data"},"state""#);
    let mount_options = MountOptions { suid: true, dev: false, subdir: Some("data".parse().unwrap()) };
    assert_eq!(read("48ae236d", &mounted), Ok(Record::Volume(Volume { mount_options, ..expected.clone() })));
    let made = least
        .replace(r#""state""#, r#""created_by":"csi","default_tenant":"db","created_unix_seconds":1700000000,"state""#);
    let (created_by, default_tenant) = (Some(FrontEnd::Csi), Some("db".parse().unwrap()));
    let created_unix_seconds = Some(1_700_000_000);
    assert_eq!(
        read("b5dc6d90", &made),
        Ok(Record::Volume(Volume { created_by, default_tenant, created_unix_seconds, ..expected }))
    );
    assert_eq!(read("00000000", least).unwrap_err().code, Code::Corrupt);
}

#[test]
fn a_device_record_with_an_invalid_name_is_damaged() {
    let encoded = |name: &str| {
        let body = format!(r#"{{"name":"{name}","identity":"","policy":null,"before":null,"calibration":null}}"#);
        format!("bulkhead device 1 crc32 {:08x}\n{body}\n", crc32fast::hash(body.as_bytes()))
    };
    for name in ["sda", "cciss/c0d0"] {
        let Ok(Record::Device(read)) = decode(Path::new("/x"), encoded(name).as_bytes()) else { panic!("{name}") };
        assert_eq!(read.name.as_str(), name);
    }
    let fault = decode(Path::new("/x"), encoded("../sda").as_bytes()).unwrap_err();
    assert_eq!(fault.code, Code::Corrupt);
    assert!(fault.cause.contains("is not the kernel name of a block device"), "{fault}");
}

#[test]
fn a_newer_version_is_named_not_guessed() {
    let text = String::from_utf8(encode(&record())).unwrap().replacen(" 1 crc32", " 2 crc32", 1);
    let fault = decode(Path::new("/x"), text.as_bytes()).unwrap_err();
    assert_eq!(fault.code, Code::Unsupported);
    assert!(fault.to_string().contains("version 2"), "{fault}");
}

proptest! {
    #[test]
    fn every_truncation_is_detected(keep in 0usize..1000) {
        let whole = encode(&record());
        if keep < whole.len() {
            prop_assert_eq!(decode(Path::new("/x"), &whole[..keep]).map_err(|f| f.code), Err(Code::Corrupt));
        }
    }

    #[test]
    fn every_flipped_byte_is_detected(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = encode(&record());
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let read = decode(Path::new("/x"), &bytes);
        // Hexadecimal digits of the checksum may change case and mean the same.
        prop_assert!(read.is_err() || read == Ok(record()));
    }
}

use proptest::prelude::prop;
