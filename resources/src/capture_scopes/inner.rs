//! The layer's calls to the driver and to upstream: the scope of a call, spans, the events behind frees, and
//! the end of scopes. The layer makes none of these calls under a lock.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dashmap::DashMap;
use millpond_core::driver::{CaptureModeGuard, Driver, DriverResult, Event, EventFlags};
use millpond_core::misuse::{self, Misuse};
use millpond_core::{
    DeviceMemoryResource, DevicePtr, DriverHandle, Error, ErrorKind, FailureTally, Layout, MemorySegment,
    Result, ScopeMemory, StreamId, StreamRef, align_up,
};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxBuildHasher;

use super::memory::{Held, Memory, Side};
use super::parked::Wait;
use super::scope::{Host, Scope};
use crate::driver_calls::{NamedStream, OwnStream};
use crate::heap::request::Request;
use crate::process;
use millpond_core::driver::{ask, is_capturing, record_unless_capturing};

/// The unit of a span in bytes, and its least size: a page of the device.
const SPAN_UNIT: u64 = 2 << 20;
/// A span has at least this part of its scope's memory, so that a large capture takes few spans.
const SPAN_SHARE: u64 = 4;
/// A span exceeds this size, in bytes, only if a request needs more.
const LARGEST_SPARE: u64 = 64 << 20;

/// A stream that is open in a scope.
#[derive(Clone, Debug)]
struct Route {
    stream: StreamRef,
    /// The id; for a per-thread stream, the id on the thread that opened it.
    id: StreamId,
    scope: Arc<Scope>,
}

/// The order in which a scope's block comes back.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// In a capture of the scope, with the driver's number for that capture.
    Captured(Option<u64>),
    /// On a stream that does not capture.
    Ordinary,
    /// In a graph outside the scope: the block is withheld until the scope ends.
    OtherGraph,
    /// On a stream that the driver cannot answer for, for example a destroyed one. The block waits for the
    /// device.
    Unknown,
}

/// Shared by all values of the layer: the resource, and its scopes.
pub(super) struct Inner<R: DeviceMemoryResource> {
    pub(super) upstream: R,
    process: process::Origin,
    /// The streams that are open in a scope. `open` counts them, and is readable without the lock.
    routes: RwLock<Vec<Route>>,
    pub(super) open: AtomicUsize,
    /// The scope of each live block, and of each span by its start; `place_count` counts them. An entry
    /// changes only under its scope's lock.
    places: DashMap<DevicePtr, Arc<Scope>, FxBuildHasher>,
    place_count: AtomicUsize,
    /// The living scopes, and ended scopes that still have memory.
    pub(super) scopes: Mutex<BTreeMap<u64, Arc<Scope>>>,
    /// The stream on which spans are allocated and freed.
    aside: OwnStream,
    pub(super) misuses: AtomicU64,
    pub(super) failures: FailureTally,
}

impl<R: DeviceMemoryResource> Inner<R> {
    pub(super) fn is_elsewhere(&self) -> bool {
        self.process.is_elsewhere()
    }

    pub(super) fn new(upstream: R) -> Self {
        Self {
            upstream,
            process: process::Origin::here(),
            routes: RwLock::default(),
            open: AtomicUsize::new(0),
            places: DashMap::default(),
            place_count: AtomicUsize::new(0),
            scopes: Mutex::default(),
            aside: OwnStream::default(),
            misuses: AtomicU64::new(0),
            failures: FailureTally::default(),
        }
    }

    fn driver(&self) -> &dyn Driver {
        &**self.upstream.driver()
    }

    fn ask<T>(&self, body: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        ask(self.driver(), body)
    }

    // --- The scope of a call ---

    /// Returns the scope that serves a stream: the stream is open in it, or was forked into the capture of an
    /// open stream.
    pub(super) fn scope_of(&self, stream: StreamRef) -> Result<Option<Arc<Scope>>> {
        let id = stream.id();
        if let Some(route) = self.routes.read().iter().find(|route| route.id == id) {
            return Ok(Some(Arc::clone(&route.scope)));
        }
        let Some(capture) = self.capture_of(stream)? else { return Ok(None) };
        let routes = self.routes.read().clone();
        for Route { stream, scope, .. } in routes {
            // A per-thread stream of another thread would name a different stream on this thread.
            let is_known = !stream.is_per_thread() && !self.driver().stream_is_gone(stream);
            if is_known && self.capture_of(stream)? == Some(capture) {
                return Ok(Some(scope));
            }
        }
        Ok(None)
    }

