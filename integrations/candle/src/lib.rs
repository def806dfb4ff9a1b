//! Runs [candle](https://github.com/huggingface/candle) on a CUDA memory pool with millpond's options, and
//! lends millpond's memory to candle as a tensor.
//!
//! - [`use_pool`] puts all tensors of candle on a driver pool. It changes no other line of the program.
//! - `lend_as_tensor` (feature `cuda`) makes a tensor over a `CudaBuffer` for the duration of a closure.

#[cfg(feature = "cuda")]
mod lend;

use candle_core::DeviceLocation;
use millpond::containers::use_pool_in_cudarc;
use millpond::resources::memory_pool::{CurrentPool, MemoryPoolOptions};
use millpond::{Error, ErrorKind, Result};

#[cfg(feature = "cuda")]
pub use lend::lend_as_tensor;

/// Creates a pool of CUDA's stream-ordered allocator, and makes candle allocate all tensors of the device
/// from it. Call it before you make tensors: existing tensors stay in their pool. Pass
/// `device.location()`.
///
/// The returned [`CurrentPool`] is the pool: it has `used_bytes`, `reserved_bytes`, `trim` and more. When it
/// is dropped, the previous pool becomes current again. Tensors of the pool stay valid. The pool serves every
/// `cuMemAllocAsync` of the process on this device. It does not serve the workspaces of cuBLAS and cuDNN.
///
/// # Errors
/// [`InvalidArgument`](ErrorKind::InvalidArgument) if the device is no CUDA device. Also the errors of
/// [`use_pool_in_cudarc`].
///
/// ```no_run
/// use candle_core::{DType, Device, Tensor};
/// use millpond::resources::memory_pool::MemoryPoolOptions;
/// use millpond_candle::use_pool;
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let device = Device::new_cuda(0)?;
///     // Keep freed memory, up to 8 GiB. CUDA's default returns it at each synchronisation.
///     let options = MemoryPoolOptions::new().release_threshold(u64::MAX).max_bytes(8 << 30);
///     let pool = use_pool(device.location(), options)?;
///
///     let ones = Tensor::ones((1024, 1024), DType::F32, &device)?;
///     println!("{} of {} bytes are in use", pool.used_bytes()?, pool.reserved_bytes()?);
///     drop(ones);
///     Ok(())
/// }
/// ```
pub fn use_pool(device: DeviceLocation, options: MemoryPoolOptions) -> Result<CurrentPool> {
    let DeviceLocation::Cuda { gpu_id } = device else {
        let message = format!("{device:?} is no CUDA device, and has no memory pool; pass a CUDA device");
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    };
    use_pool_in_cudarc(gpu_id as u32, options)
}
