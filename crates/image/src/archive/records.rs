//! POSIX extended headers: records of a keyword and a value.

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

/// What stands for what in the name of an attribute as a part of a word, as GNU tar has it: a word ends at `=`.
const ESCAPES: [(u8, &[u8]); 2] = [(b'%', b"%25"), (b'=', b"%3D")];

/// The name of an attribute that is a part of a word.
pub(super) fn decoded(mut name: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    while let Some((first, rest)) = name.split_first() {
        let escape = ESCAPES.iter().find_map(|(byte, escape)| Some((*byte, name.strip_prefix(*escape)?)));
        let (byte, rest) = escape.unwrap_or((*first, rest));
        decoded.push(byte);
        name = rest;
    }
    decoded
}

/// The name of an attribute as a part of a word.
pub(crate) fn encoded(name: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| ESCAPES.iter().find(|(escaped, _)| escaped == byte).map(|(_, escape)| escape.to_vec());
    name.iter().flat_map(|byte| escape(byte).unwrap_or_else(|| vec![*byte])).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_attributes_have_no_equals_sign_in_a_word() {
        for (name, word) in [
            ("user.a=b", "user.a%3Db"),
            ("user.100%", "user.100%25"),
            ("user.p%3Dq", "user.p%253Dq"),
            ("user.a", "user.a"),
        ] {
            assert_eq!((encoded(name.as_bytes()), decoded(word.as_bytes())), (word.into(), name.into()));
        }
        // What nobody encoded is what it is.
        assert_eq!(decoded(b"user.%41%"), b"user.%41%");
    }
}
