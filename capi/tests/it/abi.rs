//! Tests the functions of the ABI as C calls them: null handles, errors, streams, and the owner of each
//! block.

use std::ffi::{CStr, c_char, c_void};
use std::panic::catch_unwind;
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::bench::{Bench, KIB, MIB, message};
use millpond_c::callback::*;
use millpond_c::device::*;
use millpond_c::layers::*;
use millpond_c::manager::*;
use millpond_c::order::*;
use millpond_c::registry::*;
use millpond_c::resource::*;
use millpond_c::status::*;
use millpond_core::driver::{CaptureMode, Driver, StreamFlags};
use millpond_core::misuse::{self, Misuse, MisuseKind};
use millpond_core::{DevicePtr, DriverError, StreamRef};
use millpond_driver::sim::FaultPlan;

fn string(text: *mut c_char) -> String {
    // SAFETY: every caller has the text from the library and does not use it again.
    unsafe {
        let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
        millpond_string_free(text);
        copy
    }
}

#[test]
fn null_pointers_are_refused_and_named() {
    let bench = Bench::new();
    let resource = bench.resource("cuda");
    let (mut number, mut text) = (0_u64, null_mut::<c_char>());
    // SAFETY: the tests pass null on purpose; all other arguments are valid.
    let outcomes = unsafe {
        [
            (millpond_allocate(null(), 1, 0, null_mut(), (&raw mut text).cast()), "the resource"),
            (
                millpond_allocate(resource, 1, 0, null_mut(), null_mut()),
                "the pointer for the block's address",
            ),
            (millpond_deallocate(null(), null_mut(), 1, 0, null_mut()), "the resource"),
            (millpond_resource_new(bench.device, null(), (&raw mut text).cast()), "the text of the stack"),
            (millpond_resource_new(bench.device, c"cuda".as_ptr(), null_mut()), "the pointer for a result"),
            (millpond_resource_layer(null(), c"pool".as_ptr(), null_mut()), "the resource"),
            (millpond_resource_text(resource, null_mut()), "the pointer for a result"),
            (
                millpond_resource_memory_info(resource, null_mut(), &raw mut number),
                "the pointer for a result",
            ),
            (millpond_device_memory_info(null(), &raw mut number, &raw mut number), "the device"),
            (millpond_stream_create(null(), true, null_mut()), "the device"),
            (millpond_get_per_device_resource(null(), null_mut()), "the device"),
            (millpond_set_per_device_resource(null(), null_mut()), "the resource"),
            (millpond_manager_new(null(), null_mut()), "the device"),
            (millpond_manager_initialize(null()), "the manager"),
        ]
    };
    for (index, (status, _)) in outcomes.into_iter().enumerate() {
        assert_eq!(status, Status::InvalidArgument, "{index}");
    }
    // SAFETY: as above, one at a time for its text.
    unsafe {
        millpond_manager_initialize(null());
        assert_eq!(message(), "invalid argument: the manager is a null pointer");
        millpond_resource_new(bench.device, null(), null_mut());
        assert_eq!(message(), "invalid argument: the text of the stack is a null pointer");
        assert_eq!(millpond_device_ordinal(null()), -1);
        assert!(!millpond_resource_is_equal(null(), resource));
        millpond_resource_free(null_mut());
        millpond_string_free(null_mut());
        millpond_memory_free(null_mut());
        millpond_resource_free(resource);
    }
}

#[test]
fn an_error_has_a_status_a_text_and_a_report() {
    let bench = Bench::new();
    let pool = bench.resource("cuda+pool");
    let mut block = null_mut();
    // SAFETY: all arguments are valid.
    let status = unsafe { millpond_allocate(pool, 1 << 40, 0, null_mut(), &raw mut block) };
    assert_eq!((status, block), (Status::OutOfMemory, null_mut()));
    assert!(message().starts_with("out of memory for 1TiB on stream 0 of sim:"), "{}", message());
    assert_eq!(millpond_error_driver_code(), 0);
    // SAFETY: the texts belong to this thread.
    let [report, json] = [millpond_error_report(), millpond_error_report_json()]
        .map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
    assert!(report.contains("64MiB"), "{report}");
    let json: serde_json::Value = serde_json::from_str(&json).expect("the report is JSON");
    assert_eq!(json["requested_bytes"], 1_u64 << 40);
    std::thread::spawn(|| assert_eq!(message(), "", "an error belongs to its thread")).join().unwrap();
    // SAFETY: all arguments are valid.
    unsafe {
        let wrong = millpond_resource_new(bench.device, c"cuda+pol".as_ptr(), (&raw mut block).cast());
        assert_eq!(wrong, Status::InvalidStack);
        assert!(millpond_error_report().is_null(), "the report belongs to the last error");
        assert_eq!(millpond_allocate(pool, 8, 3, null_mut(), &raw mut block), Status::InvalidArgument);
        millpond_resource_free(pool);
    }
}

