//! Values of one type in device memory.

mod elements;

use std::fmt;
use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};
use millpond_core::{
    AnyResource, DeviceId, DeviceMemoryResource, DevicePtr, Error, Layout, Result, Shareable, StreamRef,
};

use crate::{DeviceBuffer, HostCopy, HostStaging, PrefetchTo};

/// Values of one type in device memory: a [`DeviceBuffer`] whose sizes are numbers of values (RMM's
/// `device_uvector`).
///
/// The rules of [`DeviceBuffer`] for streams, growth and errors also apply to this type. Uninitialised memory
/// may hold any bytes. So to read values on the host, `T` must be [`Pod`]: a type for which any bytes are a
/// valid value. To fill a vector with zeros, `T` must be [`Zeroable`]. Copies keep all bits: for example, a
/// negative zero stays negative. If `T` is zero-sized, the program does not compile.
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
///     DeviceVec::from_host(&[1.5_f32, 2.5, 3.5], &stream, CudaMemoryResource::new(device))?;
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

    /// Allocates memory for `len` uninitialised values. Until you write the memory, it may hold any bytes.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the device cannot access the
    /// resource's memory; [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory) if the size in bytes
    /// overflows; and the errors of the resource.
    pub fn uninit(len: usize, stream: impl Into<StreamRef>, resource: R) -> Result<Self> {
        let stream = stream.into();
        Ok(Self::of(DeviceBuffer::with_layout(Self::layout(len)?, stream, resource)?))
    }

    /// Allocates memory for `len` values, and sets all their bits to zero.
    ///
    /// # Errors
    /// The errors of [`uninit`](Self::uninit) and the driver's errors.
    pub fn zeroed(len: usize, stream: impl Into<StreamRef>, resource: R) -> Result<Self>
    where
        T: Zeroable,
    {
        let stream = stream.into();
        let mut vec = Self::uninit(len, stream, resource)?;
        vec.buffer.write_zeros(0, vec.buffer.len())?;
        Ok(vec)
    }

    /// Allocates memory on the device, and copies `data` from the host to it.
    ///
    /// # Errors
    /// The errors of [`uninit`](Self::uninit) and the driver's errors.
    pub fn from_host(data: &[T], stream: impl Into<StreamRef>, resource: R) -> Result<Self>
    where
        T: Pod,
    {
        let stream = stream.into();
        let mut vec = Self::uninit(data.len(), stream, resource)?;
        vec.copy_from_host(data)?;
        Ok(vec)
    }

    /// Allocates a vector, and copies the values of another vector to it, in the order of `stream`; see
    /// [`DeviceBuffer::copy_of`].
    ///
    /// # Errors
    /// The errors of [`DeviceBuffer::copy_of`].
    pub fn copy_of<S: DeviceMemoryResource>(
        other: &DeviceVec<T, S>,
        stream: impl Into<StreamRef>,
        resource: R,
    ) -> Result<Self> {
        Ok(Self::of(DeviceBuffer::copy_of(&other.buffer, stream, resource)?))
    }

    /// Calls `work`, which submits work on another stream that uses the vector's memory; see
    /// [`DeviceBuffer::use_on`].
    ///
    /// # Errors
    /// The errors of [`DeviceBuffer::use_on`].
    pub fn use_on<V>(
        &self,
        stream: impl Into<StreamRef>,
        work: impl FnOnce(DevicePtr) -> Result<V>,
    ) -> Result<V> {
        self.buffer.use_on(stream, work)
    }

    /// Converts a buffer of bytes to a vector of values, without a copy.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the buffer does not hold a whole
    /// number of values, or if its alignment is smaller than the alignment of `T`. In these cases, the buffer
    /// is dropped.
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

    /// Converts the vector to a buffer of bytes, without a copy.
    pub fn into_buffer(self) -> DeviceBuffer<R> {
        self.buffer
    }

    /// Returns the vector as a borrowed buffer of bytes.
    pub fn as_buffer(&self) -> &DeviceBuffer<R> {
        &self.buffer
    }

    /// Replaces the vector's resource by a type-erased handle to the same resource. Use this method to pass
    /// the vector to a function that accepts a `DeviceVec` with any resource.
    pub fn into_any(self) -> DeviceVec<T>
    where
        R: Shareable,
    {
        DeviceVec::of(self.buffer.into_any())
    }

    /// Makes a vector of a buffer that holds a whole number of values.
    pub(crate) fn of(buffer: DeviceBuffer<R>) -> Self {
        Self { buffer, values: PhantomData }
    }

    fn layout(len: usize) -> Result<Layout> {
        let _has_a_size = Self::SIZE;
        Layout::array::<T>(len as u64)
    }

    /// Changes the number of values. The existing values stay, up to the smaller of the old and the new
    /// number. Additional values are uninitialised. If the new number exceeds the
    /// [`capacity`](Self::capacity), the vector allocates another block, and copies the values on `stream`.
    ///
    /// # Errors
    /// [`OutOfMemory`](millpond_core::ErrorKind::OutOfMemory) if the size in bytes overflows, and the errors
    /// of the resource and the driver. After an error, the vector is unchanged.
    pub fn resize(&mut self, len: usize, stream: impl Into<StreamRef>) -> Result<()> {
        let stream = stream.into();
        self.buffer.resize(Self::layout(len)?.bytes(), stream)
    }

    /// Raises the [`capacity`](Self::capacity) to at least `len` values.
    ///
    /// # Errors
    /// The errors of [`resize`](Self::resize).
    pub fn reserve(&mut self, len: usize, stream: impl Into<StreamRef>) -> Result<()> {
        let stream = stream.into();
        self.buffer.reserve(Self::layout(len)?.bytes(), stream)
    }

    /// Reduces the [`capacity`](Self::capacity) to the [`len`](Self::len).
    ///
    /// # Errors
    /// The errors of [`resize`](Self::resize).
    pub fn shrink_to_fit(&mut self, stream: impl Into<StreamRef>) -> Result<()> {
        self.buffer.shrink_to_fit(stream)
    }

    /// Stores another stream for later work. Later work on `stream` runs after the earlier work on the
    /// previous stream.
    ///
    /// # Errors
    /// The driver's errors. After an error, the vector keeps its previous stream.
    pub fn set_stream(&mut self, stream: impl Into<StreamRef>) -> Result<()> {
        self.buffer.set_stream(stream)
    }

    /// Returns the address of the first value; null if the vector holds no memory.
    pub fn as_ptr(&self) -> DevicePtr {
        self.buffer.as_ptr()
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        // The number fitted in a `usize` when the vector was made.
        (self.buffer.len() / Self::SIZE) as usize
    }

    /// Returns whether the vector has no values.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Returns the largest number of values to which [`resize`](Self::resize) can grow the vector without
    /// allocating.
    pub fn capacity(&self) -> usize {
        (self.buffer.capacity() / Self::SIZE) as usize
    }

    /// Returns the size of the values in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.buffer.len()
    }

    /// Returns the stream in whose order the vector will free its memory.
    pub fn stream(&self) -> StreamRef {
        self.buffer.stream()
    }

    /// Returns the resource that allocated the memory.
    pub fn resource(&self) -> &R {
        self.buffer.resource()
    }

    /// Returns the device that holds the memory.
    pub fn device(&self) -> DeviceId {
        self.buffer.device()
    }

    /// Moves the memory to the device or to the host, in the order of the vector's stream. Returns `false` if
    /// this kind of memory cannot be moved; see [`DeviceBuffer::prefetch`].
    ///
    /// # Errors
    /// The driver's errors.
    pub fn prefetch(&mut self, to: PrefetchTo) -> Result<bool> {
        self.buffer.prefetch(to)
    }
}

