//! Records of POSIX extended headers: a keyword and a value each.

use std::collections::BTreeMap;

use super::sparse;

/// Values by keyword. An empty value deletes the keyword.
pub(super) type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// Parses records of the form `LENGTH KEYWORD=VALUE\n`, where the length counts the whole record; `None` if they are malformed.
pub(super) fn parse(mut bytes: &[u8]) -> Option<Records> {
    let mut records = Records::new();
    while !bytes.is_empty() {
        let record = record(bytes)?;
        bytes = &bytes[record.len..];
        if !sparse::add_to_map(&mut records, record.keyword, record.value) {
            records.insert(record.keyword.to_vec(), record.value.to_vec());
        }
    }
    Some(records)
}

struct Record<'a> {
    len: usize,
    keyword: &'a [u8],
    value: &'a [u8],
}

fn record(bytes: &[u8]) -> Option<Record<'_>> {
    let blank = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let len: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
    let text = bytes.get(blank + 1..len)?.strip_suffix(b"\n")?;
    let equals = text.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
    Some(Record { len, keyword: &text[..equals], value: &text[equals + 1..] })
}

/// Escapes of GNU tar in the name of an attribute in a keyword, because a keyword ends at `=`.
const ESCAPES: [(u8, &[u8]); 2] = [(b'%', b"%25"), (b'=', b"%3D")];

/// Reverts [`escape_name`].
pub(super) fn unescape_name(mut name: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    while let Some((first, rest)) = name.split_first() {
        let escape = ESCAPES.iter().find_map(|(byte, escape)| Some((*byte, name.strip_prefix(*escape)?)));
        let (byte, rest) = escape.unwrap_or((*first, rest));
        decoded.push(byte);
        name = rest;
    }
    decoded
}

/// Escapes the name of an attribute for a keyword.
pub(crate) fn escape_name(name: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| ESCAPES.iter().find(|(escaped, _)| escaped == byte).map(|(_, escape)| escape.to_vec());
    name.iter().flat_map(|byte| escape(byte).unwrap_or_else(|| vec![*byte])).collect()
}

/// The seconds of a time such as `-1.5`, rounded down.
pub(super) fn seconds(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds: i64 = whole.parse().ok()?;
    let has_fraction = fraction.bytes().any(|byte| byte != b'0');
    if whole.starts_with('-') && has_fraction { seconds.checked_sub(1) } else { Some(seconds) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_names_are_escaped_in_keywords() {
        for (name, keyword) in [
            ("user.a=b", "user.a%3Db"),
            ("user.100%", "user.100%25"),
            ("user.p%3Dq", "user.p%253Dq"),
            ("user.a", "user.a"),
        ] {
            assert_eq!(
                (escape_name(name.as_bytes()), unescape_name(keyword.as_bytes())),
                (keyword.into(), name.into())
            );
        }
        // Other percent signs are not escapes.
        assert_eq!(unescape_name(b"user.%41%"), b"user.%41%");
    }
}
