//! The root cgroup's `io.cost.qos` and `io.cost.model`: the io.cost controller of one device.
//!
//! Owns: the format of both files (kernel `block/blk-iocost.c`), reading them, and writing them with verification by reading back. Does
//! not: choose a model or latency targets (calibration, in `measure`), or set weights (see `cgroup`).

use std::fmt;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

use bulkhead_core::units::DevNo;

use crate::roots::Roots;

/// io.cost could not be read or set.
#[derive(Debug, thiserror::Error)]
pub enum IocostError {
    /// The kernel has no io.cost (`CONFIG_BLK_CGROUP_IOCOST`), or the io controller is not on cgroup v2.
    #[error("{path} does not exist: the kernel has no io.cost controller on cgroup v2")]
    Unsupported {
        /// The missing file.
        path: PathBuf,
    },
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// The kernel refused the line: `EOPNOTSUPP` for a device without a request queue (most dm devices), `ENODEV` for a
    /// partition, `EINVAL` for a value out of range.
    #[error("cannot write {line:?} to {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The line.
        line: String,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// A line of the file is malformed.
    #[error("{path}: malformed line {line:?}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line.
        line: String,
    },
    /// The kernel accepted the write, but reports another value.
    #[error("{path}: wrote {wanted:?}, but the kernel reports {found:?}")]
    NotApplied {
        /// The file.
        path: PathBuf,
        /// The line written.
        wanted: String,
        /// The line read back; empty if the device has none.
        found: String,
    },
}

/// A percentage with two decimals, as io.cost prints it (`95.00`); stored in hundredths of a percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(u32);

impl Percent {
    /// Smallest vrate: 1.00 % (kernel `VRATE_MIN_PPM`).
    pub const VRATE_MIN: Percent = Percent(100);
    /// Largest vrate: 10000.00 % (kernel `VRATE_MAX_PPM`).
    pub const VRATE_MAX: Percent = Percent(1_000_000);

    /// From hundredths of a percent: 9500 is `95.00`.
    #[must_use]
    pub const fn from_hundredths(n: u32) -> Self {
        Self(n)
    }

    /// From whole percents; saturates.
    #[must_use]
    pub const fn whole(n: u32) -> Self {
        Self(n.saturating_mul(100))
    }

    /// In hundredths of a percent.
    #[must_use]
    pub const fn hundredths(self) -> u32 {
        self.0
    }

    /// As a fraction: `95.00` is 0.95.
    #[must_use]
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / 10_000.0
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// The text is not a percentage with at most two decimals.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a percentage with at most two decimals")]
pub struct ParsePercentError(pub String);

impl FromStr for Percent {
    type Err = ParsePercentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParsePercentError(text.to_owned());
        let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        if whole.is_empty() || decimals.len() > 2 || !digits(whole) || !digits(decimals) {
            return Err(error());
        }
        let whole: u32 = whole.parse().map_err(|_| error())?;
        let decimals: u32 = format!("{decimals:0<2}").parse().map_err(|_| error())?;
        whole.checked_mul(100).and_then(|n| n.checked_add(decimals)).map(Self).ok_or_else(error)
    }
}

/// Source of the parameters of a line (`ctrl=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ctrl {
    /// The kernel's built-in table (`autop` in `block/blk-iocost.c`), by kind of device; they may change at any time.
    Auto,
    /// Set by the administrator.
    User,
}

impl Ctrl {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "user" => Some(Self::User),
            _ => None,
        }
    }
}

impl fmt::Display for Ctrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::User => "user",
        })
    }
}

/// One device's line of `io.cost.qos` (kernel `ioc_qos_prfill`, `ioc_qos_write`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QosLine {
    /// Whether the controller is enabled on this device (`enable=`).
    pub enable: bool,
    /// Source of the parameters.
    pub ctrl: Ctrl,
    /// Percentile of read latencies, 0 to 100 %; 0 disables the read latency target.
    pub rpct: Percent,
    /// Read latency target in microseconds.
    pub rlat_us: u64,
    /// Percentile of write latencies, 0 to 100 %; 0 disables the write latency target.
    pub wpct: Percent,
    /// Write latency target in microseconds.
    pub wlat_us: u64,
    /// Lower bound of vrate, [`Percent::VRATE_MIN`] to [`Percent::VRATE_MAX`].
    pub min_pct: Percent,
    /// Upper bound of vrate, not less than `min_pct`.
    pub max_pct: Percent,
}

/// One device's line of `io.cost.model`, model `linear` (kernel `ioc_cost_model_prfill`, `ioc_cost_model_write`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelLine {
    /// Source of the coefficients.
    pub ctrl: Ctrl,
    /// Sequential read throughput in bytes per second.
    pub rbps: u64,
    /// Sequential 4 KiB reads per second.
    pub rseqiops: u64,
    /// Random 4 KiB reads per second.
    pub rrandiops: u64,
    /// Sequential write throughput in bytes per second.
    pub wbps: u64,
    /// Sequential 4 KiB writes per second.
    pub wseqiops: u64,
    /// Random 4 KiB writes per second.
    pub wrandiops: u64,
}

