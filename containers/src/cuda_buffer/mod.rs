//! Memory of any resource, which cudarc's functions take as a `CudaSlice`.

mod adopt;
mod lend;

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use bytemuck::Pod;
use cudarc::driver::sys::{CUdeviceptr, CUresult};
use cudarc::driver::{
    CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, DriverError, SyncOnDrop, ValidAsZeroBits,
};
use millpond_core::{AnyResource, DeviceMemoryResource, Error, Layout, Result, Shareable, StreamRef};
use millpond_driver::CurrentDeviceGuard;

use crate::cuda_events::Events;
use crate::cuda_stream::{checked_stream, failed, is_same, order_tracked_uses, ordered, slice_over};
use crate::{ConversionError, CudaBufferView, CudaBufferViewMut, DeviceBuffer, DeviceVec};

/// Values of `T` in device memory, for programs that use cudarc. If a function of cudarc accepts a
/// `CudaSlice` through a trait, it also accepts this buffer. The buffer allocates its memory from a resource,
/// and frees the memory to the same resource.
///
/// cudarc's copies, fills and kernel launches accept the buffer. The libraries that cudarc wraps accept it,
/// too. The buffer keeps its stream alive. When the buffer is dropped, it frees its memory in the order of
/// its stream, after all uses on other streams.
///
/// # Several streams
/// You can use the buffer on any stream of its device. cudarc orders the uses as for a `CudaSlice`. A read
/// waits for the last write, and a write waits for all earlier uses. Only streams wait, never the host.
///
/// This order exists only while the `CudaContext` tracks events (`is_managing_stream_synchronization`): its
/// event tracking is on, and it created a stream itself. A context that has only default, per-thread and
/// borrowed streams tracks no events. Without events, a copy on another stream makes the host wait, and a
/// kernel launch orders nothing.
///
/// cudarc remembers only the last kernel that reads a buffer. If kernels on several streams read the buffer,
/// make one more stream wait for all of them (`CudaStream::join`). Before a write, make the stream of the
/// write wait. Make the buffer's stream wait before you drop or convert the buffer, lend it for writing, or
/// call [`set_stream`](Self::set_stream).
///
/// # Conversions
/// - To pass a part of the buffer, use [`as_view`](Self::as_view) or [`as_view_mut`](Self::as_view_mut).
/// - For code that requires a `CudaSlice`, use [`lend_as_cuda_slice`](Self::lend_as_cuda_slice) to read, or
///   [`lend_as_cuda_view_mut`](Self::lend_as_cuda_view_mut) to write. Code that requires a `&mut CudaSlice`
///   needs the unsafe [`lend_as_cuda_slice_mut`](Self::lend_as_cuda_slice_mut).
/// - To convert a vector to a buffer and back without a copy, use [`from_vec`](Self::from_vec) and
///   [`into_vec`](Self::into_vec). For a `CudaSlice`, use [`adopt`](CudaBuffer::adopt) and
///   [`give_back`](CudaBuffer::give_back).
/// - To pass another container to cudarc, you need no conversion: use the container's method `cuda_view`, as
///   in [`DeviceVec::cuda_view`]. A kernel launch accepts the container itself.
///
/// ```no_run
/// use millpond_containers::CudaBuffer;
/// use millpond_driver::cuda::cudarc::driver::CudaContext;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let pool = millpond_resources::get_current_device_resource()?;
///
/// let numbers = CudaBuffer::from_host(&[1.0_f32, 2.0, 3.0], &stream, pool.clone())?;
/// let mut copy = CudaBuffer::<f32>::zeroed(3, &stream, pool)?;
/// stream.memcpy_dtod(&numbers, &mut copy)?;
/// assert_eq!(stream.clone_dtoh(&copy)?, [1.0, 2.0, 3.0]);
/// # Ok(())
/// # }
/// ```
pub struct CudaBuffer<T, R: DeviceMemoryResource = AnyResource> {
    // In this order: the stream waits for the events, takes the memory back, and may end.
    events: OnceLock<Events<T>>,
    buffer: DeviceBuffer<R>,
    stream: Arc<CudaStream>,
    len: usize,
    values: PhantomData<T>,
}

