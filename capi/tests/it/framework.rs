//! Tests `malloc`, `free` and `record_stream` for frameworks: when a block goes back, and who gets it.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::bench::{Bench, KIB, MIB, message};
use millpond_c::cached::millpond_malloc_unlocked;
use millpond_c::device::*;
use millpond_c::framework::*;
use millpond_c::order::millpond_stream_wait;
use millpond_c::registry::*;
use millpond_c::resource::*;
use millpond_c::status::*;
use millpond_core::driver::{CaptureMode, EventFlags};
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, Driver, ErrorKind, StreamRef};
use millpond_driver::sim::Access;
use millpond_resources::{CudaMemoryResource, PoolLayer, registry};
use millpond_testkit::hooked::HookedDriver;
use millpond_testkit::mock;

fn ptr_of(block: *mut c_void) -> DevicePtr {
    DevicePtr::new(block.addr() as u64)
}

/// Shows why `record_stream` exists: without it, the block below goes to another user while a kernel writes
/// to it.
#[test]
fn a_block_goes_back_after_the_streams_that_were_recorded() {
    for is_recorded in [true, false] {
        let bench = Bench::new();
        let pool = bench.resource("cuda+pool");
        let (own, other) = (bench.stream(), bench.stream());
        let [own_ref, other_ref] = [own, other].map(|stream| bench.stream_ref(stream));
        // SAFETY: all arguments are valid, except for the unrecorded use, which the device finds.
        unsafe {
            assert_eq!(millpond_set_per_device_resource(pool, null_mut()), Status::Ok);
            let block = millpond_malloc(MIB as usize, bench.number(), own);
            bench.sim.lend(ptr_of(block), MIB, own_ref);
            assert_eq!(millpond_stream_wait(bench.device, other, own), Status::Ok);
            bench.sim.launch_for(other_ref, &[Access::write(ptr_of(block), MIB, 1)], 1_000_000);
            if is_recorded {
                assert_eq!(millpond_record_stream(block, other), Status::Ok);
            }
            bench.sim.give_back(ptr_of(block), MIB, own_ref);
            millpond_free(block, 0, 0, null_mut());
            let again = millpond_malloc(MIB as usize, bench.number(), own);
            assert_eq!(again == block, !is_recorded);
            bench.sim.lend(ptr_of(again), MIB, own_ref);
            bench.sim.launch(own_ref, &[Access::write(ptr_of(again), MIB, 2)]);
            let found = bench.sim.take_violations();
            assert_eq!(found.is_empty(), is_recorded, "{found:?}");
            millpond_free(again, 0, 0, null_mut());
            // After the device has finished the use, the block is allocated again.
            assert_eq!(millpond_device_synchronize(bench.device), Status::Ok);
            let blocks = [(); 2].map(|()| millpond_malloc(MIB as usize, bench.number(), own));
            assert!(blocks.contains(&block));
            blocks.into_iter().for_each(|block| millpond_free(block, 0, 0, null_mut()));
            assert_eq!(millpond_empty_cache(), Status::Ok);
            assert_eq!(millpond_reset_per_device_resource(bench.device), Status::Ok);
            millpond_resource_free(pool);
        }
    }
}

#[test]
fn memory_that_waits_for_a_stream_is_waited_for_before_memory_is_out() {
    let bench = Bench::new();
    let pool = bench.resource("cuda+pool");
    let (own, other) = (bench.stream(), bench.stream());
    let bytes = 40 * MIB as usize;
    // SAFETY: all arguments are valid.
    unsafe {
        assert_eq!(millpond_set_per_device_resource(pool, null_mut()), Status::Ok);
        let block = millpond_malloc(bytes, bench.number(), own);
        bench.sim.launch_for(bench.stream_ref(other), &[], 1_000_000);
        assert_eq!(millpond_record_stream(block, other), Status::Ok);
        millpond_free(block, bytes, 0, own);
        let again = millpond_malloc(bytes, bench.number(), own);
        assert!(!again.is_null(), "{}", message());
        millpond_free(again, bytes, 0, own);
        assert!(millpond_malloc(1 << 40, bench.number(), own).is_null());
        assert!(message().starts_with("out of memory for 1TiB"), "{}", message());
        assert_eq!(millpond_record_stream(again, other), Status::InvalidArgument);
        assert_eq!(millpond_reset_per_device_resource(bench.device), Status::Ok);
        millpond_resource_free(pool);
    }
}

