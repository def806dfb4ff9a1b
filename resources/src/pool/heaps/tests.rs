//! Tests the memory that a pool's heaps hold, and the requests that they can serve.

use millpond_core::driver::{Driver, StreamFlags};
use millpond_core::{DeviceMemoryResource, DeviceMemoryResourceExt, DriverError, Layout, StreamRef};
use millpond_driver::CallKind;
use millpond_driver::sim::{FaultPlan, SimConfig, SimDevice};

use crate::heap::request::Request;
use crate::pool::heaps::Reclaim;
use crate::{CudaMemoryResource, PagesMode, PoolLayer};

/// A request that exceeds the maximum is refused at once. A request with a large alignment needs padding,
/// since the driver does not align that much.
#[test]
fn a_request_within_the_maximum_may_be_served() {
    const MIB: u64 = 1 << 20;
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    let pool = cuda.layer(PoolLayer::new().maximum_bytes(64 * MIB)).expect("an empty pool");
    let cached = [(); 8].map(|()| pool.allocate_bytes(1000, StreamRef::LEGACY).expect("there is room"));
    // SAFETY: the blocks came from the pool with this size and are freed once.
    let _: [(); 8] = cached.map(|ptr| unsafe { pool.deallocate_bytes(ptr, 1000, StreamRef::LEGACY) });
    for (bytes, alignment, may) in [
        (64 * MIB, 256, true),
        (64 * MIB, 2 * MIB, true),
        (64 * MIB + 256, 256, false),
        (60 * MIB + 256, 4 * MIB, true),
        (60 * MIB + 512, 4 * MIB, false),
    ] {
        let layout = Layout::with_alignment(bytes, alignment).expect("a power of two");
        let request = Request::new(layout).expect("not too large");
        let can = pool.central.can_ever_serve(&request);
        assert_eq!(can, may, "{bytes} bytes aligned to {alignment}");
        // Only a request that may find its alignment by chance takes the blocks from the caches.
        let held = pool.shared.thread_caches.my_cache(pool.id).counts.totals().blocks_held;
        assert_eq!(held == 0, bytes == 60 * MIB + 512, "{bytes} bytes aligned to {alignment}");
    }
}

/// A block joins unowned neighbours only while no second stream could take these.
#[test]
fn heaps_know_whether_there_is_one_stream() {
    for pages in [PagesMode::Off, PagesMode::On] {
        let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        let pool = cuda.layer(PoolLayer::new().pages(pages)).expect("an empty pool");
        for (streams, expected) in [(1, true), (2, false), (3, false), (2, false), (1, true)] {
            let is_one: Vec<bool> = pool.central.with_heaps(|heaps| {
                heaps.set_streams(streams);
                heaps.store.heaps().iter().map(|heap| heap.has_one_stream).collect()
            });
            assert!(is_one.iter().all(|is_one| *is_one == expected), "{streams} streams: {is_one:?}");
        }
    }
}

/// The statistics count a block in a stream cache as free.
#[test]
fn totals_count_a_cached_block_as_free() {
    const BYTES: u64 = 1000;
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    let pool = cuda.layer(PoolLayer::new()).expect("an empty pool");
    let totals = || pool.central.with_heaps(|heaps| heaps.totals());
    let free = |ptr| {
        // SAFETY: the block came from the pool with this size and is freed once.
        unsafe { pool.deallocate_bytes(ptr, BYTES, StreamRef::LEGACY) };
    };
    let blocks = [(); 8].map(|()| pool.allocate_bytes(BYTES, StreamRef::LEGACY).expect("there is room"));
    let all = totals();
    assert_eq!((all.blocks_in_use, all.bytes_in_use, all.bytes_requested), (8, 8 * 1024, 8 * BYTES));
    for (freed, ptr) in (1..).zip(blocks) {
        free(ptr);
        let now = totals();
        assert_eq!(now.blocks_in_use, 8 - freed);
        assert_eq!((now.bytes_in_use, now.bytes_requested), ((8 - freed) * 1024, (8 - freed) * BYTES));
        assert_eq!((now.blocks_free, now.deallocations), (all.blocks_free + freed, freed));
        assert_eq!(now.peak_bytes_in_use, 8 * 1024);
    }
    let held = pool.shared.thread_caches.my_cache(pool.id).counts.totals().blocks_held;
    assert_eq!(held, 8, "all are in the stream cache");
}

/// Regions and reserved bytes describe the pool now, and the peak describes its largest state.
#[test]
fn totals_count_what_the_pool_holds() {
    const MIB: u64 = 1 << 20;
    for pages in [PagesMode::On, PagesMode::Off] {
        let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
        let pool = cuda.layer(PoolLayer::new().pages(pages)).expect("an empty pool");
        let totals = || pool.central.with_heaps(|heaps| heaps.totals());
        assert_eq!((totals().regions, totals().bytes_reserved), (0, 0));
        let blocks =
            [(); 2].map(|()| pool.allocate_bytes(30 * MIB, StreamRef::LEGACY).expect("there is room"));
        let most = totals();
        assert!(most.regions >= 2 && most.bytes_reserved >= 60 * MIB, "{pages}: {most:?}");
        assert_eq!(most.peak_bytes_reserved, most.bytes_reserved);
        assert_eq!((most.blocks_in_use, most.bytes_in_use), (2, 60 * MIB));
        // SAFETY: the block came from the pool with this size and is freed once.
        let free = |ptr| unsafe { pool.deallocate_bytes(ptr, 30 * MIB, StreamRef::LEGACY) };
        free(blocks[0]);
        pool.central.with_heaps(|heaps| {
            _ = heaps.reclaim(None, Reclaim::Everything);
            assert!((30 * MIB..60 * MIB).contains(&heaps.store.bytes_free()), "{pages}");
        });
        let released = pool.trim(0).expect("the device is there");
        let now = totals();
        assert_eq!(released, most.bytes_reserved - now.bytes_reserved, "{pages}");
        assert!(now.bytes_reserved >= 30 * MIB && released >= 30 * MIB - 2 * MIB, "{pages}: {now:?}");
        assert!(now.regions < most.regions, "{pages}: {now:?}");
        assert_eq!(now.peak_bytes_reserved, most.peak_bytes_reserved);
        assert_eq!(now.bytes_beyond_slack, 0, "nothing was stitched");
        free(blocks[1]);
        assert_eq!(pool.trim(0).expect("the device is there"), now.bytes_reserved);
        assert_eq!((totals().regions, totals().bytes_reserved), (0, 0));
    }
}

