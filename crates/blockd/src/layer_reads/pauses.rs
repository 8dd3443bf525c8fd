//! Exponential backoff for peers that miss: blocks that a peer was the last to read may have been evicted from its page cache, and a
//! miss costs as many context switches as a hit.

use std::collections::HashMap;

/// Consecutive misses without a pause: single blocks are evicted now and then.
const FREE_MISSES: u32 = 4;
/// The longest pause, in reads: 4 MiB of a file that is read sequentially. So much is read from the disk when a peer has the blocks
/// again.
const MAX_PAUSE: u32 = 32;

/// The pause of one peer.
#[derive(Debug, Default)]
struct Pause {
    /// Misses since the last hit.
    misses: u32,
    /// Reads left for which it is not asked.
    reads_left: u32,
}

/// The pauses of peers, by the numbers of their devices.
#[derive(Debug, Default)]
pub(super) struct Pauses(HashMap<u32, Pause>);

impl Pauses {
    /// Whether to ask a peer for this read.
    pub(super) fn should_ask(&mut self, peer: u32) -> bool {
        match self.0.get_mut(&peer) {
            Some(pause) if pause.reads_left > 0 => {
                pause.reads_left -= 1;
                false
            }
            _ => true,
        }
    }

    /// Records an answer. Each miss doubles the pause.
    pub(super) fn record(&mut self, peer: u32, is_hit: bool) {
        if is_hit {
            self.0.remove(&peer);
            return;
        }
        let pause = self.0.entry(peer).or_default();
        pause.misses = pause.misses.saturating_add(1);
        pause.reads_left = pause
            .misses
            .checked_sub(FREE_MISSES)
            .map_or(0, |over| 1_u32.checked_shl(over).unwrap_or(MAX_PAUSE).min(MAX_PAUSE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For how many of `reads` a peer is asked that always misses.
    fn count_asked(pauses: &mut Pauses, peer: u32, reads: u32) -> u32 {
        let mut asked = 0;
        for _ in 0..reads {
            if pauses.should_ask(peer) {
                asked += 1;
                pauses.record(peer, false);
            }
        }
        asked
    }

    #[test]
    fn a_peer_that_misses_is_asked_exponentially_less_often() {
        let mut pauses = Pauses::default();
        assert_eq!(count_asked(&mut pauses, 7, 4), 4);
        assert_eq!(count_asked(&mut pauses, 7, 1024), 34);
        assert_eq!(count_asked(&mut pauses, 7, 33_000), 1000);
        assert!(pauses.should_ask(8), "other peers are not paused");
    }

    #[test]
    fn a_hit_ends_the_pause() {
        let mut pauses = Pauses::default();
        count_asked(&mut pauses, 7, 10_000);
        while !pauses.should_ask(7) {}
        pauses.record(7, true);
        assert!((0..100).all(|_| pauses.should_ask(7)));
        assert_eq!(count_asked(&mut pauses, 7, 4), 4);
    }
}