/// The per-thread default stream as C passes it: one name for the streams of all threads.
fn per_thread() -> *mut c_void {
    std::ptr::without_provenance_mut(2)
}

/// The block goes back after the work of the thread that allocated it and of the threads that recorded a use.
#[test]
fn a_block_of_a_per_thread_stream_is_freed_on_another_thread() {
    for frees_elsewhere in [true, false] {
        let bench = Bench::new();
        let pool = bench.resource("cuda+pool");
        let number = bench.number();
        // SAFETY: all arguments are valid.
        unsafe {
            assert_eq!(millpond_set_per_device_resource(pool, null_mut()), Status::Ok);
            let block = millpond_malloc(MIB as usize, number, per_thread()).addr();
            let of = |block: usize| std::ptr::without_provenance_mut::<c_void>(block);
            let lend = |block| bench.sim.lend(ptr_of(of(block)), MIB, StreamRef::PER_THREAD);
            let write = |block, tag| [Access::write(ptr_of(of(block)), MIB, tag)];
            lend(block);
            bench.sim.launch_for(StreamRef::PER_THREAD, &write(block, 1), 1_000_000);
            let elsewhere = |body: &(dyn Fn() + Sync)| std::thread::scope(|scope| scope.spawn(body).join());
            if frees_elsewhere {
                bench.sim.give_back(ptr_of(of(block)), MIB, StreamRef::PER_THREAD);
                let free_and_reuse = || {
                    millpond_free(of(block), 0, 0, null_mut());
                    let again = millpond_malloc(MIB as usize, number, per_thread()).addr();
                    lend(again);
                    bench.sim.launch(StreamRef::PER_THREAD, &write(again, 2));
                    bench.sim.give_back(ptr_of(of(again)), MIB, StreamRef::PER_THREAD);
                    millpond_free(of(again), 0, 0, null_mut());
                };
                elsewhere(&free_and_reuse).expect("the thread ends");
            } else {
                let event = bench.sim.event_create(EventFlags::default()).expect("an event");
                bench.sim.event_record(event, StreamRef::PER_THREAD).expect("a record");
                let use_and_record = || {
                    bench.sim.stream_wait_event(StreamRef::PER_THREAD, event).expect("a wait");
                    bench.sim.launch_for(StreamRef::PER_THREAD, &write(block, 2), 1_000_000);
                    assert_eq!(millpond_record_stream(of(block), per_thread()), Status::Ok);
                };
                elsewhere(&use_and_record).expect("the thread ends");
                bench.sim.give_back(ptr_of(of(block)), MIB, StreamRef::PER_THREAD);
                millpond_free(of(block), 0, 0, null_mut());
                let again = millpond_malloc(MIB as usize, number, per_thread()).addr();
                assert_ne!(again, block, "another thread's stream still uses it");
                lend(again);
                bench.sim.launch(StreamRef::PER_THREAD, &write(again, 3));
                bench.sim.give_back(ptr_of(of(again)), MIB, StreamRef::PER_THREAD);
                millpond_free(of(again), 0, 0, null_mut());
                bench.sim.event_destroy(event).expect("it is alive");
            }
            let found = bench.sim.take_violations();
            assert!(found.is_empty(), "elsewhere: {frees_elsewhere}: {found:?}");
            assert_eq!(millpond_empty_cache(), Status::Ok);
            let mut statistics = Statistics::default();
            assert_eq!(millpond_resource_statistics(pool, &raw mut statistics), Status::Ok);
            assert_eq!((statistics.blocks_in_use, statistics.misuses), (0, 0), "all memory went back");
            assert_eq!(millpond_reset_per_device_resource(bench.device), Status::Ok);
            millpond_resource_free(pool);
        }
    }
}

