//! Provides the memory resources of millpond, and the registry that holds the default resource of each
//! device.
//!
//! | resource | in text | purpose |
//! |---|---|---|
//! | [`CudaMemoryResource`] | `cuda` | plain device memory; every call synchronises with the device |
//! | [`ManagedMemoryResource`] | `managed` | memory that host and device share |
//! | [`CudaAsyncMemoryResource`] | `cuda_async` | its own pool of CUDA's stream-ordered allocator |
//! | [`CudaAsyncViewMemoryResource`] | `cuda_async_view` | an existing pool of that allocator |
//! | [`CudaAsyncManagedMemoryResource`] | `cuda_async_managed` | the driver's pool of managed memory |
//! | [`CudaAsyncPinnedMemoryResource`] | `cuda_async_pinned` | a pool of pinned host memory of the driver |
//! | [`PinnedHostMemoryResource`] | `pinned_host` | pinned host memory that the device can access |
//! | [`PageableHostMemoryResource`] | `host` | memory of the system's allocator, for the host only |
//! | [`SystemMemoryResource`] | `system` | memory of the system's allocator, on a device that can access it |
//! | [`SamHeadroomMemoryResource`] | `sam_headroom` | like `system`, but keeps device memory free |
//! | [`CallbackMemoryResource`] | | calls functions of the program |
//! | [`PoolMemoryResource`] | `pool` | a growing, stream-ordered pool: best fit with coalescing |
//! | [`ArenaMemoryResource`] | `arena` | a pool that allocates much of the device's memory at its start |
//! | [`FixedSizeMemoryResource`] | `fixed_size` | blocks of one size, in stream order |
//! | [`BinningMemoryResource`] | `binning` | passes each request to the resource for its size |
//! | [`CaptureScopesMemoryResource`] | `capture_scopes` | keeps the memory of captured graphs, by scope |
//!
//! [`registry`] holds the default resource of each device. [`memory_pool`] contains a type for the pools of
//! CUDA's stream-ordered allocator.
//!
//! The pool consists of the following modules. A module uses only modules in the lines below its own:
//!
//! | module | content |
//! |---|---|
//! | [`pool`] | the resource: thread caches, arenas, the slow path, decay, reports |
//! | `store` | physical memory: regions from upstream, or pages that the pool maps |
//! | `heap` | finds the smallest free block that fits, and joins free neighbours |
//! | `block_map` | the lock-free map from addresses to blocks |
//! | `stream_order` | decides which stream may use a free block; holds no memory, makes no driver calls |
//! | `sync` | a spin lock; atomics of the standard library, or of loom |

pub mod arena;
pub mod binning;
mod block_map;
mod callback; // no text can name its functions
pub mod capture_scopes;
mod cuda_async;
mod debug_as_text;
mod driver_calls;
mod driver_memory;
pub mod fixed_size;
mod heap;
pub mod host_memory;
pub mod memory_pool;
mod out_of_memory;
pub mod pool;
mod process;
pub mod registry;
#[cfg(unix)]
pub mod share;
mod store;
mod stream_order;
mod sync;
mod tuning;
mod upstream;

pub use arena::{ArenaLayer, ArenaMemoryResource, ArenaOptions};
pub use binning::{BinningLayer, BinningMemoryResource};
pub use callback::CallbackMemoryResource;
pub use capture_scopes::{
    CaptureScope, CaptureScopes, CaptureScopesLayer, CaptureScopesMemoryResource, ScopedStream,
};
pub use cuda_async::{
    CudaAsyncManagedMemoryResource, CudaAsyncMemoryResource, CudaAsyncOptions, CudaAsyncPinnedMemoryResource,
    CudaAsyncPinnedOptions, CudaAsyncViewMemoryResource, HwDecompress,
};
pub use driver_memory::{CudaMemoryResource, ManagedMemoryResource, PinnedHostMemoryResource};
pub use fixed_size::{FixedSizeLayer, FixedSizeMemoryResource, FixedSizeOptions};
pub use host_memory::{
    AnyHostResource, HostMemoryResource, HostResource, PageableHostMemoryResource, SamHeadroomMemoryResource,
    SystemMemoryResource,
};
pub use pool::{Decay, PagesMode, PeerList, Peers, Pool, PoolLayer, PoolMemoryResource, PoolOptions, Share};
pub use registry::{
    get_current_device_resource, get_per_device_resource, replace_per_device_resource,
    reset_current_device_resource, reset_per_device_resource, set_current_device_resource,
    set_per_device_resource,
};
pub use stream_order::Reuse;

use millpond_core::stack::LayerEntry;

/// The layers of this crate that the text of a stack can name.
pub const LAYERS: &[LayerEntry] = &[
    driver_memory::CUDA,
    driver_memory::MANAGED,
    cuda_async::CUDA_ASYNC,
    cuda_async::CUDA_ASYNC_VIEW,
    cuda_async::CUDA_ASYNC_MANAGED,
    cuda_async::CUDA_ASYNC_PINNED,
    driver_memory::PINNED_HOST,
    host_memory::HOST,
    host_memory::SYSTEM,
    host_memory::SAM_HEADROOM,
    pool::ENTRY,
    fixed_size::ENTRY,
    binning::ENTRY,
    arena::ENTRY,
    capture_scopes::ENTRY,
];