impl QosLine {
    /// The line to write for `dev`.
    #[must_use]
    pub fn line(&self, dev: DevNo) -> String {
        format!("{dev} {}", self.parameters())
    }

    /// The line without its device. With [`Ctrl::Auto`] it has only `enable`, since any parameter implies `ctrl=user`.
    #[must_use]
    pub fn parameters(&self) -> String {
        let enable = u8::from(self.enable);
        match self.ctrl {
            Ctrl::Auto => format!("enable={enable} ctrl=auto"),
            Ctrl::User => format!(
                "enable={enable} ctrl=user rpct={} rlat={} wpct={} wlat={} min={} max={}",
                self.rpct, self.rlat_us, self.wpct, self.wlat_us, self.min_pct, self.max_pct
            ),
        }
    }

    /// Parses a line with its device number; `None` if it is not in the kernel's format.
    #[must_use]
    pub fn parse(line: &str) -> Option<(DevNo, Self)> {
        let (dev, fields) = split_line(line)?;
        let ctrl = Ctrl::parse(field(&fields, "ctrl")?)?;
        // Those that `parameters` omits.
        let absent = (ctrl == Ctrl::Auto).then_some("0");
        let pct = |key| field(&fields, key).or(absent)?.parse::<Percent>().ok();
        let us = |key| field(&fields, key).or(absent)?.parse::<u64>().ok();
        let enable = match field(&fields, "enable")? {
            "0" => false,
            "1" => true,
            _ => return None,
        };
        let line = Self {
            enable,
            ctrl,
            rpct: pct("rpct")?,
            rlat_us: us("rlat")?,
            wpct: pct("wpct")?,
            wlat_us: us("wlat")?,
            min_pct: pct("min")?,
            max_pct: pct("max")?,
        };
        Some((dev, line))
    }

    /// Whether `self`, as read back, has the values of `wanted`.
    fn satisfies(&self, wanted: &Self) -> bool {
        match wanted.ctrl {
            Ctrl::User => self == wanted,
            Ctrl::Auto => self.ctrl == Ctrl::Auto && self.enable == wanted.enable,
        }
    }
}

impl ModelLine {
    /// The line to write for `dev`.
    #[must_use]
    pub fn line(&self, dev: DevNo) -> String {
        format!("{dev} {}", self.parameters())
    }

    /// The line without its device. With [`Ctrl::Auto`] it has no coefficients, since any coefficient implies `ctrl=user`.
    #[must_use]
    pub fn parameters(&self) -> String {
        match self.ctrl {
            Ctrl::Auto => "ctrl=auto".to_owned(),
            Ctrl::User => format!(
                "ctrl=user model=linear rbps={} rseqiops={} rrandiops={} wbps={} wseqiops={} wrandiops={}",
                self.rbps, self.rseqiops, self.rrandiops, self.wbps, self.wseqiops, self.wrandiops
            ),
        }
    }

    /// Parses a line with its device number; `None` if it is not in the kernel's format or not a linear model.
    #[must_use]
    pub fn parse(line: &str) -> Option<(DevNo, Self)> {
        let (dev, fields) = split_line(line)?;
        let ctrl = Ctrl::parse(field(&fields, "ctrl")?)?;
        // Those that `parameters` omits.
        let absent = |value| (ctrl == Ctrl::Auto).then_some(value);
        if field(&fields, "model").or(absent("linear"))? != "linear" {
            return None;
        }
        let number = |key| field(&fields, key).or(absent("0"))?.parse::<u64>().ok();
        let line = Self {
            ctrl,
            rbps: number("rbps")?,
            rseqiops: number("rseqiops")?,
            rrandiops: number("rrandiops")?,
            wbps: number("wbps")?,
            wseqiops: number("wseqiops")?,
            wrandiops: number("wrandiops")?,
        };
        Some((dev, line))
    }

    fn satisfies(&self, wanted: &Self) -> bool {
        match wanted.ctrl {
            Ctrl::User => self == wanted,
            Ctrl::Auto => self.ctrl == Ctrl::Auto,
        }
    }
}

/// io.cost's parameters of a device; `None` if none was ever written for it (the kernel then has no `struct ioc`).
///
/// # Errors
/// [`IocostError::Unsupported`] without io.cost; [`IocostError::Read`] and [`IocostError::Malformed`] for its files.
pub fn read(roots: &Roots, dev: DevNo) -> Result<Option<(QosLine, ModelLine)>, IocostError> {
    Ok(read_qos(roots, dev)?.zip(read_model(roots, dev)?))
}

