//! A layer that keeps freed blocks for the next request of the same size. It makes one mistake on purpose.

use std::fmt;
use std::sync::Arc;

use millpond_core::driver::{
    CaptureModeGuard, DriverResult, Event, EventFlags, PhysicalHandle, PhysicalProps,
};
use millpond_core::driver::{Driver, DriverHandle, StreamFlags};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DevicePtr, Error, Layout, Result, StreamId, StreamRef, debug_as_text,
    downcast, forward_to_upstream,
};
use parking_lot::Mutex;

/// How many blocks the layer keeps at most.
const MOST_KEPT: usize = 4;

/// [`WrongLayer::LosesFree`] loses one free in this many.
const LOSES_ONE_OF: u64 = 7;

/// A mistake of a layer in a rare situation: captures, callbacks, the layer's own work, resets, errors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WrongLayer {
    /// The layer treats a block that is freed on a capturing stream as ordered, even if other streams used
    /// the block before the capture.
    TrustsCaptures,
    /// The layer fills blocks on the request's stream, and does not report this work to the layers above.
    HidesWork,
    /// The layer holds a lock while it calls upstream.
    HoldsLock,
    /// Some frees never reach upstream.
    LosesFree,
    /// After a reset of the context, the layer does not release its physical memory, which outlives the
    /// reset.
    KeepsAtReset,
    /// The layer records a stream's event only at the stream's first free, so it passes on later frees too
    /// early.
    FreesEarlyEpoch,
    /// The layer queries an event in the middle of a request, which ends captures.
    EndsCaptures,
    /// Every error is reported as out of memory.
    BlursErrors,
    /// The layer's drop waits for a lost device.
    WaitsWhenLost,
    /// If upstream refuses a free, the layer passes on the free a second time.
    FreesAgain,
}

impl WrongLayer {
    /// Every mistake, with the name of its layer.
    pub const ALL: &'static [(&'static str, Self)] = &[
        ("trusts_captures", Self::TrustsCaptures),
        ("hides_work", Self::HidesWork),
        ("holds_lock", Self::HoldsLock),
        ("loses_free", Self::LosesFree),
        ("keeps_at_reset", Self::KeepsAtReset),
        ("frees_early_epoch", Self::FreesEarlyEpoch),
        ("ends_captures", Self::EndsCaptures),
        ("blurs_errors", Self::BlursErrors),
        ("waits_when_lost", Self::WaitsWhenLost),
        ("frees_again", Self::FreesAgain),
    ];

    /// Returns the name of the layer that makes this mistake.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, wrong)| *wrong == self).map_or("canary", |(name, _)| name)
    }
}

/// A layer that makes one [mistake](WrongLayer), or none.
pub struct CanaryLayer {
    upstream: AnyResource,
    wrong: Option<WrongLayer>,
    state: Mutex<State>,
    /// One of the mistakes holds this lock during upstream calls.
    across: Mutex<()>,
    outliving: Option<PhysicalHandle>,
}

#[derive(Default, Debug)]
struct State {
    kept: Vec<Kept>,
    aside: Option<StreamRef>,
    /// The events of `FreesEarlyEpoch`, by stream.
    early: Vec<(StreamId, Event)>,
    frees: u64,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    ptr: DevicePtr,
    layout: Layout,
    /// The id, because a per-thread [`StreamRef`] means a different stream on each thread.
    stream: StreamId,
    /// Recorded at the free; `None` if the block counts as ordered for any stream.
    event: Option<Event>,
}

