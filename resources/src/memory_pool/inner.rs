//! A pool's blocks, and the order in which they are freed: on the caller's stream, or outside of a capture.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, Weak};

use dashmap::DashMap;
use millpond_core::driver::{
    CaptureModeGuard, Driver, DriverResult, EventFlags, Health, MemPool, MemPoolAttribute, MemPoolProps, call,
};
use millpond_core::misuse::MisuseKind;
use millpond_core::{
    ALLOCATION_ALIGNMENT, Accessibility, DevicePtr, DriverError, DriverHandle, Error, Layout,
    OutOfMemoryReport, Remedy, Result, StreamId, StreamRef,
};
use parking_lot::{Mutex, ReentrantMutex};
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::place::{self, Place};
use crate::driver_calls::{NamedStream, OwnStream};
use crate::out_of_memory::note_memory;
use crate::process;
use millpond_core::driver::{ask, is_capturing, record_unless_capturing};

/// The living pools, by their handle and the opening of their device. All values for one pool share its
/// blocks.
pub(super) static POOLS: LazyLock<DashMap<(usize, MemPool), Weak<Inner>, FxBuildHasher>> =
    LazyLock::new(DashMap::default);

pub(super) fn key(driver: &DriverHandle, raw: MemPool) -> (usize, MemPool) {
    let health: *const Health = Arc::as_ptr(driver.health());
    (health.addr(), raw)
}

/// The most streams whose frees a trim observes. A program that makes a stream for each request must not fill
/// the table.
const MOST_OBSERVED: usize = 64;

/// No stream's id.
const NO_STREAM: u64 = u64::MAX;

/// The origin of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// This process made it, and destroys it at its end. With `frees_at_end`, it first frees the live blocks.
    Made { props: MemPoolProps, frees_at_end: bool },
    /// Another process made it. This process destroys its import at the end.
    Imported,
    /// It belongs to the driver, or to another library.
    Elsewhere,
}

/// A live block.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// The start of the driver's block; an over-aligned block starts behind it.
    base: DevicePtr,
    /// The requested bytes.
    bytes: u64,
    /// The stream that it was allocated on.
    stream: NamedStream,
}

/// A freed block that the driver does not have yet.
#[derive(Clone, Copy, Debug)]
struct Deferred {
    base: DevicePtr,
    bytes: u64,
    /// The stream of the free, which captured a graph at the time. `None`: free the block only after a wait
    /// for the device.
    stream: Option<StreamId>,
    /// The stream that it was allocated on.
    allocated: NamedStream,
}

/// The result of a free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Freed {
    /// The block was taken back.
    Taken,
    /// The free was refused, and nothing changed.
    Refused(MisuseKind),
    /// The block was taken back, but the call was a mistake.
    TakenDespite(MisuseKind),
}

/// A pool, shared by all values that name it.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(super) driver: DriverHandle,
    pub(super) raw: MemPool,
    pub(super) origin: Origin,
    /// Known from the beginning if this process made the pool.
    pub(super) place: OnceLock<Place>,
    process: process::Origin,
    blocks: DashMap<DevicePtr, Block, FxBuildHasher>,
    deferred: Mutex<Vec<Deferred>>,
    /// The streams on which blocks were freed since the last trim.
    freed_on: Mutex<FxHashMap<StreamId, StreamRef>>,
    /// The stream of the last free, or [`NO_STREAM`].
    last_freed_on: AtomicU64,
    /// The number of deferred blocks, readable without the lock.
    deferred_count: AtomicUsize,
    aside: OwnStream,
    /// Whether the driver does not permit to export the pool. The thread that exports holds the lock.
    pub(super) is_export_refused: ReentrantMutex<Cell<bool>>,
}

impl Inner {
    pub(super) fn new(driver: DriverHandle, raw: MemPool, origin: Origin) -> Self {
        Self {
            driver,
            raw,
            origin,
            place: match origin {
                Origin::Made { props: MemPoolProps { location, kind, .. }, .. } => {
                    Place { location, kind }.into()
                }
                Origin::Imported | Origin::Elsewhere => OnceLock::new(),
            },
            process: process::Origin::here(),
            blocks: DashMap::default(),
            deferred: Mutex::default(),
            freed_on: Mutex::default(),
            last_freed_on: AtomicU64::new(NO_STREAM),
            deferred_count: AtomicUsize::new(0),
            aside: OwnStream::default(),
            is_export_refused: ReentrantMutex::default(),
        }
    }