/// While a stream's work is under way, its free block serves no other stream. So the pool takes more memory
/// than its peak of live memory.
#[test]
fn memory_taken_beyond_the_slack_is_counted() {
    const MIB: u64 = 1 << 20;
    for (pages, beyond) in [(PagesMode::On, 62 * MIB..=64 * MIB), (PagesMode::Off, 0..=0)] {
        let device = SimDevice::new(SimConfig::h200());
        let pool = CudaMemoryResource::new(device.clone()).layer(PoolLayer::new().pages(pages));
        let pool = pool.expect("an empty pool");
        let stream = |()| device.stream_create(StreamFlags::NON_BLOCKING).expect("a stream");
        let [first, second] = [(); 2].map(stream);
        let ptr = pool.allocate_bytes(64 * MIB, first).expect("there is room");
        device.launch_for(first, &[], 1_000_000_000);
        // SAFETY: the block came from the pool with this size; the work does not use it.
        unsafe { pool.deallocate_bytes(ptr, 64 * MIB, first) };
        pool.allocate_bytes(64 * MIB, second).expect("there is room");
        let totals = pool.central.with_heaps(|heaps| heaps.totals());
        assert!(totals.bytes_reserved >= 128 * MIB, "{pages}: {totals:?}");
        assert!(beyond.contains(&totals.bytes_beyond_slack), "{pages}: {totals:?}");
    }
}

/// The parts of a block are exactly its bytes, in order, both in an alias and in the primary mapping.
#[cfg(unix)]
#[test]
fn the_physical_parts_of_a_block_are_its_bytes() {
    const MIB: u64 = 1 << 20;
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::with_capacity(64 * MIB)));
    let pool = cuda.layer(PoolLayer::new().pages(PagesMode::On)).expect("an empty pool");
    let allocate = |bytes| pool.allocate_bytes(bytes, StreamRef::LEGACY).expect("there is room");
    let blocks = [(); 4].map(|()| allocate(16 * MIB));
    for ptr in [blocks[0], blocks[2]] {
        // SAFETY: the block came from the pool with this size and is freed once.
        unsafe { pool.deallocate_bytes(ptr, 16 * MIB, StreamRef::LEGACY) };
    }
    // The device is full, so the block is stitched from the memory of these two.
    let stitched = allocate(32 * MIB);
    for (ptr, bytes) in [(stitched, 32 * MIB), (blocks[1], 16 * MIB)] {
        let parts_of = |bytes| {
            let parts = pool.central.with_heaps(|heaps| heaps.physical_of(ptr.address(), bytes));
            assert!(parts.iter().all(|it| it.bytes > 0 && it.offset + it.bytes <= it.handle_bytes));
            parts.iter().map(|part| part.bytes).collect::<Vec<u64>>()
        };
        let parts = parts_of(bytes);
        assert!(parts.len() > 1, "{parts:?}");
        assert_eq!(parts.iter().sum::<u64>(), bytes);
        for end in 1..parts.len() {
            assert_eq!(parts_of(parts[..end].iter().sum()), parts[..end]);
        }
    }
}

/// Blocks that other threads cache may serve a request, so the pool does not ask the device for its free
/// memory.
#[test]
fn a_block_that_another_thread_caches_is_found_before_the_device_is_asked() {
    const BYTES: u64 = 8 << 20;
    let device = SimDevice::new(SimConfig::h200());
    let cuda = CudaMemoryResource::new(device.clone());
    let pool = cuda.layer(PoolLayer::new().pages(PagesMode::On)).expect("an empty pool");
    let allocate = || pool.allocate_bytes(BYTES, StreamRef::LEGACY).expect("there is room");
    let free = |ptr| {
        // SAFETY: the block came from the pool with this size and is freed once.
        unsafe { pool.deallocate_bytes(ptr, BYTES, StreamRef::LEGACY) };
    };
    // The first calls are served without a cache.
    let first = allocate();
    (0..3).for_each(|_| free(allocate()));
    assert!(pool.shared.thread_caches.my_cache(pool.id).counts.may_have_large());
    device.set_faults(FaultPlan::nth_of(CallKind::MemGetInfo, 0, DriverError::NOT_SUPPORTED));
    let taken = std::thread::scope(|scope| scope.spawn(allocate).join().expect("there is room"));
    assert_eq!(device.failed_calls(CallKind::MemGetInfo), 0);
    [first, taken].into_iter().for_each(free);
    pool.validate();
}
