//! Counts the requests that failed, by the kind of the refusal.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, FailureCounts, FailureKind};

/// Counts the calls of a layer's [`allocate`](crate::DeviceMemoryResource::allocate) that failed for lack of
/// memory, whether the layer or a resource below refused them.
///
/// The layer lists its tally in [`provide`](crate::DeviceMemoryResource::provide), with
/// `traits.add::<Self, FailureTally>(|it| &it.failures)`. The outermost tally of a stack tells how many
/// requests of the stack's callers failed. So a layer needs a tally if it refuses requests itself, or if it
/// may serve a request that a resource below refused.
#[derive(Debug, Default)]
pub struct FailureTally([AtomicU64; FailureKind::ALL.len()]);

impl FailureTally {
    /// Counts a failed request, and returns its error. Ignores an error that is not
    /// [out of memory](Error::is_out_of_memory).
    #[cold]
    #[must_use]
    pub fn noted(&self, error: Error) -> Error {
        if let Some(kind) = error.failure_kind() {
            self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
        }
        error
    }

    /// Returns the counts.
    pub fn counts(&self) -> FailureCounts {
        let [memory, limit, budget] = self.0.each_ref().map(|count| count.load(Ordering::Relaxed));
        FailureCounts { memory, limit, budget }
    }

    /// Counts from zero again.
    pub fn clear(&self) {
        self.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}
