//! Converts streams between millpond and cudarc.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use millpond_core::{DeviceId, Driver, Error, Result, StreamRef};

use super::CudaDriver;

/// Converts a stream of cudarc to a [`StreamRef`], the argument type of millpond's calls. A `StreamRef` does
/// not keep its stream alive.
///
/// # Errors
/// The errors of [`CudaDriver::open`] for the stream's device. The driver's error if the driver does not know
/// the stream. [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if the stream's context is not
/// the primary context of the device, which millpond requires.
///
/// # Safety
/// The stream stays alive as long as the returned value, or a copy of it, is passed to calls.
pub unsafe fn stream_ref_of(stream: &CudaStream) -> Result<StreamRef> {
    let ordinal = ordinal_of(stream.context())?;
    // SAFETY: the borrowed stream is alive, and the caller promises to keep it so.
    Ok(unsafe { CudaDriver::open(ordinal)?.stream_ref(stream.cu_stream().addr() as u64) }?)
}

/// Converts a stream of millpond, or of another library, to a stream of cudarc. Kernels and copies of cudarc
/// then run in the order of that stream. Dropping the returned value does not destroy the stream.
///
/// # Errors
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if `context` is not the primary context of
/// the device of `driver`.
///
/// # Safety
/// The stream belongs to the device of `driver`. The stream stays alive while the returned value, a clone of
/// it, or an object that contains one of them is in use.
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
    let handle = usize::try_from(stream.handle())
        .map_err(|_| Error::invalid_argument("the stream's handle is too large"))?;
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
    u32::try_from(context.ordinal())
        .map_err(|_| Error::invalid_argument("the context's device number is invalid"))
}