/// A block that waits for another stream does not name its own stream, which may have ended since the free.
#[test]
fn the_stream_of_a_freed_block_may_end_while_the_block_waits() {
    let bench = Bench::new();
    for stack in ["cuda+pool", "cuda_async"] {
        let resource = bench.resource(stack);
        let (own, other) = (bench.stream(), bench.stream());
        // SAFETY: all arguments are valid.
        unsafe {
            assert_eq!(millpond_set_per_device_resource(resource, null_mut()), Status::Ok);
            let block = millpond_malloc(MIB as usize, bench.number(), own);
            let [own_ref, other_ref] = [own, other].map(|stream| bench.stream_ref(stream));
            bench.sim.lend(ptr_of(block), MIB, own_ref);
            bench.sim.launch_for(other_ref, &[], 1_000_000);
            bench.sim.launch_for(own_ref, &[Access::write(ptr_of(block), MIB, 1)], 2_000_000);
            assert_eq!(millpond_record_stream(block, other), Status::Ok);
            bench.sim.give_back(ptr_of(block), MIB, own_ref);
            millpond_free(block, 0, 0, null_mut());
            assert_eq!(millpond_stream_destroy(bench.device, own), Status::Ok);
            assert_eq!(millpond_stream_synchronize(bench.device, other), Status::Ok);
            let again = millpond_malloc(MIB as usize, bench.number(), other);
            bench.sim.lend(ptr_of(again), MIB, other_ref);
            bench.sim.launch(other_ref, &[Access::write(ptr_of(again), MIB, 2)]);
            bench.sim.give_back(ptr_of(again), MIB, other_ref);
            millpond_free(again, 0, 0, null_mut());
            assert_eq!(millpond_empty_cache(), Status::Ok);
            assert_eq!(bench.sim.take_violations(), []);
            let mut statistics = Statistics::default();
            if millpond_resource_statistics(resource, &raw mut statistics) == Status::Ok {
                assert_eq!((statistics.blocks_in_use, statistics.misuses), (0, 0), "{stack}");
            }
            assert_eq!(millpond_reset_per_device_resource(bench.device), Status::Ok);
            millpond_resource_free(resource);
        }
    }
}

/// The stream captured a graph when the block was freed, and ended before an event could mark its work.
#[test]
fn a_block_goes_back_although_a_captured_stream_has_ended() {
    let bench = Bench::new();
    let pool = bench.resource("cuda+pool");
    let (own, other) = (bench.stream(), bench.stream());
    let mut statistics = Statistics::default();
    // SAFETY: all arguments are valid.
    unsafe {
        assert_eq!(millpond_set_per_device_resource(pool, null_mut()), Status::Ok);
        let block = millpond_malloc(MIB as usize, bench.number(), own);
        assert_eq!(millpond_record_stream(block, other), Status::Ok);
        bench.sim.begin_capture(bench.stream_ref(other), CaptureMode::Global).expect("a capture begins");
        millpond_free(block, 0, 0, null_mut());
        bench.sim.end_capture(bench.stream_ref(other)).expect("a capture ends");
        assert_eq!(millpond_resource_statistics(pool, &raw mut statistics), Status::Ok);
        assert_eq!(statistics.blocks_in_use, 1, "the block waits");
        assert_eq!(millpond_stream_destroy(bench.device, other), Status::Ok);
        assert_eq!(millpond_empty_cache(), Status::Ok);
        assert_eq!(millpond_resource_statistics(pool, &raw mut statistics), Status::Ok);
        assert_eq!((statistics.blocks_in_use, statistics.misuses), (0, 0));
        assert_eq!(millpond_reset_per_device_resource(bench.device), Status::Ok);
        millpond_resource_free(pool);
    }
}

/// Simulated devices have the same addresses, and a free names only an address.
#[test]
fn blocks_of_two_simulated_devices_are_not_confused() {
    let (one, two) = (Bench::new(), Bench::new());
    // SAFETY: all arguments are valid.
    unsafe {
        let block = millpond_malloc(MIB as usize, one.number(), null_mut());
        assert!(millpond_malloc(MIB as usize, two.number(), null_mut()).is_null());
        assert!(message().contains("simulated devices have the same addresses"), "{}", message());
        millpond_free(block, 0, 0, null_mut());
        let block = millpond_malloc(MIB as usize, two.number(), null_mut());
        assert!(!block.is_null());
        millpond_free(block, 0, 0, null_mut());
    }
}