#[test]
fn a_stack_is_built_asked_and_layered() {
    let bench = Bench::new();
    let pool = bench.resource("cuda+pool");
    let (mut counted, mut text, mut block) = (null_mut(), null_mut::<c_char>(), null_mut());
    let mut counters = LevelCounters::default();
    // SAFETY: all arguments are valid.
    unsafe {
        assert_eq!(
            millpond_resource_layer(pool, c"statistics+tracking".as_ptr(), &raw mut counted),
            Status::Ok
        );
        assert_eq!(
            millpond_resource_layer(pool, c"cuda".as_ptr(), (&raw mut text).cast()),
            Status::InvalidStack
        );
        millpond_resource_free(pool); // the layers keep the pool alive
        assert_eq!(millpond_resource_text(counted, &raw mut text), Status::Ok);
        assert_eq!(string(text), "cuda+pool+statistics+tracking");
        assert_eq!(millpond_allocate(counted, 1000, 0, null_mut(), &raw mut block), Status::Ok);
        assert_eq!(millpond_statistics_push(counted, &raw mut counters), Status::Ok);
        assert_eq!(counters.current_bytes, 1000);
        assert_eq!(millpond_statistics_pop(counted, &raw mut counters), Status::Ok);
        assert_eq!(counters.total_count, 0);
        assert_eq!(millpond_statistics_pop(counted, &raw mut counters), Status::InvalidArgument);
        let mut outstanding = 0;
        assert_eq!(millpond_tracking_outstanding(counted, &raw mut outstanding, &raw mut text), Status::Ok);
        assert!(outstanding == 1000 && string(text).contains("1000 B"));
        assert_eq!(millpond_logging_flush(counted), Status::Unsupported);
        assert!(message().ends_with("logs; add `+logging` to the stack"), "{}", message());
        assert_eq!(millpond_resource_block_at(counted, block, &raw mut text), Status::Ok);
        assert!(string(text).contains("\"bytes\":1000"));
        assert_eq!(millpond_resource_block_at(counted, null_mut(), &raw mut text), Status::Ok);
        assert!(text.is_null());
        assert_eq!(millpond_resource_memory_report(counted, false, &raw mut text), Status::Ok);
        assert!(string(text).starts_with("memory of `cuda+pool+statistics+tracking` on sim:"));
        assert_eq!(millpond_resource_memory_report(counted, true, &raw mut text), Status::Ok);
        assert!(string(text).starts_with("{\"stack\":\"cuda+pool+statistics+tracking\""));
        assert_eq!(millpond_deallocate(counted, block, 1000, 0, null_mut()), Status::Ok);
        let mut freed = 0;
        assert_eq!(millpond_resource_trim(counted, 0, &raw mut freed), Status::Ok);
        assert_eq!(freed, 2 * MIB);
        millpond_resource_free(counted);
    }
}

static ENDED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn refuse(_: *mut c_void, _: u64, _: u64, _: *mut c_void) -> *mut c_void {
    null_mut()
}

extern "C" fn keep(_: *mut c_void, _: *mut c_void, _: u64, _: u64, _: *mut c_void) {}

extern "C" fn end(_: *mut c_void) {
    ENDED.fetch_add(1, Ordering::Relaxed);
}

/// Frees the block that `context` points to, once.
extern "C" fn make_room(context: *mut c_void, _: u64) -> bool {
    // SAFETY: the test's context is an array of a resource and a block.
    let kept = unsafe { &mut *context.cast::<[*mut c_void; 2]>() };
    if kept[1].is_null() {
        return false;
    }
    // SAFETY: the block came from the resource with this size.
    let freed = unsafe { millpond_deallocate(kept[0].cast(), kept[1], 40 * MIB, 0, null_mut()) };
    kept[1] = null_mut();
    freed == Status::Ok
}

