//! Clocks of a guest: the host's clock, or virtual time.
//!
//! [`Clock::Virtual`] counts instructions (QEMU's `-icount`): figures are the same on any host under any load, and idle
//! time costs nothing. The host is outside of that time: while the guest waits for the host, for a disk above all, its
//! clock leaps. So the disks of such a machine are served in the guest ([`crate::disk`]), and the agent keeps the guest
//! busy between two requests of the host ([`crate::agent`]).

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;

/// An instruction takes 2 to the power of this nanoseconds. One host thread emulates all processors, so it counts the
/// instructions of all.
const ICOUNT_SHIFT: u32 = 0;

/// Clock of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// The host's clock, with KVM where that works: for races, because processors run in parallel, and for kills at a
    /// random moment.
    Wall,
    /// The number of instructions executed by all processors of the guest together, always emulated.
    Virtual,
}

impl Clock {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Wall, Self::Virtual];

    /// The name used on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Wall => "wall",
            Self::Virtual => "virtual",
        }
    }

    /// Instructions per second of guest time, of all processors together; `None` where that depends on the host.
    #[must_use]
    pub fn instructions_per_second(self) -> Option<u64> {
        match self {
            Self::Wall => None,
            Self::Virtual => Some(1_000_000_000 >> ICOUNT_SHIFT),
        }
    }

    /// The limit on the host's clock for an operation of a machine. A machine in virtual time is emulated next to other
    /// machines and compilers, so the wall time of an operation depends on its share of the host, and the limit only
    /// ends operations that hang.
    pub(crate) fn patience(self, limit: Duration) -> Duration {
        match self {
            Self::Wall => limit,
            Self::Virtual => limit * 4,
        }
    }

    /// Options for QEMU.
    pub(crate) fn qemu_options(self) -> Vec<String> {
        match self {
            Self::Wall => Vec::new(),
            // sleep=off: when all processors are idle, the clock skips to the next timer at once.
            Self::Virtual => vec!["-icount".to_owned(), format!("shift={ICOUNT_SHIFT},sleep=off")],
        }
    }
}

impl std::fmt::Display for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Clock {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|clock| clock.name() == text) {
            Some(clock) => Ok(clock),
            None => bail!("unknown clock {text:?}: choose wall or virtual"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_read_by_name() {
        assert_eq!("virtual".parse::<Clock>().unwrap(), Clock::Virtual);
        assert!("sun".parse::<Clock>().unwrap_err().to_string().contains("sun"));
    }

    #[test]
    fn an_instruction_takes_a_nanosecond() {
        assert_eq!(Clock::Virtual.instructions_per_second(), Some(1_000_000_000));
        assert!(Clock::Virtual.qemu_options().contains(&"shift=0,sleep=off".to_owned()));
        assert!(Clock::Wall.qemu_options().is_empty());
    }
}
