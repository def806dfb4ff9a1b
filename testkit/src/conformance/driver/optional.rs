//! Checks the optional parts that a driver offers.

use millpond_core::driver::{
    AccessFlags, CaptureMode, DeviceAttribute, HostFlags, MemAdvice, MemPoolAttribute, MemPoolProps,
    MemoryKind, PhysicalProps,
};
use millpond_core::{DevicePtr, Layout, StreamRef};

use super::device::{Device, MIB, S, ok, pattern};
use crate::conformance::Outcome::{self, Passed, Skipped};

bodies![
    managed_memory,
    pinned_memory,
    pageable_memory,
    stream_ordered_memory,
    mapped_pages,
    facts_about_pointers,
    streams_by_handle,
    records_on_living_streams,
    captures,
];

/// Returns the answer of a call; returns from the test if the driver does not offer the call.
macro_rules! offered {
    ($answer:expr) => {
        match $answer {
            Err(error) if error.is_unsupported() => return Skipped("the driver does not offer it"),
            answer => ok(answer),
        }
    };
}

fn managed_memory(it: &Device<'_>) -> Outcome {
    let block = offered!(it.mem_alloc_managed(MIB));
    it.holds_bytes(block, MIB, S);
    ok(it.synchronize());
    // SAFETY: the block is managed memory of this size, and no work uses it.
    let on_host = unsafe { std::slice::from_raw_parts(block.address() as *const u8, MIB as usize) };
    assert!(on_host == pattern(MIB, MIB), "the host reads other bytes than the device");
    if it.has(DeviceAttribute::ConcurrentManagedAccess) {
        // SAFETY: the range is the block.
        ok(unsafe { it.mem_advise(block, MIB, MemAdvice::PreferDevice) });
        for to_host in [false, true] {
            // SAFETY: as above.
            ok(unsafe { it.mem_prefetch_async(block, MIB, to_host, S) });
        }
        assert!(it.get(block, MIB, S) == pattern(MIB, MIB), "a prefetch changed the bytes");
    }
    it.free([block]);
    Passed
}

fn pinned_memory(it: &Device<'_>) -> Outcome {
    let pinned = offered!(it.mem_host_alloc(MIB, HostFlags::default().mapped(true)));
    let [block] = it.alloc(MIB);
    let data = pattern(1, MIB);
    // SAFETY: the memory of the host holds the bytes, and no work uses it before or after the copy.
    unsafe {
        pinned.as_mut_ptr().copy_from_nonoverlapping(data.as_ptr(), data.len());
        ok(it.memcpy_htod_async(block, pinned.as_mut_ptr(), MIB, S));
    }
    assert!(it.get(block, MIB, S) == data, "other bytes came back");
    let seen_by_device = ok(it.mem_host_get_device_pointer(pinned));
    assert!(it.get(seen_by_device, MIB, S) == data, "the device reads other bytes than the host");
    it.free([block]);
    // SAFETY: the memory came from `mem_host_alloc`, and the copies are done.
    ok(unsafe { it.mem_free_host(pinned) });
    Passed
}

fn pageable_memory(it: &Device<'_>) -> Outcome {
    let layout = Layout::with_alignment(10_000, 4096).unwrap_or(Layout::new(10_000));
    let block = ok(it.pageable_alloc(layout));
    assert_eq!(block.0 % 4096, 0, "pageable memory is not aligned");
    // SAFETY: the memory has this size and this layout.
    unsafe {
        block.as_mut_ptr().write_bytes(1, 10_000);
        it.pageable_free(block, layout);
    }
    let host = offered!(it.host_memory_info());
    assert!(host.free <= host.total, "{host:?}");
    Passed
}

