//! Scopes for captured graphs: memory that stays with a graph until its owner drops it.
//!
//! A [`CaptureScope`] is made from a layer, `capture_scopes`, below which the memory lies: a pool, a pool of
//! the driver, or plain memory. docs/DESIGN.md, *Scopes for captures*, says why it is so.

mod layer;
mod memory;
mod scope;

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dashmap::DashMap;
use millpond_core::driver::{CaptureModeGuard, Driver, DriverResult, Event};
use millpond_core::misuse::{self, Misuse};
use millpond_core::{
    Accessibility, BlockInfo, DeviceMemoryResource, DevicePtr, DriverHandle, Error, ErrorKind, LayerMemory,
    Layout, MemoryInfo, ReportsMemory, ResourceStatistics, Result, ScopeMemory, StreamId, StreamRef, Traits,
    align_up, is_same,
};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxBuildHasher;

use crate::driver_calls::{OwnStream, ask, is_capturing};
use crate::heap::request::Request;
use crate::out_of_memory;
use crate::process;

pub use layer::CaptureScopesLayer;
pub(crate) use layer::ENTRY;
pub use scope::{CaptureScope, CaptureScopes, ScopedStream};

use memory::{Memory, Order};
use scope::{Host, Scope};

/// The unit of a span in bytes, and its least size: a page of the device.
const SPAN_UNIT: u64 = 2 << 20;
/// A span has at least this share of what its scope holds, so that a large capture takes few.
const SPAN_SHARE: u64 = 4;
/// More than this, in bytes, a span has only where a request needs it.
const LARGEST_SPARE: u64 = 64 << 20;

/// Makes [scopes](CaptureScope) for captured graphs; passes all requests on that belong to none.
///
/// While no stream is open in a scope, an allocation costs one load more. While no scope has memory, a free
/// does, too; else it looks its address up in a sharded table. While a stream is open, the requests of others
/// look through the open streams and ask the driver whether they belong to a capture
/// (`cuStreamGetCaptureInfo`).
///
/// Put it above pools and bins: one on top of it would take its own memory from a scope, and hand that to
/// others.
///
/// See [`CaptureScope`] for an example.
///
#[doc = include_str!("../../layers/capture_scopes.md")]
#[derive(Debug)]
pub struct CaptureScopesMemoryResource<R: DeviceMemoryResource>(Arc<Inner<R>>);

/// A stream that is open in a scope.
#[derive(Clone, Debug)]
struct Route {
    stream: StreamRef,
    /// That of the thread that opened it, for a per-thread stream.
    id: StreamId,
    scope: Arc<Scope>,
}

#[derive(Debug)]
struct Inner<R: DeviceMemoryResource> {
    upstream: R,
    process: process::Origin,
    /// The streams that are open in a scope, and how many, readable without the lock.
    routes: RwLock<Vec<Route>>,
    open: AtomicUsize,
    /// The scope of each block that is handed out, and of each span by its start; and how many there are. An
    /// entry changes only under the lock of its scope.
    places: DashMap<DevicePtr, Arc<Scope>, FxBuildHasher>,
    place_count: AtomicUsize,
    /// The scopes that live, and those that ended and still have memory.
    scopes: Mutex<BTreeMap<u64, Arc<Scope>>>,
    /// The stream on which spans are taken and given back.
    aside: OwnStream,
    misuses: AtomicU64,
}

impl<R: DeviceMemoryResource> CaptureScopesMemoryResource<R> {
    /// Makes scopes whose memory comes from `upstream`.
    pub fn new(upstream: R) -> Self {
        Self(Arc::new(Inner {
            upstream,
            process: process::Origin::here(),
            routes: RwLock::default(),
            open: AtomicUsize::new(0),
            places: DashMap::default(),
            place_count: AtomicUsize::new(0),
            scopes: Mutex::default(),
            aside: OwnStream::default(),
            misuses: AtomicU64::new(0),
        }))
    }
}

impl<R: DeviceMemoryResource> Inner<R> {
    fn driver(&self) -> &dyn Driver {
        &**self.upstream.driver()
    }

    fn ask<T>(&self, body: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        ask(self.driver(), body)
    }

