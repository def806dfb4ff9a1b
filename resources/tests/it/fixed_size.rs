//! Tests blocks of one size, and bins of them, next to a resource for requests that do not fit.

use std::sync::Arc;

use millpond_core::stack::{LayerTable, StackSpec};
use millpond_core::{
    AnyResource, DeviceMemoryResource, DeviceMemoryResourceExt, DevicePtr, DriverHandle, ErrorKind, Layout,
    RemedyAction, Result, StreamRef,
};
use millpond_driver::sim::{SimConfig, SimDevice};
use millpond_resources::{BinningLayer, CudaMemoryResource, FixedSizeLayer, PoolLayer};
use millpond_testkit::mock::{self, Call};

const S: StreamRef = StreamRef::LEGACY;
const BLOCK: u64 = 4096;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A program that falls back on another resource when memory is out, and for no other error.
fn allocate(
    first: &dyn DeviceMemoryResource,
    fallback: &dyn DeviceMemoryResource,
    layout: Layout,
) -> Result<DevicePtr> {
    first.allocate(layout, S).or_else(|error| match error.is_out_of_memory() {
        true => fallback.allocate(layout, S),
        false => Err(error),
    })
}

#[test]
fn issue_9_what_is_larger_than_a_block_is_served_by_a_fallback() {
    let driver: DriverHandle = SimDevice::new(SimConfig::h200());
    let cuda = || CudaMemoryResource::new(Arc::clone(&driver));
    let blocks = cuda().layer(FixedSizeLayer::new().block_bytes(BLOCK)).expect("blocks");
    let pool = cuda().layer(PoolLayer::new()).expect("a pool");
    let served = || {
        let counts = |it: &dyn DeviceMemoryResource| it.statistics().expect("it counts").allocations;
        [counts(&blocks), counts(&pool)]
    };
    for (bytes, expected) in [(BLOCK, [1, 0]), (BLOCK + 1, [1, 1]), (1 << 30, [1, 2])] {
        allocate(&blocks, &pool, Layout::new(bytes)).expect("there is room");
        assert_eq!(served(), expected, "{bytes} bytes");
    }
    let error = blocks.allocate_bytes(BLOCK + 1, S).expect_err("a block is smaller");
    assert_eq!((error.kind(), error.requested_bytes()), (ErrorKind::OutOfMemory, Some(BLOCK + 1)));
    assert!(error.message().contains("raise block_size, or use binning"), "{error}");
}

/// A larger alignment does not mean that memory is out: a fallback would hide a mistake.
#[test]
fn what_is_aligned_to_more_than_a_block_is_refused() {
    let driver: DriverHandle = SimDevice::new(SimConfig::h200());
    let cuda = CudaMemoryResource::new(driver);
    let blocks = cuda.layer(FixedSizeLayer::new().block_bytes(BLOCK)).expect("blocks");
    let layout = Layout::with_alignment(BLOCK, 512).expect("a power of two");
    let error = blocks.allocate(layout, S).expect_err("blocks are aligned to 256");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// With few blocks in use, few blocks wait. After a refusal, the resource asks for smaller regions.
#[test]
fn regions_grow_with_use_and_back_off_in_whole_blocks() {
    const LARGE: u64 = 2 << 20;
    let driver: DriverHandle = SimDevice::new(SimConfig::h200());
    let cuda = CudaMemoryResource::new(Arc::clone(&driver));
    let upstream = CudaMemoryResource::new(Arc::clone(&driver));
    let blocks = upstream.layer(FixedSizeLayer::new().block_bytes(LARGE)).expect("blocks");
    let reserved = || blocks.statistics().expect("it counts").bytes_reserved / LARGE;
    let allocate = || blocks.allocate_bytes(LARGE, S).expect("there is room");
    let taken: Vec<(DevicePtr, u64)> = (0..4).map(|_| (allocate(), reserved())).collect();
    assert_eq!(taken.iter().map(|(_, reserved)| *reserved).collect::<Vec<_>>(), [1, 2, 4, 4]);
    // It wants four blocks. Three would fit, but half of four is two.
    let free = driver.mem_get_info().expect("the device answers").free;
    let rest = cuda.allocate_bytes(free - 3 * LARGE, S).expect("it was free");
    let last = allocate();
    assert_eq!(reserved(), 6);
    // SAFETY: the blocks came from these resources with these sizes, and nothing uses them.
    unsafe {
        cuda.deallocate_bytes(rest, free - 3 * LARGE, S);
        for ptr in taken.iter().map(|(ptr, _)| *ptr).chain([last]) {
            blocks.deallocate_bytes(ptr, LARGE, S);
        }
    }
    blocks.validate();
    assert_eq!(blocks.trim(0).expect("the device answers"), 6 * LARGE);
    assert_eq!(reserved(), 0);
}

/// Sizes that are not a pool's size class, the smallest size, and some that threads do not cache by class.
#[test]
fn blocks_have_their_size_whatever_it_is() {
    for block in [256, 4096, 16_640, 300_032, 1 << 20, (1 << 20) + 256, 3 << 20] {
        let driver: DriverHandle = SimDevice::new(SimConfig::h200());
        let upstream = CudaMemoryResource::new(driver);
        let blocks = upstream.layer(FixedSizeLayer::new().block_bytes(block)).expect("blocks");
        let statistics = || blocks.statistics().expect("it counts");
        for round in 0..3 {
            // From the fifth call on, the thread caches blocks.
            let allocate = |n| blocks.allocate_bytes(block * n / 20, S).expect("there is room");
            let ptrs: Vec<DevicePtr> = (1..=20).map(allocate).collect();
            let mut addresses: Vec<u64> = ptrs.iter().map(|ptr| ptr.address()).collect();
            addresses.sort_unstable();
            assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] >= block), "{block}: blocks overlap");
            assert_eq!((statistics().blocks_in_use, statistics().bytes_in_use), (20, 20 * block), "{block}");
            assert_eq!(
                statistics().bytes_requested,
                (1..=20).map(|n| block * n / 20).sum::<u64>(),
                "{block}"
            );
            for (ptr, n) in ptrs.into_iter().zip(1..) {
                // SAFETY: the block came from this resource with this size, and nothing uses it.
                unsafe { blocks.deallocate_bytes(ptr, block * n / 20, S) };
            }
            assert_eq!((statistics().blocks_in_use, statistics().bytes_in_use), (0, 0), "{block}: {round}");
            assert_eq!(statistics().blocks_free, statistics().bytes_reserved / block, "{block}");
            blocks.validate();
        }
        blocks.trim(0).expect("the device answers");
        assert_eq!(statistics().bytes_reserved, 0, "{block}");
    }
}

