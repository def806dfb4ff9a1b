//! A buffer of bytes in device memory.

mod copy;

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;

use bytemuck::Pod;
use millpond_core::driver::{CaptureModeGuard, DriverResult};
use millpond_core::{
    AnyResource, DeviceId, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, DriverHandle,
    Error, Layout, Result, Shareable, StreamId, StreamRef,
};
use millpond_resources::get_current_device_resource;

use crate::event::order;
use millpond_core::driver::call;

/// A block of device memory. Dropping the buffer frees the block.
///
/// The buffer allocates its block in the order of the stream that is passed to its constructor. The buffer
/// stores this stream. Every method with a stream argument stores the new stream instead, as in RMM's
/// `device_buffer`. The buffer frees its block in the order of the stored stream. Unlike RMM's buffer, this
/// buffer makes the new stream wait on the device for the earlier work on the old stream. So its safe methods
/// never let two streams use the memory at the same time.
///
/// Your own work may use the memory through [`as_ptr`](Self::as_ptr). You must order such work yourself: it
/// must run before any work that the buffer submits later, in its methods or when it is dropped.
///
/// You may drop a [`Stream`](crate::Stream) before a buffer that stores it. You may also move a buffer that
/// stores [`StreamRef::PER_THREAD`] to another thread. In both cases, no stream can wait for the earlier work
/// on the stored stream any more. So the buffer waits for the whole device at its next use, or when it is
/// dropped. [`stream`](Self::stream) still returns a stream that was destroyed, until you set another one or
/// call a method that takes `&mut self` and submits work. Such a method stores the legacy default stream. A
/// stream of another library must stay alive until the buffer stores another stream or is dropped.
///
/// The buffer allocates, copies and frees memory on the resource's device, even if another device is current
/// on the thread.
///
/// `resize` and `reserve` allocate exactly the requested bytes, without spare capacity. If a method fails,
/// contents, size and capacity stay unchanged.
///
/// ```
/// use millpond_containers::{DeviceBuffer, Stream};
/// use millpond_core::driver::StreamFlags;
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let device = SimDevice::new(SimConfig::h200());
/// let stream = Stream::new(device.clone(), StreamFlags::NON_BLOCKING)?;
/// let resource = CudaMemoryResource::new(device);
///
/// let mut buffer = DeviceBuffer::from_host(&[1_u32, 2, 3], &stream, resource)?;
/// assert_eq!((buffer.len(), buffer.capacity()), (12, 12));
/// buffer.resize(16, &stream)?;
/// assert_eq!(buffer.to_host::<u32>()?[..3], [1, 2, 3]);
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct DeviceBuffer<R: DeviceMemoryResource = AnyResource> {
    ptr: DevicePtr,
    len: u64,
    /// The layout of the allocation. Its size is the capacity.
    layout: Layout,
    stream: StreamRef,
    /// The identity of that stream on the thread that stored it.
    stream_id: StreamId,
    resource: R,
}

/// The pointer, sizes, stream and resource of a [`DeviceBuffer`], without ownership of the block.
#[expect(clippy::exhaustive_structs, reason = "a buffer needs each part")]
pub struct RawParts<R> {
    /// The address of the block; null if `layout` has a size of 0.
    pub ptr: DevicePtr,
    /// The size of the contents in bytes.
    pub len: u64,
    /// The layout with which the block was allocated.
    pub layout: Layout,
    /// The stream in whose order the block must be freed.
    pub stream: StreamRef,
    /// The resource that allocated the block.
    pub resource: R,
}

impl<R: fmt::Display> fmt::Debug for RawParts<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawParts")
            .field("ptr", &self.ptr)
            .field("len", &self.len)
            .field("layout", &self.layout)
            .field("stream", &self.stream)
            .field("resource", &format_args!("{}", self.resource))
            .finish()
    }
}

impl DeviceBuffer {
    /// Allocates `bytes` uninitialised bytes from the default resource of the current device.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new), and an error if there is no current device.
    pub fn new_current(bytes: u64, stream: impl Into<StreamRef>) -> Result<Self> {
        let stream = stream.into();
        Self::new(bytes, stream, get_current_device_resource()?)
    }

