use super::{CLASSES, Front};
use crate::sync::Ordering;

impl Front {
    /// The classes that may have blocks.
    pub(in crate::pool) fn filled_classes(&self) -> Vec<usize> {
        let is_filled =
            |class: &usize| self.filled[class / 64].load(Ordering::Acquire) >> (class % 64) & 1 == 1;
        (0..CLASSES).filter(is_filled).collect()
    }

    /// Takes the blocks of one class out, on any thread, and tells `give` the address of each,
    /// which returns its size: what [`drain`](Self::drain) does, in a bite.
    pub(in crate::pool) fn drain_class(&self, class: usize, mut give: impl FnMut(u64) -> u64) {
        // SAFETY: a stack that is there lives as long as the front.
        let Some(stack) = (unsafe { self.small[class].load(Ordering::Acquire).as_ref() }) else { return };
        for place in stack.filled() {
            if place.addr.load(Ordering::Relaxed) != 0
                && let Some(addr) = place.take()
            {
                self.thread.drained(give(addr));
            }
        }
    }
}
