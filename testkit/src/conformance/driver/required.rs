//! Checks the methods that every driver implements.

use millpond_core::driver::{DeviceAttribute, StreamFlags};
use millpond_core::{ALLOCATION_ALIGNMENT, DevicePtr, DriverError, StreamRef};

use super::device::{Device, MIB, S, ok, pattern, refused};
use crate::conformance::Outcome::{self, Passed, Skipped};

bodies![
    it_describes_its_device,
    blocks_are_aligned_and_apart,
    what_it_cannot_serve_is_out_of_memory,
    free_memory_falls_and_comes_back,
    a_block_is_freed_once,
    bytes_are_copied_and_filled_on_every_stream,
    events_order_streams,
    threads_share_the_driver,
    streams_have_ids_of_their_own,
    default_streams_are_always_there,
    a_destroyed_stream_is_gone,
    a_destroyed_event_is_refused,
    queries_become_true,
];

const KINDS: [StreamFlags; 2] = [StreamFlags::NON_BLOCKING, StreamFlags::BLOCKING];
const SHARED: Outcome = Skipped("the device shares the memory of the host");

fn it_describes_its_device(it: &Device<'_>) -> Outcome {
    assert!(!it.name().is_empty() && !it.was_reset() && !it.health().is_lost());
    assert!(std::sync::Arc::ptr_eq(it.health(), it.health()), "each call returns another `Health`");
    assert!(!ok(it.active_peers()).contains(&it.device()), "the device is its own peer");
    ok(it.version());
    ok(it.synchronize());
    ok(it.synchronize_beside_captures());
    // A resource asks for the attribute before it uses the calls.
    for (attribute, is_offered) in [
        (DeviceAttribute::MemoryPoolsSupported, it.device_get_default_mem_pool().is_ok()),
        (DeviceAttribute::VirtualMemoryManagementSupported, it.mem_get_allocation_granularity().is_ok()),
    ] {
        assert_eq!(it.has(attribute), is_offered, "{attribute:?} and the driver's methods disagree");
    }
    Passed
}

fn blocks_are_aligned_and_apart(it: &Device<'_>) -> Outcome {
    let sizes = [1, 255, 256, 257, 4096, 100_003, MIB, 4 * MIB + 1];
    let blocks = sizes.iter().chain(&sizes).map(|&bytes| (ok(it.mem_alloc(bytes)), bytes));
    let mut blocks: Vec<(DevicePtr, u64)> = blocks.collect();
    blocks.sort_unstable();
    for (block, bytes) in &blocks {
        let is_aligned = !block.is_null() && block.is_aligned_to(ALLOCATION_ALIGNMENT);
        assert!(is_aligned, "{bytes} bytes are at {block:?}");
    }
    for pair in blocks.windows(2) {
        assert!(pair[0].0.offset(pair[0].1) <= pair[1].0, "two blocks overlap: {pair:?}");
    }
    it.free(blocks.into_iter().map(|(block, _)| block));
    Passed
}

fn what_it_cannot_serve_is_out_of_memory(it: &Device<'_>) -> Outcome {
    let out_of_memory = DriverError::OUT_OF_MEMORY;
    refused(it.mem_alloc(0), DriverError::INVALID_VALUE, "a request for 0 bytes");
    let total = ok(it.mem_get_info()).total;
    let powers = (0..64).map(|power| 1 << power).filter(|bytes| *bytes > total);
    for bytes in powers.chain([total + 1, (1 << 63) + 256, u64::MAX - 255]) {
        refused(it.mem_alloc(bytes), out_of_memory, &format!("a request for {bytes} bytes"));
    }
    if it.has(DeviceAttribute::Integrated) {
        return SHARED;
    }
    let counts = [(); 2].map(|()| {
        let mut blocks = Vec::new();
        let full = loop {
            assert!(blocks.len() <= 8, "it hands out more than the device has");
            match it.mem_alloc(total / 8) {
                Ok(block) => blocks.push(block),
                full => break full,
            }
        };
        refused(full, out_of_memory, "a request on a full device");
        it.free(blocks.iter().copied());
        blocks.len()
    });
    assert!(counts[0] > 0 && counts[0] == counts[1], "the device was filled with {counts:?} blocks");
    Passed
}

