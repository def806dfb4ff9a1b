//! Copies a buffer's contents to and from the host and other buffers.

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use bytemuck::Pod;
use millpond_core::{DeviceMemoryResource, DevicePtr, Driver, DriverError, Error, Layout, Result, StreamRef};

use super::DeviceBuffer;
use crate::event::order;
use crate::{HostCopy, HostStaging, PrefetchTo};

/// Copies between the buffer and the host. When such a call returns, the copy is complete: the call waits for
/// the stream once. The methods whose names end in `async` do not wait: their copies go through
/// [staging memory](HostStaging). Call none of these methods while the stream captures a graph.
impl<R: DeviceMemoryResource> DeviceBuffer<R> {
    /// Allocates a buffer, and copies `data` from the host to the buffer.
    ///
    /// # Errors
    /// The errors of the resource and the driver.
    pub fn from_host<T: Pod>(data: &[T], stream: impl Into<StreamRef>, resource: R) -> Result<Self> {
        let stream = stream.into();
        let mut buffer = Self::with_layout(Layout::array::<T>(data.len() as u64)?, stream, resource)?;
        buffer.copy_from_host(data)?;
        Ok(buffer)
    }

    /// Allocates a buffer on `stream`, and copies the contents of another buffer to it.
    ///
    /// Within one device, the host does not wait. The copy runs after the earlier work on the other buffer's
    /// stream. Later work on the other buffer's stream runs after the copy. So the caller may change or drop
    /// the other buffer as soon as this function returns.
    ///
    /// Between two devices, the host waits for the other buffer's stream, and then for the copy. The copy
    /// works even if neither device can access the other's memory.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the devices are not on one machine,
    /// and the errors of the resource and the driver.
    pub fn copy_of<S: DeviceMemoryResource>(
        other: &DeviceBuffer<S>,
        stream: impl Into<StreamRef>,
        resource: R,
    ) -> Result<Self> {
        let stream = stream.into();
        let copy = Self::with_alignment(other.len, other.alignment(), stream, resource)?;
        if copy.len == 0 {
            return Ok(copy);
        }
        if copy.device() != other.device() {
            return copy.copied_from_peer(other);
        }
        // SAFETY: both blocks are live, distinct, and hold that many bytes.
        let copied =
            |driver: &dyn Driver| unsafe { driver.memcpy_dtod_async(copy.ptr, other.ptr, copy.len, stream) };
        other.use_on(stream, |_| copy.call(copied))?;
        Ok(copy)
    }

