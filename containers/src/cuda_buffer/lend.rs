//! Lends a buffer to code that requires a `CudaSlice`.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaViewMut};
use millpond_core::{DeviceId, DeviceMemoryResource, Error, ErrorKind, Result};
use millpond_driver::CurrentDeviceGuard;

use super::CudaBuffer;
use crate::cuda_stream::{failed, order_tracked_uses};

/// For code that takes only a `CudaSlice`: other code takes the buffer itself, or a view. The buffer keeps
/// the memory: cudarc never frees it, even if the closure panics. cudarc orders uses on other streams, as for
/// its own slices, before the buffer's next use.
///
/// The closure only borrows the slice, so it cannot keep it:
///
/// ```compile_fail,E0521
/// # use millpond_containers::CudaBuffer;
/// fn keep(buffer: &CudaBuffer<u8>) {
///     let mut kept = None;
///     buffer.lend_as_cuda_slice(|slice| kept = Some(slice)).unwrap();
/// }
/// ```
impl<T, R: DeviceMemoryResource> CudaBuffer<T, R> {
    /// Calls `reads` with a slice over this memory.
    ///
    /// # Errors
    /// The driver's errors, and an error that cudarc stored before; `reads` was not called then. cudarc's
    /// next call returns an error that occurs afterwards.
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
        let lent = self.lend()?;
        Ok(reads(&lent.slice))
    }

    /// Calls `writes` with a view of a slice over this memory, as `CudaSlice::as_view_mut` returns it.
    ///
    /// # Errors
    /// The errors of [`lend_as_cuda_slice`](Self::lend_as_cuda_slice).
    pub fn lend_as_cuda_view_mut<O>(&mut self, writes: impl FnOnce(CudaViewMut<'_, T>) -> O) -> Result<O> {
        let mut lent = self.lend()?;
        Ok(writes(lent.slice.as_view_mut()))
    }

    /// Calls `writes` with a slice over this memory. Prefer
    /// [`lend_as_cuda_view_mut`](Self::lend_as_cuda_view_mut).
    ///
    /// # Errors
    /// The errors of [`lend_as_cuda_slice`](Self::lend_as_cuda_slice).
    ///
    /// # Safety
    /// However `writes` ends, the slice must be in its place. A slice that was moved out, as with
    /// `mem::replace`, must have been moved in again and not dropped: cudarc would free memory of the
    /// resource.
    pub unsafe fn lend_as_cuda_slice_mut<O>(
        &mut self,
        writes: impl FnOnce(&mut CudaSlice<T>) -> O,
    ) -> Result<O> {
        let mut lent = self.lend()?;
        Ok(writes(&mut lent.slice))
    }

    fn lend(&self) -> Result<Lent<T>> {
        let _current = CurrentDeviceGuard::new(self.buffer.device())?;
        let context = self.stream.context();
        // cudarc panics if it cannot make the slice's events, for example if it has stored an error.
        context.bind_to_thread().map_err(|error| failed(&error, "an earlier call of cudarc"))?;
        let left_its_thread = self.buffer.left_its_thread();
        if left_its_thread {
            context.synchronize().map_err(|error| failed(&error, "cuCtxSynchronize"))?;
        }
        let address = self.buffer.as_ptr().address();
        // SAFETY: the memory is borrowed as long as the slice, holds that many initialised values, and is not
        // freed by the slice.
        let upgrade = || unsafe { self.stream.upgrade_device_ptr::<T>(address, self.len) };
        let slice = catch_unwind(AssertUnwindSafe(upgrade)).map_err(|_panic| {
            Error::new(ErrorKind::Driver, "cudarc could not make the events of a slice")
                .on_device(self.buffer.device())
        })?;
        let slice = ManuallyDrop::new(slice);
        let mut lent = Lent { slice, context: Arc::clone(context), left_its_thread };
        // The slice's events are new, so record the point for which other streams must wait.
        order_tracked_uses(&mut lent.slice)?;
        Ok(lent)
    }
}

/// A slice over memory that does not belong to cudarc. Dropping it ends the loan and frees nothing.
struct Lent<T> {
    slice: ManuallyDrop<CudaSlice<T>>,
    context: Arc<CudaContext>,
    left_its_thread: bool,
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        let device = DeviceId::cuda(self.context.ordinal() as u32);
        let _current = CurrentDeviceGuard::new(device);
        // SAFETY: the slice is not used again.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // Its stream waits for the tracked uses. The buffer still owns the memory.
        slice.leak();
        let outcome = self.context.check_err();
        if outcome.is_err() || self.left_its_thread {
            self.context.record_err(self.context.synchronize());
        }
        self.context.record_err(outcome);
    }
}
