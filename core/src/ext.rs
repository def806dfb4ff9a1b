//! The methods that every resource has beside those of the trait.

use std::sync::Arc;

use crate::find::stack_of;
use crate::{
    AnyResource, DeviceId, DeviceMemoryResource, DevicePtr, Layer, Layout, Result, Stack, StreamRef,
};

/// Methods that every resource has, built on [`DeviceMemoryResource`]. Not to be implemented by hand.
pub trait DeviceMemoryResourceExt: DeviceMemoryResource {
    /// [`allocate`](DeviceMemoryResource::allocate) with the usual alignment.
    ///
    /// # Errors
    /// Those of `allocate`.
    fn allocate_bytes(&self, bytes: u64, stream: StreamRef) -> Result<DevicePtr> {
        self.allocate(Layout::new(bytes), stream)
    }

    /// [`deallocate`](DeviceMemoryResource::deallocate) of a block from
    /// [`allocate_bytes`](Self::allocate_bytes).
    ///
    /// # Safety
    /// Those of `deallocate`.
    unsafe fn deallocate_bytes(&self, ptr: DevicePtr, bytes: u64, stream: StreamRef) {
        // SAFETY: the caller's promises, with the layout that `allocate_bytes` used.
        unsafe { self.deallocate(ptr, Layout::new(bytes), stream) }
    }

    /// The device whose memory this is.
    fn device(&self) -> DeviceId {
        self.driver().device()
    }

    /// Puts a layer on top; the last layer added is the outermost.
    ///
    /// # Errors
    /// Those of the layer, for instance because a pool cannot reserve its first region.
    fn layer<L: Layer<Self>>(self, layer: L) -> Result<L::Resource>
    where
        Self: Sized,
    {
        layer.layer(self)
    }

    /// The owned, erased handle.
    fn into_any(self) -> AnyResource
    where
        Self: Sized + Send + Sync,
    {
        Arc::new(self)
    }

    /// The resource and everything below it, outermost first.
    fn stack(&self) -> Stack<'_>
    where
        Self: Sized,
    {
        stack_of(self)
    }
}

impl<R: DeviceMemoryResource + ?Sized> DeviceMemoryResourceExt for R {}
