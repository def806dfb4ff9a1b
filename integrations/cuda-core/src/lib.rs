//! millpond's buffers as foreign memory of NVIDIA's crates cuda-core, cuda-async and cutile.
//!
//! [`Foreign`] implements [`DeviceAllocation`], so `RawDeviceBuffer::foreign` and `Tensor::from_foreign` take
//! a buffer without a copy.

use std::fmt;
use std::sync::Arc;

use cuda_core::sys::CUdeviceptr;
use cuda_core::{Context, DeviceAllocation, Stream};
use millpond::containers::DeviceBuffer;
use millpond::driver::cuda::CudaDriver;
use millpond::{AnyResource, DeviceId, DeviceMemoryResource, Driver, DriverError, Error, Result, StreamRef};

/// A buffer that NVIDIA's crates use as foreign memory. It has a home: the stream of cuda-core on which the
/// buffer frees its memory.
///
/// # Stream order
/// Earlier work on the buffer runs before the next work of the home stream. Before another stream uses the
/// memory, it must wait for the home stream, for example with [`Stream::join`].
///
/// The crates' safe calls keep the owner until the device has finished them. So the memory may be freed on
/// any stream when the owner is dropped. If your own work uses the raw address, the home stream must wait for
/// this work before you drop the last tensor.
///
/// A thread of cuda-core may drop the owner.
pub struct Foreign<R: DeviceMemoryResource = AnyResource> {
    // In this order: the buffer frees its memory on the stream, which may then end.
    buffer: DeviceBuffer<R>,
    home: Arc<Stream>,
}

impl<R: DeviceMemoryResource> Foreign<R> {
    /// Makes `home` the buffer's stream. The host does not wait. For a vector, pass
    /// [`DeviceVec::into_buffer`](millpond::containers::DeviceVec::into_buffer).
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond::ErrorKind::InvalidArgument) if the stream's context is not the primary
    /// context of the buffer's device. Also the driver's errors.
    pub fn new(mut buffer: DeviceBuffer<R>, home: &Arc<Stream>) -> Result<Self> {
        let (own, theirs) = (buffer.device(), DeviceId::cuda(home.context().ordinal() as u32));
        if own != theirs {
            let why = format!("the stream belongs to {theirs}, but the memory belongs to {own}");
            return Err(Error::invalid_argument(why));
        }
        // SAFETY: the result keeps its stream, and drops the buffer first.
        buffer.set_stream(unsafe { stream_ref_of(home) }?)?;
        Ok(Self { buffer, home: Arc::clone(home) })
    }

    /// Returns the buffer's home stream.
    pub fn home(&self) -> &Arc<Stream> {
        &self.home
    }

    /// Returns the buffer, in the order of another stream. To get the owner back from cuda-core, keep a clone
    /// of its `Arc`, drop the tensors, and call [`Arc::into_inner`]. cuda-core drops its last clone shortly
    /// after the device has finished.
    ///
    /// # Errors
    /// The driver's errors. The memory is then freed.
    pub fn into_buffer(mut self, stream: impl Into<StreamRef>) -> Result<DeviceBuffer<R>> {
        self.buffer.set_stream(stream)?;
        Ok(self.buffer)
    }
}

impl<R: DeviceMemoryResource> fmt::Debug for Foreign<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign").field("buffer", &self.buffer).finish_non_exhaustive()
    }
}

// SAFETY: the block stays in place until the buffer is dropped, because nothing here reallocates it. It lies
// in the primary context, which `home` keeps.
unsafe impl<R: DeviceMemoryResource + Send + Sync + 'static> DeviceAllocation for Foreign<R> {
    fn device_ptr(&self) -> CUdeviceptr {
        self.buffer.as_ptr().address()
    }

    fn len_bytes(&self) -> usize {
        self.buffer.len() as usize
    }

    fn context(&self) -> Arc<Context> {
        Arc::clone(self.home.context())
    }
}

/// Converts a stream of cuda-core to the argument type of millpond's calls.
///
/// # Errors
/// [`InvalidArgument`](millpond::ErrorKind::InvalidArgument) if the stream's context is not the primary
/// context of its device. Also the driver's errors.
///
/// # Safety
/// The stream stays alive as long as the returned value, or a copy of it, is passed to calls.
pub unsafe fn stream_ref_of(stream: &Stream) -> Result<StreamRef> {
    let context = stream.context();
    let primary = context.device().primary_context();
    let primary = primary.map_err(|error| DriverError::new(error.0 as i32, "cuDevicePrimaryCtxRetain"))?;
    if primary.cu_ctx() != context.cu_ctx() {
        let why = "the stream's context is not the device's primary one; use a stream of Context::new";
        return Err(Error::invalid_argument(why));
    }
    let driver = CudaDriver::open(context.ordinal() as u32)?;
    // SAFETY: the borrowed stream is alive, and the caller promises to keep it so.
    Ok(unsafe { driver.stream_ref(stream.cu_stream().addr() as u64) }?)
}
