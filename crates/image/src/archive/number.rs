//! Numbers in headers, as GNU tar reads them: octal digits, padded with blanks or NULs; base 256 for larger values.

/// Parses a field. An empty one is zero; `None` if it is invalid or out of range.
pub(super) fn number(field: &[u8]) -> Option<i64> {
    match field.first()? {
        0x80 | 0xff => base_256(field),
        _ => octal(field),
    }
}

/// As [`number`], for fields that cannot be negative.
pub(super) fn unsigned(field: &[u8]) -> Option<u64> {
    u64::try_from(number(field)?).ok()
}

fn octal(field: &[u8]) -> Option<i64> {
    let is_blank = |byte: &u8| byte.is_ascii_whitespace();
    // Some programs let the terminator of the previous field overlap this one.
    let field = field.strip_prefix(b"\0").unwrap_or(field);
    let digits = &field[field.iter().take_while(|byte| is_blank(byte)).count()..];
    let n_digits = digits.iter().take_while(|byte| (b'0'..=b'7').contains(byte)).count();
    // Anything may follow the terminator of a number.
    if digits.get(n_digits).is_some_and(|byte| *byte != 0 && !is_blank(byte)) {
        return None;
    }
    digits[..n_digits].iter().try_fold(0_i64, |sum, digit| sum.checked_mul(8)?.checked_add(i64::from(digit - b'0')))
}

/// Parses a number in two's complement, whose first byte is only the sign.
fn base_256(field: &[u8]) -> Option<i64> {
    let (sign, rest) = field.split_first()?;
    let sign = if *sign == 0xff { -1 } else { 0 };
    rest.iter().try_fold(sign, |sum: i64, byte| sum.checked_mul(256)?.checked_add(i64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_padded_octal_or_base_256() {
        for (field, expected) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"    644 ", Some(0o644)),
            (b"644\0\0\0\0\0", Some(0o644)),
            (b"644 junk", Some(0o644)),
            (b"\x000644\0\0\0", Some(0o644)),
            (b"77777777", Some(0o7777_7777)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"        ", Some(0)),
            (b"\0       ", Some(0)),
            (b"\x80\0\0\0\0\x2d\xc6\xc0", Some(3_000_000)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xf6", Some(-10)),
            (b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", Some(i64::MAX)),
            (b"\xff\xff\xff\xff\x80\0\0\0\0\0\0\0", Some(i64::MIN)),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", None),
            (b"\x80\x01\0\0\0\0\0\0\0\0\0\0", None),
            (b"\xff\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"0000649\0", None),
            (b"-000001\0", None),
            (b"\0\x80\0\0\0\0\0\x01", None),
            (b"777777777777777777777777", None),
            (b"", None),
        ] {
            assert_eq!(number(field), expected, "{field:x?}");
        }
        assert_eq!((unsigned(b"17\0"), unsigned(b"\xff\xff\xff\xff")), (Some(15), None));
    }
}
