//! Reads and writes single values of a vector.

use bytemuck::{Pod, Zeroable};
use millpond_core::{DeviceMemoryResource, DevicePtr, Error, Result};

use super::DeviceVec;
use crate::HostStaging;

impl<T, R: DeviceMemoryResource> DeviceVec<T, R> {
    /// Returns the address of the value at `index`.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if there is no such value.
    pub fn element_ptr(&self, index: usize) -> Result<DevicePtr> {
        self.offset_of(index).map(|offset| self.as_ptr().offset(offset))
    }

    /// Sets all bits of the value at `index` to zero, in the order of the vector's stream. The call does not
    /// wait.
    ///
    /// # Errors
    /// The errors of [`element_ptr`](Self::element_ptr) and the driver's errors.
    pub fn set_to_zero_async(&mut self, index: usize) -> Result<()>
    where
        T: Zeroable,
    {
        let offset = self.offset_of(index)?;
        self.buffer.write_zeros(offset, Self::SIZE)
    }

    /// Returns the offset of a value in bytes.
    fn offset_of(&self, index: usize) -> Result<u64> {
        if index < self.len() {
            return Ok(index as u64 * Self::SIZE);
        }
        Err(Error::invalid_argument(format!(
            "index {index} is outside of the vector, whose length is {}; resize the vector first",
            self.len()
        )))
    }
}

impl<T: Pod, R: DeviceMemoryResource> DeviceVec<T, R> {
    /// Waits for the vector's stream, and returns the value at `index`.
    ///
    /// # Errors
    /// The errors of [`element_ptr`](Self::element_ptr) and the driver's errors.
    pub fn get(&self, index: usize) -> Result<T> {
        let mut value = [T::zeroed()];
        self.buffer.read(self.offset_of(index)?, &mut value)?;
        let [value] = value;
        Ok(value)
    }

    /// Waits for the vector's stream, and returns the first value.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get). An empty vector has no first value.
    pub fn first(&self) -> Result<T> {
        self.get(0)
    }

    /// Waits for the vector's stream, and returns the last value.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get). An empty vector has no last value.
    pub fn last(&self) -> Result<T> {
        self.get(self.len().saturating_sub(1))
    }

    /// Overwrites the value at `index` on the device, and waits for the vector's stream.
    ///
    /// # Errors
    /// The errors of [`element_ptr`](Self::element_ptr) and the driver's errors.
    pub fn set(&mut self, index: usize, value: T) -> Result<()> {
        let offset = self.offset_of(index)?;
        self.buffer.write(offset, &[value])
    }

    /// Overwrites the value at `index` in the order of the vector's stream. The call does not wait for the
    /// copy. It first copies the value to staging memory, so the caller may change or drop `value` as soon as
    /// the call returns.
    ///
    /// # Errors
    /// The errors of [`element_ptr`](Self::element_ptr) and of
    /// [`DeviceBuffer::copy_from_host_async`](crate::DeviceBuffer::copy_from_host_async).
    pub fn set_async(&mut self, index: usize, value: &T, staging: &HostStaging) -> Result<()> {
        let offset = self.offset_of(index)?;
        self.buffer.write_async(offset, std::slice::from_ref(value), staging)
    }
}