/// Meanwhile another thread, or code that a driver call runs, may use the library.
#[test]
fn blocks_are_handed_out_while_another_call_asks_the_driver_about_those_that_wait() {
    let bench = Bench::new();
    let driver = HookedDriver::new(bench.sim.clone());
    let pool = CudaMemoryResource::new(driver.clone()).layer(PoolLayer::new()).expect("a pool").into_any();
    registry::set_per_device_resource(pool.driver().device(), pool).expect("the pool belongs to the device");
    let (own, other, number) = (bench.stream(), bench.stream(), bench.number());
    // SAFETY: all arguments are valid.
    unsafe {
        let block = millpond_malloc(MIB as usize, number, own);
        assert_eq!(millpond_record_stream(block, other), Status::Ok);
        millpond_free(block, 0, 0, null_mut());
        driver.before_query(move || {
            let meanwhile = millpond_malloc(KIB as usize, number, null_mut());
            assert!(!meanwhile.is_null(), "{}", message());
            millpond_free(meanwhile, 0, 0, null_mut());
        });
        let again = millpond_malloc(MIB as usize, number, own);
        assert_eq!((again, driver.hooks_left()), (block, 0));
        millpond_free(again, 0, 0, null_mut());
        assert_eq!(millpond_reset_per_device_resource(bench.device), Status::Ok);
    }
}

/// A block need not wait for its own default stream, which lives as long as the process.
#[test]
fn a_block_of_a_default_stream_waits_for_the_recorded_streams_alone() {
    let bench = Bench::new();
    let pool = bench.resource("cuda+pool");
    let other = bench.stream();
    // SAFETY: all arguments are valid.
    unsafe {
        assert_eq!(millpond_set_per_device_resource(pool, null_mut()), Status::Ok);
        for own in [null_mut(), per_thread()] {
            let block = millpond_malloc(MIB as usize, bench.number(), own);
            let own_ref = bench.stream_ref(own);
            bench.sim.lend(ptr_of(block), MIB, own_ref);
            bench.sim.launch_for(own_ref, &[Access::write(ptr_of(block), MIB, 1)], 1_000_000);
            assert_eq!(millpond_record_stream(block, other), Status::Ok);
            bench.sim.give_back(ptr_of(block), MIB, own_ref);
            millpond_free(block, 0, 0, null_mut());
            let again = millpond_malloc(MIB as usize, bench.number(), own);
            assert_eq!(again, block, "only its own stream uses it");
            bench.sim.lend(ptr_of(again), MIB, own_ref);
            bench.sim.give_back(ptr_of(again), MIB, own_ref);
            millpond_free(again, 0, 0, null_mut());
        }
        assert_eq!(bench.sim.take_violations(), []);
        assert_eq!(millpond_reset_per_device_resource(bench.device), Status::Ok);
        millpond_resource_free(pool);
    }
}

/// A new resource serves the first request after a reset; earlier blocks go back nowhere.
#[test]
fn a_reset_of_the_context_is_noticed_by_the_next_request() {
    let bench = Bench::new();
    let pool = bench.resource("cuda+pool");
    extern "C" fn leave() -> *mut c_void {
        null_mut()
    }
    extern "C" fn enter(_: *mut c_void) {}
    // SAFETY: all arguments are valid.
    unsafe {
        assert_eq!(millpond_set_per_device_resource(pool, null_mut()), Status::Ok);
        let malloc = || millpond_malloc_unlocked(KIB as usize, bench.number(), null_mut(), leave, enter);
        for _ in 0..16 {
            millpond_free(malloc(), 0, 0, null_mut());
        }
        let old = malloc();
        bench.sim.reset_context();
        let fresh = malloc();
        assert!(!fresh.is_null(), "{}", message());
        let now = bench.sim.open_again();
        assert!(now.live_bytes() > 0, "the memory belongs to the new context");
        if old != fresh {
            millpond_free(old, 0, 0, null_mut());
        }
        millpond_free(fresh, 0, 0, null_mut());
        assert_eq!(millpond_empty_cache(), Status::Ok);
        assert_eq!(now.take_violations(), []);
        assert_eq!(millpond_reset_per_device_resource(bench.device), Status::Ok);
        millpond_resource_free(pool);
    }
}

