//! The convenience methods of every resource.

use std::sync::Arc;

use crate::driver::{CaptureModeGuard, Driver, DriverResult, call, is_capturing};
use crate::find::stack_of;
use crate::map_of_stack::map_of;
use crate::{
    AnyResource, BlockInfo, DeviceId, DeviceMemoryResource, DevicePtr, Layer, Layout, MemoryMap,
    MemoryReport, ReportsMemory, Result, Shareable, Stack, StreamRef,
};

/// Adds convenience methods to every [`DeviceMemoryResource`]. The trait is already implemented for every
/// resource, so do not implement it yourself.
pub trait DeviceMemoryResourceExt: DeviceMemoryResource {
    /// Calls [`allocate`](DeviceMemoryResource::allocate) with the usual alignment,
    /// [`ALLOCATION_ALIGNMENT`](crate::ALLOCATION_ALIGNMENT).
    ///
    /// # Errors
    /// The errors of `allocate`.
    fn allocate_bytes(&self, bytes: u64, stream: impl Into<StreamRef>) -> Result<DevicePtr> {
        self.allocate(Layout::new(bytes), stream.into())
    }

    /// Calls [`deallocate`](DeviceMemoryResource::deallocate) for a block from
    /// [`allocate_bytes`](Self::allocate_bytes).
    ///
    /// # Safety
    /// The conditions of `deallocate`.
    unsafe fn deallocate_bytes(&self, ptr: DevicePtr, bytes: u64, stream: impl Into<StreamRef>) {
        // SAFETY: the caller's promises, with the layout that `allocate_bytes` used.
        unsafe { self.deallocate(ptr, Layout::new(bytes), stream.into()) }
    }

    /// Allocates a block that any stream may use as soon as the call returns.
    ///
    /// The method calls [`allocate`](DeviceMemoryResource::allocate) on the legacy default stream. If the
    /// resource is stream-ordered, the method then waits for that stream. While a blocking stream captures a
    /// graph, CUDA refuses to wait for the legacy stream, so the method waits for
    /// [all work](crate::driver::Driver::synchronize_beside_captures) of the device instead.
    ///
    /// # Errors
    /// The errors of `allocate` and of the wait. If the wait fails, the method frees the block before it
    /// returns the error.
    fn allocate_sync(&self, layout: Layout) -> Result<DevicePtr> {
        let ptr = self.allocate(layout, StreamRef::LEGACY)?;
        if self.is_stream_ordered() && !ptr.is_null() {
            let _captures = CaptureModeGuard::relaxed(&**self.driver());
            let waited = call(&**self.driver(), wait_for_legacy);
            waited.inspect_err(|_| {
                // SAFETY: the block was just allocated with this layout, and no work used it.
                unsafe { self.deallocate(ptr, layout, StreamRef::LEGACY) }
            })?;
        }
        Ok(ptr)
    }

    /// Frees a block that no submitted work still uses. The block may have been used on any stream.
    ///
    /// # Safety
    /// The conditions of [`deallocate`](DeviceMemoryResource::deallocate) hold. In addition, all work that
    /// uses the block is done.
    unsafe fn deallocate_sync(&self, ptr: DevicePtr, layout: Layout) {
        // SAFETY: the caller's promises; work that is done is ordered before any stream.
        unsafe { self.deallocate(ptr, layout, StreamRef::LEGACY) }
    }

    /// Returns a report of the memory that each layer of the stack holds now.
    fn memory_report(&self) -> MemoryReport
    where
        Self: Sized,
    {
        MemoryReport::of(self)
    }

    /// Returns a [`memory_report`](Self::memory_report) of figures only: without the device's memory, and
    /// without the lists of free memory, of holders and of scopes. So it does not search the blocks of any
    /// layer. Call it if you need the figures again and again.
    fn memory_figures(&self) -> MemoryReport
    where
        Self: Sized,
    {
        MemoryReport::figures(self)
    }

