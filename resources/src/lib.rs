//! The memory resources of millpond and the per-device registry.
//!
//! | resource | in text | what it is |
//! |---|---|---|
//! | [`CudaMemoryResource`] | `cuda` | plain device memory; synchronises at every call |
//! | [`ManagedMemoryResource`] | `managed` | memory that host and device share |
//! | [`PoolMemoryResource`] | `pool` | best fit with coalescing over regions from upstream, in stream order |
//! | [`FixedSizeMemoryResource`] | `fixed_size` | blocks of one size, in stream order |
//! | [`BinningMemoryResource`] | `binning` | a resource per range of sizes |
//!
//! [`registry`] holds the default resource of each device. [`ordered`] is what pool and fixed size share:
//! which block may be handed to which stream, and at what price.

pub mod binning;
mod driver_memory;
pub mod fixed_size;
mod lock;
pub mod ordered;
pub mod pool;
mod process;
pub mod registry;
#[cfg(unix)]
pub mod share;
mod sync;

pub use binning::{BinningLayer, BinningMemoryResource};
pub use driver_memory::{CudaMemoryResource, ManagedMemoryResource};
pub use fixed_size::{FixedSizeLayer, FixedSizeMemoryResource, FixedSizeOptions};
pub use pool::{
    Decay, PagesMode, PeerList, Peers, Pool, PoolLayer, PoolMemoryResource, PoolOptions, Share, Slack,
};
pub use registry::{
    get_current_device_resource, get_per_device_resource, reset_current_device_resource,
    reset_per_device_resource, set_current_device_resource, set_per_device_resource,
};

use millpond_core::stack::LayerEntry;

/// The resources that a stack's text can name.
pub const LAYERS: &[LayerEntry] =
    &[driver_memory::CUDA, driver_memory::MANAGED, pool::ENTRY, fixed_size::ENTRY, binning::ENTRY];
