//! Detects whether a thread shares its arena with threads that run at the same time.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::tuning::CONTENTION_PER_BLOCK;

/// Decides whether a thread should move to another arena. Only the thread itself writes this.
///
/// Threads that take turns share an arena well. A thread that finds its arena locked runs at the same time as
/// another thread. Then each block that the other takes moves the arena's cache lines away, which costs more
/// than the wait for the lock.
#[derive(Debug, Default)]
pub(crate) struct Contention {
    /// The number of blocks for which the thread still counts as running at the same time as others.
    window: AtomicU8,
    score: AtomicU8,
    /// Whether the thread has taken a block from an arena.
    has_taken: AtomicBool,
}

impl Contention {
    /// Returns whether this is the first block that the thread takes from an arena.
    pub(crate) fn is_first(&self) -> bool {
        let is_first = !self.has_taken.load(Ordering::Relaxed);
        if is_first {
            self.has_taken.store(true, Ordering::Relaxed);
        }
        is_first
    }

    /// Notes that the thread found its arena locked.
    pub(crate) fn found_locked(&self) {
        self.window.store(u8::MAX, Ordering::Relaxed);
    }

    /// Notes that the thread takes a block, and whether another thread took the last one. Returns whether the
    /// thread should move to another arena.
    pub(crate) fn should_move(&self, was_others: bool) -> bool {
        let window = self.window.load(Ordering::Relaxed);
        if window == 0 {
            return false;
        }
        self.window.store(window - 1, Ordering::Relaxed);
        let score = self.score.load(Ordering::Relaxed);
        let score =
            if was_others { score.checked_add(CONTENTION_PER_BLOCK) } else { Some(score.saturating_sub(1)) };
        self.score.store(score.unwrap_or(0), Ordering::Relaxed);
        score.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of consecutive blocks of other threads after which a thread moves.
    const NEEDED: u8 = u8::MAX / CONTENTION_PER_BLOCK + 1;

    /// A thread that found its arena locked moves once other threads took enough of the blocks before its
    /// own. It stays if they only took turns.
    #[test]
    fn a_thread_moves_if_others_take_blocks_while_it_runs() {
        let contention = Contention::default();
        assert!((0..1000).all(|_| !contention.should_move(true)), "it found no lock taken");
        contention.found_locked();
        let needed = usize::from(NEEDED);
        let moves: Vec<usize> = (1..=3 * needed).filter(|_| contention.should_move(true)).collect();
        assert_eq!(moves, [needed, 2 * needed, 3 * needed]);
        contention.found_locked();
        let own = usize::from(CONTENTION_PER_BLOCK);
        let mut blocks = (0..usize::from(u8::MAX)).map(|block| block % (own + 1) == 0);
        assert!(blocks.all(|was_others| !contention.should_move(was_others)), "its own blocks count less");
    }

    #[test]
    fn a_lock_that_was_taken_is_forgotten_after_some_blocks() {
        let contention = Contention::default();
        for (own, moves) in [(u8::MAX - NEEDED, true), (u8::MAX - NEEDED + 1, false)] {
            contention.found_locked();
            assert!((0..own).all(|_| !contention.should_move(false)));
            assert_eq!((0..NEEDED).any(|_| contention.should_move(true)), moves, "after {own} of its own");
            assert!((0..1000).all(|_| !contention.should_move(true)));
        }
    }

    #[test]
    fn only_one_block_is_the_first() {
        let contention = Contention::default();
        assert_eq!([(); 3].map(|()| contention.is_first()), [true, false, false]);
    }
}