    pub(super) fn call<T>(&self, body: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> Result<T> {
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        call(&*self.driver, body)
    }

    /// Returns the place of the pool's memory. If this process did not make the pool, asks the driver once.
    pub(super) fn place(&self) -> DriverResult<Place> {
        if let Some(place) = self.place.get() {
            return Ok(*place);
        }
        let place = place::of_pool(&*self.driver, self.raw)?;
        Ok(*self.place.get_or_init(|| place))
    }

    pub(super) fn ask<T>(&self, body: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        ask(&*self.driver, body)
    }

    // --- Allocation ---

    /// Allocates a block of at least one byte.
    pub(crate) fn allocate(&self, layout: Layout, stream: StreamRef) -> Result<DevicePtr> {
        let over = if layout.alignment() > ALLOCATION_ALIGNMENT { layout.alignment() } else { 0 };
        let bytes = layout.rounded_bytes().and_then(|bytes| bytes.checked_add(over));
        let bytes = bytes.filter(|bytes| *bytes <= Layout::MOST_BYTES);
        let bytes = bytes.ok_or_else(|| Error::request_too_large(layout, stream))?;
        if self.driver.health().is_lost() {
            return Err(self.driver.health().error().on_device(self.driver.device()));
        }
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let base = if is_capturing(&*self.driver, stream)? {
            self.allocate_aside(bytes).map_err(|error| {
                let advice = "a capturing stream cannot wait for other streams; allocate outside the capture";
                let is_out = error.is_out_of_memory();
                if is_out { Error::from(error).context(advice) } else { error.into() }
            })?
        } else {
            self.free_deferred_of(stream);
            self.allocate_on(bytes, stream).map_err(|error| {
                let is_too_much = error.is_out_of_memory() && self.exceeds_most(bytes);
                let advice = "the request is larger than the pool's maximum; raise the maximum";
                if is_too_much { Error::from(error).context(advice) } else { error.into() }
            })?
        };
        let mask = over.max(1) - 1;
        let ptr = DevicePtr::new((base.address() + mask) & !mask);
        self.blocks.insert(ptr, Block { base, bytes: layout.bytes(), stream: NamedStream::of(stream) });
        Ok(ptr)
    }

    fn allocate_on(&self, bytes: u64, stream: StreamRef) -> DriverResult<DevicePtr> {
        let take = || self.ask(|driver| driver.mem_alloc_from_pool_async(bytes, self.raw, stream));
        match take() {
            Err(error) if error.is_out_of_memory() && self.can_hold(bytes) && self.make_room() => take(),
            answer => answer,
        }
    }

    /// Allocates on the pool's separate stream, for use on any stream: the memory is ready at the return.
    fn allocate_aside(&self, bytes: u64) -> DriverResult<DevicePtr> {
        let aside = self.aside.get(&*self.driver)?;
        let base = self.ask(|driver| driver.mem_alloc_from_pool_async(bytes, self.raw, aside))?;
        if let Err(error) = self.ask(|driver| driver.stream_synchronize(aside)) {
            self.free_on(base, bytes, aside, NamedStream::of(aside));
            return Err(error);
        }
        Ok(base)
    }

    /// Allocates `bytes` once and frees them, so that the pool holds them.
    pub(crate) fn prime(&self, bytes: u64) -> Result<()> {
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let base = self.allocate_aside(bytes)?;
        let aside = self.aside.get(&*self.driver)?;
        self.free_on(base, bytes, aside, NamedStream::of(aside));
        Ok(())
    }

    // --- Deallocation ---

    /// Returns whether this is a forked child of the process that has the pool. It must not call the driver.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.process.is_elsewhere()
    }

