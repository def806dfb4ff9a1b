//! Allocates from another resource when the upstream is out of memory.

pub(crate) mod layer;
#[cfg(test)]
mod tests;

use std::fmt;

use millpond_core::driver::call;
use millpond_core::stack::{LayerSpec, Piece, Value};
use millpond_core::{
    Accessibility, AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle,
    Error, ErrorKind, FailureTally, LayerMemory, Layout, MemoryInfo, MemoryMap, OthersBelow, ReportsMemory,
    ResourceStatistics, Result, Stack, StreamRef, Traits, debug_as_text, is_same,
};

pub use layer::FallbackLayer;

use crate::rare_blocks::{RareBlocks, Removed};

/// Serves requests from its upstream. If the upstream is out of memory, serves the request from another
/// resource, the fallback.
///
/// The adaptor frees each block to the resource that allocated it. For this purpose, it records only the
/// blocks of the fallback. While the fallback has no live block, a deallocation costs one extra load. If the
/// fallback fails, too, the request fails with the upstream's error.
///
/// [`accessibility`](DeviceMemoryResource::accessibility) returns the access that both the upstream and the
/// fallback allow. The adaptor is stream-ordered if the upstream or the fallback is. Its statistics are the
/// sums of the two resources' statistics, so the two peaks in a sum may come from different moments.
///
/// ```
/// use millpond_adaptors::{FallbackLayer, LimitingLayer};
/// use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, StreamRef};
/// use millpond_driver::sim::{SimConfig, SimDevice};
/// use millpond_resources::{CudaMemoryResource, ManagedMemoryResource};
///
/// let device = SimDevice::new(SimConfig::h200());
/// let stack = CudaMemoryResource::new(device.clone())
///     .layer(LimitingLayer::new(1 << 20))?
///     .layer(FallbackLayer::new(ManagedMemoryResource::new(device)))?;
/// assert_eq!(stack.to_string(), "cuda+limiting:limit=1MiB+fallback:to=(managed)");
/// let block = stack.allocate_bytes(2 << 20, StreamRef::LEGACY)?;
/// assert_eq!(stack.fallback_blocks(), 1);
/// # // SAFETY: the block is live, unused, and freed with its size.
/// # unsafe { stack.deallocate_bytes(block, 2 << 20, StreamRef::LEGACY) };
/// # Ok::<(), millpond_core::Error>(())
/// ```
pub struct FallbackResourceAdaptor<R, F = AnyResource> {
    upstream: R,
    fallback: F,
    /// The fallback's live blocks.
    blocks: RareBlocks<()>,
    failures: FailureTally,
}

impl<R: DeviceMemoryResource, F: DeviceMemoryResource> FallbackResourceAdaptor<R, F> {
    /// Creates an adaptor that allocates from `upstream`, and from `fallback` when `upstream` is out of
    /// memory.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the two resources belong to different devices.
    pub fn new(upstream: R, fallback: F) -> Result<Self> {
        if upstream.device() != fallback.device() {
            return Err(Error::invalid_argument(format!(
                "the fallback allocates on {}, but the resource below on {}; use two resources of one device",
                fallback.device(),
                upstream.device()
            )));
        }
        Ok(Self { upstream, fallback, blocks: RareBlocks::new(), failures: FailureTally::default() })
    }

    /// Returns the fallback, from which the adaptor allocates when the upstream is out of memory.
    pub fn fallback(&self) -> &F {
        &self.fallback
    }

    /// Returns the number of live blocks that came from the fallback.
    pub fn fallback_blocks(&self) -> usize {
        self.blocks.len()
    }

    #[cold]
    fn fall_back(&self, error: Error, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let second = match self.take_fallback(layout, stream) {
            Ok(ptr) => return Ok(ptr),
            Err(second) if is_refusal(second.kind()) => second,
            Err(second) => return Err(second),
        };
        let may_fit = |error: &Error| error.is_out_of_memory() && !error.is_impossible();
        if (may_fit(&error) || may_fit(&second)) && self.make_room(stream) {
            match self.upstream.allocate(layout, stream) {
                Err(again) if again.is_out_of_memory() => {}
                other => return other,
            }
            if let Ok(ptr) = self.take_fallback(layout, stream) {
                return Ok(ptr);
            }
        }
        Err(error.context(format!("the fallback `{}` cannot serve the request either", self.fallback)))
    }

    fn take_fallback(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let ptr = self.fallback.allocate(layout, stream)?;
        self.blocks.insert(ptr, layout.bytes(), ());
        Ok(ptr)
    }

    /// Gives back the free memory of both resources: each may hold the memory that the other lacks. Returns
    /// whether there was any. This may wait, so it is not done for a stream that captures a graph.
    fn make_room(&self, stream: StreamRef) -> bool {
        let is_capturing = call(&**self.driver(), |driver| driver.stream_is_capturing(stream));
        matches!(is_capturing, Ok(false)) && self.trim_both(0).0 > 0
    }

