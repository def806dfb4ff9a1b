//! Memory resources for GPUs that compose and keep stream order: the model of RMM, RAPIDS' memory manager, in
//! Rust.
//!
//! A *resource* hands out device memory in the order of a stream and takes it back in the order of a stream.
//! Resources stand on each other: a pool over plain CUDA memory, statistics over the pool. Such a *stack* is
//! built in Rust or from text, and behaves as one resource. Everything runs on the simulated device, too, so
//! that no GPU is needed to try it or to test a program.
//!
//! ```
//! use millpond::adaptors::StatisticsLayer;
//! use millpond::driver::DeviceSpec;
//! use millpond::resources::{CudaMemoryResource, PoolLayer};
//! use millpond::{DeviceMemoryResourceExt, Result, StreamRef};
//!
//! fn main() -> Result<()> {
//!     let device = DeviceSpec::default_device().open()?; // the GPU, or a simulated H200
//!     let stack = CudaMemoryResource::new(device)
//!         .layer(PoolLayer::new().initial_bytes(64 << 20))?
//!         .layer(StatisticsLayer::new())?;
//!
//!     let block = stack.allocate_bytes(1000, StreamRef::LEGACY)?;
//!     // SAFETY: the block came from this stack with this size, once, and nothing uses it.
//!     unsafe { stack.deallocate_bytes(block, 1000, StreamRef::LEGACY) };
//!     assert_eq!(stack.to_string(), "cuda+pool:initial=64MiB+statistics");
//!     Ok(())
//! }
//! ```
//!
//! # Where things are
//! This crate re-exports what the crates of the workspace have, and has no logic of its own.
//!
//! | here | what it is |
//! |---|---|
//! | [`DeviceMemoryResource`] | the trait: its documentation is the contract between resource and caller |
//! | [`resources`] | `cuda`, `managed`, `cuda_async`, memory of the host, `pool`, `arena`, … and defaults |
//! | [`adaptors`] | `logging`, `statistics`, `limiting`, `tracking`, `fallback`, `retry`, `prefetch`, … |
//! | [`plan`] | a layer that serves a program from a plan of its allocations, made before |
//! | [`containers`] | buffers, vectors and scalars that give their memory back, streams and events |
//! | [`driver`] | CUDA, loaded at run time, and the simulated device |
//! | [`stack`] | a stack as text (`cuda+pool:max=50%+statistics`) and back |
//! | [`plugin`] | the memory-manager interface of NBEP 7, Numba's |
//! | [`Error`] | one error for everything; where memory is out it says what would have helped |
//!
//! # Features
//! | feature | by default | what it adds |
//! |---|---|---|
//! | `cudarc` | yes | streams, buffers and launches beside cudarc: [`driver::cuda`], [`containers`] |
//! | `cuda-12000` to `cuda-13040` | no | the version of CUDA whose bindings cudarc compiles: at most one |
//! | `logging` | yes | the adaptor `logging`, which writes allocation logs as RMM does |
//! | `debug-log` | no | what the crates report goes to the file that `RMM_DEBUG_LOG_FILE` names |
//! | `allocator-api2` | no | collections of the host in memory that the device reaches: [`containers`] |
//! | `serde` | no | reports, statistics and counts can be written and read with serde |
//! | `profiles` | no | profiles of simulated devices can be read from TOML files: `sim:FILE.toml` |
//!
//! Nothing here depends on the version of CUDA. Beside a crate that has chosen one for cudarc, millpond takes
//! that one, with its default features or without; where no crate chooses, cudarc asks `nvcc`, and takes its
//! newest version if there is no `nvcc`. Without the feature `cudarc` no part of cudarc is compiled: streams
//! pass as raw handles, by [`Driver::stream_ref`].
//!
//! # Platforms
//! It is built and tested on Linux, on x86-64; for macOS and Windows the library passes `cargo check`, and
//! was not run there. CUDA is loaded at run time, on Linux and Windows; it was tested on Linux. Without CUDA,
//! everything runs on the simulated device.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(inline)]
pub use millpond_adaptors as adaptors;
#[doc(inline)]
pub use millpond_containers as containers;
#[doc(inline)]
pub use millpond_plan as plan;
#[doc(inline)]
pub use millpond_plugin as plugin;
#[doc(inline)]
pub use millpond_resources as resources;

#[doc(inline)]
pub use millpond_core::*;

/// Drivers: CUDA, loaded at run time, and the simulated device, behind one interface, [`Driver`].
///
/// [`DeviceSpec`](driver::DeviceSpec) opens a device; [`sim`](driver::sim) makes simulated ones. A driver of
/// your own implements [`Driver`] and is named with [`register`](driver::register).
pub mod driver {
    #[doc(inline)]
    pub use millpond_core::driver::*;
    #[doc(inline)]
    pub use millpond_driver::*;
}

/// What most programs need: `use millpond::prelude::*`.
///
/// ```
/// use millpond::prelude::*;
///
/// fn main() -> millpond::Result<()> {
///     let device = DeviceSpec::default_device().open()?;
///     let stream = Stream::new(device.clone(), StreamFlags::NON_BLOCKING)?;
///     let pool = CudaMemoryResource::new(device).layer(PoolLayer::new().initial_bytes(mib(64)))?;
///     let values = DeviceVec::from_host(&[1, 2, 3], &stream, pool)?;
///     assert_eq!(values.to_host()?, [1, 2, 3]);
///     Ok(())
/// }
/// ```
pub mod prelude {
    pub use crate::adaptors::{LimitingLayer, StatisticsLayer};
    pub use crate::containers::{DeviceBuffer, DeviceScalar, DeviceVec, Event, Stream};
    pub use crate::driver::{DeviceSpec, StreamFlags};
    pub use crate::resources::{
        CudaMemoryResource, ManagedMemoryResource, PoolLayer, get_current_device_resource,
        set_current_device_resource,
    };
    pub use crate::stack::StackSpec;
    pub use crate::{
        AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, Layer, LayerResultExt, StreamRef, gib,
        kib, mib,
    };
}

/// Every layer that a stack's text can name.
pub fn layers() -> stack::LayerTable {
    stack::LayerTable::new(resources::LAYERS.iter().chain(plan::LAYERS).copied())
        .with(adaptors::LAYERS.iter().copied())
}

/// Runs the programs of a document as tests; its links are for the repository.
#[cfg(doctest)]
macro_rules! run_programs_of {
    ($($page:literal)*) => { $(#[doc = include_str!($page)] unsafe extern "C" {})* };
}

#[cfg(doctest)]
run_programs_of! {
    "../README.md"
    "../docs/book/src/from-cudarc.md"
    "../docs/book/src/from-rmm-cpp.md"
    "../docs/book/src/graphs.md"
    "../docs/book/src/library-api.md"
    "../docs/book/src/logs.md"
    "../docs/book/src/out-of-memory.md"
    "../docs/book/src/own-adaptor.md"
    "../docs/book/src/own-driver.md"
    "../docs/book/src/own-resource.md"
    "../docs/book/src/plans.md"
    "../docs/book/src/processes.md"
    "../docs/book/src/rust.md"
    "../docs/book/src/tutorial.md"
}