fn stream_ordered_memory(it: &Device<'_>) -> Outcome {
    let pool = offered!(it.mem_pool_create(MemPoolProps::default()));
    let on = it.stream();
    for block in [ok(it.mem_alloc_async(MIB, on)), ok(it.mem_alloc_from_pool_async(MIB, pool, on))] {
        it.holds_bytes(block, MIB, on);
        // SAFETY: the block is freed once, after its work on the stream.
        ok(unsafe { it.mem_free_async(block, on) });
    }
    ok(it.stream_synchronize(on));
    let threshold = MemPoolAttribute::ReleaseThreshold;
    ok(it.mem_pool_set_attribute(pool, threshold, MIB));
    assert_eq!(it.mem_pool_get_attribute(pool, threshold), Ok(MIB));
    ok(it.mem_pool_trim_to(pool, 0));
    assert_ne!(ok(it.device_get_default_mem_pool()), pool);
    // SAFETY: no block of the pool is left.
    ok(unsafe { it.mem_pool_destroy(pool) });
    it.end([on]);
    Passed
}

fn mapped_pages(it: &Device<'_>) -> Outcome {
    let bytes = offered!(it.mem_get_allocation_granularity());
    assert!(bytes.is_power_of_two(), "the granularity is {bytes}");
    let space = ok(it.mem_address_reserve(2 * bytes, 0));
    let pages = ok(it.mem_create(bytes, PhysicalProps::default()));
    for ptr in [space, space.offset(bytes)] {
        // SAFETY: the addresses are reserved and free, and the copies are done before they are unmapped.
        unsafe {
            ok(it.mem_map(ptr, bytes, pages));
            ok(it.mem_set_access(ptr, bytes, AccessFlags::ReadWrite, &[it.device()]));
            if ptr == space {
                it.holds_bytes(ptr, bytes, S);
            }
            assert!(it.get(ptr, bytes, S) == pattern(bytes, bytes), "other bytes at another address");
            ok(it.mem_unmap(ptr, bytes));
        }
    }
    // SAFETY: nothing is mapped any more.
    unsafe {
        ok(it.mem_release(pages));
        ok(it.mem_address_free(space, 2 * bytes));
    }
    Passed
}

fn facts_about_pointers(it: &Device<'_>) -> Outcome {
    let [block] = it.alloc(100_003);
    let facts = (it.mem_get_address_range(block.offset(100_002)), it.pointer_kind(block));
    it.free([block]);
    let (base, bytes) = offered!(facts.0);
    assert!(base == block && bytes >= 100_003, "the block at {block} is {bytes} bytes at {base}");
    assert_eq!(offered!(facts.1), MemoryKind::Device);
    let local = 0_u8;
    assert_eq!(it.pointer_kind(DevicePtr::new(&raw const local as u64)), Ok(MemoryKind::Unknown));
    Passed
}

fn streams_by_handle(it: &Device<'_>) -> Outcome {
    let own = it.stream();
    // SAFETY: the stream is alive.
    let found = unsafe { it.stream_ref(own.handle()) };
    it.end([own]);
    let found = offered!(found);
    assert!(found == own && !found.is_foreign(), "{found:?} instead of {own:?}");
    Passed
}

fn records_on_living_streams(it: &Device<'_>) -> Outcome {
    let (own, event) = (it.stream(), it.event());
    let recorded = [own, S, StreamRef::PER_THREAD].map(|on| ok(it.event_record_if_alive(event, on)));
    it.end_event(event);
    it.end([own]);
    if recorded == [false; 3] {
        return Skipped("the driver does not offer it");
    }
    assert_eq!(recorded, [true, true, false], "on an own, the legacy and the per-thread stream");
    Passed
}

fn captures(it: &Device<'_>) -> Outcome {
    let own = it.stream();
    let capturing = (it.stream_is_capturing(own), it.stream_capture_id(own));
    it.end([own]);
    assert_eq!(capturing, (Ok(false), Ok(None)), "no stream captures");
    let before = offered!(it.thread_exchange_stream_capture_mode(CaptureMode::Relaxed));
    assert_eq!(it.thread_exchange_stream_capture_mode(before), Ok(CaptureMode::Relaxed));
    Passed
}
