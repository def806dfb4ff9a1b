//! CUDA, loaded at run time.
//!
//! Programs build, link and start without CUDA. Then [`availability`] returns the reason, [`device_count`] is
//! 0 and [`CudaDriver::open`] is an error; nothing panics.
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
//! # Why the functions are not called through cudarc
//! cudarc panics where the library or a function is missing, and declares results as a closed enum, so that
//! an error code of a newer driver is undefined behaviour. Its loader exists only while no other crate of the
//! program has asked for linking at build time, and looks for `libcuda.so` first, which may be a toolkit's
//! stub. Hence libloading directly, a table of optional functions that return plain numbers, and structures
//! of our own, which the tests compare with cudarc's.
//!
//! # Beside cudarc
//! With the feature `cudarc`, which is on by default, streams pass in both directions ([`stream_ref_of`],
//! [`cudarc_stream_of`]) and [`cudarc`] is re-exported. Both use the device's primary context,
//! hence each other's pointers and streams.
//!
//! cudarc compiles the bindings of one version of CUDA, and a program that selects two does not build. So
//! this crate selects none: it uses the version that another crate of the program selects, and works with
//! any. If no crate selects one, cudarc asks `nvcc`, and without `nvcc` takes the newest version that it
//! knows. A feature such as `cuda-12080` selects one, as does the environment variable `CUDARC_CUDA_VERSION`;
//! that helps where `nvcc` is newer than cudarc, which refuses to build then. Linkage is left open in the
//! same way (`fallback-dynamic-loading`).

mod abi;
#[cfg(feature = "cudarc")]
mod beside_cudarc;
mod capture;
mod capture_mode;
mod context;
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
/// The crate whose streams and buffers are meant.
#[cfg(feature = "cudarc")]
pub use cudarc;
pub use device::CudaDriver;
pub use module::{Function, Module};

/// The number of CUDA devices; 0 where CUDA cannot be used.
pub fn device_count() -> u32 {
    library::cuda().map_or(0, |cuda| cuda.device_count)
}

/// Whether CUDA can be used. The first call loads the driver library and initialises it; the answer stays.
///
/// # Errors
/// [`ErrorKind::NoDevice`], with the driver's reason, where there is no driver or no device.
pub fn availability() -> Result<()> {
    library::cuda().map(drop).map_err(unavailable)
}

/// Whether CUDA can be used: [`availability`] without the reason.
pub fn is_available() -> bool {
    library::cuda().is_ok()
}

/// The ordinal of the device whose context is current on this thread; `None` if there is none.
pub fn current_ordinal() -> Option<u32> {
    let cuda = library::cuda().ok()?;
    let (mut context, mut device) = (0, 0);
    // Without a context, only this call is quick.
    // SAFETY: `context` takes the result.
    unsafe { cuda.functions.ctx_get_current(&raw mut context) }.ok().filter(|()| context != 0)?;
    // SAFETY: `device` takes the result; the call has no other argument.
    unsafe { cuda.functions.ctx_get_device(&raw mut device) }.ok()?;
    u32::try_from(device).ok()
}

/// The device of a stream's context. `None` if CUDA cannot be used, or its driver cannot tell. It
/// touches no other device.
///
/// # Errors
/// The driver's if it does not know the stream.
///
/// # Safety
/// The stream is alive, or a default one.
pub unsafe fn device_of_stream(handle: u64) -> Result<Option<DeviceId>> {
    let Ok(cuda) = library::cuda() else { return Ok(None) };
    let (mut context, mut device) = (0, 0);
    // SAFETY: `context` takes the result; the caller vouches for the stream.
    match unsafe { cuda.functions.stream_get_ctx(handle, &raw mut context) } {
        Ok(()) => {}
        Err(error) if error.is_unsupported() => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    // The context exists, since its stream does: to make it current retains nothing.
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