impl<T, R: DeviceMemoryResource> CudaBuffer<T, R> {
    /// Allocates memory for `len` uninitialised values. Until you write the memory, it may hold any bytes.
    ///
    /// # Errors
    /// The errors of the resource. Also [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the
    /// stream does not belong to the resource's device, or if the stream's context is not the primary context
    /// of the device.
    pub fn uninit(len: usize, stream: &Arc<CudaStream>, resource: R) -> Result<Self>
    where
        T: Pod,
    {
        Self::unwritten(len, stream, resource)
    }

    /// Allocates memory for `len` values, which the caller writes before anything reads them.
    fn unwritten(len: usize, stream: &Arc<CudaStream>, resource: R) -> Result<Self> {
        // SAFETY: the result keeps its stream alive.
        let stream_ref = unsafe { checked_stream(stream, &resource) }?;
        let buffer = DeviceBuffer::with_layout(Layout::array::<T>(len as u64)?, stream_ref, resource)?;
        Ok(Self::from_parts(buffer, Arc::clone(stream), len))
    }

    /// Allocates memory for `len` values, and sets all their bits to zero.
    ///
    /// # Errors
    /// The errors of [`uninit`](Self::uninit) and the driver's errors.
    pub fn zeroed(len: usize, stream: &Arc<CudaStream>, resource: R) -> Result<Self>
    where
        T: DeviceRepr + ValidAsZeroBits,
    {
        let mut buffer = Self::unwritten(len, stream, resource)?;
        if len > 0 {
            stream.memset_zeros(&mut buffer).map_err(|error| failed(&error, "cuMemsetD8Async"))?;
        }
        Ok(buffer)
    }

    /// Allocates memory on the device, and copies `data` to it.
    ///
    /// # Errors
    /// The errors of [`uninit`](Self::uninit) and the driver's errors.
    pub fn from_host(data: &[T], stream: &Arc<CudaStream>, resource: R) -> Result<Self>
    where
        T: DeviceRepr,
    {
        let mut buffer = Self::unwritten(data.len(), stream, resource)?;
        if !data.is_empty() {
            stream.memcpy_htod(data, &mut buffer).map_err(|error| failed(&error, "cuMemcpyHtoDAsync"))?;
        }
        Ok(buffer)
    }

    /// Converts a buffer of bytes to a buffer of values, without a copy. The new buffer is on `stream`. Later
    /// work on `stream` runs after the earlier work on the old buffer's stream.
    ///
    /// # Errors
    /// The errors of [`set_stream`](Self::set_stream). Also
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the buffer does not hold a whole
    /// number of values, or if its alignment is smaller than the alignment of `T`. The returned
    /// [`ConversionError`] contains the old buffer.
    pub fn from_buffer(
        buffer: DeviceBuffer<R>,
        stream: &Arc<CudaStream>,
    ) -> Result<Self, ConversionError<DeviceBuffer<R>>>
    where
        T: Pod,
    {
        let (bytes, size) = (buffer.len(), size_of::<T>() as u64);
        if size == 0 || !bytes.is_multiple_of(size) || buffer.alignment() < align_of::<T>() as u64 {
            let error = Error::invalid_argument(format!(
                "{bytes} bytes aligned to {} are not a whole number of values of {size} bytes aligned to {}; \
                 make the buffer with that size and alignment",
                buffer.alignment(),
                align_of::<T>()
            ));
            return Err(ConversionError::new(error, buffer));
        }
        Self::moved(buffer, (bytes / size) as usize, stream)
    }

    /// Converts a vector to a buffer, without a copy. The buffer is on `stream`. Later work on `stream` runs
    /// after the earlier work on the vector's stream. `T` must be a type for which any bytes are a valid
    /// value, because the vector's memory may be uninitialised.
    ///
    /// To pass a vector to cudarc without converting it, use a [view](DeviceVec::cuda_view).
    ///
    /// # Errors
    /// The errors of [`set_stream`](Self::set_stream). The returned [`ConversionError`] contains the vector.
    pub fn from_vec(
        vec: DeviceVec<T, R>,
        stream: &Arc<CudaStream>,
    ) -> Result<Self, ConversionError<DeviceVec<T, R>>>
    where
        T: Pod,
    {
        let len = vec.len();
        Self::moved(vec.into_buffer(), len, stream).map_err(|refused| {
            let (error, buffer) = refused.into_parts();
            ConversionError::new(error, DeviceVec::of(buffer))
        })
    }