    /// Takes a block back in the order of `stream`.
    pub(crate) fn deallocate(&self, ptr: DevicePtr, layout: Layout, stream: StreamRef) -> Freed {
        let is_lost = self.driver.health().is_lost();
        if is_lost && !self.driver.was_reset() {
            return Freed::Taken;
        }
        let is_whole = |_: &DevicePtr, block: &Block| block.bytes == layout.bytes();
        let Some((_, block)) = self.blocks.remove_if(&ptr, is_whole) else {
            return match self.blocks.get(&ptr) {
                _ if is_lost => Freed::Taken,
                Some(block) => Freed::Refused(MisuseKind::WrongSize { allocated_bytes: block.bytes }),
                None => Freed::Refused(MisuseKind::ForeignPointer),
            };
        };
        let Block { base, bytes, stream: allocated } = block;
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        if self.driver.was_reset() {
            // The context's end also ended all its streams, but not the block.
            self.free_on(base, bytes, stream, allocated);
            return Freed::Taken;
        }
        if self.driver.stream_is_gone(stream) {
            self.defer(Deferred { base, bytes, stream: None, allocated });
            self.free_deferred();
            // A reset of the context ends all streams, and is not the caller's mistake.
            let is_lost = self.driver.health().is_lost();
            return if is_lost { Freed::Taken } else { Freed::TakenDespite(MisuseKind::DeadStream) };
        }
        match is_capturing(&*self.driver, stream) {
            Ok(false) => {
                self.free_deferred_of(stream);
                self.free_on(base, bytes, stream, allocated);
            }
            _ => self.defer(Deferred { base, bytes, stream: Some(stream.id()), allocated }),
        }
        Freed::Taken
    }

    /// Frees a block in the order of a stream that does not capture, or at once after a reset of the context.
    /// If the driver refuses the block, it is kept for later.
    fn free_on(&self, base: DevicePtr, bytes: u64, stream: StreamRef, allocated: NamedStream) {
        // SAFETY: the block is the driver's, was handed out, and came back in the order of this stream.
        let Err(error) = self.ask(|driver| unsafe { driver.mem_free_async(base, stream) }) else {
            return self.note_free(stream);
        };
        if !self.driver.health().is_lost() {
            tracing::warn!(
                target: "millpond::driver",
                ptr = %base, %error,
                "the driver refused a free; trying again later"
            );
            let stream = error.is_capture_refusal().then(|| stream.id());
            self.defer(Deferred { base, bytes, stream, allocated });
        }
    }

    /// Notes that a trim must observe the frees of this stream. Takes no lock if it was also the last stream.
    fn note_free(&self, stream: StreamRef) {
        if self.last_freed_on.swap(stream.id().get(), Ordering::SeqCst) == stream.id().get() {
            return;
        }
        let mut known = match &mut *self.freed_on.lock() {
            streams if streams.len() < MOST_OBSERVED => {
                streams.insert(stream.id(), stream);
                return;
            }
            streams => std::mem::take(streams),
        };
        known.retain(|_, known| !self.driver.stream_is_gone(*known));
        known.insert(stream.id(), stream);
        let mut streams = self.freed_on.lock();
        // If a program has more streams, a trim gives less back.
        let room = MOST_OBSERVED.saturating_sub(streams.len());
        streams.extend(known.into_iter().take(room));
    }

    fn defer(&self, block: Deferred) {
        let mut deferred = self.deferred.lock();
        deferred.push(block);
        self.deferred_count.store(deferred.len(), Ordering::Relaxed);
    }

    fn take_deferred(&self, is_meant: impl Fn(&Deferred) -> bool) -> Vec<Deferred> {
        if self.deferred_count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut deferred = self.deferred.lock();
        let taken = deferred.extract_if(.., |block| is_meant(block)).collect();
        self.deferred_count.store(deferred.len(), Ordering::Relaxed);
        taken
    }

    pub(super) fn deferred_bytes(&self) -> u64 {
        self.deferred.lock().iter().map(|block| block.bytes).sum()
    }

    /// Frees the blocks that came back on this stream during a capture. The captured order of streams holds
    /// for the graph alone. So a block that another stream allocated is freed after the work of both streams.
    fn free_deferred_of(&self, stream: StreamRef) {
        for block in self.take_deferred(|block| block.stream == Some(stream.id())) {
            let Deferred { base, bytes, allocated, .. } = block;
            if allocated.id == stream.id() {
                self.free_on(base, bytes, stream, allocated);
                continue;
            }
            match self.aside_behind(stream, allocated) {
                Ok(Some(aside)) => self.free_on(base, bytes, aside, allocated),
                Ok(None) | Err(_) => self.defer(Deferred { stream: None, ..block }),
            }
        }
    }

