//! Reads and writes single values of a vector.

use bytemuck::{Pod, Zeroable};
use millpond_core::{DeviceMemoryResource, DevicePtr, Error, Result};

use super::DeviceVec;
use crate::HostStaging;

impl<T, R: DeviceMemoryResource> DeviceVec<T, R> {
    /// Returns the address of a value.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if there is no such value.
    pub fn element_ptr(&self, index: usize) -> Result<DevicePtr> {
        self.offset_of(index).map(|offset| self.as_ptr().offset(offset))
    }

    /// Sets all bits of a value to zero, in the order of the stored stream, without waiting for it.
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
            "there is no value {index} in a vector of {} values, which are counted from 0; resize it first",
            self.len()
        )))
    }
}

impl<T: Pod, R: DeviceMemoryResource> DeviceVec<T, R> {
    /// Returns a value; waits for the stream.
    ///
    /// # Errors
    /// The errors of [`element_ptr`](Self::element_ptr) and the driver's errors.
    pub fn get(&self, index: usize) -> Result<T> {
        let mut value = [T::zeroed()];
        self.buffer.read(self.offset_of(index)?, &mut value)?;
        let [value] = value;
        Ok(value)
    }

    /// Returns the first value; waits for the stream.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get): an empty vector has none.
    pub fn first(&self) -> Result<T> {
        self.get(0)
    }

    /// Returns the last value; waits for the stream.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get): an empty vector has none.
    pub fn last(&self) -> Result<T> {
        self.get(self.len().saturating_sub(1))
    }

    /// Overwrites a value; waits for the stream.
    ///
    /// # Errors
    /// The errors of [`element_ptr`](Self::element_ptr) and the driver's errors.
    pub fn set(&mut self, index: usize, value: T) -> Result<()> {
        let offset = self.offset_of(index)?;
        self.buffer.write(offset, &[value])
    }

    /// Overwrites a value in the order of the stored stream, without waiting for it. The value goes to
    /// staging memory first, so the caller may change or drop it at once.
    ///
    /// # Errors
    /// The errors of [`element_ptr`](Self::element_ptr) and of copies through [`HostStaging`].
    pub fn set_async(&mut self, index: usize, value: &T, staging: &HostStaging) -> Result<()> {
        let offset = self.offset_of(index)?;
        self.buffer.write_async(offset, std::slice::from_ref(value), staging)
    }
}
