//! Counts refused deallocations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use millpond_core::misuse::{self, Hook};

type Counts = HashMap<ThreadId, u64>;

/// Counts the deallocations that resources in this process refuse. While this value lives, it replaces the
/// previous hook.
pub(super) struct MisuseCounter {
    /// The counts of each thread, since its stack began.
    counts: Arc<Mutex<Counts>>,
    /// Whether several stacks run at once, each on its own thread.
    is_by_thread: bool,
    before: Option<Hook>,
}

impl MisuseCounter {
    pub(super) fn install(is_by_thread: bool) -> Self {
        let counts: Arc<Mutex<Counts>> = Arc::default();
        let counter = counts.clone();
        let before = misuse::set_hook(Some(Arc::new(move |misuse| {
            let of_thread = {
                let mut counts = locked(&counter);
                let count = counts.entry(thread::current().id()).or_default();
                *count += 1;
                *count
            };
            if of_thread == 1 {
                tracing::error!(target: "millpond::misuse", "{misuse}");
            }
        })));
        Self { counts, is_by_thread, before }
    }

    /// Restarts the count for the next stack on this thread.
    pub(super) fn begin(&self) {
        let me = thread::current().id();
        locked(&self.counts).retain(|thread, _| self.is_by_thread && *thread != me);
    }

    /// Returns the count of this thread's stack.
    pub(super) fn count(&self) -> u64 {
        let counts = locked(&self.counts);
        match self.is_by_thread {
            true => counts.get(&thread::current().id()).copied().unwrap_or(0),
            false => counts.values().sum(),
        }
    }
}

fn locked(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for MisuseCounter {
    fn drop(&mut self) {
        misuse::set_hook(self.before.take());
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::misuse::{Misuse, MisuseKind};
    use millpond_core::{DevicePtr, StreamRef};

    use super::*;

    fn refuse() {
        misuse::report(&Misuse::new(MisuseKind::DoubleFree, DevicePtr::new(256), 1, StreamRef::LEGACY, "a"));
    }

    /// One test: the hook is the whole process's.
    #[test]
    fn stacks_at_once_count_their_own_and_a_stack_alone_counts_all() {
        for (is_by_thread, here) in [(true, 2), (false, 3)] {
            let counter = MisuseCounter::install(is_by_thread);
            refuse();
            counter.begin();
            assert_eq!(counter.count(), 0, "of the stack before");
            refuse();
            refuse();
            thread::scope(|scope| {
                let other = scope.spawn(|| {
                    refuse();
                    counter.count()
                });
                assert_eq!(other.join().unwrap(), if is_by_thread { 1 } else { 3 });
            });
            assert_eq!(counter.count(), here);
        }
    }
}
