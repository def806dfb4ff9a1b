//! Memory of any resource that cudarc's functions take as a `CudaSlice`.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    self as theirs, CudaStream, DeviceRepr, DeviceSlice, LaunchArgs, PushKernelArg, SyncOnDrop,
    ValidAsZeroBits,
};
use millpond_core::driver::DriverError;
use millpond_core::{AnyResource, DeviceMemoryResource, Error, Layout, Result, StreamRef};
use millpond_driver::cuda::stream_ref_of;

use crate::DeviceBuffer;

/// `len` values of `T` in device memory, for programs that use cudarc: it can be passed as a `CudaSlice`, but
/// its memory comes from a resource and goes back to it.
///
/// cudarc's copies and fills take it, as do its kernel launches and the libraries that cudarc wraps. It keeps
/// its stream alive, and gives its memory back in the order of that stream. Use it on that stream, which
/// costs no synchronisation, and move it to another with [`set_stream`](Self::set_stream). A copy or a fill
/// on another stream is ordered, too: that stream waits first, and the host waits for it afterwards.
///
/// A kernel launch (which is unsafe in cudarc) orders nothing: launch on the buffer's own stream.
///
/// ```no_run
/// use millpond_containers::CudaBuffer;
/// use millpond_driver::cuda::cudarc::driver::CudaContext;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let pool = millpond_resources::get_current_device_resource()?;
///
/// let numbers = CudaBuffer::from_host(&[1.0_f32, 2.0, 3.0], &stream, pool.clone())?;
/// let mut copy = CudaBuffer::<f32>::zeros(3, &stream, pool)?;
/// stream.memcpy_dtod(&numbers, &mut copy)?;
/// assert_eq!(stream.clone_dtoh(&copy)?, [1.0, 2.0, 3.0]);
/// # Ok(())
/// # }
/// ```
pub struct CudaBuffer<T, R: DeviceMemoryResource = AnyResource> {
    // First, so that it is dropped before its stream.
    buffer: DeviceBuffer<R>,
    stream: Arc<CudaStream>,
    len: usize,
    /// The buffer's address, where a kernel's arguments can point to it.
    address: CUdeviceptr,
    values: PhantomData<T>,
}

impl<T, R: DeviceMemoryResource> CudaBuffer<T, R> {
    /// Memory for `len` values, which are uninitialised.
    ///
    /// # Errors
    /// Those of the resource; [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the stream is
    /// not of the resource's device, or of a context that is not the device's primary one.
    ///
    /// # Safety
    /// Values are written before they are read.
    pub unsafe fn uninit(len: usize, stream: &Arc<CudaStream>, resource: R) -> Result<Self> {
        let stream_ref = checked_stream(stream, &resource)?;
        let buffer = DeviceBuffer::with_layout(Layout::array::<T>(len as u64)?, stream_ref, resource)?;
        Ok(Self::from_parts(buffer, Arc::clone(stream), len))
    }

    /// `len` zeros.
    ///
    /// # Errors
    /// Those of [`uninit`](Self::uninit), and those of the driver.
    pub fn zeros(len: usize, stream: &Arc<CudaStream>, resource: R) -> Result<Self>
    where
        T: DeviceRepr + ValidAsZeroBits,
    {
        // SAFETY: every value is written here.
        let mut buffer = unsafe { Self::uninit(len, stream, resource) }?;
        if len > 0 {
            stream.memset_zeros(&mut buffer).map_err(|error| failed(&error, "cuMemsetD8Async"))?;
        }
        Ok(buffer)
    }

    /// A copy of `data`.
    ///
    /// # Errors
    /// Those of [`uninit`](Self::uninit), and those of the driver.
    pub fn from_host(data: &[T], stream: &Arc<CudaStream>, resource: R) -> Result<Self>
    where
        T: DeviceRepr,
    {
        // SAFETY: every value is written here.
        let mut buffer = unsafe { Self::uninit(data.len(), stream, resource) }?;
        if !data.is_empty() {
            stream.memcpy_htod(data, &mut buffer).map_err(|error| failed(&error, "cuMemcpyHtoDAsync"))?;
        }
        Ok(buffer)
    }

