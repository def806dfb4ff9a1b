//! The memory resources of millpond and the per-device registry.
//!
//! | resource | in text | what it does |
//! |---|---|---|
//! | [`CudaMemoryResource`] | `cuda` | plain device memory; synchronises at every call |
//! | [`ManagedMemoryResource`] | `managed` | memory that host and device share |
//! | [`CudaAsyncMemoryResource`] | `cuda_async` | a pool of CUDA's stream-ordered allocator |
//! | [`CudaAsyncViewMemoryResource`] | `cuda_async_view` | the device's default or current such pool |
//! | [`CudaAsyncManagedMemoryResource`] | `cuda_async_managed` | such a pool of managed memory |
//! | [`PoolMemoryResource`] | `pool` | best fit with coalescing over regions from upstream, in stream order |
//! | [`FixedSizeMemoryResource`] | `fixed_size` | blocks of one size, in stream order |
//! | [`BinningMemoryResource`] | `binning` | a resource per range of sizes |
//!
//! [`registry`] holds the default resource of each device; [`memory_pool`] has the driver's pools as a type.
//!
//! The pool consists of these folders, each of which uses only those below it:
//!
//! | folder | what it holds |
//! |---|---|
//! | [`pool`] | the resource: thread caches, arenas, the slow path, decay, reports |
//! | `backing` | physical memory: regions from upstream, or pages that the pool maps |
//! | `heap` | best fit with coalescing: chunks, bins, size classes |
//! | `block_map` | the map from addresses to blocks, without a lock |
//! | `stream_order` | streams, epochs, and the order between streams; no memory, no driver |
//! | `sync` | a spin lock; the standard library's atomics, or loom's |

mod backing;
pub mod binning;
mod block_map;
mod cuda_async;
mod driver_memory;
pub mod fixed_size;
mod heap;
pub mod memory_pool;
pub mod pool;
mod process;
pub mod registry;
#[cfg(unix)]
pub mod share;
mod stream_order;
mod sync;
mod tuning;

pub use binning::{BinningLayer, BinningMemoryResource};
pub use cuda_async::{
    CudaAsyncManagedMemoryResource, CudaAsyncMemoryResource, CudaAsyncOptions, CudaAsyncViewMemoryResource,
    HwDecompress,
};
pub use driver_memory::{CudaMemoryResource, ManagedMemoryResource};
pub use fixed_size::{FixedSizeLayer, FixedSizeMemoryResource, FixedSizeOptions};
pub use pool::{
    Decay, PagesMode, PeerList, Peers, Pool, PoolLayer, PoolMemoryResource, PoolOptions, Share, Slack,
};
pub use registry::{
    get_current_device_resource, get_per_device_resource, reset_current_device_resource,
    reset_per_device_resource, set_current_device_resource, set_per_device_resource,
};
pub use stream_order::Reuse;

use millpond_core::stack::LayerEntry;

/// The resources that a stack's text can name.
pub const LAYERS: &[LayerEntry] = &[
    driver_memory::CUDA,
    driver_memory::MANAGED,
    cuda_async::CUDA_ASYNC,
    cuda_async::CUDA_ASYNC_VIEW,
    cuda_async::CUDA_ASYNC_MANAGED,
    pool::ENTRY,
    fixed_size::ENTRY,
    binning::ENTRY,
];
