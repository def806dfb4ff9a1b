//! Borrowed values that cudarc's functions take as a `CudaView`.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, LaunchArgs, PushKernelArg,
    SyncOnDrop,
};
use millpond_core::{DeviceMemoryResource, Error, Result, StreamId};

use crate::cuda_events::{Events, Reads};
use crate::cuda_stream::{checked_stream, ordered};
use crate::{DeviceBuffer, DeviceScalar, DeviceVec};

/// Values in device memory, borrowed for reading. cudarc's copies, kernel launches and libraries accept this
/// view like a `CudaView`.
///
/// [`CudaBuffer::as_view`](crate::CudaBuffer::as_view) returns a view of a buffer. For another container,
/// call [`DeviceVec::cuda_view`], [`DeviceScalar::cuda_view`] or [`DeviceBuffer::cuda_view`] with the
/// container's stream.
///
/// A view of a `CudaBuffer` has the events of the buffer. So cudarc orders uses of the view on any stream, as
/// it does for the [buffer](crate::CudaBuffer#several-streams).
///
/// A view of another container has no events. If cudarc copies such a view on another stream, that stream
/// waits for the container's stream, and the host waits for the copy. If you pass such a view to a kernel on
/// another stream, order that stream yourself.
///
/// ```no_run
/// use millpond_containers::DeviceVec;
/// use millpond_driver::cuda::{cudarc::driver::CudaContext, stream_ref_of};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let pool = millpond_resources::get_current_device_resource()?;
/// // SAFETY: `stream` outlives the vector.
/// let on = unsafe { stream_ref_of(&stream) }?;
/// let numbers = DeviceVec::from_host(&[1_u32, 2, 3], on, pool)?;
/// let view = numbers.cuda_view(&stream)?;
/// assert_eq!(stream.clone_dtoh(&view)?, [1, 2, 3]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CudaBufferView<'a, T> {
    /// In a place that a kernel's arguments can point to.
    address: CUdeviceptr,
    len: usize,
    stream: &'a Arc<CudaStream>,
    thread: Option<StreamId>,
    /// The same values with the events of the buffer, if it has any.
    tracked: Option<(CudaView<'a, T>, &'a Reads)>,
    values: PhantomData<&'a [T]>,
}

impl<T> Clone for CudaBufferView<'_, T> {
    fn clone(&self) -> Self {
        let tracked = self.tracked.as_ref().map(|(part, reads)| (part.slice(..), *reads));
        Self { tracked, ..self.untracked() }
    }
}

impl<'a, T> CudaBufferView<'a, T> {
    /// Returns the first `len` values of a buffer on this stream.
    pub(crate) fn of<R: DeviceMemoryResource>(
        buffer: &'a DeviceBuffer<R>,
        len: usize,
        stream: &'a Arc<CudaStream>,
    ) -> Self {
        let thread = buffer.thread();
        let address = buffer.as_ptr().address();
        Self { address, len, stream, thread, tracked: None, values: PhantomData }
    }

    /// Adds the events of the buffer.
    pub(crate) fn tracked_by(self, events: &'a Events<T>) -> Self {
        Self { tracked: Some((events.slice.as_view(), &events.reads)), ..self }
    }

    fn untracked(&self) -> Self {
        Self { tracked: None, ..*self }
    }

    fn checked<R: DeviceMemoryResource>(
        buffer: &'a DeviceBuffer<R>,
        len: usize,
        stream: &'a Arc<CudaStream>,
    ) -> Result<Self> {
        // SAFETY: the stream is borrowed, and its name is only compared, then dropped.
        let named = unsafe { checked_stream(stream, buffer.resource()) }?;
        // Two living streams with one handle are the same stream, even if the driver has no ids.
        if named != buffer.stream() && named.handle() != buffer.stream().handle() {
            return Err(Error::invalid_argument(format!(
                "the memory is on the stream {}, not on {named}; move it with set_stream first",
                buffer.stream()
            )));
        }
        Ok(Self::of(buffer, len, stream))
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the view has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a view of the values in `range`; `None` if `range` ends after the last value.
    pub fn try_slice(&self, range: impl RangeBounds<usize>) -> Option<Self> {
        let (start, end) = bounds(&range, self.len)?;
        let tracked = match &self.tracked {
            Some((part, reads)) => Some((part.try_slice(start..end)?, *reads)),
            None => None,
        };
        Some(Self { tracked, ..self.part(start, end) })
    }

    /// Returns these values without events.
    fn part(&self, start: usize, end: usize) -> Self {
        let address = self.address + (start * size_of::<T>()) as u64;
        Self { address, len: end - start, ..self.untracked() }
    }
}

/// Returns the first index of the range and the one after its last; `None` if the range ends beyond `len`.
fn bounds(range: &impl RangeBounds<usize>, len: usize) -> Option<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1)?,
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    (start <= end && end <= len).then_some((start, end))
}