/// Sets a device's `io.cost.qos` line and reads it back; returns the old line.
///
/// # Errors
/// [`IocostError::Write`] with the kernel's reason, [`IocostError::NotApplied`] if the kernel reports another value (it silently clamps
/// vrate bounds), and the errors of [`read`].
pub fn write_qos(roots: &Roots, dev: DevNo, wanted: &QosLine) -> Result<Option<QosLine>, IocostError> {
    let old = read_qos(roots, dev)?;
    let (path, line) = (qos_path(roots), wanted.line(dev));
    write_line(&path, &line)?;
    let now = read_qos(roots, dev)?;
    if now.is_some_and(|found| found.satisfies(wanted)) {
        return Ok(old);
    }
    // The user form has all values, also if the kernel fell back to auto.
    let found = now.map(|found| format!("{} ctrl was {}", QosLine { ctrl: Ctrl::User, ..found }.line(dev), found.ctrl));
    Err(IocostError::NotApplied { path, wanted: line, found: found.unwrap_or_default() })
}

/// Sets a device's `io.cost.model` line and reads it back; returns the old line.
///
/// # Errors
/// As [`write_qos`].
pub fn write_model(roots: &Roots, dev: DevNo, wanted: &ModelLine) -> Result<Option<ModelLine>, IocostError> {
    let old = read_model(roots, dev)?;
    let (path, line) = (model_path(roots), wanted.line(dev));
    write_line(&path, &line)?;
    let now = read_model(roots, dev)?;
    if now.is_some_and(|found| found.satisfies(wanted)) {
        return Ok(old);
    }
    let found =
        now.map(|found| format!("{} ctrl was {}", ModelLine { ctrl: Ctrl::User, ..found }.line(dev), found.ctrl));
    Err(IocostError::NotApplied { path, wanted: line, found: found.unwrap_or_default() })
}

/// Whether the kernel has io.cost, on cgroup v2.
#[must_use]
pub fn is_supported(roots: &Roots) -> bool {
    qos_path(roots).exists()
}

/// Whether io.cost is enabled on the device; false on a kernel without io.cost.
///
/// # Errors
/// [`IocostError::Read`] and [`IocostError::Malformed`].
pub fn is_active(roots: &Roots, dev: DevNo) -> Result<bool, IocostError> {
    match read_qos(roots, dev) {
        Ok(line) => Ok(line.is_some_and(|line| line.enable)),
        Err(IocostError::Unsupported { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Disables io.cost on the device and keeps its parameters; returns the old line.
///
/// Does nothing if the device has no line, if it is disabled already, or if the kernel has no io.cost.
///
/// # Errors
/// As [`write_qos`].
pub fn disable(roots: &Roots, dev: DevNo) -> Result<Option<QosLine>, IocostError> {
    match read_qos(roots, dev) {
        Ok(Some(old)) if old.enable => write_qos(roots, dev, &QosLine { enable: false, ..old }),
        Err(IocostError::Unsupported { .. }) => Ok(None),
        other => other,
    }
}

fn qos_path(roots: &Roots) -> PathBuf {
    roots.cgroup.join("io.cost.qos")
}

fn model_path(roots: &Roots) -> PathBuf {
    roots.cgroup.join("io.cost.model")
}

fn read_qos(roots: &Roots, dev: DevNo) -> Result<Option<QosLine>, IocostError> {
    read_line(qos_path(roots), dev, QosLine::parse)
}

fn read_model(roots: &Roots, dev: DevNo) -> Result<Option<ModelLine>, IocostError> {
    read_line(model_path(roots), dev, ModelLine::parse)
}

fn read_line<T>(path: PathBuf, dev: DevNo, parse: fn(&str) -> Option<(DevNo, T)>) -> Result<Option<T>, IocostError> {
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Err(IocostError::Unsupported { path }),
        Err(source) => return Err(IocostError::Read { path, source }),
    };
    // A malformed line of another device is ignored.
    let Some(line) = text.lines().find(|line| line.split(' ').next().and_then(|d| d.parse().ok()) == Some(dev)) else {
        return Ok(None);
    };
    match parse(line) {
        Some((_, parsed)) => Ok(Some(parsed)),
        None => Err(IocostError::Malformed { path, line: line.to_owned() }),
    }
}

fn write_line(path: &PathBuf, line: &str) -> Result<(), IocostError> {
    // One write(2) of the whole line, without O_CREAT. kernfs ignores O_TRUNC; the regular file of a fake kernel needs it.
    let result = fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)
        .and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    result.map_err(|source| IocostError::Write { path: path.clone(), line: line.to_owned(), source })
}

fn split_line(line: &str) -> Option<(DevNo, Vec<(&str, &str)>)> {
    let mut words = line.split_whitespace();
    let dev = words.next()?.parse().ok()?;
    Some((dev, words.filter_map(|word| word.split_once('=')).collect()))
}

fn field<'a>(fields: &[(&str, &'a str)], key: &str) -> Option<&'a str> {
    fields.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests;