/// Plain memory of the new context gets the addresses of the old context, and a free names only an address.
#[test]
fn a_late_free_of_before_a_reset_frees_nothing_of_after() {
    let bench = Bench::new();
    // SAFETY: all arguments are valid.
    unsafe {
        let malloc = || millpond_malloc(MIB as usize, bench.number(), null_mut());
        let free = |block| millpond_free(block, 0, 0, null_mut());
        let in_use = |block| {
            let mut bytes = 0;
            millpond_block_size(block, &raw mut bytes) == Status::Ok
        };
        let old = malloc();
        bench.sim.reset_context();
        let middle = malloc();
        bench.sim.open_again().reset_context();
        let fresh = malloc();
        assert_eq!([old, middle], [fresh; 2]);
        let (now, before) = (bench.sim.open_again(), millpond_stale_frees());
        let held = now.live_bytes();
        for late in 1..=2 {
            free(old);
            assert!(in_use(fresh) && now.live_bytes() == held, "the {late}. late free");
            assert_eq!(millpond_stale_frees(), before + late);
        }
        free(fresh);
        assert!(!in_use(fresh) && now.live_bytes() < held);
        assert_eq!(millpond_stale_frees(), before + 2);
        assert_eq!(now.take_violations(), []);
    }
}

/// A framework keeps a stream until it frees the block. If two frees name the same address, the library
/// cannot know which one was for the live block. So its streams may end after the first free.
#[test]
fn a_block_at_the_address_of_a_lost_one_goes_back_without_its_streams() {
    for (stack, is_recorded) in [("cuda_async", false), ("cuda_async", true), ("cuda+pool:pages=off", false)]
    {
        let bench = Bench::new();
        let (number, text) = (bench.number(), CString::new(stack).expect("a text"));
        let (mut device, mut fresh, mut streams) = (null_mut(), null_mut(), [null_mut(); 2]);
        // SAFETY: all arguments are valid, except for the streams that have ended.
        unsafe {
            let free = |block: *mut c_void| millpond_free(block, 0, 0, null_mut());
            let lost = bench.resource("cuda");
            assert_eq!(millpond_set_per_device_resource(lost, null_mut()), Status::Ok);
            let old = [(); 8].map(|()| millpond_malloc(MIB as usize, number, null_mut()));
            bench.sim.reset_context();
            assert_eq!(millpond_device_find(number as u32, true, &raw mut device), Status::Ok);
            assert_eq!(millpond_resource_new(device, text.as_ptr(), &raw mut fresh), Status::Ok);
            assert_eq!(millpond_set_per_device_resource(fresh, null_mut()), Status::Ok);
            for stream in &mut streams {
                assert_eq!(millpond_stream_create(device, true, stream), Status::Ok);
            }
            let now = bench.sim.open_again();
            let block = millpond_malloc(MIB as usize, number, streams[0]);
            assert!(old.contains(&block), "{stack}: {block:?} and {old:?}");
            old.into_iter().filter(|lost| *lost != block).for_each(free);
            let [own, other] = streams.map(|stream| now.stream_ref(stream.addr() as u64).expect("a stream"));
            now.lend(ptr_of(block), MIB, own);
            now.launch_for(own, &[Access::write(ptr_of(block), MIB, 1)], 1_000_000);
            if is_recorded {
                now.launch_for(other, &[], 1_000_000);
                assert_eq!(millpond_record_stream(block, streams[1]), Status::Ok);
            }
            now.give_back(ptr_of(block), MIB, own);
            let before = millpond_stale_frees();
            free(block);
            assert_eq!(millpond_stale_frees(), before + 1, "{stack}");
            for stream in streams {
                assert_eq!(millpond_stream_destroy(device, stream), Status::Ok);
            }
            free(block);
            assert!(now.live_bytes() > 0, "{stack}");
            assert_eq!(millpond_empty_cache(), Status::Ok);
            assert_eq!(now.live_bytes(), 0, "{stack}: the block went back");
            let mut counted = Statistics::default();
            if millpond_resource_statistics(fresh, &raw mut counted) == Status::Ok {
                assert_eq!((counted.blocks_in_use, counted.misuses), (0, 0), "{stack}");
            }
            assert_eq!(now.take_violations(), []);
            assert_eq!(millpond_reset_per_device_resource(device), Status::Ok);
            [lost, fresh].into_iter().for_each(|resource| millpond_resource_free(resource));
            millpond_device_free(device);
        }
    }
}

