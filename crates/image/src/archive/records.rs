//! The extended headers of POSIX: records of a word and a value.

use std::collections::BTreeMap;

use super::sparse;

/// What extended headers say; an empty value takes a word back.
pub(super) type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// Reads records, each of them `LENGTH WORD=VALUE\n`, where the length counts all of these; `None` if they are none.
pub(super) fn parse(mut bytes: &[u8]) -> Option<Records> {
    let mut records = Records::new();
    while !bytes.is_empty() {
        let record = record(bytes)?;
        bytes = &bytes[record.len..];
        if !sparse::gather(&mut records, record.word, record.value) {
            records.insert(record.word.to_vec(), record.value.to_vec());
        }
    }
    Some(records)
}

struct Record<'a> {
    len: usize,
    word: &'a [u8],
    value: &'a [u8],
}

fn record(bytes: &[u8]) -> Option<Record<'_>> {
    let blank = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let len: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
    let text = bytes.get(blank + 1..len)?.strip_suffix(b"\n")?;
    let equals = text.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
    Some(Record { len, word: &text[..equals], value: &text[equals + 1..] })
}

/// Whole seconds of a time such as `-1.5`: those before it.
pub(super) fn seconds(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds: i64 = whole.parse().ok()?;
    let has_fraction = fraction.bytes().any(|byte| byte != b'0');
    if whole.starts_with('-') && has_fraction { seconds.checked_sub(1) } else { Some(seconds) }
}
