//! A driver pool for programs whose memory cudarc allocates.

use millpond_core::Result;
use millpond_driver::cuda::CudaDriver;
use millpond_resources::memory_pool::{CurrentPool, MemoryPoolOptions};

/// Creates a pool of CUDA's stream-ordered allocator, and makes cudarc allocate slices from the pool.
/// `ordinal` is the number of the device. candle and luminal allocate through cudarc, so they use the pool,
/// too. You need not change the rest of the program, and the program may use any version of cudarc.
///
/// Until the returned value is dropped, the pool serves every `cuMemAllocAsync` of the process on the device.
/// After the drop, the previous pool serves these calls again. So keep the value in `main`. Memory from the
/// pool stays valid until it is freed, even after the drop.
///
/// Slices that exist before the call stay in their pool. The pool serves no other kinds of memory: no pinned
/// or managed memory, and no memory that a library such as cuBLAS allocates with `cudaMalloc`.
///
/// By default, CUDA returns all free memory of a pool to the device at each synchronisation. To keep the
/// memory for later allocations, set [`release_threshold`](MemoryPoolOptions::release_threshold).
/// [`max_bytes`](MemoryPoolOptions::max_bytes) limits the size of the pool.
/// [`reuse`](MemoryPoolOptions::reuse) decides how the pool may reuse memory that other streams have freed.
///
/// # Errors
/// [`Unsupported`](millpond_core::ErrorKind::Unsupported) if the device does not support such pools. (On such
/// a device, cudarc allocates with `cuMemAlloc`.) Also the errors of the driver and of [`CudaDriver::open`].
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
