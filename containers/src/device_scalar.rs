//! One value in device memory.

use std::fmt;

use bytemuck::{Pod, Zeroable};
use millpond_core::{AnyResource, DeviceId, DeviceMemoryResource, DevicePtr, Error, Result, StreamRef};

use crate::{DeviceVec, HostStaging, PrefetchTo};

/// One value in device memory, such as a sum that a kernel computes (RMM's `device_scalar`).
///
/// A `DeviceScalar` is a [`DeviceVec`] with one value, and follows the same rules.
///
/// ```
/// use millpond_containers::{DeviceScalar, Stream};
/// use millpond_core::driver::StreamFlags;
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::CudaMemoryResource;
///
/// let device = SimDevice::new(SimConfig::h200());
/// let stream = Stream::new(device.clone(), StreamFlags::NON_BLOCKING)?;
/// let mut sum = DeviceScalar::from_value(7_i64, &stream, CudaMemoryResource::new(device))?;
/// assert_eq!(sum.value()?, 7);
/// sum.set_to_zero_async()?;
/// assert_eq!(sum.value()?, 0);
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct DeviceScalar<T, R: DeviceMemoryResource = AnyResource> {
    vec: DeviceVec<T, R>,
}

impl<T, R: DeviceMemoryResource> DeviceScalar<T, R> {
    /// Allocates memory for an uninitialised value. Until you write the memory, it may hold any bytes.
    ///
    /// # Errors
    /// The errors of [`DeviceVec::uninit`].
    pub fn uninit(stream: impl Into<StreamRef>, resource: R) -> Result<Self> {
        Ok(Self { vec: DeviceVec::uninit(1, stream, resource)? })
    }

    /// Allocates a scalar, and copies the value of another scalar to it, in the order of `stream`; see
    /// [`DeviceBuffer::copy_of`](crate::DeviceBuffer::copy_of).
    ///
    /// # Errors
    /// The errors of [`DeviceBuffer::copy_of`](crate::DeviceBuffer::copy_of).
    pub fn copy_of<S: DeviceMemoryResource>(
        other: &DeviceScalar<T, S>,
        stream: impl Into<StreamRef>,
        resource: R,
    ) -> Result<Self> {
        Ok(Self { vec: DeviceVec::copy_of(&other.vec, stream, resource)? })
    }

    /// Sets all bits of the value to zero, in the order of the scalar's stream. The call does not wait.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn set_to_zero_async(&mut self) -> Result<()>
    where
        T: Zeroable,
    {
        self.vec.set_to_zero_async(0)
    }

    /// Stores another stream for later work. Later work on `stream` runs after the earlier work on the
    /// previous stream.
    ///
    /// # Errors
    /// The driver's errors. After an error, the scalar keeps its previous stream.
    pub fn set_stream(&mut self, stream: impl Into<StreamRef>) -> Result<()> {
        self.vec.set_stream(stream)
    }

    /// Returns the address of the value.
    pub fn as_ptr(&self) -> DevicePtr {
        self.vec.as_ptr()
    }

    /// Returns the stream in whose order the scalar will free its memory.
    pub fn stream(&self) -> StreamRef {
        self.vec.stream()
    }

    /// Returns the resource that allocated the memory.
    pub fn resource(&self) -> &R {
        self.vec.resource()
    }

    /// Returns the device that holds the memory.
    pub fn device(&self) -> DeviceId {
        self.vec.device()
    }

    /// Moves the memory to the device or to the host, in the order of the scalar's stream. Returns `false` if
    /// this kind of memory cannot be moved; see [`DeviceBuffer::prefetch`](crate::DeviceBuffer::prefetch).
    ///
    /// # Errors
    /// The driver's errors.
    pub fn prefetch(&mut self, to: PrefetchTo) -> Result<bool> {
        self.vec.prefetch(to)
    }

    /// Converts a vector of one value to a scalar, without a copy.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the vector does not have exactly one
    /// value. In this case, the vector is dropped.
    pub fn from_vec(vec: DeviceVec<T, R>) -> Result<Self> {
        match vec.len() {
            1 => Ok(Self { vec }),
            len => Err(Error::invalid_argument(format!(
                "a scalar needs a vector of 1 value, but this vector has {len}"
            ))),
        }
    }

    /// Returns the scalar as a borrowed vector of one value.
    pub fn as_vec(&self) -> &DeviceVec<T, R> {
        &self.vec
    }

    /// Converts the scalar to a vector of one value.
    pub fn into_vec(self) -> DeviceVec<T, R> {
        self.vec
    }
}

impl<T: Pod, R: DeviceMemoryResource> DeviceScalar<T, R> {
    /// Copies `value` from the host to the device, and waits for the copy.
    ///
    /// # Errors
    /// The errors of [`DeviceVec::from_host`].
    pub fn from_value(value: T, stream: impl Into<StreamRef>, resource: R) -> Result<Self> {
        Ok(Self { vec: DeviceVec::from_host(&[value], stream, resource)? })
    }

    /// Waits for the scalar's stream, and returns the value.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn value(&self) -> Result<T> {
        self.vec.first()
    }

    /// Overwrites the value on the device, and waits for the scalar's stream.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn set_value(&mut self, value: T) -> Result<()> {
        self.vec.set(0, value)
    }

    /// Overwrites the value in the order of the scalar's stream. The call does not wait for the copy. It
    /// first copies the value to staging memory, so the caller may change or drop `value` as soon as the call
    /// returns.
    ///
    /// # Errors
    /// The errors of [`DeviceVec::set_async`].
    pub fn set_value_async(&mut self, value: &T, staging: &HostStaging) -> Result<()> {
        self.vec.set_async(0, value, staging)
    }
}

impl<T, R: DeviceMemoryResource> fmt::Debug for DeviceScalar<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceScalar").field("buffer", self.vec.as_buffer()).finish()
    }
}
