//! CUDA, loaded at run time.
//!
//! Programs build, link and start where no CUDA is installed. There, [`availability`] says why CUDA cannot be
//! used, [`device_count`] is 0 and [`CudaDriver::open`] is an error; nothing panics.
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
//! cudarc is here so that programs that use it can pass their streams ([`stream_ref_of`]). Both share the
//! device's primary context, hence pointers and streams too.
//!
//! # Choosing the version of cudarc's bindings
//! cudarc wants exactly one `cuda-*` feature in a program, and its features are not additive. This crate
//! forwards them and takes `cuda-13000` by default; nothing here depends on which. A program whose other
//! crates choose another version turns the default features off and names that one. Linkage is left open
//! (`fallback-dynamic-loading`), so that crates which link CUDA at build time fit in beside this one.

mod abi;
mod context;
mod device;
mod driver_impl;
mod functions;
mod library;
mod module;

use cudarc::driver::CudaStream;
use millpond_core::{Driver, Error, ErrorKind, Result, StreamRef};

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

/// The ordinal of the device whose context is current on this thread; 0 where there is none.
pub fn current_ordinal() -> u32 {
    let Ok(cuda) = library::cuda() else { return 0 };
    let mut device = 0;
    // SAFETY: `device` takes the result; the call has no other argument.
    match unsafe { cuda.functions.ctx_get_device(&raw mut device) } {
        Ok(()) => u32::try_from(device).unwrap_or(0),
        Err(_no_context) => 0,
    }
}

/// A stream of cudarc's, as millpond's calls name it.
///
/// The reference does not keep the stream alive: see [`StreamRef`].
///
/// # Errors
/// As [`CudaDriver::open`] for the stream's device; the driver's where it does not know the stream.
pub fn stream_ref_of(stream: &CudaStream) -> Result<StreamRef> {
    let ordinal = u32::try_from(stream.context().ordinal())
        .map_err(|_| Error::invalid_argument("the stream's device has no CUDA ordinal"))?;
    Ok(CudaDriver::open(ordinal)?.stream_ref(stream.cu_stream().addr() as u64)?)
}

fn unavailable(error: &millpond_core::DriverError) -> Error {
    Error::new(
        ErrorKind::NoDevice,
        "CUDA cannot be used here; install or repair the NVIDIA driver, or use a simulated device, \
         for example sim:h200",
    )
    .caused_by(error.clone())
}