    fn moved(
        mut buffer: DeviceBuffer<R>,
        len: usize,
        stream: &Arc<CudaStream>,
    ) -> Result<Self, ConversionError<DeviceBuffer<R>>> {
        // SAFETY: the result keeps its stream alive.
        let named = unsafe { checked_stream(stream, buffer.resource()) };
        match named.and_then(|named| buffer.set_stream(named)) {
            Ok(()) => Ok(Self::from_parts(buffer, Arc::clone(stream), len)),
            Err(error) => Err(ConversionError::new(error, buffer)),
        }
    }

    /// Converts the buffer to a vector, without a copy. The vector is on `stream`. Later work on `stream`
    /// runs after the earlier work on the buffer's stream. The buffer's stream may then be destroyed.
    ///
    /// # Errors
    /// The driver's errors. The returned [`ConversionError`] contains the buffer.
    pub fn into_vec(
        mut self,
        stream: impl Into<StreamRef>,
    ) -> Result<DeviceVec<T, R>, ConversionError<Self>> {
        drop(self.events.take());
        match self.buffer.set_stream(stream) {
            Ok(()) => Ok(DeviceVec::of(self.buffer)),
            Err(error) => Err(ConversionError::new(error, self)),
        }
    }

    fn from_parts(buffer: DeviceBuffer<R>, stream: Arc<CudaStream>, len: usize) -> Self {
        Self { events: OnceLock::new(), buffer, stream, len, values: PhantomData }
    }

    /// Replaces the buffer's resource by a type-erased handle to the same resource. Use this method to store
    /// the buffer as a `CudaBuffer<T>`, or to pass it to a function that accepts a `CudaBuffer` with any
    /// resource.
    ///
    /// If cudarc allocated the memory, cudarc still frees it on the slice's stream. But
    /// [`give_back`](CudaBuffer::give_back) is no longer available.
    ///
    /// ```no_run
    /// use millpond_containers::CudaBuffer;
    /// use millpond_driver::cuda::cudarc::driver::CudaContext;
    ///
    /// struct Model {
    ///     weights: CudaBuffer<f32>,
    /// }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stream = CudaContext::new(0)?.new_stream()?;
    /// let slice = stream.clone_htod(&[1.0_f32, 2.0, 3.0])?;
    /// let model = Model { weights: CudaBuffer::adopt(slice)?.into_any() };
    /// assert_eq!(stream.clone_dtoh(&model.weights)?, [1.0, 2.0, 3.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_any(self) -> CudaBuffer<T>
    where
        R: Shareable,
    {
        let Self { events, buffer, stream, len, values } = self;
        CudaBuffer { events, buffer: buffer.into_any(), stream, len, values }
    }

    /// Returns the memory as a buffer of bytes, and the stream that this buffer uses.
    ///
    /// # Safety
    /// The returned stream stays alive until the returned buffer is dropped or gets another stream.
    pub unsafe fn into_buffer(mut self) -> (DeviceBuffer<R>, Arc<CudaStream>) {
        drop(self.events.take());
        (self.buffer, self.stream)
    }

    /// Moves the buffer to another stream of the same device. Later work on `stream` runs after the earlier
    /// work on the previous stream. The host does not wait.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the stream does not belong to the
    /// memory's device, or if the stream's context is not the primary context of the device. Also the
    /// driver's errors. After an error, the buffer keeps its previous stream.
    pub fn set_stream(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        // SAFETY: from here on, the buffer keeps the stream alive.
        let named = unsafe { checked_stream(stream, self.buffer.resource()) }?;
        drop(self.events.take());
        self.buffer.set_stream(named)?;
        self.stream = Arc::clone(stream);
        Ok(())
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a view with which cudarc reads the values.
    pub fn as_view(&self) -> CudaBufferView<'_, T> {
        let view = CudaBufferView::of(&self.buffer, self.len, &self.stream);
        match self.tracked() {
            Some(events) => view.tracked_by(events),
            None => view,
        }
    }