/// Values in device memory, borrowed for reading and writing. cudarc accepts this view like a `CudaViewMut`.
/// The rules of [`CudaBufferView`] also apply to this view.
///
/// ```no_run
/// use millpond_containers::CudaBuffer;
/// use millpond_driver::cuda::cudarc::driver::CudaContext;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let stream = CudaContext::new(0)?.new_stream()?;
/// let pool = millpond_resources::get_current_device_resource()?;
/// let mut numbers = CudaBuffer::<u32>::zeroed(4, &stream, pool)?;
/// let mut whole = numbers.as_view_mut();
/// if let Some((_, mut second)) = whole.try_split_at_mut(2) {
///     stream.memcpy_htod(&[7, 8], &mut second)?;
/// }
/// assert_eq!(stream.clone_dtoh(&numbers)?, [0, 0, 7, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CudaBufferViewMut<'a, T> {
    /// Without the events, which `tracked` has.
    view: CudaBufferView<'a, T>,
    tracked: Option<(CudaViewMut<'a, T>, &'a Reads)>,
    values: PhantomData<&'a mut [T]>,
}

impl<'a, T> CudaBufferViewMut<'a, T> {
    /// The caller has borrowed the values for writing.
    pub(crate) fn of(view: CudaBufferView<'a, T>) -> Self {
        Self { view, tracked: None, values: PhantomData }
    }

    /// Adds the events of the buffer.
    pub(crate) fn tracked_by(view: CudaBufferView<'a, T>, events: &'a mut Events<T>) -> Self {
        Self { tracked: Some((events.slice.as_view_mut(), &events.reads)), ..Self::of(view) }
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.view.len
    }

    /// Returns whether the view has no values.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// Returns a view of the same values, for reading only.
    pub fn as_view(&self) -> CudaBufferView<'_, T> {
        let tracked = self.tracked.as_ref().map(|(part, reads)| (part.as_view(), *reads));
        CudaBufferView { tracked, ..self.view.untracked() }
    }

    /// Returns a view of the values in `range`; `None` if `range` ends after the last value.
    pub fn try_slice_mut(&mut self, range: impl RangeBounds<usize>) -> Option<CudaBufferViewMut<'_, T>> {
        let (start, end) = bounds(&range, self.view.len)?;
        let tracked = match &mut self.tracked {
            Some((part, reads)) => Some((part.try_slice_mut(start..end)?, *reads)),
            None => None,
        };
        Some(CudaBufferViewMut { tracked, ..CudaBufferViewMut::of(self.view.part(start, end)) })
    }

    /// Returns a view of the first `middle` values, and a view of all other values. Returns `None` if there
    /// are fewer than `middle` values.
    pub fn try_split_at_mut(
        &mut self,
        middle: usize,
    ) -> Option<(CudaBufferViewMut<'_, T>, CudaBufferViewMut<'_, T>)> {
        let (first, second) = (self.view.try_slice(..middle)?, self.view.try_slice(middle..)?);
        let (mut first, mut second) = (CudaBufferViewMut::of(first), CudaBufferViewMut::of(second));
        if let Some((part, reads)) = &mut self.tracked {
            let (one, other) = part.try_split_at_mut(middle)?;
            (first.tracked, second.tracked) = (Some((one, *reads)), Some((other, *reads)));
        }
        Some((first, second))
    }
}

/// Creates views of a vector for calls of cudarc. A kernel launch needs no view: pass the vector itself, as
/// `arg(&vec)` or `arg(&mut vec)`, and launch on the vector's stream, because the launch orders nothing. All
/// other calls need a view. `T` must be a type for which any bytes are a valid value, because the memory may
/// be uninitialised.
impl<T: Pod, R: DeviceMemoryResource> DeviceVec<T, R> {
    /// Returns a view with which cudarc reads the values. `stream` must be the vector's stream, as a
    /// `CudaStream` of cudarc. To use another stream, first move the vector to that stream with
    /// [`set_stream`](Self::set_stream).
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if `stream` is not the vector's stream;
    /// also the driver's errors.
    pub fn cuda_view<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Result<CudaBufferView<'a, T>> {
        CudaBufferView::checked(self.as_buffer(), self.len(), stream)
    }

    /// Returns a view with which cudarc reads and writes the values. `stream` must be the vector's stream, as
    /// for [`cuda_view`](Self::cuda_view).
    ///
    /// # Errors
    /// The errors of [`cuda_view`](Self::cuda_view).
    pub fn cuda_view_mut<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> Result<CudaBufferViewMut<'a, T>> {
        self.cuda_view(stream).map(CudaBufferViewMut::of)
    }
}

