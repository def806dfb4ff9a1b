//! Values of one type in device memory.

mod elements;

use std::fmt;
use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};
use millpond_core::{
    AnyResource, DeviceId, DeviceMemoryResource, DevicePtr, Error, Layout, Result, StreamRef,
};

use crate::{DeviceBuffer, HostCopy, HostStaging, PrefetchTo};

/// Values of one type in device memory: a [`DeviceBuffer`] that counts in values (RMM's `device_uvector`).
///
/// What is said there about streams, growth and errors holds here. Values are made of what is in memory, so
/// those that go to the host and back are [`Pod`]; zeros need [`Zeroable`]. Memory that was not written holds
/// any bytes. Copies are of bits: a negative zero stays one. `T` has a size, or the program does not compile.
///
/// ```
/// use millpond_containers::{DeviceVec, Stream};
/// use millpond_core::driver::StreamFlags;
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let device = SimDevice::new(SimConfig::h200());
/// let stream = Stream::new(device.clone(), StreamFlags::NON_BLOCKING)?;
/// let mut numbers =
///     DeviceVec::from_host(&[1.5_f32, 2.5, 3.5], stream.as_ref(), CudaMemoryResource::new(device))?;
/// numbers.set(1, -0.0)?;
/// assert_eq!((numbers.len(), numbers.last()?), (3, 3.5));
/// assert_eq!(numbers.to_host()?, [1.5, -0.0, 3.5]);
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct DeviceVec<T, R: DeviceMemoryResource = AnyResource> {
    buffer: DeviceBuffer<R>,
    values: PhantomData<T>,
}

impl<T, R: DeviceMemoryResource> DeviceVec<T, R> {
    const SIZE: u64 = {
        assert!(size_of::<T>() > 0, "the values of a DeviceVec have a size");
        size_of::<T>() as u64
    };

    /// `len` values, which are uninitialised: the memory holds any bytes.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the size overflows or the device
    /// does not reach the resource's memory, and those of the resource.
    pub fn uninit(len: usize, stream: StreamRef, resource: R) -> Result<Self> {
        Ok(Self::of(DeviceBuffer::with_layout(Self::layout(len)?, stream, resource)?))
    }

    /// `len` values that are zero in all bits.
    ///
    /// # Errors
    /// Those of [`uninit`](Self::uninit), and those of the driver.
    pub fn zeroed(len: usize, stream: StreamRef, resource: R) -> Result<Self>
    where
        T: Zeroable,
    {
        let mut vec = Self::uninit(len, stream, resource)?;
        vec.buffer.write_zeros(0, vec.buffer.len())?;
        Ok(vec)
    }

    /// A copy of `data`.
    ///
    /// # Errors
    /// Those of [`uninit`](Self::uninit), and those of the driver.
    pub fn from_host(data: &[T], stream: StreamRef, resource: R) -> Result<Self>
    where
        T: Pod,
    {
        let mut vec = Self::uninit(data.len(), stream, resource)?;
        vec.copy_from_host(data)?;
        Ok(vec)
    }

    /// A copy of another vector, made on `stream`; see [`DeviceBuffer::copy_of`].
    ///
    /// # Errors
    /// Those of the method.
    pub fn copy_of<S: DeviceMemoryResource>(
        other: &DeviceVec<T, S>,
        stream: StreamRef,
        resource: R,
    ) -> Result<Self> {
        Ok(Self::of(DeviceBuffer::copy_of(&other.buffer, stream, resource)?))
    }

    /// The values in the bytes of a buffer, which is not copied.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the buffer holds no whole number of
    /// values, or not at their alignment; the buffer is dropped.
    pub fn from_buffer(buffer: DeviceBuffer<R>) -> Result<Self>
    where
        T: Pod,
    {
        let (bytes, alignment) = (buffer.len(), align_of::<T>() as u64);
        if !bytes.is_multiple_of(Self::SIZE) || buffer.alignment() < alignment {
            return Err(Error::invalid_argument(format!(
                "{bytes} bytes aligned to {} are not a whole number of values of {} bytes aligned to \
                 {alignment}; make the buffer with that size and alignment",
                buffer.alignment(),
                Self::SIZE,
            )));
        }
        Ok(Self::of(buffer))
    }

    /// The bytes, as a buffer that is not copied.
    pub fn into_buffer(self) -> DeviceBuffer<R> {
        self.buffer
    }

    /// The bytes, as a buffer.
    pub fn as_buffer(&self) -> &DeviceBuffer<R> {
        &self.buffer
    }

