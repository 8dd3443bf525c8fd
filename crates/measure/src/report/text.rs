//! Numbers as text, and text made fit: three significant digits, units, spreads, wrapping. Total on every `f64`.

use crate::result::Spread;

/// Shown where there is no figure.
pub const ABSENT: &str = "-";

/// Three significant digits, without exponent between 0.01 and ten million.
#[must_use]
pub fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        ABSENT.to_owned()
    } else if size == 0.0 {
        "0".to_owned()
    } else if !(0.001..1e7).contains(&size) {
        format!("{value:.1e}")
    } else if size >= 0.0995 {
        trimmed(&three_digits(value))
    } else {
        trimmed(&format!("{value:.4}"))
    }
}

/// Three digits, or all of those before the point; below 0.1 fewer.
#[must_use]
pub fn three_digits(value: f64) -> String {
    match value.abs() {
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Like [`number`], with all its digits, so that columns line up.
#[must_use]
pub fn digits(value: f64) -> String {
    if (0.0995..99.95).contains(&value.abs()) { three_digits(value) } else { number(value) }
}

/// Like [`number`], and at most one digit behind the point when the whole is one or more: for factors and percent.
#[must_use]
pub fn short(value: f64) -> String {
    if value.abs() >= 1.0 && value.abs() < 99.95 { trimmed(&format!("{value:.1}")) } else { number(value) }
}

fn trimmed(text: &str) -> String {
    text.strip_suffix(".00").or_else(|| text.strip_suffix(".0")).unwrap_or(text).to_owned()
}

/// Whole milliseconds from 10 on, as a sentence wants them.
#[must_use]
pub fn spoken_ms(value: f64) -> String {
    if value.is_finite() && (10.0..1e7).contains(&value) {
        format!("{value:.0} ms")
    } else {
        format!("{} ms", number(value))
    }
}

/// A time on an axis: 100 us, 10 ms, 1 s.
#[must_use]
pub fn axis_ms(value: f64) -> String {
    if value >= 1000.0 {
        format!("{} s", number(value / 1000.0))
    } else if value < 1.0 && value > 0.0 {
        format!("{} µs", number(value * 1000.0))
    } else {
        format!("{} ms", number(value))
    }
}

/// `1.6x`.
#[must_use]
pub fn factor(value: f64) -> String {
    format!("{}x", short(value))
}

/// `98 %`.
#[must_use]
pub fn percent(value: f64) -> String {
    if value.abs() >= 10.0 && value.abs() < 1e6 { format!("{value:.0} %") } else { format!("{} %", short(value)) }
}

/// `70.4 %`: for shares, where a tenth counts.
#[must_use]
pub fn percent_exact(value: f64) -> String {
    if value.is_finite() && value.abs() < 1e6 { format!("{value:.1} %") } else { format!("{} %", number(value)) }
}

/// `46 ns`.
#[must_use]
pub fn nanoseconds(value: f64) -> String {
    format!("{value:.0} ns")
}

/// `118 us`.
#[must_use]
pub fn microseconds(value: f64) -> String {
    format!("{} us", number(value))
}

/// `24 MB/s`.
#[must_use]
pub fn rate(value: f64) -> String {
    format!("{} MB/s", number(value / 1e6))
}

/// `(98-107)`, with what `one` makes of the ends; nothing when they read the same.
#[must_use]
pub fn ends(spread: Spread, one: fn(f64) -> String) -> Option<String> {
    let (low, high) = (one(spread.min), one(spread.max));
    let bare = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).to_owned();
    (low != high).then(|| format!("({}-{})", bare(&low), bare(&high)))
}

/// `102x (98-107)`.
#[must_use]
pub fn with_ends(spread: Spread, one: fn(f64) -> String) -> String {
    match ends(spread, one) {
        Some(ends) => format!("{} {ends}", one(spread.median)),
        None => one(spread.median),
    }
}

/// `1 round`, `3 rounds`.
#[must_use]
pub fn rounds(n: usize) -> String {
    counted(n, "round")
}

/// A count with its noun.
#[must_use]
pub fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Bytes as GiB or MiB.
#[must_use]
pub fn bytes(value: u64) -> String {
    bytes_of(value as f64)
}

/// The same of a figure.
#[must_use]
pub fn bytes_of(value: f64) -> String {
    if value >= 1_073_741_824.0 {
        format!("{} GiB", number(value / 1_073_741_824.0))
    } else {
        format!("{} MiB", number(value / 1_048_576.0))
    }
}

/// Sentences in lines of at most `width` characters; words that are longer are cut.
#[must_use]
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    wrap_by(text, |line| line.chars().count() <= width)
}

/// Like [`wrap`], for any measure of what fits.
#[must_use]
pub fn wrap_by(text: &str, fits: impl Fn(&str) -> bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let longer = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
        if fits(&longer) {
            line = longer;
            continue;
        }
        if !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        for letter in word.chars() {
            line.push(letter);
            if !fits(&line) && line.chars().count() > 1 {
                line.pop();
                lines.push(std::mem::take(&mut line));
                line.push(letter);
            }
        }
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// Text for XML and HTML, in elements and in attributes. Characters that XML 1.0 forbids become a space.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => safe.push(' '),
            other if other.is_control() => safe.push(' '),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_no_noise() {
        let all = [0.0, 0.0123, 0.5, 1.0, 1.604, 17.25, 99.96, 102.3, 1759.0, 4e9, f64::NAN, f64::INFINITY, -2.5];
        let got: Vec<String> = all.into_iter().map(number).collect();
        assert_eq!(got, ["0", "0.0123", "0.50", "1", "1.60", "17.2", "100", "102", "1759", "4.0e9", "-", "-", "-2.50"]);
        assert_eq!((factor(1.604), factor(1.0), factor(102.3)), ("1.6x".into(), "1x".into(), "102x".into()));
    }

    #[test]
    fn spreads_show_their_ends_only_when_they_differ() {
        assert_eq!(with_ends(Spread { min: 1.0, median: 2.0, max: 3.04 }, factor), "2x (1-3)");
        assert_eq!(with_ends(Spread { min: 2.0, median: 2.0, max: 2.0 }, percent), "2 %");
    }

    #[test]
    fn long_words_are_cut_and_nothing_is_lost() {
        assert_eq!(wrap("ab abcdefg x", 3), ["ab", "abc", "def", "g x"]);
        assert_eq!(wrap("", 3), Vec::<String>::new());
    }

    #[test]
    fn escaping_leaves_no_markup() {
        assert_eq!(escape("<a b=\"c\">&'\u{1}"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39; ");
    }
}
