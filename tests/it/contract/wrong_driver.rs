//! A driver that makes one mistake, which the suite for drivers must find.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond::driver::{
    DeviceAttribute, DriverError, DriverHandle, DriverResult, Event, EventFlags, Health, MemoryInfo,
    StreamFlags,
};
use millpond::{DeviceId, DevicePtr, Driver, StreamRef};

/// The mistake that the driver makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mistake {
    /// No mistake.
    None,
    /// The ids of streams count from 0.
    IdsFromZero,
    /// All streams have one id.
    OneId,
    /// No stream is ever gone.
    NothingIsGone,
    /// A foreign stream is gone.
    ForeignIsGone,
    /// A stream that does not exist has no work.
    QueriesGoneStreams,
    /// `event_query` is never true.
    EventsNeverDone,
    /// `stream_query` is never true.
    StreamsNeverDone,
    /// `stream_wait_event` does nothing.
    WaitsForNothing,
    /// The free memory never falls.
    FreeNeverFalls,
    /// The free memory never comes back.
    FreeNeverRises,
    /// Destroying a stream that does not exist succeeds.
    DestroysAnyStream,
    /// Destroying an event that does not exist succeeds.
    DestroysAnyEvent,
    /// Freeing a block that does not exist succeeds.
    FreesAnything,
    /// If the device is full, the error is `INVALID_VALUE`.
    FullIsInvalid,
    /// A request for 0 bytes returns null.
    EmptyIsNull,
    /// Blocks are aligned to 16 bytes.
    Unaligned,
    /// Copies do nothing.
    CopiesNothing,
    /// The attribute claims virtual memory management.
    ClaimsPages,
}

impl Mistake {
    /// Every mistake, and a test that must find it.
    pub(crate) const ALL: &'static [(Self, &'static str)] = &[
        (Self::IdsFromZero, "streams_have_ids_of_their_own"),
        (Self::OneId, "streams_have_ids_of_their_own"),
        (Self::NothingIsGone, "a_destroyed_stream_is_gone"),
        (Self::ForeignIsGone, "a_destroyed_stream_is_gone"),
        (Self::QueriesGoneStreams, "a_destroyed_stream_is_gone"),
        (Self::EventsNeverDone, "queries_become_true"),
        (Self::StreamsNeverDone, "queries_become_true"),
        (Self::WaitsForNothing, "events_order_streams"),
        (Self::FreeNeverFalls, "free_memory_falls_and_comes_back"),
        (Self::FreeNeverRises, "free_memory_falls_and_comes_back"),
        (Self::DestroysAnyStream, "a_destroyed_stream_is_gone"),
        (Self::DestroysAnyEvent, "a_destroyed_event_is_refused"),
        (Self::FreesAnything, "a_block_is_freed_once"),
        (Self::FullIsInvalid, "what_it_cannot_serve_is_out_of_memory"),
        (Self::EmptyIsNull, "what_it_cannot_serve_is_out_of_memory"),
        (Self::Unaligned, "blocks_are_aligned_and_apart"),
        (Self::CopiesNothing, "bytes_are_copied_and_filled_on_every_stream"),
        (Self::ClaimsPages, "it_describes_its_device"),
    ];
}

/// Calls another driver, except for the mistake. It offers no optional part, so it does not forward every
/// method.
#[derive(Debug)]
pub(crate) struct WrongDriver {
    pub(crate) inner: DriverHandle,
    pub(crate) mistake: Mistake,
    /// The number of streams, or the least free memory so far.
    pub(crate) seen: AtomicU64,
}

impl WrongDriver {
    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == mistake
    }

    /// Replaces an error with a success.
    fn unless<T>(&self, mistake: Mistake, answer: DriverResult<T>, success: T) -> DriverResult<T> {
        if self.is(mistake) { answer.or(Ok(success)) } else { answer }
    }
}

type Done = DriverResult<()>;

impl Driver for WrongDriver {
    fn device(&self) -> DeviceId {
        self.inner.device()
    }

    fn attribute(&self, attribute: DeviceAttribute) -> DriverResult<i64> {
        match attribute {
            DeviceAttribute::Integrated => Ok(0),
            DeviceAttribute::VirtualMemoryManagementSupported if self.is(Mistake::ClaimsPages) => Ok(1),
            _ => Err(DriverError::new(DriverError::NOT_SUPPORTED, "attribute")),
        }
    }

    fn mem_get_info(&self) -> DriverResult<MemoryInfo> {
        let info = self.inner.mem_get_info()?;
        let free = match self.mistake {
            Mistake::FreeNeverFalls => info.total,
            Mistake::FreeNeverRises => self.seen.fetch_min(info.free, Ordering::Relaxed).min(info.free),
            _ => info.free,
        };
        Ok(MemoryInfo { free, ..info })
    }