impl CanaryLayer {
    /// Builds the layer as a handle; `wrong` is the mistake that it makes.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn build(upstream: AnyResource, wrong: Option<WrongLayer>) -> Result<AnyResource> {
        let outliving = match wrong {
            Some(WrongLayer::KeepsAtReset) => {
                let driver = upstream.driver();
                let bytes = driver.mem_get_allocation_granularity()?;
                Some(driver.mem_create(bytes, PhysicalProps::default())?)
            }
            _ => None,
        };
        Ok(Arc::new(Self { upstream, wrong, state: Mutex::default(), across: Mutex::default(), outliving }))
    }

    fn is(&self, wrong: WrongLayer) -> bool {
        self.wrong == Some(wrong)
    }

    fn driver(&self) -> &dyn Driver {
        &**self.upstream.driver()
    }

    fn is_capturing(&self, stream: StreamRef) -> bool {
        self.driver().stream_is_capturing(stream).unwrap_or(true)
    }

    /// Takes a kept block for the request and orders the stream after the block's free.
    fn take(&self, layout: Layout, stream: StreamRef) -> Option<DevicePtr> {
        if layout.bytes() == 0 || self.driver().health().is_lost() {
            return None;
        }
        let is_captured = self.is_capturing(stream);
        let kept = {
            let mut state = self.state.lock();
            let fits = |kept: &Kept| kept.layout == layout && !(is_captured && kept.event.is_some());
            let at = state.kept.iter().position(fits)?;
            state.kept.swap_remove(at)
        };
        match self.order(kept, stream) {
            Ok(()) => Some(kept.ptr),
            Err(error) => {
                self.driver().health().note(&error);
                self.state.lock().kept.push(kept);
                None
            }
        }
    }

    /// Orders the stream after a block's free, and destroys its event.
    fn order(&self, kept: Kept, stream: StreamRef) -> DriverResult<()> {
        let Some(event) = kept.event else { return Ok(()) };
        if kept.stream != stream.id() {
            self.driver().stream_wait_event(stream, event)?;
        }
        let shared = self.state.lock().early.iter().any(|(_, early)| *early == event);
        if shared {
            return Ok(());
        }
        // SAFETY: only this block used the event, and nothing names it any more.
        unsafe { self.driver().event_destroy(event) }
    }

    /// Keeps a block, if possible.
    fn keep(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) -> bool {
        // The layer that hides work keeps no blocks, so it may claim not to be stream-ordered.
        let is_unwanted = ptr.is_null() || self.is(WrongLayer::HidesWork);
        if is_unwanted || self.driver().health().is_lost() || self.state.lock().kept.len() >= MOST_KEPT {
            return false;
        }
        let event = match (self.is_capturing(stream), self.is(WrongLayer::TrustsCaptures)) {
            (true, true) => None,
            (true, false) => return false,
            (false, _) => match self.record(stream) {
                Ok(event) => Some(event),
                Err(error) => {
                    self.driver().health().note(&error);
                    return false;
                }
            },
        };
        self.state.lock().kept.push(Kept { ptr, layout, stream: stream.id(), event });
        true
    }

    fn record(&self, stream: StreamRef) -> DriverResult<Event> {
        let is_early = self.is(WrongLayer::FreesEarlyEpoch);
        let id = stream.id();
        let early = self.state.lock().early.iter().find(|(of, _)| *of == id).map(|(_, event)| *event);
        if let Some(event) = early {
            return Ok(event);
        }
        let event = self.driver().event_create(EventFlags::default())?;
        if let Err(error) = self.driver().event_record(event, stream) {
            // SAFETY: the event was just created, and nothing else names it.
            unsafe { self.driver().event_destroy(event)? };
            return Err(error);
        }
        if is_early {
            self.state.lock().early.push((id, event));
        }
        Ok(event)
    }

    fn aside(&self) -> DriverResult<StreamRef> {
        let mut state = self.state.lock();
        match state.aside {
            Some(stream) => Ok(stream),
            None => Ok(*state.aside.insert(self.driver().stream_create(StreamFlags::NON_BLOCKING)?)),
        }
    }

    /// Returns all kept blocks to upstream; returns whether there was one.
    fn flush(&self) -> bool {
        let _captures = CaptureModeGuard::relaxed(self.driver());
        let Ok(aside) = self.aside() else { return false };
        let mut any = false;
        while let Some(kept) = { self.state.lock().kept.pop() } {
            if let Err(error) = self.order(kept, aside) {
                self.driver().health().note(&error);
                self.state.lock().kept.push(kept);
                break;
            }
            // SAFETY: the block came from upstream with this layout, its owner freed it, and the stream is
            // ordered after that.
            unsafe { self.upstream.deallocate(kept.ptr, kept.layout, aside) };
            any = true;
        }
        any
    }

    /// Requests a new block from upstream.
    fn request(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let _across = self.is(WrongLayer::HoldsLock).then(|| self.across.lock());
        let ptr = self.upstream.allocate(layout, stream)?;
        if self.is(WrongLayer::HidesWork) && layout.bytes() > 0 && self.upstream.accessibility().device {
            // SAFETY: the block was just allocated for this stream, with this size.
            let filled = unsafe { self.driver().memset_d8_async(ptr, 0, layout.bytes(), stream) };
            filled.unwrap_or_else(|error| self.driver().health().note(&error));
        }
        Ok(ptr)
    }
}