    /// Returns the capture that a stream belongs to, if the driver numbers captures.
    fn capture_of(&self, stream: StreamRef) -> DriverResult<Option<u64>> {
        match self.ask(|driver| driver.stream_capture_id(stream)) {
            Err(error) if error.is_capture_refusal() || error.is_unsupported() => Ok(None),
            answer => answer,
        }
    }

    /// Returns the side on which a stream works; `None` in a capture without a number.
    fn side_of(&self, stream: StreamRef) -> DriverResult<Option<Side>> {
        if !self.ask(|driver| is_capturing(driver, stream))? {
            return Ok(Some(Side::Ordinary));
        }
        Ok(self.capture_of(stream)?.map(Side::Captured))
    }

    /// Returns the order in which a scope's block comes back on a stream.
    fn order_of(&self, scope: &Arc<Scope>, stream: StreamRef) -> Order {
        match self.ask(|driver| driver.stream_is_capturing(stream)) {
            Ok(false) => Order::Ordinary,
            Err(error) if error.is_unsupported() => Order::Ordinary,
            Ok(true) if self.open.load(Ordering::Relaxed) > 0 => match self.scope_of(stream) {
                Ok(Some(its)) if Arc::ptr_eq(&its, scope) => {
                    Order::Captured(self.capture_of(stream).ok().flatten())
                }
                _ => Order::OtherGraph,
            },
            Ok(true) => Order::OtherGraph,
            // The stream is destroyed, or is the legacy stream while a blocking stream captures.
            Err(_) => Order::Unknown,
        }
    }

    // --- Allocation ---

    /// Allocates a block of the scope; returns `None` if the scope ended meanwhile.
    pub(super) fn allocate_in(
        &self,
        scope: &Arc<Scope>,
        layout: Layout,
        stream: StreamRef,
    ) -> Result<Option<DevicePtr>> {
        if layout.bytes() == 0 {
            return Ok(Some(DevicePtr::NULL));
        }
        let request = Request::new(layout).ok_or_else(|| Error::request_too_large(layout, stream))?.exact();
        if self.driver().health().is_lost() {
            return Err(self.driver().health().error().on_device(self.driver().device()));
        }
        let _captures = CaptureModeGuard::relaxed(self.driver());
        let side = self.side_of(stream)?;
        let take = || self.take(scope, &request, stream, side);
        let taken = take().or_else(|| {
            self.collect(scope);
            take()
        });
        if taken.is_some() {
            return Ok(taken);
        }
        let held = scope.memory.lock().bytes_held();
        let (span, bytes) = match self.take_span(&request, held) {
            // A stream that captures cannot wait.
            Err(error)
                if error.is_out_of_memory() && !error.is_impossible() && side == Some(Side::Ordinary) =>
            {
                // Blocks that another thread frees meanwhile may join blocks that the first wait covers.
                let waited = (0..2).find_map(|_| {
                    self.wait_and_collect(scope);
                    take()
                });
                if waited.is_some() {
                    return Ok(waited);
                }
                if self.release_ended() == 0 {
                    return Err(error);
                }
                self.take_span(&request, held)?
            }
            taken => taken?,
        };
        {
            let mut memory = scope.memory.lock();
            if !memory.has_ended {
                self.note(span, scope);
                let ptr = memory.take_from_new(span, bytes, &request, stream, side);
                self.note(ptr, scope);
                return Ok(Some(ptr));
            }
        }
        self.give_span(span, bytes, self.aside.get(self.driver())?);
        Ok(None)
    }

    /// Takes a free block of the scope.
    fn take(
        &self,
        scope: &Arc<Scope>,
        request: &Request,
        stream: StreamRef,
        side: Option<Side>,
    ) -> Option<DevicePtr> {
        let mut memory = scope.memory.lock();
        let ptr = memory.take(request, stream, side)?;
        self.note(ptr, scope);
        Some(ptr)
    }

