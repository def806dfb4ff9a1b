//! Calls CUDA, which is loaded at run time.
//!
//! Programs build, link and start on a machine without CUDA. In that case, nothing panics: [`availability`]
//! returns the reason, [`device_count`] returns 0, and [`CudaDriver::open`] returns an error.
//!
//! ```
//! use millpond_driver::cuda::{self, CudaDriver};
//!
//! match cuda::availability() {
//!     Ok(()) => println!("{:?}", CudaDriver::open(0)?),
//!     Err(error) => println!("{error}"), // says what to do
//! }
//! # Ok::<(), millpond_core::Error>(())
//! ```
//!
//! # Why millpond does not call CUDA through cudarc
//! Calling CUDA through cudarc would have three problems:
//! - cudarc panics if the CUDA library or a function is missing.
//! - cudarc declares the results of CUDA as a closed enum. If a newer driver returns an unknown error code,
//!   the behaviour is undefined.
//! - Another crate of the program may ask cudarc to link CUDA at build time. Then cudarc does not load CUDA
//!   at run time. Otherwise, cudarc's loader first looks for `libcuda.so`, which may be a toolkit's stub.
//!
//! So millpond loads CUDA itself, with the crate libloading. If a function of CUDA is missing, calls of it
//! return an error. Every function returns its error code as a plain number. millpond also declares CUDA's
//! structures itself. The tests compare these structures with cudarc's structures.
//!
//! # Using millpond with cudarc
//! The feature `cudarc` is on by default. It re-exports the crate [`cudarc`], and adds two functions that
//! convert streams: [`stream_ref_of`] and [`cudarc_stream_of`]. millpond and cudarc use the same primary
//! context of the device. So each can use the pointers and streams of the other.
//!
//! cudarc compiles the bindings of one CUDA version. If two crates of a program select different versions,
//! cudarc does not build. So this crate selects none, and works with the version that another crate selects.
//! If no crate selects a version, cudarc uses the version of `nvcc`. Without `nvcc`, cudarc uses the newest
//! version that it knows.
//!
//! A feature such as `cuda-12080`, or the environment variable `CUDARC_CUDA_VERSION`, selects a version. You
//! need such a selection if `nvcc` is newer than cudarc, because cudarc then refuses to build. This crate
//! also does not select how cudarc is linked (`fallback-dynamic-loading`): other crates select it.

mod abi;
#[cfg(feature = "cudarc")]
mod beside_cudarc;
mod capture;
mod capture_mode;
mod context;
mod copies;
mod device;
mod driver_impl;
mod functions;
mod host;
mod library;
mod living;
mod module;
mod peers;
mod physical;
mod pools;
mod wait;

use millpond_core::{DeviceId, Error, ErrorKind, Result};

#[cfg(feature = "cudarc")]
pub use beside_cudarc::{cudarc_stream_of, stream_ref_of};
pub use capture::{Graph, GraphExec};
pub(crate) use context::ContextGuard;
/// The crate cudarc. millpond converts streams and buffers to and from its types.
#[cfg(feature = "cudarc")]
pub use cudarc;
pub use device::CudaDriver;
pub use module::{Function, Module};

/// Returns the number of CUDA devices; 0 if CUDA cannot be used.
pub fn device_count() -> u32 {
    library::cuda().map_or(0, |cuda| cuda.device_count)
}

/// Checks whether CUDA can be used. The first call loads and initialises the driver library. Later calls
/// return the same result.
///
/// # Errors
/// [`ErrorKind::NoDevice`] if there is no driver or no device. The message contains the driver's reason.
pub fn availability() -> Result<()> {
    library::cuda().map(drop).map_err(unavailable)
}

/// Returns whether CUDA can be used. [`availability`] also returns the reason.
pub fn is_available() -> bool {
    library::cuda().is_ok()
}

/// Returns the ordinal of the device whose context is current on the calling thread. Returns `None` if no
/// context is current.
pub fn current_ordinal() -> Option<u32> {
    let cuda = library::cuda().ok()?;
    let (mut context, mut device) = (0, 0);
    // Without a context, only this call is fast.
    // SAFETY: `context` takes the result.
    unsafe { cuda.functions.ctx_get_current(&raw mut context) }.ok().filter(|()| context != 0)?;
    // SAFETY: `device` takes the result; the call has no other argument.
    unsafe { cuda.functions.ctx_get_device(&raw mut device) }.ok()?;
    u32::try_from(device).ok()
}

/// Returns the device of a stream's context. Returns `None` if CUDA cannot be used, or if the driver cannot
/// tell the device. The call creates no context.
///
/// # Errors
/// The driver's error if the driver does not know the stream.
///
/// # Safety
/// The stream is alive, or it is a default stream.
pub unsafe fn device_of_stream(handle: u64) -> Result<Option<DeviceId>> {
    let Ok(cuda) = library::cuda() else { return Ok(None) };
    let (mut context, mut device) = (0, 0);
    // SAFETY: `context` takes the result; the caller vouches for the stream.
    match unsafe { cuda.functions.stream_get_ctx(handle, &raw mut context) } {
        Ok(()) => {}
        Err(error) if error.is_unsupported() => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    // The stream's context exists, so making it current retains nothing.
    let _current = context::ContextGuard::of(&cuda.functions, context)?;
    // SAFETY: `device` takes the result; the call has no other argument.
    unsafe { cuda.functions.ctx_get_device(&raw mut device) }?;
    Ok(u32::try_from(device).ok().map(DeviceId::cuda))
}

fn unavailable(error: &millpond_core::DriverError) -> Error {
    Error::new(
        ErrorKind::NoDevice,
        "CUDA cannot be used here; install or repair the NVIDIA driver, or use a simulated device, \
         for example sim:h200",
    )
    .caused_by(error.clone())
}
