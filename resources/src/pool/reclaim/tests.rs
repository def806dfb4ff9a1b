//! Tests which caches and arenas are reclaimed, and which free bytes count.

use millpond_core::{DeviceMemoryResourceExt, DevicePtr, Layout, StreamRef};
use millpond_driver::sim::{SimConfig, SimDevice};

use super::*;
use crate::pool::arena::ARENAS;
use crate::{CudaMemoryResource, PagesMode, PoolLayer, PoolMemoryResource};

const MIB: u64 = 1 << 20;
const SMALL: u64 = 64 << 10;

type Pool = PoolMemoryResource<CudaMemoryResource>;

fn pool(pages: PagesMode) -> Pool {
    let cuda = CudaMemoryResource::new(SimDevice::new(SimConfig::h200()));
    cuda.layer(PoolLayer::new().pages(pages)).expect("an empty pool")
}

fn take(pool: &Pool, bytes: u64) -> DevicePtr {
    pool.allocate_bytes(bytes, StreamRef::LEGACY).expect("there is room")
}

fn give(pool: &Pool, ptr: DevicePtr, bytes: u64) {
    // SAFETY: each block came from the pool with this size and is freed once.
    unsafe { pool.deallocate_bytes(ptr, bytes, StreamRef::LEGACY) };
}

/// Returns the owner number of the stream that all calls use.
fn owner_in(pool: &Pool) -> Owner {
    let cell = (0..8).find_map(|_| pool.central.stream_cell(StreamRef::LEGACY));
    cell.expect("the stream is used often").owner
}

/// Creates a second arena, as if threads contended, and moves this thread there; returns its number.
fn second_arena(pool: &Pool) -> Shard {
    let users = std::array::from_fn::<u32, ARENAS, _>(|shard| if shard == 0 { 2 } else { 0 });
    let shard = pool.shared.arenas.next(0, &users);
    pool.shared.thread_caches.my_cache(pool.id).counts.shard.store(shard, Ordering::Relaxed);
    shard
}

fn small_in(shard: Shard) -> Request {
    Request { shard, ..Request::new(Layout::new(SMALL)).expect("not too large") }
}

fn large() -> Request {
    Request::new(Layout::new(8 * MIB)).expect("not too large")
}

/// Frees blocks in two arenas, and a large one. A small request counts the free bytes of its own arena and of
/// the large blocks. A large request counts all free bytes, and so does a small one while memory is short.
#[test]
fn the_free_bytes_for_a_request_are_those_of_its_arena_and_the_large_ones() {
    let pool = pool(PagesMode::Off);
    let owner = owner_in(&pool);
    let free_bytes = || pool.central.with_heaps(|heaps| heaps.free_bytes(None, owner));
    assert_eq!(free_bytes(), 0);
    let some = |count: usize| (0..2 * count).map(|_| take(&pool, SMALL)).collect::<Vec<DevicePtr>>();
    let in_first = some(4);
    let second = second_arena(&pool);
    let in_second = some(7);
    give(&pool, take(&pool, 8 * MIB), 8 * MIB);
    // Some blocks stay in use, so that no span is free.
    let freed = in_first.into_iter().step_by(2).chain(in_second.into_iter().step_by(2));
    freed.for_each(|ptr| give(&pool, ptr, SMALL));
    pool.central.with_heaps(|heaps| _ = heaps.reclaim(None, Reclaim::Everything));
    assert_eq!(free_bytes(), 8 * MIB + 11 * SMALL);
    for is_short in [false, true] {
        pool.central.with_heaps(|heaps| {
            heaps.set_short(is_short);
            let all = 8 * MIB + 11 * SMALL;
            for (request, bytes) in [
                (None, all),
                (Some(large()), all),
                (Some(small_in(0)), if is_short { all } else { 8 * MIB + 4 * SMALL }),
                (Some(small_in(second)), if is_short { all } else { 8 * MIB + 7 * SMALL }),
            ] {
                let counted = heaps.free_bytes(request.as_ref(), owner);
                assert_eq!(counted, bytes, "{request:?}, short: {is_short}");
            }
            assert_eq!(heaps.free_bytes(None, owner), all);
        });
    }
    pool.central.with_heaps(|heaps| heaps.disown(None, owner, u64::MAX));
    assert_eq!(free_bytes(), 0);
    pool.validate();
}

