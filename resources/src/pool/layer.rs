//! The layer `pool`, from code and from text.

use std::sync::Arc;

use millpond_core::stack::{LayerEntry, LayerKind};
use millpond_core::{ByteSize, DeviceMemoryResource, Layer, Result};

use crate::pool::PoolMemoryResource;
use crate::pool::decay::Decay;
use crate::pool::options::{PagesMode, PoolOptions};
use crate::pool::peers::{Peers, Share};
use crate::stream_order::Reuse;

/// The entry that builds the layer `pool` from text.
pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "pool",
    about: "a growing, stream-ordered pool: best fit with coalescing",
    params: &[
        (
            "initial",
            "bytes that the pool allocates when it is built: a size, or a percentage of free memory (default \
             0)",
        ),
        (
            "max",
            "the most bytes that the pool may hold: a size, or a percentage of free memory (default: no \
             limit)",
        ),
        ("pages", "whether the pool maps physical pages: auto (default: if upstream is cuda), on, off"),
        (
            "decay",
            "the time over which unneeded memory returns to the driver: 10s (default), 500ms, 2min, off",
        ),
        (
            "peers",
            "other devices that may access the pool's mapped memory: auto (default: devices with an active \
             context), none, or device numbers such as 0/1",
        ),
        ("share", "whether blocks can be exported to other processes: none (default), fd"),
        (
            "reuse",
            "how the pool reuses blocks of other streams: ordered/completed/waited (default), some of them, \
             or own",
        ),
    ],
    kind: LayerKind::ReadLayer(|params| {
        let options = PoolOptions {
            pages: params.get("pages")?.unwrap_or_default(),
            decay: params.get("decay")?.unwrap_or_default(),
            peers: params.get("peers")?.unwrap_or_default(),
            share: params.get("share")?.unwrap_or_default(),
            reuse: params.get("reuse")?.unwrap_or_default(),
            ..PoolOptions::default()
        };
        let initial = params.get("initial")?.unwrap_or(ByteSize::Bytes(0));
        let layer = PoolLayer { initial, maximum: params.get("max")?, options };
        Ok(Box::new(move |upstream, _| Ok(Arc::new(layer.layer(upstream)?))))
    }),
};

/// Builds a [`PoolMemoryResource`] on top of another resource.
///
/// A size is a number of bytes, or a percentage of the device's free memory when the pool is built:
///
/// ```
/// use millpond_core::{ByteSize, DeviceMemoryResourceExt};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{CudaMemoryResource, PoolLayer};
///
/// let device = SimDevice::new(SimConfig::with_capacity(8 << 30));
/// let half = PoolLayer::new().initial_bytes(64 << 20).maximum_bytes(ByteSize::PercentOfFree(50.0));
/// let pool = CudaMemoryResource::new(device).layer(half)?;
/// assert_eq!(pool.to_string(), "cuda+pool:initial=64MiB,max=50%");
/// # Ok::<(), millpond_core::Error>(())
/// ```
///
#[doc = include_str!("../../layers/pool.md")]
#[derive(Clone, Copy, PartialEq, Debug)]
#[must_use]
pub struct PoolLayer {
    initial: ByteSize,
    maximum: Option<ByteSize>,
    /// The other options. Their two sizes are unused.
    options: PoolOptions,
}

impl Default for PoolLayer {
    fn default() -> Self {
        Self { initial: ByteSize::Bytes(0), maximum: None, options: PoolOptions::default() }
    }
}

impl PoolLayer {
    /// Creates a layer with default options. The pool starts without memory, and grows as far as its upstream
    /// allows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of bytes that the pool allocates when it is built.
    pub fn initial_bytes(mut self, size: impl Into<ByteSize>) -> Self {
        self.initial = size.into();
        self
    }

    /// Sets the most bytes that the pool may hold.
    pub fn maximum_bytes(mut self, size: impl Into<ByteSize>) -> Self {
        self.maximum = Some(size.into());
        self
    }

    /// Sets whether the pool maps pages, or allocates regions from upstream.
    pub fn pages(mut self, pages: PagesMode) -> Self {
        self.options.pages = pages;
        self
    }

    /// Sets the time over which the pool returns unneeded memory to the driver.
    pub fn decay(mut self, decay: Decay) -> Self {
        self.options.decay = decay;
        self
    }

    /// Sets which other devices may access the memory that the pool maps.
    pub fn peers(mut self, peers: Peers) -> Self {
        self.options.peers = peers;
        self
    }

    /// Sets whether the pool's blocks can be exported to other processes.
    pub fn share(mut self, share: Share) -> Self {
        self.options.share = share;
        self
    }

    /// Sets the methods by which the pool may reuse blocks of other streams.
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.options.reuse = reuse;
        self
    }
}

impl<R: DeviceMemoryResource> Layer<R> for PoolLayer {
    type Resource = PoolMemoryResource<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        let driver = upstream.driver();
        let options = PoolOptions {
            initial_bytes: self.initial.resolve(&**driver)?,
            maximum_bytes: self.maximum.map(|size| size.resolve(&**driver)).transpose()?,
            ..self.options
        };
        let options = options.checked(&upstream)?;
        let text = format!("pool{}", options.text(self.initial, self.maximum));
        PoolMemoryResource::build(upstream, options, None, text)
    }
}

#[cfg(test)]
mod tests {
    use millpond_core::DeviceMemoryResourceExt;
    use millpond_driver::sim::{SimConfig, SimDevice};

    use super::*;
    use crate::CudaMemoryResource;

    /// Each method sets its option and keeps the others.
    #[test]
    fn all_options_of_a_layer_reach_its_pool() {
        let layer = PoolLayer::new()
            .initial_bytes(4 << 20)
            .maximum_bytes(64 << 20)
            .pages(PagesMode::On)
            .decay(Decay::Off)
            .peers(Peers::None)
            .share(Share::Fd)
            .reuse(Reuse::OWN_STREAM);
        let text = "cuda+pool:initial=4MiB,max=64MiB,pages=on,decay=off,peers=none,share=fd,reuse=own";
        let device = SimDevice::new(SimConfig::with_capacity(1 << 30));
        let pool = CudaMemoryResource::new(device).layer(layer).expect("a pool");
        assert_eq!(pool.to_string(), text);
        let options = PoolOptions { initial_bytes: 4 << 20, maximum_bytes: Some(64 << 20), ..layer.options };
        assert_eq!(pool.options(), options);
    }
}
