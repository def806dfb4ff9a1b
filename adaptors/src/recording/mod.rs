//! Records the last memory events of a stack, and makes snapshots in PyTorch's format.

mod coverage;
mod frames;
pub(crate) mod layer;
mod pickle;
mod recorder;
mod snapshot;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use millpond_core::driver::call;
use millpond_core::{
    BlockInfo, DeviceMemoryResource, DevicePtr, Error, LayerMemory, Layout, ReportsMemory, Result, StreamRef,
    Traits, debug_as_text, forward_to_upstream, is_same,
};

pub use frames::{Frame, StackSource, set_stack_source};
pub use layer::RecordingLayer;
pub use recorder::{Action, RecordOptions, RecordStacks, RecordedEvent, Recorder};
pub use snapshot::{Snapshot, memory_snapshot, memory_snapshot_with};

/// Keeps the last memory events of a stack: allocations, frees, requests that ran out of memory, and segments
/// that the stack's pools took and returned. [`memory_snapshot`] returns these events in a form that
/// PyTorch's viewer and `millpond-replay` read.
///
/// ```
/// use millpond_adaptors::{RecordStacks, RecordingLayer, memory_snapshot};
/// use millpond_core::{DeviceMemoryResourceExt, LayerResultExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{CudaMemoryResource, PoolLayer};
///
/// let stack = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()))
///     .layer(PoolLayer::new())
///     .layer(RecordingLayer::new().stacks(RecordStacks::Allocations))?;
/// let block = stack.allocate_bytes(1000, StreamRef::LEGACY)?;
/// // SAFETY: the block came from this stack with this size, and nothing uses it.
/// unsafe { stack.deallocate_bytes(block, 1000, StreamRef::LEGACY) };
/// let (events, lost) = stack.recorder().events();
/// let actions: Vec<&str> = events.iter().map(|event| event.action.name()).collect();
/// assert_eq!((&actions[..], lost), (&["segment_map", "alloc", "free_requested", "free_completed"][..], 0));
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct RecordingResourceAdaptor<R> {
    recorder: Arc<Recorder>,
    upstream: R,
}

/// Gives access to the recorder of a stack. `find_trait::<dyn Recording>(&stack)` finds this trait.
pub trait Recording {
    /// Returns the recorder of the adaptor.
    fn recorder(&self) -> &Arc<Recorder>;
}

impl<R: DeviceMemoryResource> RecordingResourceAdaptor<R> {
    /// Creates an adaptor that records the calls of `upstream` from now on.
    pub fn new(upstream: R, options: RecordOptions) -> Self {
        Self { recorder: Recorder::new(options), upstream }
    }

    /// Returns the recorder of the adaptor.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    #[cold]
    fn failed(&self, error: Error, layout: Layout, stream: StreamRef) -> Error {
        if error.is_out_of_memory() {
            let driver = self.upstream.driver();
            let free = call(&**driver, |driver| driver.mem_get_info()).map_or(0, |info| info.free);
            self.recorder.out_of_memory(driver.device(), layout.bytes(), stream, free);
        }
        error.in_stack(self)
    }
}

// SAFETY: forwarded calls have the same arguments, so the upstream's contract holds.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for RecordingResourceAdaptor<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let ptr =
            self.upstream.allocate(layout, stream).map_err(|error| self.failed(error, layout, stream))?;
        if !ptr.is_null() {
            self.recorder.allocated(self.driver().device(), ptr, layout.bytes(), stream);
        }
        Ok(ptr)
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        // Another thread may get the address at once, so the event comes first.
        // The layers below refuse a free of no live block, which is no event.
        let device = self.driver().device();
        if self.recorder.live_bytes(device, ptr) == Some(layout.bytes()) {
            self.recorder.free(device, ptr, layout.bytes(), stream);
        }
        // SAFETY: the caller's promises hold for the upstream too: the block came from there.
        unsafe { self.upstream.deallocate(ptr, layout, stream) }
    }

    /// An adaptor is equal only to itself, because another adaptor does not record the blocks of this
    /// adaptor.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, dyn Recording>(|it| it).add::<Self, dyn ReportsMemory>(|it| it);
        // SAFETY: threads may share all parts except the upstream.
        unsafe { traits.share_over(&[&self.upstream]) };
    }

    forward_to_upstream!(except allocate, deallocate, is_equal, provide);
}

impl<R: DeviceMemoryResource> Recording for RecordingResourceAdaptor<R> {
    fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }
}

impl<R: DeviceMemoryResource> ReportsMemory for RecordingResourceAdaptor<R> {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = LayerMemory::default();
        memory.holders = self.recorder.holders(self.upstream.driver().device());
        memory
    }

    fn layer_figures(&self) -> LayerMemory {
        LayerMemory::default()
    }

    fn live_blocks(&self) -> Option<Vec<BlockInfo>> {
        Some(self.recorder.live_blocks(self.upstream.driver().device()))
    }
}

impl<R: fmt::Display> fmt::Display for RecordingResourceAdaptor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+recording", self.upstream)?;
        let (own, usual) = (self.recorder.options(), RecordOptions::default());
        let mut separator = ':';
        if own.events != usual.events {
            write!(f, "{separator}events={}", own.events)?;
            separator = ',';
        }
        if own.stacks != usual.stacks {
            write!(f, "{separator}stacks={}", own.stacks.name())?;
        }
        Ok(())
    }
}

debug_as_text!(RecordingResourceAdaptor<R: fmt::Display>);
