//! Shows how to write your own adaptor: a layer that wraps any resource, in Rust and in a stack's text.
//!
//! This adaptor refuses single requests above a size. So it finds code that requests a terabyte by mistake.

use std::fmt;
use std::sync::Arc;

use millpond::driver::DeviceSpec;
use millpond::stack::{LayerEntry, LayerKind, StackSpec};
use millpond::{
    ByteSize, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Error, Layer, Layout, Result,
    StreamRef, Traits, downcast, find_trait, forward_to_upstream, parse_bytes,
};

/// Refuses requests of more than `largest` bytes. The struct needs no trait bound; only its impl does.
#[derive(Debug)]
struct RequestCap<R> {
    upstream: R,
    largest: u64,
}

impl<R: DeviceMemoryResource> fmt::Display for RequestCap<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+request_cap:largest={}", self.upstream, ByteSize::Bytes(self.largest))
    }
}

// SAFETY: blocks come from upstream and go back to it with the same arguments, so its contract holds.
unsafe impl<R: DeviceMemoryResource> DeviceMemoryResource for RequestCap<R> {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if layout.bytes() > self.largest {
            let why = format!("a single request may have at most {} bytes; check the size", self.largest);
            return Err(Error::impossible(why, layout, stream).in_stack(self));
        }
        self.upstream.allocate(layout, stream).map_err(|error| error.in_stack(self))
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        downcast::<Self>(other).is_some_and(|other| self.upstream.is_equal(&other.upstream))
    }

    /// Provides only the traits of this layer. Callers ask the layers below separately.
    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, dyn Cap>(|it| it);
    }

    forward_to_upstream!(except allocate, is_equal, provide);
}

/// The methods that a program can find on the adaptor in any stack.
trait Cap {
    fn largest(&self) -> u64;
}

impl<R> Cap for RequestCap<R> {
    fn largest(&self) -> u64 {
        self.largest
    }
}

/// The layer holds the configuration and builds the adaptor.
#[derive(Clone, Copy, Debug)]
struct RequestCapLayer {
    largest: u64,
}

impl<R: DeviceMemoryResource> Layer<R> for RequestCapLayer {
    type Resource = RequestCap<R>;

    fn layer(self, upstream: R) -> Result<Self::Resource> {
        Ok(RequestCap { upstream, largest: self.largest })
    }
}

/// The definition of `request_cap` in a stack's text.
pub(crate) const ENTRY: LayerEntry = LayerEntry {
    name: "request_cap",
    about: "refuses single requests above a size",
    params: &[("largest", "bytes of the largest request (default 1GiB)")],
    kind: LayerKind::ReadLayer(|params| {
        let largest = params.get_with("largest", parse_bytes)?.unwrap_or(1 << 30);
        Ok(Box::new(move |upstream, _| Ok(Arc::new(RequestCapLayer { largest }.layer(upstream)?))))
    }),
};

pub(crate) fn main() -> Result<()> {
    let device = DeviceSpec::default_device().open()?;
    let layers = millpond::layers().with([ENTRY]);
    let spec: StackSpec = "cuda+pool+request_cap:largest=1MiB".parse()?;
    let stack = spec.build(&layers, &device)?;

    let largest = find_trait::<dyn Cap>(&stack).map_or(0, Cap::largest);
    println!("{}", stack.allocate_bytes(largest, StreamRef::LEGACY)?);
    println!("{}", stack.allocate_bytes(1 << 40, StreamRef::LEGACY).expect_err("a terabyte by mistake"));
    Ok(())
}
