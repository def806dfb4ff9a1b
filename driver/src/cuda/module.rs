//! Loads device code and launches its functions.

use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use millpond_core::driver::{DriverError, DriverResult};
use millpond_core::{DeviceId, Driver, Error, Result, StreamRef};

use super::context::PrimaryContext;
use super::{CudaDriver, abi};

impl CudaDriver {
    /// Compiles PTX text for this device, and loads the compiled code.
    ///
    /// Tests, tools and examples use this method to run their own kernels without a compiler.
    ///
    /// # Errors
    /// `InvalidArgument` if the text contains a NUL character. Otherwise the driver's error, with the log of
    /// the driver's PTX compiler.
    pub fn load_ptx(&self, text: &str) -> Result<Module> {
        let image = CString::new(text)
            .map_err(|nul| Error::invalid_argument("PTX text must not contain a NUL").caused_by(nul))?;
        let load = || Ok((self.context.get()?, self.load_image(&image)?));
        let (context, handle) =
            load().map_err(|error: DriverError| Error::from(error).on_device(self.device()))?;
        Ok(Module(Arc::new(Loaded { context, device: self.device(), handle })))
    }

    fn load_image(&self, image: &CStr) -> DriverResult<u64> {
        let _context = self.enter()?;
        let mut log = [0_u8; 4096];
        let mut options = [abi::CU_JIT_ERROR_LOG_BUFFER, abi::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // CUDA takes the size itself in the slot where other options have a pointer. One byte is left for the
        // NUL.
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), ptr::without_provenance_mut(log.len() - 1)];
        let mut handle = 0;
        // SAFETY: the image is a C string, as PTX requires. There are as many values as options. The stated
        // log size does not exceed its buffer. All of them outlive the call.
        let answer = unsafe {
            self.functions().module_load_data_ex(
                &raw mut handle,
                image.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        match answer {
            Ok(()) => Ok(handle),
            Err(error) => Err(match CStr::from_bytes_until_nul(&log) {
                Ok(log) if !log.is_empty() => error.with_detail(log.to_string_lossy().trim()),
                _ => error,
            }),
        }
    }
}

/// Device code that [`CudaDriver::load_ptx`] has loaded. The code stays loaded as long as a clone of the
/// module, or a [`Function`] of the module, exists. Before you drop the last of them, wait until all kernels
/// of the module have finished.
#[derive(Clone)]
pub struct Module(Arc<Loaded>);

struct Loaded {
    context: PrimaryContext,
    device: DeviceId,
    handle: u64,
}

impl Module {
    /// Returns the kernel with this name.
    ///
    /// # Errors
    /// `InvalidArgument` if the module has no such kernel. Otherwise the driver's error.
    pub fn function(&self, name: &str) -> Result<Function> {
        let no_kernel = || {
            Error::invalid_argument(format!("the module has no kernel `{name}`; use the name of its .entry"))
                .on_device(self.0.device)
        };
        let c_name = CString::new(name).map_err(|_| no_kernel())?;
        let mut handle = 0;
        let mut look_up = || -> DriverResult<()> {
            let _context = self.0.context.enter()?;
            // SAFETY: `handle` takes the result, the name is a C string, and the module is loaded.
            unsafe {
                self.0.context.functions.module_get_function(&raw mut handle, self.0.handle, c_name.as_ptr())
            }
        };
        match look_up() {
            Ok(()) => Ok(Function { module: self.clone(), name: name.to_owned(), handle }),
            Err(error) if error.code() == DriverError::NOT_FOUND => Err(no_kernel().caused_by(error)),
            Err(error) => Err(Error::from(error).on_device(self.0.device)),
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let unload = || -> DriverResult<()> {
            let _context = self.context.enter()?;
            // SAFETY: nothing refers to the module any more.
            unsafe { self.context.functions.module_unload(self.handle) }
        };
        if let Err(error) = unload() {
            tracing::warn!(%error, device = %self.device, "cannot unload a module");
        }
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("device", &self.0.device).finish_non_exhaustive()
    }
}

/// A kernel of a [`Module`]. This value keeps the module loaded.
#[derive(Clone, Debug)]
pub struct Function {
    module: Module,
    name: String,
    handle: u64,
}

impl Function {
    /// Launches the kernel with `grid` blocks of `block` threads. Each block has `shared_bytes` bytes of
    /// dynamic shared memory.
    ///
    /// # Errors
    /// The driver's errors. The kernel itself may fail later, for example at an illegal address. A later call
    /// then reports the error.
    ///
    /// # Safety
    /// `args` points to one value for each parameter of the kernel. Each value has the type of its parameter.
    /// With these values, the kernel reads and writes in bounds. The accesses of the kernel are ordered
    /// against all other uses of the memory. The stream is alive and belongs to this device.
    pub unsafe fn launch(
        &self,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        stream: StreamRef,
        args: &mut [*mut c_void],
    ) -> Result<()> {
        let mut launch = || -> DriverResult<()> {
            let context = self.module.0.context;
            let _context = context.enter()?;
            // SAFETY: the caller vouches for the arguments, which the call copies; the module is loaded.
            unsafe {
                context.functions.launch_kernel(
                    self.handle,
                    grid[0],
                    grid[1],
                    grid[2],
                    block[0],
                    block[1],
                    block[2],
                    shared_bytes,
                    stream.handle(),
                    args.as_mut_ptr(),
                    ptr::null_mut(),
                )
            }
        };
        launch().map_err(|error| {
            Error::from(error).context(format!("kernel `{}`", self.name)).on_device(self.module.0.device)
        })
    }
}