    /// Calls `work`, which submits work on `stream` that uses the buffer's memory. This is how a function
    /// uses a caller's buffer on a stream of its own.
    ///
    /// The work runs after the earlier work on the buffer's stream. Later work on the buffer's stream runs
    /// after the work, even if `work` fails. The host does not wait, unless the buffer's stream was destroyed
    /// or is the per-thread default stream of another thread. The argument of `work` is the address of the
    /// memory, null if the buffer is empty. The buffer keeps its stream.
    ///
    /// ```
    /// # use millpond_containers::{DeviceBuffer, Stream};
    /// # use millpond_core::driver::StreamFlags;
    /// # use millpond_core::{DeviceMemoryResource, Driver};
    /// # use millpond_driver::sim::{SimConfig, SimDevice};
    /// # use millpond_resources::CudaMemoryResource;
    /// # let device = SimDevice::new(SimConfig::h200());
    /// # let resource = std::sync::Arc::new(CudaMemoryResource::new(device.clone()));
    /// # let stream = || Stream::new(device.clone(), StreamFlags::NON_BLOCKING);
    /// # let (theirs, mine) = (stream()?, stream()?);
    /// # let target = DeviceBuffer::new(12, &mine, resource.clone())?;
    /// let input = DeviceBuffer::from_host(&[1_u32, 2, 3], &theirs, resource)?;
    /// input.use_on(&mine, |source| {
    ///     // Here, your library launches its kernels on the stream `mine`.
    ///     // SAFETY: both blocks are live and hold 12 bytes.
    ///     unsafe { device.memcpy_dtod_async(target.as_ptr(), source, 12, mine.as_ref()) }?;
    ///     Ok(())
    /// })?;
    /// # Ok::<(), millpond_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of `work`, and the driver's errors.
    pub fn use_on<T>(
        &self,
        stream: impl Into<StreamRef>,
        work: impl FnOnce(DevicePtr) -> Result<T>,
    ) -> Result<T> {
        let stream = stream.into();
        if self.ptr.is_null() {
            return work(self.ptr);
        }
        let lost_its_stream = self.lost_its_stream();
        if lost_its_stream {
            self.synchronize_device()?;
        } else {
            order(self.driver(), self.stream, stream)?;
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| work(self.ptr)));
        let ordered = if lost_its_stream {
            self.finish(Ok(()), stream)
        } else {
            // If the buffer's stream cannot wait for the work, the host waits.
            order(self.driver(), stream, self.stream)
                .or_else(|error| self.finish(Ok(()), stream).and(Err(error)))
        };
        let result = outcome.unwrap_or_else(|panic| resume_unwind(panic))?;
        ordered.map(|()| result)
    }

    /// Copies the contents of a buffer on another device. In the driver's interface, a stream cannot wait for
    /// an event of another device, so the host waits.
    fn copied_from_peer<S: DeviceMemoryResource>(self, other: &DeviceBuffer<S>) -> Result<Self> {
        if other.lost_its_stream() {
            other.synchronize_device()?;
        } else {
            other.call(|driver| driver.stream_synchronize(other.stream))?;
        }
        let (source, device) = (other.ptr, other.device());
        // SAFETY: both blocks are live and hold that many bytes. The other block's contents are complete, and
        // `finish` keeps the block borrowed until the copy is done.
        let copied = self.call(|driver| unsafe {
            driver.memcpy_peer_async(self.ptr, source, device, self.len, self.stream)
        });
        self.finish(copied, self.stream).map_err(|error| {
            match error.driver_error().is_some_and(|error| error.code() == DriverError::INVALID_DEVICE) {
                true => Error::invalid_argument(format!(
                    "a buffer of {device} cannot be copied to {} directly; copy through the host",
                    self.device()
                )),
                false => error,
            }
        })?;
        Ok(self)
    }

    /// Overwrites the first bytes of the buffer with `data` from the host. Waits for the copy.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if `data` is larger than the buffer,
    /// and the driver's errors.
    pub fn copy_from_host<T: Pod>(&mut self, data: &[T]) -> Result<()> {
        self.write(0, data)
    }

    /// Overwrites the bytes from `offset` on with `data`.
    pub(crate) fn write<T: Pod>(&mut self, offset: u64, data: &[T]) -> Result<()> {
        let bytes = self.checked_size(offset, size_of_val(data))?;
        if bytes == 0 {
            return Ok(());
        }
        let stream = self.settle()?;
        let (target, source) = (self.ptr.offset(offset), data.as_ptr().cast());
        // SAFETY: the block holds that many bytes and `data` has them; `finish` keeps it borrowed until the
        // copy is done.
        let copied = self.call(|driver| unsafe { driver.memcpy_htod_async(target, source, bytes, stream) });
        self.finish(copied, stream)
    }

    /// Overwrites the first bytes of the buffer with `data`, in the order of the buffer's stream. The call
    /// does not wait for the copy. It first copies `data` to staging memory, so the caller may change or drop
    /// `data` as soon as the call returns.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) in three cases: if `data` is larger
    /// than the buffer, if the staging memory belongs to another device, or if the stream captures a graph.
    /// Also the driver's errors.
    pub fn copy_from_host_async<T: Pod>(&mut self, data: &[T], staging: &HostStaging) -> Result<()> {
        self.write_async(0, data, staging)
    }

    /// Overwrites the bytes from `offset` on with `data`, through staging memory.
    pub(crate) fn write_async<T: Pod>(
        &mut self,
        offset: u64,
        data: &[T],
        staging: &HostStaging,
    ) -> Result<()> {
        let bytes = self.checked_size(offset, size_of_val(data))?;
        if bytes == 0 {
            return Ok(());
        }
        let stream = self.settle()?;
        let target = self.ptr.offset(offset);
        staging.send(data, self.device(), stream, |source| {
            // SAFETY: the block and the staging block hold that many bytes. The staging block stays unchanged
            // until the device has passed the copy.
            self.call(|driver| unsafe { driver.memcpy_htod_async(target, source, bytes, stream) })
        })
    }

    /// Copies the first bytes of the buffer to `data` on the host. Waits for the copy.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if `data` is larger than the buffer,
    /// and the driver's errors.
    pub fn copy_to_host<T: Pod>(&self, data: &mut [T]) -> Result<()> {
        self.read(0, data)
    }

    /// Copies the first bytes of the buffer to `data` on the host. Returns `data` as initialised values.
    ///
    /// # Errors
    /// The errors of [`copy_to_host`](Self::copy_to_host).
    pub fn copy_to_uninit<'a, T: Pod>(&self, data: &'a mut [MaybeUninit<T>]) -> Result<&'a mut [T]> {
        let bytes = self.checked_size(0, size_of_val(data))?;
        // SAFETY: `data` has room for that many bytes and is borrowed.
        unsafe { self.read_bytes(0, data.as_mut_ptr().cast(), bytes) }?;
        // SAFETY: the copy has written all of `data`, and all bytes are values of `T`.
        Ok(unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), data.len()) })
    }

    /// Copies the bytes from `offset` on into `data`.
    pub(crate) fn read<T: Pod>(&self, offset: u64, data: &mut [T]) -> Result<()> {
        let bytes = self.checked_size(offset, size_of_val(data))?;
        // SAFETY: `data` has room for that many bytes, is borrowed, and all bytes are values of `T`.
        unsafe { self.read_bytes(offset, data.as_mut_ptr().cast(), bytes) }
    }

    /// Copies `bytes` bytes from `offset` on, all in the buffer.
    ///
    /// # Safety
    /// `destination` has room for the bytes.
    unsafe fn read_bytes(&self, offset: u64, destination: *mut u8, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let stream = self.settled_stream()?;
        let source = self.ptr.offset(offset);
        // SAFETY: the block holds that many bytes, and the caller guarantees the host's. `finish` ends the
        // copy before the caller gets its memory back.
        let copied =
            self.call(|driver| unsafe { driver.memcpy_dtoh_async(destination, source, bytes, stream) });
        self.finish(copied, stream)
    }

    /// Copies the contents of the buffer to the host, and returns them as values of `T`.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the size is not a multiple of the
    /// size of `T`, and the driver's errors.
    pub fn to_host<T: Pod>(&self) -> Result<Vec<T>> {
        let len = self.checked_len::<T>()?;
        let mut data = Vec::with_capacity(len);
        self.copy_to_uninit(&mut data.spare_capacity_mut()[..len])?;
        // SAFETY: the copy has written that many values.
        unsafe { data.set_len(len) };
        Ok(data)
    }

    /// Begins a copy of the contents to the host, as values of `T`, in the order of the buffer's stream. The
    /// call does not wait for the copy: [`HostCopy::wait`] waits, and returns the values. The caller may
    /// change or drop the buffer as soon as the call returns.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) in three cases: if the buffer's size is
    /// not a multiple of the size of `T`, if the staging memory belongs to another device, or if the stream
    /// captures a graph. Also the driver's errors.
    pub fn copy_to_host_async<T: Pod>(&self, staging: &HostStaging) -> Result<HostCopy<T>> {
        let len = self.checked_len::<T>()?;
        let (lost_its_stream, stream) = (self.lost_its_stream(), self.settled_stream()?);
        let copy = staging.receive(len, self.device(), stream, |destination| {
            // SAFETY: the block and the staging block hold that many bytes. Nothing else uses the staging
            // block until the device has passed the copy.
            self.call(|driver| unsafe { driver.memcpy_dtoh_async(destination, self.ptr, self.len, stream) })
        })?;
        // The stored stream is gone, so no later use is ordered after the copy: wait for it.
        if lost_its_stream { self.finish(Ok(()), stream).map(|()| copy) } else { Ok(copy) }
    }

    fn checked_len<T>(&self) -> Result<usize> {
        let size = size_of::<T>() as u64;
        if size == 0 {
            return Err(Error::invalid_argument("values without a size cannot be copied; read another type"));
        }
        if !self.len.is_multiple_of(size) {
            return Err(Error::invalid_argument(format!(
                "{} bytes are not a whole number of values of {size} bytes; resize the buffer, or read \
                 values of another type",
                self.len
            )));
        }
        usize::try_from(self.len / size)
            .map_err(|_| Error::invalid_argument(format!("this host cannot address {} bytes", self.len)))
    }

    fn checked_size(&self, offset: u64, host_bytes: usize) -> Result<u64> {
        let bytes = host_bytes as u64;
        if offset.checked_add(bytes).is_none_or(|end| end > self.len) {
            return Err(Error::invalid_argument(format!(
                "a copy of {bytes} bytes at offset {offset} does not fit into a buffer of {} bytes; resize \
                 the buffer first",
                self.len
            )));
        }
        Ok(bytes)
    }

    /// Fills `bytes` bytes from `offset` on with zeros, in the order of the stored stream. Ignores bytes
    /// beyond the buffer's end.
    pub(crate) fn write_zeros(&mut self, offset: u64, bytes: u64) -> Result<()> {
        let bytes = bytes.min(self.len.saturating_sub(offset));
        if bytes == 0 {
            return Ok(());
        }
        let stream = self.settle()?;
        let target = self.ptr.offset(offset);
        // SAFETY: the range is in the block, which is live and ordered for this stream.
        self.call(|driver| unsafe { driver.memset_d8_async(target, 0, bytes, stream) })
    }

    /// Moves the memory to the device or to the host, in the order of the buffer's stream. Returns `false` if
    /// this kind of memory cannot be moved; see [`prefetch`](crate::prefetch).
    ///
    /// # Errors
    /// The driver's errors.
    pub fn prefetch(&mut self, to: PrefetchTo) -> Result<bool> {
        let stream = self.settle()?;
        // SAFETY: the block is live, and is freed in the order of the stream.
        let submitted = unsafe { crate::prefetch(&**self.driver(), self.ptr, self.len, to, stream) };
        submitted.map_err(|error| error.in_stack(&self.resource))
    }

    /// Waits for a copy on this stream, even after an error: the device must not touch the host's memory once
    /// the caller has it back. If it cannot wait for the stream, it waits for the device.
    fn finish(&self, copied: Result<()>, stream: StreamRef) -> Result<()> {
        let waited = self.call(|driver| driver.stream_synchronize(stream));
        let device = if waited.is_err() { self.synchronize_device() } else { Ok(()) };
        copied.and(waited).and(device)
    }
}
