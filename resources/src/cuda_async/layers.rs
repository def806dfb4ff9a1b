//! Builds the resources over the driver's pools from text.

use std::sync::Arc;

use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{ByteSize, Error};

use super::options::{Sizes, handles_of};
use super::{
    CudaAsyncManagedMemoryResource, CudaAsyncMemoryResource, CudaAsyncOptions, CudaAsyncViewMemoryResource,
};

/// Builds `cuda_async` from text.
pub(crate) const CUDA_ASYNC: LayerEntry = LayerEntry {
    name: "cuda_async",
    about: "a pool of CUDA's stream-ordered allocator (cuMemAllocFromPoolAsync)",
    params: &[
        (
            "initial",
            "bytes that the pool allocates when it is built: a size, or a percentage of free memory (default \
             0)",
        ),
        ("release_threshold", "bytes that the pool keeps at a synchronisation (default: all)"),
        (
            "max",
            "the most bytes that the pool may hold: a size, or a percentage of free memory (default: all \
             memory)",
        ),
        (
            "reuse",
            "how the driver reuses memory that other streams have freed: \
             follow/opportunistic/internal (default), some of them, or own",
        ),
        (
            "handles",
            "handles with which other processes can import the pool: none (default), fd, fabric, fd/fabric",
        ),
        (
            "hw_decompress",
            "whether the device's decompression engine can use the memory: auto (default: since CUDA 12.8), \
             on, off",
        ),
    ],
    kind: LayerKind::ReadBase(|params| {
        let sizes = Sizes {
            initial: params.get("initial")?.unwrap_or(ByteSize::Bytes(0)),
            release_threshold: params.get("release_threshold")?,
            maximum: params.get("max")?,
        };
        let options = CudaAsyncOptions {
            reuse: params.get("reuse")?.unwrap_or_default(),
            handles: params
                .text("handles")?
                .map(|it| handles_of(it, "cuda_async"))
                .transpose()?
                .unwrap_or_default(),
            hw_decompress: params.get("hw_decompress")?.unwrap_or_default(),
            ..CudaAsyncOptions::default()
        };
        Ok(Box::new(move |driver, _| {
            let options = sizes.resolve(options, &**driver)?;
            Ok(Arc::new(CudaAsyncMemoryResource::said(Arc::clone(driver), options, sizes)?))
        }))
    }),
};

/// Builds `cuda_async_view` from text.
pub(crate) const CUDA_ASYNC_VIEW: LayerEntry = LayerEntry {
    name: "cuda_async_view",
    about: "the device's default or current pool of CUDA's stream-ordered allocator",
    params: &[("pool", "which pool: default (the default) or current")],
    kind: LayerKind::ReadBase(|params| {
        let view = match params.text("pool")? {
            None | Some("default") => CudaAsyncViewMemoryResource::of_default,
            Some("current") => CudaAsyncViewMemoryResource::of_current,
            Some(other) => {
                return Err(Error::invalid_stack(format!(
                    "`pool={other}` of `cuda_async_view`: write default or current; for any other pool, \
                     build the resource from the pool's handle"
                )));
            }
        };
        Ok(Box::new(move |driver, _| Ok(Arc::new(view(Arc::clone(driver))?))))
    }),
};

/// Builds `cuda_async_managed` from text.
pub(crate) const CUDA_ASYNC_MANAGED: LayerEntry = LayerEntry {
    name: "cuda_async_managed",
    about: "the driver's default pool of memory that host and device share (since CUDA 13.0)",
    params: &[],
    kind: LayerKind::Base(|_, driver| Ok(Arc::new(CudaAsyncManagedMemoryResource::new(Arc::clone(driver))?))),
};
