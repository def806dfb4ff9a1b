//! Reads the pool's memory, for reports at any time.

use millpond_core::{DeviceMemoryResource, FreeMemory, LayerMemory, MemoryMap};

use crate::pool::central::{Central, State};
use crate::pool::oom_advice::FreeOf;
use crate::pool::oom_advice::free_by_owner;
use crate::stream_order::ANY_STREAM;

impl State {
    /// Returns the free memory with the names of its streams.
    pub(super) fn free_memory(&self, free: &[FreeOf]) -> Vec<FreeMemory> {
        let of = |FreeOf { owner, blocks, bytes, largest }: &FreeOf| {
            let stream = (*owner != ANY_STREAM).then(|| self.streams.slot(*owner).stream.handle());
            FreeMemory::new(stream, *bytes, *blocks, *largest)
        };
        free.iter().map(of).collect()
    }
}

impl<R: DeviceMemoryResource> Central<R> {
    /// Returns the segments and blocks by address.
    pub(crate) fn memory_map(&self) -> MemoryMap {
        let segments = {
            let state = self.state.lock();
            state.heaps.segments(|owner| state.streams.handle_of(owner))
        };
        MemoryMap::new(segments, Some(self.name.id))
    }

    /// Returns the figures that need no search.
    pub(crate) fn layer_figures(&self) -> LayerMemory {
        let mut memory = LayerMemory::default();
        memory.statistics = Some(self.statistics());
        memory.limit_bytes = Some(self.state.lock().heaps.maximum_bytes).filter(|bytes| *bytes != u64::MAX);
        memory
    }

    /// Adds the free memory of each stream, and the bytes that could return to the device.
    pub(crate) fn layer_memory(&self) -> LayerMemory {
        let mut memory = self.layer_figures();
        let statistics = memory.statistics.unwrap_or_default();
        let state = self.state.lock();
        let (now, after_sync) = state.heaps.reclaimable_bytes();
        memory.reclaimable_bytes = Some(now);
        memory.reclaimable_after_sync_bytes = Some(after_sync);
        let free = free_by_owner(&state.heaps);
        let listed: u64 = free.iter().map(|free| free.bytes).sum();
        memory.cached_bytes = Some(statistics.bytes_free().saturating_sub(listed));
        memory.free = state.free_memory(&free);
        memory
    }
}