/// All blocks of a stream are moved, unless the request is for one of several arenas.
#[test]
fn all_blocks_are_moved_but_those_of_other_arenas() {
    for is_contended in [false, true] {
        let pool = pool(PagesMode::Off);
        let owner = owner_in(&pool);
        if is_contended {
            second_arena(&pool);
        }
        for (request, moves_all) in [(None, true), (Some(large()), true), (Some(small_in(0)), !is_contended)]
        {
            let blocks = [(); 8].map(|()| take(&pool, SMALL));
            blocks.into_iter().step_by(2).for_each(|ptr| give(&pool, ptr, SMALL));
            pool.central.with_heaps(|heaps| {
                heaps.reclaim(None, Reclaim::Everything);
                assert!(heaps.free_bytes(None, owner) >= 4 * SMALL);
                let moved = heaps.disown(request.as_ref(), owner, u64::MAX);
                assert_eq!(moved, moves_all, "{request:?}, contended: {is_contended}");
                assert_eq!(heaps.free_bytes(None, owner) == 0, moves_all);
                heaps.disown(None, owner, u64::MAX);
            });
        }
    }
}

/// Caches are flushed before growth. Over regions, or while threads contend, they are flushed only if they
/// hold enough: a part of the reserved bytes, or of the arena's bytes.
#[test]
fn caches_are_flushed_if_they_hold_a_part_of_what_is_reserved() {
    for (pages, is_contended, share) in [
        (PagesMode::Off, false, LITTLE),
        (PagesMode::Off, true, LITTLE),
        (PagesMode::On, true, LITTLE),
        (PagesMode::On, false, u64::MAX),
    ] {
        // Blocks in use, first large enough to make the caches unimportant, then small enough to make them
        // matter.
        let mut flushed = Vec::new();
        for in_use in [0, 1, 8, 64, 512].map(|mib| mib * MIB) {
            let pool = pool(pages);
            if is_contended {
                second_arena(&pool);
            }
            let blocks = [(); 16].map(|()| take(&pool, SMALL));
            if in_use > 0 {
                take(&pool, in_use);
            }
            for limit in [&pool.shared.limits.max_cached_bytes, &pool.shared.limits.max_class_bytes] {
                limit.store(u64::MAX, Ordering::Relaxed);
            }
            blocks.into_iter().for_each(|ptr| give(&pool, ptr, SMALL));
            let held = || pool.shared.thread_caches.my_cache(pool.id).counts.small_bytes_held();
            let (before, reserved) = (held(), pool.pool_bytes());
            assert!(before >= 8 * SMALL, "{before} bytes are cached");
            pool.central.with_heaps(|heaps| _ = heaps.reclaim(None, Reclaim::All));
            assert_eq!(held() == 0, before >= reserved / share, "{pages}, {before} of {reserved}");
            flushed.push(held() == 0);
            pool.central.with_heaps(|heaps| {
                heaps.set_short(true);
                heaps.reclaim(None, Reclaim::All);
            });
            assert_eq!(held(), 0, "all are flushed while memory is short");
            pool.validate();
        }
        assert!(flushed[0] && flushed[4] == (share == u64::MAX), "{pages}, 1/{share}: {flushed:?}");
    }
}

/// While threads contend, a small request compares the caches with its own arena.
#[test]
fn a_small_request_compares_the_caches_of_its_arena_with_that() {
    let pool = pool(PagesMode::Off);
    let second = second_arena(&pool);
    let blocks = [(); 16].map(|()| take(&pool, SMALL));
    take(&pool, 512 * MIB);
    blocks.into_iter().for_each(|ptr| give(&pool, ptr, SMALL));
    let held = || pool.shared.thread_caches.my_cache(pool.id).counts.small_bytes_held();
    let (before, arena) = (held(), pool.shared.arenas.lock(second).heap.bytes_reserved);
    assert!(before >= arena / LITTLE, "{before} of {arena}");
    for (shard, is_flushed) in [(0, false), (second, true)] {
        pool.central.with_heaps(|heaps| _ = heaps.reclaim(Some(&small_in(shard)), Reclaim::All));
        assert_eq!(held() == 0, is_flushed, "arena {shard}");
    }
}

/// A flush tells whether it found a block. The thread still counts the large block that the first one took.
#[test]
fn a_flush_without_a_block_says_so() {
    let pool = pool(PagesMode::Off);
    // After some calls the stream has a cache.
    [(); 8].map(|()| take(&pool, SMALL)).into_iter().for_each(|ptr| give(&pool, ptr, SMALL));
    give(&pool, take(&pool, 8 * MIB), 8 * MIB);
    let flush = || pool.central.with_heaps(|heaps| heaps.reclaim(None, Reclaim::Large));
    assert_eq!((flush(), flush()), (true, false));
    assert!(pool.shared.thread_caches.my_cache(pool.id).counts.may_have_large());
}
