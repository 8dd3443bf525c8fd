//! Waiting for a condition with a deadline, instead of sleeping and hoping.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::Instant;

/// Between two probes.
pub(crate) const STEP: Duration = Duration::from_millis(100);

/// Calls `probe` until it returns a value, at most until `deadline` has passed.
///
/// # Errors
/// When the probe fails, or with `what` in the message when the time is over.
pub async fn wait_until<T, F>(what: &str, deadline: Duration, mut probe: F) -> Result<T>
where
    F: AsyncFnMut() -> Result<Option<T>>,
{
    let end = Instant::now() + deadline;
    loop {
        if let Some(value) = probe().await? {
            return Ok(value);
        }
        if Instant::now() >= end {
            bail!("waited {:.0} s in vain: {what}", deadline.as_secs_f64());
        }
        tokio::time::sleep(STEP).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returns_the_value_or_says_what_was_missing() {
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
}