    /// The vector over the erased handle of its resource, as functions take it that do not care which.
    pub fn into_any(self) -> DeviceVec<T>
    where
        R: Send + Sync,
    {
        DeviceVec::of(self.buffer.into_any())
    }

    /// The size of the buffer is a whole number of values.
    pub(crate) fn of(buffer: DeviceBuffer<R>) -> Self {
        Self { buffer, values: PhantomData }
    }

    fn layout(len: usize) -> Result<Layout> {
        let _has_a_size = Self::SIZE;
        Layout::array::<T>(len as u64)
    }

    /// Changes the number of values. Those that there were stay, up to the smaller number; further ones are
    /// uninitialised. Growing beyond the [`capacity`](Self::capacity) takes another block, and a copy.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the size overflows, and those of the
    /// resource and the driver; the vector stays as it was.
    pub fn resize(&mut self, len: usize, stream: StreamRef) -> Result<()> {
        self.buffer.resize(Self::layout(len)?.bytes(), stream)
    }

    /// Makes the [`capacity`](Self::capacity) at least `len` values.
    ///
    /// # Errors
    /// Those of [`resize`](Self::resize).
    pub fn reserve(&mut self, len: usize, stream: StreamRef) -> Result<()> {
        self.buffer.reserve(Self::layout(len)?.bytes(), stream)
    }

    /// Makes the [`capacity`](Self::capacity) the [`len`](Self::len).
    ///
    /// # Errors
    /// Those of [`resize`](Self::resize).
    pub fn shrink_to_fit(&mut self, stream: StreamRef) -> Result<()> {
        self.buffer.shrink_to_fit(stream)
    }

    /// Stores the stream, and orders it after the one that was stored before.
    ///
    /// # Errors
    /// Those of the driver; the vector keeps its stream.
    pub fn set_stream(&mut self, stream: StreamRef) -> Result<()> {
        self.buffer.set_stream(stream)
    }

    /// The address of the first value; null if no memory is held.
    pub fn as_ptr(&self) -> DevicePtr {
        self.buffer.as_ptr()
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        // The host could name that many when the vector was made.
        (self.buffer.len() / Self::SIZE) as usize
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The number of values that [`resize`](Self::resize) can grow to without another block.
    pub fn capacity(&self) -> usize {
        (self.buffer.capacity() / Self::SIZE) as usize
    }

    /// The size of the values in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.buffer.len()
    }

    /// The stream on which the memory will be freed.
    pub fn stream(&self) -> StreamRef {
        self.buffer.stream()
    }

    /// The resource that the memory came from.
    pub fn resource(&self) -> &R {
        self.buffer.resource()
    }

    /// The device that holds the memory.
    pub fn device(&self) -> DeviceId {
        self.buffer.device()
    }

    /// Moves the memory to the device or to the host if it can be moved; see [`DeviceBuffer::prefetch`].
    ///
    /// # Errors
    /// Those of the method.
    pub fn prefetch(&mut self, to: PrefetchTo) -> Result<bool> {
        self.buffer.prefetch(to)
    }
}

/// Copies from and to the host; those whose name ends in `async` do not wait, and go through
/// [staging memory](HostStaging).
impl<T: Pod, R: DeviceMemoryResource> DeviceVec<T, R> {
    /// Overwrites the first values with `data`.
    ///
    /// # Errors
    /// Those of [`DeviceBuffer::copy_from_host`].
    pub fn copy_from_host(&mut self, data: &[T]) -> Result<()> {
        self.buffer.copy_from_host(data)
    }

    /// Overwrites the first values with `data`, which may change or go at once.
    ///
    /// # Errors
    /// Those of [`DeviceBuffer::copy_from_host_async`].
    pub fn copy_from_host_async(&mut self, data: &[T], staging: &HostStaging) -> Result<()> {
        self.buffer.copy_from_host_async(data, staging)
    }

    /// Copies the first values into `data`.
    ///
    /// # Errors
    /// Those of [`DeviceBuffer::copy_to_host`].
    pub fn copy_to_host(&self, data: &mut [T]) -> Result<()> {
        self.buffer.copy_to_host(data)
    }

    /// Begins a copy of all values.
    ///
    /// # Errors
    /// Those of [`DeviceBuffer::copy_to_host_async`].
    pub fn copy_to_host_async(&self, staging: &HostStaging) -> Result<HostCopy<T>> {
        self.buffer.copy_to_host_async(staging)
    }

    /// All values.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn to_host(&self) -> Result<Vec<T>> {
        self.buffer.to_host()
    }
}

impl<T, R: DeviceMemoryResource> fmt::Debug for DeviceVec<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceVec").field("len", &self.len()).field("buffer", &self.buffer).finish()
    }
}
