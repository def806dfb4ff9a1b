//! Blocks that one thread hands to another to free.

use millpond_core::driver::Event;
use millpond_core::{DevicePtr, Layout, StreamRef};
use parking_lot::Mutex;

/// A block, its contents, and the end of its work.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) ptr: DevicePtr,
    pub(super) layout: Layout,
    pub(super) tag: u64,
    /// The stream on which the block was used. It lives until the race ends.
    pub(super) stream: StreamRef,
    /// The event recorded on that stream after the block's last use.
    pub(super) event: Event,
}

/// The blocks that were handed over and not taken yet.
#[derive(Debug, Default)]
pub(super) struct HandOver(Mutex<Vec<Handed>>);

impl HandOver {
    pub(super) fn give(&self, block: Handed) {
        self.0.lock().push(block);
    }

    /// Takes one of the blocks, depending on `choice`.
    pub(super) fn take(&self, choice: u64) -> Option<Handed> {
        let mut handed = self.0.lock();
        let index = choice.checked_rem(handed.len() as u64)?;
        Some(handed.swap_remove(index as usize))
    }
}
