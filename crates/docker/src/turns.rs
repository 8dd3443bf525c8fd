//! Turns: only so many requests are worked on at a time, in the order of their arrival.
//!
//! A hundred Creates that all proceed at the same rate are all late: the engine has given up on each of them when they end, together.
//! In turns, most end in time. A request that takes long by itself, on a tenant's slow disk, gives its turn away and goes on.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::error::{Code, Fault};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

/// The turns of all requests.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    free: Arc<Semaphore>,
    /// How long a request has its turn for.
    length: Duration,
}

impl Turns {
    /// Turns of this length for so many requests at a time.
    pub(crate) fn new(at_a_time: usize, length: Duration) -> Self {
        Self { free: Arc::new(Semaphore::new(at_a_time)), length }
    }

    /// Does the work when it is its turn.
    ///
    /// # Errors
    /// `Unavailable` when it was not its turn until `deadline`; nothing has been done then. And those of the work.
    pub(crate) async fn take<T>(
        &self,
        object: &str,
        deadline: Instant,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let Ok(turn) = timeout_at(deadline, self.free.acquire()).await else {
            return Err(Fault::new(Code::Unavailable, object, "not started: too many earlier requests")
                .hint("repeat the command"));
        };
        tokio::pin!(work);
        let done = timeout(self.length, &mut work).await;
        drop(turn);
        match done {
            Ok(done) => done,
            Err(_) => work.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Mutex;

    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn requests_have_turns_in_the_order_of_their_arrival() {
        let (turns, begun) = (Turns::new(2, HOUR), Arc::new(Mutex::new(Vec::new())));
        let mut all = Vec::new();
        for n in 0..6 {
            let (turns, begun) = (turns.clone(), Arc::clone(&begun));
            let (end, ended) = oneshot::channel::<()>();
            let work = async move {
                begun.lock().unwrap().push(n);
                let _ = ended.await;
                Ok(n)
            };
            let task = tokio::spawn(async move { turns.take("volume v", Instant::now() + HOUR, work).await });
            all.push((end, task));
        }
        for (n, (end, task)) in all.into_iter().enumerate() {
            yield_now().await;
            assert_eq!(*begun.lock().unwrap(), (0..6.min(n + 2)).collect::<Vec<_>>());
            drop(end);
            assert_eq!(task.await.unwrap().unwrap(), n);
        }
    }

    #[tokio::test]
    async fn a_slow_request_does_not_hold_up_others() {
        let turns = Turns::new(1, Duration::ZERO);
        let other = turns.clone();
        let slow = tokio::spawn(async move {
            other.take("volume slow", Instant::now() + HOUR, pending::<Result<(), Fault>>()).await
        });
        yield_now().await;
        turns.take("volume v", Instant::now() + HOUR, async { Ok(()) }).await.unwrap();
        assert!(!slow.is_finished());
    }

    #[tokio::test]
    async fn a_request_that_waits_too_long_is_not_begun() {
        let turns = Turns::new(0, HOUR);
        let begun = async { unreachable!("it has no turn") };
        let late = turns.take::<()>("volume v", Instant::now(), begun).await.unwrap_err();
        assert_eq!((late.code, late.object.as_str()), (Code::Unavailable, "volume v"));
    }
}
