//! Measures calls that have a constant cost. They run in tight loops, as resources make them.

use millpond_core::StreamRef;
use millpond_core::driver::{
    CaptureMode, DeviceAttribute, Driver, DriverResult, Event, EventFlags, HostFlags, MemAdvice, MemPool,
    MemPoolAttribute, MemPoolProps, StreamFlags,
};
use millpond_driver::CallKind;

use super::samples::Samples;
use super::session::Session;

const MIB: u64 = 1 << 20;

/// The number of samples of a quick call.
const MANY: usize = 2000;
/// The number of samples of a slow call.
const FEW: usize = 64;

/// The number of streams and events that are made first, because resources have several of them.
const STREAMS: usize = 8;

pub(super) fn streams_and_events(session: &mut Session<'_>) -> DriverResult<()> {
    let mut create = Samples::default();
    let mut streams = Vec::new();
    let mut answer = Ok(());
    for _ in 0..FEW {
        match session.timed.call(&mut create, |driver| driver.stream_create(StreamFlags::NON_BLOCKING)) {
            Ok(stream) => streams.push(stream),
            Err(error) => answer = Err(error),
        }
    }
    session.constant(CallKind::StreamCreate, &create);
    let mut create = Samples::default();
    let mut events = Vec::new();
    for _ in 0..MANY / 2 {
        match session.timed.call(&mut create, |driver| driver.event_create(EventFlags::default())) {
            Ok(event) => events.push(event),
            Err(error) => answer = Err(error),
        }
    }
    session.constant(CallKind::EventCreate, &create);
    let answer = answer.and_then(|()| with_streams(session, &streams[..STREAMS.min(streams.len())], &events));

    let (mut destroy_event, mut destroy_stream) = (Samples::default(), Samples::default());
    for event in events {
        // SAFETY: the pool is from this driver, all its blocks were freed, and it is not used again.
        session.timed.call(&mut destroy_event, |driver| unsafe { driver.event_destroy(event) })?;
    }
    for stream in streams {
        // SAFETY: the stream is from this driver, and not used again.
        session.timed.call(&mut destroy_stream, |driver| unsafe { driver.stream_destroy(stream) })?;
    }
    session.constant(CallKind::EventDestroy, &destroy_event);
    session.constant(CallKind::StreamDestroy, &destroy_stream);
    answer
}

/// Measures calls on existing streams and events.
fn with_streams(session: &mut Session<'_>, streams: &[StreamRef], events: &[Event]) -> DriverResult<()> {
    let mut times: [Samples; 11] = Default::default();
    let [record, legacy, query, wait, sync_event, query_stream, capturing, mode, id, sync_stream, sync] =
        &mut times;
    let timed = &session.timed;
    for index in 0..MANY {
        let (stream, other) = (streams[index % streams.len()], streams[(index + 1) % streams.len()]);
        let event = events[index % events.len()];
        timed.call(record, |driver| driver.event_record(event, stream))?;
        timed.call(wait, |driver| driver.stream_wait_event(other, event))?;
        timed.call(query_stream, |driver| driver.stream_query(stream))?;
        timed.call(capturing, |driver| driver.stream_is_capturing(stream))?;
        for exchanged in [CaptureMode::Relaxed, CaptureMode::Global] {
            timed.call(mode, |driver| driver.thread_exchange_stream_capture_mode(exchanged))?;
        }
        // SAFETY: the stream is alive.
        timed.call(id, |driver| unsafe { driver.stream_ref(stream.handle()) })?;
        if index % (MANY / FEW) == 0 {
            timed.call(sync_stream, |driver| driver.stream_synchronize(other))?;
            timed.call(sync_event, |driver| driver.event_synchronize(event))?;
            timed.call(sync, Driver::synchronize)?;
        }
    }
    session.driver().synchronize()?;
    for index in 0..MANY {
        let event = events[index % events.len()];
        session.timed.call(query, |driver| driver.event_query(event))?;
    }
    for index in 0..MANY {
        let event = events[index % events.len()];
        session.timed.call(legacy, |driver| driver.event_record(event, StreamRef::LEGACY))?;
    }
    session.driver().synchronize()?;
    session.costs.event_record.legacy_stream_extra_ns = legacy.typical().saturating_sub(record.typical());
    session.comment("event_record.legacy_stream_extra_ns", None, legacy.describe());
    for (kind, samples) in [
        (CallKind::EventRecord, record),
        (CallKind::EventQuery, query),
        (CallKind::StreamWaitEvent, wait),
        (CallKind::EventSynchronize, sync_event),
        (CallKind::StreamQuery, query_stream),
        (CallKind::StreamIsCapturing, capturing),
        (CallKind::CaptureMode, mode),
        (CallKind::StreamGetId, id),
        (CallKind::StreamSynchronize, sync_stream),
        (CallKind::Synchronize, sync),
    ] {
        session.constant(kind, samples);
    }
    Ok(())
}