    /// Returns a view with which cudarc reads and writes the values.
    pub fn as_view_mut(&mut self) -> CudaBufferViewMut<'_, T> {
        self.tracked();
        let view = CudaBufferView::of(&self.buffer, self.len, &self.stream);
        match self.events.get_mut() {
            Some(events) => CudaBufferViewMut::tracked_by(view, events),
            None => CudaBufferViewMut::of(view),
        }
    }

    /// Returns the resource that allocated the memory.
    pub fn resource(&self) -> &R {
        self.buffer.resource()
    }

    /// Returns the memory. It is not public, because it names the stream without keeping it alive.
    pub(crate) fn as_buffer(&self) -> &DeviceBuffer<R> {
        &self.buffer
    }

    /// Returns the events, which are made at their first use. Without them, cudarc's next call returns the
    /// error.
    pub(crate) fn tracked(&self) -> Option<&Events<T>> {
        if self.events.get().is_none() && self.stream.context().is_event_tracking() {
            match self.new_events() {
                // If another thread was first, these are dropped.
                Ok(events) => drop(self.events.set(events)),
                Err(error) => {
                    tracing::error!(target: "millpond::containers", %error, "cudarc has no events for a \
                        buffer");
                    let unknown = DriverError(CUresult::CUDA_ERROR_UNKNOWN);
                    self.stream.context().record_err::<()>(Err(unknown));
                }
            }
        }
        self.events.get()
    }

    fn new_events(&self) -> Result<Events<T>> {
        let (stream, context) = (&self.stream, self.stream.context());
        let _current = CurrentDeviceGuard::new(self.buffer.device())?;
        context.bind_to_thread().map_err(|error| failed(&error, "an earlier call of cudarc"))?;
        if self.buffer.left_its_thread() {
            context.synchronize().map_err(|error| failed(&error, "cuCtxSynchronize"))?;
        }
        // SAFETY: the buffer has that many values, lives longer than its events, and keeps the slice.
        let slice = unsafe { slice_over(stream, self.buffer.as_ptr().address(), self.len) }?;
        let mut events = Events::new(slice, self.buffer.resource().driver().clone());
        order_tracked_uses(&mut events.slice)?;
        Ok(events)
    }

    /// Returns the memory, and the events as [`tracked`](Self::tracked) does.
    pub(crate) fn tracked_mut(&mut self) -> (&DeviceBuffer<R>, Option<&mut Events<T>>) {
        self.tracked();
        (&self.buffer, self.events.get_mut())
    }

    /// Returns whether events order a use on this stream. The buffer's own stream needs none before the
    /// first use on another.
    fn is_tracked_on(&self, stream: &CudaStream) -> bool {
        if self.events.get().is_none() {
            let own = &self.stream;
            if is_same(own, stream) && !self.buffer.left_its_thread()
                || !own.context().is_managing_stream_synchronization()
            {
                return false;
            }
        }
        self.tracked().is_some_and(|events| events.reads.are_managed(&self.stream, stream))
    }

    /// Returns the buffer's stream. The buffer frees its memory in the order of this stream.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl<T, R: DeviceMemoryResource> DeviceSlice<T> for CudaBuffer<T, R> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl<T, R: DeviceMemoryResource> DevicePtr<T> for CudaBuffer<T, R> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let address = self.buffer.as_ptr().address();
        if self.is_tracked_on(stream)
            && let Some(events) = self.events.get()
        {
            return (address, events.reads.read_on(&*events.slice, stream));
        }
        (address, ordered(&self.stream, self.buffer.thread(), stream))
    }
}

impl<T, R: DeviceMemoryResource> DevicePtrMut<T> for CudaBuffer<T, R> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let address = self.buffer.as_ptr().address();
        if self.is_tracked_on(stream)
            && let Some(events) = self.events.get_mut()
        {
            return (address, events.reads.write_on(&mut *events.slice, stream));
        }
        (address, ordered(&self.stream, self.buffer.thread(), stream))
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
