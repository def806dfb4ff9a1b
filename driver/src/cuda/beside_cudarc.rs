//! Converts streams between millpond and cudarc.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use millpond_core::{DeviceId, Driver, Error, Result, StreamRef};

use super::CudaDriver;

/// Returns cudarc's stream in the form that millpond's calls take.
///
/// The reference does not keep the stream alive: see [`StreamRef`].
///
/// # Errors
/// Fails if [`CudaDriver::open`] fails for the stream's device or if the driver does not know the stream.
/// Returns [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the stream's context is not the
/// device's primary one, which millpond requires.
///
/// # Safety
/// The caller keeps the stream alive as long as it passes the result, or a copy, to calls.
pub unsafe fn stream_ref_of(stream: &CudaStream) -> Result<StreamRef> {
    let ordinal = ordinal_of(stream.context())?;
    // SAFETY: the borrowed stream is alive, and the caller promises to keep it so.
    Ok(unsafe { CudaDriver::open(ordinal)?.stream_ref(stream.cu_stream().addr() as u64) }?)
}

/// Returns millpond's stream as cudarc's, so that cudarc's kernels and copies run in the order of a stream
/// that another library owns. Dropping the result does not destroy the stream.
///
/// # Errors
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if `context` is not the primary one of
/// `driver`'s device.
///
/// # Safety
/// The stream belongs to `driver`'s device. Its owner keeps it alive while the returned stream, a clone of
/// it, or anything that holds one of them is used.
pub unsafe fn cudarc_stream_of(
    stream: StreamRef,
    driver: &dyn Driver,
    context: &Arc<CudaContext>,
) -> Result<Arc<CudaStream>> {
    let ordinal = ordinal_of(context)?;
    if driver.device() != DeviceId::cuda(ordinal) {
        return Err(Error::invalid_argument(format!(
            "the context belongs to CUDA device {ordinal}, but the stream belongs to {}",
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
            "the stream's context is not the device's primary one; create it there (`CudaContext::new`)",
        ));
    }
    u32::try_from(context.ordinal()).map_err(|_| Error::invalid_argument("the device has no CUDA ordinal"))
}