pub(super) fn others(session: &mut Session<'_>) -> DriverResult<()> {
    let (mut info, mut attribute) = (Samples::default(), Samples::default());
    for _ in 0..MANY / 4 {
        session.timed.call(&mut info, Driver::mem_get_info)?;
        let of = DeviceAttribute::MultiprocessorCount;
        session.timed.call(&mut attribute, |driver| driver.attribute(of))?;
    }
    session.constant(CallKind::MemGetInfo, &info);
    session.constant(CallKind::Other, &attribute);

    let driver = session.driver();
    let (plain, managed) = (driver.mem_alloc(2 * MIB)?, driver.mem_alloc_managed(2 * MIB));
    let answer = copies(session, plain, managed.as_ref().ok().copied());
    for block in [Ok(plain), managed].into_iter().flatten() {
        driver.synchronize()?;
        // SAFETY: the block is from this driver, and all work on it is done.
        unsafe { driver.mem_free(block) }?;
    }
    answer.and_then(|()| registered(session))
}

fn copies(
    session: &mut Session<'_>,
    plain: millpond_core::DevicePtr,
    managed: Option<millpond_core::DevicePtr>,
) -> DriverResult<()> {
    let (mut query, mut copy, mut fill) = (Samples::default(), Samples::default(), Samples::default());
    let (mut advise, mut prefetch) = (Samples::default(), Samples::default());
    let stream = StreamRef::LEGACY;
    for _ in 0..FEW {
        session.timed.call(&mut query, |driver| driver.pointer_kind(plain.offset(4096)))?;
        let (to, bytes) = (plain.offset(MIB), MIB);
        // SAFETY: both ranges lie in the caller's block, and they do not overlap.
        let copying = |driver: &dyn Driver| unsafe { driver.memcpy_dtod_async(to, plain, bytes, stream) };
        session.timed.call(&mut copy, copying)?;
        // SAFETY: the range lies in the caller's block.
        session.timed.call(&mut fill, |driver| unsafe { driver.memset_d8_async(plain, 0, bytes, stream) })?;
        session.driver().synchronize()?;
        let Some(managed) = managed else { continue };
        let advice = MemAdvice::PreferDevice;
        // SAFETY: the range is the caller's block.
        session.timed.call(&mut advise, |driver| unsafe { driver.mem_advise(managed, 2 * MIB, advice) })?;
        let fetch = |to_host| {
            // SAFETY: as before.
            move |driver: &dyn Driver| unsafe { driver.mem_prefetch_async(managed, 2 * MIB, to_host, stream) }
        };
        session.timed.call(&mut prefetch, fetch(false))?;
        session.timed.call(&mut prefetch, fetch(true))?;
        session.driver().synchronize()?;
    }
    session.constant(CallKind::PointerQuery, &query);
    session.constant(CallKind::Copy, &copy);
    session.constant(CallKind::Fill, &fill);
    if managed.is_some() {
        session.constant(CallKind::MemAdvise, &advise);
        session.constant(CallKind::MemPrefetch, &prefetch);
    }
    Ok(())
}

/// Measures pinning 1 MiB of the host's memory.
fn registered(session: &mut Session<'_>) -> DriverResult<()> {
    let mut samples = Samples::default();
    let mut memory = vec![0_u64; MIB as usize / 8 + 1024];
    let page = memory.as_mut_ptr().expose_provenance().next_multiple_of(4096);
    let ptr = millpond_core::driver::HostPtr(page);
    for _ in 0..FEW / 4 {
        // SAFETY: the range lies in `memory`, which lives until the end of this function.
        session.timed.call(&mut samples, |driver| unsafe {
            driver.mem_host_register(ptr, MIB - 4096, HostFlags::default())
        })?;
        // SAFETY: it was registered just now.
        session.timed.call(&mut samples, |driver| unsafe { driver.mem_host_unregister(ptr) })?;
    }
    session.constant(CallKind::MemHostRegister, &samples);
    Ok(())
}

pub(super) fn pools(session: &mut Session<'_>) -> DriverResult<()> {
    let driver = session.driver();
    let pool = driver.mem_pool_create(MemPoolProps::default())?;
    let answer = in_pool(session, pool);
    driver.synchronize()?;
    // SAFETY: the pool is from this driver, everything it handed out came back, and it is not used again.
    unsafe { driver.mem_pool_destroy(pool) }?;
    answer
}

/// Measures memory that the pool has cached, so that growth costs nothing.
fn in_pool(session: &mut Session<'_>, pool: MemPool) -> DriverResult<()> {
    let driver = session.driver();
    driver.mem_pool_set_attribute(pool, MemPoolAttribute::ReleaseThreshold, u64::MAX)?;
    let (mut alloc, mut free) = (Samples::default(), Samples::default());
    let (mut ask, mut trim) = (Samples::default(), Samples::default());
    let stream = StreamRef::LEGACY;
    for _ in 0..MANY / 2 {
        let block =
            session.timed.call(&mut alloc, |driver| driver.mem_alloc_from_pool_async(MIB, pool, stream))?;
        // SAFETY: the block is from this pool, and not used.
        session.timed.call(&mut free, |driver| unsafe { driver.mem_free_async(block, stream) })?;
    }
    driver.synchronize()?;
    for _ in 0..FEW {
        let of = MemPoolAttribute::ReservedMemCurrent;
        session.timed.call(&mut ask, |driver| driver.mem_pool_get_attribute(pool, of))?;
        session.timed.call(&mut trim, |driver| driver.mem_pool_trim_to(pool, u64::MAX))?;
    }
    session.constant(CallKind::MemAllocAsync, &alloc);
    session.constant(CallKind::MemFreeAsync, &free);
    session.constant(CallKind::MemPool, &ask);
    session.constant(CallKind::MemPoolTrim, &trim);
    Ok(())
}