/// Copies between the vector and the host. The methods whose names end in `async` do not wait: their copies
/// go through [staging memory](HostStaging).
impl<T: Pod, R: DeviceMemoryResource> DeviceVec<T, R> {
    /// Overwrites the first values of the vector with `data` from the host. Waits for the copy.
    ///
    /// # Errors
    /// The errors of [`DeviceBuffer::copy_from_host`].
    pub fn copy_from_host(&mut self, data: &[T]) -> Result<()> {
        self.buffer.copy_from_host(data)
    }

    /// Overwrites the first values of the vector with `data` from the host, without waiting for the copy. The
    /// caller may change or drop `data` as soon as the call returns.
    ///
    /// # Errors
    /// The errors of [`DeviceBuffer::copy_from_host_async`].
    pub fn copy_from_host_async(&mut self, data: &[T], staging: &HostStaging) -> Result<()> {
        self.buffer.copy_from_host_async(data, staging)
    }

    /// Copies the first values of the vector to `data` on the host. Waits for the copy.
    ///
    /// # Errors
    /// The errors of [`DeviceBuffer::copy_to_host`].
    pub fn copy_to_host(&self, data: &mut [T]) -> Result<()> {
        self.buffer.copy_to_host(data)
    }

    /// Begins a copy of all values to the host. The call does not wait for the copy: [`HostCopy::wait`]
    /// waits, and returns the values.
    ///
    /// # Errors
    /// The errors of [`DeviceBuffer::copy_to_host_async`].
    pub fn copy_to_host_async(&self, staging: &HostStaging) -> Result<HostCopy<T>> {
        self.buffer.copy_to_host_async(staging)
    }

    /// Copies all values to the host, and returns them.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn to_host(&self) -> Result<Vec<T>> {
        self.buffer.to_host()
    }
}

impl<T, R: DeviceMemoryResource> fmt::Debug for DeviceVec<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceVec").field("len", &self.len()).field("buffer", &self.buffer).finish()
    }
}
