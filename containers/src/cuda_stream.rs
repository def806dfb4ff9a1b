//! Checks cudarc's streams against the memory, and orders uses.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{self as theirs, CudaSlice, CudaStream, DevicePtrMut, SyncOnDrop};
use millpond_core::driver::DriverError;
use millpond_core::{
    DeviceId, DeviceMemoryResource, Driver, DriverHandle, Error, ErrorKind, Result, StreamId, StreamRef,
};
use millpond_driver::cuda::{CudaDriver, stream_ref_of};

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
            "the stream belongs to CUDA device {ordinal}, but the memory belongs to {device}; use a stream \
             of that device"
        )));
    }
    // SAFETY: the caller's promise.
    unsafe { stream_ref_of(stream) }
}

/// Converts only the code: cudarc's text queries the driver, and panics without one.
pub(crate) fn failed(error: &theirs::DriverError, call: &'static str) -> Error {
    DriverError::new(error.0 as i32, call).into()
}

/// Returns whether the memory and the events of this driver's device are lost: after a sticky error, or after
/// a reset of the context, which may have given the addresses to other allocations.
pub(crate) fn is_lost(driver: &DriverHandle) -> bool {
    let health = driver.health();
    let is_same = || {
        let opened = CudaDriver::open(driver.device().ordinal());
        opened.is_ok_and(|driver| Arc::ptr_eq(driver.health(), health))
    };
    health.is_lost() || !is_same()
}

/// Returns whether both are the same stream.
pub(crate) fn is_same(own: &CudaStream, stream: &CudaStream) -> bool {
    stream.cu_stream() == own.cu_stream() && stream.context() == own.context()
}

/// Orders `stream` for one use of memory that is otherwise used in the order of `own`, without the events of
/// the memory. Dropping the result makes the host wait for the use.
///
/// If `own` is the per-thread default stream, `thread` is the stream of the thread that owns the memory.
pub(crate) fn ordered<'a>(
    own: &CudaStream,
    thread: Option<StreamId>,
    stream: &'a CudaStream,
) -> SyncOnDrop<'a> {
    let left_its_thread = thread.is_some_and(|thread| thread != StreamRef::PER_THREAD.id());
    if is_same(own, stream) && !left_its_thread {
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

/// Returns a slice that does not own its memory.
///
/// # Safety
/// As for cudarc's `upgrade_device_ptr`, and the slice is not dropped.
pub(crate) unsafe fn slice_over<T>(
    stream: &Arc<CudaStream>,
    address: CUdeviceptr,
    len: usize,
) -> Result<ManuallyDrop<CudaSlice<T>>> {
    // SAFETY: the caller's promise.
    let upgrade = || ManuallyDrop::new(unsafe { stream.upgrade_device_ptr::<T>(address, len) });
    // cudarc panics if it cannot make the slice's events.
    catch_unwind(AssertUnwindSafe(upgrade)).map_err(|_panic| {
        let device = DeviceId::cuda(stream.context().ordinal() as u32);
        Error::new(ErrorKind::Driver, "cudarc could not make the events of a slice").on_device(device)
    })
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