    // --- The scope of a call ---

    /// The scope that serves a stream: it is open there, or was forked into the capture of a stream that is.
    fn scope_of(&self, stream: StreamRef) -> Result<Option<Arc<Scope>>> {
        let id = stream.id();
        if let Some(route) = self.routes.read().iter().find(|route| route.id == id) {
            return Ok(Some(Arc::clone(&route.scope)));
        }
        let Some(capture) = self.capture_of(stream)? else { return Ok(None) };
        let routes = self.routes.read().clone();
        for Route { stream, scope, .. } in routes {
            // On this thread, a per-thread stream of another one would name another stream.
            let is_known = !stream.is_per_thread() && !self.driver().stream_is_gone(stream);
            if is_known && self.capture_of(stream)? == Some(capture) {
                return Ok(Some(scope));
            }
        }
        Ok(None)
    }

    /// The capture that a stream belongs to, where the driver numbers captures.
    fn capture_of(&self, stream: StreamRef) -> DriverResult<Option<u64>> {
        match self.ask(|driver| driver.stream_capture_id(stream)) {
            Err(error) if error.is_capture_refusal() || error.is_unsupported() => Ok(None),
            answer => answer,
        }
    }

    /// The order in which a block of a scope comes back on a stream.
    fn order_of(&self, scope: &Arc<Scope>, stream: StreamRef) -> Order {
        match self.ask(|driver| driver.stream_is_capturing(stream)) {
            Ok(false) => Order::Stream(stream),
            Err(error) if error.is_unsupported() => Order::Stream(stream),
            Ok(true) if self.open.load(Ordering::Relaxed) > 0 => match self.scope_of(stream) {
                Ok(Some(its)) if Arc::ptr_eq(&its, scope) => Order::Captured(stream.id()),
                _ => Order::OtherGraph,
            },
            Ok(true) => Order::OtherGraph,
            // The stream is gone, or it is the legacy one while a blocking stream captures.
            Err(_) => Order::Unknown,
        }
    }

    // --- Allocation ---

    /// Hands out a block of the scope.
    fn allocate_in(&self, scope: &Arc<Scope>, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if layout.bytes() == 0 {
            return Ok(DevicePtr::NULL);
        }
        let request = Request::new(layout).ok_or_else(|| Error::request_too_large(layout, stream))?.exact();
        if self.driver().health().is_lost() {
            return Err(self.driver().health().error());
        }
        let _captures = CaptureModeGuard::relaxed(self.driver());
        let is_captured = self.ask(|driver| is_capturing(driver, stream))?;
        let take = |waits| self.take(scope, &request, stream, is_captured, waits);
        if let Some(ptr) = take(false) {
            return Ok(ptr);
        }
        let held = scope.memory.lock().bytes_held();
        let (span, bytes) = match self.take_span(&request, held) {
            // A stream that captures waits for no other.
            Err(error) if error.is_out_of_memory() && !is_captured => {
                if let Some(ptr) = take(true) {
                    return Ok(ptr);
                }
                if self.release_ended() == 0 {
                    return Err(error);
                }
                self.take_span(&request, held)?
            }
            taken => taken?,
        };
        let mut memory = scope.memory.lock();
        self.note(span, scope);
        let ptr = memory.take_from_new(span, bytes, &request, stream);
        self.note(ptr, scope);
        Ok(ptr)
    }

    /// Takes a free block of the scope; with `waits`, after all work of the device.
    fn take(
        &self,
        scope: &Arc<Scope>,
        request: &Request,
        stream: StreamRef,
        is_captured: bool,
        waits: bool,
    ) -> Option<DevicePtr> {
        let mut memory = scope.memory.lock();
        let ptr = memory.take(request, stream, is_captured).or_else(|| {
            if waits {
                memory.wait_and_collect(self.driver());
            } else {
                memory.collect(self.driver());
            }
            memory.take(request, stream, is_captured)
        })?;
        self.note(ptr, scope);
        Some(ptr)
    }

