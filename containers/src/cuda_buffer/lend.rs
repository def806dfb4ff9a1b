//! Lends a buffer to code that requires a `CudaSlice`.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut};
use millpond_core::{DeviceId, DeviceMemoryResource, Result};
use millpond_driver::CurrentDeviceGuard;

use super::CudaBuffer;
use crate::cuda_stream::{failed, order_tracked_uses, slice_over};

/// Lends a buffer to code that accepts only a `CudaSlice`. Other code accepts the buffer itself, or a view.
/// The memory still belongs to the buffer: cudarc never frees it, even if the closure panics.
///
/// The lent slice is on the buffer's stream: `slice.stream()` returns this stream. The closure may use the
/// slice on other streams. Like each `CudaSlice`, the slice remembers only its last read and its last write,
/// and only these uses run before the buffer's next use. If the closure reads the slice on several streams,
/// call `slice.stream().join(&other)` for each of them before the closure returns. If the closure then writes
/// the slice itself, the stream that writes must also join them.
///
/// The closure only borrows the slice, so it cannot keep the slice:
///
/// ```compile_fail,E0521
/// # use millpond_containers::CudaBuffer;
/// fn keep(buffer: &CudaBuffer<u8>) {
///     let mut kept = None;
///     buffer.lend_as_cuda_slice(|slice| kept = Some(slice)).unwrap();
/// }
/// ```
impl<T, R: DeviceMemoryResource> CudaBuffer<T, R> {
    /// Calls `reads` with a `CudaSlice` over the buffer's memory. Returns the result of `reads`.
    ///
    /// # Errors
    /// The driver's errors, and an error that cudarc has stored from an earlier call. If this method returns
    /// an error, it has not called `reads`. If an error occurs after `reads` has returned, cudarc's next call
    /// returns the error.
    ///
    /// ```no_run
    /// use millpond_containers::CudaBuffer;
    /// use millpond_driver::cuda::cudarc::driver::{CudaSlice, DriverError};
    ///
    /// fn theirs(slice: &CudaSlice<f32>) -> Result<Vec<f32>, DriverError> {
    ///     slice.stream().clone_dtoh(slice)
    /// }
    ///
    /// fn ours(buffer: &CudaBuffer<f32>) -> millpond_core::Result<Result<Vec<f32>, DriverError>> {
    ///     buffer.lend_as_cuda_slice(theirs)
    /// }
    /// ```
    pub fn lend_as_cuda_slice<O>(&self, reads: impl FnOnce(&CudaSlice<T>) -> O) -> Result<O> {
        let loan = Loan::begin(&self.stream)?;
        // For the buffer, the loan is a read on its own stream.
        let (address, _recorded) = self.device_ptr(&self.stream);
        let lent = loan.lend(address, self.len)?;
        Ok(reads(&lent.slice))
    }

    /// Calls `writes` with a mutable view of a `CudaSlice` over the buffer's memory. Returns the result of
    /// `writes`. The view is the result of `CudaSlice::as_view_mut`.
    ///
    /// # Errors
    /// The errors of [`lend_as_cuda_slice`](Self::lend_as_cuda_slice).
    pub fn lend_as_cuda_view_mut<O>(&mut self, writes: impl FnOnce(CudaViewMut<'_, T>) -> O) -> Result<O> {
        let (stream, len) = (Arc::clone(&self.stream), self.len);
        let loan = Loan::begin(&stream)?;
        let (address, _recorded) = self.device_ptr_mut(&stream);
        let mut lent = loan.lend(address, len)?;
        Ok(writes(lent.slice.as_view_mut()))
    }

    /// Calls `writes` with a mutable `CudaSlice` over the buffer's memory. Returns the result of `writes`. If
    /// a view is enough, use the safe [`lend_as_cuda_view_mut`](Self::lend_as_cuda_view_mut).
    ///
    /// # Errors
    /// The errors of [`lend_as_cuda_slice`](Self::lend_as_cuda_slice).
    ///
    /// # Safety
    /// When `writes` returns or panics, the slice that it borrowed must be in its original place. If `writes`
    /// has moved the slice out, as with `mem::replace`, it must have moved the same slice back. `writes` must
    /// not drop the slice, because cudarc would then free memory of the resource.
    pub unsafe fn lend_as_cuda_slice_mut<O>(
        &mut self,
        writes: impl FnOnce(&mut CudaSlice<T>) -> O,
    ) -> Result<O> {
        let (stream, len) = (Arc::clone(&self.stream), self.len);
        let loan = Loan::begin(&stream)?;
        let (address, _recorded) = self.device_ptr_mut(&stream);
        let mut lent = loan.lend(address, len)?;
        Ok(writes(&mut lent.slice))
    }
}

/// The current context, and the stream of the buffer.
struct Loan<'a> {
    stream: &'a Arc<CudaStream>,
    _current: CurrentDeviceGuard,
}

impl<'a> Loan<'a> {
    fn begin(stream: &'a Arc<CudaStream>) -> Result<Self> {
        let _current = CurrentDeviceGuard::new(device_of(stream))?;
        stream.context().bind_to_thread().map_err(|error| failed(&error, "an earlier call of cudarc"))?;
        Ok(Self { stream, _current })
    }

    /// The memory at this address has `len` values, and the stream is ordered after their uses.
    fn lend<T>(&self, address: u64, len: usize) -> Result<Lent<T>> {
        // SAFETY: the memory is borrowed as long as the slice, holds that many initialised values, and is not
        // freed by the slice.
        let mut lent = Lent { slice: unsafe { slice_over(self.stream, address, len) }? };
        // The slice's events are new, so record the point for which other streams must wait.
        order_tracked_uses(&mut lent.slice)?;
        Ok(lent)
    }
}

fn device_of(stream: &CudaStream) -> DeviceId {
    DeviceId::cuda(stream.context().ordinal() as u32)
}

/// A slice over memory that does not belong to cudarc. Dropping it ends the loan and frees nothing.
struct Lent<T> {
    slice: ManuallyDrop<CudaSlice<T>>,
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        let context = Arc::clone(self.slice.context());
        let _current = CurrentDeviceGuard::new(device_of(self.slice.stream()));
        // SAFETY: the slice is not used again.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // Its stream waits for the tracked uses. The buffer still owns the memory.
        slice.leak();
        let outcome = context.check_err();
        if outcome.is_err() {
            context.record_err(context.synchronize());
        }
        context.record_err(outcome);
    }
}
