//! Units: bytes, device numbers, shares, with parsing and printing for people.
//!
//! A number that crosses a module boundary is one of these types.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A size or an amount of data in bytes.
///
/// Reads `4096`, `64K`, `10MiB`, `1.5G` (K, M, G, T and KiB … TiB all mean powers of 1024, as `lvm` and `mkfs` read them)
/// and prints IEC (`1.5 GiB`). On the wire it is a plain number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// Why a text is not a valid size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseBytesError {
    /// It has no digits.
    #[error("{0:?} is not a size: write a number with an optional unit, for example 10G or 512MiB")]
    NotANumber(String),
    /// The suffix is unknown.
    #[error("{0:?} has an unknown unit: use K, M, G, T or KiB, MiB, GiB, TiB")]
    UnknownUnit(String),
    /// The value is negative, or larger than 2^63 - 1, the largest file offset of the kernel (`loff_t`).
    #[error("{0:?} is out of range: a size is between 0 and 8 EiB - 1")]
    OutOfRange(String),
}

impl Bytes {
    /// One KiB.
    pub const KIB: u64 = 1 << 10;
    /// One MiB.
    pub const MIB: u64 = 1 << 20;
    /// One GiB.
    pub const GIB: u64 = 1 << 30;
    /// One TiB.
    pub const TIB: u64 = 1 << 40;

    /// `n` MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n * Self::MIB)
    }

    /// Rounds up to a multiple of `unit`; `None` on overflow or for a unit of zero.
    #[must_use]
    pub fn round_up(self, unit: Bytes) -> Option<Self> {
        self.0.checked_next_multiple_of(unit.0).map(Self)
    }

    /// Number of 512-byte sectors, the unit of `/sys/block/*/size` and of loop's `lo_sizelimit`; rounds down.
    #[must_use]
    pub const fn sectors(self) -> u64 {
        self.0 / 512
    }
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        if trimmed.starts_with('-') {
            return Err(ParseBytesError::OutOfRange(text.to_owned()));
        }
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => Self::KIB,
            "m" | "mib" => Self::MIB,
            "g" | "gib" => Self::GIB,
            "t" | "tib" => Self::TIB,
            _ => return Err(ParseBytesError::UnknownUnit(text.to_owned())),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.len() > 9 || fraction.contains('.') {
            return Err(ParseBytesError::NotANumber(text.to_owned()));
        }
        let out_of_range = || ParseBytesError::OutOfRange(text.to_owned());
        let whole: u64 = whole.parse().map_err(|_| out_of_range())?;
        let mut bytes = u128::from(whole) * u128::from(scale);
        if !fraction.is_empty() {
            let digits: u64 = fraction.parse().map_err(|_| out_of_range())?;
            let denominator = 10u128.pow(u32::try_from(fraction.len()).map_err(|_| out_of_range())?);
            bytes += u128::from(digits) * u128::from(scale) / denominator;
        }
        match u64::try_from(bytes) {
            Ok(n) if i64::try_from(n).is_ok() => Ok(Self(n)),
            _ => Err(out_of_range()),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            n if n >= Self::TIB => (Self::TIB, "TiB"),
            n if n >= Self::GIB => (Self::GIB, "GiB"),
            n if n >= Self::MIB => (Self::MIB, "MiB"),
            n if n >= Self::KIB => (Self::KIB, "KiB"),
            n => return f.pad(&format!("{n} B")),
        };
        let tenths = (u128::from(self.0) * 10 + u128::from(unit) / 2) / u128::from(unit);
        let text = if tenths % 10 == 0 {
            format!("{} {name}", tenths / 10)
        } else {
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        };
        f.pad(&text)
    }
}

/// A block device's number, `major:minor` (kernel `dev_t`). `0:0` is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct DevNo {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl DevNo {
    /// From its two parts.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for DevNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl From<DevNo> for String {
    fn from(dev: DevNo) -> Self {
        dev.to_string()
    }
}

impl TryFrom<String> for DevNo {
    type Error = ParseDevNoError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// An invalid device number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a device number of the form major:minor")]
pub struct ParseDevNoError(pub String);

impl FromStr for DevNo {
    type Err = ParseDevNoError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseDevNoError(text.to_owned());
        let (major, minor) = text.trim().split_once(':').ok_or_else(error)?;
        Ok(Self { major: major.parse().map_err(|_| error())?, minor: minor.parse().map_err(|_| error())? })
    }
}

/// A tenant's share: its weight for I/O under contention, 1 to 10000, default 100 (kernel `CGROUP_WEIGHT_*`).
///
/// Written unchanged to `io.weight`; divided by ten for `io.bfq.weight`, which accepts at most 1000 (kernel
/// `BFQ_MAX_WEIGHT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(try_from = "u32", into = "u32")]
#[cfg_attr(feature = "schema", schema(value_type = u32, minimum = 1, maximum = 10000))]
pub struct Share(u32);

/// An invalid share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("share {0} is out of range: a share is a whole number from 1 to 10000 (100 is the default)")]
pub struct ShareError(pub String);

