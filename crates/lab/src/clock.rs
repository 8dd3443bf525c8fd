//! What a guest's clock runs by.
//!
//! [`Clock::Virtual`] counts instructions (QEMU's `-icount`): figures are the same on any host and beside anything, and idle time
//! costs nothing. The host is outside of that time: whatever the guest waits for from there, disks above all, would make the
//! clock leap. So the disks of such a machine are served in the guest ([`crate::disk`]), and the agent keeps the guest busy while
//! the host thinks ([`crate::agent`]).

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;

/// Nanoseconds of an instruction: 2 to the power of this. One thread emulates all processors, so that it is one instruction of any.
const ICOUNT_SHIFT: u32 = 0;

/// What a guest's clock runs by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// The host's clock, with KVM where that works: for what is about races, as processors run at the same time, and for machines
    /// that are killed at a random moment.
    Wall,
    /// Instructions executed by all processors of the guest together, always emulated.
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

    /// How many instructions all processors of the guest together execute in a second of its time; `None` where the host decides.
    #[must_use]
    pub fn instructions_per_second(self) -> Option<u64> {
        match self {
            Self::Wall => None,
            Self::Virtual => Some(1_000_000_000 >> ICOUNT_SHIFT),
        }
    }

    /// A limit of the host's time for what a machine does. One in virtual time is emulated beside others and beside compilers: how long
    /// it takes says how much of the host it gets, so that a limit is there only to end what never ends.
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
            // sleep=off: when all processors are idle, the clock goes to the next timer at once.
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