    /// Takes a span that serves the request, on a stream of the layer's own, outside of all captures. Any
    /// stream may use it. It is larger than needed if there is memory.
    fn take_span(&self, request: &Request, held: u64) -> Result<(DevicePtr, u64)> {
        let aside = self.aside.get(self.driver())?;
        let exact = request.padded_bytes();
        let spare = (held / SPAN_SHARE).min(LARGEST_SPARE);
        let in_units = |bytes| align_up(bytes, SPAN_UNIT).unwrap_or(exact);
        let larger = [in_units(exact.max(spare)), in_units(exact)].into_iter().filter(|bytes| *bytes > exact);
        let take = |bytes| Ok((self.upstream.allocate(Layout::new(bytes), aside)?, bytes));
        // What is below may have a limit for one block.
        let taken = larger.map(take).find(|taken| !taken.as_ref().is_err_and(is_refusal));
        let taken: Result<_> = taken.unwrap_or_else(|| take(exact));
        let (span, bytes) = taken.map_err(|error| error.context("a scope of captured graphs grows"))?;
        if self.upstream.is_stream_ordered()
            && let Err(error) = self.ask(|driver| driver.stream_synchronize(aside))
        {
            // SAFETY: the span was just allocated with this layout, and no work used it.
            unsafe { self.upstream.deallocate(span, Layout::new(bytes), aside) };
            return Err(error.into());
        }
        Ok((span, bytes))
    }

