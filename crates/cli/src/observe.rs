//! The source of observations, and the formatting of their figures, for `top` and `blame`.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use bulkhead_api::client::Client;
use bulkhead_api::wire::Observation;
use bulkhead_core::error::{Code, Fault};
use bulkhead_engine::observe::{Observatory, Observe as _};
use bulkhead_measure::report::text::three_digits;
use bulkhead_sys::roots::Roots;

use crate::block_on;
use crate::output::Output;

/// Interval between requests of a long watch, which keep the observation running ([`bulkhead_engine::observe::LEASE`]).
const RENEW: Duration = Duration::from_secs(60);

/// The daemon, or without one this process itself: finding a slow container needs no setup.
pub(crate) enum Source {
    Daemon(Client),
    Here(Box<Observatory>),
}

impl Source {
    /// The daemon at this socket, or this process if none is running.
    ///
    /// # Errors
    /// `PermissionDenied` for the daemon's socket, or without a daemon if this process is not root's.
    pub(crate) fn open(socket: PathBuf, output: &Output) -> Result<Self, Fault> {
        let client = Client::new(socket);
        match block_on(client.healthz()) {
            Err(fault) if fault.code == Code::Unavailable => {
                if !rustix::process::geteuid().is_root() {
                    return Err(Fault::new(
                        Code::PermissionDenied,
                        "observation",
                        "no daemon is running, and without one this needs root",
                    )
                    .hint("run it with sudo"));
                }
                if !output.is_json() {
                    output
                        .say("no daemon is running: observing from this process, with BPF programs that are unloaded when it ends");
                }
                Ok(Self::Here(Box::new(Observatory::new(Roots::host()))))
            }
            Err(fault) => Err(fault),
            Ok(_) => Ok(Self::Daemon(client)),
        }
    }

    /// Checks that totals are available: an observation by this process begins with the first request.
    ///
    /// # Errors
    /// `InvalidArgument` without a daemon.
    pub(crate) fn has_past(&self, option: &str) -> Result<(), Fault> {
        match self {
            Self::Daemon(_) => Ok(()),
            Self::Here(_) => Err(Fault::new(
                Code::InvalidArgument,
                option,
                "past observations are available only from the daemon, which is not running",
            )
            .hint(format!("start it (`bulkhead daemon`), or omit `{option}`"))),
        }
    }

    /// The observation so far, with the longest waits of the last `waits`.
    ///
    /// # Errors
    /// Those of the daemon, or of this kernel.
    pub(crate) fn observe(&self, waits: Duration) -> Result<Observation, Fault> {
        match self {
            Self::Daemon(client) => block_on(client.observation(waits)),
            Self::Here(observatory) => observatory.observe(waits),
        }
    }

    /// The observation of the next `seconds`, optionally with the longest waits.
    ///
    /// # Errors
    /// As [`Source::observe`].
    #[expect(clippy::disallowed_methods, reason = "the user requested to watch for this time")]
    pub(crate) fn watch(&self, seconds: f64, waits: bool) -> Result<Observation, Fault> {
        let before = self.observe(Duration::ZERO)?;
        let began = Instant::now();
        let mut left = Duration::from_secs_f64(seconds);
        while left > RENEW {
            thread::sleep(RENEW);
            left -= RENEW;
            self.observe(Duration::ZERO)?;
        }
        thread::sleep(left);
        let waits = if waits { began.elapsed() } else { Duration::ZERO };
        Ok(self.observe(waits)?.since(&before))
    }
}

/// Bytes per second, in IEC units with three digits.
pub(crate) fn rate(bytes: u64, seconds: f64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut value = bytes as f64 / seconds.max(1e-9);
    if bytes == 0 {
        return "-".to_owned();
    }
    for unit in ["B/s", "KiB/s", "MiB/s", "GiB/s"] {
        if value < 1000.0 {
            return format!("{} {unit}", three_digits(value));
        }
        value /= 1024.0;
    }
    format!("{} TiB/s", three_digits(value))
}

/// A latency in microseconds, with its unit.
pub(crate) fn latency(us: Option<u64>) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    match us.map(|us| us as f64) {
        None => "-".to_owned(),
        Some(us) if us < 1000.0 => format!("{us:.0} us"),
        Some(us) if us < 1e6 => format!("{} ms", three_digits(us / 1e3)),
        Some(us) => format!("{} s", three_digits(us / 1e6)),
    }
}

/// Waiting time in seconds, formatted.
pub(crate) fn waited(seconds: f64) -> String {
    if seconds < 0.0005 { "-".to_owned() } else { format!("{seconds:.3} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        assert_eq!([rate(0, 1.0), rate(500, 1.0), rate(3 << 20, 2.0)], ["-", "500 B/s", "1.50 MiB/s"]);
        assert_eq!([rate(1023, 1.0), rate(u64::MAX, 1.0)], ["1.00 KiB/s", "16777216 TiB/s"]);
        assert_eq!(
            [latency(None), latency(Some(15)), latency(Some(1999)), latency(Some(12_345_678))],
            ["-", "15 us", "2.00 ms", "12.3 s"]
        );
        assert_eq!([waited(0.0001), waited(1.25)], ["-", "1.250 s"]);
    }
}