    /// Allocates a buffer from the default resource of the current device, and copies `data` to it.
    ///
    /// # Errors
    /// The errors of [`from_host`](Self::from_host), and an error if there is no current device.
    pub fn from_host_current<T: Pod>(data: &[T], stream: impl Into<StreamRef>) -> Result<Self> {
        let stream = stream.into();
        Self::from_host(data, stream, get_current_device_resource()?)
    }
}

impl<R: DeviceMemoryResource> DeviceBuffer<R> {
    /// Allocates a buffer of `bytes` uninitialised bytes. An empty buffer allocates nothing.
    ///
    /// The buffer does not check the stream: a stream of another device, or a stream that was destroyed, is a
    /// mistake that only a later driver call can find.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the device cannot access the
    /// resource's memory, and the errors of the resource.
    pub fn new(bytes: u64, stream: impl Into<StreamRef>, resource: R) -> Result<Self> {
        let stream = stream.into();
        Self::with_layout(Layout::new(bytes), stream, resource)
    }

    /// Allocates a buffer whose first byte is at a multiple of `alignment` bytes. A resize keeps this
    /// alignment.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if `alignment` is not a power of two,
    /// and the errors of the resource.
    pub fn with_alignment(
        bytes: u64,
        alignment: u64,
        stream: impl Into<StreamRef>,
        resource: R,
    ) -> Result<Self> {
        let stream = stream.into();
        Self::with_layout(Layout::with_alignment(bytes, alignment)?, stream, resource)
    }

    pub(crate) fn with_layout(layout: Layout, stream: StreamRef, resource: R) -> Result<Self> {
        let reached_by = resource.accessibility();
        if !reached_by.device {
            let message = format!(
                "only the {reached_by} can access this memory; a buffer needs memory that the device can \
                 access, such as cuda, managed or pinned memory; for a pool of host memory, call \
                 `set_access` before you make its resource"
            );
            return Err(Error::invalid_argument(message).in_stack(&resource));
        }
        let ptr = allocate(&resource, layout, stream)?;
        Ok(Self { ptr, len: layout.bytes(), layout, stream, stream_id: stream.id(), resource })
    }

    /// Changes the size of the buffer. The contents stay, up to the smaller of the old and the new size.
    /// Additional bytes are uninitialised. If the new size exceeds the [`capacity`](Self::capacity), the
    /// buffer allocates another block, and copies the contents on `stream`.
    ///
    /// # Errors
    /// The errors of the resource and the driver. After an error, contents, size and capacity are unchanged.
    pub fn resize(&mut self, bytes: u64, stream: impl Into<StreamRef>) -> Result<()> {
        self.reserve(bytes, stream)?;
        self.len = bytes;
        Ok(())
    }

    /// Raises the [`capacity`](Self::capacity) to at least `bytes`.
    ///
    /// # Errors
    /// The errors of [`resize`](Self::resize).
    pub fn reserve(&mut self, bytes: u64, stream: impl Into<StreamRef>) -> Result<()> {
        let stream = stream.into();
        self.set_stream(stream)?;
        if bytes > self.capacity() { self.reallocate(bytes) } else { Ok(()) }
    }

    /// Reduces the [`capacity`](Self::capacity) to the [`len`](Self::len).
    ///
    /// # Errors
    /// The errors of [`resize`](Self::resize).
    pub fn shrink_to_fit(&mut self, stream: impl Into<StreamRef>) -> Result<()> {
        let stream = stream.into();
        self.set_stream(stream)?;
        if self.len < self.capacity() { self.reallocate(self.len) } else { Ok(()) }
    }

    /// Stores another stream for later work. Later work on `stream` runs after the earlier work on the
    /// previous stream.
    ///
    /// # Errors
    /// The driver's errors. After an error, the buffer keeps its previous stream.
    pub fn set_stream(&mut self, stream: impl Into<StreamRef>) -> Result<()> {
        let stream = stream.into();
        if self.ptr.is_null() {
            // Nothing to order: no stream has used the memory of this buffer.
        } else if stream == self.stream {
            return self.settle().map(drop);
        } else if self.lost_its_stream() {
            self.check_alive(stream)?;
            self.synchronize_device()?;
        } else {
            order(self.driver(), self.stream, stream)?;
        }
        (self.stream, self.stream_id) = (stream, stream.id());
        Ok(())
    }