    /// Notes whose a block or a span is; its scope is locked.
    fn note(&self, place: DevicePtr, scope: &Arc<Scope>) {
        if self.places.insert(place, Arc::clone(scope)).is_none() {
            self.place_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn forget(&self, place: DevicePtr) {
        if self.places.remove(&place).is_some() {
            self.place_count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    // --- Deallocation ---

    /// The scope that has a block or a span there.
    fn scope_at(&self, ptr: DevicePtr) -> Option<Arc<Scope>> {
        // A thread that frees a block of a scope learned its address after it was counted.
        match self.place_count.load(Ordering::Relaxed) {
            0 => None,
            _ => self.places.get(&ptr).map(|scope| Arc::clone(&scope)),
        }
    }

    /// Takes a block of a scope back.
    #[cold]
    fn take_back(
        &self,
        scope: &Arc<Scope>,
        ptr: DevicePtr,
        layout: Layout,
        stream: StreamRef,
        name: &dyn Display,
    ) {
        if self.driver().health().is_lost() {
            return;
        }
        let _captures = CaptureModeGuard::relaxed(self.driver());
        let order = self.order_of(scope, stream);
        let mut memory = scope.memory.lock();
        let held = match memory.claim(ptr, layout.bytes()) {
            Ok(held) => held,
            Err(kind) => {
                drop(memory);
                self.misuses.fetch_add(1, Ordering::Relaxed);
                let (bytes, resource) = (layout.bytes(), name.to_string());
                misuse::report(&Misuse { kind, ptr, bytes, stream, resource });
                return;
            }
        };
        if !memory.is_span(ptr) {
            self.forget(ptr);
        }
        memory.free(held, order, self.driver());
        let has_ended = memory.has_ended;
        drop(memory);
        if has_ended {
            self.release(scope);
        }
    }

    // --- The end of scopes ---

    /// Gives the spans of an ended scope back in which no block is handed out, after a wait for the device;
    /// returns their bytes. Where the device cannot be waited for now, they stay for the next time.
    fn release(&self, scope: &Arc<Scope>) -> u64 {
        if self.driver().health().is_lost() {
            return 0;
        }
        let _captures = CaptureModeGuard::relaxed(self.driver());
        let spans = {
            let mut memory = scope.memory.lock();
            let spans = memory.remove_free_spans();
            spans.iter().for_each(|(span, _)| self.forget(*span));
            spans
        };
        let aside = if spans.is_empty() { None } else { self.aside.get(self.driver()).ok() };
        if !spans.is_empty() && (aside.is_none() || !self.has_waited()) {
            let mut memory = scope.memory.lock();
            for (span, bytes) in spans {
                memory.restore(span, bytes);
                self.note(span, scope);
            }
            self.scopes.lock().insert(scope.id, Arc::clone(scope));
            return 0;
        }
        let mut released = 0;
        for (span, bytes) in spans {
            // SAFETY: the span came from upstream with this layout, once; no block of it is handed out, and
            // all work of the device up to their frees is done.
            unsafe { self.upstream.deallocate(span, Layout::new(bytes), aside.unwrap_or(StreamRef::LEGACY)) };
            released += bytes;
        }
        let mut memory = scope.memory.lock();
        if memory.bytes_held() == 0 {
            self.scopes.lock().remove(&scope.id);
        }
        self.destroy(memory.remove_events());
        released
    }

    /// Waits for all work of the device; returns whether memory may go back. Plain memory may in any case, as
    /// its free waits by itself.
    fn has_waited(&self) -> bool {
        self.ask(|driver| driver.synchronize_beside_captures()) == Ok(true)
            || !(self.upstream.is_stream_ordered() || self.driver().health().is_lost())
    }

    fn destroy(&self, events: Vec<Event>) {
        for event in events {
            // SAFETY: the event was a scope's own, and nothing waits for it.
            let _ = self.ask(|driver| unsafe { driver.event_destroy(event) });
        }
    }

    /// Gives back what ended scopes do not need any more; returns the bytes.
    fn release_ended(&self) -> u64 {
        let scopes: Vec<_> = self.scopes.lock().values().cloned().collect();
        let ended = scopes.iter().filter(|scope| scope.memory.lock().has_ended);
        ended.map(|scope| self.release(scope)).sum()
    }

    fn reports(&self) -> Vec<ScopeMemory> {
        let scopes: Vec<_> = self.scopes.lock().values().cloned().collect();
        scopes.iter().map(|scope| scope.memory.lock().report(scope.id)).collect()
    }
}

/// Whether a smaller request may succeed.
fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::InvalidArgument)
}

impl<R: DeviceMemoryResource + Send + Sync> Host for Inner<R> {
    fn open(&self, scope: &Arc<Scope>, stream: StreamRef) -> Result<u64> {
        if self.driver().health().is_lost() {
            return Err(self.driver().health().error());
        }
        let id = stream.id();
        let mut routes = self.routes.write();
        if let Some(open) = routes.iter().find(|route| route.id == id) {
            let open = open.scope.id;
            let why = format!("stream {stream} is open in scope {open} already; end that before");
            return Err(Error::invalid_argument(why).on_device(self.driver().device()));
        }
        routes.push(Route { stream, id, scope: Arc::clone(scope) });
        self.open.store(routes.len(), Ordering::Relaxed);
        let mut memory = scope.memory.lock();
        memory.open += 1;
        Ok(memory.allocations)
    }

    fn close(&self, scope: &Scope, stream: StreamId) {
        if self.process.is_elsewhere() {
            return;
        }
        let mut routes = self.routes.write();
        routes.retain(|route| route.id != stream);
        self.open.store(routes.len(), Ordering::Relaxed);
        let mut memory = scope.memory.lock();
        memory.open -= 1;
        if memory.open == 0 {
            memory.end_captures();
        }
    }

    fn end(&self, scope: &Arc<Scope>) {
        if self.process.is_elsewhere() {
            return;
        }
        scope.memory.lock().has_ended = true;
        self.release(scope);
    }
}

impl<R: DeviceMemoryResource + Send + Sync> CaptureScopes for CaptureScopesMemoryResource<R> {
    fn new_scope(&self) -> CaptureScope {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let id = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let scope = Arc::new(Scope { id, memory: Mutex::new(Memory::new()) });
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

/// By now all scopes have ended. What they still have are blocks that were not given back.
impl<R: DeviceMemoryResource> Drop for Inner<R> {
    fn drop(&mut self) {
        if self.process.is_elsewhere() || self.driver().health().is_lost() {
            return;
        }
        let scopes: Vec<_> = std::mem::take(self.scopes.get_mut()).into_values().collect();
        let driver = Arc::clone(self.upstream.driver());
        let _captures = CaptureModeGuard::relaxed(&*driver);
        let mut memories: Vec<_> = scopes.iter().map(|scope| scope.memory.lock()).collect();
        let spans: Vec<_> = memories.iter_mut().flat_map(|memory| memory.remove_all_spans()).collect();
        let events = memories.iter_mut().flat_map(|memory| memory.remove_events()).collect();
        if !spans.is_empty() && !self.has_waited() {
            tracing::warn!(target: "millpond::driver", "memory of captured graphs is left to the driver");
            return;
        }
        self.destroy(events);
        for (span, bytes) in spans {
            // SAFETY: the span came from upstream with this layout, once, and all work of the device is done.
            unsafe { self.upstream.deallocate(span, Layout::new(bytes), StreamRef::LEGACY) };
        }
        let driver = DriverHandle::clone(self.upstream.driver());
        let _ = self.aside.destroy(&*driver);
    }
}

impl<R: DeviceMemoryResource> Display for CaptureScopesMemoryResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+capture_scopes", self.0.upstream)
    }
}

// SAFETY: blocks of a scope are disjoint parts of its spans, which are aligned as the request asks
// (`Heap::take`). A stream gets a span once upstream's work for it is done; a block that it freed itself, in
// the capture or outside; or one whose earlier work is done, or was captured for a graph of the scope, which
// never runs at once with another. Spans go back when all work of the device is done. All else is upstream's.
#[deny(clippy::missing_trait_methods)]
unsafe impl<R: DeviceMemoryResource + Send + Sync> DeviceMemoryResource for CaptureScopesMemoryResource<R> {
    #[inline]
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let inner = &*self.0;
        let of_scope = |error: Error| {
            out_of_memory::reported(error.for_request(layout, stream), &**self.driver(), self.accessibility())
                .in_stack(self)
        };
        if inner.open.load(Ordering::Relaxed) > 0
            && let Some(scope) = inner.scope_of(stream).map_err(of_scope)?
        {
            return inner.allocate_in(&scope, layout, stream).map_err(of_scope);
        }
        let taken = match inner.upstream.allocate(layout, stream) {
            Err(error) if error.is_out_of_memory() && !error.is_impossible() && inner.release_ended() > 0 => {
                inner.upstream.allocate(layout, stream)
            }
            taken => taken,
        };
        taken.map_err(|error| error.in_stack(self))
    }

    #[inline]
    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let inner = &*self.0;
        if let Some(scope) = inner.scope_at(ptr) {
            return inner.take_back(&scope, ptr, layout, stream, self);
        }
        // SAFETY: the caller's promises hold for the upstream, where the block came from.
        unsafe { inner.upstream.deallocate(ptr, layout, stream) }
    }