    /// Returns the segments and blocks of the whole stack at this moment. Returns `None` if no layer records
    /// segments or blocks, as in plain CUDA memory. If one pool allocates from another pool, the map lists
    /// the blocks of the upper pool.
    ///
    /// ```
    /// use millpond_core::{AnyResource, DeviceMemoryResourceExt};
    ///
    /// /// Returns the requested bytes of all blocks that the program uses.
    /// fn live_bytes(stack: &AnyResource) -> Option<u64> {
    ///     Some(stack.memory_map()?.live_blocks().map(|block| block.requested_bytes).sum())
    /// }
    /// ```
    fn memory_map(&self) -> Option<MemoryMap>
    where
        Self: Sized,
    {
        map_of(self)
    }

    /// Returns the live block that starts at `ptr`; `None` if no layer records this block. The result
    /// combines the facts that the layers know about the block. If two layers disagree, the outer layer's
    /// fact is used.
    fn block_at(&self, ptr: DevicePtr) -> Option<BlockInfo>
    where
        Self: Sized,
    {
        let known = stack_of(self).with::<dyn ReportsMemory>().filter_map(|layer| layer.block_at(ptr));
        known.reduce(|above, below| BlockInfo {
            address: above.address,
            bytes: above.bytes,
            sequence: above.sequence.or(below.sequence),
            stream: above.stream.or(below.stream),
            tag: above.tag.or(below.tag),
            backtrace: above.backtrace.or(below.backtrace),
            scope: above.scope.or(below.scope),
        })
    }

    /// Restarts the counters of all layers of the stack. Afterwards, the counters show the live blocks as if
    /// they had been allocated at this moment.
    fn clear_counters(&self)
    where
        Self: Sized,
    {
        stack_of(self).with::<dyn ReportsMemory>().for_each(ReportsMemory::clear_counters);
    }

    /// Returns the id of the device that holds the resource's memory.
    fn device(&self) -> DeviceId {
        self.driver().device()
    }

    /// Puts a layer on top of this resource. The layer that is added last is the outermost.
    ///
    /// # Errors
    /// The errors of building the layer. For example, a pool may fail to reserve its first region.
    fn layer<L: Layer<Self>>(self, layer: L) -> Result<L::Resource>
    where
        Self: Sized,
    {
        layer.layer(self)
    }

    /// Converts the resource into an owned, type-erased handle.
    fn into_any(self) -> AnyResource
    where
        Self: Sized + Shareable,
    {
        Arc::new(self)
    }

    /// Returns an iterator over this resource and all resources below it, outermost first. [Looking into a
    /// stack](crate#looking-into-a-stack) lists related functions.
    fn stack(&self) -> Stack<'_>
    where
        Self: Sized,
    {
        stack_of(self)
    }
}

impl<R: DeviceMemoryResource + ?Sized> DeviceMemoryResourceExt for R {}

/// Waits for the work of the legacy default stream, also while a blocking stream captures a graph.
fn wait_for_legacy(driver: &dyn Driver) -> DriverResult<()> {
    if is_capturing(driver, StreamRef::LEGACY)? && driver.synchronize_beside_captures()? {
        return Ok(());
    }
    driver.stream_synchronize(StreamRef::LEGACY)
}

/// Adds the method `layer` to a `Result`. Several layers then need only one `?`, at the end:
/// `CudaMemoryResource::new(device).layer(first).layer(second)?`.
pub trait LayerResultExt<R> {
    /// Puts a layer on top of the resource. If an earlier layer has already failed, returns the error of that
    /// layer.
    ///
    /// # Errors
    /// The earlier error, or the errors of the layer.
    fn layer<L: Layer<R>>(self, layer: L) -> Result<L::Resource>;
}

impl<R: DeviceMemoryResource> LayerResultExt<R> for Result<R> {
    fn layer<L: Layer<R>>(self, layer: L) -> Result<L::Resource> {
        self.and_then(|resource| layer.layer(resource))
    }
}