#[test]
fn functions_of_the_program_are_resources_and_make_room() {
    let bench = Bench::new();
    let (mut made, mut block) = (null_mut(), null_mut());
    // SAFETY: all arguments are valid.
    unsafe {
        let outcome = millpond_resource_callback(
            bench.device,
            Some(refuse),
            Some(keep),
            null_mut(),
            Some(end),
            &raw mut made,
        );
        assert_eq!(outcome, Status::Ok);
        assert_eq!(millpond_allocate(made, 8, 0, null_mut(), &raw mut block), Status::OutOfMemory);
        assert!(message().contains("the callback returned a null pointer"), "{}", message());
        millpond_resource_free(made);
        assert_eq!(ENDED.load(Ordering::Relaxed), 1);
        let refused = millpond_resource_callback(
            null(),
            Some(refuse),
            Some(keep),
            null_mut(),
            Some(end),
            &raw mut made,
        );
        assert_eq!((refused, ENDED.load(Ordering::Relaxed)), (Status::InvalidArgument, 2));
        // A null function is refused, and the context ends anyway.
        for (allocate, deallocate) in [(None, Some(keep as _)), (Some(refuse as _), None)] {
            let (device, made) = (bench.device, &raw mut made);
            let refused =
                millpond_resource_callback(device, allocate, deallocate, null_mut(), Some(end), made);
            assert_eq!(refused, Status::InvalidArgument);
        }
        let on = bench.resource("cuda");
        let refused = millpond_resource_failure_callback(on, None, null_mut(), Some(end), &raw mut made);
        assert_eq!((refused, ENDED.load(Ordering::Relaxed)), (Status::InvalidArgument, 5));
        assert_eq!(message(), "invalid argument: the function that handles failures is a null pointer");
        millpond_resource_free(on);

        let pool = bench.resource("cuda+pool");
        assert_eq!(millpond_allocate(pool, 40 * MIB, 0, null_mut(), &raw mut block), Status::Ok);
        let mut context = [pool.cast::<c_void>(), block];
        let mut patient = null_mut();
        let context = (&raw mut context).cast();
        let layered =
            millpond_resource_failure_callback(pool, Some(make_room), context, None, &raw mut patient);
        assert_eq!(layered, Status::Ok);
        assert_eq!(millpond_allocate(patient, 40 * MIB, 0, null_mut(), &raw mut block), Status::Ok);
        assert_eq!(millpond_deallocate(patient, block, 40 * MIB, 0, null_mut()), Status::Ok);
        millpond_resource_free(patient);
        millpond_resource_free(pool);
    }
}

#[test]
fn a_budget_calls_its_bytes_back() {
    const ALL: u64 = 8 * MIB;
    static ENDED: AtomicUsize = AtomicUsize::new(0);
    struct Cache {
        of: *mut Resource,
        block: *mut c_void,
        asked: u64,
    }
    extern "C" fn free(context: *mut c_void, bytes: u64) {
        // SAFETY: the test passes a cache, and waits for this call.
        let cache = unsafe { &mut *context.cast::<Cache>() };
        cache.asked += bytes;
        // SAFETY: the block is live, and no work uses it.
        let freed = unsafe { millpond_deallocate(cache.of, cache.block, ALL, 0, null_mut()) };
        assert_eq!(freed, Status::Ok);
    }
    extern "C" fn end(_: *mut c_void) {
        ENDED.fetch_add(1, Ordering::Relaxed);
    }
    let bench = Bench::new();
    let plain = bench.resource("cuda");
    let job = bench.resource("cuda+budget:name=job,limit=8MiB");
    let of = bench.resource("cuda+budget:name=etl,limit=8MiB,parent=job");
    let train = bench.resource("cuda+budget:name=train,limit=8MiB,parent=job,guaranteed=8MiB,wait=0ms");
    let mut cache = Cache { of, block: null_mut(), asked: 0 };
    let context = (&raw mut cache).cast();
    // SAFETY: all handles are live, and the context outlives the budget.
    unsafe {
        let refused = millpond_budget_on_call_back(plain, Some(free), context, Some(end));
        assert_eq!((refused, ENDED.load(Ordering::Relaxed)), (Status::Unsupported, 1));
        assert!(message().contains("charges a budget"), "{}", message());
        assert_eq!(millpond_budget_on_call_back(of, Some(free), context, Some(end)), Status::Ok);
        let mut block = null_mut();
        for asked in [MIB, 0] {
            assert_eq!(
                millpond_allocate(of, ALL, 0, null_mut(), &raw mut (*context.cast::<Cache>()).block),
                Status::Ok
            );
            let outcome = millpond_allocate(train, MIB, 0, null_mut(), &raw mut block);
            assert_eq!((outcome == Status::Ok, (*context.cast::<Cache>()).asked), (asked > 0, MIB));
            if asked > 0 {
                assert_eq!(millpond_deallocate(train, block, MIB, 0, null_mut()), Status::Ok);
                assert_eq!(millpond_budget_on_call_back(of, None, null_mut(), None), Status::Ok);
                assert_eq!(ENDED.load(Ordering::Relaxed), 2);
            }
        }
        let left = (*context.cast::<Cache>()).block;
        assert_eq!(millpond_deallocate(of, left, ALL, 0, null_mut()), Status::Ok);
        for resource in [train, of, job, plain] {
            millpond_resource_free(resource);
        }
    }
}