    /// Asks the driver whether the work is done that blocks of the scope wait for.
    pub(super) fn collect(&self, scope: &Scope) {
        let mut queries = scope.memory.lock().begin_queries();
        if queries.is_empty() {
            return;
        }
        for query in &mut queries {
            query.is_reached = self.ask(|driver| driver.event_query(query.event)) == Ok(true);
        }
        self.settle(scope, |memory| memory.end_queries(queries));
    }

    /// Waits for the device, and so for all work that blocks of the scope wait for.
    pub(super) fn wait_and_collect(&self, scope: &Scope) {
        let wait = scope.memory.lock().begin_device_wait();
        if self.ask(|driver| driver.synchronize_beside_captures()) == Ok(true) {
            self.settle(scope, |memory| memory.end_device_wait(&wait));
        }
    }

    /// Allocates a span for the request, on the layer's own stream, outside of all captures. Any stream may
    /// use the span. It is larger than needed if there is enough memory.
    fn take_span(&self, request: &Request, held: u64) -> Result<(DevicePtr, u64)> {
        let aside = self.aside.get(self.driver())?;
        let exact = request.padded_bytes();
        let spare = (held / SPAN_SHARE).min(LARGEST_SPARE);
        let in_units = |bytes| align_up(bytes, SPAN_UNIT).unwrap_or(exact);
        let larger = [in_units(exact.max(spare)), in_units(exact)].into_iter().filter(|bytes| *bytes > exact);
        let take = |bytes| Ok((self.upstream.allocate(Layout::new(bytes), aside)?, bytes));
        // Upstream may limit the size of one block.
        let taken = larger.map(take).find(|taken| !taken.as_ref().is_err_and(is_refusal));
        let taken: Result<_> = taken.unwrap_or_else(|| take(exact));
        let (span, bytes) = taken.map_err(|error| error.context("growing a scope of captured graphs"))?;
        if self.upstream.is_stream_ordered()
            && let Err(error) = self.ask(|driver| driver.stream_synchronize(aside))
        {
            self.give_span(span, bytes, aside);
            return Err(error.into());
        }
        Ok((span, bytes))
    }

    /// Returns a span that no work used to upstream.
    fn give_span(&self, span: DevicePtr, bytes: u64, aside: StreamRef) {
        // SAFETY: the span was just allocated with this layout on this stream, and no work used it.
        unsafe { self.upstream.deallocate(span, Layout::new(bytes), aside) };
    }

    /// Notes the scope of a block or a span. The caller holds the scope's lock.
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

    /// Returns the scope that has a block or a span at this address.
    pub(super) fn scope_at(&self, ptr: DevicePtr) -> Option<Arc<Scope>> {
        // Only a thread that knows the block's address frees it, and the block was counted before.
        match self.place_count.load(Ordering::Relaxed) {
            0 => None,
            _ => self.places.get(&ptr).map(|scope| Arc::clone(&scope)),
        }
    }

    /// Takes a block of a scope back.
    #[cold]
    pub(super) fn take_back(
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
        let claimed = {
            let mut memory = scope.memory.lock();
            let claimed = memory.claim(ptr, layout.bytes());
            if claimed.is_ok() && !memory.is_span(ptr) {
                self.forget(ptr);
            }
            claimed
        };
        match claimed {
            Ok(held) => self.free(scope, held, order, stream),
            Err(kind) => {
                self.misuses.fetch_add(1, Ordering::Relaxed);
                return misuse::report(&Misuse::new(kind, ptr, layout.bytes(), stream, name));
            }
        }
        let has_ended = scope.memory.lock().has_ended;
        if has_ended {
            self.release(scope);
        }
    }

