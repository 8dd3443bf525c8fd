//! Polling for a condition with a deadline. Owns the pauses between probes; does not sleep for a fixed time.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::Instant;

/// The shortest pause between two probes, and the longest.
pub(crate) const STEP: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(1);

/// The pause after a wait of `waited`: a quarter of it, between [`STEP`] and 1 s. A probe starts processes in a guest,
/// whose emulation takes longer than the pause, and the end of a long wait need not be known to a tenth of a second.
pub(crate) fn pause(waited: Duration) -> Duration {
    (waited / 4).clamp(STEP, LONGEST)
}

/// Calls `probe` until it returns a value or `deadline` has passed.
///
/// # Errors
/// When the probe fails, or when the deadline has passed, with `what` in the message.
pub async fn wait_until<T, F>(what: &str, deadline: Duration, probe: F) -> Result<T>
where
    F: AsyncFnMut() -> Result<Option<T>>,
{
    wait_with(pause, what, deadline, probe).await
}

/// [`wait_until`] with other pauses.
pub(crate) async fn wait_with<T, F>(
    pause: fn(Duration) -> Duration,
    what: &str,
    deadline: Duration,
    mut probe: F,
) -> Result<T>
where
    F: AsyncFnMut() -> Result<Option<T>>,
{
    let begin = Instant::now();
    loop {
        if let Some(value) = probe().await? {
            return Ok(value);
        }
        let waited = begin.elapsed();
        if waited >= deadline {
            bail!("timed out after {:.0} s, waiting for: {what}", deadline.as_secs_f64());
        }
        tokio::time::sleep(pause(waited)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returns_the_value_or_reports_what_was_missing() {
        let mut calls = 0;
        let got = wait_until("third call", Duration::from_secs(5), async || {
            calls += 1;
            Ok((calls == 3).then_some("here"))
        })
        .await
        .unwrap();
        assert_eq!(got, "here");
        let error = wait_until("the moon", Duration::ZERO, async || Ok(None::<()>)).await.unwrap_err();
        assert!(error.to_string().contains("the moon"), "{error}");
    }

    #[test]
    fn pauses_grow_with_the_wait() {
        for (waited_ms, pause_ms) in [(0, 100), (400, 100), (800, 200), (4000, 1000), (60_000, 1000)] {
            assert_eq!(
                pause(Duration::from_millis(waited_ms)),
                Duration::from_millis(pause_ms),
                "after {waited_ms} ms"
            );
        }
    }
}