    /// Makes the pool's separate stream wait for both streams and returns it. Returns `None` if one of them
    /// captures, or may be gone.
    fn aside_behind(&self, stream: StreamRef, other: NamedStream) -> DriverResult<Option<StreamRef>> {
        let Some(other) = other.here() else { return Ok(None) };
        let aside = self.aside.get(&*self.driver)?;
        let event = self.ask(|driver| driver.event_create(EventFlags::default()))?;
        let waits = || -> DriverResult<Option<StreamRef>> {
            let wait = || self.ask(|driver| driver.stream_wait_event(aside, event));
            if !self.ask(|driver| record_unless_capturing(driver, event, stream))? {
                return Ok(None);
            }
            wait()?;
            if !self.ask(|driver| driver.event_record_if_alive(event, other))? {
                return Ok(None);
            }
            wait().map(|()| Some(aside))
        };
        let waits = waits();
        // SAFETY: this function made the event; the stream still waits for the recorded work.
        let _ = self.ask(|driver| unsafe { driver.event_destroy(event) });
        waits
    }

    /// Lets the driver see that frees are done. The driver counts memory as in use until a synchronisation
    /// with the stream of its free (CUDA's documentation of `cuMemPoolTrimTo`). A free that waits for the
    /// device is not such a synchronisation (H200, driver 580.159.04). Streams that may be gone cannot be
    /// named.
    fn observe_frees(&self) {
        // This comes first: a free that still sees its stream here came before the events below.
        self.last_freed_on.store(NO_STREAM, Ordering::SeqCst);
        let streams = std::mem::take(&mut *self.freed_on.lock());
        let Ok(event) = self.ask(|driver| driver.event_create(EventFlags::default())) else { return };
        for stream in streams.into_values() {
            if let Ok(true) = self.ask(|driver| driver.event_record_if_alive(event, stream)) {
                let _ = self.ask(|driver| driver.event_synchronize(event));
            }
        }
        // SAFETY: this function made the event, and nothing waits for it.
        let _ = self.ask(|driver| unsafe { driver.event_destroy(event) });
    }

    /// Waits for the device, and frees all blocks that were deferred before. Returns whether it waited.
    fn free_deferred(&self) -> bool {
        // Taken before the wait: blocks that other threads defer later may be in use after it.
        let deferred = self.take_deferred(|_| true);
        let Ok(true) = self.ask(|driver| driver.synchronize_beside_captures()) else {
            self.defer_again(deferred);
            return false;
        };
        if !deferred.is_empty() {
            match self.aside.get(&*self.driver) {
                Ok(aside) => {
                    let free =
                        |block: Deferred| self.free_on(block.base, block.bytes, aside, block.allocated);
                    deferred.into_iter().for_each(free);
                }
                Err(_) => self.defer_again(deferred),
            }
        }
        self.observe_frees();
        true
    }

    fn defer_again(&self, blocks: Vec<Deferred>) {
        blocks.into_iter().for_each(|block| self.defer(block));
    }

    /// Returns whether a request of this size exceeds the pool's maximum.
    fn exceeds_most(&self, bytes: u64) -> bool {
        matches!(self.origin, Origin::Made { props, .. } if props.max_bytes > 0 && bytes > props.max_bytes)
    }

    /// Returns whether the pool can serve a request of this size if nothing else is live. For pools made
    /// elsewhere, nothing is known.
    fn can_hold(&self, bytes: u64) -> bool {
        if self.exceeds_most(bytes) {
            return false;
        }
        let is_on_device = self.place().is_ok_and(Place::is_device_memory);
        !is_on_device || self.ask(|driver| driver.mem_get_info()).is_ok_and(|info| bytes <= info.total)
    }

    /// Adds the pool's memory and its limits. Omits values that the driver does not answer.
    #[cold]
    pub(crate) fn fill_in(&self, report: &mut OutOfMemoryReport) {
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        let ask = |attribute| self.ask(|driver| driver.mem_pool_get_attribute(self.raw, attribute));
        report.held_bytes = ask(MemPoolAttribute::ReservedMemCurrent).unwrap_or(0);
        report.live_bytes = ask(MemPoolAttribute::UsedMemCurrent).unwrap_or(0);
        // Others allocate from a pool that this process did not make.
        let is_own = matches!(self.origin, Origin::Made { .. });
        report.live_blocks = is_own.then_some(self.blocks.len() as u64);
        report.is_impossible = self.exceeds_most(report.requested_bytes);
        if let Origin::Made { props: MemPoolProps { max_bytes, .. }, .. } = self.origin {
            report.maximum_bytes = (max_bytes > 0).then_some(max_bytes);
        }
        let takes = self.place().map_or(Accessibility::DEVICE, Place::takes);
        note_memory(report, &*self.driver, takes);
        if let Some(maximum) = report.maximum_bytes {
            let has_device = report.device.is_some() && report.short_bytes.is_none();
            let short = report.requested_bytes.saturating_sub(maximum.saturating_sub(report.live_bytes));
            if short > 0 {
                report.short_bytes = report.short_bytes.max(Some(short));
                report.remedies.insert(0, Remedy::raise_maximum(short, has_device));
            }
        }
    }