    fn health(&self) -> &Arc<Health> {
        self.inner.health()
    }

    fn synchronize(&self) -> Done {
        self.inner.synchronize()
    }

    fn mem_alloc(&self, bytes: u64) -> DriverResult<DevicePtr> {
        match (self.mistake, bytes) {
            (Mistake::EmptyIsNull, 0) => Ok(DevicePtr::NULL),
            (Mistake::Unaligned, 1..=0xffff_ffff) => Ok(self.inner.mem_alloc(bytes + 16)?.offset(16)),
            (Mistake::FullIsInvalid, _) => {
                let invalid = |_| DriverError::new(DriverError::INVALID_VALUE, "mem_alloc");
                self.inner.mem_alloc(bytes).map_err(invalid)
            }
            _ => self.inner.mem_alloc(bytes),
        }
    }

    unsafe fn mem_free(&self, ptr: DevicePtr) -> Done {
        let shift = if self.is(Mistake::Unaligned) { 16 } else { 0 };
        // SAFETY: here and below, the caller's promises. The inner driver refuses what it does not know.
        let freed = unsafe { self.inner.mem_free(DevicePtr::new(ptr.address() - shift)) };
        self.unless(Mistake::FreesAnything, freed, ())
    }

    fn stream_create(&self, flags: StreamFlags) -> DriverResult<StreamRef> {
        let stream = self.inner.stream_create(flags)?;
        Ok(match self.mistake {
            Mistake::IdsFromZero => {
                StreamRef::from_raw_parts(stream.handle(), self.seen.fetch_add(1, Ordering::Relaxed))
            }
            Mistake::OneId => StreamRef::from_raw_parts(stream.handle(), 7),
            _ => stream,
        })
    }

    unsafe fn stream_destroy(&self, stream: StreamRef) -> Done {
        // SAFETY: as above.
        let destroyed = unsafe { self.inner.stream_destroy(stream) };
        self.unless(Mistake::DestroysAnyStream, destroyed, ())
    }

    fn stream_is_gone(&self, stream: StreamRef) -> bool {
        match self.mistake {
            Mistake::NothingIsGone => false,
            Mistake::ForeignIsGone if stream.is_foreign() => true,
            _ => self.inner.stream_is_gone(stream),
        }
    }

    fn stream_synchronize(&self, stream: StreamRef) -> Done {
        self.inner.stream_synchronize(stream)
    }

    fn stream_query(&self, stream: StreamRef) -> DriverResult<bool> {
        let done = self.unless(Mistake::QueriesGoneStreams, self.inner.stream_query(stream), false)?;
        Ok(done && !self.is(Mistake::StreamsNeverDone))
    }

    fn stream_wait_event(&self, stream: StreamRef, event: Event) -> Done {
        // A query finds what does not exist.
        self.inner.stream_query(stream).and(self.inner.event_query(event))?;
        if self.is(Mistake::WaitsForNothing) { Ok(()) } else { self.inner.stream_wait_event(stream, event) }
    }

    fn event_create(&self, flags: EventFlags) -> DriverResult<Event> {
        self.inner.event_create(flags)
    }

    unsafe fn event_destroy(&self, event: Event) -> Done {
        // SAFETY: as above.
        let destroyed = unsafe { self.inner.event_destroy(event) };
        self.unless(Mistake::DestroysAnyEvent, destroyed, ())
    }

    fn event_record(&self, event: Event, stream: StreamRef) -> Done {
        self.inner.event_record(event, stream)
    }

    fn event_query(&self, event: Event) -> DriverResult<bool> {
        Ok(self.inner.event_query(event)? && !self.is(Mistake::EventsNeverDone))
    }

    fn event_synchronize(&self, event: Event) -> Done {
        self.inner.event_synchronize(event)
    }

    unsafe fn memcpy_htod_async(&self, to: DevicePtr, from: *const u8, bytes: u64, on: StreamRef) -> Done {
        // SAFETY: as above.
        unsafe { self.inner.memcpy_htod_async(to, from, bytes, on) }
    }

    unsafe fn memcpy_dtoh_async(&self, to: *mut u8, from: DevicePtr, bytes: u64, on: StreamRef) -> Done {
        // SAFETY: as above.
        unsafe { self.inner.memcpy_dtoh_async(to, from, bytes, on) }
    }

    unsafe fn memcpy_dtod_async(&self, to: DevicePtr, from: DevicePtr, bytes: u64, on: StreamRef) -> Done {
        if self.is(Mistake::CopiesNothing) {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { self.inner.memcpy_dtod_async(to, from, bytes, on) }
    }

    unsafe fn memset_d8_async(&self, to: DevicePtr, value: u8, bytes: u64, on: StreamRef) -> Done {
        // SAFETY: as above.
        unsafe { self.inner.memset_d8_async(to, value, bytes, on) }
    }
}