impl Share {
    /// The default weight of a cgroup (kernel `CGROUP_WEIGHT_DFL`).
    pub const DEFAULT: Share = Share(100);

    /// The weight for `io.weight`.
    #[must_use]
    pub const fn weight(self) -> u32 {
        self.0
    }

    /// The weight for `io.bfq.weight`, 1 to 1000: the share divided by ten, so that ratios are kept (rounded up).
    #[must_use]
    pub const fn bfq_weight(self) -> u32 {
        self.0.div_ceil(10)
    }
}

impl Default for Share {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl TryFrom<u32> for Share {
    type Error = ShareError;

    fn try_from(n: u32) -> Result<Self, Self::Error> {
        if (1..=10_000).contains(&n) { Ok(Self(n)) } else { Err(ShareError(n.to_string())) }
    }
}

impl From<Share> for u32 {
    fn from(share: Share) -> u32 {
        share.0
    }
}

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let n: u32 = text.trim().parse().map_err(|_| ShareError(text.to_owned()))?;
        Self::try_from(n).map_err(|_| ShareError(text.to_owned()))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A latency in microseconds, between 1 us and an hour. Reads `800us`, `20ms` and `1.5s`, and prints the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency(u64);

/// An invalid latency.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a time in us, ms or s, between 1us and an hour, for example 20ms")]
pub struct LatencyError(pub String);

impl Latency {
    /// Of so many microseconds, at least one and at most an hour's.
    #[must_use]
    pub fn from_us(us: u64) -> Self {
        Self(us.clamp(1, 3_600_000_000))
    }

    /// In microseconds.
    #[must_use]
    pub const fn us(self) -> u64 {
        self.0
    }
}

impl FromStr for Latency {
    type Err = LatencyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || LatencyError(text.to_owned());
        let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(error)?);
        let factor = match unit {
            "us" => 1.0,
            "ms" => 1e3,
            "s" => 1e6,
            _ => return Err(error()),
        };
        let us = number.trim().parse::<f64>().map_err(|_| error())? * factor;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the value is in range")]
        (1.0..=3.6e9).contains(&us).then(|| Self(us.round() as u64)).ok_or_else(error)
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            us if us.is_multiple_of(1_000_000) => write!(f, "{}s", us / 1_000_000),
            us if us.is_multiple_of(1_000) => write!(f, "{}ms", us / 1_000),
            us => write!(f, "{us}us"),
        }
    }
}

/// Nanoseconds as seconds.
#[expect(clippy::cast_precision_loss, reason = "2^52 ns are 52 days of waiting, and only digits below 1 ns are lost")]
#[must_use]
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64KiB", 65536),
            ("10 MiB", 10 << 20),
            ("1.5g", 3 << 29),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn latencies_are_read_as_people_write_them() {
        for (text, us, printed) in [
            ("20ms", 20_000, "20ms"),
            ("1.5 s", 1_500_000, "1500ms"),
            ("0.0015ms", 2, "2us"),
            ("3600s", 3_600_000_000, "3600s"),
        ] {
            let read: Latency = text.parse().unwrap();
            assert_eq!((read.us(), read.to_string().as_str()), (us, printed), "{text}");
            assert_eq!(printed.parse(), Ok(read));
        }
        for bad in ["", "20", "ms", "0ms", "-1s", "3601s", "20min", "1e3ms", "nan", "infs"] {
            assert_eq!(bad.parse::<Latency>(), Err(LatencyError(bad.to_owned())));
        }
        assert_eq!((Latency::from_us(0).us(), Latency::from_us(u64::MAX).us()), (1, 3_600_000_000));
    }

    #[test]
    fn bad_sizes_say_what_is_wrong() {
        for (text, part) in [
            ("", "not a size"),
            ("G", "not a size"),
            ("1..5G", "not a size"),
            ("-1G", "out of range"),
            ("9999999999T", "out of range"),
            ("8388608T", "out of range"),
            ("1PB", "unknown unit"),
            ("ten", "unknown unit"),
        ] {
            let error = text.parse::<Bytes>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn shares_keep_their_range() {
        assert_eq!("70".parse::<Share>().map(Share::weight), Ok(70));
        assert_eq!(Share(5).bfq_weight(), 1);
        assert_eq!(Share(10_000).bfq_weight(), 1000);
        for bad in ["0", "10001", "-3", "NaN", "1.5", ""] {
            assert!(bad.parse::<Share>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn printed_sizes_stay_within_five_percent(n in 0u64..(1 << 50)) {
            let shown: Bytes = Bytes(n).to_string().parse().expect("printed sizes can be read");
            prop_assert!(shown.0.abs_diff(n) <= n / 20);
        }

        #[test]
        fn no_text_makes_parsing_panic(text in any::<String>()) {
            let _ = text.parse::<Bytes>();
            let _ = text.parse::<DevNo>();
            let _ = text.parse::<Share>();
        }

        #[test]
        fn device_numbers_round_trip(major in any::<u32>(), minor in any::<u32>()) {
            let dev = DevNo::new(major, minor);
            prop_assert_eq!(dev.to_string().parse(), Ok(dev));
        }
    }
}
