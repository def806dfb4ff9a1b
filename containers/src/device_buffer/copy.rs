//! Copies a buffer's contents from and to the host and other buffers.

use bytemuck::Pod;
use millpond_core::{DeviceMemoryResource, Error, Layout, Result, StreamRef};

use super::DeviceBuffer;
use crate::event::order;

/// Copies from and to the host are complete when the call returns: it waits for the stream, once. None of
/// them may be called while the stream captures a graph.
impl<R: DeviceMemoryResource> DeviceBuffer<R> {
    /// A copy of `data`.
    ///
    /// # Errors
    /// Those of the resource and the driver.
    pub fn from_host<T: Pod>(data: &[T], stream: StreamRef, resource: R) -> Result<Self> {
        let mut buffer = Self::with_layout(Layout::array::<T>(data.len() as u64)?, stream, resource)?;
        buffer.copy_from_host(data)?;
        Ok(buffer)
    }

    /// A copy of the contents of another buffer of the same device, made on `stream` without stopping the
    /// host. The other buffer's stream is ordered before the copy, and after it again, so that the other
    /// buffer may be changed or dropped at once.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the devices differ, and those of the
    /// resource and the driver.
    pub fn copy_of<S: DeviceMemoryResource>(
        other: &DeviceBuffer<S>,
        stream: StreamRef,
        resource: R,
    ) -> Result<Self> {
        let device = resource.driver().device();
        if device != other.device() {
            return Err(Error::invalid_argument(format!(
                "a buffer of {} cannot be copied to {device} directly; copy through the host",
                other.device()
            )));
        }
        let copy = Self::with_alignment(other.len, other.alignment(), stream, resource)?;
        if copy.len == 0 {
            return Ok(copy);
        }
        if other.left_its_thread() {
            other.synchronize_device()?;
        } else {
            order(copy.driver(), other.stream, stream)?;
        }
        // SAFETY: both blocks are live, distinct, and hold that many bytes; the contents of the other one are
        // ordered before the copy.
        copy.call(|driver| unsafe { driver.memcpy_dtod_async(copy.ptr, other.ptr, copy.len, stream) })?;
        let ordered = if other.left_its_thread() {
            copy.finish(Ok(()))
        } else {
            // The copy has been submitted: if the other stream cannot wait for it, the host does.
            order(copy.driver(), stream, other.stream).or_else(|error| copy.finish(Ok(())).and(Err(error)))
        };
        ordered.map(|()| copy)
    }

    /// Overwrites the first bytes with `data`.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if `data` is larger than the buffer,
    /// and those of the driver.
    pub fn copy_from_host<T: Pod>(&mut self, data: &[T]) -> Result<()> {
        let bytes = self.checked_size(data)?;
        if bytes == 0 {
            return Ok(());
        }
        // The wait that a change of thread needs.
        self.set_stream(self.stream)?;
        let source = data.as_ptr().cast();
        // SAFETY: the block holds that many bytes and `data` has them; `finish` keeps it borrowed until the
        // copy is done.
        let copied =
            self.call(|driver| unsafe { driver.memcpy_htod_async(self.ptr, source, bytes, self.stream) });
        self.finish(copied)
    }

    /// Copies the first bytes into `data`.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if `data` is larger than the buffer,
    /// and those of the driver.
    pub fn copy_to_host<T: Pod>(&self, data: &mut [T]) -> Result<()> {
        let bytes = self.checked_size(data)?;
        if bytes == 0 {
            return Ok(());
        }
        if self.left_its_thread() {
            self.synchronize_device()?;
        }
        let destination = data.as_mut_ptr().cast();
        // SAFETY: the block holds that many bytes and `data` has room for them, of a type for which all bytes
        // are values; `finish` keeps it borrowed until the copy is done.
        let copied = self
            .call(|driver| unsafe { driver.memcpy_dtoh_async(destination, self.ptr, bytes, self.stream) });
        self.finish(copied)
    }

    /// The contents as values of `T`.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the size is not a multiple of that
    /// of `T`, and those of the driver.
    pub fn to_host<T: Pod>(&self) -> Result<Vec<T>> {
        let size = size_of::<T>() as u64;
        if size == 0 || !self.len.is_multiple_of(size) {
            return Err(Error::invalid_argument(format!(
                "{} bytes are not a whole number of values of {size} bytes",
                self.len
            )));
        }
        let mut data = vec![T::zeroed(); (self.len / size) as usize];
        self.copy_to_host(&mut data)?;
        Ok(data)
    }

    fn checked_size<T>(&self, data: &[T]) -> Result<u64> {
        let bytes = size_of_val(data) as u64;
        if bytes > self.len {
            return Err(Error::invalid_argument(format!(
                "{bytes} bytes on the host do not fit a buffer of {} bytes; resize it first",
                self.len
            )));
        }
        Ok(bytes)
    }

    /// Waits for a copy on the stored stream. Also after an error: the device must not touch the host's
    /// memory once the caller has it back, so if the stream cannot be waited for, the device is.
    fn finish(&self, copied: Result<()>) -> Result<()> {
        let waited = self.call(|driver| driver.stream_synchronize(self.stream));
        let device = if waited.is_err() { self.synchronize_device() } else { Ok(()) };
        copied.and(waited).and(device)
    }
}