    /// Trims both, so that they hold at most `keep_bytes` together. Trims the second even if the first fails.
    /// Returns the bytes of both, and the first error.
    fn trim_both(&self, keep_bytes: u64) -> (u64, Result<()>) {
        let one = self.upstream.trim(keep_bytes);
        let held = self.upstream.statistics().map_or(0, |known| known.bytes_free());
        let other = self.fallback.trim(keep_bytes.saturating_sub(held));
        let bytes = [&one, &other].into_iter().flatten().sum();
        (bytes, one.and(other).map(drop))
    }
}

/// Returns whether the error is only about this request.
fn is_refusal(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::OutOfMemory | ErrorKind::InvalidArgument | ErrorKind::Unsupported)
}

// SAFETY: each block goes back to the resource that allocated it. Both keep the contract, and live blocks of
// one device do not overlap.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource, F: DeviceMemoryResource> DeviceMemoryResource
    for FallbackResourceAdaptor<R, F>
{
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let allocated = match self.upstream.allocate(layout, stream) {
            Err(error) if error.is_out_of_memory() => self.fall_back(error, layout, stream),
            other => other,
        };
        allocated.map_err(|error| self.failures.noted(error).in_stack(self))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        match self.blocks.remove(ptr, layout, stream, self) {
            // SAFETY: the caller's promises hold for the upstream too: the block came from there.
            Removed::NotHere => unsafe { self.upstream.deallocate(ptr, layout, stream) },
            // SAFETY: the caller's promises hold for the fallback too: the block came from there.
            Removed::Here(()) => unsafe { self.fallback.deallocate(ptr, layout, stream) },
            Removed::Refused => {}
        }
    }

    fn driver(&self) -> &DriverHandle {
        self.upstream.driver()
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        Some(&self.upstream)
    }

    /// Returns the memory of the two resources. Both may report the device's free memory, so it is counted
    /// only once. The result may be too low.
    fn memory_info(&self) -> Result<MemoryInfo> {
        let infos = || {
            let (one, other) = (self.upstream.memory_info()?, self.fallback.memory_info()?);
            Ok((one, other, call(&**self.driver(), |driver| driver.mem_get_info())?))
        };
        let (one, other, device) = infos().map_err(|error: Error| error.in_stack(self))?;
        if one.total != other.total {
            let (free, total) = (one.free + other.free, one.total + other.total);
            return Ok(MemoryInfo { free, total });
        }
        let both = device.free.min(one.free).min(other.free);
        Ok(MemoryInfo { free: (one.free + other.free - both).min(one.total), total: one.total })
    }

    /// An adaptor is equal only to itself: another adaptor does not know the blocks of this one's fallback.
    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        self.upstream.is_stream_ordered() || self.fallback.is_stream_ordered()
    }

    fn accessibility(&self) -> Accessibility {
        self.upstream.accessibility().and(self.fallback.accessibility())
    }

    /// Returns the sums over the two resources. If one keeps no statistics, returns the statistics of the
    /// other.
    fn statistics(&self) -> Option<ResourceStatistics> {
        let both = [self.upstream.statistics(), self.fallback.statistics()];
        self.blocks.add_misuses(both.into_iter().flatten().reduce(ResourceStatistics::beside))
    }

    /// Trims the two resources until they hold at most `keep_bytes` together. If trimming the upstream fails,
    /// the fallback is still trimmed.
    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        let (bytes, trimmed) = self.trim_both(keep_bytes);
        trimmed.map(|()| bytes).map_err(|error| error.in_stack(self))
    }

    fn provide(&self, traits: &mut Traits) {
        traits
            .add::<Self, FailureTally>(|it| &it.failures)
            .add::<Self, dyn OthersBelow>(|it| it)
            .add::<Self, dyn ReportsMemory>(|it| it);
        // SAFETY: threads may share all other parts.
        unsafe { traits.share_over(&[&self.upstream, &self.fallback]) };
    }
}

impl<R: DeviceMemoryResource, F: DeviceMemoryResource> OthersBelow for FallbackResourceAdaptor<R, F> {
    fn others_below(&self) -> Vec<Stack<'_>> {
        vec![self.fallback.stack()]
    }
}

impl<R: fmt::Display, F: fmt::Display> fmt::Display for FallbackResourceAdaptor<R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.fallback.to_string();
        // A resource that does not print a stack cannot be built from text anyway.
        let to = text.parse().map_or(Piece::Text(text), Piece::Stack);
        let layer = LayerSpec::new("fallback").with("to", Value::from_iter([to]));
        write!(f, "{}+{layer}", self.upstream)
    }
}

debug_as_text!(FallbackResourceAdaptor<R: fmt::Display, F: fmt::Display>);

/// Reports the memory of the fallback. The upstream's layers report their own memory.
impl<R: DeviceMemoryResource, F: DeviceMemoryResource> ReportsMemory for FallbackResourceAdaptor<R, F> {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = LayerMemory::default();
        memory.statistics = self.fallback.statistics();
        memory
    }

    fn memory_map(&self) -> Option<MemoryMap> {
        self.fallback.memory_map()
    }
}