    /// Frees a claimed block.
    fn free(&self, scope: &Scope, held: Held, order: Order, stream: StreamRef) {
        match order {
            Order::Ordinary => {
                let ticket = scope.memory.lock().begin_free(stream.id());
                let event = self.record(scope, |driver, event| {
                    driver.event_record(event, stream)?;
                    // A capture may have begun on another thread before the record. A query of the event
                    // would end that capture.
                    is_capturing(driver, stream).map(|is_captured| !is_captured)
                });
                self.settle(scope, |memory| memory.end_free(held, ticket, event));
            }
            Order::Captured(Some(capture)) if held.capture == Some(capture) => {
                self.settle(scope, |memory| memory.free_captured(held, stream.id(), capture));
            }
            Order::Captured(capture) => {
                let waits = self.waits_of(scope, held.stream, NamedStream::of(stream));
                let capture = capture.map(|capture| (stream.id(), capture));
                self.settle(scope, |memory| memory.park(held, waits, capture));
            }
            Order::OtherGraph => self.settle(scope, |memory| memory.withhold(held)),
            Order::Unknown => self.settle(scope, |memory| memory.park(held, vec![Wait::Device], None)),
        }
    }

    /// Returns the waits for a block that a capture frees and that work outside of the capture may use. That
    /// work is on a stream that is open in the scope, on the stream that allocated the block, or before the
    /// stream of the free, as ordered outside of captures.
    fn waits_of(&self, scope: &Scope, allocated: NamedStream, freed: NamedStream) -> Vec<Wait> {
        let mut closing = scope.memory.lock().open_streams().to_vec();
        if closing.iter().all(|open| open.id != freed.id) {
            closing.push(freed);
        }
        let is_closing = closing.iter().any(|open| open.id == allocated.id);
        let mut waits: Vec<Wait> = closing.into_iter().map(Wait::Close).collect();
        if !is_closing {
            let event = self.record_if_alive(scope, allocated);
            let fence = event.map(|event| scope.memory.lock().add_fence(event));
            waits.push(fence.map_or(Wait::Device, Wait::Fence));
        }
        waits
    }

    /// Returns an event recorded on a stream; `None` if the stream may be gone, or captures.
    fn record_if_alive(&self, scope: &Scope, named: NamedStream) -> Option<Event> {
        let stream = named.here()?;
        self.record(scope, |driver, event| driver.event_record_if_alive(event, stream))
    }

    /// Returns an event of the scope, if `body` records it.
    fn record(
        &self,
        scope: &Scope,
        body: impl FnOnce(&dyn Driver, Event) -> DriverResult<bool>,
    ) -> Option<Event> {
        let spare = scope.memory.lock().take_spare_event();
        let created = || self.ask(|driver| driver.event_create(EventFlags::default())).ok();
        let event = spare.or_else(created)?;
        if self.ask(|driver| body(driver, event)) == Ok(true) {
            return Some(event);
        }
        self.settle(scope, |memory| memory.keep_spare_event(event));
        None
    }

    /// Changes a scope's memory. If the scope has ended, also destroys its events, which it no longer needs.
    fn settle<T>(&self, scope: &Scope, change: impl FnOnce(&mut Memory) -> T) -> T {
        let (changed, events) = {
            let mut memory = scope.memory.lock();
            let changed = change(&mut memory);
            let has_ended = memory.has_ended;
            (changed, if has_ended { memory.remove_events() } else { Vec::new() })
        };
        self.destroy(events);
        changed
    }

    // --- The end of scopes ---

    /// Waits for the device, returns the spans of an ended scope without live blocks to upstream, and returns
    /// their bytes. If a wait for the device is not possible now, the spans stay for the next time.
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
            // SAFETY: the span came from upstream with this layout, once. It has no live block, and all work
            // of the device up to the frees of its blocks is done.
            unsafe { self.upstream.deallocate(span, Layout::new(bytes), aside.unwrap_or(StreamRef::LEGACY)) };
            released += bytes;
        }
        self.settle(scope, |memory| {
            if memory.bytes_held() == 0 {
                self.scopes.lock().remove(&scope.id);
            }
        });
        released
    }

    /// Waits for all work of the device. Returns whether memory may go back. Plain memory always may, since
    /// its free itself waits.
    fn has_waited(&self) -> bool {
        self.ask(|driver| driver.synchronize_beside_captures()) == Ok(true)
            || !(self.upstream.is_stream_ordered() || self.driver().health().is_lost())
    }

    fn destroy(&self, events: Vec<Event>) {
        for event in events {
            // SAFETY: the event belonged to a scope, and nothing waits for it.
            let _ = self.ask(|driver| unsafe { driver.event_destroy(event) });
        }
    }

    /// Returns memory that ended scopes no longer need to upstream; returns the bytes.
    pub(super) fn release_ended(&self) -> u64 {
        let scopes: Vec<_> = self.scopes.lock().values().cloned().collect();
        let ended = scopes.iter().filter(|scope| scope.memory.lock().has_ended);
        ended.map(|scope| self.release(scope)).sum()
    }

    pub(super) fn reports(&self) -> Vec<ScopeMemory> {
        let scopes: Vec<_> = self.scopes.lock().values().cloned().collect();
        scopes.iter().map(|scope| scope.memory.lock().report(scope.id)).collect()
    }

    pub(super) fn segments(&self) -> Vec<MemorySegment> {
        let scopes: Vec<_> = self.scopes.lock().values().cloned().collect();
        scopes.iter().flat_map(|scope| scope.memory.lock().segments(scope.id)).collect()
    }
}

