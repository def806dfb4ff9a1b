//! A resource together with a stream.

use std::fmt;

use millpond_core::{AnyResource, DeviceMemoryResource, DevicePtr, Layout, Result, StreamId, StreamRef};

use crate::DeviceBuffer;

/// Combines a resource with a stream, so that calls need no stream argument.
///
/// The stream must live as long as you use the allocator.
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
/// let memory = StreamAllocator::new(CudaMemoryResource::new(device).into_any(), &stream);
/// let block = memory.allocate(Layout::new(1000))?;
/// // SAFETY: the block is live, unused, and freed with its layout.
/// unsafe { memory.deallocate(block, Layout::new(1000)) };
/// assert_eq!(memory.buffer(100)?.stream(), stream.as_ref());
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct StreamAllocator<R = AnyResource> {
    resource: R,
    stream: StreamRef,
    /// The identity on the thread that made this value: on another thread, the per-thread default stream is
    /// another stream.
    id: StreamId,
}

impl<R: DeviceMemoryResource> StreamAllocator<R> {
    /// Creates an allocator that allocates from `resource` on `stream`.
    pub fn new(resource: R, stream: impl Into<StreamRef>) -> Self {
        let stream = stream.into();
        Self { resource, stream, id: stream.id() }
    }

    /// Calls [`DeviceMemoryResource::allocate`] on the allocator's stream.
    ///
    /// # Errors
    /// The errors of the resource.
    pub fn allocate(&self, layout: Layout) -> Result<DevicePtr> {
        self.resource.allocate(layout, self.stream)
    }

    /// Calls [`DeviceMemoryResource::deallocate`] on the allocator's stream.
    ///
    /// # Safety
    /// The conditions of [`DeviceMemoryResource::deallocate`].
    pub unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { self.resource.deallocate(ptr, layout, self.stream) }
    }

    /// Creates a buffer of `bytes` uninitialised bytes from the allocator's resource, on the allocator's
    /// stream.
    ///
    /// # Errors
    /// The errors of [`DeviceBuffer::new`].
    pub fn buffer(&self, bytes: u64) -> Result<DeviceBuffer<R>>
    where
        R: Clone,
    {
        DeviceBuffer::new(bytes, self.stream, self.resource.clone())
    }

    /// Returns the resource of the allocator.
    pub fn resource(&self) -> &R {
        &self.resource
    }

    /// Returns the stream of the allocator.
    pub fn stream(&self) -> StreamRef {
        self.stream
    }

    /// Returns an allocator for the same resource on another stream.
    #[must_use]
    pub fn on(self, stream: impl Into<StreamRef>) -> Self {
        let stream = stream.into();
        Self { stream, id: stream.id(), ..self }
    }
}

/// Two allocators are equal if either can free the other's blocks. The two allocators must have the same
/// stream, and their resources must be [equal](DeviceMemoryResource::is_equal). The per-thread default
/// streams of two threads differ.
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
