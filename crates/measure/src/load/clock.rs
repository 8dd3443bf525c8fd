//! Waiting until a moment, with a timerfd.

use std::time::Instant;

use anyhow::{Context, Result};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// A timer of one thread.
#[derive(Debug)]
pub struct Timer {
    fd: std::os::fd::OwnedFd,
}

impl Timer {
    /// A timer on the monotonic clock.
    ///
    /// # Errors
    /// If the kernel provides none.
    pub fn new() -> Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).context("cannot make a timer")?;
        Ok(Self { fd })
    }

    /// Returns at `moment`, or at once if it has passed.
    ///
    /// # Errors
    /// If the kernel refuses the timer.
    pub fn wait_until(&self, moment: Instant) -> Result<()> {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let it_value = Timespec::try_from(left).context("the moment is too far away for a timer")?;
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &once).context("cannot set the timer")?;
        loop {
            match rustix::io::read(&self.fd, &mut [0u8; 8][..]) {
                Err(rustix::io::Errno::INTR) => {}
                outcome => return outcome.map(drop).context("cannot wait for the timer"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_waits_and_does_not_wait_for_the_past() {
        let timer = Timer::new().unwrap();
        let start = Instant::now();
        timer.wait_until(start).unwrap();
        timer.wait_until(start + Duration::from_millis(30)).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(30));
    }
}
