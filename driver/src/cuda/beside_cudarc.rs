//! Converts streams between millpond and cudarc.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use millpond_core::{DeviceId, Driver, Error, Result, StreamRef};

use super::CudaDriver;

/// Returns a stream of cudarc as an argument for millpond's calls.
///
/// The reference does not keep the stream alive: see [`StreamRef`].
///
/// # Errors
/// The errors of [`CudaDriver::open`] for the stream's device, and the driver's error if it does not know the
/// stream. [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the stream's context is not the
/// device's primary one, which millpond requires.
///
/// # Safety
/// The stream stays alive as long as the result, or a copy of it, is passed to calls.
pub unsafe fn stream_ref_of(stream: &CudaStream) -> Result<StreamRef> {
    let ordinal = ordinal_of(stream.context())?;
    // SAFETY: the borrowed stream is alive, and the caller promises to keep it so.
    Ok(unsafe { CudaDriver::open(ordinal)?.stream_ref(stream.cu_stream().addr() as u64) }?)
}

/// Returns a stream of millpond, or of another library, as a stream of cudarc. cudarc's kernels and copies
/// then run in the order of that stream. Dropping the result does not destroy the stream.
///
/// # Errors
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if `context` is not the primary one of
/// `driver`'s device.
///
/// # Safety
/// The stream belongs to `driver`'s device. Its owner keeps it alive while the returned stream, a clone of
/// it, or a value that holds one is in use.
pub unsafe fn cudarc_stream_of(
    stream: StreamRef,
    driver: &dyn Driver,
    context: &Arc<CudaContext>,
) -> Result<Arc<CudaStream>> {
    let ordinal = ordinal_of(context)?;
    if driver.device() != DeviceId::cuda(ordinal) {
        return Err(Error::invalid_argument(format!(
            "the context belongs to CUDA device {ordinal}, but the stream belongs to {}; use a context of \
             that device",
            driver.device()
        )));
    }
    let handle = usize::try_from(stream.handle()).map_err(|_| Error::invalid_argument("no such stream"))?;
    // SAFETY: the caller promises that the stream lives and stays alive. It belongs to this context, because
    // millpond works in the primary one.
    Ok(unsafe { context.wrap_borrowed_stream(ptr::with_exposed_provenance_mut(handle)) })
}

fn ordinal_of(context: &CudaContext) -> Result<u32> {
    if !context.is_primary() {
        return Err(Error::invalid_argument(
            "the stream's context is not the device's primary one; create the stream in a context from \
             `CudaContext::new`",
        ));
    }
    u32::try_from(context.ordinal()).map_err(|_| Error::invalid_argument("the device has no CUDA ordinal"))
}