fn free_memory_falls_and_comes_back(it: &Device<'_>) -> Outcome {
    if it.has(DeviceAttribute::Integrated) {
        return SHARED;
    }
    let info = || ok(it.mem_get_info());
    let bytes = (info().total / 16).min(64 * MIB);
    for round in 0..3 {
        let before = info();
        let block = it.alloc::<1>(bytes);
        let during = info();
        it.free(block);
        let after = info();
        assert!(before.free <= before.total && after.total == before.total, "{before:?} then {after:?}");
        // At first, a driver may take memory for itself.
        if round > 0 {
            assert!(during.free <= before.free - bytes, "{bytes} bytes: {before:?} then {during:?}");
            assert!(after.free >= before.free, "the memory did not come back: {before:?} then {after:?}");
        }
    }
    Passed
}

fn a_block_is_freed_once(it: &Device<'_>) -> Outcome {
    let [block] = it.alloc(4096);
    // SAFETY: no block starts there, so the driver refuses the call.
    let free = |ptr| unsafe { it.mem_free(ptr) };
    refused(free(block.offset(256)), DriverError::INVALID_VALUE, "mem_free of the middle of a block");
    ok(free(block));
    refused(free(block), DriverError::INVALID_VALUE, "a second mem_free");
    Passed
}

fn bytes_are_copied_and_filled_on_every_stream(it: &Device<'_>) -> Outcome {
    const BYTES: u64 = 100_003;
    let own = KINDS.map(|flags| ok(it.stream_create(flags)));
    let streams = [S, StreamRef::from_raw_parts(1, 0), StreamRef::PER_THREAD].into_iter().chain(own);
    for (seed, on) in (1..).zip(streams) {
        let [first, second] = it.alloc(BYTES + 7);
        let mut data = pattern(seed, BYTES);
        it.put(first, &data, on);
        it.copy(second.offset(7), first, BYTES, on);
        it.fill(second.offset(1007), seed as u8, 500, on);
        let copied = it.get(second.offset(7), BYTES, on);
        data[1000..1500].fill(seed as u8);
        assert!(copied == data, "other bytes came back on stream {on}");
        it.free([first, second]);
    }
    it.end(own);
    Passed
}

/// The streams and events are destroyed before their work is done.
fn events_order_streams(it: &Device<'_>) -> Outcome {
    for round in 0..8 {
        let (blocks, data) = (it.alloc::<8>(MIB), pattern(round, MIB));
        let streams = [(); 8].map(|()| it.stream());
        it.put(blocks[0], &data, streams[0]);
        for at in 1..8 {
            it.order(streams[at - 1], streams[at]);
            it.copy(blocks[at], blocks[at - 1], MIB, streams[at]);
        }
        it.end(streams);
        ok(it.synchronize());
        assert!(it.get(blocks[7], MIB, S) == data, "a stream did not wait for an event");
        it.free(blocks);
    }
    Passed
}

fn threads_share_the_driver(it: &Device<'_>) -> Outcome {
    let work = || {
        for _ in 0..20 {
            let (on, [block]) = (it.stream(), it.alloc(10_000));
            it.fill(block, 1, 10_000, on);
            it.order(on, StreamRef::PER_THREAD);
            it.holds_bytes(block, 10_000, StreamRef::PER_THREAD);
            it.free([block]);
            it.end([on]);
        }
    };
    std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(work));
        for joined in threads.map(std::thread::ScopedJoinHandle::join) {
            joined.unwrap_or_else(|panic| panic!("{}", crate::text_of(&*panic)));
        }
    });
    Passed
}

fn streams_have_ids_of_their_own(it: &Device<'_>) -> Outcome {
    let (mut ever, mut living) = (vec![S, StreamRef::PER_THREAD], Vec::<StreamRef>::new());
    for round in 0..24 {
        let new = ok(it.stream_create(KINDS[round % 2]));
        let (handle, id) = (new.handle(), new.id().get());
        assert!(handle > 2, "a new stream has the handle {handle} of a default stream");
        assert!(!new.is_foreign(), "a new stream is foreign");
        assert!(!ever.contains(&new), "two streams have the id {id}; see StreamRef::with_new_id");
        assert!(living.iter().all(|one| one.handle() != handle), "two streams have the handle {handle:#x}");
        ever.push(new);
        living.push(new);
        if round % 3 == 2 {
            it.end([living.swap_remove(0)]);
        }
    }
    it.end(living);
    Passed
}

