//! The format of state files: a line with the kind, version and checksum of what follows, then JSON.
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

/// The error of a damaged state file.
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
mod tests;