#[test]
fn a_manager_serves_the_default_resource_and_survives_a_reset() {
    let bench = Bench::new();
    let pool = bench.resource("cuda+pool");
    let (mut manager, mut memory, mut other, mut deferral) = (null_mut(), null_mut(), null_mut(), null_mut());
    let (mut address, mut second, mut free, mut total) = (0, 0, 0, 0);
    // SAFETY: all arguments are valid.
    unsafe {
        assert_eq!(millpond_set_per_device_resource(pool, null_mut()), Status::Ok);
        assert_eq!(millpond_manager_new(bench.device, &raw mut manager), Status::Ok);
        assert_eq!(millpond_manager_initialize(manager), Status::Ok);
        let allocate = |address: &mut u64, memory: &mut *mut Memory| {
            let made = millpond_manager_allocate(manager, KIB, null_mut(), address, memory);
            assert_eq!(made, Status::Ok, "{}", message());
        };
        allocate(&mut address, &mut memory);
        assert_eq!(millpond_manager_defer(manager, &raw mut deferral), Status::Ok);
        millpond_memory_free(memory);
        allocate(&mut second, &mut other);
        assert_ne!(address, second, "the first block is parked");
        millpond_deferral_free(deferral);
        allocate(&mut second, &mut memory);
        assert_eq!(address, second);
        assert_eq!(millpond_manager_memory_info(manager, &raw mut free, &raw mut total), Status::Ok);
        assert_eq!(total, 64 * MIB);
        assert!(millpond_memory_is_live(memory));
        assert_eq!(millpond_manager_reset(manager), Status::Ok);
        assert!(!millpond_memory_is_live(memory) && !millpond_memory_is_live(other));
        let mut statistics = Statistics::default();
        assert_eq!(millpond_resource_statistics(pool, &raw mut statistics), Status::Ok);
        assert_eq!((statistics.blocks_in_use, statistics.bytes_reserved), (0, 0), "all memory went back");
        allocate(&mut second, &mut memory); // perhaps at the old address
        millpond_memory_free(other); // from before the reset: this frees nothing
        assert!(millpond_memory_is_live(memory));
        millpond_memory_free(memory);
        millpond_manager_free(manager);
        assert_eq!(millpond_reset_per_device_resource(bench.device), Status::Ok);
        millpond_resource_free(pool);
    }
}

#[test]
fn a_block_of_a_lost_device_is_taken_back_whatever_its_stream() {
    let bench = Bench::new();
    let tracked = bench.resource("cuda+pool+tracking");
    let own = bench.stream();
    let (mut block, mut bytes, mut text) = (null_mut(), 1, null_mut());
    // SAFETY: all arguments are valid.
    unsafe {
        assert_eq!(millpond_allocate(tracked, KIB, 0, own, &raw mut block), Status::Ok);
        bench.sim.set_faults(FaultPlan::nth_call(0, DriverError::ILLEGAL_ADDRESS));
        assert_eq!(millpond_device_synchronize(bench.device), Status::Poisoned);
        assert_eq!(millpond_deallocate(tracked, block, KIB, 0, own), Status::Ok);
        assert_eq!(millpond_tracking_outstanding(tracked, &raw mut bytes, &raw mut text), Status::Ok);
        assert_eq!((bytes, string(text)), (0, String::new()));
        millpond_resource_free(tracked);
    }
}

