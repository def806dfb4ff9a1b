//! millpond is a Rust library for GPU memory: composable, stream-ordered memory resources modelled on RMM,
//! RAPIDS' memory manager.
//!
//! A *resource* allocates device memory in the order of a stream, and frees it in the order of a stream.
//! Resources are layered: a pool on top of plain CUDA memory, statistics on top of the pool. Such a *stack*
//! is built in Rust or from text, and behaves as one resource. Everything also runs on a simulated device, so
//! you can try millpond and test programs without a GPU.
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
//! This crate re-exports the crates of the workspace, and has no logic of its own.
//!
//! | item | content |
//! |---|---|
//! | [`DeviceMemoryResource`] | the trait: its documentation is the contract between resource and caller |
//! | [`resources`] | `cuda`, `managed`, `cuda_async`, host memory, `pool`, `arena`, … and defaults |
//! | [`adaptors`] | `logging`, `statistics`, `limiting`, `tracking`, `fallback`, `retry`, `prefetch`, … |
//! | [`plan`] | a layer that serves a program from a prepared plan of its allocations |
//! | [`containers`] | buffers, vectors and scalars that free their memory automatically; streams and events |
//! | [`driver`] | CUDA, loaded at run time, and the simulated device |
//! | [`stack`] | a stack as text (`cuda+pool:max=50%+statistics`) and back |
//! | `metrics` (feature) | metrics for Prometheus and OpenTelemetry |
//! | [`plugin`] | Numba's memory-manager interface, NBEP 7 |
//! | [`Error`] | the error type; if memory is out, its report lists the changes that would have helped |
//!
//! # Features
//! | feature | by default | adds |
//! |---|---|---|
//! | `cudarc` | yes | streams, buffers and launches together with cudarc: [`driver::cuda`], [`containers`] |
//! | `cuda-12000` to `cuda-13040` | no | the CUDA version of the bindings that cudarc compiles: at most one |
//! | `logging` | yes | the adaptor `logging`, which writes allocation logs in RMM's format |
//! | `watch` | no | `millpond-replay top` can watch the program if `MILLPOND_WATCH=1` is set: [`watch`] |
//! | `metrics` | no | the module `metrics`, with metrics for Prometheus |
//! | `opentelemetry` | no | the module `metrics`, with metrics for an OpenTelemetry meter |
//! | `debug-log` | no | `adaptors::debug_log`, which writes diagnostics to the file `RMM_DEBUG_LOG_FILE` |
//! | `allocator-api2` | no | host collections in memory that the device can access: [`containers`] |
//! | `serde` | no | reports, statistics and counts implement serde's traits |
//! | `profiles` | no | reads profiles of simulated devices from TOML files: `sim:FILE.toml` |
//!
//! millpond itself does not depend on a version of CUDA. If another crate has chosen a CUDA version for
//! cudarc, millpond uses that version, with or without millpond's default features. If no crate has chosen a
//! version, cudarc uses the version of `nvcc`. Without `nvcc`, cudarc uses the newest version that it knows.
//! Without the feature `cudarc`, no part of cudarc is compiled. Streams are then passed as raw handles,
//! through [`Driver::stream_ref`].
//!
//! # What may grow
//! Reports, statistics, options and most enums are `#[non_exhaustive]`: a minor release may add fields and
//! variants. You read the fields of a report. You build options from a default, and change them with a setter
//! for each field:
//!
//! ```
//! use millpond::driver::StreamFlags;
//! use millpond::resources::PoolOptions;
//!
//! let options = PoolOptions::default().initial_bytes(64 << 20).maximum_bytes(Some(1 << 30));
//! let urgent = StreamFlags::NON_BLOCKING.priority(-1);
//! # assert_eq!((options.initial_bytes, urgent.priority), (64 << 20, -1));
//! ```
//!
//! Other types are exhaustive. The source of each type names one of these reasons:
//!
//! - The type is complete, like a handle or [`MemoryInfo`].
//! - Your code must set every field, as in [`RawParts`](containers::RawParts) and
//!   [`LayerEntry`](stack::LayerEntry).
//! - Your code must handle every variant, as in [`CaptureMode`](driver::CaptureMode).
//!
//! A minor release may add methods to traits. A new method of [`DeviceMemoryResource`] or [`Driver`] has a
//! default. A minor release may also raise the required Rust version; a patch release does not. The
//! containers' elements implement `Pod` of the crate `bytemuck`, version 1: depend on it for your own types.
//!
//! # Platforms
//! millpond is built and tested on Linux on x86-64. On macOS and Windows, the library passes `cargo check`,
//! but it was not run there. CUDA is loaded at run time on Linux and Windows, and was tested only on Linux.
//! Without CUDA, everything runs on the simulated device.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(inline)]
pub use millpond_adaptors as adaptors;
#[doc(inline)]
pub use millpond_containers as containers;
#[cfg(any(feature = "metrics", feature = "opentelemetry"))]
#[cfg_attr(docsrs, doc(cfg(any(feature = "metrics", feature = "opentelemetry"))))]
#[doc(inline)]
pub use millpond_metrics as metrics;
#[doc(inline)]
pub use millpond_plan as plan;
#[doc(inline)]
pub use millpond_plugin as plugin;
#[doc(inline)]
pub use millpond_resources as resources;

#[doc(inline)]
pub use millpond_adaptors::memory_snapshot;
#[doc(inline)]
pub use millpond_core::*;

/// The drivers: CUDA, loaded at run time, and the simulated device. Both implement one interface, [`Driver`].
///
/// [`DeviceSpec`](driver::DeviceSpec) opens a device. [`sim`](driver::sim) makes simulated devices. A driver
/// of your own implements [`Driver`], and [`register`](driver::register) makes it known under a name such as
/// `own:0`.
pub mod driver {
    #[doc(inline)]
    pub use millpond_core::driver::*;
    #[doc(inline)]
    pub use millpond_driver::*;
}

/// The names that most programs need: `use millpond::prelude::*`.
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
    pub use crate::driver::{DeviceSpec, EventFlags, StreamFlags};
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

/// Returns every layer that a stack's text can name.
pub fn layers() -> stack::LayerTable {
    stack::LayerTable::new(resources::LAYERS.iter().chain(plan::LAYERS).copied())
        .with(adaptors::LAYERS.iter().copied())
}
