//! Counts refused deallocations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::misuse::{self, Hook};

/// Counts the refused deallocations of the whole process while it lives. It replaces the previous hook
/// meanwhile.
pub(super) struct MisuseCounter {
    count: Arc<AtomicU64>,
    before: Option<Hook>,
}

impl MisuseCounter {
    pub(super) fn install() -> Self {
        let count = Arc::new(AtomicU64::new(0));
        let counter = count.clone();
        let before = misuse::set_hook(Some(Arc::new(move |misuse| {
            if counter.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::error!(target: "millpond::misuse", "{misuse}");
            }
        })));
        Self { count, before }
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for MisuseCounter {
    fn drop(&mut self) {
        misuse::set_hook(self.before.take());
    }
}