// SAFETY: blocks come from upstream. A kept block goes to a stream that waits for its free. The tests check
// which rules a mistake breaks.
#[deny(clippy::missing_trait_methods)]
unsafe impl DeviceMemoryResource for CanaryLayer {
    fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        if self.is(WrongLayer::EndsCaptures)
            && let Some(event) = { self.state.lock().kept.iter().find_map(|kept| kept.event) }
        {
            let _ = self.driver().event_query(event);
        }
        let taken = {
            let _captures = CaptureModeGuard::relaxed(self.driver());
            self.take(layout, stream)
        };
        if let Some(ptr) = taken {
            return Ok(ptr);
        }
        let served = match self.request(layout, stream) {
            Err(error) if error.is_out_of_memory() && self.flush() => self.request(layout, stream),
            served => served,
        };
        match served {
            Err(_) if self.is(WrongLayer::BlursErrors) => Err(Error::out_of_memory(layout, stream)),
            served => served,
        }
        .map_err(|error| error.in_stack(self))
    }

    unsafe fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) {
        let frees = {
            let mut state = self.state.lock();
            state.frees += 1;
            state.frees
        };
        if self.is(WrongLayer::LosesFree) && frees.is_multiple_of(LOSES_ONE_OF) {
            return;
        }
        let is_kept = {
            let _captures = CaptureModeGuard::relaxed(self.driver());
            self.keep(ptr, layout, stream)
        };
        if is_kept {
            return;
        }
        let _across = self.is(WrongLayer::HoldsLock).then(|| self.across.lock());
        let times = if self.is(WrongLayer::FreesAgain) && frees.is_multiple_of(LOSES_ONE_OF) { 2 } else { 1 };
        for _ in 0..times {
            // SAFETY: the caller's promises hold for upstream, where the block came from; the second call is
            // a mistake on purpose.
            unsafe { self.upstream.deallocate(ptr, layout, stream) }
        }
    }

    fn is_equal(&self, other: &dyn DeviceMemoryResource) -> bool {
        downcast::<Self>(other).is_some_and(|other| std::ptr::eq(self, other))
    }

    fn is_stream_ordered(&self) -> bool {
        !self.is(WrongLayer::HidesWork) || self.upstream.is_stream_ordered()
    }

    fn trim(&self, keep_bytes: u64) -> Result<u64> {
        self.flush();
        self.upstream.trim(keep_bytes)
    }

    forward_to_upstream!(except allocate, deallocate, is_equal, is_stream_ordered, trim);
}

impl Drop for CanaryLayer {
    fn drop(&mut self) {
        let driver = DriverHandle::clone(self.upstream.driver());
        if let Some(handle) = self.outliving.take().filter(|_| !driver.health().is_lost()) {
            // SAFETY: the layer owns the handle, which is mapped nowhere.
            let _ = unsafe { driver.mem_release(handle) };
        }
        if self.is(WrongLayer::WaitsWhenLost) {
            let _ = driver.synchronize_beside_captures();
        }
        if driver.health().is_lost() {
            return;
        }
        self.flush();
        let State { aside, early, kept, .. } = std::mem::take(self.state.get_mut());
        // A kept block stays with upstream if no stream could be made to wait for it.
        let of_kept = kept.iter().filter_map(|kept| kept.event);
        let own = of_kept.filter(|event| early.iter().all(|(_, early)| early != event));
        for event in own.chain(early.iter().map(|(_, event)| *event)) {
            // SAFETY: nothing names the event any more.
            let _ = unsafe { driver.event_destroy(event) };
        }
        if let Some(stream) = aside {
            // SAFETY: the stream belongs to the layer.
            let _ = unsafe { driver.stream_destroy(stream) };
        }
    }
}

impl fmt::Display for CanaryLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.upstream, self.wrong.map_or("canary", WrongLayer::name))
    }
}

debug_as_text!(CanaryLayer);
