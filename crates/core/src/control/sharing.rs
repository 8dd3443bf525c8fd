//! How long a journal counts as shared, during which no tenant on it is capped.
//!
//! A commit of a shared journal waits for the writes of capped tenants, so that a cap would slow down all of them.
//! ext4's timer commits every 5 to 6 s, and tenants write in bursts: two tenants that share a journal appear in it
//! within the same step only now and then, and a cap set between two such steps delays the next commit.

use std::time::Duration;

use super::hysteresis::Hysteresis;

/// How long a journal counts as shared after two tenants last appeared in it within the same step.
const SHARED_FOR: Duration = Duration::from_secs(60);

/// Remembers when a journal was last shared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sharing {
    shared: Hysteresis,
}

impl Sharing {
    /// Records whether two tenants had journal I/O on the same file system in this step
    /// ([`super::usage::share_a_journal`]), and returns whether tenants may be capped.
    pub fn allows_caps(&mut self, at_ns: u64, is_shared: bool) -> bool {
        if is_shared {
            self.shared.observe(at_ns);
        }
        !self.shared.is_active(at_ns, SHARED_FOR)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn caps_are_allowed_again_a_minute_after_the_last_sharing() {
        let mut sharing = Sharing::default();
        assert!(sharing.allows_caps(0, false));
        assert!(!sharing.allows_caps(7, true));
        assert!(!sharing.allows_caps(60_000_000_007, false));
        assert!(sharing.allows_caps(60_000_000_008, false));
    }

    proptest! {
        #[test]
        fn caps_are_refused_for_exactly_a_minute_after_the_last_sharing(
            course in prop::collection::vec((0u64..40_000_000_000, prop::bool::weighted(0.2)), 1..100)
        ) {
            let (mut sharing, mut at_ns, mut shared_ns) = (Sharing::default(), 0, None);
            for (step_ns, is_shared) in course {
                at_ns += step_ns;
                shared_ns = if is_shared { Some(at_ns) } else { shared_ns };
                let is_over = shared_ns.is_none_or(|shared_ns| at_ns - shared_ns > 60_000_000_000);
                prop_assert_eq!(sharing.allows_caps(at_ns, is_shared), is_over, "{:?} at {}", shared_ns, at_ns);
            }
        }

        #[test]
        fn a_shared_journal_refuses_caps_for_any_clock(
            course in prop::collection::vec((any::<u64>(), any::<bool>()), 1..50)
        ) {
            let mut sharing = Sharing::default();
            for (at_ns, is_shared) in course {
                prop_assert!(!(sharing.allows_caps(at_ns, is_shared) && is_shared));
            }
        }
    }
}