/// Found by the fuzz target `capi`.
#[test]
fn a_handle_without_a_place_is_freed() {
    let bench = Bench::new();
    let (upstream, of_bin) = (bench.resource("cuda"), bench.resource("cuda+pool"));
    let (mut bins, mut count, mut bytes) = (null_mut(), 0, 0);
    let (sizes, of_bins) = ([KIB], [of_bin.cast_const()]);
    // SAFETY: all arguments are valid, except for the null pointer.
    unsafe {
        let made = millpond_resource_binning(upstream, sizes.as_ptr(), of_bins.as_ptr(), 1, &raw mut bins);
        assert_eq!(made, Status::Ok, "{}", message());
        let owners = millpond_resource_owners(of_bin);
        let asked = millpond_binning_bin(bins, 0, &raw mut count, &raw mut bytes, null_mut());
        assert_eq!((asked, millpond_resource_owners(of_bin)), (Status::InvalidArgument, owners));
        [bins, of_bin, upstream].into_iter().for_each(|resource| millpond_resource_free(resource));
    }
}

#[test]
fn single_layers_say_more_than_their_text() {
    let bench = Bench::new();
    let limited = bench.resource("cuda+limiting:limit=8MiB");
    let small = bench.resource("cuda+pool");
    let (mut allocated, mut limit, mut block) = (0, 0, null_mut());
    let (mut bins, mut text, mut pool, mut view) = (null_mut(), null_mut(), null_mut(), null_mut());
    // SAFETY: all arguments are valid.
    unsafe {
        assert_eq!(millpond_allocate(limited, MIB, 0, null_mut(), &raw mut block), Status::Ok);
        assert_eq!(millpond_limiting_counts(limited, &raw mut allocated, &raw mut limit), Status::Ok);
        assert_eq!((allocated, limit), (MIB, 8 * MIB));
        assert_eq!(millpond_limiting_counts(small, &raw mut allocated, &raw mut limit), Status::Unsupported);
        assert_eq!(millpond_deallocate(limited, block, MIB, 0, null_mut()), Status::Ok);

        let (sizes, of_bins) = ([4 * KIB, MIB], [null(), small.cast_const()]);
        let made = millpond_resource_binning(limited, sizes.as_ptr(), of_bins.as_ptr(), 2, &raw mut bins);
        assert_eq!(made, Status::Ok, "{}", message());
        assert_eq!(millpond_resource_text(bins, &raw mut text), Status::Ok);
        assert!(string(text).contains("1MiB(cuda+pool)"));
        assert_eq!(
            millpond_resource_binning(limited, null(), null(), 1, &raw mut bins),
            Status::InvalidArgument
        );
        millpond_resource_free(bins);

        let driver_pool = bench.resource("cuda_async");
        assert_eq!(millpond_async_pool(driver_pool, &raw mut pool), Status::Ok);
        assert_eq!(millpond_async_pool(small, &raw mut pool), Status::Unsupported);
        assert_eq!(millpond_resource_async_view(bench.device, pool, &raw mut view), Status::Ok);
        assert_eq!(millpond_allocate(view, KIB, 0, null_mut(), &raw mut block), Status::Ok);
        assert_eq!(millpond_deallocate(view, block, KIB, 0, null_mut()), Status::Ok);
        assert_eq!(
            millpond_resource_async_view(bench.device, null_mut(), &raw mut view),
            Status::InvalidArgument
        );
        millpond_resource_free(view);
        millpond_resource_free(driver_pool);

        let managed = bench.resource("managed");
        assert_eq!(millpond_allocate(managed, KIB, 0, null_mut(), &raw mut block), Status::Ok);
        assert_eq!(millpond_prefetch(bench.device, block, KIB, false, null_mut()), Status::Ok);
        assert!(bench.sim.last_prefetch().is_some());
        assert_eq!(millpond_deallocate(managed, block, KIB, 0, null_mut()), Status::Ok);
        millpond_resource_free(managed);
        millpond_resource_free(small);
        millpond_resource_free(limited);
    }
}

/// Reports misuse of a block that no call here concerns.
fn misuse_another() {
    let (kind, ptr) = (MisuseKind::ForeignPointer, DevicePtr::new(256));
    misuse::report(&Misuse::new(kind, ptr, 1, StreamRef::LEGACY, "other"));
}

extern "C" fn hand_out(_: *mut c_void, _: u64, _: u64, _: *mut c_void) -> *mut c_void {
    without_provenance_mut(1 << 20)
}