/// RMM's resource without blocks returns null.
#[test]
fn a_resource_without_blocks_is_refused() {
    let driver: DriverHandle = SimDevice::new(SimConfig::h200());
    for layer in [FixedSizeLayer::new().blocks_per_region(0), FixedSizeLayer::new().block_bytes(0)] {
        let cuda = CudaMemoryResource::new(Arc::clone(&driver));
        let error = cuda.layer(layer).map(drop).expect_err("it has no blocks");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

/// RMM's bins take 992 MiB when they are built, and overflow from 2^31 bytes on.
#[test]
fn bins_take_nothing_until_they_are_used_and_serve_up_to_their_size() {
    let device = SimDevice::new(SimConfig::h200());
    let cuda = || CudaMemoryResource::new(device.clone());
    let bins = cuda().layer(BinningLayer::new().exponents(18, 22)).expect("bins");
    assert_eq!((device.live_bytes(), bins.bins().count()), (0, 5));
    let served = || -> Vec<u64> {
        bins.bins().map(|(_, bin)| bin.statistics().expect("it counts").allocations).collect()
    };
    for (bytes, expected) in [
        (0, [0, 0, 0, 0, 0]),
        (1, [1, 0, 0, 0, 0]),
        (1 << 18, [2, 0, 0, 0, 0]),
        ((1 << 18) + 1, [2, 1, 0, 0, 0]),
        (1 << 22, [2, 1, 0, 0, 1]),
        ((1 << 22) + 1, [2, 1, 0, 0, 1]),
    ] {
        bins.allocate_bytes(bytes, S).expect("there is room");
        assert_eq!(served(), expected, "{bytes} bytes");
    }
    let large = cuda().layer(BinningLayer::new().exponents(30, 33)).expect("bins");
    large.allocate_bytes(1 << 33, S).expect("the last bin serves it");
    assert_eq!(large.bins().last().and_then(|(_, bin)| bin.statistics()).map(|s| s.allocations), Some(1));
}

/// Bins hold free memory that other requests lack, and upstream holds free memory that a bin lacks.
#[test]
fn pools_of_bins_and_upstream_give_way_to_each_other() {
    let table = LayerTable::new(millpond_resources::LAYERS.iter().copied());
    for (text, first, second) in [
        ("cuda+binning:bins=1MiB(cuda+pool)", MIB, 30 * MIB),
        ("cuda+binning:bins=1MiB(cuda+pool:pages=off)", MIB, 30 * MIB),
        ("cuda+binning:bins=64KiB/1MiB(cuda_async)", MIB, 30 * MIB),
        ("cuda+binning:bins=1MiB(cuda+pool)/40MiB(cuda)", MIB, 30 * MIB),
        ("cuda+pool:pages=off+binning:bins=1MiB(cuda)", 2 * MIB, MIB),
        ("cuda_async+binning:bins=1MiB(cuda)", 2 * MIB, MIB),
        ("managed+binning:bins=1MiB/2MiB(managed+pool:pages=off)/40MiB(managed)", 2 * MIB, 30 * MIB),
    ] {
        let driver: DriverHandle = SimDevice::new(SimConfig::with_capacity(32 * MIB));
        let spec: StackSpec = text.parse().expect(text);
        let bins = spec.build(&table, &driver).expect(text);
        let held: Vec<DevicePtr> = std::iter::from_fn(|| bins.allocate_bytes(first, S).ok()).collect();
        assert!(bins.allocate_bytes(second, S).is_err() && held.len() > 10, "{text}");
        for ptr in held {
            // SAFETY: the block came from the bins with this size, and nothing uses it.
            unsafe { bins.deallocate_bytes(ptr, first, S) };
        }
        for number in 0..30 * MIB / second {
            if let Err(error) = bins.allocate_bytes(second, S) {
                panic!("{text}, block {number}: {error}");
            }
        }
    }
}

/// A larger request lacks the memory that the bins hold. While callers use it, the error names their blocks.
/// Once it is free, the bins return it.
#[test]
fn bins_give_way_to_larger_requests() {
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::with_capacity(32 * MIB)));
    let pool = cuda.layer(PoolLayer::new()).expect("an empty pool");
    let bins = pool.layer(BinningLayer::new().add_bin(MIB)).expect("bins");
    let small: Vec<DevicePtr> = std::iter::from_fn(|| bins.allocate_bytes(MIB, S).ok()).collect();
    let error = bins.allocate_bytes(16 * MIB, S).expect_err("all is in use");
    let remedies = &error.out_of_memory_report().expect("a pool reports").remedies;
    let named = remedies.iter().find_map(|remedy| match &remedy.action {
        RemedyAction::FreeBlocks { blocks, .. } => Some(blocks),
        _ => None,
    });
    let named = named.unwrap_or_else(|| panic!("no block is named: {error}"));
    let is_callers = |address| small.contains(&DevicePtr::new(address));
    assert!(named.iter().all(|block| block.bytes == MIB && is_callers(block.address)), "{error}");
    for ptr in &small {
        // SAFETY: the block came from the bins with this size, and nothing uses it.
        unsafe { bins.deallocate_bytes(*ptr, MIB, S) };
    }
    bins.allocate_bytes(16 * MIB, S).expect("the bins return free memory");
}

