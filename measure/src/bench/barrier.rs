//! A barrier that spins before it sleeps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Threads wait here for each other, and then continue together. The barrier of the standard library wakes
/// sleeping threads one after another, which takes as long as a short round of steps. So this barrier first
/// spins for a while.
#[derive(Debug)]
pub(super) struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
    meeting: AtomicUsize,
}

const SPINS: u32 = 10_000;

impl Barrier {
    pub(super) const fn new(threads: usize) -> Self {
        Self { threads, arrived: AtomicUsize::new(0), meeting: AtomicUsize::new(0) }
    }

    /// Waits for all threads. After the barrier, each thread sees the writes that other threads made before
    /// the barrier.
    pub(super) fn wait(&self) {
        let meeting = self.meeting.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.meeting.store(meeting.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut spins = 0;
        while self.meeting.load(Ordering::Acquire) == meeting {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { thread::yield_now() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_goes_on_before_all_have_arrived() {
        const THREADS: usize = 4;
        let (barrier, count) = (Barrier::new(THREADS), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 1..200 {
                        count.fetch_add(1, Ordering::Relaxed);
                        barrier.wait();
                        assert_eq!(count.load(Ordering::Relaxed), round * THREADS);
                        barrier.wait();
                    }
                });
            }
        });
    }
}
