//! Which claims wait for which others.

use proptest::prelude::*;

use super::*;

fn volume(name: &str) -> VolumeRef {
    format!("p/{name}").parse().unwrap()
}

fn job() -> Arc<Job> {
    Arc::new(Job::internal())
}

fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

#[test]
fn volumes_of_a_pool_are_claimed_concurrently_and_keep_the_pool() {
    let locks = Arc::new(Locks::default());
    let a = locks.try_claim(&job(), Claim::default().volume(&volume("a"))).unwrap();
    let b = locks.try_claim(&job(), Claim::default().volume(&volume("b"))).unwrap();
    assert!(locks.try_claim(&job(), Claim::default().volume(&volume("a"))).is_none());
    let pool = || Claim::default().changes(Object::Pool("p".parse().unwrap()));
    assert!(locks.try_claim(&job(), pool()).is_none());
    drop((a, b));
    assert!(locks.try_claim(&job(), pool()).is_some());
}

#[test]
fn a_waiting_job_shows_what_it_waits_for_and_is_not_overtaken() {
    let locks = Arc::new(Locks::default());
    let first = locks.try_claim(&job(), Claim::default().volume(&volume("a"))).unwrap();
    let second = job();
    let both = Claim::default().volume(&volume("a")).volume(&volume("b"));
    let mut waiting = Box::pin(locks.claim(&second, both));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    assert!(second.is_waiting());
    // Free, but an earlier claim waits for it.
    assert!(locks.try_claim(&job(), Claim::default().volume(&volume("b"))).is_none());
    assert!(locks.try_claim(&job(), Claim::default().volume(&volume("c"))).is_some());
    drop(first);
    assert!(waiting.as_mut().poll(&mut context).is_ready());
    assert!(!second.is_waiting());
}

#[test]
fn a_withdrawn_claim_blocks_no_others() {
    let locks = Arc::new(Locks::default());
    let held = locks.try_claim(&job(), Claim::default().volume(&volume("a"))).unwrap();
    assert!(now(locks.claim(&job(), Claim::default().volume(&volume("a")))).is_none());
    drop(held);
    assert!(now(locks.claim(&job(), Claim::default().volume(&volume("a")))).is_some());
    assert!(locks.entries().queue.is_empty());
}

#[test]
fn a_stronger_claim_covers_a_weaker_one() {
    let locks = Arc::new(Locks::default());
    let tenant = Claim::default().tenant(&"t".parse().unwrap());
    let held = locks.try_claim(&job(), tenant.clone().volume(&volume("a"))).unwrap();
    assert!(held.covers(&tenant));
    assert!(!held.covers(&tenant.volume(&volume("b"))));
    assert!(!held.covers(&Claim::default().changes(Object::Pool("p".parse().unwrap()))));
}

proptest! {
    /// For any claims in any order: all are granted in the end, and never two conflicting ones at a time.
    #[test]
    fn all_claims_are_granted_and_never_two_conflicting_ones(
        claims in prop::collection::vec(prop::collection::vec((0usize..5, any::<bool>()), 1..4), 1..12),
        ends in prop::collection::vec(any::<prop::sample::Index>(), 200),
    ) {
        let locks = Arc::new(Locks::default());
        let claims: Vec<Claim> = claims.into_iter().map(|objects| Claim(objects.into_iter().map(|(n, alone)| {
            let mode = if alone { Mode::Exclusive } else { Mode::Shared };
            (Object::Device(n.to_string()), mode)
        }).collect())).collect();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let jobs: Vec<_> = claims.iter().map(|_| job()).collect();
        let mut waiting: Vec<_> =
            claims.iter().zip(&jobs).map(|(claim, job)| Box::pin(locks.claim(job, claim.clone()))).collect();
        let (mut held, mut n_granted): (Vec<Held>, usize) = (Vec::new(), 0);
        for end in ends {
            waiting.retain_mut(|future| match future.as_mut().poll(&mut context) {
                std::task::Poll::Ready(granted) => {
                    held.push(granted);
                    n_granted += 1;
                    false
                }
                std::task::Poll::Pending => true,
            });
            for (i, one) in held.iter().enumerate() {
                prop_assert!(held[i + 1..].iter().all(|other| !one.claim.conflicts_with(&other.claim)));
            }
            if held.is_empty() {
                break;
            }
            held.remove(end.index(held.len()));
        }
        prop_assert_eq!(n_granted, claims.len());
    }
}
