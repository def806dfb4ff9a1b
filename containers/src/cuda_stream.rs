//! What the containers ask of cudarc's streams: that they fit the memory, and that uses are ordered.

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{self as theirs, CudaSlice, CudaStream, DevicePtrMut, SyncOnDrop};
use millpond_core::driver::DriverError;
use millpond_core::{DeviceMemoryResource, Error, Result, StreamId, StreamRef};
use millpond_driver::cuda::stream_ref_of;

/// The stream as millpond's calls take it, if it is of the resource's device.
///
/// # Safety
/// The stream is kept alive as long as the result is passed to calls.
pub(crate) unsafe fn checked_stream(
    stream: &CudaStream,
    resource: &impl DeviceMemoryResource,
) -> Result<StreamRef> {
    let (device, ordinal) = (resource.driver().device(), stream.context().ordinal());
    if !device.is_cuda() || device.ordinal() as usize != ordinal {
        return Err(Error::invalid_argument(format!(
            "the stream is of CUDA's device {ordinal}, but the memory is of {device}"
        )));
    }
    // SAFETY: the caller's promise.
    unsafe { stream_ref_of(stream) }
}

/// Converts the code alone: cudarc's text queries the driver, and panics without one.
pub(crate) fn failed(error: &theirs::DriverError, call: &'static str) -> Error {
    DriverError::new(error.0 as i32, call).into()
}

/// Orders `stream` for a use of memory that is used in the order of `own`; the result orders `own` after that
/// use when it is dropped. `thread` is the stream of the thread that the memory belongs to, if `own` is the
/// per-thread default stream.
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
    // cudarc has no other place for the error: the next call of this context returns it.
    stream.context().record_err(waited);
    SyncOnDrop::sync_stream(stream)
}

/// Orders the slice's stream after all uses that cudarc has tracked on others, and marks the present end of
/// that stream as the last write, which tracked uses on others wait for. Returns the slice's address.
///
/// # Errors
/// Those of the driver, and one that cudarc has stored since its last call in this context.
pub(crate) fn order_tracked_uses<T>(slice: &mut CudaSlice<T>) -> Result<CUdeviceptr> {
    let stream = slice.stream().clone();
    let context = stream.context();
    context.bind_to_thread().map_err(|error| failed(&error, "an earlier call of cudarc"))?;
    let (address, recorded) = slice.device_ptr_mut(&stream);
    drop(recorded);
    context.check_err().map_err(|error| failed(&error, "cuStreamWaitEvent"))?;
    Ok(address)
}
