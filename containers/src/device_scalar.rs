//! One value in device memory.

use std::fmt;

use bytemuck::{Pod, Zeroable};
use millpond_core::{AnyResource, DeviceId, DeviceMemoryResource, DevicePtr, Error, Result, StreamRef};

use crate::{DeviceVec, HostStaging, PrefetchTo};

/// One value in device memory, as what a kernel adds up (RMM's `device_scalar`).
///
/// It is a [`DeviceVec`] of one value, and what is said there holds.
///
/// ```
/// use millpond_containers::{DeviceScalar, Stream};
/// use millpond_core::driver::StreamFlags;
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let device = SimDevice::new(SimConfig::h200());
/// let stream = Stream::new(device.clone(), StreamFlags::NON_BLOCKING)?;
/// let mut sum = DeviceScalar::from_value(7_i64, stream.as_ref(), CudaMemoryResource::new(device))?;
/// assert_eq!(sum.value()?, 7);
/// sum.set_to_zero_async()?;
/// assert_eq!(sum.value()?, 0);
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct DeviceScalar<T, R: DeviceMemoryResource = AnyResource> {
    vec: DeviceVec<T, R>,
}

impl<T, R: DeviceMemoryResource> DeviceScalar<T, R> {
    /// A value that is uninitialised: the memory holds any bytes.
    ///
    /// # Errors
    /// Those of [`DeviceVec::uninit`].
    pub fn uninit(stream: StreamRef, resource: R) -> Result<Self> {
        Ok(Self { vec: DeviceVec::uninit(1, stream, resource)? })
    }

    /// A copy of another scalar, made on `stream`; see
    /// [`DeviceBuffer::copy_of`](crate::DeviceBuffer::copy_of).
    ///
    /// # Errors
    /// Those of the method.
    pub fn copy_of<S: DeviceMemoryResource>(
        other: &DeviceScalar<T, S>,
        stream: StreamRef,
        resource: R,
    ) -> Result<Self> {
        Ok(Self { vec: DeviceVec::copy_of(&other.vec, stream, resource)? })
    }

    /// Makes the value zero in all bits, in the order of the stored stream, without waiting for it.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn set_to_zero_async(&mut self) -> Result<()>
    where
        T: Zeroable,
    {
        self.vec.set_to_zero_async(0)
    }

    /// Stores the stream, and orders it after the one that was stored before.
    ///
    /// # Errors
    /// Those of the driver; the scalar keeps its stream.
    pub fn set_stream(&mut self, stream: StreamRef) -> Result<()> {
        self.vec.set_stream(stream)
    }

    /// The address of the value.
    pub fn as_ptr(&self) -> DevicePtr {
        self.vec.as_ptr()
    }

    /// The stream on which the memory will be freed.
    pub fn stream(&self) -> StreamRef {
        self.vec.stream()
    }

    /// The resource that the memory came from.
    pub fn resource(&self) -> &R {
        self.vec.resource()
    }

    /// The device that holds the memory.
    pub fn device(&self) -> DeviceId {
        self.vec.device()
    }

    /// Moves the memory to the device or to the host if it can be moved; see
    /// [`DeviceBuffer::prefetch`](crate::DeviceBuffer::prefetch).
    ///
    /// # Errors
    /// Those of the method.
    pub fn prefetch(&mut self, to: PrefetchTo) -> Result<bool> {
        self.vec.prefetch(to)
    }

    /// The value of a vector that has no other, which is not copied.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the vector has another number of
    /// values than 1; the vector is dropped.
    pub fn from_vec(vec: DeviceVec<T, R>) -> Result<Self> {
        match vec.len() {
            1 => Ok(Self { vec }),
            len => Err(Error::invalid_argument(format!("a scalar is made of one value, not of {len}"))),
        }
    }

    /// The value, as a vector.
    pub fn as_vec(&self) -> &DeviceVec<T, R> {
        &self.vec
    }

    /// The vector of this one value.
    pub fn into_vec(self) -> DeviceVec<T, R> {
        self.vec
    }
}

impl<T: Pod, R: DeviceMemoryResource> DeviceScalar<T, R> {
    /// A copy of `value`.
    ///
    /// # Errors
    /// Those of [`DeviceVec::from_host`].
    pub fn from_value(value: T, stream: StreamRef, resource: R) -> Result<Self> {
        Ok(Self { vec: DeviceVec::from_host(&[value], stream, resource)? })
    }

    /// The value; waits for the stream.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn value(&self) -> Result<T> {
        self.vec.first()
    }

    /// Overwrites the value; waits for the stream.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn set_value(&mut self, value: T) -> Result<()> {
        self.vec.set(0, value)
    }

    /// Overwrites the value in the order of the stored stream, without waiting for it. The value is copied to
    /// staging memory first, and may change or go at once.
    ///
    /// # Errors
    /// Those of [`DeviceVec::set_async`].
    pub fn set_value_async(&mut self, value: &T, staging: &HostStaging) -> Result<()> {
        self.vec.set_async(0, value, staging)
    }
}

impl<T, R: DeviceMemoryResource> fmt::Debug for DeviceScalar<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceScalar").field("buffer", self.vec.as_buffer()).finish()
    }
}
