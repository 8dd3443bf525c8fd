//! The format of state files: one line that says what follows and proves that it is whole, then JSON.
//!
//! ```text
//! bulkhead volume 1 crc32 1f2e3d4c
//! { … }
//! ```
//! The format is documented in docs/formats/state.md. Where the files are is the engine's business.

use bulkhead_core::action::Record;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::reason::Reason;
use std::path::Path;

/// The version of the format that is written, and the only one that is read.
pub const VERSION: u32 = 1;

/// Largest state file that is read, in bytes.
pub const MAX_BYTES: u64 = 1 << 20;

/// Turns a record into the content of its file.
#[must_use]
pub fn encode(record: &Record) -> Vec<u8> {
    let body = match record {
        Record::Pool(pool) => serde_json::to_string_pretty(pool),
        Record::Volume(volume) => serde_json::to_string_pretty(volume),
        Record::Tenant(tenant) => serde_json::to_string_pretty(tenant),
        Record::Lease(lease) => serde_json::to_string_pretty(lease),
        Record::Device(device) => serde_json::to_string_pretty(device),
        Record::Hold(hold) => serde_json::to_string_pretty(hold),
        Record::Mapping(mapping) => serde_json::to_string_pretty(mapping),
    }
    .expect("records have only string keys and finite numbers");
    let crc = crc32fast::hash(body.as_bytes());
    format!("bulkhead {} {VERSION} crc32 {crc:08x}\n{body}\n", record.kind()).into_bytes()
}

/// That a state file is not what was written there.
#[must_use]
pub fn damaged(path: &Path, cause: impl std::fmt::Display) -> Fault {
    Fault::new(Code::Corrupt, format!("state file {}", path.display()), cause)
        .reason(Reason::RecordDamaged { path: path.to_owned() })
}

/// Reads a record back.
///
/// # Errors
/// `Corrupt` for a file that is cut, altered or not ours; `Unsupported` for one from a newer version.
pub fn decode(path: &Path, content: &[u8]) -> Result<Record, Fault> {
    let corrupt = |cause: &str| damaged(path, cause);
    let text = std::str::from_utf8(content).map_err(|_| corrupt("it is not text"))?;
    let (header, body) = text.split_once('\n').ok_or_else(|| corrupt("it is truncated in its first line"))?;
    let words: Vec<&str> = header.split(' ').collect();
    let ["bulkhead", kind, version, "crc32", crc] = words[..] else {
        return Err(corrupt("its first line is not that of a Bulkhead state file"));
    };
    if version != VERSION.to_string() {
        let cause = format!("it has format version {version}, this program reads version {VERSION}");
        return Err(Fault::new(Code::Unsupported, format!("state file {}", path.display()), cause)
            .hint("use the version of Bulkhead that wrote it, or a newer one"));
    }
    let body = body.strip_suffix('\n').ok_or_else(|| corrupt("it is truncated"))?;
    if u32::from_str_radix(crc, 16) != Ok(crc32fast::hash(body.as_bytes())) {
        return Err(corrupt("its checksum does not match its content"));
    }
    let unreadable = |error: serde_json::Error| corrupt(&format!("its content cannot be read ({error})"));
    match kind {
        "pool" => serde_json::from_str(body).map(Record::Pool).map_err(unreadable),
        "volume" => serde_json::from_str(body).map(Record::Volume).map_err(unreadable),
        "tenant" => serde_json::from_str(body).map(Record::Tenant).map_err(unreadable),
        "lease" => serde_json::from_str(body).map(Record::Lease).map_err(unreadable),
        "device" => serde_json::from_str(body).map(Record::Device).map_err(unreadable),
        "hold" => serde_json::from_str(body).map(Record::Hold).map_err(unreadable),
        "mapping" => serde_json::from_str(body).map(Record::Mapping).map_err(unreadable),
        _ => Err(corrupt("it is of an unknown kind")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_core::model::{FsKind, Pool, PoolSource, Provision, ReadFrom, Server, Volume, VolumeState};
    use bulkhead_core::units::Bytes;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
    use uuid::Uuid;

    fn record() -> Record {
        Record::Pool(Pool {
            name: "fast".parse().unwrap(),
            uuid: Uuid::from_u128(7),
            source: PoolSource::File { directory: "/srv/bulkhead".into(), server: Server::Auto },
        })
    }

    #[test]
    fn a_record_is_read_back() {
        assert_eq!(decode(Path::new("/x"), &encode(&record())), Ok(record()));
    }

    /// As docs/formats/state.md has it: one with all fields, and one with those alone that must be there.
    #[test]
    fn a_volume_of_version_1_is_read() {
        let read = |crc: &str, body: &str| {
            decode(Path::new("/x"), format!("bulkhead volume 1 crc32 {crc}\n{body}\n").as_bytes())
        };
        let whole = concat!(
            r#"{"pool":"p","name":"v","uuid":"00000000-0000-0000-0000-000000000007","size_bytes":4096,"#,
            r#""fs":"ext4","provision":"on_demand","fast_commit":true,"read_only":false,"origin":"o","#,
            r#""layered":true,"flatten":true,"share":"drr","domain":"d","state":{"stage":"resizing","#,
            r#""to_bytes":8192}}"#,
        );
        let expected = Volume {
            pool: "p".parse().unwrap(),
            name: "v".parse().unwrap(),
            uuid: Uuid::from_u128(7),
            size_bytes: Bytes(4096),
            fs: FsKind::Ext4,
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
        assert_eq!(read("99bea900", least), Ok(Record::Volume(expected)));
        assert_eq!(read("00000000", least).unwrap_err().code, Code::Corrupt);
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
        fn every_cut_is_noticed(keep in 0usize..1000) {
            let whole = encode(&record());
            if keep < whole.len() {
                prop_assert_eq!(decode(Path::new("/x"), &whole[..keep]).map_err(|f| f.code), Err(Code::Corrupt));
            }
        }

        #[test]
        fn every_flipped_byte_is_noticed(at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut bytes = encode(&record());
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let read = decode(Path::new("/x"), &bytes);
            // Hexadecimal digits of the checksum may change case and mean the same.
            prop_assert!(read.is_err() || read == Ok(record()));
        }
    }

    use proptest::prelude::prop;
}