/// A stream passes its blocks in order, so one question to the driver per stream is enough, however many
/// blocks wait.
#[test]
fn a_request_asks_for_one_waiting_block_of_each_stream() {
    const BLOCKS: usize = 60;
    let bench = Bench::new();
    let pool = bench.resource("cuda+pool");
    let (own, others) = (bench.stream(), [bench.stream(), bench.stream()]);
    let queries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&queries);
    // SAFETY: all arguments are valid.
    unsafe {
        assert_eq!(millpond_set_per_device_resource(pool, null_mut()), Status::Ok);
        for other in others {
            bench.sim.launch_for(bench.stream_ref(other), &[], 1 << 40);
        }
        let take = || millpond_malloc(64 * KIB as usize, bench.number(), own);
        let blocks: Vec<_> = (0..BLOCKS).map(|_| take()).collect();
        for (at, block) in blocks.iter().enumerate() {
            // Some wait for one of the streams, some for both.
            for (other, stream) in others.iter().enumerate() {
                if at % 3 != other {
                    assert_eq!(millpond_record_stream(*block, *stream), Status::Ok);
                }
            }
            millpond_free(*block, 0, 0, null_mut());
        }
        bench.sim.stream_synchronize(bench.stream_ref(own)).expect("the device is there");
        let mut news = vec![take()];
        bench.sim.observe_calls(Some(Arc::new(move |call| {
            counted.fetch_add(usize::from(call == "cuEventQuery"), Ordering::Relaxed);
        })));
        news.extend((0..10).map(|_| take()));
        bench.sim.observe_calls(None);
        assert!(queries.load(Ordering::Relaxed) <= 10 * others.len(), "{queries:?} queries of 10 requests");
        assert!(news.iter().all(|new| !blocks.contains(new)), "the old blocks wait");
        assert_eq!(millpond_device_synchronize(bench.device), Status::Ok);
        news.push(take());
        let default = registry::get_per_device_resource(bench.sim.device()).expect("it was set");
        let in_use = default.statistics().map(|statistics| statistics.blocks_in_use);
        assert_eq!(in_use, Some(news.len() as u64), "all other blocks are back");
        drop(default);
        news.into_iter().for_each(|block| millpond_free(block, 0, 0, null_mut()));
        assert_eq!(millpond_empty_cache(), Status::Ok);
        assert_eq!(bench.sim.live_bytes(), 0);
        assert_eq!(millpond_reset_per_device_resource(bench.device), Status::Ok);
        millpond_resource_free(pool);
    }
}

/// A device that fails does not hold back another device's memory.
#[test]
fn a_device_whose_memory_stays_keeps_no_other_from_giving_back() {
    let [fails, other] = [(); 2].map(|()| Bench::new());
    let (resource, handle) = mock::resource(fails.sim.clone());
    registry::set_per_device_resource(fails.sim.device(), resource.into_any())
        .expect("the resource belongs to the device");
    // SAFETY: all arguments are valid.
    unsafe {
        assert_eq!(millpond_set_per_device_resource(other.resource("cuda+pool"), null_mut()), Status::Ok);
        for bench in [&fails, &other] {
            let block = millpond_malloc(KIB as usize, bench.number(), null_mut());
            millpond_free(block, KIB as usize, bench.number(), null_mut());
        }
        handle.fail_trims(Some(ErrorKind::Driver));
        assert_ne!(millpond_empty_cache(), Status::Ok);
        assert_eq!(other.sim.live_bytes(), 0);
        handle.fail_trims(None);
        assert_eq!(millpond_empty_cache(), Status::Ok);
        for bench in [&fails, &other] {
            assert_eq!(millpond_reset_per_device_resource(bench.device), Status::Ok);
        }
    }
}
