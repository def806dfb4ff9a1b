//! Shows how to write your own adaptor in 30 lines: it clears each block on the stream of its request, so
//! that no part of a program reads another part's data. `docs/book/src/own-adaptor.md` explains it line by
//! line.
//!
//! `cargo run --example zeroing_adaptor` runs on the GPU, or on a simulated H200 if there is none.

use std::fmt;

use millpond::containers::DeviceVec;
use millpond::driver::DeviceSpec;
use millpond::driver::{call, is_capturing};
use millpond::resources::{CudaMemoryResource, PoolLayer};
use millpond::{
    DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, Layout, Result, StreamRef,
    forward_to_upstream, layer_fn,
};

#[derive(Debug)]
pub(crate) struct ZeroingAdaptor<R> {
    pub(crate) upstream: R,
}

impl<R: fmt::Display> fmt::Display for ZeroingAdaptor<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+zeroing", self.upstream)
    }
}

// SAFETY: blocks come from the upstream and go back to it with the same arguments, so its contract holds.
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for ZeroingAdaptor<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let ptr = self.upstream.allocate(layout, stream).map_err(|error| error.in_stack(self))?;
        let clear = |driver: &dyn Driver| match ptr.is_null() || is_capturing(driver, stream)? {
            true => Ok(()),
            // SAFETY: the block is live, has these bytes, and is ready for this stream.
            false => unsafe { driver.memset_d8_async(ptr, 0, layout.bytes(), stream) },
        };
        call(&**self.driver(), clear).map(|()| ptr).map_err(|error| {
            // SAFETY: the block was just allocated with this layout, and nothing uses it.
            unsafe { self.upstream.deallocate(ptr, layout, stream) };
            error.for_request(layout, stream).in_stack(self)
        })
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    forward_to_upstream!(except allocate, is_stream_ordered);
}

pub(crate) fn main() -> Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let pool = CudaMemoryResource::new(device).layer(PoolLayer::new())?;
    let stack = pool.layer(layer_fn(|upstream| Ok(ZeroingAdaptor { upstream })))?.into_any();

    let stream = StreamRef::LEGACY;
    let secret = DeviceVec::from_host(&[7_u32; 4], stream, stack.clone())?;
    let address = secret.as_ptr();
    drop(secret);
    let next = DeviceVec::<u32>::uninit(4, stream, stack.clone())?;
    println!("{stack}: the block at {address} is reused: {}", next.as_ptr() == address);
    assert_eq!(next.to_host()?, [0; 4], "the block was cleared");
    Ok(())
}