    /// Converts a buffer of bytes to values. Its memory moves to `stream`, in order.
    ///
    /// # Errors
    /// Those of [`uninit`](Self::uninit), and [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument)
    /// if the buffer holds no whole number of values or not at their alignment; the buffer is dropped.
    pub fn from_buffer(mut buffer: DeviceBuffer<R>, stream: &Arc<CudaStream>) -> Result<Self>
    where
        T: Pod,
    {
        let (bytes, size) = (buffer.len(), size_of::<T>() as u64);
        if size == 0 || !bytes.is_multiple_of(size) || buffer.alignment() < align_of::<T>() as u64 {
            return Err(Error::invalid_argument(format!(
                "{bytes} bytes aligned to {} are not a whole number of values of {size} bytes aligned to {}",
                buffer.alignment(),
                align_of::<T>()
            )));
        }
        buffer.set_stream(checked_stream(stream, buffer.resource())?)?;
        Ok(Self::from_parts(buffer, Arc::clone(stream), (bytes / size) as usize))
    }

    fn from_parts(buffer: DeviceBuffer<R>, stream: Arc<CudaStream>, len: usize) -> Self {
        Self { address: buffer.as_ptr().address(), buffer, stream, len, values: PhantomData }
    }

    /// The memory, and the stream in whose order it is used and freed.
    ///
    /// # Safety
    /// The stream is kept alive as long as the buffer, or until the buffer was moved to another stream.
    pub unsafe fn into_buffer(self) -> (DeviceBuffer<R>, Arc<CudaStream>) {
        (self.buffer, self.stream)
    }

    /// Moves the buffer to another stream of the same device, which is ordered after the one before without
    /// stopping the host.
    ///
    /// # Errors
    /// Those of [`uninit`](Self::uninit), and those of the driver; the buffer keeps its stream.
    pub fn set_stream(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        self.buffer.set_stream(checked_stream(stream, self.buffer.resource())?)?;
        self.stream = Arc::clone(stream);
        Ok(())
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The stream of the buffer.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Orders `stream` for a use of the memory; the result orders the buffer's stream after that use when it
    /// is dropped.
    fn ordered<'a>(&self, stream: &'a CudaStream) -> SyncOnDrop<'a> {
        let left_its_thread = self.buffer.left_its_thread();
        let is_own =
            stream.cu_stream() == self.stream.cu_stream() && stream.context() == self.stream.context();
        if is_own && !left_its_thread {
            return SyncOnDrop::Record(None);
        }
        let context = stream.context();
        let waited = if left_its_thread {
            self.stream.context().synchronize()
        } else {
            stream.join(&self.stream).or_else(|_| self.stream.synchronize())
        };
        // cudarc has no other place for the error: the next call of this context returns it.
        context.record_err(waited);
        SyncOnDrop::sync_stream(stream)
    }
}

fn checked_stream(stream: &CudaStream, resource: &impl DeviceMemoryResource) -> Result<StreamRef> {
    let (device, ordinal) = (resource.driver().device(), stream.context().ordinal());
    if device.is_sim() || device.ordinal() as usize != ordinal {
        return Err(Error::invalid_argument(format!(
            "the stream is of CUDA's device {ordinal}, but the memory would be of {device}"
        )));
    }
    // SAFETY: the buffer holds the stream that it is on, and `into_buffer` hands that out together with the
    // buffer that names it.
    unsafe { stream_ref_of(stream) }
}

/// Converts the code alone: cudarc's text queries the driver, and panics without one.
fn failed(error: &theirs::DriverError, call: &'static str) -> Error {
    DriverError::new(error.0 as i32, call).into()
}

impl<T, R: DeviceMemoryResource> DeviceSlice<T> for CudaBuffer<T, R> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl<T, R: DeviceMemoryResource> theirs::DevicePtr<T> for CudaBuffer<T, R> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.address, self.ordered(stream))
    }
}

impl<T, R: DeviceMemoryResource> theirs::DevicePtrMut<T> for CudaBuffer<T, R> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.address, self.ordered(stream))
    }
}

// SAFETY: the argument is an address, which lives as long as the launch refers to it.
unsafe impl<'a, 'b: 'a, T, R: DeviceMemoryResource> PushKernelArg<&'b CudaBuffer<T, R>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b CudaBuffer<T, R>) -> &mut Self {
        self.arg(&arg.address)
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T, R: DeviceMemoryResource> PushKernelArg<&'b mut CudaBuffer<T, R>>
    for LaunchArgs<'a>
{
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut CudaBuffer<T, R>) -> &mut Self {
        self.arg(&arg.address)
    }
}

impl<T, R: DeviceMemoryResource> fmt::Debug for CudaBuffer<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaBuffer")
            .field("len", &self.len)
            .field("buffer", &self.buffer)
            .finish_non_exhaustive()
    }
}
