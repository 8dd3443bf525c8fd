//! The engine's log of a container: lines in the format that it asks for, as runc writes them.
//!
//! containerd and Podman read this file when the creation of a container has failed, and show its last error. A warning stays there for whoever
//! looks for it, as long as the engine keeps the container's directory.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// `time=… level=… msg=…`
    #[default]
    Text,
    /// An object a line.
    Json,
}

/// Where to report to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The file; standard error without one.
    pub file: Option<PathBuf>,
    /// Its format.
    pub format: Format,
}

/// The level of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The container is created, but not as it could be.
    Warning,
    /// The container is not created.
    Error,
}

impl Log {
    /// Appends a line.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, level: Level, message: &str) -> io::Result<()> {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let line = line(self.format, seconds, level, message);
        match &self.file {
            Some(path) => {
                let mut file = OpenOptions::new().append(true).create(true).mode(0o644).open(path)?;
                file.write_all(line.as_bytes())
            }
            None => io::stderr().write_all(line.as_bytes()),
        }
    }
}

/// The line of a message at a time, in seconds since the epoch.
fn line(format: Format, seconds: u64, level: Level, message: &str) -> String {
    let (time, level) = (rfc3339(seconds), if level == Level::Error { "error" } else { "warning" });
    let message = format!("bulkhead-runtime: {message}");
    match format {
        Format::Json => {
            let fields = serde_json::json!({ "level": level, "msg": message, "time": time });
            format!("{fields}\n")
        }
        Format::Text => format!("time=\"{time}\" level={level} msg={message:?}\n"),
    }
}

/// A time of the years 1970 to 9999 in UTC (RFC 3339).
fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days from 1 March of year 0, in eras of 400 years; years begin in March, so that a leap day is the last of its year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day + 2) / 153;
    let (month, day) = ((from_march + 2) % 12 + 1, day - (153 * from_march + 2) / 5 + 1);
    let year = 400 * era + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, time) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), time);
        }
    }

    #[test]
    fn a_message_is_one_line_in_each_format() {
        let message = "a \"b\"\nc";
        assert_eq!(
            line(Format::Text, 0, Level::Warning, message),
            "time=\"1970-01-01T00:00:00Z\" level=warning msg=\"bulkhead-runtime: a \\\"b\\\"\\nc\"\n"
        );
        let json = line(Format::Json, 0, Level::Error, message);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((value["level"].as_str(), json.matches('\n').count()), (Some("error"), 1));
        assert_eq!(value["msg"], format!("bulkhead-runtime: {message}"));
    }
}
