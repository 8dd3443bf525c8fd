//! How often a peer is asked that has had nothing: what another volume read last may be gone from its memory, and an answer that
//! is no costs as many switches between processes as a yes.

use std::collections::HashMap;

/// So many times in a row may a peer have nothing and be asked again at once: single blocks are missing now and then.
const AT_ONCE: u32 = 4;
/// The most reads for which one is not asked: 4 MiB of a file that is read through, which is what comes from the disk when a peer has
/// something again.
const MOST: u32 = 32;

/// What is known of one peer.
#[derive(Debug, Default)]
struct Pause {
    /// How often it has had nothing since it had something.
    vain: u32,
    /// For how many reads it is not asked yet.
    left: u32,
}

/// Pauses of the peers, by their devices' numbers.
#[derive(Debug, Default)]
pub(super) struct Pauses(HashMap<u32, Pause>);

impl Pauses {
    /// Whether this read is one of those for which a peer is asked.
    pub(super) fn is_due(&mut self, peer: u32) -> bool {
        match self.0.get_mut(&peer) {
            Some(pause) if pause.left > 0 => {
                pause.left -= 1;
                false
            }
            _ => true,
        }
    }

    /// Remembers whether a peer had something. Each time that it had not doubles the pause.
    pub(super) fn answered(&mut self, peer: u32, had_something: bool) {
        if had_something {
            self.0.remove(&peer);
            return;
        }
        let pause = self.0.entry(peer).or_default();
        pause.vain = pause.vain.saturating_add(1);
        pause.left =
            pause.vain.checked_sub(AT_ONCE).map_or(0, |over| 1_u32.checked_shl(over).unwrap_or(MOST).min(MOST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many reads a peer is asked for that never has anything.
    fn asked_in_vain(pauses: &mut Pauses, peer: u32, reads: u32) -> u32 {
        let mut asked = 0;
        for _ in 0..reads {
            if pauses.is_due(peer) {
                asked += 1;
                pauses.answered(peer, false);
            }
        }
        asked
    }

    #[test]
    fn one_that_has_nothing_is_asked_ever_less_often() {
        let mut pauses = Pauses::default();
        assert_eq!(asked_in_vain(&mut pauses, 7, 4), 4);
        assert_eq!(asked_in_vain(&mut pauses, 7, 1024), 34);
        assert_eq!(asked_in_vain(&mut pauses, 7, 33_000), 1000);
        assert!(pauses.is_due(8), "another one is not meant");
    }

    #[test]
    fn one_that_has_something_again_is_asked_for_every_read() {
        let mut pauses = Pauses::default();
        asked_in_vain(&mut pauses, 7, 10_000);
        while !pauses.is_due(7) {}
        pauses.answered(7, true);
        assert!((0..100).all(|_| pauses.is_due(7)));
        assert_eq!(asked_in_vain(&mut pauses, 7, 4), 4);
    }
}