    /// Replaces a stored stream that is gone, so that work can be submitted to the stored stream.
    pub(crate) fn settle(&mut self) -> Result<StreamRef> {
        let stream = self.settled_stream()?;
        (self.stream, self.stream_id) = (stream, stream.id());
        Ok(stream)
    }

    /// Returns the stream for the next work on the memory: the stored one. If that one is gone, waits for the
    /// device and returns another stream.
    pub(crate) fn settled_stream(&self) -> Result<StreamRef> {
        if !self.lost_its_stream() {
            return Ok(self.stream);
        }
        self.synchronize_device()?;
        Ok(self.stream_instead())
    }

    /// Returns the stream that replaces a stored stream that is gone.
    fn stream_instead(&self) -> StreamRef {
        if self.stream.is_per_thread() { StreamRef::PER_THREAD } else { StreamRef::LEGACY }
    }

    fn check_alive(&self, stream: StreamRef) -> Result<()> {
        if !self.driver().stream_is_gone(stream) {
            return Ok(());
        }
        let why =
            format!("the stream {stream} was destroyed, or was not made by this driver; pass another stream");
        Err(Error::invalid_argument(why).in_stack(&self.resource))
    }

    /// Moves the contents into a block of `capacity` bytes, at least `len`, on the stored stream.
    fn reallocate(&mut self, capacity: u64) -> Result<()> {
        let layout = Layout::with_alignment(capacity, self.layout.alignment())?;
        let ptr = allocate(&self.resource, layout, self.stream)?;
        let copied = match self.len.min(capacity) {
            0 => Ok(()),
            bytes => self.call(|driver| {
                // SAFETY: both blocks are live, distinct, and hold that many bytes. The old block's contents
                // are ordered before the stored stream's next work, and the new block is ready for that
                // stream.
                unsafe { driver.memcpy_dtod_async(ptr, self.ptr, bytes, self.stream) }
            }),
        };
        // The block that is not kept is freed on the stream of the copy.
        let give_back = match &copied {
            Ok(()) => {
                let old = (self.ptr, self.layout);
                (self.ptr, self.layout) = (ptr, layout);
                old
            }
            Err(_) => (ptr, layout),
        };
        // SAFETY: the block came from this resource with this layout, nothing refers to it any more, and its
        // last use was on this stream.
        unsafe { deallocate(&self.resource, give_back, self.stream) };
        copied
    }

    /// Returns the address of the first byte; null if the buffer holds no memory.
    pub fn as_ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the size is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the largest size in bytes to which [`resize`](Self::resize) can grow the buffer without
    /// allocating.
    pub fn capacity(&self) -> u64 {
        self.layout.bytes()
    }

    /// Returns the alignment in bytes.
    pub fn alignment(&self) -> u64 {
        self.layout.alignment()
    }

    /// Returns the stream in whose order the buffer will free its memory.
    pub fn stream(&self) -> StreamRef {
        self.stream
    }

    /// Returns the resource that allocated the memory.
    pub fn resource(&self) -> &R {
        &self.resource
    }

    /// Returns the device that holds the memory.
    pub fn device(&self) -> DeviceId {
        self.driver().device()
    }

    fn driver(&self) -> &DriverHandle {
        self.resource.driver()
    }

    /// Takes the buffer apart, and returns its pointer, sizes, stream and resource. The block stays live.
    pub fn into_raw_parts(self) -> RawParts<R> {
        let this = ManuallyDrop::new(self);
        RawParts {
            ptr: this.ptr,
            len: this.len,
            layout: this.layout,
            stream: this.stream,
            // SAFETY: `this` is never used or dropped again, so the resource is moved, not copied.
            resource: unsafe { ptr::read(&raw const this.resource) },
        }
    }

    /// Replaces the buffer's resource by a type-erased handle to the same resource. Use this method to pass
    /// the buffer to a function that accepts a `DeviceBuffer` with any resource.
    pub fn into_any(self) -> DeviceBuffer
    where
        R: Shareable,
    {
        let stream_id = self.stream_id;
        let RawParts { ptr, len, layout, stream, resource } = self.into_raw_parts();
        DeviceBuffer { ptr, len, layout, stream, stream_id, resource: resource.into_any() }
    }