    /// Frees deferred blocks and returns free memory to the device, because memory is out. Returns whether a
    /// request may succeed now.
    fn make_room(&self) -> bool {
        self.free_deferred() && self.ask(|driver| driver.mem_pool_trim_to(self.raw, 0)).is_ok()
    }

    pub(super) fn trim(&self, keep_bytes: u64) -> Result<u64> {
        let reserved = || {
            self.call(|driver| driver.mem_pool_get_attribute(self.raw, MemPoolAttribute::ReservedMemCurrent))
        };
        let before = reserved()?;
        if before <= keep_bytes {
            return Ok(0);
        }
        {
            let _captures = CaptureModeGuard::relaxed(&*self.driver);
            self.free_deferred();
        }
        self.call(|driver| driver.mem_pool_trim_to(self.raw, keep_bytes))?;
        Ok(before.saturating_sub(reserved()?))
    }

    /// Frees an imported pointer in the order of a stream.
    pub(super) fn free_imported(&self, ptr: DevicePtr, stream: StreamRef) -> Result<()> {
        // SAFETY: the caller owns the pointer.
        self.call(|driver| unsafe { driver.mem_free_async(ptr, stream) })
    }

    /// Waits for all work of the device, then frees an imported pointer.
    pub(super) fn free_imported_after_all(&self, ptr: DevicePtr) -> Result<()> {
        let _captures = CaptureModeGuard::relaxed(&*self.driver);
        if !self.call(|driver| driver.synchronize_beside_captures())? {
            let error = DriverError::new(DriverError::STREAM_CAPTURE_UNSUPPORTED, "cuCtxSynchronize");
            return Err(error.into());
        }
        let aside = self.aside.get(&*self.driver).map_err(Error::from);
        match aside.and_then(|aside| self.free_imported(ptr, aside).map(|()| aside)) {
            Ok(aside) => self.call(|driver| driver.stream_synchronize(aside)),
            Err(error) if error.is_sticky() => Err(error),
            // The exporter cannot free the block earlier, so it is freed without a stream. SAFETY: the caller
            // owns the pointer, and all work on it is done.
            Err(_) => self.call(|driver| unsafe { driver.mem_free(ptr) }),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.process.is_elsewhere() {
            return;
        }
        let this = std::ptr::from_ref(self);
        POOLS.remove_if(&key(&self.driver, self.raw), |_, pool| pool.as_ptr() == this);
        let driver = Arc::clone(&self.driver);
        // Pools and their blocks outlive their context.
        let was_reset = driver.was_reset();
        if driver.health().is_lost() && !was_reset {
            return;
        }
        let _captures = CaptureModeGuard::relaxed(&*driver);
        if let Origin::Made { frees_at_end: true, .. } = self.origin {
            for Block { base, bytes, stream: allocated } in
                std::mem::take(&mut self.blocks).into_iter().map(|(_, block)| block)
            {
                self.defer(Deferred { base, bytes, stream: None, allocated });
            }
        }
        if was_reset {
            for block in self.take_deferred(|_| true) {
                self.free_on(block.base, block.bytes, StreamRef::LEGACY, block.allocated);
            }
        }
        // Otherwise nothing orders blocks that came back on a capturing stream before the end.
        if self.deferred_count.load(Ordering::Relaxed) > 0 && !self.free_deferred() {
            tracing::warn!(target: "millpond::driver", "cannot free blocks of a pool; the driver keeps them");
        }
        let stream = if was_reset { Ok(()) } else { self.aside.destroy(&*driver) };
        let mut pool = Ok(());
        if self.origin != Origin::Elsewhere {
            // SAFETY: no value names the pool any more.
            let destroy = || self.ask(|driver| unsafe { driver.mem_pool_destroy(self.raw) });
            pool = destroy();
            if pool.is_err() && !driver.health().is_lost() {
                pool = destroy();
            }
        }
        if let Err(error) = stream.and(pool)
            && (was_reset || !driver.health().is_lost())
        {
            tracing::warn!(target: "millpond::driver", %error, "cannot destroy a pool; the driver keeps it");
        }
    }
}
