//! Defines scopes for captured graphs. A scope keeps the memory of graphs until the scope's owner drops it.
//!
//! The layer `capture_scopes` creates each [`CaptureScope`]. The scope allocates its memory from the resource
//! below that layer: a pool, a pool of the driver, or plain memory. The section *Scopes for captures* in
//! docs/book/src/design/decisions.md gives the reasons for this design.

mod inner;
mod layer;
mod memory;
mod parked;
mod scope;
#[cfg(test)]
mod tie;

use std::fmt::{self, Display};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_core::ScopesBelow;
use millpond_core::{
    BlockInfo, DeviceMemoryResource, DevicePtr, Error, FailureTally, LayerMemory, Layout, MemoryMap,
    ReportsMemory, ResourceStatistics, Result, ScopeMemory, StreamRef, Traits, forward_to_upstream,
};

use crate::debug_as_text::debug_as_text;
use crate::out_of_memory;

pub use layer::CaptureScopesLayer;
pub(crate) use layer::ENTRY;
pub use scope::{CaptureScope, CaptureScopes, ScopedStream};

use inner::Inner;
use scope::{Host, Scope};

/// Creates [scopes](CaptureScope) for captured graphs. A request that belongs to no scope goes to the
/// upstream.
///
/// A request outside all scopes costs more while scopes are in use:
/// - While no stream is open in a scope, an allocation costs one extra load.
/// - While a stream is open in a scope, an allocation on another stream searches the open streams. The
///   allocation also asks the driver whether its stream belongs to a capture (`cuStreamGetCaptureInfo`).
/// - While no scope has memory, a free costs one extra load. Otherwise, a free looks up its address in a
///   sharded table.
///
/// Put this layer above pools and bins. Do not put a pool above this layer. Such a pool would allocate its
/// own memory from a scope, and give that memory to other streams.
///
/// See [`CaptureScope`] for an example.
///
#[doc = include_str!("../../layers/capture_scopes.md")]
pub struct CaptureScopesMemoryResource<R: DeviceMemoryResource>(Arc<Inner<R>>);

impl<R: DeviceMemoryResource> CaptureScopesMemoryResource<R> {
    /// Creates the resource. The memory of its scopes comes from `upstream`.
    pub fn new(upstream: R) -> Self {
        Self(Arc::new(Inner::new(upstream)))
    }
}

impl<R: DeviceMemoryResource + Send + Sync> CaptureScopes for CaptureScopesMemoryResource<R> {
    fn new_scope(&self) -> CaptureScope {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let id = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let scope = Arc::new(Scope::new(id));
        self.0.scopes.lock().insert(id, Arc::clone(&scope));
        CaptureScope::new(Arc::clone(&self.0) as Arc<dyn Host>, scope)
    }

    fn scopes(&self) -> Vec<ScopeMemory> {
        self.0.reports()
    }

    fn open_streams(&self) -> usize {
        self.0.open.load(Ordering::Relaxed)
    }
}

impl<R: DeviceMemoryResource + Send + Sync> ScopesBelow for CaptureScopesMemoryResource<R> {
    fn open_streams(&self) -> usize {
        CaptureScopes::open_streams(self)
    }
}

impl<R: DeviceMemoryResource> Display for CaptureScopesMemoryResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+capture_scopes", self.0.upstream)
    }
}

debug_as_text!(CaptureScopesMemoryResource<R: DeviceMemoryResource>);

// SAFETY: blocks of a scope are disjoint parts of its spans, aligned as the request asks (`Heap::take`). A
// stream gets a span only after upstream's work for the span is done. It gets a block that it freed itself,
// outside of captures or in the capture that allocated the block. It gets any other block only if the block's
// work outside of captures is done, and all other uses were captured for graphs of the scope, which never run
// at once. Spans are returned when all work of the device is done. Upstream guarantees the rest.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource + Send + Sync> DeviceMemoryResource for CaptureScopesMemoryResource<R> {
    #[inline]
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let inner = &*self.0;
        let of_scope = |error: Error| {
            let error = error.for_request(layout, stream).on_device(self.driver().device());
            let error = out_of_memory::reported(error, &**self.driver(), self.accessibility());
            inner.failures.noted(error).in_stack(self)
        };
        if inner.open.load(Ordering::Relaxed) > 0
            && !inner.is_elsewhere()
            && let Some(scope) = inner.scope_of(stream).map_err(of_scope)?
        {
            // A request after the scope's end belongs to no scope.
            if let Some(ptr) = inner.allocate_in(&scope, layout, stream).map_err(of_scope)? {
                return Ok(ptr);
            }
        }
        let taken = match inner.upstream.allocate(layout, stream) {
            Err(error) if error.is_out_of_memory() && !error.is_impossible() && inner.release_ended() > 0 => {
                inner.upstream.allocate(layout, stream)
            }
            taken => taken,
        };
        taken.map_err(|error| inner.failures.noted(error).in_stack(self))
    }

    #[inline]
    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let inner = &*self.0;
        if inner.is_elsewhere() {
            return;
        }
        if let Some(scope) = inner.scope_at(ptr) {
            return inner.take_back(&scope, ptr, layout, stream, self);
        }
        // SAFETY: the caller's promises hold for upstream, where the block came from.
        unsafe { inner.upstream.deallocate(ptr, layout, stream) }
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    /// Returns the upstream's statistics. These statistics count each span of a scope as one live block.
    fn statistics(&self) -> Option<ResourceStatistics> {
        let known = self.0.upstream.statistics();
        match self.0.misuses.load(Ordering::Relaxed) {
            0 => known,
            misuses => Some(known.unwrap_or_default().with_more_misuses(misuses)),
        }
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.0.release_ended();
        self.0.upstream.trim(keep_bytes).map_err(|error| error.in_stack(self))
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, dyn CaptureScopes>(|it| it).add::<Self, dyn ReportsMemory>(|it| it);
        traits.add::<Self, FailureTally>(|it| &it.0.failures).add::<Self, dyn ScopesBelow>(|it| it);
        traits.share::<Self>();
    }

    // This includes `memory_info`: a scope's free memory serves only its next capture.
    forward_to_upstream!(
        self.0.upstream,
        except allocate, deallocate, is_stream_ordered, statistics, trim, provide
    );
}

impl<R: DeviceMemoryResource + Send + Sync> ReportsMemory for CaptureScopesMemoryResource<R> {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = LayerMemory::default();
        memory.scopes = self.0.reports();
        memory
    }

    fn layer_figures(&self) -> LayerMemory {
        LayerMemory::default()
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockInfo> {
        let scope = self.0.scope_at(ptr)?;
        scope.memory.lock().block_at(ptr, scope.id)
    }

    fn memory_map(&self) -> Option<MemoryMap> {
        let segments = self.0.segments();
        // Without scopes, nothing is known here.
        (!segments.is_empty()).then(|| MemoryMap::new(segments, None))
    }
}
