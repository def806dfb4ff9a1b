//! Streams for programs that use cudarc, in both directions.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use millpond_core::{DeviceId, Driver, Error, Result, StreamRef};

use super::CudaDriver;

/// A stream of cudarc's in the form that millpond's calls take.
///
/// The reference does not keep the stream alive: see [`StreamRef`].
///
/// # Errors
/// Those of [`CudaDriver::open`] for the stream's device; the driver's if it does not know the stream;
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if its context is not the device's primary
/// one, which millpond requires.
///
/// # Safety
/// The stream is kept alive as long as the result, or a copy of it, is passed to calls.
pub unsafe fn stream_ref_of(stream: &CudaStream) -> Result<StreamRef> {
    let ordinal = ordinal_of(stream.context())?;
    // SAFETY: the stream is alive, as it is borrowed, and stays so, as the caller promises.
    Ok(unsafe { CudaDriver::open(ordinal)?.stream_ref(stream.cu_stream().addr() as u64) }?)
}

/// A stream of millpond's as cudarc's, to launch kernels and to make copies with cudarc in the order of a
/// stream that another library owns. Dropping the result does not destroy the stream.
///
/// # Errors
/// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) if `context` is not the primary one of
/// `driver`'s device.
///
/// # Safety
/// The stream is of `driver`'s device, and its owner keeps it alive while the returned stream, a clone of it
/// or anything that holds one of them is used.
pub unsafe fn cudarc_stream_of(
    stream: StreamRef,
    driver: &dyn Driver,
    context: &Arc<CudaContext>,
) -> Result<Arc<CudaStream>> {
    let ordinal = ordinal_of(context)?;
    if driver.device() != DeviceId::cuda(ordinal) {
        return Err(Error::invalid_argument(format!(
            "the context is of CUDA's device {ordinal}, but the stream is of {}",
            driver.device()
        )));
    }
    let handle = usize::try_from(stream.handle()).map_err(|_| Error::invalid_argument("no such stream"))?;
    // SAFETY: the stream is living and stays so, as the caller promises, and is of this context: work of
    // millpond is done in the primary one.
    Ok(unsafe { context.wrap_borrowed_stream(ptr::with_exposed_provenance_mut(handle)) })
}

fn ordinal_of(context: &CudaContext) -> Result<u32> {
    if !context.is_primary() {
        return Err(Error::invalid_argument(
            "the stream is of a context of its own; make it in the device's primary one (`CudaContext::new`)",
        ));
    }
    u32::try_from(context.ordinal()).map_err(|_| Error::invalid_argument("the device has no CUDA ordinal"))
}