/// Frees a block twice while the caller's block is being freed.
extern "C" fn free_twice(context: *mut c_void, _: *mut c_void, _: u64, _: u64, _: *mut c_void) {
    let (pool, mut block) = (context.cast::<Resource>(), null_mut());
    // SAFETY: the context is a resource of the test, and the test frees a block twice on purpose.
    unsafe {
        assert_eq!(millpond_allocate(pool, KIB, 0, null_mut(), &raw mut block), Status::Ok);
        assert_eq!(millpond_deallocate(pool, block, KIB, 0, null_mut()), Status::Ok);
        assert_eq!(millpond_deallocate(pool, block, KIB, 0, null_mut()), Status::InvalidArgument);
    }
    assert!(message().contains("free"), "{}", message());
    misuse_another();
    assert_eq!(
        std::thread::spawn(misuse_another).join().is_err(),
        cfg!(debug_assertions),
        "the call belongs to another thread"
    );
}

#[test]
fn misuse_within_a_free_is_no_error_of_it() {
    let bench = Bench::new();
    let (pool, mut made, mut block) = (bench.resource("cuda+pool"), null_mut(), null_mut());
    let (device, own) = (bench.device, &raw mut made);
    // SAFETY: all arguments are valid.
    unsafe {
        let built =
            millpond_resource_callback(device, Some(hand_out), Some(free_twice), pool.cast(), None, own);
        assert_eq!(built, Status::Ok, "{}", message());
        assert_eq!(millpond_allocate(made, KIB, 0, null_mut(), &raw mut block), Status::Ok);
        assert_eq!(millpond_deallocate(made, block, KIB, 0, null_mut()), Status::Ok, "{}", message());
        assert_eq!(catch_unwind(misuse_another).is_err(), cfg!(debug_assertions), "no call runs");
        millpond_resource_free(made);
        millpond_resource_free(pool);
    }
}

fn handle(stream: StreamRef) -> *mut c_void {
    without_provenance_mut(stream.handle() as usize)
}

/// A capturing stream follows a stream of an earlier call.
#[test]
fn a_stream_that_captures_follows_one_of_an_earlier_call_and_captures_on() {
    let bench = Bench::new();
    let [own, other] = [(); 2].map(|()| bench.sim.stream_create(StreamFlags::default()).unwrap());
    let mut id = 0;
    for (own, other) in [(own, other), (other, StreamRef::PER_THREAD), (own, StreamRef::LEGACY)] {
        // SAFETY: all arguments are valid, and the streams are alive.
        unsafe {
            assert_eq!(millpond_stream_id(bench.device, handle(other), &raw mut id), Status::Ok);
            bench.sim.begin_capture(own, CaptureMode::Relaxed).unwrap();
            let followed = millpond_stream_follow_if_alive(bench.device, handle(own), handle(other), id);
            assert_eq!(followed, Status::Ok, "{}", message());
        }
        bench.sim.end_capture(own).expect("the capture is whole");
    }
}

/// A stream that follows the thread's capturing stream does not join the capture.
#[test]
fn a_stream_that_follows_one_that_captures_stays_outside() {
    let bench = Bench::new();
    let own = bench.sim.stream_create(StreamFlags::default()).unwrap();
    bench.sim.begin_capture(StreamRef::PER_THREAD, CaptureMode::Relaxed).unwrap();
    let id = StreamRef::PER_THREAD.id().get();
    let other = handle(StreamRef::PER_THREAD);
    // SAFETY: all arguments are valid, and the streams are alive.
    let followed = unsafe { millpond_stream_follow_if_alive(bench.device, handle(own), other, id) };
    assert_eq!(followed, Status::Ok, "{}", message());
    assert_eq!(bench.sim.stream_is_capturing(own), Ok(false));
    bench.sim.end_capture(StreamRef::PER_THREAD).expect("the capture is whole");
}

/// The legacy default stream and blocking streams wait for each other.
#[test]
fn the_legacy_stream_ends_no_capture_of_a_blocking_stream() {
    let bench = Bench::new();
    let blocking = bench.sim.stream_create(StreamFlags::BLOCKING).unwrap();
    let other = handle(bench.sim.stream_create(StreamFlags::NON_BLOCKING).unwrap());
    bench.sim.begin_capture(blocking, CaptureMode::Relaxed).unwrap();
    for (stream, followed) in [(other, null_mut()), (null_mut(), other)] {
        // SAFETY: all arguments are valid, and the streams are alive.
        let followed = unsafe { millpond_stream_follow(bench.device, stream, followed) };
        assert_eq!(followed, Status::Ok, "{}", message());
    }
    bench.sim.end_capture(blocking).expect("the capture is whole");
}
