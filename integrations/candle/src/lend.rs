//! A tensor over memory of a `CudaBuffer`, for the duration of a closure.

use std::cell::RefCell;
use std::mem;

use candle_core::cuda_backend::CudaDType;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, InplaceOp1, Layout, Shape, Storage, Tensor};
use cudarc::driver::{CudaSlice, DeviceRepr};
use millpond::DeviceMemoryResource;
use millpond::containers::CudaBuffer;

/// Calls `uses` with a tensor over the buffer's memory, without a copy. Returns the result of `uses`. Later
/// work on the buffer's stream runs after the work of `uses`.
///
/// The tensor has candle's own type, so candle's operations accept it. Their results are ordinary tensors,
/// which may outlive the call.
///
/// # Errors
/// An error of candle if `shape` has another number of values than the buffer, or if the buffer's stream is
/// not the stream of `device`. Also the errors of `CudaBuffer::lend_as_cuda_slice_mut` and of `uses`.
///
/// # Safety
/// After the call, the program uses no tensor that shares the lent memory: no clone of the tensor, no view
/// such as a `reshape` or `narrow` of it, and no result through which candle computes gradients. candle's
/// types cannot express this, because every tensor owns its storage together with its clones. A tensor that
/// is used nevertheless has the memory of one value.
pub unsafe fn lend_as_tensor<T: CudaDType + DeviceRepr, R: DeviceMemoryResource, O>(
    buffer: &mut CudaBuffer<T, R>,
    device: &CudaDevice,
    shape: impl Into<Shape>,
    uses: impl FnOnce(&Tensor) -> candle_core::Result<O>,
) -> candle_core::Result<O> {
    let shape = shape.into();
    if shape.elem_count() != buffer.len() {
        candle_core::bail!("a tensor of shape {shape:?} does not have the buffer's {} values", buffer.len());
    }
    let stream = device.cuda_stream();
    if *buffer.stream() != stream {
        candle_core::bail!("the buffer is not on candle's stream; call `set_stream(&device.cuda_stream())`");
    }
    // SAFETY: nothing reads the value.
    let placeholder = unsafe { stream.alloc::<T>(1) }.map_err(candle_core::Error::wrap)?;
    // SAFETY: `Loan` moves the slice back to its place, also when `uses` panics.
    let done = unsafe {
        buffer.lend_as_cuda_slice_mut(|lent| {
            let slice = mem::replace(lent, placeholder);
            let storage = CudaStorage::wrap_cuda_slice(slice, device.clone());
            let tensor = Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false);
            let loan = Loan { tensor, lent: RefCell::new(lent) };
            uses(&loan.tensor)
        })
    };
    done.map_err(candle_core::Error::wrap)?
}

/// A tensor over lent memory. Dropping it exchanges the slices again.
struct Loan<'a, T: CudaDType> {
    tensor: Tensor,
    lent: RefCell<&'a mut CudaSlice<T>>,
}

impl<T: CudaDType> InplaceOp1 for Loan<'_, T> {
    fn name(&self) -> &'static str {
        "the end of a loan"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        candle_core::bail!("a lent tensor is on a CUDA device")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> candle_core::Result<()> {
        mem::swap(storage.as_cuda_slice_mut::<T>()?, *self.lent.borrow_mut());
        Ok(())
    }
}

impl<T: CudaDType> Drop for Loan<'_, T> {
    fn drop(&mut self) {
        if let Err(error) = self.tensor.inplace_op1(self) {
            // The tensor would free memory that is not cudarc's, so it must not end.
            mem::forget(self.tensor.clone());
            unreachable!("a contiguous tensor of CUDA takes part in any operation: {error}");
        }
    }
}
