//! Requests that are repeated while the daemon restarts.

use std::time::Duration;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::reason::Reason;
use tokio::time::Instant;

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// Repeats a request, which has to be one that can be repeated, until it is answered: until `deadline`, or until the daemon has been away for
/// `away` without interruption.
///
/// # Errors
/// The last attempt's.
pub async fn until_answered<T, F>(away: Duration, deadline: Instant, attempt: impl Fn() -> F) -> Result<T, Fault>
where
    F: Future<Output = Result<T, Fault>>,
{
    let mut gone_since = None;
    loop {
        let fault = match attempt().await {
            Err(fault) if fault.code == Code::Unavailable => fault,
            ended => return ended,
        };
        let now = Instant::now();
        if fault.reason.as_deref() != Some(&Reason::DaemonUnreachable) {
            gone_since = None;
        }
        let since = *gone_since.get_or_insert(now);
        if now >= deadline || now.saturating_duration_since(since) >= away {
            return Err(fault);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn unreachable() -> Fault {
        Fault::new(Code::Unavailable, "daemon", "it is not running").reason(Reason::DaemonUnreachable)
    }

    fn lost() -> Fault {
        Fault::new(Code::Unavailable, "daemon", "the connection was lost")
    }

    /// The error at the end, and the number of attempts, when each fails with the next of these, and then with the last.
    async fn attempts(away: Duration, deadline: Instant, faults: &[fn() -> Fault]) -> (Fault, usize) {
        let n = Cell::new(0);
        let attempt = || {
            let fault = faults[n.get().min(faults.len() - 1)]();
            n.set(n.get() + 1);
            async { Err::<(), _>(fault) }
        };
        (until_answered(away, deadline, attempt).await.unwrap_err(), n.get())
    }

    #[tokio::test]
    async fn a_daemon_that_stays_away_and_a_deadline_end_it() {
        let later = Instant::now() + Duration::from_secs(3600);
        assert_eq!(attempts(Duration::ZERO, later, &[unreachable]).await, (unreachable(), 1));
        assert_eq!(attempts(Duration::from_secs(3600), Instant::now(), &[lost]).await, (lost(), 1));
        // A daemon that has died after it had accepted the request has just been there.
        let away = Duration::from_millis(1);
        assert_eq!(attempts(away, later, &[unreachable, lost, unreachable]).await, (unreachable(), 3));
    }

    #[tokio::test]
    async fn other_errors_are_answers() {
        let later = Instant::now() + Duration::from_secs(3600);
        let refused: fn() -> Fault = || Fault::new(Code::InUse, "volume v", "it is mounted");
        assert_eq!(attempts(Duration::from_secs(3600), later, &[lost, unreachable, refused]).await, (refused(), 3));
    }
}
