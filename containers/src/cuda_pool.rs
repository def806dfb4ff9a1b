//! A driver pool for programs whose memory cudarc allocates.

use millpond_core::Result;
use millpond_driver::cuda::CudaDriver;
use millpond_resources::memory_pool::{CurrentPool, MemoryPoolOptions};

/// Makes a pool of CUDA's stream-ordered allocator with these options, and lets cudarc allocate from it on
/// this device. candle and luminal allocate through cudarc, so this one line configures them as well.
/// Nothing else of the program changes.
///
/// The pool serves every `cuMemAllocAsync` of the process on the device until the result is dropped; then
/// the previous pool serves it again. Keep the result in `main`. Memory that is allocated by then stays
/// valid until it is freed.
///
/// By default, CUDA gives all free memory of a pool back to the device at each synchronisation. Set
/// [`release_threshold`](MemoryPoolOptions::release_threshold) to keep it for the next allocation.
/// [`max_bytes`](MemoryPoolOptions::max_bytes) limits the pool, and
/// [`reuse`](MemoryPoolOptions::reuse) decides which memory of other streams it hands out.
///
/// # Errors
/// [`Unsupported`](millpond_core::ErrorKind::Unsupported) if the device has no such pools: cudarc allocates
/// with `cuMemAlloc` there. Otherwise the errors of the driver and of [`CudaDriver::open`].
///
/// ```no_run
/// use millpond_containers::use_pool_in_cudarc;
/// use millpond_driver::cuda::cudarc::driver::CudaContext;
/// use millpond_resources::memory_pool::MemoryPoolOptions;
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let keep_all = MemoryPoolOptions::new().release_threshold(u64::MAX);
///     let pool = use_pool_in_cudarc(0, keep_all)?;
///
///     let stream = CudaContext::new(0)?.new_stream()?;
///     let zeros = stream.alloc_zeros::<f32>(1 << 20)?;
///     println!("{} of {} bytes are in use", pool.used_bytes()?, pool.reserved_bytes()?);
///     drop(zeros);
///     Ok(())
/// }
/// ```
pub fn use_pool_in_cudarc(ordinal: u32, options: MemoryPoolOptions) -> Result<CurrentPool> {
    CurrentPool::new(CudaDriver::open(ordinal)?, options)
}