    fn driver(&self) -> &DriverHandle {
        self.0.upstream.driver()
    }

    fn upstream(&self) -> Option<&dyn DeviceMemoryResource> {
        Some(&self.0.upstream)
    }

    /// The upstream's: what is free in a scope is for its next capture alone.
    fn memory_info(&self) -> Result<MemoryInfo> {
        self.0.upstream.memory_info().map_err(|error| error.in_stack(self))
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        is_same(self, other)
    }

    fn is_stream_ordered(&self) -> bool {
        true
    }

    fn accessibility(&self) -> Accessibility {
        self.0.upstream.accessibility()
    }

    /// The upstream's, to which a span is one block in use.
    fn statistics(&self) -> Option<ResourceStatistics> {
        let known = self.0.upstream.statistics();
        match self.0.misuses.load(Ordering::Relaxed) {
            0 => known,
            misuses => {
                let known = known.unwrap_or_default();
                Some(ResourceStatistics { misuses: known.misuses + misuses, ..known })
            }
        }
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.0.release_ended();
        self.0.upstream.trim(keep_bytes).map_err(|error| error.in_stack(self))
    }

    fn provide(&self, traits: &mut Traits) {
        traits.add::<Self, dyn CaptureScopes>(|it| it).add::<Self, dyn ReportsMemory>(|it| it);
    }
}

impl<R: DeviceMemoryResource + Send + Sync> ReportsMemory for CaptureScopesMemoryResource<R> {
    fn layer_memory(&self) -> LayerMemory {
        let mut memory = LayerMemory::default();
        memory.scopes = self.0.reports();
        memory
    }

    fn block_at(&self, ptr: DevicePtr) -> Option<BlockInfo> {
        let scope = self.0.scope_at(ptr)?;
        scope.memory.lock().block_at(ptr, scope.id)
    }
}