/// Creates views of a scalar for calls of cudarc; see [`DeviceVec::cuda_view`].
impl<T: Pod, R: DeviceMemoryResource> DeviceScalar<T, R> {
    /// Returns a view with which cudarc reads the value. `stream` must be the scalar's stream.
    ///
    /// # Errors
    /// The errors of [`DeviceVec::cuda_view`].
    pub fn cuda_view<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Result<CudaBufferView<'a, T>> {
        self.as_vec().cuda_view(stream)
    }

    /// Returns a view with which cudarc reads and writes the value. `stream` must be the scalar's stream.
    ///
    /// # Errors
    /// The errors of [`DeviceVec::cuda_view`].
    pub fn cuda_view_mut<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> Result<CudaBufferViewMut<'a, T>> {
        self.cuda_view(stream).map(CudaBufferViewMut::of)
    }
}

/// Creates views of a buffer's bytes for calls of cudarc; see [`DeviceVec::cuda_view`].
impl<R: DeviceMemoryResource> DeviceBuffer<R> {
    /// Returns a view with which cudarc reads the bytes. `stream` must be the buffer's stream.
    ///
    /// # Errors
    /// The errors of [`DeviceVec::cuda_view`].
    pub fn cuda_view<'a>(&'a self, stream: &'a Arc<CudaStream>) -> Result<CudaBufferView<'a, u8>> {
        let len = usize::try_from(self.len())
            .map_err(|_| Error::invalid_argument("this host cannot address that many bytes"))?;
        CudaBufferView::checked(self, len, stream)
    }

    /// Returns a view with which cudarc reads and writes the bytes. `stream` must be the buffer's stream.
    ///
    /// # Errors
    /// The errors of [`DeviceVec::cuda_view`].
    pub fn cuda_view_mut<'a>(&'a mut self, stream: &'a Arc<CudaStream>) -> Result<CudaBufferViewMut<'a, u8>> {
        self.cuda_view(stream).map(CudaBufferViewMut::of)
    }
}

impl<T> DeviceSlice<T> for CudaBufferView<'_, T> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.stream
    }
}

impl<T> DevicePtr<T> for CudaBufferView<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        if let Some((part, reads)) = &self.tracked
            && reads.are_managed(self.stream, stream)
        {
            return (self.address, reads.read_on(part, stream));
        }
        (self.address, ordered(self.stream, self.thread, stream))
    }
}

impl<T> DeviceSlice<T> for CudaBufferViewMut<'_, T> {
    fn len(&self) -> usize {
        self.view.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.view.stream
    }
}

impl<T> DevicePtr<T> for CudaBufferViewMut<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        if let Some((part, reads)) = &self.tracked
            && reads.are_managed(self.view.stream, stream)
        {
            return (self.view.address, reads.read_on(part, stream));
        }
        self.view.device_ptr(stream)
    }
}

impl<T> DevicePtrMut<T> for CudaBufferViewMut<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        if let Some((part, reads)) = &mut self.tracked
            && reads.are_managed(self.view.stream, stream)
        {
            return (self.view.address, reads.write_on(part, stream));
        }
        self.view.device_ptr(stream)
    }
}

// SAFETY: the argument is an address, which lives as long as the launch refers to it.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b CudaBufferView<'c, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b CudaBufferView<'c, T>) -> &mut Self {
        match &arg.tracked {
            Some((part, reads)) => {
                reads.are_managed(arg.stream, arg.stream);
                self.arg(part)
            }
            None => self.arg(&arg.address),
        }
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b mut CudaBufferViewMut<'c, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut CudaBufferViewMut<'c, T>) -> &mut Self {
        match &mut arg.tracked {
            Some((part, reads)) => {
                reads.become_write(part);
                self.arg(part)
            }
            None => self.arg(&arg.view.address),
        }
    }
}