fn default_streams_are_always_there(it: &Device<'_>) -> Outcome {
    let event = it.event();
    for on in [0, 1, 2].map(|handle| StreamRef::from_raw_parts(handle, 0)) {
        assert!(!it.stream_is_gone(on), "the default stream {on} is gone");
        ok(it.event_record(event, on));
        ok(it.stream_wait_event(on, event));
        ok(it.stream_synchronize(on));
        // SAFETY: the default streams are always alive; the driver refuses to destroy them.
        let (found, destroyed) = unsafe { (it.stream_ref(on.handle()), it.stream_destroy(on)) };
        assert_eq!(found, Ok(on));
        refused(destroyed, DriverError::INVALID_HANDLE, "stream_destroy of a default stream");
    }
    it.end_event(event);
    Passed
}

fn a_destroyed_stream_is_gone(it: &Device<'_>) -> Outcome {
    let (event, destroyed) = (it.event(), it.stream());
    ok(it.event_record(event, destroyed));
    it.end([destroyed]);
    // Another stream may get the handle.
    let others = [(); 4].map(|()| it.stream());
    assert!(!others.iter().any(|other| it.stream_is_gone(*other)), "a living stream is gone");
    for dead in [destroyed, StreamRef::with_new_id(0xdead_beef_0000)] {
        assert!(it.stream_is_gone(dead), "a stream that does not exist is not gone");
        // SAFETY: the driver refuses the call.
        let end = unsafe { it.stream_destroy(dead) };
        for (answer, call) in [
            (end, "stream_destroy"),
            (it.stream_synchronize(dead), "stream_synchronize"),
            (it.stream_query(dead).map(drop), "stream_query"),
            (it.stream_wait_event(dead, event), "stream_wait_event"),
            (it.event_record(event, dead), "event_record"),
        ] {
            refused(answer, DriverError::INVALID_HANDLE, &format!("{call} of a stream that does not exist"));
        }
        assert_eq!(it.event_record_if_alive(event, dead), Ok(false), "event_record_if_alive");
    }
    // SAFETY: the driver makes no call with it.
    let foreign = unsafe { StreamRef::foreign(0xf0e1_0000, 7) };
    assert!(!it.stream_is_gone(foreign), "a foreign stream is gone, but the caller says that it is alive");
    it.end(others);
    it.end_event(event);
    Passed
}

fn a_destroyed_event_is_refused(it: &Device<'_>) -> Outcome {
    let [dead, living] = [(); 2].map(|()| it.event());
    assert_ne!(dead, living);
    it.end_event(dead);
    it.end_event(living);
    if it.device().is_cuda() {
        return Skipped("CUDA does not check the handle of an event");
    }
    // SAFETY: the driver refuses the call.
    let destroyed = unsafe { it.event_destroy(dead) };
    for (answer, call) in [
        (destroyed, "event_destroy"),
        (it.event_query(dead).map(drop), "event_query"),
        (it.event_synchronize(dead), "event_synchronize"),
        (it.event_record(dead, S), "event_record"),
        (it.stream_wait_event(S, dead), "stream_wait_event"),
    ] {
        refused(answer, DriverError::INVALID_HANDLE, &format!("{call} of an event that does not exist"));
    }
    Passed
}

fn queries_become_true(it: &Device<'_>) -> Outcome {
    let (own, event, [block]) = (it.stream(), it.event(), it.alloc(MIB));
    assert!(ok(it.event_query(event)), "an event that no call has recorded is not reached");
    ok(it.event_synchronize(event));
    for on in [S, StreamRef::PER_THREAD, own] {
        it.fill(block, 1, MIB, on);
        ok(it.event_record(event, on));
        ok(it.event_synchronize(event));
        assert!(ok(it.event_query(event)), "event_query is false after event_synchronize");
        ok(it.stream_synchronize(on));
        assert!(ok(it.stream_query(on)), "stream_query of {on} is false after stream_synchronize");
    }
    it.end_event(event);
    it.end([own]);
    it.free([block]);
    Passed
}