/// Returns whether a smaller request may succeed.
fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::InvalidArgument)
}

impl<R: DeviceMemoryResource + Send + Sync> Host for Inner<R> {
    fn open(&self, scope: &Arc<Scope>, stream: StreamRef) -> Result<u64> {
        if self.driver().health().is_lost() {
            return Err(self.driver().health().error().on_device(self.driver().device()));
        }
        let named = NamedStream::of(stream);
        let mut routes = self.routes.write();
        if let Some(open) = routes.iter().find(|route| route.id == named.id) {
            let open = open.scope.id;
            let why = format!(
                "stream {stream} is already open in scope {open}; close that scope for the stream first"
            );
            return Err(Error::invalid_argument(why).on_device(self.driver().device()));
        }
        routes.push(Route { stream, id: named.id, scope: Arc::clone(scope) });
        self.open.store(routes.len(), Ordering::Relaxed);
        let mut memory = scope.memory.lock();
        memory.open(named);
        Ok(memory.allocations)
    }

    fn close(&self, scope: &Scope, stream: StreamId) {
        if self.process.is_elsewhere() {
            return;
        }
        let closing = {
            let mut routes = self.routes.write();
            routes.retain(|route| route.id != stream);
            self.open.store(routes.len(), Ordering::Relaxed);
            scope.memory.lock().begin_close(stream)
        };
        if closing.streams.is_empty() {
            return;
        }
        let is_lost = self.driver().health().is_lost();
        for named in &closing.streams {
            let event = match named.here().filter(|_| !is_lost) {
                // The stream that closes is alive, although the driver may not know that.
                Some(here) if named.id == stream && !self.driver().stream_is_gone(here) => {
                    self.record(scope, |driver, event| record_unless_capturing(driver, event, here))
                }
                Some(_) => self.record_if_alive(scope, *named),
                None => None,
            };
            self.settle(scope, |memory| memory.end_close(&closing, named.id, event));
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

/// All scopes have ended by now. Their remaining blocks were never freed.
impl<R: DeviceMemoryResource> Drop for Inner<R> {
    fn drop(&mut self) {
        if self.process.is_elsewhere() {
            return;
        }
        // Memory of upstream may outlive the context; events do not.
        let was_reset = self.driver().was_reset();
        if self.driver().health().is_lost() && !was_reset {
            return;
        }
        let scopes: Vec<_> = std::mem::take(self.scopes.get_mut()).into_values().collect();
        let driver = DriverHandle::clone(self.upstream.driver());
        let _captures = CaptureModeGuard::relaxed(&*driver);
        let (mut spans, mut events) = (Vec::new(), Vec::new());
        for scope in scopes {
            let mut memory = scope.memory.lock();
            spans.extend(memory.remove_all_spans());
            events.extend(memory.remove_events());
        }
        if !spans.is_empty() && !was_reset && !self.has_waited() {
            tracing::warn!(target: "millpond::driver", "cannot free memory of captured graphs; it leaks");
            return;
        }
        if !was_reset {
            self.destroy(events);
        }
        for (span, bytes) in spans {
            // SAFETY: the span came from upstream with this layout, once, and all work of the device is done.
            unsafe { self.upstream.deallocate(span, Layout::new(bytes), StreamRef::LEGACY) };
        }
        if !was_reset {
            let _ = self.aside.destroy(&*driver);
        }
    }
}
