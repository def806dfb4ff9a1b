//! A resource together with the stream that it is used on.

use std::fmt;

use millpond_core::{AnyResource, DeviceMemoryResource, DevicePtr, Layout, Result, StreamId, StreamRef};

use crate::DeviceBuffer;

/// A resource and a stream: what allocates without naming the stream each time.
///
/// The stream must be alive as long as the allocator is used.
///
/// ```
/// use millpond_containers::{Stream, StreamAllocator};
/// use millpond_core::driver::StreamFlags;
/// use millpond_core::{DeviceMemoryResourceExt, Layout};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let device = SimDevice::new(SimConfig::h200());
/// let stream = Stream::new(device.clone(), StreamFlags::NON_BLOCKING)?;
/// let memory = StreamAllocator::new(CudaMemoryResource::new(device).into_any(), stream.as_ref());
/// let block = memory.allocate(Layout::new(1000))?;
/// // SAFETY: the block is live, unused, and given back with its layout.
/// unsafe { memory.deallocate(block, Layout::new(1000)) };
/// assert_eq!(memory.buffer(100)?.stream(), stream.as_ref());
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct StreamAllocator<R = AnyResource> {
    resource: R,
    stream: StreamRef,
    /// Which one it was where this was made: the per-thread default stream is another one on another thread.
    id: StreamId,
}

impl<R: DeviceMemoryResource> StreamAllocator<R> {
    /// Allocates from `resource` on `stream`.
    pub fn new(resource: R, stream: StreamRef) -> Self {
        Self { resource, stream, id: stream.id() }
    }

    /// [`DeviceMemoryResource::allocate`] on the allocator's stream.
    ///
    /// # Errors
    /// Those of the resource.
    pub fn allocate(&self, layout: Layout) -> Result<DevicePtr> {
        self.resource.allocate(layout, self.stream)
    }

    /// [`DeviceMemoryResource::deallocate`] on the allocator's stream.
    ///
    /// # Safety
    /// Those of the resource.
    pub unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { self.resource.deallocate(ptr, layout, self.stream) }
    }

    /// A buffer of `bytes` uninitialised bytes.
    ///
    /// # Errors
    /// Those of [`DeviceBuffer::new`].
    pub fn buffer(&self, bytes: u64) -> Result<DeviceBuffer<R>>
    where
        R: Clone,
    {
        DeviceBuffer::new(bytes, self.stream, self.resource.clone())
    }

    /// The resource.
    pub fn resource(&self) -> &R {
        &self.resource
    }

    /// The stream.
    pub fn stream(&self) -> StreamRef {
        self.stream
    }

    /// The same resource on another stream.
    #[must_use]
    pub fn on(self, stream: StreamRef) -> Self {
        Self { stream, id: stream.id(), ..self }
    }
}

/// Two allocators are equal if either can free the other's blocks: on one stream, over
/// [equal](DeviceMemoryResource::is_equal) resources. The per-thread default streams of two threads are two.
impl<R: DeviceMemoryResource, S: DeviceMemoryResource> PartialEq<StreamAllocator<S>> for StreamAllocator<R> {
    fn eq(&self, other: &StreamAllocator<S>) -> bool {
        self.id == other.id && self.resource.is_equal(&other.resource)
    }
}

impl<R: fmt::Display> fmt::Debug for StreamAllocator<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamAllocator")
            .field("resource", &format_args!("{}", self.resource))
            .field("stream", &self.stream)
            .finish()
    }
}