    /// Makes a buffer from the result of [`into_raw_parts`](Self::into_raw_parts).
    ///
    /// # Safety
    /// Either `ptr` came from `resource` with `layout` and has no other owner, or `ptr` is null and the size
    /// of `layout` is 0. `len` is at most the size of `layout`. All earlier uses of the block run before the
    /// next work on `stream`.
    pub unsafe fn from_raw_parts(parts: RawParts<R>) -> Self {
        let RawParts { ptr, len, layout, stream, resource } = parts;
        Self { ptr, len, layout, stream, stream_id: stream.id(), resource }
    }

    /// Returns whether the memory was used in the order of a stream on which no event can be recorded any
    /// more: it was destroyed, or is the per-thread stream of another thread.
    pub(crate) fn lost_its_stream(&self) -> bool {
        !self.ptr.is_null() && (self.left_its_thread() || self.driver().stream_is_gone(self.stream))
    }

    /// Returns whether the stored stream is the per-thread stream of another thread.
    pub(crate) fn left_its_thread(&self) -> bool {
        self.stream.is_per_thread() && self.stream.id() != self.stream_id
    }

    /// Returns the stored stream if it is a per-thread default stream.
    #[cfg(feature = "cudarc")]
    pub(crate) fn thread(&self) -> Option<StreamId> {
        self.stream.is_per_thread().then_some(self.stream_id)
    }

    /// Returns a reference to the address in the host's memory.
    #[cfg(feature = "cudarc")]
    pub(crate) fn ptr_ref(&self) -> &DevicePtr {
        &self.ptr
    }

    fn synchronize_device(&self) -> Result<()> {
        let _captures = CaptureModeGuard::relaxed(&**self.driver());
        if self.call(|driver| driver.synchronize_beside_captures())? {
            return Ok(());
        }
        let why = "the buffer cannot wait for the device while a graph is captured; end the capture first";
        Err(Error::invalid_argument(why).in_stack(&self.resource))
    }

    /// Calls the driver; an error names the stack.
    fn call<T>(&self, body: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> Result<T> {
        call(&**self.driver(), body).map_err(|error| error.in_stack(&self.resource))
    }
}

impl<R: DeviceMemoryResource> Drop for DeviceBuffer<R> {
    fn drop(&mut self) {
        let stream = match self.settled_stream() {
            Ok(stream) => stream,
            // A lost device runs no more work.
            Err(error) if error.is_sticky() => self.stream_instead(),
            // Work of the destroyed stream may still use the memory, so the block must not be reused.
            Err(error) => {
                tracing::error!(
                    target: "millpond::containers",
                    %error,
                    "a buffer could not be freed; its memory is leaked"
                );
                return;
            }
        };
        // SAFETY: the block came from this resource with this layout, and is freed only here. Its uses happen
        // before the next work of this stream.
        unsafe { deallocate(&self.resource, (self.ptr, self.layout), stream) }
    }
}

/// Prints one line. The resource is printed as the text of its stack, without its fields.
impl<R: DeviceMemoryResource> fmt::Debug for DeviceBuffer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("ptr", &self.ptr)
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .field("stream", &self.stream)
            .field("resource", &format_args!("{}", self.resource))
            .finish()
    }
}

/// Requests no block for zero bytes, so the resource below has nothing to do or to log.
fn allocate<R: DeviceMemoryResource>(resource: &R, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
    if layout.bytes() == 0 { Ok(DevicePtr::NULL) } else { resource.allocate(layout, stream) }
}

/// # Safety
/// The conditions of [`DeviceMemoryResource::deallocate`], unless the pointer is null.
unsafe fn deallocate<R: DeviceMemoryResource>(
    resource: &R,
    (ptr, layout): (DevicePtr, Layout),
    stream: StreamRef,
) {
    if !ptr.is_null() {
        // SAFETY: the caller's promise.
        unsafe { resource.deallocate(ptr, layout, stream) }
    }
}
