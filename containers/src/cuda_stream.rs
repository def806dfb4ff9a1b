//! Checks cudarc's streams against the memory, and orders uses.

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{self as theirs, CudaSlice, CudaStream, DevicePtrMut, SyncOnDrop};
use millpond_core::driver::DriverError;
use millpond_core::{DeviceMemoryResource, Error, Result, StreamId, StreamRef};
use millpond_driver::cuda::stream_ref_of;

/// Returns the stream as an argument for millpond's calls, if it belongs to the resource's device.
///
/// # Safety
/// The stream stays alive as long as the result is passed to calls.
pub(crate) unsafe fn checked_stream(
    stream: &CudaStream,
    resource: &impl DeviceMemoryResource,
) -> Result<StreamRef> {
    let (device, ordinal) = (resource.driver().device(), stream.context().ordinal());
    if !device.is_cuda() || device.ordinal() as usize != ordinal {
        return Err(Error::invalid_argument(format!(
            "the stream belongs to CUDA device {ordinal}, but the memory belongs to {device}"
        )));
    }
    // SAFETY: the caller's promise.
    unsafe { stream_ref_of(stream) }
}

/// Converts only the code: cudarc's text queries the driver, and panics without one.
pub(crate) fn failed(error: &theirs::DriverError, call: &'static str) -> Error {
    DriverError::new(error.0 as i32, call).into()
}

/// Orders `stream` for a use of memory that is otherwise used in the order of `own`. Dropping the result
/// orders `own` after that use. If `own` is the per-thread default stream, `thread` is the stream of the
/// thread that owns the memory.
pub(crate) fn ordered<'a>(
    own: &CudaStream,
    thread: Option<StreamId>,
    stream: &'a CudaStream,
) -> SyncOnDrop<'a> {
    let left_its_thread = thread.is_some_and(|thread| thread != StreamRef::PER_THREAD.id());
    let is_own = stream.cu_stream() == own.cu_stream() && stream.context() == own.context();
    if is_own && !left_its_thread {
        return SyncOnDrop::Record(None);
    }
    let waited = if left_its_thread {
        own.context().synchronize()
    } else {
        stream.join(own).or_else(|_| own.synchronize())
    };
    // cudarc has no other place for the error: its next call in this context returns it.
    stream.context().record_err(waited);
    SyncOnDrop::sync_stream(stream)
}

/// Orders the slice's stream after all uses that cudarc has tracked on others. Marks the present end of that
/// stream as the last write, so that tracked uses on other streams wait for it. Returns the slice's address.
///
/// # Errors
/// The driver's errors, and an error that cudarc has stored since its last call in this context.
pub(crate) fn order_tracked_uses<T>(slice: &mut CudaSlice<T>) -> Result<CUdeviceptr> {
    let stream = slice.stream().clone();
    let context = stream.context();
    context.bind_to_thread().map_err(|error| failed(&error, "an earlier call of cudarc"))?;
    let (address, recorded) = slice.device_ptr_mut(&stream);
    drop(recorded);
    context.check_err().map_err(|error| failed(&error, "cuStreamWaitEvent"))?;
    Ok(address)
}