fn given(driver: &DriverHandle) -> (AnyResource, mock::Handle) {
    let (resource, handle) = mock::resource(Arc::clone(driver));
    (resource.into_any(), handle)
}

/// If a resource cannot return memory, its error does not describe the request, and the other resources still
/// return memory.
#[test]
fn a_bin_that_cannot_give_way_keeps_no_other_from_it_and_hides_no_lack_of_memory() {
    let driver: DriverHandle = SimDevice::new(SimConfig::h200());
    let (upstream, handle) = mock::resource(Arc::clone(&driver));
    let [(small, of_small), (large, of_large)] = [given(&driver), given(&driver)];
    let layer = BinningLayer::new().add_bin_with(KIB, small).add_bin(2 * KIB).add_bin_with(MIB, large);
    let stack = upstream.layer(layer).expect("bins");
    let fails =
        |stack: &dyn DeviceMemoryResource, bytes| stack.allocate_bytes(bytes, S).map_err(|it| it.kind());

    of_small.fail_trims(Some(ErrorKind::Driver));
    handle.set_trimmed_bytes(1);
    of_large.fail_next(ErrorKind::OutOfMemory);
    assert!(fails(&stack, MIB).is_ok(), "upstream gave way");

    // Another bin's block made room, but not enough.
    let block = stack.allocate_bytes(2 * KIB, S).expect("there is room");
    // SAFETY: the block is live, unused, and freed with its size.
    unsafe { stack.deallocate_bytes(block, 2 * KIB, S) };
    (0..3).for_each(|_| of_large.fail_next(ErrorKind::OutOfMemory));
    assert_eq!(fails(&stack, MIB), Err(ErrorKind::OutOfMemory));

    handle.take_calls();
    assert_eq!(stack.trim(7).map_err(|it| it.kind()), Err(ErrorKind::Driver));
    assert!(handle.take_calls().contains(&Call::Trim { keep_bytes: 7 }), "upstream is trimmed, too");
    assert!(of_large.take_calls().contains(&Call::Trim { keep_bytes: 7 }), "so are the other bins");
}
