//! Flushes a stream cache one size class at a time, for decay.

use crate::pool::cache::stream_cache::{CLASSES, StreamCache};
use crate::sync::Ordering;

impl StreamCache {
    /// Returns the size classes that may have blocks.
    pub(crate) fn filled_classes(&self) -> Vec<usize> {
        let is_filled =
            |class: &usize| self.filled[class / 64].load(Ordering::Acquire) >> (class % 64) & 1 == 1;
        (0..CLASSES).filter(is_filled).collect()
    }

    /// Flushes one size class, as [`flush`](Self::flush) does for all classes.
    pub(crate) fn flush_class(&self, class: usize, mut free: impl FnMut(u64) -> u64) {
        // SAFETY: a stack lives as long as the stream cache.
        let Some(stack) = (unsafe { self.small[class].load(Ordering::Acquire).as_ref() }) else { return };
        for slot in stack.filled() {
            if slot.addr.load(Ordering::Relaxed) != 0
                && let Some(addr) = slot.take()
            {
                self.thread.count_flush(free(addr));
            }
        }
    }
}
