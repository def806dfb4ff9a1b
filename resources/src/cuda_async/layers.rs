//! The resources over pools, from text.

use std::sync::Arc;

use millpond_core::Error;
use millpond_core::stack::{LayerEntry, LayerKind};

use super::options::handles_of;
use super::{
    CudaAsyncManagedMemoryResource, CudaAsyncMemoryResource, CudaAsyncOptions, CudaAsyncViewMemoryResource,
};

/// How `cuda_async` is built from text.
pub(crate) const CUDA_ASYNC: LayerEntry = LayerEntry {
    name: "cuda_async",
    about: "a pool of CUDA's stream-ordered allocator (cuMemAllocFromPoolAsync)",
    params: &[
        ("initial", "bytes to take at once (default 0); a size, or a percentage of free memory"),
        ("release_threshold", "bytes to keep at a synchronisation (default: all)"),
        (
            "max",
            "bytes to hold at most (default: what the device has); a size, or a percentage of free memory",
        ),
        (
            "reuse",
            "memory of other streams that the driver hands out: follow/opportunistic/internal (default), \
             some of them, or own",
        ),
        ("handles", "handles for other processes: none (default), fd, fabric, fd/fabric"),
        ("hw_decompress", "memory for the decompression engine: auto (default: where CUDA 12.8 is), on, off"),
    ],
    kind: LayerKind::Base(|params, driver| {
        let options = CudaAsyncOptions {
            initial_bytes: params.bytes("initial", &**driver)?.unwrap_or(0),
            release_threshold: params.bytes("release_threshold", &**driver)?,
            maximum_bytes: params.bytes("max", &**driver)?,
            reuse: params.get("reuse")?.unwrap_or_default(),
            handles: params.text("handles")?.map(handles_of).transpose()?.unwrap_or_default(),
            hw_decompress: params.get("hw_decompress")?.unwrap_or_default(),
        };
        Ok(Arc::new(CudaAsyncMemoryResource::new(Arc::clone(driver), options)?))
    }),
};

/// How `cuda_async_view` is built from text.
pub(crate) const CUDA_ASYNC_VIEW: LayerEntry = LayerEntry {
    name: "cuda_async_view",
    about: "the device's default or current pool of CUDA's stream-ordered allocator",
    params: &[("pool", "which one: default (default), current")],
    kind: LayerKind::Base(|params, driver| {
        let driver = Arc::clone(driver);
        Ok(Arc::new(match params.text("pool")? {
            None | Some("default") => CudaAsyncViewMemoryResource::of_default(driver)?,
            Some("current") => CudaAsyncViewMemoryResource::of_current(driver)?,
            Some(other) => {
                return Err(Error::invalid_stack(format!(
                    "`pool={other}` of `cuda_async_view`: write default or current; a resource over any \
                     other pool is made from its handle"
                )));
            }
        }))
    }),
};

/// How `cuda_async_managed` is built from text.
pub(crate) const CUDA_ASYNC_MANAGED: LayerEntry = LayerEntry {
    name: "cuda_async_managed",
    about: "the driver's default pool of memory that host and device share (CUDA 13.0)",
    params: &[],
    kind: LayerKind::Base(|_, driver| Ok(Arc::new(CudaAsyncManagedMemoryResource::new(Arc::clone(driver))?))),
};
